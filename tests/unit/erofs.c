/* SPDX-License-Identifier: Apache-2.0 */
/* Images: written and read again, the same bytes for the same tree, and what a
 * stranger may have made of them. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "img/erofs.h"
#include "img/erofs_format.h"
#include "img/sha256.h"
#include "../tap.h"
#include "gentree.h"

static bool survives(struct fstree *t, unsigned seed)
{
	auto_fstree struct fstree *u = NULL;
	auto_buf struct buf image = {0}, again = {0};
	auto_buf struct buf want = {0}, got = {0};
	struct err e = {0};
	const unsigned all = TELL_NLINK | TELL_PLACES | TELL_XATTRS |
			     TELL_OVERLAY;

	if (erofs_write(t, &image, &e) < 0 ||
	    erofs_read(image.data, image.len, &u, &e) < 0 ||
	    erofs_write(u, &again, &e) < 0) {
		printf("# seed %u: %s\n", seed, e.msg);
		return false;
	}
	tell_tree(t, all, &want);
	tell_tree(u, all, &got);
	if (!same_text(got.data, want.data)) {
		printf("# seed %u\n", seed);
		return false;
	}
	return fstree_count(t) == fstree_count(u) && again.len == image.len &&
	       memcmp(again.data, image.data, image.len) == 0;
}

static void test_random(void)
{
	unsigned bad = 0;

	for (unsigned seed = 1; seed <= 150; seed++) {
		struct gen g = {.seed = seed,
				.entries = seed % 10 ? seed * 2 : 3000,
				.layer = seed & 1};
		auto_fstree struct fstree *t = gen_tree(&g);

		bad += !survives(t, seed);
	}
	is_int(bad, 0, "150 trees come back as they were");
}

static struct fsnode *put(struct fstree *t, const char *path, mode_t mode)
{
	struct fsnode a = {.mode = mode}, *n = NULL;

	fstree_put(t, path, &a, &n, NULL);
	return n;
}

static void test_shapes(void)
{
	auto_fstree struct fstree *t = fstree_new();
	auto_buf struct buf deep = {0};
	char name[64];

	ok(survives(t, 0), "an empty tree");
	for (int i = 0; i < 20000; i++) {
		snprintf(name, sizeof(name), "many/%d", i * 7);
		put(t, name, S_IFREG);
	}
	ok(survives(t, 0), "a directory of 20,000");
	for (int i = 0; i < 3000; i++)
		(void)!buf_add(&deep, "d/", 2);
	put(t, deep.data, S_IFDIR);
	ok(survives(t, 0), "a tree 3,000 deep");
}

static void test_xattrs(void)
{
	static const char *const wrong[] = {
		"user.",    "system.x", "lustre.a",
		"plain",    "",		"system.posix_acl_access.",
		"security",
	};
	static char big[65536];
	char name[300];
	unsigned bad = 0;

	for (size_t i = 0; i < array_len(wrong); i++) {
		auto_fstree struct fstree *t = fstree_new();
		auto_buf struct buf image = {0};
		struct err e = {0};

		fsnode_set_xattr(t, fstree_root(t), wrong[i], "x", 1);
		bad += erofs_write(t, &image, &e) >= 0 ||
		       strcmp(e.code, "unsupported") != 0 || image.len;
	}
	is_int(bad, 0, "attributes the format has no place for are refused");

	auto_fstree struct fstree *t = fstree_new();
	auto_buf struct buf image = {0};

	memset(name, 'n', sizeof(name));
	memcpy(name, "user.", 5);
	name[5 + 255] = '\0';
	fsnode_set_xattr(t, fstree_root(t), name, "", 0);
	fsnode_set_xattr(t, put(t, "f", S_IFREG), "user.big", big, 65535);
	ok(survives(t, 0), "the longest name and value");
	for (char c = 'a'; c < 'f'; c++) {
		snprintf(name, sizeof(name), "user.big%c", c);
		fsnode_set_xattr(t, put(t, "g", S_IFDIR), name, big, 65000);
	}
	is_int(erofs_write(t, &image, NULL), -EOPNOTSUPP, "too many bytes");
}

/* The image of one tree, which must never change: it is its name. */
static void test_golden(void)
{
	struct gen g = {.seed = 20240, .entries = 400, .layer = true};
	auto_fstree struct fstree *t = gen_tree(&g);
	auto_buf struct buf image = {0};
	char hex[DIGEST_HEX + 1];
	struct digest d;

	is_int(erofs_write(t, &image, NULL), 0, "a fixed tree");
	is_int(sha256_of(image.data, image.len, &d), 0, "is hashed");
	is_str(digest_hex(&d, hex),
	       "65190f35acf109463e2d0ed325e60aa6"
	       "a245a516330abc898735790ee7b18bc9",
	       "has the same digest for ever");
}

