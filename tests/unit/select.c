/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tap.h"
#include "box/select.h"

static struct tree tree = {.cgroup = "dsec-none", .config = "/nonexistent"};

static const struct {
	const char *id, *claim;
} claims[] = {
	{"aaaaaaaaaaaaaaaaaaaa",
	 "{\"task\":\"t1\",\"project\":\"root/rl\",\"labels\":{\"k\":\"1\"}}"},
	{"bbbbbbbbbbbbbbbbbbbb", "{\"task\":\"t1\",\"project\":\"root/rl/job\","
				 "\"labels\":{\"k\":\"2\",\"l\":\"x\"}}"},
	{"cccccccccccccccccccc", "{\"project\":\"root/rlx\"}"},
	{"dddddddddddddddddddd", "{torn"},
};

static void make(void)
{
	char path[PATH_MAX];
	struct err e = {0};

	if (tree_make(&tree, &e) < 0)
		exit(1);
	for (size_t i = 0; i < array_len(claims); i++) {
		auto_close int dir = -1;

		snprintf(path, sizeof(path), "%s/sb/%s", tree.run,
			 claims[i].id);
		if (fd_mkdir_p(path, 0700, &e) < 0)
			exit(1);
		dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd_replace(dir, "claim.json", claims[i].claim,
			       strlen(claims[i].claim), 0, &e) < 0)
			exit(1);
	}
	snprintf(path, sizeof(path), "%s/task/t1", tree.run);
	if (mkdir(path, 0700) < 0)
		exit(1);
	for (char c = 'a'; c < 'f'; c += c == 'b' ? 3 : 1) {
		/* "e" is a link whose sandbox is gone. */
		char id[BOX_ID_LEN + 1] = "";

		memset(id, c, BOX_ID_LEN);
		snprintf(path, sizeof(path), "%s/task/t1/%s", tree.run, id);
		if (symlink(id, path) < 0)
			exit(1);
	}
}

/* The first letters of those that fit, in order. */
static const char *found(const char *request)
{
	static char letters[16];
	auto_json json_t *req = json_loads(request, 0, NULL);
	auto_select struct select_walk *w = NULL;
	char id[BOX_ID_LEN + 1];
	struct select s;
	struct err e = {0};
	size_t n = 0;
	int r;

	select_from(&s, req);
	if (select_open(&tree, &s, &w, &e) < 0)
		return e.code;
	for (;;) {
		auto_json json_t *claim = NULL;

		r = select_next(w, id, &claim, &e);
		if (r <= 0 || n == sizeof(letters) - 1)
			break;
		letters[n++] = id[0];
	}
	for (size_t i = 1; i < n; i++)
		for (size_t k = i; k > 0 && letters[k] < letters[k - 1]; k--) {
			char c = letters[k];

			letters[k] = letters[k - 1];
			letters[k - 1] = c;
		}
	letters[n] = '\0';
	return letters;
}

static const struct {
	const char *request, *want;
} cases[] = {
	{"{}", "abcd"},
	{"{\"task\":\"t1\"}", "ab"},
	{"{\"task\":\"t2\"}", ""},
	{"{\"task\":\"..\"}", "bad_value"},
	{"{\"task\":\"t1/x\"}", "bad_value"},
	{"{\"project\":\"root\"}", "abc"},
	{"{\"project\":\"root/rl\"}", "ab"},
	{"{\"project\":\"root/rl/job\"}", "b"},
	{"{\"project\":\"roo\"}", ""},
	{"{\"labels\":{\"k\":\"1\"}}", "a"},
	{"{\"labels\":{\"k\":\"2\",\"l\":\"x\"}}", "b"},
	{"{\"labels\":{\"k\":\"2\",\"l\":\"y\"}}", ""},
	{"{\"labels\":{}}", "abcd"},
	{"{\"task\":\"t1\",\"labels\":{\"l\":\"x\"}}", "b"},
};

static void check_life(void)
{
	auto_json json_t *claim = NULL;
	auto_close int fd = -1;
	char path[PATH_MAX];

	is_int(select_life(&tree, "eeeeeeeeeeeeeeeeeeee", NULL), SELECT_GONE,
	       "no claim: gone");
	is_int(select_life(&tree, claims[0].id, &claim), SELECT_LOST,
	       "a claim without a lock: lost");
	is_str(json_str(claim, "task"), "t1", "with its claim");
	snprintf(path, sizeof(path), "%s/sb/%s/claim.json", tree.run,
		 claims[0].id);
	fd = open(path, O_RDWR | O_CLOEXEC);
	is_int(flock(fd, LOCK_EX | LOCK_NB), 0, "the owner locks");
	is_int(select_life(&tree, claims[0].id, NULL), SELECT_LIVE,
	       "a claim with a lock: it lives");
}

int main(void)
{
	char dir[] = "/tmp/dsec-select.XXXXXX", run[64], lib[64];
	struct err e = {0};

	if (!mkdtemp(dir))
		return 1;
	snprintf(run, sizeof(run), "%s/run", dir);
	snprintf(lib, sizeof(lib), "%s/lib", dir);
	tree.run = run;
	tree.lib = lib;
	is_str(found("{}"), "", "no tree: nothing");
	make();
	for (size_t i = 0; i < array_len(cases); i++)
		is_str(found(cases[i].request), cases[i].want,
		       cases[i].request);
	check_life();
	is_int(chdir("/tmp"), 0, "at /tmp");
	is_int(fd_remove_tree(AT_FDCWD, strrchr(dir, '/') + 1, &e), 0,
	       "all is removed");
	return tap_done();
}
