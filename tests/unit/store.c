/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
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
	struct digest d = {0};
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
	auto_close int meta = -1, blob = -1;
	struct digest d, d2, got = {0};
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
	meta = store_open_meta(&s, &l.meta, &e);
	is_int(fstat(meta, &st) < 0 ? -1 : st.st_size, (long long)l.meta_bytes,
	       "its size");
	blob = store_open_blob(&s, &l.devices[0].root, &e);
	is_int(fstat(blob, &st) < 0 ? -1 : st.st_size,
	       (long long)l.devices[0].blocks * 4096, "the blob's");
	is_int(store_verify(&s, &d, true, &e), 0, "verified");
	d2 = put(&s, 1, 2, NULL);
	ok(digest_eq(&d, &d2), "put again it is the same");
	is_int(count_file("blob", ".data"), 1, "stored once");
	is_int(count_file("tmp", ""), 0, "nothing is left in tmp");
}

static int count_tag(void *arg, const struct img_name *name,
		     const struct digest *digest, int64_t made_ms,
		     struct err *e)
{
	(void)name;
	(void)digest;
	(void)e;
	*(int *)arg += made_ms > 1000000000000;
	return 0;
}

static void check_tags(void)
{
	auto_store struct store s = STORE_INIT;
	struct img_name a2 = name_of("root/a:2"), deep = name_of("root/a/b:1");
	struct img_name none = name_of("root/a:9"), far = name_of("x/a:9");
	struct img_name by = {.by_digest = true};
	struct digest d, got = {0};
	struct err e = {0};
	int n = 0;

	open_store(&s);
	d = put(&s, 1, 2, NULL);
	is_int(store_tag(&s, &a2, &d, &e), 0, "another tag");
	is_int(store_tag(&s, &deep, &d, &e), 0, "one of a deeper project");
	is_int(store_tags(&s, count_tag, &n, &e), 0, "all tags");
	is_int(n, 3, "so many");
	is_int(store_resolve(&s, &none, &got, &e), -ENOENT, "another version");
	is_str(e.code, "image_unknown", "is not there");
	ok(strstr(e.msg, "root/a:1, root/a:2") != NULL, "%s", e.msg);
	is_int(store_resolve(&s, &far, &got, &e), -ENOENT, "another project");
	by.digest = d;
	is_int(store_resolve(&s, &by, &got, &e), 0, "by digest");
	is_int(store_tag(&s, &by, &d, &e), -EINVAL, "a digest is no tag");
	by.digest.b[0] ^= 1;
	is_int(store_resolve(&s, &by, &got, &e), -ENOENT, "another digest");
	is_int(store_tag(&s, &none, &by.digest, &e), -ENOENT,
	       "no tag without its image");
	is_int(store_untag(&s, &deep, &e), 0, "a tag goes");
	is_int(store_untag(&s, &deep, &e), -ENOENT, "once");
	is_str(e.code, "image_unknown", "then there is none");
	is_int(store_untag(&s, &a2, &e), 0, "another goes");
	is_int(store_resolve(&s, &a2, &got, &e), -ENOENT, "and is gone");
}

static struct digest put_env(struct store *s, const struct digest *a,
			     const struct digest *b, int want)
{
	struct env v = {.layers = {*a, *b}, .nlayers = 2};
	char tmp[STORE_TMP_NAME];
	struct digest d = {0};
	struct err e;
	int fd = -1;

	if (store_tmp(s, &fd, tmp, &e) < 0)
		die(&e);
	is_int(store_put_env(s, fd, &v, &d, &e), want, "an environment");
	store_tmp_done(s, &fd, tmp);
	return d;
}

static void check_env(void)
{
	auto_store struct store s = STORE_INIT;
	struct img_name name = name_of("root/env:1");
	struct digest a, b, d, none = {0};
	struct err e = {0};

	open_store(&s);
	a = put(&s, 1, 2, NULL);
	b = put(&s, 3, 0, NULL);
	d = put_env(&s, &a, &b, 0);
	put_env(&s, &a, &none, -ENOENT);
	is_int(store_verify(&s, &d, true, &e), 0, "verified");
	is_int(store_tag(&s, &name, &d, &e), 0, "tagged");
}