/* --- strangers ------------------------------------------------------------ */

static void seal(struct buf *b)
{
	struct er_super s;

	memcpy(&s, b->data + ER_SUPER, sizeof(s));
	s.checksum = htole32(erofs_checksum((uint8_t *)b->data));
	memcpy(b->data + ER_SUPER, &s, sizeof(s));
}

static int outside_one(void *arg, const char *path, struct fsnode *n,
		       struct err *e)
{
	struct fstree *t = arg;
	uint64_t left = n->size;

	(void)path;
	(void)e;
	if (!S_ISREG(n->mode))
		return 0;
	if (n->nchunks != (n->size + FS_CHUNK - 1) / FS_CHUNK)
		return 1;
	for (size_t i = 0; i < n->nchunks; i++) {
		const struct fschunk *c = &n->chunks[i];
		uint64_t bytes = left < FS_CHUNK ? left : FS_CHUNK;

		left -= bytes;
		if (c->block == FS_HOLE)
			continue;
		if (c->device == 0 || c->device > fstree_ndevices(t) ||
		    ((uint64_t)c->block * FS_BLOCK + bytes) >
			    (uint64_t)fstree_device_at(t, c->device)->blocks *
				    FS_BLOCK)
			return 1;
	}
	return 0;
}

/* Some bytes become others; most of the time where numbers are. */
static void mutate(struct gen *g, struct buf *b)
{
	unsigned n = 1 + gen_rand(g, 3);

	while (n--) {
		size_t at = gen_rand(g, 1U << 24) % b->len;
		unsigned char *p = (unsigned char *)b->data + at;

		if (gen_rand(g, 4) == 0)
			p = (unsigned char *)b->data + ER_SUPER +
			    gen_rand(g, 600);
		switch (gen_rand(g, 5)) {
		case 0:
			*p ^= (unsigned char)(1U << gen_rand(g, 8));
			break;
		case 1:
			*p = (unsigned char)gen_rand(g, 256);
			break;
		case 2:
			*p = gen_rand(g, 2) ? 0xff : 0;
			break;
		case 3:
			*p += gen_rand(g, 2) ? 1 : 0xff;
			break;
		default:
			memmove(p,
				b->data + gen_rand(g, 1U << 24) % (b->len - 64),
				(size_t)(b->data + b->len - (char *)p) < 64
					? 1
					: 1 + gen_rand(g, 64));
			break;
		}
	}
	if (gen_rand(g, 50) == 0)
		b->len -= gen_rand(g, (unsigned)b->len);
	else if (gen_rand(g, 10))
		seal(b);
}

