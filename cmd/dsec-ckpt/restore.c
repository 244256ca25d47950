/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/opt.h"
#include "base/proc.h"
#include "base/sig.h"
#include "box/spec.h"
#include "life/create.h"
#include "ckpt/engine.h"
#include "ckpt/restore.h"
#include "ckpt_cmd.h"
#include "wire/exit.h"
#include "wire/record.h"

#define USAGE                                                                  \
	"usage: dsec-ckpt restore --from DIR --state FD [OPTION...] SANDBOX"

extern char **environ;

enum { OPT_FROM, OPT_STATE, OPT_STATUS, OPT_FOLLOW, OPT_RESUME, OPT_HELP };

static const struct opt options[] = {
	[OPT_FROM] = {"from", NULL, 0, "DIR", "the checkpoint"},
	[OPT_STATE] = {"state", NULL, 0, "FD", "what the supervisor knows"},
	[OPT_STATUS] = {"status", NULL, 0, "FD", "where the record goes"},
	[OPT_FOLLOW] = {"follow", NULL, 0, "SANDBOX",
			"the copy gets the policy that this one has then"},
	[OPT_RESUME] = {"resume", NULL, 0, NULL,
			"we were its supervisor, and are if this fails"},
	[OPT_HELP] = {"help", NULL, 'h', NULL, "show this"},
};

struct args {
	const char *id, *from, *follow;
	int state, status;
	bool resume;
};

/* What a restore reads; the order is that of making. */
struct job {
	struct args a;
	json_t *state, *spec;
	struct tree tree;
	struct creator c;
	struct engine engine;
	struct ckpt ck;
	struct restore rs;
};

static int take(void *to, int row, const char *arg, struct err *e)
{
	struct args *a = to;

	switch (row) {
	case OPT_FROM:
		a->from = arg;
		return 0;
	case OPT_STATE:
		return cmd_number(arg, &a->state, e);
	case OPT_STATUS:
		return cmd_number(arg, &a->status, e);
	case OPT_FOLLOW:
		a->follow = arg;
		return 0;
	default:
		a->resume = true;
		return 0;
	}
}

/* 1: help was asked for. */
static int parse(int argc, char **argv, struct args *a, struct err *e)
{
	int r = cmd_parse(argc, argv, OPT_TABLE(options), USAGE, take, a,
			  &a->id, e);

	if (r == 0 && (!a->from || a->from[0] != '/' || a->state < 3 ||
		       (a->follow && !tree_is_id(a->follow))))
		r = err_set(e, -EINVAL, "usage", "%s", USAGE);
	return r;
}

/* First of all: the numbers of its descriptors must be free for it. */
static int read_state(struct job *j, struct err *e)
{
	int *const keep[] = {&j->a.status};
	auto_close int fd = steal_fd(&j->a.state);
	auto_free char *text = NULL;
	size_t len;
	int r;

	r = lseek(fd, 0, SEEK_SET) < 0 ? err_sys(e, errno, "state") : 0;
	if (r == 0)
		r = fd_read_all(fd, STATE_MAX, &text, &len, e);
	if (r < 0)
		return r;
	fd_close(steal_fd(&fd));
	j->state = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
	if (!json_is_object(j->state))
		return err_set(e, -EBADMSG, "internal", "the state is none");
	return restore_reserve(j->state, j->a.resume, keep, j->a.status >= 0,
			       e);
}

