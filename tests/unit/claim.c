/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "box/claim.h"
#include "box/ledger_priv.h"

static char base[] = "/tmp/dsec-claim.XXXXXX";
static struct tree tree;

static bool good(int r, const struct err *e, const char *what)
{
	if (r < 0)
		printf("# %s: %s (%s)\n", what, e->msg, e->code);
	return ok(r >= 0, "%s", what);
}

static void configure(const char *text)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/node.json", tree.config);
	unlink(path);
	if (!text)
		return;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || fd_write_all(fd, text, strlen(text), NULL) < 0)
		ok(false, "write node.json");
	if (fd >= 0)
		fd_close(fd);
}

static bool there(const char *fmt, ...)
{
	char path[PATH_MAX];
	struct stat st;
	va_list ap;
	int n;

	n = snprintf(path, sizeof(path), "%s/", tree.run);
	va_start(ap, fmt);
	vsnprintf(path + n, sizeof(path) - (size_t)n, fmt, ap);
	va_end(ap);
	return lstat(path, &st) == 0;
}

/* How many entries there are in a directory of the run tree. */
static int count(const char *sub)
{
	auto_dir DIR *d = NULL;
	char path[PATH_MAX];
	int n = 0;

	snprintf(path, sizeof(path), "%s/%s", tree.run, sub);
	d = opendir(path);
	if (!d)
		return -1;
	while (readdir(d))
		n++;
	return n - 2;
}

static int bury_calls;

static int bury(const struct tree *t, const char *id, const json_t *claim,
		void *arg, struct err *e)
{
	(void)t;
	(void)arg;
	bury_calls++;
	if (claim && strcmp(json_str(claim, "sandbox"), id))
		return err_set(e, -EINVAL, "internal", "not its claim");
	return 0;
}

static int take(char *id, const char *name, const char *task, int memory,
		struct claim *claim, struct err *e)
{
	auto_json json_t *spec = NULL;
	struct claim_want want = {.id = id, .kind = "one-shot", .bury = bury};
	int r;

	r = json_pack_or(&spec, e, "{s:s*, s:s*, s:i, s:f, s:i, s:s}", "name",
			 name, "task", task, "memory_limit_mb", memory,
			 "cpu_cores_limit", 0.5, "pids_limit", 64, "image",
			 "host");
	if (r == 0)
		r = tree_new_id(&tree, id, e);
	if (r < 0)
		return r;
	want.spec = spec;
	return claim_take(&tree, &want, claim, e);
}

static void held(uint64_t sandboxes, uint64_t memory, const char *what)
{
	struct admit_node n;
	struct err e;

	if (claim_node(&tree, &n, &e) < 0) {
		ok(false, "%s: %s", what, e.msg);
		return;
	}
	is_int((long long)n.held.sandboxes, (long long)sandboxes, what);
	is_int((long long)n.held.memory_mb, (long long)memory, "... memory");
	is_int((long long)n.held.cpu_milli, (long long)sandboxes * 500,
	       "... cpu");
}

