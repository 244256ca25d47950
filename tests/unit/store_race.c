/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builders and prunes at one store at the same time.  With arguments it is a
 * tool of tests/sys/store-faults.t:
 *
 *   store_race put STORE NAME SEED   a layer of that content, tagged
 *   store_race prune STORE           grace 0
 *   store_race verify STORE          every tag is whole, every manifest is
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "img/blob.h"
#include "img/store.h"

#define FILES 3

struct job {
	struct store *s;
	struct img_name name;
	unsigned seeds[FILES];
	size_t len;
	const struct img_name *dict; /* or NULL */
	bool reuse;
};

static int add_file(struct fstree *t, struct blob *b, const char *at,
		    unsigned seed, size_t len, struct err *e)
{
	struct fsnode attr = {.mode = S_IFREG | 0644, .size = len}, *n;
	auto_free unsigned *data = malloc(len + 4);
	struct fschunk c;
	int r;

	for (size_t i = 0; i <= len / 4; i++)
		data[i] = seed = seed * 1103515245 + 12345;
	r = fstree_put(t, at, &attr, &n, e);
	for (size_t off = 0; r == 0 && off < len; off += FS_CHUNK) {
		size_t part = len - off < FS_CHUNK ? len - off : FS_CHUNK;

		r = blob_add(b, (char *)data + off, part, &c, e);
		if (r == 0)
			r = fsnode_add_chunk(t, n, &c);
	}
	return r;
}

static int add_files(const struct job *j, struct fstree *t, struct blob *b,
		     struct err *e)
{
	char at[16];
	int r = 0;

	for (int i = 0; r == 0 && i < FILES; i++) {
		snprintf(at, sizeof(at), "d/f%d", i);
		r = add_file(t, b, at, j->seeds[i], j->len, e);
	}
	return r;
}

static int put_in(const struct job *j, int tmpfd, struct blob_dict *dict,
		  struct digest *ret, struct err *e)
{
	auto_fstree struct fstree *t = fstree_new();
	auto_layer struct layer l = {.kind = LAYER_TOOLKIT};
	auto_blob struct blob *b = NULL;
	struct fsdevice dev;
	struct digest d;
	int r;

	/* none of that name, or it was pruned: then without */
	if (j->dict && store_resolve(j->s, j->dict, &d, NULL) == 0) {
		r = store_dict(j->s, tmpfd, &d, dict, e);
		if (r < 0 && r != -ENOENT)
			return r;
	}
	r = blob_open(tmpfd, dict, t, &b, e);
	if (r == 0)
		r = add_files(j, t, b, e);
	if (r == 0)
		r = blob_finish(b, t, store_open_blob, j->s, 2 * j->len, &dev,
				e);
	if (r == 0 && dev.blocks)
		r = store_put_blob(j->s, tmpfd, &dev, e);
	if (r == 0)
		r = store_put_layer(j->s, tmpfd, t, &l, ret, e);
	return r < 0 ? r : store_tag(j->s, &j->name, ret, e);
}

/* What the same content became before, if that is there: 1, else 0. */
static int reuse(const struct job *j, int tmpfd, const struct digest *key,
		 struct digest *ret, struct err *e)
{
	auto_layer struct layer l = {.kind = LAYER_BASE};
	int r;

	r = store_source_get(j->s, key, ret, e);
	if (r <= 0)
		return r;
	r = store_hold(j->s, tmpfd, ret, e);
	if (r == 0)
		r = store_layer(j->s, ret, &l, e);
	if (r == -ENOENT) /* it went before it was held */
		return 0;
	if (r == 0)
		r = store_tag(j->s, &j->name, ret, e);
	return r < 0 ? r : 1;
}

static int put_or_reuse(const struct job *j, int tmpfd, struct blob_dict *dict,
			struct digest *ret, struct err *e)
{
	struct digest key = {.b = {0}};
	int r = 0;

