/* SPDX-License-Identifier: Apache-2.0 */
/* Trees: entering, links, removal, order, devices; layers laid over another. */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/clock.h"
#include "img/erofs.h"
#include "../tap.h"
#include "gentree.h"

static struct fsnode *put(struct fstree *t, const char *path, mode_t mode)
{
	struct fsnode a = {.mode = mode, .link = NULL}, *n = NULL;

	return fstree_put(t, path, &a, &n, NULL) < 0 ? NULL : n;
}

static struct fsnode *put_link(struct fstree *t, const char *path,
			       const char *to)
{
	auto_free char *link = strdup(to);
	struct fsnode a = {.mode = S_IFLNK | 0777, .link = link}, *n = NULL;

	return fstree_put(t, path, &a, &n, NULL) < 0 ? NULL : n;
}

static int put_r(struct fstree *t, const char *path, mode_t mode)
{
	struct fsnode a = {.mode = mode, .link = NULL}, *n = NULL;

	return fstree_put(t, path, &a, &n, NULL);
}

/* A line a name: kind, mode, link count, path, and what tells its content. */
static int list_one(void *arg, const char *path, struct fsnode *n,
		    struct err *e)
{
	struct buf *b = arg;
	char kind = S_ISDIR(n->mode)	    ? (n->implied ? 'i' : 'd')
		    : S_ISLNK(n->mode)	    ? 'l'
		    : fsnode_is_whiteout(n) ? 'w'
					    : 'f';

	(void)e;
	return buf_addf(b, "%c%s %u %s%s%s\n", kind,
			fsnode_is_opaque(n) ? "o" : "", n->nlink, path,
			n->link ? " -> " : "", n->link ? n->link : "");
}

static void is_tree(struct fstree *t, const char *want, const char *what)
{
	auto_buf struct buf b = {0};

	fstree_walk(t, list_one, &b, NULL);
	is_str(b.data, want, what);
}

static void test_put(void)
{
	auto_fstree struct fstree *t = fstree_new();
	struct fsnode *n;

	put(t, "/a/./b//c", S_IFREG | 0644);
	put(t, "a-", S_IFREG | 0644);
	is_tree(t, "i 3 \ni 3 a\ni 2 a/b\nf 1 a/b/c\nf 1 a-\n",
		"parents are implied; names in byte order of each directory");
	is_int((long long)fstree_count(t), 5, "and all are counted");
	n = put(t, "a/b", S_IFDIR | 0700);
	ok(n && !n->implied && n->mode == (S_IFDIR | 0700) &&
		   fsdir_get(n, "c", 1),
	   "a directory over one keeps its content");
	is_int(put_r(t, "a/b/c/d", S_IFREG), -ENOTDIR, "a file on the way");
	is_int(put_r(t, ".", S_IFREG), -EINVAL, "the root stays a directory");
	is_int(put_r(t, "new/b/../../a/b/c/d", S_IFREG), -ENOTDIR,
	       "a failure far along");
	ok(!fstree_find(t, "new"), "leaves nothing behind");
	put(t, "a", S_IFREG | 0600);
	is_tree(t, "i 2 \nf 1 a\nf 1 a-\n", "a file over a directory");
	is_int((long long)fstree_count(t), 3, "which is gone with its content");
	n = put(t, "..//../x/..", S_IFDIR | 0711);
	ok(n == fstree_root(t) && n->mode == (S_IFDIR | 0711),
	   "no way leads out of the root");
}