static void test_mutated(void)
{
	const char *env = getenv("EROFS_ROUNDS");
	unsigned rounds = env ? (unsigned)atoi(env) : 6000;
	struct gen g = {.seed = 99};
	unsigned accepted = 0, outside = 0, mute = 0;
	auto_buf struct buf image = {0}, copy = {0};

	for (unsigned i = 0; i < rounds; i++) {
		auto_fstree struct fstree *u = NULL;
		struct err e = {0};

		if (i % 500 == 0) {
			struct gen h = {.seed = i + 1,
					.entries = 10 + i % 300,
					.layer = i & 1};
			auto_fstree struct fstree *t = gen_tree(&h);

			image.len = 0;
			if (erofs_write(t, &image, &e) < 0)
				return (void)ok(false, "%s", e.msg);
		}
		copy.len = 0;
		if (buf_add(&copy, image.data, image.len) < 0)
			return;
		mutate(&g, &copy);
		if (erofs_read(copy.data, copy.len, &u, &e) < 0) {
			mute += !e.code || strcmp(e.code, "image_damaged") != 0;
			continue;
		}
		accepted++;
		outside += fstree_walk(u, outside_one, u, NULL) != 0;
	}
	printf("# %u mutated images, %u read\n", rounds, accepted);
	is_int(outside, 0, "no mutated image leads out of a device");
	is_int(mute, 0, "each that is refused says why");
	ok(accepted > 0 && accepted < rounds / 2, "some are read, few");
}

/* --- known lies ----------------------------------------------------------- */

struct lie {
	const char *what;
	void (*tell)(struct buf *b);
	const char *msg;
};

static struct er_inode *inode(struct buf *b, uint64_t nid)
{
	return (struct er_inode *)(void *)(b->data + nid * ER_SLOT);
}

static struct er_super *super(struct buf *b)
{
	return (struct er_super *)(void *)(b->data + ER_SUPER);
}

/* Entry ${i} of the root, whose names lie behind the inode. */
static struct er_dirent *dirent(struct buf *b, unsigned i)
{
	return (struct er_dirent *)(void *)(inode(b, super(b)->root_nid) + 1) +
	       i;
}

static char *dirent_name(struct buf *b, unsigned i)
{
	return (char *)dirent(b, 0) + dirent(b, i)->name_off;
}

/* The tree has: . .. d/ (with x) f (2 chunks) g h (hard link of g) l */
static void lie_loop(struct buf *b)
{
	dirent(b, 3)->nid = super(b)->root_nid;
	dirent(b, 3)->type = 2;
}

static void lie_twice(struct buf *b)
{
	dirent(b, 3)->nid = dirent(b, 2)->nid;
	dirent(b, 3)->type = 2;
}

static void lie_dotdot(struct buf *b)
{
	dirent(b, 1)->nid = dirent(b, 2)->nid;
}

static void lie_order(struct buf *b)
{
	*dirent_name(b, 2) = 'z';
}

static void lie_same(struct buf *b)
{
	*dirent_name(b, 4) = 'f';
}

static void lie_slash(struct buf *b)
{
	*dirent_name(b, 2) = '/';
}

static void lie_nul(struct buf *b)
{
	*dirent_name(b, 3) = '\0';
}

static void lie_nlink(struct buf *b)
{
	inode(b, dirent(b, 4)->nid)->nlink = 3;
}

static void lie_type(struct buf *b)
{
	dirent(b, 4)->type = 7;
}

static void lie_far(struct buf *b)
{
	dirent(b, 4)->nid = 1ULL << 59;
}

static void lie_huge(struct buf *b)
{
	inode(b, dirent(b, 3)->nid)->size = 1ULL << 60;
}

static void lie_large(struct buf *b)
{
	inode(b, dirent(b, 3)->nid)->size = 1ULL << 42;
}

static void lie_chunk(struct buf *b)
{
	struct er_chunk *c =
		(struct er_chunk *)(void *)(inode(b, dirent(b, 3)->nid) + 1);

	c[1].block = GEN_BLOCKS - 1;
}

static void lie_device(struct buf *b)
{
	struct er_chunk *c =
		(struct er_chunk *)(void *)(inode(b, dirent(b, 3)->nid) + 1);

	c[0].device = 2;
}