static void test_one(void)
{
	char id[BOX_ID_LEN + 1], other[BOX_ID_LEN + 1];
	auto_json json_t *json = NULL;
	struct claim c = {.fd = -1}, d = {.fd = -1};
	char path[PATH_MAX];
	struct err e = {0};
	int fd;

	good(take(id, "ann", "job-1", 100, &c, &e), &e, "taken");
	held(1, 100, "one is held");
	ok(there("sb/%s/claim.json", id), "the claim is there");
	ok(there("uid/%u", c.slot) && there("name/ann") &&
		   there("task/job-1/%s", id),
	   "its links are there");
	is_int(c.uid_base, (long long)c.slot * CLAIM_UID_RANGE, "uids of it");
	ok(fcntl(c.fd, F_GETFD) & FD_CLOEXEC, "close-on-exec");
	snprintf(path, sizeof(path), "%s/sb/%s/claim.json", tree.run, id);
	good(json_read_file(AT_FDCWD, path, &json, &e), &e, "it reads");
	is_str(json_str(json, "sandbox"), id, "the id is in it");
	is_str(json_str(json, "task"), "job-1", "the task is in it");
	is_int(json_int(json, "slot", 0), c.slot, "the slot is in it");
	fd = open(path, O_RDONLY | O_CLOEXEC);
	is_int(flock(fd, LOCK_EX | LOCK_NB), -1, "it is locked");
	fd_close(fd);
	is_int(take(other, "ann", NULL, 1, &d, &e), -EEXIST, "a name is one's");
	is_str(e.code, "name_taken", "... with its code");
	held(1, 100, "nothing is held of what was refused");
	ok(count("sb") == 1 && count("uid") == 1, "nothing is left of it");
	good(take(other, "bob", "job-1", 50, &d, &e), &e, "a second one");
	ok(d.slot != c.slot, "with other uids");
	held(2, 150, "both are held");
	good(claim_release(&tree, id, &c.fd, &e), &e, "the first released");
	is_int(c.fd, -1, "its lock is closed");
	ok(!there("sb/%s", id) && !there("name/ann") && there("task/job-1"),
	   "what was its own is gone");
	good(claim_release(&tree, id, NULL, &e), &e, "releasing it again");
	held(1, 50, "the second is held");
	snprintf(path, sizeof(path), "%s/sb/%s/ctl.sock", tree.run, other);
	mkdir(path, 0700);
	good(claim_release(&tree, other, &d.fd, &e), &e, "the second released");
	ok(count("sb") == 0 && count("uid") == 0 && count("name") == 0 &&
		   count("task") == 0,
	   "nothing is left");
	held(0, 0, "nothing is held");
}

static void test_refuse(void)
{
	char id[BOX_ID_LEN + 1];
	struct claim c = {.fd = -1}, d = {.fd = -1};
	char path[PATH_MAX];
	struct err e = {0};

	configure("{\"memory_mb\":200,\"max_sandboxes\":3,"
		  "\"single_tenant\":true}");
	good(take(id, NULL, NULL, 150, &c, &e), &e, "most of the memory");
	is_int(take(id, NULL, NULL, 51, &d, &e), -EAGAIN, "no more than all");
	is_str(e.code, "memory", "... with its code");
	ok(e.retry_after_ms > 0, "... and a time");
	configure("{\"max_sandboxes\":1}");
	is_int(take(id, NULL, NULL, 1, &d, &e), -EAGAIN,
	       "node.json counts at once");
	is_str(e.code, "count", "... with its code");
	configure("{\"uid_ranges\":1,\"uid_first\":1310720}");
	good(claim_sweep(&tree, bury, NULL, NULL, &e), &e, "sweep");
	configure("{\"memory\":200}");
	is_int(take(id, NULL, NULL, 1, &d, &e), -EBADMSG, "an unknown key");
	is_str(e.code, "configuration", "... is the configuration's fault");
	printf("# %s\n", e.msg);
	configure("{\"uid_first\":1310721}");
	is_int(take(id, NULL, NULL, 1, &d, &e), -EINVAL, "crooked uids");
	configure(NULL);
	snprintf(path, sizeof(path), "%s/draining", tree.run);
	fd_close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	is_int(take(id, NULL, NULL, 1, &d, &e), -EAGAIN, "draining");
	is_str(e.code, "draining", "... with its code");
	unlink(path);
	snprintf(path, sizeof(path), "%s", id);
	fd_close(c.fd);
	good(claim_sweep(&tree, bury, NULL, NULL, &e), &e, "swept");
	held(0, 0, "nothing is held");
}