static void test_links(void)
{
	auto_fstree struct fstree *t = fstree_new();
	struct fsnode *n;

	put_link(t, "lib", "usr/lib");
	put_link(t, "out", "../../../../etc");
	put_link(t, "abs", "/lib/./");
	put_link(t, "one", "two");
	put_link(t, "two", "one");
	put(t, "lib/x", S_IFREG);
	put(t, "out/hostname", S_IFREG);
	put(t, "abs/y", S_IFREG);
	is_tree(t,
		"i 4 \nl 1 abs -> /lib/./\ni 2 etc\nf 1 etc/hostname\n"
		"l 1 lib -> usr/lib\nl 1 one -> two\n"
		"l 1 out -> ../../../../etc\nl 1 two -> one\n"
		"i 3 usr\ni 2 usr/lib\nf 1 usr/lib/x\nf 1 usr/lib/y\n",
		"field report 36: links on the way are followed in the root");
	is_int(put_r(t, "one/x", S_IFREG), -ELOOP, "a loop");
	ok(fstree_find(t, "abs/x") == fstree_find(t, "usr/lib/x"),
	   "found through links");
	ok(S_ISLNK(fstree_find(t, "lib")->mode), "the last is not followed");

	n = fstree_find(t, "usr/lib/x");
	is_int(fstree_link(t, "usr/z", n, NULL), 0, "a second name");
	is_int(fstree_link(t, "usr/lib/x", n, NULL), 0, "a link to itself");
	is_int(n->nlink, 2, "has two names");
	put(t, "usr/z", S_IFREG | 0600);
	is_int(n->nlink, 1, "a new file leaves the other name alone");
	is_int(fstree_link(t, "usr", n, NULL), 0,
	       "a link over the directory it is in");
	ok(fstree_find(t, "usr") == n && n->nlink == 1, "the file lives on");
	fstree_remove(t, "etc");
	is_int((long long)fstree_count(t), 7, "and all else is gone");
	is_int(fstree_link(t, "d", fstree_root(t), NULL), -EISDIR,
	       "directories have one name");
}

static void test_attr(void)
{
	static char longest[4097];
	auto_fstree struct fstree *t = fstree_new();
	char name[257];

	memset(longest, 'a', 4096);
	memset(name, 'n', 256);
	name[256] = '\0';
	is_int(put_r(t, name, S_IFREG), -ENAMETOOLONG, "a name of 256 bytes");
	name[255] = '\0';
	is_int(put_r(t, name, S_IFREG), 0, "of 255");
	ok(!put_link(t, "l", longest), "a target of 4096 bytes");
	longest[4095] = '\0';
	ok(put_link(t, "l", longest), "of 4095");
	ok(!put_link(t, "m", ""), "an empty target");
	is_int(put_r(t, "x", 0644), -EINVAL, "no type");

	struct fsnode a = {.mode = S_IFDIR | 0755, .mtime = {0, 1}}, *n;

	is_int(fstree_put(t, "d", &a, &n, NULL), 0, "a directory");
	ok(!n->implied && n->mtime.tv_nsec == 0,
	   "with the implied ones' reserved time does not become one");
	fsnode_set_xattr(t, n, "user.b", "2", 1);
	fsnode_set_xattr(t, n, "user.a", "", 0);
	fsnode_set_xattr(t, n, "user.c", "3", 1);
	fsnode_set_xattr(t, n, "user.b", "two", 3);
	ok(n->nxattrs == 3 && !strcmp(n->xattrs[0].name, "user.a") &&
		   n->xattrs[0].len == 0 && fsnode_xattr(n, "user.b")->len == 3,
	   "attributes are in order, the last value holds");
	fsnode_drop_xattr(n, "user.a");
	fsnode_drop_xattr(n, "user.none");
	ok(n->nxattrs == 2 && !fsnode_xattr(n, "user.a"), "and can go");
}

static void test_whiteout(void)
{
	auto_fstree struct fstree *t = fstree_new();

	put(t, "w", S_IFCHR);
	put(t, "v", S_IFCHR);
	put(t, "u", S_IFCHR);
	put(t, "w/x", S_IFREG);
	put(t, "v", S_IFDIR | 0700);
	is_tree(t, "i 4 \nw 1 u\ndo 2 v\nio 2 w\nf 1 w/x\n",
		"a directory over a whiteout is opaque");
	fstree_clear_dir(t, fstree_root(t));
	is_tree(t, "i 2 \n", "a cleared directory");
	is_int((long long)fstree_count(t), 1, "holds nothing");
}