static void check_dict(void)
{
	auto_store struct store s = STORE_INIT;
	auto_layer struct layer l = {.kind = LAYER_BASE};
	struct blob_dict *dict = blob_dict_new();
	struct digest a, d = {0};
	char tmp[STORE_TMP_NAME];
	struct err e = {0};
	int fd = -1;

	open_store(&s);
	a = put(&s, 1, 2, "root/a:1");
	if (store_tmp(&s, &fd, tmp, &e) < 0)
		die(&e);
	is_int(store_dict(&s, fd, &a, dict, &e), 0, "a dictionary");
	is_int(put_two(&s, fd, 2, 77, dict, &d, &e), 0, "a layer over it");
	store_tmp_done(&s, &fd, tmp);
	blob_dict_free(dict);
	is_int(store_layer(&s, &d, &l, &e), 0, "its manifest");
	is_int((long long)l.ndevices, 2, "names two blobs");
	is_int(store_verify(&s, &d, true, &e), 0, "verified");
}

static void check_source(void)
{
	auto_store struct store s = STORE_INIT;
	struct digest key = {.b = {7}}, d, got = {0};
	struct err e = {0};

	open_store(&s);
	d = put(&s, 1, 2, NULL);
	is_int(store_source_get(&s, &key, &got, &e), 0, "a new source");
	is_int(store_source_put(&s, &key, &d, &e), 0, "is noted");
	is_int(store_source_get(&s, &key, &got, &e), 1, "and known");
	ok(digest_eq(&got, &d), "for what it became");
	d.b[3] ^= 1;
	is_int(store_source_put(&s, &key, &d, &e), 0, "one that is gone");
	is_int(store_source_get(&s, &key, &got, &e), 0, "is not known");
}

static int count_lease(void *arg, const char *holder,
		       const struct digest *digest, int64_t until_ms,
		       const char *why, struct err *e)
{
	(void)digest;
	(void)e;
	ok(!strcmp(holder, "node-1") && !strcmp(why, "test") &&
		   (until_ms == 0 || until_ms > 1000000000000),
	   "a lease of %s", holder);
	++*(int *)arg;
	return 0;
}

static void check_leases(void)
{
	auto_store struct store s = STORE_INIT;
	struct digest d = {.b = {1}}, d2 = {.b = {2}};
	struct err e = {0};
	int n = 0;

	open_store(&s);
	is_int(store_lease(&s, "node-1", &d, 0, "test", &e), 0, "a lease");
	is_int(store_lease(&s, "node-1", &d, 60, "test", &e), 0, "again");
	is_int(store_lease(&s, "node-1", &d2, 60, "test", &e), 0, "another");
	is_int(store_lease(&s, "../x", &d, 60, "test", &e), -EINVAL, "of none");
	is_int(store_lease(&s, "", &d, 60, "test", &e), -EINVAL, "of nobody");
	is_int(store_leases(&s, count_lease, &n, &e), 0, "all leases");
	is_int(n, 2, "so many");
	is_int(store_lease_drop(&s, "node-1", &d, &e), 0, "dropped");
	is_int(store_lease_drop(&s, "node-1", &d, &e), 0, "twice");
	is_int(store_lease_drop(&s, "node-1", &d2, &e), 0, "the other");
	is_int(count_file("lease", ""), 0, "none is left");
}

static struct prune_result prune(struct store *s, unsigned grace_s,
				 const struct digest *use)
{
	struct prune_opt opt = {.grace_s = grace_s,
				.in_use = use,
				.nin_use = use != NULL};
	struct prune_result res = {.manifests = 99};
	struct err e;

	if (store_prune(s, &opt, &res, &e) < 0)
		die(&e);
	return res;
}

/* Everything is named by something: nothing goes, however often. */
static void check_prune_keeps(struct store *s, const char *what,
			      const struct digest *d, const struct digest *use)
{
	struct err e = {0};

	prune(s, 0, use);
	prune(s, 0, use);
	prune(s, 0, use);
	if (!ok(store_verify(s, d, true, &e) == 0, "kept: %s", what))
		printf("# %s\n", e.msg);
}

