/* SPDX-License-Identifier: Apache-2.0 */
/* Images as the kernel and fsck.erofs see them, and merged layers beside what
 * overlay makes of the same ones. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/proc.h"
#include "base/walk.h"
#include "img/erofs.h"
#include "sys/erofs.h"
#include "../tap.h"
#include "gentree.h"

static char tmp[] = "/tmp/erofs.XXXXXX";

static int write_file(const char *name, const void *data, size_t len)
{
	auto_close int fd = -1;
	char path[64];

	snprintf(path, sizeof(path), "%s/%s", tmp, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd_write_all(fd, data, len, NULL);
}

static bool write_devices(void)
{
	static unsigned char data[GEN_BLOCKS * FS_BLOCK];
	char name[16];

	for (unsigned d = 0; d < GEN_DEVICES; d++) {
		for (size_t i = 0; i < sizeof(data); i++)
			data[i] = gen_byte(d, i);
		snprintf(name, sizeof(name), "blob%u", d);
		if (write_file(name, data, sizeof(data)) < 0)
			return false;
	}
	return true;
}

static bool by_loop;

static int open_file(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", tmp, name);
	return open(path, O_RDONLY | O_CLOEXEC);
}

/* NAME.img, with its devices, on NAME. */
static int mount_file(const char *name, const int *devices, size_t n)
{
	struct erofs_want w = {.devices = devices, .ndevices = n};
	char file[64], dir[64];
	struct err e = {0};
	int r;

	snprintf(file, sizeof(file), "%s.img", name);
	snprintf(dir, sizeof(dir), "%s/%s", tmp, name);
	mkdir(dir, 0700);
	w.meta = open_file(file);
	w.loop = by_loop;
	r = erofs_mount(&w, dir, &e);
	if (r < 0)
		printf("# %s\n", e.msg);
	close(w.meta);
	return r;
}

static int mount_image(struct fstree *t, const char *name)
{
	auto_buf struct buf image = {0};
	size_t n = fstree_ndevices(t);
	int devices[GEN_DEVICES], r;
	struct err e = {0};
	char file[64];

	if (erofs_write(t, &image, &e) < 0) {
		printf("# %s\n", e.msg);
		return -EINVAL;
	}
	snprintf(file, sizeof(file), "%s.img", name);
	if (write_file(file, image.data, image.len) < 0)
		return -EIO;
	for (size_t i = 0; i < n; i++) {
		const struct fsdevice *d = fstree_device_at(t,
							    (uint16_t)(i + 1));

		snprintf(file, sizeof(file), "blob%u", d->root.b[0] - 0xa0U);
		devices[i] = open_file(file);
	}
	r = mount_file(name, devices, n);
	for (size_t i = 0; i < n; i++)
		close(devices[i]);
	return r;
}

static void unmount(const char *name)
{
	char dir[64];

	snprintf(dir, sizeof(dir), "%s/%s", tmp, name);
	umount2(dir, MNT_DETACH);
	rmdir(dir);
}

/* --- telling a mounted tree ----------------------------------------------- */

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void tell_xattrs(struct buf *b, const char *path, unsigned what)
{
	static char list[65536], value[65536];
	const char *names[512];
	ssize_t len = llistxattr(path, list, sizeof(list));
	size_t n = 0;

	for (char *p = list; p < list + len && n < 512; p += strlen(p) + 1)
		names[n++] = p;
	qsort(names, n, sizeof(*names), by_text);
	for (size_t i = 0; i < n; i++) {
		ssize_t got = lgetxattr(path, names[i], value, sizeof(value));

		if (got < 0)
			(void)!buf_addf(b, " %s!%d", names[i], errno);
		else
			tell_xattr(b, names[i], value, (size_t)got, what);
	}
}

static uint64_t file_content(const char *path)
{
	static unsigned char data[FS_CHUNK];
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t h = 14695981039346656037U;
	ssize_t n;

	while ((n = read(fd, data, sizeof(data))) > 0)
		h = content_step(h, data, (size_t)n);
	return n < 0 ? 0 : h;
}

struct seen {
	dev_t dev;
	ino_t ino;
	unsigned long line;
};