/* The dead hold on until somebody needs what they hold. */
static void test_dead(void)
{
	char id[BOX_ID_LEN + 1], other[BOX_ID_LEN + 1];
	struct claim c = {.fd = -1}, d = {.fd = -1};
	struct err e = {0};
	unsigned n = 0;

	configure("{\"memory_mb\":200}");
	good(take(id, "ann", NULL, 150, &c, &e), &e, "taken");
	fd_close(c.fd);
	held(1, 150, "dead, it still counts");
	poll(NULL, 0, 250); /* sweeps are not made more often than this */
	bury_calls = 0;
	good(take(other, NULL, NULL, 150, &d, &e), &e, "room is made");
	is_int(bury_calls, 1, "by burying it");
	ok(!there("sb/%s", id) && !there("name/ann"), "it is gone");
	held(1, 150, "the new one is held");
	fd_close(d.fd);
	good(claim_sweep(&tree, bury, NULL, &n, &e), &e, "swept");
	is_int(n, 1, "one was dead");
	good(take(id, "ann", NULL, 10, &c, &e), &e, "a name");
	fd_close(c.fd);
	good(take(other, "ann", NULL, 10, &d, &e), &e,
	     "a dead one's name is free");
	held(1, 10, "one is held");
	good(claim_release(&tree, other, &d.fd, &e), &e, "released");
	configure(NULL);
}

static int resize(const char *id, enum claim_size size, int memory, int fd,
		  struct err *e)
{
	auto_json json_t *spec = NULL;
	struct claim_want want = {.id = id, .size = size, .bury = bury};
	int r;

	r = json_pack_or(&spec, e, "{s:i, s:f, s:i}", "memory_limit_mb", memory,
			 "cpu_cores_limit", 0.5, "pids_limit", 64);
	if (r < 0)
		return r;
	want.spec = spec;
	return claim_resize(&tree, &want, fd, e);
}

static bool is_locked(const char *id)
{
	char path[PATH_MAX];
	bool locked;
	int fd;

	snprintf(path, sizeof(path), "%s/sb/%s/claim.json", tree.run, id);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0;
	if (fd >= 0)
		fd_close(fd);
	return locked;
}

/* What sleeps on disk holds no memory, and asks again when it wakes. */
static void test_resize(void)
{
	char id[BOX_ID_LEN + 1], other[BOX_ID_LEN + 1];
	struct claim c = {.fd = -1}, d = {.fd = -1};
	struct admit_node n;
	struct err e = {0};
	int fd;

	configure("{\"memory_mb\":200}");
	good(take(id, "ann", "job-1", 150, &c, &e), &e, "taken");
	fd = c.fd;
	good(resize(id, CLAIM_DISK_ONLY, 150, c.fd, &e), &e, "made small");
	ok(claim_node(&tree, &n, &e) == 0 && n.held.memory_mb == 0 &&
		   n.held.cpu_milli == 0 && n.held.pids == 0,
	   "it holds no memory, CPU or processes");
	is_int((long long)n.held.sandboxes, 1, "but counts");
	is_int(c.fd, fd, "the descriptor is the same");
	ok(fcntl(fd, F_GETFD) == FD_CLOEXEC, "and close-on-exec still");
	ok(is_locked(id), "it is alive");
	ok(there("name/ann") && there("task/job-1/%s", id), "its links stay");
	good(take(other, NULL, NULL, 100, &d, &e), &e, "another fits");
	is_int(resize(id, CLAIM_FULL, 150, c.fd, &e), -EAGAIN, "no way back");
	is_str(e.code, "memory", "... with admission's code");
	ok(is_locked(id), "it is alive as it was");
	ok(claim_node(&tree, &n, &e) == 0 && n.held.memory_mb == 100 &&
		   n.held.cpu_milli == 500,
	   "nothing has changed");
	good(claim_release(&tree, other, &d.fd, &e), &e, "the other goes");
	good(resize(id, CLAIM_FULL, 150, c.fd, &e), &e, "there is room");
	held(1, 150, "all is held again");
	good(resize(id, CLAIM_FULL, 150, c.fd, &e), &e, "once more");
	held(1, 150, "is no more");
	good(resize(id, CLAIM_DISK_ONLY, 150, c.fd, &e), &e, "small");
	good(take(other, NULL, NULL, 150, &d, &e), &e, "another");
	fd_close(d.fd);
	poll(NULL, 0, 250);
	good(resize(id, CLAIM_FULL, 150, c.fd, &e), &e, "the dead make room");
	is_int(resize(other, CLAIM_FULL, 1, c.fd, &e), -ENOENT,
	       "none of a claim that is not there");
	is_int(resize(id, CLAIM_DISK_ONLY, 1, 9999, &e), -EBADF,
	       "nor without its lock");
	good(claim_release(&tree, id, &c.fd, &e), &e, "released");
	held(0, 0, "nothing is held");
	configure(NULL);
}

