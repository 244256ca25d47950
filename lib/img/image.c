/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "img/host.h"
#include "img/image.h"

static int open_host(const char *lib, struct image *img, struct err *e)
{
	int r;

	r = host_root(lib, img->lower, sizeof(img->lower), e);
	if (r < 0)
		return err_wrap(e, r, "image host");
	img->binds[0] = "/usr";
	img->cwd = "/root";
	img->user = "root";
	img->why_not = "the image host is this machine's own /usr";
	return json_pack_or(&img->env, e, "{s:s, s:s}", "PATH",
			    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:"
			    "/sbin:/bin",
			    "LANG", "C.UTF-8");
}

int image_open(const char *lib, const char *name, struct image *ret,
	       struct err *e)
{
	memset(ret, 0, sizeof(*ret));
	if (!strcmp(name, "host"))
		return open_host(lib, ret, e);
	return err_set(e, -ENOENT, "image_unknown",
		       "no image '%s': this release has the image 'host' alone",
		       name);
}

void image_done(struct image *img)
{
	json_decref(img->env);
	img->env = NULL;
}
