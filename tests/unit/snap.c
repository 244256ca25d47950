/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "ckpt/ckpt.h"
#include "box/inherit.h"
#include "ckpt/snap.h"

static char base[] = "/tmp/dsec-snap.XXXXXX";
static struct tree tree;
static struct pool pool = POOL_INIT;

static bool good(int r, const struct err *e, const char *what)
{
	if (r < 0)
		printf("# %s: %s (%s)\n", what, e->msg, e->code);
	return ok(r >= 0, "%s", what);
}

static void refused(int r, const struct err *e, const char *code,
		    const char *what)
{
	ok(r < 0 && !strcmp(e->code, code), "%s: %s (%s)", what, code,
	   r < 0 ? e->code : "it was done");
}

static bool there(const char *below)
{
	char path[PATH_MAX];
	struct stat st;

	snprintf(path, sizeof(path), "%s/snap/%s", tree.lib, below);
	return lstat(path, &st) == 0;
}

/* A snapshot as dsec-ckpt leaves it, of a sandbox with one layer. */
static int complete(const struct snap *s, const char *layer)
{
	auto_json json_t *m = NULL;
	auto_close int dir = -1;
	char path[PATH_MAX];
	struct err e = {0};
	int r;

	if (mkdirat(s->dir, "upper", 0755) < 0 ||
	    mkdirat(s->dir, "work", 0755) < 0 ||
	    mkdirat(s->dir, "out", 0700) < 0)
		return -errno;
	m = json_pack("{s:s, s:{s:s, s:[s]}, s:I, s:s, s:s, s:s, s:i, s:i, "
		      "s:{}, s:[], s:{}, s:s, s:[]}",
		      "sandbox", "aaaaaaaaaaaaaaaaaaaa", "spec", "image",
		      "root/py:1", "image_layers", layer, "made_ms",
		      (json_int_t)1, "engine", "none", "kernel", "6.1", "arch",
		      "x86_64", "state_v", 1, "processes", 0, "leaves",
		      "stopped", "externals", "layer", "copied", "warnings");
	r = ckpt_snap_dir(&tree, s->id, path, &e);
	if (r == 0)
		r = ckpt_begin(path, &dir, &e);
	if (r == 0)
		r = ckpt_facts(m, &e);
	if (r == 0)
		r = ckpt_write(dir, m, false, &e);
	if (r == 0)
		r = ckpt_commit(path, false, &e);
	good(r, &e, "a checkpoint in it");
	return r;
}

#define HEX "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

struct seen {
	unsigned n;
	char last[SNAP_PATH_MAX + 1];
};

static int see(void *arg, const char *id, const char *name,
	       const json_t *manifest, struct err *e)
{
	struct seen *s = arg;

	(void)id;
	(void)manifest;
	(void)e;
	s->n++;
	snprintf(s->last, sizeof(s->last), "%s", name);
	return 0;
}

static int see_layers(void *arg, const char *id, const char *name,
		      const struct digest *layers, size_t n, struct err *e)
{
	struct seen *s = arg;
	char hex[DIGEST_HEX + 1];

	(void)id;
	(void)name;
	(void)e;
	s->n += (unsigned)n;
	digest_hex(&layers[0], hex);
	snprintf(s->last, sizeof(s->last), "%s", hex);
	return 0;
}

static void test_names(void)
{
	static const char *const bad[] = {"",	"a/b", ".x",
					  "-x", "_x",  "a b",
					  "@",	"x\n", "aaaaaaaaaaaaaaaaaaaa"};
	struct err e = {0};

	ok(snap_name_check("root", "flask-warm.1_b", &e) == 0, "a name");
	for (size_t i = 0; i < array_len(bad); i++)
		refused(snap_name_check("root", bad[i], &e), &e, "bad_value",
			"a bad name");
	refused(snap_name_check("root//x", "a", &e), &e, "bad_value",
		"a bad project");
	refused(snap_name_check("../root", "a", &e), &e, "bad_value",
		"a project outside");
}