static void check_prune_roots(void)
{
	auto_store struct store s = STORE_INIT;
	struct img_name name = name_of("root/p:1");
	struct digest d, key = {.b = {9}}, got;
	auto_layer struct layer l = {.kind = LAYER_BASE};
	char tmp[STORE_TMP_NAME];
	struct err e = {0};
	int fd = -1;

	open_store(&s);
	d = put(&s, 100, 101, "root/p:1");
	check_prune_keeps(&s, "a tag", &d, NULL);
	store_lease(&s, "node-1", &d, 0, "", &e);
	store_untag(&s, &name, &e);
	check_prune_keeps(&s, "a lease for ever", &d, NULL);
	store_lease(&s, "node-1", &d, 600, "", &e);
	check_prune_keeps(&s, "a lease for a while", &d, NULL);
	store_lease_drop(&s, "node-1", &d, &e);
	check_prune_keeps(&s, "a user of this node", &d, &d);
	if (store_tmp(&s, &fd, tmp, &e) < 0 || store_hold(&s, fd, &d, &e) < 0)
		die(&e);
	check_prune_keeps(&s, "a builder", &d, NULL);
	if (store_layer(&s, &d, &l, &e) < 0)
		die(&e);
	store_lease(&s, "b", &l.devices[0].root, 0, "", &e);
	store_source_put(&s, &key, &d, &e);
	store_tmp_done(&s, &fd, tmp);
	check_prune_keeps(&s, "a source whose blob is leased", &d, NULL);
	store_lease_drop(&s, "b", &l.devices[0].root, &e);
	prune(&s, 0, NULL);
	prune(&s, 0, NULL);
	is_int(store_verify(&s, &d, false, &e), -ENOENT, "else it goes");
	is_int(store_source_get(&s, &key, &got, &e), 0, "the source too");
	is_int(count_file("source", ""), 0, "and its entry");
}

static void check_prune_grace(void)
{
	auto_store struct store s = STORE_INIT;
	struct prune_opt dry = {.dry_run = true};
	struct prune_result r = {0};
	struct img_name name = name_of("root/q:1");
	struct digest d;
	struct err e = {0};

	open_store(&s);
	prune(&s, 0, NULL);
	prune(&s, 0, NULL);
	d = put(&s, 200, 201, NULL);
	r = prune(&s, 3600, NULL);
	is_int(r.candidates, 4, "four candidates");
	is_int(r.manifests + r.metas + r.blobs, 0, "nothing goes at once");
	r = prune(&s, 3600, NULL);
	is_int(r.candidates, 4, "nor before its time");
	is_int(store_tag(&s, &name, &d, &e), 0, "one that is tagged meanwhile");
	r = prune(&s, 0, NULL);
	is_int(r.candidates, 0, "is none");
	is_int(store_untag(&s, &name, &e), 0, "untagged");
	r = prune(&s, 0, NULL);
	is_int(r.candidates, 4, "it begins anew");
	is_int(store_prune(&s, &dry, &r, &e), 0, "a dry run");
	is_int(r.manifests + r.metas + r.blobs, 3, "tells what would go");
	is_int(store_verify(&s, &d, true, &e), 0, "and takes nothing");
	r = prune(&s, 0, NULL);
	is_int(r.manifests + r.metas + r.blobs, 3, "then it goes");
	ok(r.freed_bytes > 3000000, "with its bytes");
	is_int(store_verify(&s, &d, true, &e), -ENOENT, "it is gone");
	d = put(&s, 200, 201, "root/q:1");
	is_int(store_verify(&s, &d, true, &e), 0, "and can be put again");
}

/* What a prune that was killed left in tmp/prune, and one at work. */
static void check_prune_killed(void)
{
	auto_store struct store s = STORE_INIT;
	struct prune_opt opt = {.grace_s = 0};
	struct prune_result r;
	struct digest d;
	char cmd[256];
	struct err e = {0};

	open_store(&s);
	d = put(&s, 200, 201, "root/q:1");
	snprintf(cmd, sizeof(cmd),
		 "cd %s && mkdir tmp/prune && "
		 "find meta blob manifest -type f -exec mv {} tmp/prune ';'",
		 path);
	if (system(cmd) != 0)
		abort();
	is_int(store_verify(&s, &d, true, &e), 0, "read while it is pruned");
	is_int(store_prune(&s, &opt, &r, &e), -EBUSY, "one prune at a time");
	is_str(e.code, "busy", "try again");
	snprintf(cmd, sizeof(cmd), "touch -d '1 hour ago' %s/tmp/prune", path);
	if (system(cmd) != 0)
		abort();
	r = prune(&s, 0, NULL);
	is_int(store_verify(&s, &d, true, &e), 0, "all came back");
	is_int(count_file("tmp", ""), 0, "nothing is left in tmp");
}

static void check_prune_tmp(void)
{
	auto_store struct store s = STORE_INIT;
	char live[STORE_TMP_NAME], cmd[256];
	struct err e = {0};
	int fd = -1;
	pid_t pid;

	open_store(&s);
	pid = fork();
	if (pid == 0) {
		if (store_tmp(&s, &fd, live, &e) < 0)
			_exit(1);
		_exit(0); /* without a word */
	}
	waitpid(pid, NULL, 0);
	snprintf(cmd, sizeof(cmd),
		 "cd %s/tmp && mkdir old young && touch -d '2 days ago' old x",
		 path);
	if (system(cmd) != 0 || store_tmp(&s, &fd, live, &e) < 0)
		abort();
	prune(&s, 0, NULL);
	snprintf(cmd, sizeof(cmd), "cd %s/tmp && test -d %s && rmdir young",
		 path, live);
	is_int(system(cmd), 0, "what lives or is young stays");
	store_tmp_done(&s, &fd, live);
	is_int(count_file("tmp", ""), 0, "the rest went");
	snprintf(cmd, sizeof(cmd), "rmdir %s/tmp && mkdir %s/tmp", path, path);
	is_int(system(cmd), 0, "all of it");
}

