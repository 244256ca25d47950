/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/opt.h"
#include "base/sig.h"
#include "ckpt_cmd.h"
#include "memory.h"
#include "wire/exit.h"
#include "wire/record.h"

#define TIMEOUT_MAX_MS (60 * 60 * 1000)

static const struct opt opts[] = {
	{"timeout-ms", NULL, 0, "N", "give up after so long (60000)"},
	{"help", NULL, 'h', NULL, "print this"},
};
enum { OPT_TIMEOUT, OPT_HELP };

static const char usage[] =
	"dsec-ckpt reclaim|prefetch|pss [--timeout-ms N] ID";

static int take_timeout(const char *text, unsigned *ret_ms, struct err *e)
{
	int ms, r;

	r = cmd_number(text, &ms, e);
	if (r < 0)
		return r;
	if (ms < 1 || ms > TIMEOUT_MAX_MS)
		return err_set(e, -EINVAL, "usage",
			       "--timeout-ms %d: from 1 to %d", ms,
			       TIMEOUT_MAX_MS);
	*ret_ms = (unsigned)ms;
	return 0;
}

/* 1: there is nothing more to do. */
static int parse(struct memory_job *job, int argc, char **argv, struct err *e)
{
	struct opt_parser p = {.table = OPT_TABLE(opts),
			       .argc = argc,
			       .argv = argv,
			       .i = 1};
	const char *arg;
	int row, r;

	while ((r = opt_next(&p, &row, &arg, e)) != OPT_END) {
		if (r == OPT_WORD && job->id)
			return err_set(e, -EINVAL, "usage", "%s", usage);
		if (r == OPT_WORD) {
			job->id = arg;
			continue;
		}
		if (r < 0)
			return r;
		if (row == OPT_HELP) {
			opt_help(STDOUT_FILENO, usage, p.table);
			return 1;
		}
		r = take_timeout(arg, &job->opts.timeout_ms, e);
		if (r < 0)
			return r;
	}
	if (!job->id || p.i < argc)
		return err_set(e, -EINVAL, "usage", "%s", usage);
	if (!tree_is_id(job->id))
		return err_set(e, -EINVAL, "usage", "'%s' is no sandbox's id",
			       job->id);
	return 0;
}

static int work(struct memory_job *job, memory_fn *fn, json_t *rec,
		struct err *e)
{
	const int signals[] = {SIGTERM, SIGINT};
	struct tree tree;
	int r;

	r = tree_init(&tree, e);
	if (r < 0)
		return r;
	r = sig_block(signals, array_len(signals), e);
	if (r < 0)
		return r;
	job->opts.stop = r;
	r = cgroup_open(tree.cgroup, &job->cgroups, e);
	if (r == 0)
		r = fn(job, rec, e);
	cgroup_close(job->cgroups);
	fd_close(job->opts.stop);
	return r;
}

int memory_run(int argc, char **argv, memory_fn *fn)
{
	struct memory_job job = {.opts.stop = -1};
	auto_json json_t *rec = NULL;
	struct err e = {0};
	int r;

	r = parse(&job, argc, argv, &e);
	if (r == 1)
		return EXIT_OK;
	if (r == 0)
		r = json_pack_or(&rec, &e, "{s:b, s:s}", "ok", 1, "sandbox",
				 job.id);
	if (r == 0)
		r = work(&job, fn, rec, &e);
	if (r < 0)
		return cmd_fail(&e);
	r = record_write(STDOUT_FILENO, rec, &e);
	if (r == 0)
		return EXIT_OK;
	log_err(&e);
	return exit_of(&e);
}