/* One that nobody can read holds up nobody else. */
static void test_odd(void)
{
	auto_json json_t *spec = NULL;
	auto_free char *big = malloc(JSON_LINE_MAX);
	char id[BOX_ID_LEN + 1];
	struct claim_want want = {.id = id, .kind = "x", .bury = bury};
	struct claim c = {.fd = -1}, d = {.fd = -1};
	char path[PATH_MAX];
	struct err e = {0};

	memset(big, 'a', JSON_LINE_MAX - 1);
	big[JSON_LINE_MAX - 1] = '\0';
	spec = json_pack("{s:i, s:{s:s}}", "memory_limit_mb", 10, "labels", "k",
			 big);
	good(tree_new_id(&tree, id, &e), &e, "an id");
	want.spec = spec;
	is_int(claim_take(&tree, &want, &c, &e), -EMSGSIZE, "too much to say");
	is_str(e.code, "too_large", "... has its code");
	ok(count("sb") == 0 && count("uid") == 0, "nothing is left of it");
	good(take(id, NULL, NULL, 10, &c, &e), &e, "taken");
	snprintf(path, sizeof(path), "%s/sb/%s/claim.json", tree.run, id);
	is_int(truncate(path, 20), 0, "torn");
	snprintf(path, sizeof(path), "%s/ledger", tree.run);
	unlink(path);
	good(take(id, NULL, NULL, 10, &d, &e), &e, "another goes on");
	good(claim_release(&tree, id, &d.fd, &e), &e, "and ends");
	fd_close(c.fd);
	good(claim_sweep(&tree, bury, NULL, NULL, &e), &e, "swept");
	held(0, 0, "nothing is held");
	ok(count("sb") == 0 && count("uid") == 0, "nothing is left");
}

static void spoil(const void *data, size_t len, off_t at)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/ledger", tree.run);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || pwrite(fd, data, len, at) != (ssize_t)len)
		ok(false, "spoil the ledger");
	if (fd >= 0)
		fd_close(fd);
}

static void test_ledger(void)
{
	const uint32_t one = 1;
	char id[BOX_ID_LEN + 1];
	struct claim c = {.fd = -1};
	char path[PATH_MAX], target[PATH_MAX];
	struct err e = {0};

	good(take(id, NULL, "t", 70, &c, &e), &e, "taken");
	snprintf(path, sizeof(path), "%s/ledger", tree.run);
	unlink(path);
	held(1, 70, "the ledger was lost");
	is_int(truncate(path, 100), 0, "cut");
	held(1, 70, "the ledger was cut");
	spoil("xxxx", 4, 60);
	held(1, 70, "the ledger was spoiled");
	/* What a SIGKILL in the middle of claim_take() leaves. */
	snprintf(path, sizeof(path), "%s/sb/abcdabcdabcdabcdabcd", tree.run);
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s/uid/7", tree.run);
	snprintf(target, sizeof(target), "abcdabcdabcdabcdabcd");
	is_int(symlink(target, path), 0, "a stray link");
	spoil(&one, sizeof(one), offsetof(struct ledger_data, marked));
	held(1, 70, "a change was cut short");
	ok(count("sb") == 1 && count("uid") == 1, "its leavings are gone");
	good(claim_release(&tree, id, &c.fd, &e), &e, "released");
	held(0, 0, "nothing is held");
}

