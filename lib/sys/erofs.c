/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "sys/erofs.h"
#include "sys/loop.h"

/* A value of fsconfig() has 255 bytes, and what was checked is what is mounted:
 * files are named by their descriptors. */
#define NAME_MAX_ 32

/* The files of an image, or the loop devices over them. */
struct parts {
	size_t n;
	int *loops; /* descriptors of ours, or -1 */
	char (*names)[NAME_MAX_];
};

static void parts_done(struct parts *p)
{
	for (size_t i = 0; i < p->n; i++)
		if (p->loops[i] >= 0)
			fd_close(p->loops[i]);
	free(p->loops);
	free(p->names);
	*p = (struct parts){0};
}

static int name_part(struct parts *p, size_t i, int fd, bool loop,
		     struct err *e)
{
	if (!loop) {
		snprintf(p->names[i], NAME_MAX_, "/proc/self/fd/%d", fd);
		return 0;
	}
	p->loops[i] = loop_attach(fd, p->names[i], e);
	return p->loops[i] < 0 ? p->loops[i] : 0;
}

static int parts_make(struct parts *p, const struct erofs_want *w,
		      struct err *e)
{
	int r;

	*p = (struct parts){.n = w->ndevices + 1};
	p->loops = malloc(p->n * sizeof(*p->loops));
	p->names = calloc(p->n, sizeof(*p->names));
	if (!p->loops || !p->names) {
		p->n = 0;
		r = err_sys(e, ENOMEM, "mount");
		goto err;
	}
	for (size_t i = 0; i < p->n; i++)
		p->loops[i] = -1;
	r = name_part(p, 0, w->meta, w->loop, e);
	for (size_t i = 0; r == 0 && i < w->ndevices; i++)
		r = name_part(p, i + 1, w->devices[i], w->loop, e);
	if (r == 0)
		return 0;
err:
	parts_done(p);
	return r;
}

static int config(int fs, unsigned cmd, const char *key, const char *value)
{
	return syscall(SYS_fsconfig, fs, cmd, key, value, 0) < 0 ? -errno : 0;
}

/* The kernel's own words on why not, into ${text}. */
static void complaint(int fs, char *text, size_t size)
{
	ssize_t n = read(fs, text, size - 1);

	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
}

/* A mount that stands nowhere yet: a descriptor. */
static int make_mount(const struct parts *p, bool direct, struct err *e)
{
	auto_close int fs = -1;
	char why[256];
	int fd, r;

	fs = (int)syscall(SYS_fsopen, "erofs", FSOPEN_CLOEXEC);
	if (fs < 0)
		return err_sys(e, errno, "EROFS");
	r = config(fs, FSCONFIG_SET_STRING, "source", p->names[0]);
	for (size_t i = 1; r == 0 && i < p->n; i++)
		r = config(fs, FSCONFIG_SET_STRING, "device", p->names[i]);
	if (r == 0 && direct)
		r = config(fs, FSCONFIG_SET_FLAG, "directio", NULL);
	if (r == 0)
		r = config(fs, FSCONFIG_SET_FLAG, "ro", NULL);
	if (r == 0)
		r = config(fs, FSCONFIG_CMD_CREATE, NULL, NULL);
	if (r < 0) {
		complaint(fs, why, sizeof(why));
		return err_sys(e, -r, "mount EROFS%s%s", *why ? ": " : "", why);
	}
	fd = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
			  MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID |
				  MOUNT_ATTR_NODEV);
	return fd < 0 ? err_sys(e, errno, "mount EROFS") : fd;
}

static int mount_pieces(const struct parts *p, const char *target, bool direct,
			struct err *e)
{
	auto_close int fd = -1;

	fd = make_mount(p, direct, e);
	if (fd < 0)
		return fd;
	return syscall(SYS_move_mount, fd, "", AT_FDCWD, target,
		       MOVE_MOUNT_F_EMPTY_PATH) < 0
		       ? err_sys(e, errno, "mount on '%s'", target)
		       : 0;
}

/* mount(2) takes a page of options. */
#define OPTIONS_MAX 4096

/* false: they are too long. */
static bool options(const struct parts *p, bool direct, char *buf)
{
	size_t at = 0;
	int n;

	buf[0] = '\0';
	for (size_t i = 1; i < p->n; i++) {
		n = snprintf(buf + at, OPTIONS_MAX - at, "%sdevice=%s",
			     at ? "," : "", p->names[i]);
		if (n < 0 || (size_t)n >= OPTIONS_MAX - at)
			return false;
		at += (size_t)n;
	}
	if (!direct)
		return true;
	n = snprintf(buf + at, OPTIONS_MAX - at, "%sdirectio", at ? "," : "");
	return n >= 0 && (size_t)n < OPTIONS_MAX - at;
}

/* One call in place of ten, half the time. */
static int mount_at_once(const struct parts *p, const char *target, bool direct,
			 struct err *e)
{
	unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV;
	char buf[OPTIONS_MAX];

	if (!options(p, direct, buf))
		return mount_pieces(p, target, direct, e);
	return syscall(SYS_mount, p->names[0], target, "erofs", flags, buf) < 0
		       ? err_sys(e, errno, "mount EROFS")
		       : 0;
}

int erofs_mount(const struct erofs_want *w, const char *target, struct err *e)
{
	struct parts p;
	int r;

	r = parts_make(&p, w, e);
	if (r < 0)
		return r;
	if (w->loop) {
		r = mount_pieces(&p, target, false, e);
	} else {
		r = mount_at_once(&p, target, true, e);
		/* Older kernels do not know the option, some files cannot do
		 * it. */
		if (r == -EINVAL)
			r = mount_at_once(&p, target, false, e);
	}
	parts_done(&p);
	return r;
}
