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

static bool is_listed(const char *list, const char *path)
{
	size_t n;

	for (const char *p = list; p && *p; p += n + (p[n] == '\n')) {
		n = strcspn(p, "\n");
		if (lies_in(path, p, n))
			return true;
	}
	return false;
}

/* Without "." and "..", which lead out of what the list is held against. */
static bool is_plain(const char *path)
{
	size_t n;

	if (!strcmp(path, "/"))
		return true;
	for (const char *p = path; *p; p += n) {
		if (*p++ != '/')
			return false;
		n = strcspn(p, "/");
		if (n == 0 || (n == 1 && p[0] == '.') ||
		    (n == 2 && p[0] == '.' && p[1] == '.'))
			return false;
	}
	return *path != '\0';
}

static int not_plain(const char *target, struct err *e)
{
	return err_set(e, -EACCES, "mount_denied",
		       "the source of '%s' is not a plain path", target);
}

int allow_mount(const char *config, const char *source, const char *target,
		struct err *e)
{
	char file[PATH_MAX], real[PATH_MAX];
	auto_free char *list = NULL;
	int r;

	if (snprintf(file, sizeof(file), "%s/mounts.allow", config) >=
	    (int)sizeof(file))
		return err_sys(e, ENAMETOOLONG, "%s", config);
	r = fd_read_file(AT_FDCWD, file, LIST_MAX, &list, NULL, e);
	if (r < 0 && r != -ENOENT)
		return r;
	if (!is_plain(source))
		return not_plain(target, e);
	if (!is_listed(list, source))
		return err_set(e, -EACCES, "mount_denied",
			       "the source of '%s' is not in a directory that "
			       "mounts.allow lists",
			       target);
	/* What was checked is what is mounted: no link in between. */
	if (!realpath(source, real))
		return err_sys(e, errno, "the source of '%s'", target);
	return strcmp(real, source) ? not_plain(target, e) : 0;
}
