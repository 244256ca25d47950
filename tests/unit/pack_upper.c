/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An upper as a layer: what overlay and hostile hands leave in one, through
 * pack_upper(), then through the form of an archive and back.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "img/diff.h"
#include "img/export.h"
#include "img/import.h"
#include "img/pack_upper.h"
#include "../tap.h"

static char top[64];

static char *at(const char *name)
{
	static char paths[4][512];
	static unsigned i;

	snprintf(paths[i = (i + 1) % 4], 512, "%s/%s", top, name);
	return paths[i];
}

static void put(const char *name, const char *text)
{
	int fd = open(at(name), O_WRONLY | O_CREAT | O_TRUNC, 0644);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		printf("# cannot write %s\n", name);
	close(fd);
}

static void dir(const char *name)
{
	if (mkdir(at(name), 0755) < 0)
		printf("# cannot make %s\n", name);
}

/* --- packing ------------------------------------------------------------- */

struct packed {
	struct fstree *tree;
	struct blob *blob;
	int dirfd;
	struct pack_upper_result n;
	char removed[4096];
};

static int on_chunk(void *arg, const void *data, size_t len,
		    struct fschunk *ret, struct err *e)
{
	struct packed *p = arg;

	return blob_add(p->blob, data, len, ret, e);
}

static int on_removed(void *arg, const char *rule, const char *path,
		      uint64_t bytes, struct err *e)
{
	struct packed *p = arg;
	size_t n = strlen(p->removed);

	(void)e;
	snprintf(p->removed + n, sizeof(p->removed) - n, "%s %s %llu\n", rule,
		 path, (unsigned long long)bytes);
	return 0;
}

