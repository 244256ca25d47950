/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "img/blob.h"
#include "img/sha256.h"
#include "img/store.h"

static char top[] = "/tmp/dsec-store-XXXXXX";
static char path[64];

static struct img_name name_of(const char *s)
{
	struct img_name n;

	if (img_name_parse(s, &n, NULL) < 0)
		abort();
	return n;
}

static void die(const struct err *e)
{
	printf("# %s\n", e->msg);
	abort();
}

/* A file of ${len} bytes of ${seed}. */
static void add_file(struct fstree *t, struct blob *b, const char *at,
		     unsigned seed, size_t len)
{
	struct fsnode attr = {.mode = S_IFREG | 0644, .size = len}, *n;
	auto_free unsigned *data = malloc(len + 4);
	struct fschunk c;
	struct err e;

	for (size_t i = 0; i <= len / 4; i++)
		data[i] = seed = seed * 1103515245 + 12345;
	if (fstree_put(t, at, &attr, &n, &e) < 0)
		die(&e);
	for (size_t off = 0; off < len; off += FS_CHUNK) {
		size_t part = len - off < FS_CHUNK ? len - off : FS_CHUNK;

		if (blob_add(b, (char *)data + off, part, &c, &e) < 0 ||
		    fsnode_add_chunk(t, n, &c) < 0)
			die(&e);
	}
}

/* A layer of one or two files of seeds; 0: none. */
static int put_two(struct store *s, int tmpfd, unsigned a, unsigned b,
		   struct blob_dict *dict, struct digest *ret, struct err *e)
{
	auto_fstree struct fstree *t = fstree_new();
	auto_layer struct layer l = {.kind = LAYER_TOOLKIT};
	auto_blob struct blob *blob = NULL;
	struct fsdevice dev;
	int r;

	r = blob_open(tmpfd, dict, t, &blob, e);
	if (r < 0)
		return r;
	add_file(t, blob, "one", a, 1500000);
	if (b)
		add_file(t, blob, "dir/two", b, 1500000);
	r = blob_finish(blob, t, store_open_blob, s, 1 << 20, &dev, e);
	if (r == 0 && dev.blocks)
		r = store_put_blob(s, tmpfd, &dev, e);
	return r < 0 ? r : store_put_layer(s, tmpfd, t, &l, ret, e);
}

static struct digest put(struct store *s, unsigned a, unsigned b,
			 const char *tag)
{
	char tmp[STORE_TMP_NAME];
	struct img_name name;
	struct digest d;
	struct err e;
	int fd = -1;

	if (store_tmp(s, &fd, tmp, &e) < 0 ||
	    put_two(s, fd, a, b, NULL, &d, &e) < 0)
		die(&e);
	if (tag) {
		name = name_of(tag);
		if (store_tag(s, &name, &d, &e) < 0)
			die(&e);
	}
	store_tmp_done(s, &fd, tmp);
	return d;
}

static int count_file(const char *dir, const char *ext)
{
	char cmd[256], out[32] = "";
	FILE *f;

	snprintf(cmd, sizeof(cmd), "find %s/%s -type f -name '*%s' | wc -l",
		 path, dir, ext);
	f = popen(cmd, "re");
	if (!f || !fgets(out, sizeof(out), f))
		abort();
	pclose(f);
	return atoi(out);
}

static void check_create(void)
{
	auto_store struct store s = STORE_INIT;
	auto_store struct store s2 = STORE_INIT;
	mode_t was = umask(077);
	struct err e = {0};
	struct stat st;
	char p[128];

	is_int(store_open(path, &s, &e), -ENOENT, "no store");
	is_str(e.code, "image_unknown", "says so");
	is_int(store_create(path, &s, &e), 0, "made");
	ok(s.builder, "it is ours");
	is_str(s.path, path, "by its path");
	is_int(store_create(path, &s2, &e), 0, "made again");
	snprintf(p, sizeof(p), "%s/blob/sha256", path);
	is_int(stat(p, &st) < 0 ? 0 : st.st_mode & 07777, 0755, "others read");
	snprintf(p, sizeof(p), "%s/store.json", path);
	is_int(stat(p, &st) < 0 ? 0 : st.st_mode & 07777, 0644, "all of it");
	snprintf(p, sizeof(p), "%s/inbox", path);
	is_int(stat(p, &st) < 0 ? 0 : st.st_mode & 07777, 01777, "leave there");
	umask(was);
}

static int open_store(struct store *s)
{
	struct err e;

	if (store_open(path, s, &e) < 0)
		die(&e);
	return 0;
}

static void check_layer(void)
{
	auto_store struct store s = STORE_INIT;
	auto_layer struct layer l = {.kind = LAYER_BASE};
	auto_fstree struct fstree *t = NULL;
	struct img_name name = name_of("root/a:1");
	struct digest d, d2, got = {0};
	char p[PATH_MAX];
	struct err e = {0};
	struct stat st;

	open_store(&s);
	d = put(&s, 1, 2, "root/a:1");
	is_int(store_resolve(&s, &name, &got, &e), 0, "its tag");
	ok(digest_eq(&d, &got), "leads to it");
	is_int(store_layer(&s, &d, &l, &e), 0, "its manifest");
	is_int((long long)l.entries, 4, "entries");
	is_int((long long)l.bytes, 3000000, "bytes");
	is_int((long long)l.ndevices, 1, "devices");
	is_int(store_tree(&s, &l, &t, &e), 0, "its metadata");
	ok(t && fstree_find(t, "dir/two"), "has what was put");
	is_int(store_meta_path(&s, &l.meta, p, &e), 0, "its path");
	is_int(stat(p, &st) < 0 ? -1 : st.st_size, (long long)l.meta_bytes,
	       "is there");
	is_int(store_blob_path(&s, &l.devices[0].root, p, &e), 0, "the blob's");
	is_int(stat(p, &st) < 0 ? -1 : st.st_size,
	       (long long)l.devices[0].blocks * 4096, "too");
	is_int(store_verify(&s, &d, true, &e), 0, "verified");
	d2 = put(&s, 1, 2, NULL);
	ok(digest_eq(&d, &d2), "put again it is the same");
	is_int(count_file("blob", ".data"), 1, "stored once");
	is_int(count_file("tmp", ""), 0, "nothing is left in tmp");
}

int main(void)
{
	if (!mkdtemp(top))
		return 1;
	snprintf(path, sizeof(path), "%s/store", top);
	check_create();
	check_layer();
	fd_remove_tree(AT_FDCWD, top, NULL);
	return tap_done();
}
