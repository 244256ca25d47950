/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "img/blob.h"
#include "img/sha256.h"

static char top[] = "/tmp/dsec-blob-XXXXXX";

static int dir_of(const char *name)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", top, name);
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		abort();
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		abort();
	return fd;
}

static int open_in(int dirfd, const char *name)
{
	return openat(dirfd, name, O_RDWR | O_CLOEXEC);
}

static off_t size_in(int dirfd, const char *name)
{
	struct stat st;

	return fstatat(dirfd, name, &st, 0) < 0 ? -1 : st.st_size;
}

/* The same bytes for the same ${seed}; never zeros alone. */
static void fill(uint8_t *p, size_t len, uint64_t seed)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15 + 1;

	for (size_t i = 0; i < len; i++) {
		x = x * 6364136223846793005 + 1442695040888963407;
		p[i] = (uint8_t)(x >> 56) | 1;
	}
}

static struct fsnode *file(struct fstree *t, const char *path, uint64_t size)
{
	struct fsnode attr = {.mode = S_IFREG | 0644, .size = size};
	struct fsnode *n = NULL;

	if (fstree_put(t, path, &attr, &n, NULL) < 0)
		abort();
	return n;
}

/* A file of ${len} bytes of ${seed}, into the tree and the blob. */
static int add(struct blob *b, struct fstree *t, const char *path, size_t len,
	       uint64_t seed)
{
	auto_free uint8_t *data = malloc(len + 1);
	struct fsnode *n = file(t, path, len);
	struct fschunk c;

	fill(data, len, seed);
	for (size_t off = 0; off < len; off += FS_CHUNK) {
		size_t part = len - off < FS_CHUNK ? len - off : FS_CHUNK;
		int r = blob_add(b, data + off, part, &c, NULL);

		if (r < 0)
			return r;
		if (fsnode_add_chunk(t, n, &c) < 0)
			abort();
	}
	return 0;
}

/* The blobs of this test by root. */
static struct {
	struct fsdevice dev;
	char dir[16];
} known[8];
static size_t nknown;

static int open_known(void *arg, const struct digest *root, struct err *e)
{
	(*(int *)arg)++;
	for (size_t i = 0; i < nknown; i++)
		if (digest_eq(&known[i].dev.root, root)) {
			auto_close int d = dir_of(known[i].dir);

			return open_in(d, "data");
		}
	return err_sys(e, ENOENT, "blob");
}

static bool same(struct fstree *t, const char *path, size_t len, uint64_t seed)
{
	auto_free uint8_t *want = malloc(len + 1);
	auto_free uint8_t *got = malloc(len + 1);
	const struct fsnode *n = fstree_find(t, path);
	struct blob_reader *r;
	int opened = 0;
	ssize_t all;
	bool good;

	fill(want, len, seed);
	r = blob_reader_new(t, open_known, &opened);
	all = blob_reader_read(r, n, 0, got, len + 1, NULL);
	good = all == (ssize_t)len && !memcmp(got, want, len);
	for (size_t off = 0; good && off < len; off += 77777) {
		size_t part = len - off < 300000 ? len - off : 300000;

		all = blob_reader_read(r, n, off, got, part, NULL);
		good = all == (ssize_t)part && !memcmp(got, want + off, part);
	}
	blob_reader_free(r);
	return good;
}

static void keep(const struct fsdevice *dev, const char *dir)
{
	known[nknown].dev = *dev;
	snprintf(known[nknown++].dir, sizeof(known[0].dir), "%s", dir);
}

/* "a": files of many lengths. */
static const size_t lengths[] = {1,	  100,	   4095,    4096,    4097,
				 131071,  131072,  262144,  262145,  1000000,
				 1048575, 1048576, 1048577, 3000000, 50};

static struct fsdevice make_a(const char *name, struct fstree **ret)
{
	auto_close int d = dir_of(name);
	auto_blob struct blob *b = NULL;
	struct fstree *t = fstree_new();
	struct fsdevice dev = {.blocks = 0};
	char path[32];