static int blob_dir(void)
{
	static int n;
	char name[32];

	snprintf(name, sizeof(name), "blob%d", n++);
	dir(name);
	return open(at(name), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void packed_done(struct packed *p)
{
	blob_free(p->blob);
	fstree_free(p->tree);
	if (p->dirfd >= 0)
		close(p->dirfd);
	*p = (struct packed){.dirfd = -1};
}

static int pack_with(const char *upper, residue_set residue, bool list_only,
		     struct packed *p, struct err *e)
{
	struct pack_upper up = {.residue = residue,
				.list_only = list_only,
				.chunk = on_chunk,
				.removed = on_removed,
				.uid_base = 100000,
				.arg = p};
	struct fsdevice dev;
	int r;

	*p = (struct packed){.dirfd = -1};
	p->tree = fstree_new();
	p->dirfd = blob_dir();
	up.tree = p->tree;
	up.dirfd = open(at(upper), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = blob_open(p->dirfd, NULL, p->tree, &p->blob, e);
	if (r == 0)
		r = pack_upper(&up, &p->n, e);
	if (r == 0)
		r = blob_finish(p->blob, p->tree, NULL, NULL, 0, &dev, e);
	close(up.dirfd);
	return r;
}

static int pack(const char *upper, struct packed *p, struct err *e)
{
	return pack_with(upper, residue_default(), false, p, e);
}

static int open_data(void *arg, const struct digest *root, struct err *e)
{
	struct packed *p = arg;

	(void)root;
	(void)e;
	return openat(p->dirfd, "data", O_RDONLY | O_CLOEXEC);
}

static bool content_is(struct packed *p, const char *path, const char *want)
{
	struct fsnode *n = fstree_find(p->tree, path);
	struct blob_reader *r = blob_reader_new(p->tree, open_data, p);
	char text[256] = "";
	ssize_t len;

	len = n ? blob_reader_read(r, n, 0, text, sizeof(text) - 1, NULL) : -1;
	blob_reader_free(r);
	if (len >= 0)
		text[len] = '\0';
	if (len < 0 || strcmp(text, want) != 0)
		printf("# %s: '%s'\n", path, text);
	return len >= 0 && !strcmp(text, want);
}

/* --- what overlay leaves ------------------------------------------------- */

static bool make_overlay(void)
{
	char opt[512];

	dir("low");
	dir("low/d");
	dir("low/gone");
	put("low/file", "old");
	put("low/d/a", "a");
	put("low/d/b", "b");
	put("low/gone/x", "x");
	dir("up");
	dir("wk");
	dir("mnt");
	snprintf(opt, sizeof(opt),
		 "lowerdir=%s/low,upperdir=%s/up,workdir=%s/wk,"
		 "redirect_dir=off,metacopy=off,index=off,xino=off",
		 top, top, top);
	return mount("overlay", at("mnt"), "overlay", 0, opt) == 0;
}

static void overlay_upper(void)
{
	struct packed p;
	struct err e = {0};
	struct fsnode *n, *m;

	if (!make_overlay()) {
		skip("an overlay's upper", "cannot mount overlay here");
		return;
	}
	unlink(at("mnt/d/a"));
	unlink(at("mnt/file"));
	unlink(at("mnt/gone/x"));
	rmdir(at("mnt/gone"));
	dir("mnt/gone");
	put("mnt/gone/y", "new");
	chmod(at("mnt/d/b"), 0600);
	umount(at("mnt"));
	is_int(pack("up", &p, &e), 0, "an overlay's upper is packed");
	printf("# %s\n", e.msg);
	n = fstree_find(p.tree, "d/a");
	m = fstree_find(p.tree, "file");
	ok(n && m && n != m && fsnode_is_whiteout(n) && fsnode_is_whiteout(m),
	   "whiteouts, each by itself");
	n = fstree_find(p.tree, "gone");
	ok(n && fsnode_is_opaque(n) && n->nxattrs == 1, "an opaque directory");
	n = fstree_find(p.tree, "d/b");
	ok(n && n->nxattrs == 0 && (n->mode & 07777) == 0600,
	   "nothing of overlay's on what was copied up");
	ok(fstree_root(p.tree)->nxattrs == 0, "nor on the root");
	ok(content_is(&p, "gone/y", "new") && content_is(&p, "d/b", "b"),
	   "content");
	is_int((long long)p.n.whiteouts, 2, "whiteouts are counted");
	is_int((long long)p.n.opaques, 1, "opaque directories are counted");
	packed_done(&p);
}

/* --- what hands leave ---------------------------------------------------- */

static void cap_v3(const char *name, uint32_t root)
{
	struct vfs_ns_cap_data cap = {
		.magic_etc = htole32(VFS_CAP_REVISION_3 |
				     VFS_CAP_FLAGS_EFFECTIVE),
		.data[0].permitted = htole32(1U << CAP_NET_RAW),
		.rootid = htole32(root),
	};

	put(name, "cap");
	if (setxattr(at(name), "security.capability", &cap, sizeof(cap), 0) < 0)
		printf("# no capability on %s: %m\n", name);
}

static size_t cap_len(struct packed *p, const char *path)
{
	struct fsnode *n = fstree_find(p->tree, path);
	const struct fsxattr *x = n ? fsnode_xattr(n, "security.capability")
				    : NULL;

	return x ? x->len : 0;
}

static void make_sparse(const char *name, off_t size, off_t data)
{
	int fd = open(at(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	if (ftruncate(fd, size) < 0 || pwrite(fd, "x", 1, data) != 1)
		printf("# cannot make %s\n", name);
	close(fd);
}

static void make_socket(const char *name)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%.100s", at(name));
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		printf("# no socket\n");
	close(fd);
}

static const char long_target[] =
	"../a/very/long/target/of/a/symbolic/link/that/does/not/fit/into/the/"
	"field/of/a/tar/header/which/holds/one/hundred/bytes/and/needs/a/pax/"
	"header/of/its/own/to/be/kept/whole/all/the/way/there/and/back";

static void make_all(void)
{
	char deep[200];

	dir("all");
	put("all/a", "hello");
	if (link(at("all/a"), at("all/b")) < 0 ||
	    symlink("/etc/passwd", at("all/abs")) < 0 ||
	    symlink(long_target, at("all/long")) < 0 ||
	    mkfifo(at("all/fifo"), 0640) < 0 ||
	    mknod(at("all/dev"), S_IFBLK | 0600, makedev(7, 300)) < 0)
		printf("# cannot make all: %m\n");
	make_socket("all/sock");
	make_sparse("all/sparse", (off_t)1 << 30, 600 << 20);
	memset(deep, 'n', sizeof(deep));
	memcpy(deep, "all/", 4);
	deep[199] = '\0';
	put(deep, "long name");
	put("all/\xff\xfe bad\n", "bytes");
	put("all/rights", "r");
	chmod(at("all/rights"), 06755);
	if (lchown(at("all/long"), 65535, 1) < 0)
		printf("# chown: %m\n");
	setxattr(at("all/a"), "user.note", "x\0y", 3, 0);
	setxattr(at("all/a"), "user.empty", "", 0, 0);
	setxattr(at("all/a"), "user.overlay.opaque", "y", 1, 0);
	setxattr(at("all/a"), "trusted.overlay.origin", "o", 1, 0);
	cap_v3("all/cap-root", 100000);
	cap_v3("all/cap-other", 5);
	put("all/cap-host", "cap");
}

static bool same_fs(const char *what, struct fstree *t)
{
	struct fsnode *n = fstree_find(t, what);
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "all/%s", what);
	return n && lstat(at(path), &st) == 0 && n->mode == st.st_mode &&
	       n->uid == st.st_uid && n->gid == st.st_gid &&
	       n->mtime.tv_sec == st.st_mtim.tv_sec &&
	       n->mtime.tv_nsec == st.st_mtim.tv_nsec &&
	       (S_ISDIR(n->mode) || n->size == (uint64_t)st.st_size) &&
	       n->rdev == st.st_rdev && n->nlink == st.st_nlink;
}

static void attributes(struct packed *p)
{
	static const char *const names[] = {"a",      "b",
					    "abs",    "long",
					    "fifo",   "dev",
					    "sock",   "sparse",
					    "rights", "\xff\xfe bad\n"};
	struct fsnode *n;
	size_t holes = 0;

	for (size_t i = 0; i < array_len(names); i++)
		ok(same_fs(names[i], p->tree), "attributes of %zu", i);
	n = fstree_find(p->tree, "a");
	ok(n == fstree_find(p->tree, "b"), "a hard link is one");
	is_int((long long)n->nxattrs, 3, "origin goes, user.* stay");
	n = fstree_find(p->tree, "sparse");
	for (size_t i = 0; i < n->nchunks; i++)
		holes += n->chunks[i].block == FS_HOLE;
	is_int((long long)n->nchunks, 1024, "chunks of 1 GiB");
	is_int((long long)holes, 1023, "and all but one are holes");
	is_int((long long)cap_len(p, "cap-root"), XATTR_CAPS_SZ_2,
	       "a capability of the sandbox's root is of version 2");
	is_int((long long)cap_len(p, "cap-other"), XATTR_CAPS_SZ_3,
	       "one of another root stays what it is");
}

/* --- as an archive and back ---------------------------------------------- */

static int to_buf(void *arg, const void *data, size_t len, struct err *e)
{
	(void)e;
	return buf_add(arg, data, len);
}

struct from {
	const struct buf *b;
	size_t pos;
};

static ssize_t from_buf(void *arg, void *data, size_t cap, struct err *e)
{
	struct from *f = arg;
	size_t n = f->b->len - f->pos;

	(void)e;
	n = n < cap ? n : cap;
	memcpy(data, f->b->data + f->pos, n);
	f->pos += n;
	return (ssize_t)n;
}

static unsigned diffs;

static int on_diff(void *arg, const char *path, const struct fsnode *a,
		   const struct fsnode *b, unsigned what, struct err *e)
{
	(void)arg;
	(void)e;
	/* The only thing an archive cannot say. */
	if (a && S_ISSOCK(a->mode) && !b)
		return 0;
	/* And what that takes from its directory is not seen. */
	printf("# differs: '%s' %x\n", path, what);
	diffs++;
	return 0;
}

static void round_trip(struct packed *p, const char *what)
{
	struct export_tar x = {.tree = p->tree, .form = EXPORT_OCI};
	struct diff_side a = {.tree = p->tree}, b = {NULL, NULL};
	struct packed q = {.dirfd = -1};
	auto_buf struct buf tar = {0};
	struct tar_writer w = {.sink = to_buf, .arg = &tar};
	struct from from = {.b = &tar};
	struct err e = {0};
	struct import in = {.flags = IMPORT_OCI};
	struct fsdevice dev;
	int r;

	a.reader = x.reader = blob_reader_new(p->tree, open_data, p);
	r = export_tar(&x, &w, &e);
	tar_writer_done(&w);
	is_int(r, 0, "exported");
	q.dirfd = blob_dir();
	q.tree = in.tree = b.tree = fstree_new();
	r = blob_open(q.dirfd, NULL, q.tree, &q.blob, &e);
	in.blob = q.blob;
	if (r == 0)
		r = import_tar(&in, from_buf, NULL, &from, &e);
	if (r == 0)
		r = blob_finish(q.blob, q.tree, NULL, NULL, 0, &dev, &e);
	is_int(r, 0, "imported again");
	b.reader = blob_reader_new(q.tree, open_data, &q);
	diffs = 0;
	r = r < 0 ? r : diff_trees(&a, &b, on_diff, NULL, &e);
	printf("# %s\n", e.msg);
	ok(r == 0 && diffs == 0, "%s: identical after the round trip", what);
	blob_reader_free(a.reader);
	blob_reader_free(b.reader);
	packed_done(&q);
}

static void hands(void)
{
	struct packed p;
	struct err e = {0};

	make_all();
	is_int(pack("all", &p, &e), 0, "every kind of file is packed");
	printf("# %s\n", e.msg);
	attributes(&p);
	round_trip(&p, "all kinds of files");
	packed_done(&p);
	if (pack("up", &p, &e) == 0)
		round_trip(&p, "whiteouts and opaque directories");
	packed_done(&p);
}

/* --- what is refused ----------------------------------------------------- */

static void refused(const char *what, const char *code, const char *naming)
{
	struct packed p;
	struct err e = {0};
	int r = pack("bad", &p, &e);

	ok(r < 0 && e.code && !strcmp(e.code, code) && strstr(e.msg, naming),
	   "%s is refused as %s: %s", what, code, e.msg);
	packed_done(&p);
}

static void refusals(void)
{
	dir("bad");
	put("bad/f", "x");
	if (chown(at("bad/f"), 70000, 0) < 0)
		printf("# chown: %m\n");
	refused("a foreign owner", "bad_value", "'f'");
	unlink(at("bad/f"));
	put("bad/f", "x");
	setxattr(at("bad/f"), "trusted.overlay.metacopy", "", 0, 0);
	refused("metacopy", "unsupported", "metacopy");
	removexattr(at("bad/f"), "trusted.overlay.metacopy");
	dir("bad/d");
	setxattr(at("bad/d"), "trusted.overlay.redirect", "/x", 2, 0);
	refused("redirect", "unsupported", "redirect");
	removexattr(at("bad/d"), "trusted.overlay.redirect");
	make_sparse("bad/huge", (off_t)9 << 40, 0);
	refused("a file of 9 TiB", "too_large", "'huge'");
	unlink(at("bad/huge"));
}

/* --- size ---------------------------------------------------------------- */

static double cpu_s(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void make_deep(unsigned levels)
{
	int fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC), next;

	mkdirat(fd, "deep", 0755);
	next = openat(fd, "deep", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	close(fd);
	for (unsigned i = 0; i < levels; i++) {
		fd = next;
		mkdirat(fd, "d", 0755);
		next = openat(fd, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		close(fd);
	}
	close(next);
}

static void sizes(void)
{
	struct packed p;
	struct err e = {0};
	double begun;

	dir("big");
	make_sparse("big/tib", (off_t)1 << 40, 5LL << 35);
	begun = cpu_s();
	is_int(pack("big", &p, &e), 0, "1 TiB that is a hole");
	ok(cpu_s() - begun < 1.0 && p.n.bytes <= FS_CHUNK,
	   "takes no time: %.0f ms", (cpu_s() - begun) * 1e3);
	packed_done(&p);
	make_deep(3000);
	begun = cpu_s();
	is_int(pack("deep", &p, &e), 0, "3000 levels");
	ok(p.n.entries == 3001 && cpu_s() - begun < 2.0, "in %.0f ms",
	   (cpu_s() - begun) * 1e3);
	packed_done(&p);
}

/* --- residue ------------------------------------------------------------- */

static void residues(void)
{
	struct packed p;
	struct err e = {0};

	dir("res");
	dir("res/root");
	dir("res/root/.cache");
	dir("res/root/.cache/pip");
	put("res/root/.cache/pip/x", "12345");
	put("res/root/.bash_history", "rm -rf /\n");
	put("res/root/keep", "k");
	dir("res/tmp");
	put("res/tmp/t", "tt");
	mknod(at("res/tmp/w"), S_IFCHR, 0);
	put("res/root/k.pem", "-----BEGIN PRIVATE KEY-----\n");
	put("res/root/c.pem", "-----BEGIN CERTIFICATE-----\n");
	is_int(pack("res", &p, &e), 0, "with residue");
	ok(!fstree_find(p.tree, "root/.cache/pip") &&
		   !fstree_find(p.tree, "root/.bash_history") &&
		   !fstree_find(p.tree, "tmp/t") &&
		   !fstree_find(p.tree, "root/k.pem"),
	   "is left out");
	ok(fstree_find(p.tree, "root/.cache") && fstree_find(p.tree, "tmp") &&
		   fstree_find(p.tree, "root/c.pem") &&
		   fstree_find(p.tree, "tmp/w") &&
		   content_is(&p, "root/keep", "k"),
	   "and the rest is not");
	is_str(p.removed,
	       "history root/.bash_history 9\n"
	       "cache root/.cache/pip 5\n"
	       "private-key root/k.pem 28\n"
	       "tmp tmp/t 2\n",
	       "what went is told");
	is_int((long long)p.n.removed_bytes, 44, "and counted");
	packed_done(&p);
	is_int(pack_with("res", residue_default(), true, &p, &e), 0, "listed");
	ok(p.n.removed == 4 && content_is(&p, "root/.cache/pip/x", "12345"),
	   "and kept");
	packed_done(&p);
	is_int(pack_with("res", 0, false, &p, &e), 0, "no rule at all");
	ok(p.n.removed == 0 && content_is(&p, "tmp/t", "tt"), "keeps all");
	packed_done(&p);
}

int main(void)
{
	char cmd[128];

	if (geteuid() != 0) {
		puts("1..0 # SKIP needs root");
		return 0;
	}
	snprintf(top, sizeof(top), "/tmp/dsec-unit.XXXXXX");
	if (!mkdtemp(top))
		return 1;
	overlay_upper();
	hands();
	refusals();
	residues();
	sizes();
	snprintf(cmd, sizeof(cmd), "rm -rf --one-file-system %s", top);
	if (system(cmd) != 0)
		printf("# left: %s\n", top);
	return tap_done();
}