static void test_devices(void)
{
	auto_fstree struct fstree *t = fstree_new();
	struct fsdevice dev = {.blocks = 7};
	struct fschunk c = {.block = 1};
	struct fsnode *n = put(t, "f", S_IFREG);
	uint16_t i, j, k;

	dev.root.b[0] = 1;
	fstree_device(t, &dev, &i, NULL);
	dev.root.b[0] = 2;
	fstree_device(t, &dev, &j, NULL);
	fstree_device(t, &dev, &k, NULL);
	ok(i == 1 && j == 2 && k == 2, "devices are entered once");
	c.device = 2;
	for (int m = 0; m < 5; m++)
		fsnode_add_chunk(t, n, &c);
	fstree_trim_devices(t);
	ok(fstree_ndevices(t) == 1 && n->nchunks == 5 &&
		   n->chunks[4].device == 1 &&
		   fstree_device_at(t, 1)->root.b[0] == 2,
	   "those without chunks can go");
	for (int m = 3; m < 257; m++) {
		dev.root.b[0] = (uint8_t)m;
		dev.root.b[1] = (uint8_t)(m >> 8);
		if (fstree_device(t, &dev, &i, NULL) < 0)
			return (void)ok(false, "255 devices");
	}
	dev.root.b[2] = 1;
	is_int(fstree_device(t, &dev, &i, NULL), -E2BIG, "255 devices");
}

static void test_rebase(void)
{
	auto_fstree struct fstree *t = fstree_new();

	put(t, "f", S_IFREG);
	put(t, ".", S_IFDIR | 0700);
	is_int(fstree_rebase(t, "/", NULL), 0, "to the root");
	is_int(fstree_rebase(t, "/a/../b", NULL), -EINVAL, "through ..");
	is_int(fstree_rebase(t, "a", NULL), -EINVAL, "to a relative path");
	is_int(fstree_rebase(t, "/srv//work/", NULL), 0, "to another place");
	is_tree(t, "i 3 \ni 3 srv\nd 2 srv/work\nf 1 srv/work/f\n",
		"everything is there");
	ok(fstree_find(t, "srv/work/../..") == fstree_root(t), ".. is right");
}

/* Names against a plain table, in a directory of many. */
static void test_many(void)
{
	enum { N = 4000 };
	auto_fstree struct fstree *t = fstree_new();
	static struct fsnode *have[N];
	char name[32];
	unsigned seed = 7;
	int wrong = 0, count = 0;

	for (int i = 0; i < 60000; i++) {
		int k = rand_r(&seed) % N;

		snprintf(name, sizeof(name), "d/n%d", k * 7919);
		wrong += fstree_find(t, name) != have[k];
		if (rand_r(&seed) % 3) {
			have[k] = put(t, name, S_IFREG);
		} else {
			fstree_remove(t, name);
			have[k] = NULL;
		}
		if (i % 9000 == 0)
			fsdir_count(fstree_find(t, "d"));
	}
	for (int k = 0; k < N; k++)
		count += have[k] != NULL;
	is_int(wrong, 0, "a directory of thousands, changed at random");
	is_int((long long)fsdir_count(fstree_find(t, "d")), count,
	       "has what was put");
	is_int((long long)fstree_count(t), count + 2, "and counts it");
}

static void test_deep(void)
{
	enum { DEPTH = 50000 };
	auto_fstree struct fstree *t = fstree_new();
	auto_buf struct buf path = {0};

	for (int i = 0; i < DEPTH; i++)
		if (buf_add(&path, "d/", 2) < 0)
			return;
	ok(put(t, path.data, S_IFDIR | 0700), "a tree %d deep", DEPTH);
	is_int((long long)fstree_count(t), DEPTH + 1, "is all there");
	fstree_remove(t, "d");
	is_int((long long)fstree_count(t), 1, "and is removed");
}

/* --- merging -------------------------------------------------------------- */

