/* SPDX-License-Identifier: Apache-2.0 */
/* Trees: entering, links, removal, order, devices; merge is below. */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/buf.h"
#include "img/fstree.h"
#include "../tap.h"

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
	auto_buf struct buf path = {0}, list = {0};

	for (int i = 0; i < DEPTH; i++)
		if (buf_add(&path, "d/", 2) < 0)
			return;
	ok(put(t, path.data, S_IFDIR | 0700), "a tree %d deep", DEPTH);
	is_int((long long)fstree_count(t), DEPTH + 1, "is all there");
	fstree_remove(t, "d");
	is_int((long long)fstree_count(t), 1, "and is removed");
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
	return tap_done();
}