	if (blob_open(d, NULL, t, &b, NULL) < 0)
		abort();
	for (size_t i = 0; i < array_len(lengths); i++) {
		snprintf(path, sizeof(path), "f%zu", i);
		if (add(b, t, path, lengths[i], i) < 0)
			abort();
	}
	if (blob_finish(b, t, NULL, NULL, 0, &dev, NULL) < 0)
		abort();
	*ret = t;
	return dev;
}

static void check_write(void)
{
	auto_close int d = dir_of("a");
	auto_fstree struct fstree *t = NULL;
	struct fsdevice dev = make_a("a", &t);
	uint64_t blocks = 0;
	bool good = true;
	char path[32];

	keep(&dev, "a");
	for (size_t i = 0; i < array_len(lengths); i++)
		blocks += (lengths[i] + FS_BLOCK - 1) / FS_BLOCK;
	is_int(dev.blocks, (long long)blocks, "blocks of all files");
	is_int(size_in(d, "data"), (long long)blocks * FS_BLOCK, "in a file");
	is_int((long long)fstree_ndevices(t), 1, "one device");
	ok(digest_eq(&fstree_device_at(t, 1)->root, &dev.root), "by its root");
	for (size_t i = 0; i < array_len(lengths); i++) {
		snprintf(path, sizeof(path), "f%zu", i);
		good = good && same(t, path, lengths[i], i);
	}
	ok(good, "all files read back");
}

static void check_again(void)
{
	auto_fstree struct fstree *t = NULL;
	struct fsdevice dev = make_a("a2", &t);

	ok(digest_eq(&dev.root, &known[0].dev.root), "the same once more");
}

static void check_dedup(void)
{
	auto_fstree struct fstree *t = fstree_new();
	auto_close int d = dir_of("dedup");
	auto_blob struct blob *b = NULL;
	static uint8_t zeros[FS_CHUNK];
	struct fsdevice dev = {.blocks = 0};
	struct fschunk c = {0}, c2 = {0};

	if (blob_open(d, NULL, t, &b, NULL) < 0)
		abort();
	is_int(blob_add(b, zeros, 1, &c, NULL), 0, "one zero");
	is_int(c.block, FS_HOLE, "is a hole");
	is_int(blob_add(b, zeros, sizeof(zeros), &c, NULL), 0, "many zeros");
	is_int(c.block, FS_HOLE, "too");
	is_int(size_in(d, "data"), -1, "no file is made for them");
	zeros[FS_CHUNK - 1] = 1;
	is_int(blob_add(b, zeros, sizeof(zeros), &c, NULL), 0, "a late one");
	is_int(c.block, 0, "is none");
	zeros[FS_CHUNK - 1] = 0;
	is_int(add(b, t, "x", 2500000, 1), 0, "a file");
	is_int(add(b, t, "y", 2500000, 1), 0, "its copy");
	is_int((long long)blob_stored(b), (256 + 611) * 4096, "stored once");
	is_int(fstree_find(t, "y")->chunks[2].block,
	       fstree_find(t, "x")->chunks[2].block, "where the other is");
	is_int(blob_add(b, "ab", 2, &c, NULL), 0, "two bytes");
	is_int(blob_add(b, "ab\0", 3, &c2, NULL), 0, "and a zero more");
	ok(c.block != c2.block, "are two");
	is_int(blob_finish(b, t, NULL, NULL, 0, &dev, NULL), 0, "finished");
	is_int(dev.blocks, 256 + 611 + 2, "its length");
}