static void test_merge(void)
{
	auto_fstree struct fstree *t = fstree_new(), *u = fstree_new();
	auto_fstree struct fstree *v = fstree_new(), *w = fstree_new();

	/* field report 37: whiteouts, opaque directories, back again */
	put(t, "d/a", S_IFREG);
	put(t, "d/b", S_IFREG);
	put(t, "e/x/y", S_IFREG);
	put(u, "d", S_IFDIR | 0700);
	put(u, "d/a", S_IFCHR);
	put(u, "d/missing", S_IFCHR);
	fsnode_set_xattr(u, put(u, "e", S_IFDIR), FS_OPAQUE, "y", 1);
	put(u, "e/c", S_IFREG);
	is_int(fstree_merge(t, u, false, NULL), 0, "a layer over another");
	is_tree(t,
		"i 4 \nd 2 d\nw 1 d/a\nf 1 d/b\nw 1 d/missing\n"
		"do 2 e\nf 1 e/c\n",
		"goes on hiding what may lie below both");
	put(v, "d/a/f", S_IFREG);
	put(v, "e/x", S_IFREG);
	is_int(fstree_merge(t, v, false, NULL), 0, "a third");
	is_tree(t,
		"i 4 \nd 3 d\nio 2 d/a\nf 1 d/a/f\nf 1 d/b\nw 1 d/missing\n"
		"do 2 e\nf 1 e/c\nf 1 e/x\n",
		"brings back what was removed");
	ok(fstree_find(t, "d")->mode == (S_IFDIR | 0700),
	   "an implied directory leaves attributes alone");
	is_int(fstree_merge(t, w, true, NULL), 0, "the last");
	is_tree(t,
		"i 4 \nd 3 d\ni 2 d/a\nf 1 d/a/f\nf 1 d/b\n"
		"d 2 e\nf 1 e/c\nf 1 e/x\n",
		"leaves no mark");
	is_int((long long)fstree_count(t), 8, "all are counted");
}

static void test_merge_links(void)
{
	auto_fstree struct fstree *t = fstree_new(), *u = fstree_new();

	put(t, "usr/lib/old", S_IFREG);
	put_link(t, "lib", "usr/lib");
	put_link(t, "far", "../../over/there");
	put_link(t, "self", "self");
	put_link(t, "real", "usr");
	put(u, "lib/new", S_IFREG);
	put(u, "far/x", S_IFREG);
	put(u, "self/y", S_IFREG);
	put(u, "real", S_IFDIR);
	is_int(fstree_merge(t, u, true, NULL), 0, "directories over links");
	is_tree(t,
		"i 6 \nl 1 far -> ../../over/there\nl 1 lib -> usr/lib\n"
		"i 3 over\ni 2 over/there\nf 1 over/there/x\n"
		"d 2 real\ni 2 self\nf 1 self/y\n"
		"i 3 usr\ni 2 usr/lib\nf 1 usr/lib/new\nf 1 usr/lib/old\n",
		"field report 36: an implied one follows, another replaces");
	is_int((long long)fstree_count(t), 13, "all are counted");
}

/* What overlay shows at ${path}, found the slow way. */
static struct fsnode *see(struct fsnode *low, struct fsnode *up,
			  const char *path)
{
	while (*path) {
		size_t len = strcspn(path, "/");
		struct fsnode *l = low ? fsdir_get(low, path, len) : NULL;
		struct fsnode *u = up ? fsdir_get(up, path, len) : NULL;

		path += len + (path[len] == '/');
		if (fsnode_is_whiteout(u     ? u
				       : l   ? l
				       : low ? low
					     : up) ||
		    (!u && !l))
			return NULL;
		if (u && (!S_ISDIR(u->mode) || fsnode_is_opaque(u) ||
			  (l && !S_ISDIR(l->mode))))
			l = NULL;
		up = u;
		low = l;
	}
	return up ? up : low;
}

struct pair {
	struct fstree *low, *up, *merged;
	int bad;
};

static int same_seen(void *arg, const char *path, struct fsnode *n,
		     struct err *e)
{
	struct pair *p = arg;
	struct fsnode *want = see(fstree_root(p->low), fstree_root(p->up),
				  path);
	struct fsnode *got = see(NULL, fstree_root(p->merged), path);