static unsigned long group_of(struct buf *seen, const struct stat *st,
			      unsigned long line)
{
	struct seen s = {st->st_dev, st->st_ino, line};

	if (S_ISDIR(st->st_mode) || st->st_nlink < 2)
		return line;
	for (size_t at = 0; at < seen->len; at += sizeof(s)) {
		struct seen o;

		memcpy(&o, seen->data + at, sizeof(o));
		if (o.dev == s.dev && o.ino == s.ino)
			return o.line;
	}
	(void)!buf_add(seen, &s, sizeof(s));
	return line;
}

static void tell_item(const struct walk_item *it, unsigned long group,
		      unsigned what, struct buf *b)
{
	char path[PATH_MAX], link[PATH_MAX];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", it->dirfd,
		 it->name);
	tell_name(b, it->path);
	tell_stat(b, &it->st, group, what);
	if (S_ISLNK(it->st.st_mode)) {
		n = readlinkat(it->dirfd, it->name, link, sizeof(link) - 1);
		link[n < 0 ? 0 : n] = '\0';
		(void)!buf_addf(b, " -> %s", link);
	}
	tell_xattrs(b, path, what);
	if (S_ISREG(it->st.st_mode))
		(void)!buf_addf(b, " =%016llx",
				(unsigned long long)file_content(path));
	(void)!buf_add(b, "\n", 1);
}

static int tell_mount(const char *name, unsigned what, struct buf *b)
{
	auto_buf struct buf seen = {0};
	auto_walk struct walk *w = NULL;
	struct walk_item it;
	unsigned long line = 0;
	char dir[64];
	int r;

	snprintf(dir, sizeof(dir), "%s/%s", tmp, name);
	r = walk_open(AT_FDCWD, dir, 0, &w, NULL);
	while (r >= 0 && (r = walk_next(w, &it, NULL)) > 0) {
		/* overlay lists whiteouts of a lone directory, and no more */
		if (it.errnum == ENOENT)
			continue;
		line++;
		tell_item(&it, group_of(&seen, &it.st, line), what, b);
	}
	return r;
}

/* --- tests ---------------------------------------------------------------- */

static bool fsck(const char *name)
{
	char devices[GEN_DEVICES][64], file[64];
	const char *argv[GEN_DEVICES + 3] = {"fsck.erofs"};
	auto_close int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	for (unsigned i = 0; i < GEN_DEVICES; i++) {
		snprintf(devices[i], sizeof(devices[i]), "--device=%s/blob%u",
			 tmp, i);
		argv[i + 1] = devices[i];
	}
	snprintf(file, sizeof(file), "%s/%s.img", tmp, name);
	argv[GEN_DEVICES + 1] = file;
	return proc_run(argv, -1, null, 60000, NULL) == 0;
}

static void test_mounts(void)
{
	const unsigned what = TELL_NLINK | TELL_XATTRS | TELL_OVERLAY |
			      TELL_CONTENT;
	unsigned bad = 0, sick = 0;
	bool have_fsck = access("/usr/bin/fsck.erofs", X_OK) == 0;

	for (unsigned seed = 1; seed <= 8; seed++) {
		struct gen g = {.seed = seed,
				.entries = 30 + seed % 4 * 250,
				.layer = seed & 1};
		auto_fstree struct fstree *t = gen_tree(&g);
		auto_buf struct buf want = {0}, got = {0};

		if (mount_image(t, "m") < 0) {
			bad++;
			continue;
		}
		tell_tree(t, what, &want);
		tell_mount("m", what, &got);
		if (!same_text(got.data, want.data)) {
			printf("# seed %u\n", seed);
			bad++;
		}
		sick += have_fsck && !fsck("m");
		unmount("m");
	}
	is_int(bad, 0, "the kernel shows every attribute and byte of a tree");
	if (have_fsck)
		is_int(sick, 0, "fsck.erofs agrees");
	else
		skip("fsck.erofs agrees", "erofs-utils is not installed");
}