/* A file that says it is a large chunk: the digests of its pieces in a row. */
static void check_confusion(void)
{
	auto_fstree struct fstree *t = fstree_new();
	auto_close int d = dir_of("confusion");
	auto_blob struct blob *b = NULL;
	auto_free uint8_t *data = malloc(FS_CHUNK);
	struct fschunk c = {0}, c2 = {0};
	struct digest pieces[4];

	fill(data, FS_CHUNK, 99);
	for (size_t i = 0; i < 4; i++)
		if (sha256_of(data + i * BLOB_PIECE, BLOB_PIECE, &pieces[i]))
			abort();
	if (blob_open(d, NULL, t, &b, NULL) < 0)
		abort();
	is_int(blob_add(b, data, FS_CHUNK, &c, NULL), 0, "a large chunk");
	is_int(blob_add(b, pieces, sizeof(pieces), &c2, NULL), 0,
	       "the digests of its pieces");
	ok(c.block != c2.block, "are not taken for it");
}

static void check_nothing(void)
{
	auto_fstree struct fstree *t = fstree_new();
	auto_close int d = dir_of("nothing");
	auto_blob struct blob *b = NULL;
	struct fsdevice dev = {.blocks = 7};

	if (blob_open(d, NULL, t, &b, NULL) < 0)
		abort();
	is_int(blob_finish(b, t, NULL, NULL, 0, &dev, NULL), 0, "no chunk");
	is_int(dev.blocks, 0, "no blob");
	is_int((long long)fstree_ndevices(t), 0, "no device");
	is_int(size_in(d, "data"), -1, "no file");
}

static void check_replaced(void)
{
	auto_fstree struct fstree *t = fstree_new();
	auto_close int d = dir_of("replaced");
	struct fsdevice dev = {.blocks = 7};
	struct blob *b = NULL;

	if (blob_open(d, NULL, t, &b, NULL) < 0)
		abort();
	is_int(add(b, t, "x", 5000, 1), 0, "a file");
	fstree_remove(t, "x");
	is_int(blob_finish(b, t, NULL, NULL, 0, &dev, NULL), 0, "removed");
	is_int(dev.blocks, 0, "nobody needs the blob");
	blob_free(b);
	is_int(size_in(d, "data"), -1, "and it is gone");
	is_int(size_in(d, "idx"), -1, "with its index");
}

static void check_aborted(void)
{
	auto_fstree struct fstree *t = fstree_new();
	auto_close int d = dir_of("aborted");
	struct fschunk c;
	struct blob *b = NULL;

	if (blob_open(d, NULL, t, &b, NULL) < 0)
		abort();
	is_int(blob_add(b, "x", 1, &c, NULL), 0, "begun");
	is_int(size_in(d, "idx"), 0, "there are files");
	blob_free(b);
	is_int(size_in(d, "data"), -1, "given up: gone");
	is_int(size_in(d, "idx"), -1, "both");
}

static struct blob_dict *dict_of_a(void)
{
	struct blob_dict *dict = blob_dict_new();
	auto_close int d = dir_of("a");
	auto_close int idx = open_in(d, "idx");

	if (!dict || blob_dict_add(dict, idx, &known[0].dev.root, NULL) < 0)
		abort();
	return dict;
}

static void check_foreign(void)
{
	struct blob_dict *dict = dict_of_a();
	auto_fstree struct fstree *t = fstree_new();
	auto_close int d = dir_of("b");
	auto_blob struct blob *b = NULL;
	struct fsdevice dev = {.blocks = 0};
	int opened = 0;

	if (blob_open(d, dict, t, &b, NULL) < 0)
		abort();
	is_int(add(b, t, "known", 3000000, 13), 0, "what the dictionary has");
	is_int((long long)blob_stored(b), 0, "is not stored");
	is_int(add(b, t, "new", 5000, 50), 0, "what it has not");
	is_int((long long)blob_stored(b), 8192, "is");
	is_int(blob_finish(b, t, open_known, &opened, 1048576, &dev, NULL), 0,
	       "finished");
	is_int(opened, 0, "nothing copied");
	keep(&dev, "b");
	is_int((long long)fstree_ndevices(t), 2, "two devices");
	ok(digest_eq(&fstree_device_at(t, 1)->root, &dev.root), "ours first");
	ok(same(t, "known", 3000000, 13) && same(t, "new", 5000, 50),
	   "both files read back");
	blob_dict_free(dict);
}