#define STORM  8
#define ROUNDS 200

/* Claim, hold some, release; names and tasks are fought over. */
static int storm(unsigned seed)
{
	struct claim c[3] = {{.fd = -1}, {.fd = -1}, {.fd = -1}};
	char id[3][BOX_ID_LEN + 1], name[16], task[16];
	struct err e = {0};
	int r;

	for (int i = 0; i < ROUNDS; i++) {
		int k = rand_r(&seed) % 3;

		if (c[k].fd >= 0 && rand_r(&seed) % 3 == 0) {
			r = resize(id[k],
				   rand_r(&seed) % 2 ? CLAIM_DISK_ONLY
						     : CLAIM_FULL,
				   10, c[k].fd, &e);
		} else if (c[k].fd >= 0) {
			r = claim_release(&tree, id[k], &c[k].fd, &e);
		} else {
			snprintf(name, sizeof(name), "n%d", rand_r(&seed) % 40);
			snprintf(task, sizeof(task), "t%d", rand_r(&seed) % 3);
			r = take(id[k], rand_r(&seed) % 2 ? name : NULL,
				 rand_r(&seed) % 2 ? task : NULL, 10, &c[k],
				 &e);
			if (r == -EEXIST)
				r = 0;
		}
		if (r < 0) {
			printf("# storm: %s (%s)\n", e.msg, e.code);
			return 1;
		}
	}
	for (int k = 0; k < 3; k++)
		if (c[k].fd >= 0 &&
		    claim_release(&tree, id[k], &c[k].fd, &e) < 0)
			return 1;
	return 0;
}

static pid_t start_storm(unsigned seed)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(storm(seed));
	return pid;
}

static void test_storm(bool kill_them)
{
	unsigned seed = 12345, n = 0;
	pid_t pid[STORM];
	struct err e = {0};
	int status, bad = 0;

	for (int i = 0; i < STORM; i++)
		pid[i] = start_storm((unsigned)i * 77 + 1);
	for (int i = 0; i < STORM; i++) {
		if (kill_them) {
			poll(NULL, 0, rand_r(&seed) % 20);
			kill(pid[i], SIGKILL);
		}
		if (waitpid(pid[i], &status, 0) != pid[i] ||
		    (!kill_them && status != 0))
			bad++;
	}
	is_int(bad, 0, kill_them ? "killed in the middle" : "all went well");
	good(claim_sweep(&tree, bury, NULL, &n, &e), &e, "swept");
	printf("# %u were dead\n", n);
	held(0, 0, "nothing is held");
	ok(count("sb") == 0 && count("uid") == 0 && count("name") == 0 &&
		   count("task") == 0,
	   "nothing is left");
}

int main(void)
{
	char run[64], lib[64], config[64];
	struct err e = {0};
	uint64_t t0;

	if (!mkdtemp(base)) {
		printf("1..0 # SKIP no directory\n");
		return 0;
	}
	snprintf(run, sizeof(run), "%s/run", base);
	snprintf(lib, sizeof(lib), "%s/lib", base);
	snprintf(config, sizeof(config), "%s/etc", base);
	mkdir(config, 0700);
	tree = (struct tree){.run = run,
			     .lib = lib,
			     .config = config,
			     .cgroup = "none"};
	good(tree_make(&tree, &e), &e, "a tree");
	test_one();
	test_refuse();
	test_dead();
	test_resize();
	test_odd();
	test_ledger();
	configure("{\"cpu_cores\":100,\"memory_mb\":100000}");
	t0 = clock_ms();
	test_storm(false);
	printf("# %d changes in %d ms\n", STORM * ROUNDS,
	       (int)(clock_ms() - t0));
	for (int i = 0; i < 5; i++)
		test_storm(true);
	good(fd_remove_tree(AT_FDCWD, base, &e), &e, "cleaned up");
	return tap_done();
}