static void test_life(void)
{
	struct snap s = SNAP_INIT, other = SNAP_INIT;
	char old[BOX_ID_LEN + 1], name[SNAP_PATH_MAX + 1];
	struct seen seen = {0};
	struct err e = {0};
	unsigned removed;

	refused(snap_open(&tree, "root", "warm", SNAP_USE, &other, &e), &e,
		"snapshot_unknown", "none is there");
	ok(snap_list(&tree, NULL, see, &seen, &e) == 0 && seen.n == 0,
	   "a list of nothing");
	good(snap_new(&tree, &s, &e), &e, "a new one");
	refused(snap_open(&tree, "root", s.id, SNAP_USE, &other, &e), &e,
		"busy", "while it is being made");
	ok(snap_sweep(&tree, &pool, &removed, &e) == 0 && removed == 0,
	   "what is held is not swept");
	if (complete(&s, HEX) < 0)
		return;
	good(snap_share(&tree, &s, &e), &e, "shared");
	good(snap_keep(&tree, &s, "root/rl", "warm", false, old, &e), &e,
	     "named");
	is_str(old, "", "nobody had the name");
	good(snap_open(&tree, "root/rl", "warm", SNAP_USE, &other, &e), &e,
	     "by its name");
	is_str(other.id, s.id, "which is its own");
	refused(snap_remove(&tree, &pool, &other, &e), &e, "busy",
		"removed while others use it");
	snap_close(&other);
	snap_close(&s);
	refused(snap_open(&tree, "root", "warm", SNAP_USE, &other, &e), &e,
		"snapshot_unknown", "not in another project");
	good(snap_open(&tree, "root", "root/rl/warm", SNAP_USE, &other, &e), &e,
	     "by its whole name");
	snap_close(&other);
	refused(snap_open(&tree, "root", "root/rl/@warm", SNAP_USE, &other, &e),
		&e, "snapshot_unknown", "not by the link's own");
	refused(snap_open(&tree, "root", "../../x", SNAP_USE, &other, &e), &e,
		"snapshot_unknown", "not by a path");
	ok(snap_name(&tree, s.id, name, &e) == 0 &&
		   !strcmp(name, "root/rl/warm"),
	   "its name is told");
	ok(snap_list(&tree, "root/rl", see, &seen, &e) == 0 && seen.n == 1 &&
		   !strcmp(seen.last, "root/rl/warm"),
	   "it is listed");
	seen.n = 0;
	ok(snap_list(&tree, "root/r", see, &seen, &e) == 0 && seen.n == 0,
	   "not with another project");
	ok(snap_layers(&tree, see_layers, &seen, &e) == 0 && seen.n == 1 &&
		   !strcmp(seen.last, HEX),
	   "its layers are told");
	ok(snap_sweep(&tree, &pool, &removed, &e) == 0 && removed == 0,
	   "what has a name is not swept");
}

/* A project and a snapshot may have the same last name. */
static void test_replace(void)
{
	struct snap s = SNAP_INIT, first = SNAP_INIT;
	char old[BOX_ID_LEN + 1], name[SNAP_PATH_MAX + 1];
	struct err e = {0};
	unsigned removed;

	good(snap_open(&tree, "root/rl", "warm", SNAP_USE, &first, &e), &e,
	     "the first");
	good(snap_new(&tree, &s, &e), &e, "a second one");
	if (complete(&s, HEX) < 0)
		return;
	refused(snap_keep(&tree, &s, "root/rl", "warm", false, old, &e), &e,
		"exists", "its name is taken");
	ok(snap_name(&tree, s.id, name, &e) == 0 && !*name, "it has none");
	good(snap_keep(&tree, &s, "root/rl", "warm", true, old, &e), &e,
	     "in place of the first");
	is_str(old, first.id, "which is told");
	ok(snap_name(&tree, first.id, name, &e) == 0 && !*name,
	   "and has no name any more");
	ok(snap_sweep(&tree, &pool, &removed, &e) == 0 && removed == 0,
	   "it stays while somebody uses it");
	snap_close(&first);
	ok(snap_sweep(&tree, NULL, &removed, &e) == 0 && removed == 1 &&
		   there(first.id),
	   "then it is found");
	ok(snap_sweep(&tree, &pool, &removed, &e) == 0 && removed == 1 &&
		   !there(first.id),
	   "and swept");
	snap_close(&s);
	good(snap_open(&tree, "root/rl", "warm", SNAP_ALONE, &s, &e), &e,
	     "the second, alone");
	good(snap_remove(&tree, &pool, &s, &e), &e, "removed");
	ok(!there(s.id) && !there("name/root/rl"), "all of it");
}

