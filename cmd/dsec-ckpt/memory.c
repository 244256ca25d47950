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

static const char usage[] =
	"dsec-ckpt reclaim|prefetch|pss [--timeout-ms N] ID";

static int take(void *to, int row, const char *text, struct err *e)
{
	struct memory_job *job = to;
	int ms, r;

	(void)row; /* there is but one */
	r = cmd_number(text, &ms, e);
	if (r < 0)
		return r;
	if (ms < 1 || ms > TIMEOUT_MAX_MS)
		return err_set(e, -EINVAL, "usage",
			       "--timeout-ms %d: from 1 to %d", ms,
			       TIMEOUT_MAX_MS);
	job->opts.timeout_ms = (unsigned)ms;
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

	r = cmd_parse(argc, argv, OPT_TABLE(opts), usage, take, &job, &job.id,
		      &e);
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
