/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "img/mount.h"
#include "img/mount_priv.h"
#include "sys/mount.h"

static int path_of(const char *top, const char *sub, const struct digest *d,
		   char *buf, struct err *e)
{
	char hex[DIGEST_HEX + 1];

	if (snprintf(buf, PATH_MAX, "%s/%s/%s", top, sub, digest_hex(d, hex)) >=
	    PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "%s", top);
	return 0;
}

int layer_mount_path(const char *run, const struct digest *d, char *buf,
		     struct err *e)
{
	return path_of(run, "mnt", d, buf, e);
}

int layer_dir_path(const char *lib, const struct digest *d, char *buf,
		   struct err *e)
{
	return path_of(lib, LAYER_DIRS, d, buf, e);
}

static bool is_mounted(const char *path)
{
	struct statfs st;

	return statfs(path, &st) == 0 &&
	       (uint32_t)st.f_type == MOUNT_EROFS_MAGIC;
}

enum image_way layer_ready(const struct layer_node *n, const struct digest *d,
			   enum image_way way)
{
	char path[PATH_MAX];

	if (way != IMAGE_DIRECTORY &&
	    layer_mount_path(n->run, d, path, NULL) == 0 && is_mounted(path))
		return IMAGE_FILE;
	if ((way == IMAGE_AUTO || way == IMAGE_DIRECTORY) &&
	    layer_dir_path(n->lib, d, path, NULL) == 0 &&
	    access(path, F_OK) == 0)
		return IMAGE_DIRECTORY;
	return IMAGE_AUTO;
}

bool layer_on_loop(const struct layer_node *n, const struct digest *d)
{
	char path[PATH_MAX];
	struct stat st;

	/* A mount of files has a device of its own, without a major number. */
	return layer_mount_path(n->run, d, path, NULL) == 0 &&
	       stat(path, &st) == 0 && major(st.st_dev) != 0;
}

static int each_in(const char *dir, enum image_way way, layer_each_fn *fn,
		   void *arg, struct err *e)
{
	auto_dir DIR *d = opendir(dir);
	char path[PATH_MAX + DIGEST_HEX + 2];
	const struct dirent *de;
	struct digest digest;
	int r = 0;

	if (!d)
		return errno == ENOENT ? 0
				       : err_sys(e, errno, "open '%s'", dir);
	while (r == 0 && (de = readdir(d))) {
		if (digest_parse(de->d_name, &digest) < 0)
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, de->d_name);
		if (way == IMAGE_DIRECTORY || is_mounted(path))
			r = fn(arg, &digest, way, e);
	}
	return r;
}

int layer_each(const struct layer_node *n, layer_each_fn *fn, void *arg,
	       struct err *e)
{
	char dir[PATH_MAX];
	int r;

	if (snprintf(dir, sizeof(dir), "%s/mnt", n->run) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "%s", n->run);
	r = each_in(dir, IMAGE_FILE, fn, arg, e);
	if (r != 0)
		return r;
	if (snprintf(dir, sizeof(dir), "%s/" LAYER_DIRS, n->lib) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "%s", n->lib);
	return each_in(dir, IMAGE_DIRECTORY, fn, arg, e);
}

/* One byte of the file for each layer, so that they do not wait for each
 * other; of the open file, so that a killed one lets go. */
int layer_lock(const struct layer_node *n, const struct digest *d, bool wait,
	       int *ret_fd, struct err *e)
{
	struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
	auto_close int fd = -1;
	char path[PATH_MAX];
	uint64_t at;
	int r;

	if (snprintf(path, sizeof(path), "%s/mnt/.lock", n->run) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "%s", n->run);
	memcpy(&at, d->b, sizeof(at));
	fl.l_start = (off_t)(at >> 2);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	do
		r = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &fl);
	while (r < 0 && errno == EINTR);
	if (r < 0 && !wait && (errno == EAGAIN || errno == EACCES))
		return err_set(e, -EBUSY, "busy",
			       "the layer is being mounted just now");
	if (r < 0)
		return err_sys(e, errno, "lock '%s'", path);
	*ret_fd = steal_fd(&fd);
	return 0;
}

/* Whoever has a file of it open may go on; there is no claim. */
static int unmount_all(const char *path, struct err *e)
{
	int r;

	do
		r = umount2(path, UMOUNT_NOFOLLOW);
	while (r == 0);
	if (errno == EBUSY) {
		do
			r = umount2(path, UMOUNT_NOFOLLOW | MNT_DETACH);
		while (r == 0);
	}
	if (errno != EINVAL && errno != ENOENT)
		return err_sys(e, errno, "unmount '%s'", path);
	if (rmdir(path) < 0 && errno != ENOENT)
		return err_sys(e, errno, "remove '%s'", path);
	return 0;
}

/* Out of use in one step: it is removed under another name. */
static int retire_dir(const struct layer_node *n, const struct digest *d,
		      struct err *e)
{
	char path[PATH_MAX], gone[PATH_MAX], hex[DIGEST_HEX + 1];
	int r;

	r = layer_dir_path(n->lib, d, path, e);
	if (r < 0 || access(path, F_OK) < 0)
		return r;
	if (snprintf(gone, sizeof(gone), "%s/" LAYER_DIRS "/.gone.%s.%d",
		     n->lib, digest_hex(d, hex), (int)getpid()) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "%s", n->lib);
	if (rename(path, gone) < 0 && errno != ENOENT)
		return err_sys(e, errno, "put '%s' away", path);
	return 0;
}

int layer_unmount(const struct layer_node *n, const struct digest *d,
		  struct err *e)
{
	auto_close int lock = -1;
	char path[PATH_MAX];
	int r;

	r = layer_lock(n, d, false, &lock, e);
	if (r == 0)
		r = layer_mount_path(n->run, d, path, e);
	if (r == 0)
		r = unmount_all(path, e);
	if (r == 0)
		r = retire_dir(n, d, e);
	return r;
}

/* ".gone.." is nobody's; ".tmp.<hex>" is somebody's who holds the lock. */
static int sweep_one(const struct layer_node *n, int dirfd, const char *name,
		     struct err *e)
{
	auto_close int lock = -1;
	struct digest d;

	if (!strncmp(name, LAYER_TMP, strlen(LAYER_TMP))) {
		if (digest_parse(name + strlen(LAYER_TMP), &d) == 0 &&
		    layer_lock(n, &d, false, &lock, NULL) < 0)
			return 0;
	} else if (strncmp(name, ".gone.", 6) != 0) {
		return 0;
	}
	return fd_remove_tree(dirfd, name, e);
}

int layer_sweep(const struct layer_node *n, struct err *e)
{
	auto_close int dirfd = -1;
	auto_dir DIR *d = NULL;
	const struct dirent *de;
	char dir[PATH_MAX];
	int r = 0;

	if (snprintf(dir, sizeof(dir), "%s/" LAYER_DIRS, n->lib) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "%s", n->lib);
	d = opendir(dir);
	if (!d)
		return errno == ENOENT ? 0
				       : err_sys(e, errno, "open '%s'", dir);
	dirfd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dirfd < 0)
		return err_sys(e, errno, "open '%s'", dir);
	while (r == 0 && (de = readdir(d)))
		r = sweep_one(n, dirfd, de->d_name, e);
	return r;
}