static int read_checkpoint(struct job *j, struct err *e)
{
	auto_close int dir = -1;
	int r;

	dir = open(j->a.from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", j->a.from);
	r = ckpt_read(dir, &j->ck, e);
	if (r == 0 && !j->ck.processes)
		r = err_set(e, -EINVAL, "checkpoint_damaged",
			    "it holds no processes");
	if (r == 0)
		r = ckpt_verify(dir, &j->ck, e);
	if (r == 0)
		r = engine_get(&j->tree, &j->engine, e);
	if (r == 0)
		r = ckpt_fits(&j->ck, j->engine.version, e);
	return r;
}

static int restore(struct job *j, json_t **ret_rec, struct err *e)
{
	struct restore *rs = &j->rs;
	int r;

	*rs = (struct restore){
		.tree = &j->tree,
		.id = j->a.id,
		.dir = j->a.from,
		.follow = j->a.follow,
		.ck = &j->ck,
		.image = &j->c.image,
		.profile = &j->c.profile,
		.pool = &j->c.pool,
		.engine = &j->engine,
		.state = j->state,
		.live = j->a.resume,
	};
	r = tree_init(&j->tree, e);
	if (r == 0)
		r = read_checkpoint(j, e);
	if (r == 0)
		r = spec_read(&j->tree, j->a.id, &j->spec, e);
	if (r == 0)
		r = creator_open(&j->tree, &j->c, e);
	if (r == 0)
		r = creator_ready(&j->c, j->spec, e);
	if (r < 0)
		return r;
	rs->spec = j->spec;
	rs->fork = strcmp(j->ck.sandbox, j->a.id) != 0;
	rs->cgroups = j->c.cgroups;
	return restore_run(rs, ret_rec, e);
}

/* Descriptors of the supervisor go with the exec. */
static int pass(const struct job *j, struct err *e)
{
	const char *key;
	json_t *v;
	int fd;

	json_object_foreach(json_object_get(j->state, "fds"), key, v) {
		fd = (int)strtol(key, NULL, 10);
		if (fcntl(fd, F_SETFD, 0) < 0)
			return err_sys(e, errno, "descriptor %d", fd);
	}
	for (fd = 3; fd < 7; fd++)
		if (fcntl(fd, F_SETFD, 0) < 0)
			return err_sys(e, errno, "descriptor %d", fd);
	return 0;
}

/* Returns only where it cannot be executed. */
static int become_box(const struct job *j, struct err *e)
{
	char path[PATH_MAX], number[16];
	const char *const argv[] = {"dsec-box", "--state", number, j->a.id,
				    NULL};
	int fd, r;

	r = proc_libexec("dsec-box", path, sizeof(path), e);
	if (r < 0)
		return r;
	fd = json_memfd(e);
	r = fd < 0 ? fd : json_to_memfd(fd, j->state, e);
	if (r < 0)
		return r;
	fcntl(fd, F_SETFD, 0);
	snprintf(number, sizeof(number), "%d", fd);
	if (!j->a.resume) /* or what came meanwhile is lost, and we with it */
		sig_reset();
	execve(path, (char *const *)(uintptr_t)argv, environ);
	return err_sys(e, errno, "execute '%s'", path);
}

/* The record, to whoever started us: nobody of a sandbox that resumes. */
static int tell(const struct job *j, const json_t *rec, struct err *e)
{
	return j->a.status < 0 ? 0 : record_write(j->a.status, rec, e);
}

static int succeed(struct job *j, json_t *rec, struct err *e)
{
	int r;

	r = json_object_set_new(j->state, "restored", json_incref(rec)) < 0
		    ? err_sys(e, ENOMEM, "state")
		    : pass(j, e);
	if (r == 0 && json_object_set_new(rec, "ok", json_true()) < 0)
		r = err_sys(e, ENOMEM, "record");
	if (r == 0)
		r = tell(j, rec, e);
	if (r == 0)
		r = become_box(j, e);
	/* Nobody would look after it; nor may it live and be on the disk. */
	restore_undo(&j->rs);
	json_object_del(j->state, "restored");
	return r;
}

/* It is still on the disk, and waits for the next who asks. */
static int go_back(struct job *j, const struct err *why, struct err *e)
{
	auto_json json_t *rec = record_error(NULL, why);
	int r;

	if (!rec || json_object_set(j->state, "resume_error",
				    json_object_get(rec, "error")) < 0)
		return err_sys(e, ENOMEM, "state");
	r = pass(j, e);
	return r < 0 ? r : become_box(j, e);
}

static int fail(struct job *j, struct err *e)
{
	auto_json json_t *rec = NULL;
	struct err lost;

	if (j->a.resume && j->state && go_back(j, e, &lost) < 0)
		log_err(&lost);
	if (j->a.status < 0)
		return cmd_fail(e);
	rec = record_error(NULL, e);
	if (!rec || tell(j, rec, &lost) < 0)
		log_err(e);
	return exit_of(e);
}

int cmd_restore(int argc, char **argv)
{
	static struct job j = {.a = {.state = -1, .status = -1}};
	auto_json json_t *rec = NULL;
	struct err e = {0};
	int r;

	r = parse(argc, argv, &j.a, &e);
	if (r == 1)
		return EXIT_OK;
	if (r < 0)
		return cmd_fail(&e);
	if (j.a.status >= 0)
		fcntl(j.a.status, F_SETFD, FD_CLOEXEC);
	r = read_state(&j, &e);
	if (r == 0)
		r = restore(&j, &rec, &e);
	if (r == 0)
		r = succeed(&j, rec, &e);
	return fail(&j, &e);
}