static void check_little(void)
{
	struct blob_dict *dict = dict_of_a();
	auto_fstree struct fstree *t = fstree_new();
	auto_fstree struct fstree *t2 = fstree_new();
	auto_close int d = dir_of("c");
	auto_close int d2 = dir_of("c2");
	auto_blob struct blob *b = NULL;
	auto_blob struct blob *b2 = NULL;
	struct fsdevice dev = {.blocks = 0}, dev2 = {.blocks = 0};
	int opened = 0;

	if (blob_open(d, dict, t, &b, NULL) < 0 ||
	    blob_open(d2, dict, t2, &b2, NULL) < 0)
		abort();
	is_int(add(b, t, "known", 1000000, 9), 0, "little that is known");
	is_int(fstree_link(t, "name", fstree_find(t, "known"), NULL), 0,
	       "of two names");
	is_int(add(b, t, "new", 5000, 50), 0, "and more");
	is_int(add(b, t, "known2", 4097, 4), 0, "and known");
	is_int(add(b, t, "known3", 4097, 4), 0, "twice");
	is_int(blob_finish(b, t, open_known, &opened, 1048576, &dev, NULL), 0,
	       "finished");
	is_int(opened, 1, "the other blob was read");
	keep(&dev, "c");
	is_int((long long)fstree_ndevices(t), 1, "one device");
	is_int(dev.blocks, 245 + 2 + 2, "all copied, once");
	ok(same(t, "known", 1000000, 9) && same(t, "name", 1000000, 9) &&
		   same(t, "new", 5000, 50) && same(t, "known2", 4097, 4) &&
		   same(t, "known3", 4097, 4),
	   "all read back");
	add(b2, t2, "known", 1000000, 9);
	add(b2, t2, "new", 5000, 50);
	add(b2, t2, "known2", 4097, 4);
	is_int(blob_finish(b2, t2, open_known, &opened, 1048576, &dev2, NULL),
	       0, "the same again");
	ok(digest_eq(&dev.root, &dev2.root), "is the same");
	blob_dict_free(dict);
}

static void check_no_foreign(void)
{
	struct blob_dict *dict = dict_of_a();
	auto_fstree struct fstree *t = fstree_new();
	auto_close int d = dir_of("d");
	struct fsdevice dev;
	struct blob *b = NULL;
	size_t was = nknown;
	int opened = 0;

	if (blob_open(d, dict, t, &b, NULL) < 0)
		abort();
	add(b, t, "known", 1000000, 9);
	nknown = 0;
	is_int(blob_finish(b, t, open_known, &opened, 1048576, &dev, NULL),
	       -ENOENT, "the blob to copy from is gone");
	nknown = was;
	blob_free(b);
	is_int(size_in(d, "data"), -1, "nothing is left");
	blob_dict_free(dict);
}

static int verify(const char *dir, const struct digest *root, struct err *e)
{
	auto_close int d = dir_of(dir);
	auto_close int data = open_in(d, "data");
	auto_close int idx = open_in(d, "idx");

	return blob_verify(data, idx, root, e);
}

/* Turn over a bit of ${name} at ${off}: verify must see it. */
static bool seen(const char *name, off_t off)
{
	auto_close int d = dir_of("a2");
	auto_close int fd = open_in(d, name);
	struct err e = {0};
	uint8_t byte;
	bool good;

	if (pread(fd, &byte, 1, off) != 1)
		abort();
	byte ^= 16;
	if (pwrite(fd, &byte, 1, off) != 1)
		abort();
	good = verify("a2", &known[0].dev.root, &e) == -EBADMSG &&
	       !strcmp(e.code, "image_damaged");
	byte ^= 16;
	if (pwrite(fd, &byte, 1, off) != 1)
		abort();
	return good;
}