/* What a builder does that we cannot look at: its pid means nothing here. */
static void far_builder(const struct digest *d, int ready, int end)
{
	auto_store struct store s = STORE_INIT;
	char tmp[STORE_TMP_NAME], c = 0;
	struct err e;
	int fd = -1;

	if (unshare(CLONE_NEWPID) < 0)
		_exit(77);
	if (fork() > 0) {
		int st;

		wait(&st);
		_exit(WEXITSTATUS(st));
	}
	open_store(&s);
	if (store_tmp(&s, &fd, tmp, &e) < 0 || store_hold(&s, fd, d, &e) < 0)
		_exit(1);
	if (write(ready, "", 1) != 1 || read(end, &c, 1) < 0)
		_exit(1);
	store_tmp_done(&s, &fd, tmp);
	store_close(&s);
	_exit(0);
}

static void check_far(void)
{
	auto_store struct store s = STORE_INIT;
	int ready[2], end[2], st;
	struct digest d;
	pid_t pid;
	char c;

	if (geteuid() != 0) {
		skip("a builder elsewhere", "needs root");
		return;
	}
	open_store(&s);
	d = put(&s, 400, 0, NULL);
	if (pipe2(ready, O_CLOEXEC) < 0 || pipe2(end, O_CLOEXEC) < 0)
		abort();
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		fd_close(end[1]);
		far_builder(&d, ready[1], end[0]);
	}
	fd_close(ready[1]);
	if (read(ready[0], &c, 1) == 1)
		check_prune_keeps(&s, "a builder elsewhere", &d, NULL);
	fd_close(end[1]);
	waitpid(pid, &st, 0);
	is_int(st, 0, "which ends");
	fd_close(ready[0]);
	fd_close(end[0]);
	prune(&s, 0, NULL);
	prune(&s, 0, NULL);
	is_int(store_verify(&s, &d, false, NULL), -ENOENT, "then it goes");
}

/* Damage that makes it unknown what is needed. */
static void check_prune_careful(void)
{
	auto_store struct store s = STORE_INIT;
	struct prune_opt opt = {.grace_s = 0};
	struct prune_result r;
	char cmd[256];
	struct err e = {0};

	open_store(&s);
	put(&s, 300, 0, "root/r:1");
	snprintf(cmd, sizeof(cmd), "cd %s && cp tag/root/r/1.json x", path);
	if (system(cmd) != 0)
		abort();
	snprintf(cmd, sizeof(cmd), "cd %s && echo x >tag/root/r/1.json", path);
	if (system(cmd) != 0)
		abort();
	is_int(store_prune(&s, &opt, &r, &e), -EBADMSG, "a damaged tag");
	is_str(e.code, "image_damaged", "ends it");
	ok(strstr(e.msg, "tag/root/r/1.json") != NULL, "%s", e.msg);
	snprintf(cmd, sizeof(cmd), "cd %s && mv x tag/root/r/1.json", path);
	if (system(cmd) != 0)
		abort();
	prune(&s, 0, NULL);
}

/* Every byte of a manifest, a metadata file and a blob, one by one. */
static void check_verify(void)
{
	auto_store struct store s = STORE_INIT;
	auto_layer struct layer l = {.kind = LAYER_BASE};
	struct img_name name = name_of("root/r:1");
	struct digest d;
	char p[3][PATH_MAX], hex[DIGEST_HEX + 1];
	struct err e = {0};

	open_store(&s);
	if (store_resolve(&s, &name, &d, &e) < 0 ||
	    store_layer(&s, &d, &l, &e) < 0)
		die(&e);
	digest_hex(&l.meta, hex);
	snprintf(p[0], sizeof(p[0]), "%s/meta/sha256/%.2s/%s.erofs", path, hex,
		 hex);
	digest_hex(&l.devices[0].root, hex);
	snprintf(p[1], sizeof(p[1]), "%s/blob/sha256/%.2s/%s.data", path, hex,
		 hex);
	digest_hex(&d, hex);
	snprintf(p[2], sizeof(p[2]), "%s/manifest/sha256/%.2s/%s.json", path,
		 hex, hex);
	for (int i = 0; i < 3; i++) {
		auto_close int fd = open(p[i], O_RDWR | O_CLOEXEC);
		off_t len = lseek(fd, 0, SEEK_END);
		bool good = true;
		char c = 0;

		for (off_t at = 0; at < len; at += len / 17) {
			good = good && pread(fd, &c, 1, at) == 1;
			c ^= 4;
			good = good && pwrite(fd, &c, 1, at) == 1 &&
			       store_verify(&s, &d, true, &e) < 0 &&
			       !strcmp(e.code, "image_damaged");
			c ^= 4;
			good = good && pwrite(fd, &c, 1, at) == 1;
		}
		ok(good, "damage is seen: %s", e.msg);
		if (ftruncate(fd, len + 1) < 0)
			abort();
		ok(store_verify(&s, &d, false, &e) < 0, "length: %s", e.msg);
		if (ftruncate(fd, len) < 0)
			abort();
	}
	is_int(store_verify(&s, &d, true, &e), 0, "whole again");
}