	for (size_t i = 0; i < FILES; i++)
		key.b[i] = (uint8_t)j->seeds[i];
	if (j->reuse)
		r = reuse(j, tmpfd, &key, ret, e);
	if (r != 0)
		return r;
	r = put_in(j, tmpfd, dict, ret, e);
	return r < 0 ? r : store_source_put(j->s, &key, ret, e);
}

static int put(const struct job *j, struct digest *ret, struct err *e)
{
	struct blob_dict *dict = blob_dict_new();
	char tmp[STORE_TMP_NAME];
	int fd = -1, r;

	r = store_tmp(j->s, &fd, tmp, e);
	if (r == 0)
		r = put_or_reuse(j, fd, dict, ret, e);
	store_tmp_done(j->s, &fd, tmp);
	blob_dict_free(dict);
	return r;
}

static struct img_name name_of(const char *s)
{
	struct img_name n;

	if (img_name_parse(s, &n, NULL) < 0)
		abort();
	return n;
}

static int verify_tag(void *arg, const struct img_name *name,
		      const struct digest *digest, int64_t made_ms,
		      struct err *e)
{
	char str[IMG_NAME_MAX + 1];
	int r;

	(void)made_ms;
	r = store_verify(arg, digest, true, e);
	return r < 0 ? err_wrap(e, r, "%s", img_name_str(name, str)) : 0;
}

static int verify_manifest(void *arg, const struct digest *digest,
			   struct err *e)
{
	return store_verify(arg, digest, true, e);
}

/* --- the race ------------------------------------------------------------ */

#define RUN_MS	4000
#define NAMES	4 /* tags of a builder */
#define CONTENT 4 /* different files there are */

static unsigned next(unsigned *x)
{
	*x = *x * 1664525 + 1013904223;
	return *x >> 16;
}

static struct img_name race_name(unsigned builder, unsigned i)
{
	char s[32];

	snprintf(s, sizeof(s), "race/b%u:%u", builder, i);
	return name_of(s);
}

static void fail(const char *who, const struct err *e)
{
	printf("# %s: %s\n", who, e->msg);
	fflush(stdout);
	_exit(1);
}

static void build(struct store *s, unsigned me, unsigned *x)
{
	struct img_name other = race_name(!me, next(x) % NAMES);
	struct job j = {.s = s,
			.name = race_name(me, next(x) % NAMES),
			.len = 5000,
			.dict = next(x) % 2 ? &other : NULL,
			.reuse = next(x) % 2};
	struct digest d;
	struct err e;

	for (int i = 0; i < FILES; i++)
		j.seeds[i] = next(x) % CONTENT;
	if (put(&j, &d, &e) < 0)
		fail("put", &e);
	/* the tag is ours: it must be whole from now on */
	if (store_verify(s, &d, true, &e) < 0)
		fail("verify", &e);
	if (next(x) % 2 && store_untag(s, &j.name, &e) < 0)
		fail("untag", &e);
}

static void builder(const char *path, unsigned me, uint64_t until)
{
	auto_store struct store s = STORE_INIT;
	unsigned x = me + 1, n = 0;
	struct err e;

	if (store_open(path, &s, &e) < 0)
		fail("open", &e);
	for (; clock_ms() < until; n++)
		build(&s, me, &x);
	printf("# builder %u: %u layers\n", me, n);
}

static void pruner(const char *path, uint64_t until)
{
	auto_store struct store s = STORE_INIT;
	struct prune_opt opt = {.grace_s = 0};
	struct prune_result res;
	unsigned n = 0, gone = 0, busy = 0;
	struct err e;

	if (store_open(path, &s, &e) < 0)
		fail("open", &e);
	while (clock_ms() < until) {
		int r = store_prune(&s, &opt, &res, &e);

		if (r < 0 && r != -EBUSY)
			fail("prune", &e);
		n += r == 0;
		busy += r == -EBUSY;
		gone += r == 0 ? res.blobs : 0;
	}
	printf("# pruner: %u times, %u blobs went, busy %u\n", n, gone, busy);
	fflush(stdout);
	_exit(gone == 0); /* else nothing was tried */
}

