/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "img/host.h"
#include "img/image_priv.h"

static const char *const ways[] = {
	[IMAGE_AUTO] = "auto",
	[IMAGE_FILE] = "file",
	[IMAGE_LOOP] = "loop",
	[IMAGE_DIRECTORY] = "directory",
};

const char *image_way_name(enum image_way way)
{
	return ways[way];
}

int image_way_parse(const char *s, enum image_way *ret)
{
	for (size_t i = 0; i < array_len(ways); i++)
		if (!strcmp(s, ways[i])) {
			*ret = (enum image_way)i;
			return 0;
		}
	return -EINVAL;
}

/* In the library, with ids that are mapped with it. */
int image_add_dir(struct image *img, const char *path, struct err *e)
{
	struct image_layer *p;

	p = realloc(img->layers, (img->nlayers + 1) * sizeof(*p));
	if (!p)
		return err_sys(e, ENOMEM, "layers");
	img->layers = p;
	p += img->nlayers;
	*p = (struct image_layer){.path = strdup(path)};
	if (!p->path)
		return err_sys(e, ENOMEM, "layers");
	img->nlayers++;
	return 0;
}

static int open_host(const char *lib, struct image *img, struct err *e)
{
	char path[PATH_MAX];
	int r;

	r = host_root(lib, path, sizeof(path), e);
	if (r < 0)
		return err_wrap(e, r, "image host");
	r = image_add_dir(img, path, e);
	if (r < 0)
		return r;
	img->binds[0] = "/usr";
	img->why_not = "the image host is this machine's own /usr";
	return json_pack_or(&img->config, e, "{s:{s:s, s:s}, s:s, s:s}", "env",
			    "PATH",
			    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:"
			    "/sbin:/bin",
			    "LANG", "C.UTF-8", "workdir", "/root", "user",
			    "root");
}

/* What the sandbox is told of its image's configuration. */
static int apply(struct image *img, struct err *e)
{
	const json_t *v;

	if (!json_is_object(json_object_get(img->config, "env")) &&
	    json_object_set_new(img->config, "env", json_object()) < 0)
		return err_sys(e, ENOMEM, "image");
	img->env = json_object_get(img->config, "env");
	img->cwd = json_str(img->config, "workdir");
	if (img->cwd[0] != '/')
		img->cwd = "/";
	img->user = json_str(img->config, "user");
	if (!*img->user)
		img->user = "root";
	v = json_object_get(img->config, "entrypoint");
	img->entrypoint = json_is_array(v) ? v : NULL;
	v = json_object_get(img->config, "cmd");
	img->cmd = json_is_array(v) ? v : NULL;
	img->checkpointable = !img->binds[0];
	return 0;
}

int image_open(const struct image_where *where, const char *name,
	       const json_t *layers, struct image *ret, struct err *e)
{
	struct image img = {.why_not = ""};
	bool host = !strcmp(name, "host");
	int r = 0;

	if (host)
		r = open_host(where->lib, &img, e);
	if (r == 0 && (!host || json_array_size(layers) > 0))
		r = image_add_stored(where, host ? NULL : name, layers, &img,
				     e);
	if (r == 0)
		r = apply(&img, e);
	if (r < 0) {
		image_done(&img);
		return r;
	}
	*ret = img;
	return 0;
}

void image_done(struct image *img)
{
	for (size_t i = 0; i < img->nlayers; i++)
		free(img->layers[i].path);
	free(img->layers);
	for (size_t i = 0; i < img->ntags; i++)
		free(img->tags[i].path);
	free(img->tags);
	json_decref(img->config);
	json_decref(img->digests);
	*img = (struct image){.why_not = ""};
}

/* Names by digest: "sha256:" before each. */
static int names_of(const json_t *digests, size_t from, json_t **ret,
		    struct err *e)
{
	auto_json json_t *names = json_array();
	size_t n = json_array_size(digests);

	for (size_t i = from; names && i < n; i++)
		if (json_array_append_new(
			    names,
			    json_sprintf("sha256:%s",
					 json_string_value(
						 json_array_get(digests, i)))) <
		    0)
			return err_sys(e, ENOMEM, "layers");
	if (!names)
		return err_sys(e, ENOMEM, "layers");
	*ret = steal_ptr(names);
	return 0;
}

static int configure(struct image *img, const json_t *spec, struct err *e)
{
	json_t *env = json_object_get(spec, "image_env");

	if ((env && json_object_set(img->config, "env", env) < 0) ||
	    json_object_set_new(img->config, "workdir",
				json_string(json_str(spec, "image_cwd"))) < 0 ||
	    json_object_set_new(img->config, "user",
				json_string(json_str(spec, "image_user"))) < 0)
		return err_sys(e, ENOMEM, "image");
	return apply(img, e);
}

int image_again(const struct image_where *where, const json_t *spec,
		struct image *ret, struct err *e)
{
	const json_t *digests = json_object_get(spec, "image_layers");
	bool host = !strcmp(json_str(spec, "image"), "host");
	auto_json json_t *names = NULL;
	const char *first = "host";
	int r;

	r = names_of(digests, 0, &names, e);
	if (r < 0)
		return r;
	if (!host) {
		auto_json json_t *rest = NULL;

		first = json_string_value(json_array_get(names, 0));
		if (!first)
			return err_set(e, -EBADMSG, "internal",
				       "a spec.json without layers of its "
				       "image");
		r = names_of(digests, 1, &rest, e);
		if (r == 0)
			r = image_open(where, first, rest, ret, e);
	} else {
		r = image_open(where, first, names, ret, e);
	}
	if (r < 0)
		return r;
	r = configure(ret, spec, e);
	if (r < 0)
		image_done(ret);
	return r;
}

int image_check(const struct image_where *where, const json_t *spec,
		struct err *e)
{
	struct image image;
	int r = image_again(where, spec, &image, e);

	if (r == 0)
		image_done(&image);
	return r;
}

bool image_fresh(const struct image *img)
{
	struct stat st;

	for (size_t i = 0; i < img->ntags; i++) {
		const struct image_tag *t = &img->tags[i];

		if (stat(t->path, &st) < 0 || st.st_ino != t->ino ||
		    st.st_mtim.tv_sec != t->mtime.tv_sec ||
		    st.st_mtim.tv_nsec != t->mtime.tv_nsec)
			return false;
	}
	return true;
}

int image_command(const struct image *img, json_t **ret, struct err *e)
{
	auto_json json_t *all = json_array();

	if (!all ||
	    (img->entrypoint &&
	     json_array_extend(all, (json_t *)(uintptr_t)img->entrypoint) <
		     0) ||
	    (img->cmd &&
	     json_array_extend(all, (json_t *)(uintptr_t)img->cmd) < 0))
		return err_sys(e, ENOMEM, "command of the image");
	*ret = json_array_size(all) ? steal_ptr(all) : NULL;
	return 0;
}