static void lie_blocks(struct buf *b)
{
	super(b)->blocks++;
}

static void lie_devices(struct buf *b)
{
	super(b)->ndevices = 300;
}

static void lie_digest(struct buf *b)
{
	b->data[ER_DEVICES] = 'G';
}

static void lie_link(struct buf *b)
{
	((char *)(inode(b, dirent(b, 6)->nid) + 1))[2] = '\0';
}

static void lie_gap(struct buf *b)
{
	b->data[b->len - 1] = 1;
}

static void lie_uuid(struct buf *b)
{
	super(b)->uuid[3] = 1;
}

static void lie_shared(struct buf *b)
{
	struct er_xattrs *x =
		(struct er_xattrs *)(void *)(inode(b, dirent(b, 4)->nid) + 1);

	x->shared = 1;
}

static void lie_xattr(struct buf *b)
{
	struct er_xattr *x =
		(struct er_xattr *)(void *)((char *)(inode(b,
							   dirent(b, 4)->nid) +
						     1) +
					    sizeof(struct er_xattrs));

	x->value_len = 200;
}

static const struct lie lies[] = {
	{"a directory in itself", lie_loop, "second name"},
	{"a directory of two names", lie_twice, "second name"},
	{"a wrong ..", lie_dotdot, "leads elsewhere"},
	{"names out of order", lie_order, "out of order"},
	{"a name twice", lie_same, "out of order"},
	{"a slash in a name", lie_slash, "cannot be"},
	{"an empty name", lie_nul, "cannot be"},
	{"a wrong link count", lie_nlink, "link count"},
	{"a wrong type", lie_type, "wrong type"},
	{"an inode far outside", lie_far, "nothing in this image"},
	{"a file of 2^60 bytes", lie_huge, "larger than"},
	{"a file of 2^42 bytes", lie_large, "behind the image"},
	{"a chunk beyond its device", lie_chunk, "outside its device"},
	{"a chunk of no device", lie_device, "not there"},
	{"a wrong size", lie_blocks, "cut short"},
	{"too many devices", lie_devices, "too many devices"},
	{"a device without digest", lie_digest, "without a digest"},
	{"a link with a NUL", lie_link, "NUL"},
	{"something in a gap", lie_gap, "not the form"},
	{"a uuid", lie_uuid, "not the form"},
	{"shared attributes", lie_shared, "shared"},
	{"an attribute's length", lie_xattr, "attribute"},
};

static void small_image(struct buf *image)
{
	auto_fstree struct fstree *t = fstree_new();
	char target[] = "target";
	struct fsnode a = {.mode = S_IFLNK, .link = target}, *n;
	struct fsdevice dev = gen_device(0);
	struct fschunk c = {.device = 1};
	uint16_t index;

	fstree_device(t, &dev, &index, NULL);
	put(t, "d/x", S_IFREG);
	n = put(t, "f", S_IFREG);
	n->size = FS_CHUNK + 5000;
	fsnode_add_chunk(t, n, &c);
	fsnode_add_chunk(t, n, &c);
	n = put(t, "g", S_IFREG);
	fsnode_set_xattr(t, n, "user.x", "y", 1);
	fstree_link(t, "h", n, NULL);
	fstree_put(t, "l", &a, &n, NULL);
	(void)!erofs_write(t, image, NULL);
}

static void test_lies(void)
{
	for (size_t i = 0; i < array_len(lies); i++) {
		auto_fstree struct fstree *t = NULL;
		auto_buf struct buf b = {0};
		struct err e = {0};
		int r;

		small_image(&b);
		lies[i].tell(&b);
		seal(&b);
		r = erofs_read(b.data, b.len, &t, &e);
		if (!ok(r == -EBADMSG && strstr(e.msg, lies[i].msg), "%s",
			lies[i].what))
			printf("# %d: %s\n", r, e.msg);
	}
}