/* The image and its devices in one file: what a virtual machine has as disk. */
static void test_flat(void)
{
	const unsigned what = TELL_NLINK | TELL_XATTRS | TELL_OVERLAY |
			      TELL_CONTENT;
	struct gen g = {.seed = 77, .entries = 300, .layer = true};
	auto_fstree struct fstree *t = gen_tree(&g);
	auto_buf struct buf image = {0}, want = {0}, got = {0};
	static char blob[GEN_BLOCKS * FS_BLOCK];
	int r = erofs_write(t, &image, NULL);

	for (unsigned d = 0; r == 0 && d < GEN_DEVICES; d++) {
		for (size_t i = 0; i < sizeof(blob); i++)
			blob[i] = (char)gen_byte(d, i);
		r = buf_add(&image, blob, sizeof(blob));
	}
	if (r == 0)
		r = write_file("flat.img", image.data, image.len);
	if (r == 0)
		r = mount_file("flat", NULL, 0);
	if (r == -ENOENT) { /* older than 6.4 */
		skip("so it does from a single file",
		     "this kernel wants each device named");
		return;
	}
	if (r < 0) {
		ok(false, "mount of one file: %s", strerror(-r));
		return;
	}
	tell_tree(t, what, &want);
	tell_mount("flat", what, &got);
	ok(same_text(got.data, want.data), "so it does from a single file");
	unmount("flat");
}

static int make_explicit(void *arg, const char *path, struct fsnode *n,
			 struct err *e)
{
	(void)arg;
	(void)path;
	(void)e;
	if (n->implied)
		n->mtime.tv_nsec = 2;
	n->implied = false;
	return 0;
}

static int overlay_differs(unsigned seed, unsigned nlayers)
{
	static const char *const names[] = {"l0", "l1", "l2"};
	const unsigned what = TELL_XATTRS | TELL_CONTENT;
	auto_fstree struct fstree *t = fstree_new();
	auto_buf struct buf opts = {0}, want = {0}, got = {0};
	char dir[64];
	int bad = 0;

	for (unsigned i = 0; i < nlayers; i++) {
		struct gen g = {.seed = seed * 8 + i,
				.entries = 40 + seed % 5 * 90,
				.layer = i > 0,
				.plain = true};
		auto_fstree struct fstree *l = gen_tree(&g);

		fstree_walk(l, make_explicit, NULL, NULL);
		bad |= mount_image(l, names[i]) < 0;
		bad |= fstree_merge(t, l, i + 1 == nlayers, NULL) < 0;
	}
	bad |= buf_addf(&opts, "xino=off,lowerdir=") < 0;
	for (unsigned i = nlayers; i--;)
		bad |= buf_addf(&opts, "%s/%s%s", tmp, names[i], i ? ":" : "") <
		       0;
	snprintf(dir, sizeof(dir), "%s/o", tmp);
	mkdir(dir, 0700);
	if (mount("overlay", dir, "overlay", MS_RDONLY, opts.data) < 0) {
		printf("# overlay: %s\n", strerror(errno));
		bad = 1;
	}
	tell_tree(t, what, &want);
	tell_mount("o", what, &got);
	if (!bad && !same_text(want.data, got.data)) {
		printf("# seed %u, %u layers\n", seed, nlayers);
		bad = 1;
	}
	unmount("o");
	for (unsigned i = 0; i < nlayers; i++)
		unmount(names[i]);
	return bad;
}

static void test_overlay(void)
{
	int bad = 0;

	for (unsigned seed = 1; seed <= 12; seed++)
		bad += overlay_differs(seed, 2 + seed % 2);
	is_int(bad, 0, "merged layers are what overlay shows of them");
}

static void run(void)
{
	struct gen g = {.seed = 1, .entries = 5};
	auto_fstree struct fstree *t = gen_tree(&g);
	int r;

	if (!write_devices()) {
		ok(false, "files for devices");
		return;
	}
	r = mount_image(t, "m");
	if (r == -ENOTBLK) {
		by_loop = true;
		r = mount_image(t, "m");
	}
	if (r < 0) {
		skip("images in the kernel", strerror(-r));
		return;
	}
	unmount("m");
	test_mounts();
	test_flat();
	test_overlay();
}

int main(void)
{
	const char *rm[] = {"rm", "-rf", tmp, NULL};

	if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
		skip("images in the kernel", "needs root");
		return tap_done();
	}
	if (!mkdtemp(tmp))
		return 1;
	run();
	proc_run(rm, -1, -1, 60000, NULL);
	return tap_done();
}