static pid_t start(const char *path, unsigned who, uint64_t until)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid != 0)
		return pid;
	if (who < 2)
		builder(path, who, until);
	else
		pruner(path, until);
	fflush(stdout);
	_exit(0);
}

static void check_after(const char *path)
{
	auto_store struct store s = STORE_INIT;
	struct prune_opt opt = {.grace_s = 0};
	struct prune_result res = {.manifests = 9};
	struct err e = {0};

	is_int(store_open(path, &s, &e), 0, "the store");
	is_int(store_tags(&s, verify_tag, &s, &e), 0, "all that is tagged");
	store_prune(&s, &opt, &res, &e);
	is_int(store_prune(&s, &opt, &res, &e), 0, "two prunes later");
	is_int(store_manifests(&s, verify_manifest, &s, &e), 0, "all there is");
	is_int(store_prune(&s, &opt, &res, &e), 0, "one more");
	is_int(res.candidates + res.manifests + res.metas + res.blobs, 0,
	       "finds nothing");
	if (e.r)
		printf("# %s\n", e.msg);
}

static int race(void)
{
	/* where a sync costs nothing there is more of a race */
	char top[] = "/dev/shm/dsec-race-XXXXXX",
	     slow[] = "/tmp/dsec-race-XXXXXX";
	const char *dir = mkdtemp(top);
	uint64_t until = clock_ms() + RUN_MS;
	auto_store struct store s = STORE_INIT;
	struct err e;
	char path[64];
	pid_t pids[4];
	int st;

	if (!dir)
		dir = mkdtemp(slow);
	if (!dir)
		return 1;
	snprintf(path, sizeof(path), "%s/store", dir);
	is_int(store_create(path, &s, &e), 0, "a store");
	/* two builders, two prunes */
	for (unsigned i = 0; i < array_len(pids); i++)
		pids[i] = start(path, i, until);
	for (unsigned i = 0; i < array_len(pids); i++) {
		waitpid(pids[i], &st, 0);
		is_int(st, 0, i < 2 ? "a builder" : "a pruner");
	}
	check_after(path);
	store_close(&s);
	fd_remove_tree(AT_FDCWD, dir, NULL);
	return tap_done();
}

/* --- the tool ------------------------------------------------------------ */

static int tool_put(struct store *s, char **argv, struct err *e)
{
	unsigned seed = (unsigned)strtoul(argv[1], NULL, 10);
	struct job j = {.s = s,
			.name = name_of(argv[0]),
			.len = 300000,
			.seeds = {seed, seed + 1, seed + 2}};
	struct digest d;

	return put(&j, &d, e);
}

static int tool(int argc, char **argv)
{
	auto_store struct store s = STORE_INIT;
	struct prune_opt opt = {.grace_s = 0};
	struct prune_result res = {.blobs = 0};
	struct err e = {0};
	int r = -EINVAL;

	if (store_create(argv[2], &s, &e) < 0)
		r = e.r;
	else if (argc == 5 && !strcmp(argv[1], "put"))
		r = tool_put(&s, argv + 3, &e);
	else if (argc == 3 && !strcmp(argv[1], "prune"))
		r = store_prune(&s, &opt, &res, &e);
	else if (argc == 3 && !strcmp(argv[1], "verify")) {
		r = store_tags(&s, verify_tag, &s, &e);
		if (r == 0)
			r = store_manifests(&s, verify_manifest, &s, &e);
	}
	if (r < 0)
		fprintf(stderr, "%s: %s\n", e.code ? e.code : "usage", e.msg);
	else if (!strcmp(argv[1], "prune"))
		printf("%u\n", res.blobs);
	return r < 0;
}

int main(int argc, char **argv)
{
	return argc > 2 ? tool(argc, argv) : race();
}