/* Every prefix of an image, and one not sealed. */
static void test_cut(void)
{
	auto_buf struct buf b = {0};
	struct fstree *t = NULL;
	unsigned bad = 0;

	small_image(&b);
	for (size_t len = 0; len < b.len; len += 64)
		bad += erofs_read(b.data, len, &t, NULL) != -EBADMSG;
	is_int(bad, 0, "an image cut short is none");
	b.data[ER_DEVICES + 3] ^= 1;
	is_int(erofs_read(b.data, b.len, &t, NULL), -EBADMSG,
	       "the super block has a checksum");
}

static void test_speed(void)
{
	enum { N = 50000 };
	auto_fstree struct fstree *t = fstree_new(), *u = NULL;
	auto_buf struct buf b = {0};
	struct fsdevice dev = {.blocks = N};
	struct fschunk c = {.device = 1};
	uint64_t at = clock_ms(), made, wrote, got;
	uint16_t index;
	char name[64];

	fstree_device(t, &dev, &index, NULL);
	for (int i = 0; i < N; i++) {
		struct fsnode *n;

		snprintf(name, sizeof(name), "usr/lib/dir%d/sub%d/file%d.py",
			 i / 500, i / 12, i);
		n = put(t, name, S_IFREG | 0644);
		n->size = 4000;
		c.block = (uint32_t)i;
		fsnode_add_chunk(t, n, &c);
	}
	made = clock_ms();
	ok(erofs_write(t, &b, NULL) == 0, "a tree of 50,000 files");
	wrote = clock_ms();
	ok(erofs_read(b.data, b.len, &u, NULL) == 0, "comes back");
	got = clock_ms();
	printf("# %zu bytes; tree %llu ms, written in %llu ms, read in %llu "
	       "ms\n",
	       b.len, (unsigned long long)(made - at),
	       (unsigned long long)(wrote - made),
	       (unsigned long long)(got - wrote));
}

/* A directory of ${n} and a tree ${n} deep: what all calls take, in us of CPU.
 */
static double extremes(unsigned n, bool *ret_good)
{
	auto_fstree struct fstree *wide = fstree_new(), *deep = fstree_new();
	auto_fstree struct fstree *u = NULL, *v = NULL;
	auto_buf struct buf path = {0}, b = {0}, c = {0};
	clock_t at = clock();
	char name[32];

	for (unsigned i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "d/%x", i * 40503);
		put(wide, name, S_IFREG);
		(void)!buf_add(&path, "d/", 2);
	}
	put(deep, path.data, S_IFDIR);
	*ret_good = erofs_write(wide, &b, NULL) == 0 &&
		    erofs_read(b.data, b.len, &u, NULL) == 0 &&
		    erofs_write(deep, &c, NULL) == 0 &&
		    erofs_read(c.data, c.len, &v, NULL) == 0 &&
		    fstree_merge(u, wide, true, NULL) == 0 &&
		    fstree_merge(v, deep, true, NULL) == 0 &&
		    fstree_count(u) == n + 2 && fstree_count(v) == n + 1;
	if (*ret_good)
		fstree_remove(v, "d");
	*ret_good = *ret_good && fstree_count(v) == 1;
	return (double)(clock() - at) * 1e6 / CLOCKS_PER_SEC;
}

static void test_extremes(void)
{
	bool good[2];
	double some = extremes(25000, &good[0]);
	double many = extremes(100000, &good[1]);

	ok(good[0] && good[1],
	   "a directory of 100,000 and a tree as deep: written, read, laid "
	   "over themselves, removed");
	printf("# %.2f and %.2f us of CPU an entry\n", some / 50000,
	       many / 200000);
	ok(many < some * 10, "nothing is quadratic in them");
}

int main(void)
{
	test_random();
	test_shapes();
	test_xattrs();
	test_golden();
	test_lies();
	test_cut();
	test_mutated();
	test_extremes();
	test_speed();
	return tap_done();
}