static bool seen_cut(const char *name, off_t by)
{
	auto_close int d = dir_of("a2");
	auto_close int fd = open_in(d, name);
	struct err e = {0};
	char last[64] = "";
	off_t len = size_in(d, name);
	bool good;

	if (by < 0 && pread(fd, last, (size_t)-by, len + by) != -by)
		abort();
	if (ftruncate(fd, len + by) < 0)
		abort();
	good = verify("a2", &known[0].dev.root, &e) == -EBADMSG &&
	       !strcmp(e.code, "image_damaged");
	if (ftruncate(fd, len) < 0)
		abort();
	if (by < 0 && pwrite(fd, last, (size_t)-by, len + by) != -by)
		abort();
	return good;
}

static void check_verify(void)
{
	auto_close int d = dir_of("a2");
	off_t data = size_in(d, "data"), idx = size_in(d, "idx");
	struct digest other = known[0].dev.root;
	bool good = true;
	struct err e = {0};

	is_int(verify("a", &known[0].dev.root, &e), 0, "a blob is whole");
	is_int(verify("a2", &known[0].dev.root, &e), 0, "its copy");
	is_int(verify("b", &known[1].dev.root, &e), 0, "another");
	other.b[5] ^= 1;
	is_int(verify("a", &other, &e), -EBADMSG, "not the one of that name");
	ok(seen("data", 0), "the first byte of all");
	ok(seen("data", 1), "padding");
	ok(seen("data", 5 * 4096), "a middle one");
	ok(seen("data", data - 1), "the last, padding");
	for (off_t i = 0; i < idx; i += 7)
		good = good && seen("idx", i);
	ok(good, "every byte of the index");
	ok(seen_cut("data", -1), "data cut");
	ok(seen_cut("data", 1), "data longer");
	ok(seen_cut("idx", -1), "index cut");
	ok(seen_cut("idx", -40), "by a chunk");
	ok(seen_cut("idx", 40), "index longer");
	is_int(verify("a2", &known[0].dev.root, &e), 0, "whole again");
}

/* Bytes of an index whose name is right: only the form is wrong. */
static int try_idx(const void *data, size_t len)
{
	struct blob_dict *dict = blob_dict_new();
	auto_close int d = dir_of("try");
	auto_close int fd = openat(d, "idx",
				   O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC,
				   0600);
	struct digest root;
	struct err e = {0};
	int r;

	if (fd < 0 || fd_write_all(fd, data, len, NULL) < 0 ||
	    sha256_of(data, len, &root) < 0)
		abort();
	r = blob_dict_add(dict, fd, &root, &e);
	blob_dict_free(dict);
	return r;
}

static void put32(char *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (char)(v >> 8 * i);
}

static void check_hostile(void)
{
	char idx[16 + 2 * 40] = "dsecidx1";
	uint32_t big[] = {0, FS_CHUNK + 1, UINT32_MAX, UINT32_MAX - 4095};

	put32(idx + 8, 2);
	put32(idx + 12, 3);
	put32(idx + 16 + 4, 4097);
	put32(idx + 16 + 40, 2);
	put32(idx + 16 + 40 + 4, 1);
	is_int(try_idx(idx, sizeof(idx)), 0, "an index by hand");
	put32(idx + 12, 4);
	is_int(try_idx(idx, sizeof(idx)), -EBADMSG, "blocks too many");
	put32(idx + 12, 2);
	is_int(try_idx(idx, sizeof(idx)), -EBADMSG, "too few");
	put32(idx + 12, 3);
	put32(idx + 8, 1);
	is_int(try_idx(idx, sizeof(idx)), -EBADMSG, "chunks too few");
	put32(idx + 8, UINT32_MAX);
	is_int(try_idx(idx, sizeof(idx)), -EBADMSG, "too many");
	put32(idx + 8, 2);
	for (size_t i = 0; i < array_len(big); i++) {
		put32(idx + 16 + 4, big[i]);
		is_int(try_idx(idx, sizeof(idx)), -EBADMSG, "a length");
	}
	put32(idx + 16 + 4, 4097);
	put32(idx + 16 + 40, 1);
	is_int(try_idx(idx, sizeof(idx)), -EBADMSG, "chunks that overlap");
	put32(idx + 16 + 40, 3);
	is_int(try_idx(idx, sizeof(idx)), -EBADMSG, "a gap");
	put32(idx + 16 + 40, 2);
	is_int(try_idx(idx, 16), -EBADMSG, "a header alone");
	is_int(try_idx(idx, 0), -EBADMSG, "an empty file");
	idx[0] = 'x';
	is_int(try_idx(idx, sizeof(idx)), -EBADMSG, "another file");
}

