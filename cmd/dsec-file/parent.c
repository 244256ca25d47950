/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "ops.h"

#define LINKS_MAX 40

/* Open what stands before the last name of ${path}, taken from ${at}. */
static int split(int at, const char *path, char *name, struct err *e)
{
	const char *slash = strrchr(path, '/');
	const char *base = slash ? slash + 1 : path;
	char dir[PATH_MAX];
	size_t len;
	int fd;

	if (!*base || !strcmp(base, ".") || !strcmp(base, ".."))
		return err_set(e, -EISDIR, "is_directory",
			       "'%s' names a directory", path);
	if (strlen(base) > NAME_MAX)
		return err_sys(e, ENAMETOOLONG, "'%s'", base);
	len = (size_t)(base - path);
	memcpy(dir, path, len);
	dir[len] = '\0';
	fd = openat(at, len ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* A directory that may be searched but not read will do. */
	if (fd < 0 && errno == EACCES)
		fd = openat(at, len ? dir : ".",
			    O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "'%s'", path);
	memcpy(name, base, strlen(base) + 1);
	return fd;
}

/* The links of /proc say something other than where they lead. */
static bool in_proc(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) == 0 && fs.f_type == PROC_SUPER_MAGIC;
}

int parent_open(const char *path, bool follow, char *ret_name, struct err *e)
{
	auto_close int dir = -1;
	char text[PATH_MAX];
	struct stat st;
	ssize_t len;

	if (strlen(path) >= sizeof(text))
		return err_sys(e, ENAMETOOLONG, "path");
	memcpy(text, path, strlen(path) + 1);
	for (size_t n = strlen(text); !follow && n > 1 && text[n - 1] == '/';)
		text[--n] = '\0';
	for (int i = 0; i < LINKS_MAX; i++) {
		int next = split(dir >= 0 ? dir : AT_FDCWD, text, ret_name, e);

		if (next < 0)
			return next;
		if (dir >= 0)
			fd_close(dir);
		dir = next;
		if (!follow ||
		    fstatat(dir, ret_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		    !S_ISLNK(st.st_mode))
			return steal_fd(&dir);
		if (in_proc(dir))
			return err_set(e, -ELOOP, "bad_path",
				       "'%s' leads through a link of /proc",
				       path);
		len = readlinkat(dir, ret_name, text, sizeof(text) - 1);
		if (len < 0)
			return err_sys(e, errno, "'%s'", path);
		text[len] = '\0';
	}
	return err_sys(e, ELOOP, "'%s'", path);
}

int parent_make(const char *path, struct err *e)
{
	char dir[PATH_MAX];
	size_t len = strlen(path);

	if (len >= sizeof(dir))
		return err_sys(e, ENAMETOOLONG, "path");
	memcpy(dir, path, len + 1);
	while (len > 1 && dir[len - 1] == '/')
		dir[--len] = '\0';
	while (len > 0 && dir[len - 1] != '/')
		len--;
	while (len > 1 && dir[len - 1] == '/')
		len--;
	if (len == 0)
		return 0;
	dir[len] = '\0';
	return fd_mkdir_p(dir, 0755, e);
}