/* Whoever made one and died leaves nothing for long. */
static void test_killed(void)
{
	struct snap s = SNAP_INIT;
	char old[BOX_ID_LEN + 1];
	struct err e = {0};
	unsigned removed;
	pid_t pid = fork();

	if (pid == 0) {
		if (snap_new(&tree, &s, NULL) < 0)
			_exit(1);
		_exit(mkdirat(s.dir, "ckpt.new", 0700) < 0);
	}
	waitpid(pid, NULL, 0);
	ok(snap_sweep(&tree, &pool, &removed, &e) == 0 && removed == 1,
	   "one of a maker who died");
	/* Killed between the file of the name and the link. */
	good(snap_new(&tree, &s, &e), &e, "another");
	if (complete(&s, HEX) < 0)
		return;
	good(fd_replace(s.dir, "name", "root/half", 9, 0, &e), &e,
	     "half a name");
	snap_close(&s);
	ok(snap_sweep(&tree, &pool, &removed, &e) == 0 && removed == 1,
	   "is none");
	/* Killed in the middle of a removal. */
	good(snap_new(&tree, &s, &e), &e, "a third");
	if (complete(&s, HEX) < 0)
		return;
	good(snap_keep(&tree, &s, "root", "x", false, old, &e), &e, "named");
	ok(unlinkat(s.dir, "ckpt/manifest.json", 0) == 0, "half removed");
	snap_close(&s);
	refused(snap_open(&tree, "root", "x", SNAP_USE, &s, &e), &e,
		"snapshot_unknown", "it is none any more");
	good(snap_open(&tree, "root", "x", SNAP_ALONE, &s, &e), &e,
	     "but can be removed");
	good(snap_remove(&tree, &pool, &s, &e), &e, "removed");
}

static void test_inherit(void)
{
	auto_json json_t *source = NULL, *over = NULL, *spec = NULL;
	struct err e = {0};

	source = json_pack("{s:s, s:s, s:i, s:s, s:i, s:{s:s}, s:s, s:[s]}",
			   "sandbox", "x", "name", "a", "uid_base", 1, "task",
			   "t", "memory_limit_mb", 128, "labels", "k", "v",
			   "hostname", "h", "command", "true");
	over = json_pack("{s:i, s:s, s:{s:s}, s:i}", "id", 1, "name", "b",
			 "labels", "l", "w", "ttl_absolute", 60);
	good(inherit_spec(source, over, &spec, &e), &e, "a spec");
	is_str(json_str(spec, "name"), "b", "a name of its own");
	is_str(json_str(spec, "task"), "t", "the same task");
	ok(json_object_size(json_object_get(spec, "labels")) == 2,
	   "both labels");
	ok(!json_object_get(spec, "uid_base") &&
		   !json_object_get(spec, "sandbox") &&
		   !json_object_get(spec, "command"),
	   "nothing of the source's own");
	ok(json_int(spec, "ttl_absolute", 0) == 60 &&
		   json_int(spec, "memory_limit_mb", 0) == 128,
	   "limits");
	json_object_set_new(over, "memory_limit_mb", json_integer(64));
	refused(inherit_check(over, &e), &e, "bad_value",
		"another memory limit");
}

int main(void)
{
	char path[PATH_MAX];
	struct err e = {0};

	if (geteuid() != 0) {
		skip("snapshots", "needs root");
		return tap_done();
	}
	if (!mkdtemp(base))
		return 1;
	tree = (struct tree){base, base, "dsec-unit-snap", base};
	good(tree_make(&tree, &e), &e, "a tree");
	good(pool_open(base, &pool, &e), &e, "a pool");
	test_names();
	test_life();
	test_replace();
	test_killed();
	test_inherit();
	pool_close(&pool);
	snprintf(path, sizeof(path), "%s", base);
	fd_remove_tree(AT_FDCWD, path, NULL);
	return tap_done();
}