/* A damaged index leaves a dictionary as it was. */
static void check_dict_rollback(void)
{
	struct blob_dict *dict = dict_of_a();
	auto_fstree struct fstree *t = fstree_new();
	auto_close int db = dir_of("b");
	auto_close int d = dir_of("roll");
	auto_close int idx = open_in(db, "idx");
	auto_blob struct blob *b = NULL;

	is_int(blob_dict_add(dict, idx, &known[2].dev.root, NULL), -EBADMSG,
	       "an index of another blob");
	if (blob_open(d, dict, t, &b, NULL) < 0)
		abort();
	add(b, t, "new", 5000, 50);
	is_int((long long)blob_stored(b), 8192, "its chunks are not known");
	add(b, t, "known", 3000000, 13);
	is_int((long long)blob_stored(b), 8192, "those of before are");
	blob_dict_free(dict);
}

static void check_reader(void)
{
	auto_fstree struct fstree *t = fstree_new();
	struct fsnode *n = file(t, "holes", 3 * FS_CHUNK - 5);
	struct fschunk hole = {.block = FS_HOLE}, bad = {.device = 9};
	auto_free char *data = malloc(4 * FS_CHUNK);
	struct blob_reader *r;
	bool zero = true;
	int opened = 0;

	for (int i = 0; i < 2; i++)
		if (fsnode_add_chunk(t, n, &hole) < 0)
			abort();
	r = blob_reader_new(t, open_known, &opened);
	memset(data, 1, 4 * FS_CHUNK);
	is_int(blob_reader_read(r, n, 5, data, FS_CHUNK + 7, NULL),
	       FS_CHUNK + 7, "a hole is read");
	for (size_t i = 0; i < FS_CHUNK + 7; i++)
		zero = zero && !data[i];
	ok(zero && data[FS_CHUNK + 7], "as zeros");
	is_int(blob_reader_read(r, n, 0, data, 4 * FS_CHUNK, NULL), -EBADMSG,
	       "a file with too few chunks");
	if (fsnode_add_chunk(t, n, &bad) < 0)
		abort();
	is_int(blob_reader_read(r, n, 0, data, 4 * FS_CHUNK, NULL), -EBADMSG,
	       "a chunk of no device");
	is_int(blob_reader_read(r, n, 3 * FS_CHUNK - 5, data, 1, NULL), 0,
	       "at the end");
	is_int(blob_reader_read(r, n, UINT64_MAX, data, 1, NULL), 0,
	       "far behind it");
	blob_reader_free(r);
}

int main(void)
{
	if (!mkdtemp(top))
		return 1;
	check_write();
	check_again();
	check_dedup();
	check_confusion();
	check_nothing();
	check_replaced();
	check_aborted();
	check_foreign();
	check_little();
	check_no_foreign();
	check_verify();
	check_hostile();
	check_dict_rollback();
	check_reader();
	fd_remove_tree(AT_FDCWD, top, NULL);
	return tap_done();
}