	(void)n;
	(void)e;
	p->bad += !want != !got;
	if (want && got)
		p->bad += want->mode != got->mode || want->uid != got->uid ||
			  want->mtime.tv_sec != got->mtime.tv_sec ||
			  want->size != got->size ||
			  want->nchunks != got->nchunks ||
			  fsnode_is_opaque(got);
	return 0;
}

static int make_explicit(void *arg, const char *path, struct fsnode *n,
			 struct err *e)
{
	(void)arg;
	(void)path;
	(void)e;
	n->implied = false;
	return 0;
}

static struct fstree *layer(unsigned seed, bool first)
{
	struct gen g = {.seed = seed,
			.entries = 20 + seed % 7 * 60,
			.layer = !first,
			.plain = true};
	struct fstree *t = gen_tree(&g);

	fstree_walk(t, make_explicit, NULL, NULL);
	return t;
}

static void test_merge_random(void)
{
	int bad = 0, count = 0;

	for (unsigned seed = 1; seed <= 60; seed++) {
		auto_fstree struct fstree *low = layer(seed * 2, true);
		auto_fstree struct fstree *up = layer(seed * 2 + 1, false);
		auto_fstree struct fstree *t = layer(seed * 2, true);
		auto_fstree struct fstree *u = layer(seed * 2 + 1, false);
		struct pair p = {low, up, t, 0};
		auto_buf struct buf image = {0};

		if (fstree_merge(t, u, true, NULL) < 0)
			bad++;
		fstree_walk(low, same_seen, &p, NULL);
		fstree_walk(up, same_seen, &p, NULL);
		fstree_walk(t, same_seen, &p, NULL);
		bad += p.bad;
		/* Its counts are right when the reader takes what is written.
		 */
		auto_fstree struct fstree *again = NULL;

		if (erofs_write(t, &image, NULL) < 0 ||
		    erofs_read(image.data, image.len, &again, NULL) < 0 ||
		    fstree_count(t) != fstree_count(again))
			count++;
	}
	is_int(bad, 0, "60 pairs of layers are as overlay would show them");
	is_int(count, 0, "and whole");
}

static void merge_three(unsigned seed, bool left, struct buf *ret)
{
	auto_fstree struct fstree *a = layer(seed, true);
	auto_fstree struct fstree *b = layer(seed + 1, false);
	auto_fstree struct fstree *c = layer(seed + 2, false);
	int r = 0;

	if (left) {
		r |= fstree_merge(a, b, false, NULL);
		r |= fstree_merge(a, c, true, NULL);
	} else {
		r |= fstree_merge(b, c, false, NULL);
		r |= fstree_merge(a, b, true, NULL);
	}
	if (r == 0)
		tell_tree(a, TELL_XATTRS | TELL_OVERLAY | TELL_NLINK, ret);
}

static void test_merge_order(void)
{
	int bad = 0;

	for (unsigned seed = 500; seed < 560; seed += 3) {
		auto_buf struct buf left = {0}, right = {0};

		merge_three(seed, true, &left);
		merge_three(seed, false, &right);
		bad += !same_text(left.data, right.data);
	}
	is_int(bad, 0, "(a b) c is a (b c)");
}

/* Devices of both, one of them in common. */
static void test_merge_devices(void)
{
	auto_fstree struct fstree *t = fstree_new(), *u = fstree_new();
	struct fsdevice dev[3] = {gen_device(0), gen_device(1), gen_device(2)};
	struct fschunk c = {.block = 5};
	struct fsnode *n;
	uint16_t index;

	fstree_device(t, &dev[0], &index, NULL);
	fstree_device(t, &dev[1], &index, NULL);
	fstree_device(u, &dev[2], &index, NULL);
	fstree_device(u, &dev[0], &index, NULL);
	n = put(u, "f", S_IFREG);
	c.device = 1;
	fsnode_add_chunk(u, n, &c);
	c.device = 2;
	fsnode_add_chunk(u, n, &c);
	is_int(fstree_merge(t, u, true, NULL), 0, "trees of several blobs");
	ok(fstree_ndevices(t) == 3 && n->chunks[0].device == 3 &&
		   n->chunks[1].device == 1,
	   "have one table of them");
}

