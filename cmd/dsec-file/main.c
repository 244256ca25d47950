/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "ops.h"
#include "wire/exit.h"
#include "wire/record.h"

#define BEAT_S 5

struct arg_row {
	const char *key;
	enum arg arg;
	enum { PATH, INT, OCTAL, FLAG } type;
	size_t offset; /* in struct call */
};

#define AT(member) offsetof(struct call, member)
static const struct arg_row arg_rows[] = {
	{"path", ARG_PATH, PATH, AT(path)},
	{"to", ARG_TO, PATH, AT(to)},
	{"name", ARG_NAME, PATH, AT(name)},
	{"offset", ARG_OFFSET, INT, AT(offset)},
	{"limit", ARG_LIMIT, INT, AT(limit)},
	{"size", ARG_SIZE, INT, AT(size)},
	{"depth", ARG_DEPTH, INT, AT(depth)},
	{"timeout_ms", ARG_TIMEOUT, INT, AT(timeout_ms)},
	{"mode", ARG_MODE, OCTAL, AT(mode)},
	{"parents", ARG_PARENTS, FLAG, AT(parents)},
	{"recursive", ARG_RECURSIVE, FLAG, AT(recursive)},
	{"sync", ARG_SYNC, FLAG, AT(sync)},
	{"owner", ARG_OWNER, FLAG, AT(owner)},
	{"follow", ARG_FOLLOW, FLAG, AT(follow)},
	{"tag", ARG_TAG, PATH, AT(tag)},
};

struct op {
	const char *name, *help;
	op_fn *fn;
	unsigned need, may;
};

static const struct op ops[] = {
	{"read", "path, offset, limit: data on stdout", op_read, ARG_PATH,
	 ARG_OFFSET | ARG_LIMIT},
	{"write", "path, size, mode, parents, sync: data on stdin", op_write,
	 ARG_PATH | ARG_SIZE, ARG_MODE | ARG_PARENTS | ARG_SYNC},
	{"list", "path, depth, limit: lines on stdout", op_list, ARG_PATH,
	 ARG_DEPTH | ARG_LIMIT},
	{"stat", "path, follow", op_stat, ARG_PATH, ARG_FOLLOW},
	{"mkdir", "path, mode, parents", op_mkdir, ARG_PATH,
	 ARG_MODE | ARG_PARENTS},
	{"move", "path, to", op_move, ARG_PATH | ARG_TO, 0},
	{"remove", "path, recursive", op_remove, ARG_PATH, ARG_RECURSIVE},
	{"watch",
	 "path, recursive, timeout_ms: events on stdout, until stdin ends",
	 op_watch, ARG_PATH, ARG_RECURSIVE | ARG_TIMEOUT},
	{"tar-out", "path, name: a tar stream on stdout", op_tar_out, ARG_PATH,
	 ARG_NAME},
	{"tar-in", "path, name, parents, owner: a tar stream on stdin",
	 op_tar_in, ARG_PATH, ARG_NAME | ARG_PARENTS | ARG_OWNER},
};

static int bad_arg(const char *arg, const char *why, struct err *e)
{
	return err_set(e, -EINVAL, "usage", "argument '%.100s': %s", arg, why);
}

static int set_int(struct call *c, const struct arg_row *row, const char *v,
		   struct err *e)
{
	unsigned long long n;
	char *end;

	errno = 0;
	n = strtoull(v, &end, row->type == OCTAL ? 8 : 10);
	if (*v < '0' || *v > '9' || *end || errno || n > INT64_MAX)
		return bad_arg(v, "not a number", e);
	if (row->type != OCTAL)
		*(int64_t *)((char *)c + row->offset) = (int64_t)n;
	else if (n <= 07777)
		*(mode_t *)((char *)c + row->offset) = (mode_t)n;
	else
		return bad_arg(v, "not a mode", e);
	return 0;
}

static int set_path(struct call *c, const struct arg_row *row, const char *v,
		    struct err *e)
{
	char **p = (char **)((char *)c + row->offset);

	if (!*v)
		return err_set(e, -ENOENT, "not_found", "an empty path");
	if (strlen(v) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "path");
	*p = strdup(v);
	return *p ? 0 : err_sys(e, ENOMEM, "path");
}

/* Names that are not UTF-8 cannot come in a record as they are. */
static int set_path_b64(struct call *c, const struct arg_row *row,
			const char *v, struct err *e)
{
	auto_json json_t *obj = NULL;
	auto_free char *path = NULL;
	size_t len = 0;
	int r;

	r = json_pack_or(&obj, e, "{s:s}", "path_b64", v);
	if (r == 0)
		r = json_get_bytes(obj, "path", &path, &len, e);
	if (r < 0)
		return r;
	assert(path);
	if (strlen(path) != len)
		return bad_arg(v, "a NUL in a path", e);
	return set_path(c, row, path, e);
}