/* A pipe where a file should be, and links out of the store. */
static void check_hostile(void)
{
	auto_store struct store s = STORE_INIT;
	struct img_name pipe = name_of("root/h:1"), link = name_of("root/h:2");
	struct img_name dir = name_of("root/l:1");
	struct digest d = {.b = {0}};
	char cmd[256];
	struct err e = {0};

	open_store(&s);
	snprintf(cmd, sizeof(cmd),
		 "cd %s/tag/root && mkdir h && mkfifo h/1.json && "
		 "ln -s ../r/1.json h/2.json && ln -s r l",
		 path);
	is_int(system(cmd), 0, "things that do not belong there");
	is_int(store_resolve(&s, &pipe, &d, &e), -EBADMSG, "a pipe");
	is_str(e.code, "image_damaged", "is no tag");
	is_int(store_resolve(&s, &link, &d, &e), -EBADMSG, "nor is a link");
	is_int(store_resolve(&s, &dir, &d, &e), -EBADMSG, "nor one on the way");
	snprintf(cmd, sizeof(cmd), "rm -r %s/tag/root/[hl]", path);
	is_int(system(cmd), 0, "away with them");
}

static int runner_tries(void)
{
	auto_store struct store s = STORE_INIT;
	struct img_name name = name_of("root/r:1");
	struct prune_opt opt = {.grace_s = 0};
	struct prune_result r;
	char tmp[STORE_TMP_NAME];
	struct digest d;
	struct err e = {0};
	int fd = -1;

	open_store(&s);
	ok(!s.builder, "another user is no builder");
	is_int(store_resolve(&s, &name, &d, &e), 0, "it reads");
	is_int(store_verify(&s, &d, true, &e), 0, "all of it");
	is_int(store_tmp(&s, &fd, tmp, &e), -EPERM, "it does not write");
	is_str(e.code, "permission", "for want of permission");
	ok(strstr(e.msg, "belongs to uid 0") && strstr(e.msg, "inbox"), "%s",
	   e.msg);
	is_int(store_tag(&s, &name, &d, &e), -EPERM, "no tag");
	is_int(store_untag(&s, &name, &e), -EPERM, "none less");
	is_int(store_lease(&s, "x", &d, 0, "", &e), -EPERM, "no lease");
	is_int(store_prune(&s, &opt, &r, &e), -EPERM, "no prune");
	return tap_bad != 0;
}

static void check_runner(void)
{
	pid_t pid;
	int st;

	if (geteuid() != 0) {
		skip("another user", "needs root");
		return;
	}
	if (chmod(top, 0755) < 0)
		abort();
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		if (setresgid(65534, 65534, 65534) < 0 ||
		    setresuid(65534, 65534, 65534) < 0)
			_exit(1);
		tap_bad = 0; /* counted apart, and not printed */
		if (!freopen("/dev/null", "w", stdout))
			_exit(1);
		_exit(runner_tries());
	}
	waitpid(pid, &st, 0);
	is_int(st, 0, "another user reads and does not write");
}

int main(void)
{
	if (!mkdtemp(top))
		return 1;
	snprintf(path, sizeof(path), "%s/store", top);
	check_create();
	check_layer();
	check_tags();
	check_env();
	check_dict();
	check_source();
	check_leases();
	check_prune_roots();
	check_prune_grace();
	check_prune_killed();
	check_prune_tmp();
	check_far();
	check_prune_careful();
	check_verify();
	check_hostile();
	check_runner();
	fd_remove_tree(AT_FDCWD, top, NULL);
	return tap_done();
}