/* One change of a small tree, by any call there is. */
static void change(struct gen *g, struct fstree **t)
{
	static const char *const names[] = {"a",   "b",	    "a/b",    "b/a",
					    "c/d", "a/b/c", "b/../a", "a/./c/"};
	static const mode_t modes[] = {S_IFREG, S_IFDIR, S_IFCHR};
	const char *x = names[gen_rand(g, array_len(names))];
	const char *y = names[gen_rand(g, array_len(names))];
	struct gen h = {.seed = g->seed, .entries = 12, .layer = true};
	auto_fstree struct fstree *u = NULL;
	struct fsnode *n;

	switch (gen_rand(g, 40)) {
	case 0:
		fstree_rebase(*t, gen_rand(g, 2) ? "/a/b" : "/c", NULL);
		break;
	case 1:
		n = fstree_find(*t, x);
		if (n && S_ISDIR(n->mode))
			fstree_clear_dir(*t, n);
		break;
	case 2:
	case 3:
	case 4:
		fstree_remove(*t, x);
		break;
	case 5:
		u = gen_tree(&h);
		fstree_merge(*t, u, gen_rand(g, 2), NULL);
		break;
	case 6:
	case 7:
	case 8:
	case 9:
	case 10:
		n = fstree_find(*t, x);
		if (n)
			fstree_link(*t, y, n, NULL);
		break;
	case 11:
		put_link(*t, x, y);
		break;
	default:
		put(*t, x, modes[gen_rand(g, 9) ? gen_rand(g, 2) : 2]);
		break;
	}
}

static void test_changes(void)
{
	struct gen g = {.seed = 4711};
	int bad = 0;

	for (int round = 0; round < 60; round++) {
		auto_fstree struct fstree *t = fstree_new();

		for (int i = 0; i < 150; i++) {
			auto_fstree struct fstree *u = NULL;
			auto_buf struct buf image = {0};
			struct err e = {0};

			change(&g, &t);
			if (i % 5)
				continue;
			if (erofs_write(t, &image, &e) < 0 ||
			    erofs_read(image.data, image.len, &u, &e) < 0 ||
			    fstree_count(t) != fstree_count(u)) {
				printf("# round %d, %d: %s\n", round, i, e.msg);
				bad++;
				break;
			}
		}
	}
	is_int(bad, 0, "every count holds through thousands of changes");
}

static struct fstree *big(unsigned from, unsigned n)
{
	struct fstree *t = fstree_new();
	char path[64];

	for (unsigned i = from; i < from + n; i++) {
		snprintf(path, sizeof(path), "usr/lib/d%u/s%u/file%u", i / 500,
			 i / 15, i);
		put(t, path, S_IFREG);
	}
	return t;
}

static void test_merge_speed(void)
{
	auto_fstree struct fstree *a = big(0, 47000), *b = big(30000, 25000);
	auto_fstree struct fstree *t = NULL, *u = NULL;
	auto_buf struct buf lower = {0}, upper = {0}, merged = {0};
	struct timespec from, to;
	double us;
	int r = erofs_write(a, &lower, NULL) | erofs_write(b, &upper, NULL);

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
	r |= erofs_read(lower.data, lower.len, &t, NULL);
	r |= erofs_read(upper.data, upper.len, &u, NULL);
	if (r == 0)
		r = fstree_merge(t, u, true, NULL);
	if (r == 0)
		r = erofs_write(t, &merged, NULL);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
	us = (double)(to.tv_sec - from.tv_sec) * 1e6 +
	     (double)(to.tv_nsec - from.tv_nsec) / 1e3;
	is_int(r, 0, "layers of 47,000 and 25,000 files");
	printf("# %.2f us of CPU an inode, reading and writing included\n",
	       t ? us / (double)fstree_count(t) : 0);
}

int main(void)
{
	test_put();
	test_links();
	test_attr();
	test_whiteout();
	test_devices();
	test_rebase();
	test_many();
	test_deep();
	test_merge();
	test_merge_links();
	test_merge_random();
	test_merge_order();
	test_merge_devices();
	test_changes();
	test_merge_speed();
	return tap_done();
}