static int set(struct call *c, const struct arg_row *row, const char *v,
	       bool b64, struct err *e)
{
	if (c->given & row->arg)
		return bad_arg(row->key, "given twice", e);
	c->given |= row->arg;
	switch (row->type) {
	case PATH:
		return b64 ? set_path_b64(c, row, v, e)
			   : set_path(c, row, v, e);
	case FLAG:
		if (strcmp(v, "0") && strcmp(v, "1"))
			return bad_arg(v, "not 0 or 1", e);
		*(bool *)((char *)c + row->offset) = *v == '1';
		return 0;
	default:
		return set_int(c, row, v, e);
	}
}

static int parse_arg(struct call *c, const char *arg, struct err *e)
{
	const char *eq = strchr(arg, '=');
	size_t n = eq ? (size_t)(eq - arg) : 0;

	for (size_t i = 0; eq && i < array_len(arg_rows); i++) {
		const struct arg_row *row = &arg_rows[i];
		size_t len = strlen(row->key);

		if (strncmp(arg, row->key, len))
			continue;
		if (n == len)
			return set(c, row, eq + 1, false, e);
		if (row->type == PATH && n == len + 4 &&
		    !strncmp(arg + len, "_b64", 4))
			return set(c, row, eq + 1, true, e);
	}
	return bad_arg(arg, "unknown", e);
}

static int run(int argc, char **argv, struct call *c, struct err *e)
{
	const struct op *op = NULL;
	int r;

	for (size_t i = 0; argc > 1 && i < array_len(ops); i++)
		if (!strcmp(argv[1], ops[i].name))
			op = &ops[i];
	if (!op)
		return err_set(e, -EINVAL, "usage",
			       "dsec-file OPERATION KEY=VALUE...");
	for (int i = 2; i < argc; i++) {
		r = parse_arg(c, argv[i], e);
		if (r < 0)
			return r;
	}
	if ((c->given & op->need) != op->need ||
	    (c->given & ~(op->need | op->may | ARG_TAG)))
		return err_set(e, -EINVAL, "usage",
			       "%s: an argument is missing or not its own",
			       op->name);
	return op->fn(c, e);
}

/* A sign of life, so that a reader can tell slow from stopped. */
static void beat(int sig)
{
	int was = errno;

	(void)sig;
	(void)!write(STDERR_FILENO, "\n", 1);
	errno = was;
}

static void start_beating(void)
{
	struct sigaction sa = {.sa_handler = beat, .sa_flags = SA_RESTART};
	struct itimerval it = {{BEAT_S, 0}, {BEAT_S, 0}};

	sigaction(SIGALRM, &sa, NULL);
	setitimer(ITIMER_REAL, &it, NULL);
}

static void stop_beating(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

static int answer(const struct call *c, int r, const struct err *why)
{
	auto_json json_t *rec = NULL;
	struct err e = {0};

	stop_beating();
	rec = r < 0 ? record_error(NULL, why) : record_ok(NULL);
	if (!rec || json_object_update(rec, c->res) < 0)
		return EXIT_SYSTEM;
	if (record_write(STDERR_FILENO, rec, &e) < 0)
		return EXIT_STDOUT_LOST;
	return r < 0 ? exit_helper(why) : EXIT_OK;
}

static int help(void)
{
	auto_buf struct buf text = {0};
	int r = buf_addf(&text, "usage: dsec-file OPERATION KEY=VALUE...\n");

	for (size_t i = 0; i < array_len(ops) && r == 0; i++)
		r = buf_addf(&text, "  %-8s %s\n", ops[i].name, ops[i].help);
	if (r < 0)
		return EXIT_SYSTEM;
	r = fd_write_all(STDOUT_FILENO, text.data, text.len, NULL);
	return r < 0 ? EXIT_STDOUT_LOST : EXIT_OK;
}

int main(int argc, char **argv)
{
	struct call c = {.res = json_object()};
	struct err e = {0};
	int r;

	/* Whoever has the same user inside must not read or steer us. */
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	if (argc == 2 &&
	    (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))) {
		return help();
	}
	signal(SIGPIPE, SIG_IGN);
	/* Who ends us closes our input first: enough to stop and clean up. */
	signal(SIGTERM, SIG_IGN);
	umask(0);
	start_beating();
	r = c.res ? run(argc, argv, &c, &e) : err_sys(&e, ENOMEM, "start");
	r = answer(&c, r, &e);
	json_decref(c.res);
	free(c.path);
	free(c.to);
	free(c.name);
	free(c.tag);
	return r;
}
