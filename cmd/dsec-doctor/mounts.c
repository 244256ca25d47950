/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "doctor.h"
#include "sys/mount.h"
#include "sys/userns.h"

#ifndef FSCONFIG_SET_STRING
#define FSCONFIG_SET_STRING 1
#define FSCONFIG_CMD_CREATE 6
#endif

/* Any range will do: nothing is written with it that stays. */
#define PROBE_UID_BASE 1073741824

bool is_on_tmpfs(const char *path)
{
	char buf[PATH_MAX], *slash;
	struct statfs st;

	snprintf(buf, sizeof(buf), "%s", path);
	while (statfs(buf, &st) < 0) {
		slash = strrchr(buf, '/');
		if (errno != ENOENT || !slash)
			return false;
		slash[slash == buf] = '\0';
	}
	return st.f_type == TMPFS_MAGIC;
}

/* A file system type that is there or can be loaded. */
static bool has_fs(const char *type)
{
	int fd = (int)syscall(SYS_fsopen, type, 1 /* close-on-exec */);

	if (fd < 0)
		return false;
	fd_close(fd);
	return true;
}

/*
 * EROFS straight from a file: offered one that is no EROFS, a kernel that can
 * says so; one that cannot wants a block device first.
 */
static bool erofs_from_file(const char *dir)
{
	auto_close int file = -1, fs = -1;
	char path[PATH_MAX];
	bool can;

	if (snprintf(path, sizeof(path), "%s/.probe-erofs.%d", dir,
		     (int)getpid()) >= PATH_MAX)
		return false;
	file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	fs = (int)syscall(SYS_fsopen, "erofs", 1);
	can = file >= 0 && fs >= 0 && ftruncate(file, 65536) == 0 &&
	      syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "source", path,
		      0) == 0 &&
	      syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) <
		      0 &&
	      errno != ENOTBLK && errno != ENODEV;
	unlink(path);
	return can;
}

static bool has_reflink(const char *dir)
{
	auto_close int a = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	auto_close int b = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	return a >= 0 && b >= 0 && write(a, "x", 1) == 1 &&
	       ioctl(b, FICLONE, a) == 0;
}

struct probe {
	const char *dir;
	const char *tmpfs; /* not NULL: mount one on dir first */
	bool overlay, volatil, idmap;
};

static int own_mounts(void)
{
	if (unshare(CLONE_NEWNS) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return errno;
	return 0;
}

static int idmap_onto_itself(const char *dir)
{
	static char stack[65536] __attribute__((aligned(16)));
	auto_close int ns = -1, at = -1;
	struct mount_copy copy = {.source = dir, .target = ""};
	int r;

	ns = userns_new(PROBE_UID_BASE, false, stack, sizeof(stack), NULL);
	if (ns < 0)
		return -ns;
	at = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (at < 0)
		return errno;
	copy.userns = ns;
	copy.target_fd = at;
	r = mount_idmapped(&copy);
	return r < 0 ? -r : 0;
}

/* Before anything is mapped: root has no id in a mapped directory. */
static int make_dirs(const char *dir)
{
	static const char *const made[] = {"l", "u", "w", "m"};
	char path[PATH_MAX];

	for (size_t i = 0; i < array_len(made); i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, made[i]);
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			return errno;
	}
	return 0;
}

static int mount_overlay(const char *dir, bool volatil)
{
	char options[4 * PATH_MAX], path[PATH_MAX];

	snprintf(options, sizeof(options),
		 "lowerdir=%s/l,upperdir=%s/u,workdir=%s/w%s", dir, dir, dir,
		 volatil ? ",volatile" : "");
	snprintf(path, sizeof(path), "%s/m", dir);
	return mount("overlay", path, "overlay", 0, options) < 0 ? errno : 0;
}

static int try_mounts(void *arg)
{
	const struct probe *p = arg;
	int r = own_mounts();

	if (r == 0 && p->tmpfs &&
	    mount(p->tmpfs, p->dir, "tmpfs", 0, "mode=755") < 0)
		r = errno;
	if (r == 0)
		r = make_dirs(p->dir);
	if (r == 0 && p->idmap)
		r = idmap_onto_itself(p->dir);
	if (r == 0 && p->overlay)
		r = mount_overlay(p->dir, p->volatil);
	return r;
}

static bool can(struct probe p)
{
	return d_child(try_mounts, &p) == 0;
}

static void check_layers(struct doctor *d, const char *dir)
{
	bool volatil, plain, mapped;

	plain = can((struct probe){.dir = dir, .overlay = true});
	mapped = can((struct probe){.dir = dir, .idmap = true});
	d_feature(d, "overlay", plain);
	d_feature(d, "idmap_library", mapped);
	d_feature(d, "idmap_tmpfs",
		  can((struct probe){.dir = dir,
				     .tmpfs = "probe",
				     .idmap = true}));
	d_feature(d, "idmap_overlay",
		  can((struct probe){.dir = dir,
				     .overlay = true,
				     .idmap = true}));
	/* Last: it marks the work directory, which is then used up. */
	volatil = can(
		(struct probe){.dir = dir, .overlay = true, .volatil = true});
	d_feature(d, "overlay_volatile", volatil);
	if (!plain)
		d_finding(d, "overlay", SEV_ERROR, "modprobe overlay",
			  "overlayfs cannot be mounted on %s", d->tree.lib);
	else if (!volatil)
		d_finding(d, "overlay_volatile", SEV_INFO, NULL,
			  "no volatile overlays (they came with 5.10): "
			  "launches and ends wait for the disk");
	if (!mapped)
		d_finding(d, "idmap_library", SEV_ERROR,
			  "dsec-doctor --fix --pool-size 20G",
			  "the file system of %s cannot map ids", d->tree.lib);
}

void check_mounts(struct doctor *d)
{
	static const char *const types[] = {"overlay", "erofs", "btrfs", "xfs",
					    "fuse"};
	char dir[PATH_MAX], name[64];
	auto_close int lib = -1;

	for (size_t i = 1; i < array_len(types); i++)
		d_feature(d, types[i], has_fs(types[i]));
	lib = open(d->tree.lib, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (lib < 0)
		return; /* check_node() says so */
	d_feature(d, "erofs_from_file", erofs_from_file(d->tree.lib));
	d_feature(d, "reflink", has_reflink(d->tree.lib));
	snprintf(name, sizeof(name), ".probe.%d", (int)getpid());
	if (tree_path(dir, NULL, "%s/%s", d->tree.lib, name) < 0 ||
	    mkdir(dir, 0755) < 0)
		return;
	check_layers(d, dir);
	fd_remove_tree(lib, name, NULL);
}
