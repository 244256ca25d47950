/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "box/allow.h"

#define LIST_MAX (64 * 1024)

static bool lies_in(const char *path, const char *dir, size_t n)
{
	while (n > 1 && dir[n - 1] == '/')
		n--;
	if (n == 0 || dir[0] != '/')
		return false;
	return !strncmp(path, dir, n) &&
	       (path[n] == '\0' || path[n] == '/' || n == 1);
}

int allow_mount(const char *config, const char *source, struct err *e)
{
	char file[PATH_MAX], real[PATH_MAX];
	auto_free char *list = NULL;
	size_t n;
	int r;

	if (!realpath(source, real))
		return err_sys(e, errno, "mount source '%s'", source);
	/* What was checked is what is mounted: no link in between. */
	if (strcmp(real, source))
		return err_set(e, -EACCES, "mount_denied",
			       "mount source '%s' is not a plain path: say "
			       "'%s'",
			       source, real);
	if (snprintf(file, sizeof(file), "%s/mounts.allow", config) >=
	    (int)sizeof(file))
		return err_sys(e, ENAMETOOLONG, "%s", config);
	r = fd_read_file(AT_FDCWD, file, LIST_MAX, &list, NULL, e);
	if (r < 0 && r != -ENOENT)
		return r;
	for (const char *p = list; p && *p; p += n + (p[n] == '\n')) {
		n = strcspn(p, "\n");
		if (lies_in(real, p, n))
			return 0;
	}
	return err_set(e, -EACCES, "mount_denied",
		       "'%s' is not in a directory that %s lists", real, file);
}
