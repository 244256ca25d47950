/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/proc.h"
#include "base/sig.h"
#include "box/reapply.h"
#include "box/spec.h"
#include "life/create_priv.h"
#include "life/ctl.h"
#include "ckpt/engine.h"
#include "ckpt/restore.h"
#include "life/teardown.h"
#include "sys/clone.h"
#include "wire/jsonl.h"
#include "wire/record.h"

extern char **environ;

/* A sandbox being made from a snapshot. */
struct copying {
	struct creator *c;
	const json_t *spec;
	json_t *all; /* ${spec} and what is the copy's own: spec.json */
	const struct create_from *from;
	struct create_copied *to;
	struct err *e;
};

/* --- all of it that is not a process ------------------------------------- */

/* Layers by digest, whatever their names stand for today; what is gone from the
 * store makes the snapshot useless here. */
static int use_image_again(struct copying *k)
{
	const struct image_where w = create_where(k->c);
	int r;

	create_drop_image(k->c);
	r = image_again(&w, k->spec, &k->c->image, k->e);
	if (r < 0 && k->e && !strcmp(k->e->code, "image_unknown"))
		k->e->code = "incompatible";
	return r;
}

static int take_claim(struct copying *k)
{
	struct claim_want want = {
		.id = k->to->made.id,
		.spec = k->spec,
		.kind = "supervised",
		.layers = k->c->image.digests,
		.bury = teardown_bury,
		.bury_arg = k->c->cgroups,
	};
	int r;

	r = create_id(k->c, &k->to->made, k->e);
	return r < 0 ? r
		     : claim_take(k->c->tree, &want, &k->to->made.claim, k->e);
}

static int open_home(const struct copying *k, int *ret_fd)
{
	char path[PATH_MAX];
	int r;

	r = tree_path(path, k->e, "%s/sb/%s", k->c->tree->lib, k->to->made.id);
	if (r < 0)
		return r;
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return err_sys(k->e, errno, "make '%s'", path);
	*ret_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return *ret_fd < 0 ? err_sys(k->e, errno, "open '%s'", path) : 0;
}

static int copy_layer(struct copying *k, int home)
{
	uint64_t limit = (uint64_t)json_int(k->spec, "disk_limit_mb", 0) << 20;
	const struct pool_snapshot want = {
		.from = k->from->snap->dir,
		.id = k->to->made.id,
		.home = home,
		.limit_bytes = limit,
		.stop = k->from->stop,
	};
	int r;

	r = pool_snapshot(&k->c->pool, &want, &k->to->layer, k->e);
	return r < 0 ? err_wrap(k->e, r, "copy the layer") : 0;
}

static int copy_own(struct copying *k, int home, const char *name)
{
	auto_close int dir = -1, from = -1, to = -1;
	ssize_t n = 1;

	dir = openat(k->from->snap->dir, "ckpt",
		     O_PATH | O_DIRECTORY | O_CLOEXEC);
	from = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (from < 0)
		return errno == ENOENT
			       ? 0
			       : err_sys(k->e, errno, "open '%s'", name);
	to = openat(home, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	while (to >= 0 && n > 0)
		n = sendfile(to, from, NULL, 1 << 20);
	return to < 0 || n < 0 ? err_sys(k->e, errno, "copy '%s'", name) : 0;
}

static int make_group(struct copying *k)
{
	const struct cgroup_limits lim = reapply_first(k->spec);

	return cgroup_make(k->c->cgroups, k->to->made.id, &lim, k->e);
}

static int put_spec(struct copying *k)
{
	const struct created *m = &k->to->made;
	auto_json json_t *more = NULL;
	int r;

	k->all = json_deep_copy(k->spec);
	r = json_pack_or(&more, k->e,
			 "{s:i, s:s, s:i, s:I, s:I, s:I, s:s, s:s}", "v", 1,
			 "sandbox", m->id, "generation", 1, "created_ms",
			 (json_int_t)clock_wall_ms(), "slot",
			 (json_int_t)m->claim.slot, "uid_base",
			 (json_int_t)m->claim.uid_base, "parent",
			 json_str(k->from->source, "sandbox"), "made_from",
			 k->from->snap->id);
	if (r < 0)
		return r;
	if (!k->all || json_object_update(k->all, more) < 0)
		return err_sys(k->e, ENOMEM, "spec");
	return spec_write(k->c->tree, m->id, k->all, k->e);
}

static bool renamed(const struct copying *k)
{
	return strcmp(json_str(k->spec, "hostname"),
		      json_str(k->from->source, "hostname")) != 0;
}

static int prepare(struct copying *k)
{
	auto_close int home = -1;
	int r;

	r = use_image_again(k);
	if (r == 0)
		r = create_use_profile(k->c, json_str(k->spec, "profile"),
				       k->e);
	if (r == 0)
		r = take_claim(k);
	if (r == 0 && k->c->image.digests)
		r = create_bring_layers(k->c, k->spec, k->e);
	if (r == 0)
		r = open_home(k, &home);
	if (r == 0)
		r = copy_layer(k, home);
	if (r == 0)
		/* What was answered once stays answered: a repeated step runs
		 * nothing.  An address means the name that it meant. */
		r = copy_own(k, home, CKPT_STEPS);
	if (r == 0)
		r = copy_own(k, home, CKPT_NAMES);
	if (r == 0)
		r = make_group(k);
	if (r == 0 && renamed(k))
		r = create_hosts(k->c, k->spec, &k->to->made, k->e);
	return r < 0 ? r : put_spec(k);
}

/* --- the processes ------------------------------------------------------- */

/* It gives up by itself first, and says why. */
#define AWAIT_MS      (ENGINE_TIMEOUT_MAX + 60 * 1000)
#define RESTORE_STACK (64 * 1024)
#define STATUS_MAX    (64 * 1024)
static _Alignas(16) char restore_stack[RESTORE_STACK];

/* Where dsec-ckpt finds what it needs: its page tells. */
enum { FD_CLAIM, FD_LISTEN, FD_REPORT, FD_INIT, FD_STATUS, FD_STATE, FDS };

struct restorer {
	struct copying *k;
	struct cgroup_join join;
	char path[PATH_MAX], dir[PATH_MAX];
	int fds[FDS];
	int r;
};

static int restorer_main(void *arg)
{
	struct restorer *x = arg;
	const char *follow = x->k->from->follow;
	const char *const argv[] = {"dsec-ckpt",
				    "restore",
				    "--from",
				    x->dir,
				    "--status",
				    "7",
				    "--state",
				    "8",
				    x->k->to->made.id,
				    follow ? "--follow" : NULL,
				    follow,
				    NULL};

	x->r = cgroup_leaf_join(&x->join);
	if (x->r < 0) {
		err_sys(x->k->e, -x->r, "join the supervisors' cgroup");
		return 1;
	}
	x->r = create_box_fds(x->fds, FDS, x->k->e);
	if (x->r < 0)
		return 1;
	setsid();
	if (chdir("/") < 0) {
		x->r = err_sys(x->k->e, errno, "chdir /");
		return 1;
	}
	sig_reset();
	execve(x->path, (char *const *)(uintptr_t)argv, environ);
	x->r = err_sys(x->k->e, errno, "execute '%s'", x->path);
	return 1;
}

static pid_t spawn(struct restorer *x)
{
	struct clone_child child = {
		.flags = CLONE_VFORK,
		.exit_signal = SIGCHLD,
		.stack = restore_stack,
		.stack_size = sizeof(restore_stack),
	};
	pid_t pid;
	int r;

	r = cgroup_supervisor_prepare(x->k->c->cgroups, &x->join, x->k->e);
	if (r < 0)
		return r;
	child.into_cgroup = x->join.into;
	pid = clone_child(&child, restorer_main, x);
	cgroup_join_done(&x->join);
	if (pid < 0)
		return err_sys(x->k->e, -pid, "start the restore");
	if (x->r < 0)
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
	return x->r < 0 ? x->r : pid;
}

static int start_restore(struct copying *k, int *ret_status, pid_t *ret_pid)
{
	auto_close int listen = -1, state = -1, status = -1, end = -1;
	struct restorer x = {.k = k};
	int pair[2], r;
	pid_t pid;

	r = proc_libexec("dsec-ckpt", x.path, sizeof(x.path), k->e);
	if (r == 0)
		r = snap_path(k->c->tree, k->from->snap->id, "ckpt", x.dir,
			      k->e);
	if (r < 0)
		return r;
	state = openat(k->from->snap->dir, "ckpt/state.json",
		       O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (state < 0)
		return err_sys(k->e, errno, "open the supervisor's state");
	listen = create_listen(k->c, k->to->made.id, k->e);
	if (listen < 0)
		return listen;
	if (pipe2(pair, O_CLOEXEC) < 0)
		return err_sys(k->e, errno, "pipe for a restore");
	status = pair[0];
	end = pair[1];
	memcpy(x.fds, (int[]){k->to->made.claim.fd, listen, -1, -1, end, state},
	       sizeof(x.fds));
	pid = spawn(&x);
	if (pid < 0)
		return pid;
	*ret_status = steal_fd(&status);
	*ret_pid = pid;
	return 0;
}

/* Until it has said all, we are told to stop, or it takes too long. */
static int await(const struct copying *k, int status)
{
	uint64_t until = clock_ms() + AWAIT_MS, now;
	struct pollfd fds[] = {{status, POLLIN, 0}, {k->from->stop, POLLIN, 0}};

	for (;;) {
		now = clock_ms();
		if (now >= until)
			return err_set(k->e, -ETIMEDOUT, "timeout",
				       "a restore took longer than %d s",
				       AWAIT_MS / 1000);
		if (poll(fds, array_len(fds), (int)(until - now)) < 0 &&
		    errno != EINTR)
			return err_sys(k->e, errno, "wait for a restore");
		if (fds[1].revents)
			return err_set(k->e, -ECANCELED, "cancelled",
				       "the request was cancelled");
		if (fds[0].revents)
			return 0;
	}
}

/* The words of dsec-ckpt, up to the exec that makes it a supervisor.  Where
 * that cannot be, it takes back in a second line what it said in the first. */
static int hear(const struct copying *k, int status, json_t **ret)
{
	auto_free char *text = NULL;
	const char *line;
	size_t len;
	int r;

	r = await(k, status);
	if (r == 0)
		r = fd_read_all(status, STATUS_MAX, &text, &len, k->e);
	if (r < 0)
		return r;
	while (len > 0 && text[len - 1] == '\n')
		len--;
	line = len ? memrchr(text, '\n', len) : NULL;
	line = line ? line + 1 : text;
	return len ? json_parse(line, len - (size_t)(line - text), ret, k->e)
		   : 0;
}

/* It is there when somebody listens. */
static int check_box(const struct copying *k)
{
	struct ctl *ctl = NULL;
	int r = ctl_open(k->c->tree, k->to->made.id, 0, &ctl, k->e);

	ctl_free(ctl);
	if (r == 0)
		return 0;
	err_set(k->e, -ECHILD, "engine",
		"what was to restore the sandbox ended without a word");
	if (k->e)
		k->e->infra = true;
	return -ECHILD;
}

static void end_process(pid_t pid)
{
	kill(pid, SIGKILL);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

static int restore(struct copying *k)
{
	auto_json json_t *said = NULL;
	auto_close int status = -1;
	pid_t pid;
	int r;

	r = start_restore(k, &status, &pid);
	if (r < 0)
		return r;
	r = hear(k, status, &said);
	if (r == 0 && said)
		r = record_to_err(said, k->e);
	if (r == 0)
		r = check_box(k);
	if (r < 0)
		end_process(pid);
	else
		k->to->restored = steal_ptr(said);
	return r;
}

int create_from(struct creator *c, const json_t *spec,
		const struct create_from *from, struct create_copied *ret,
		struct err *e)
{
	struct copying k = {c, spec, NULL, from, ret, e};
	int r;

	*ret = (struct create_copied){.made.claim.fd = -1};
	r = prepare(&k);
	if (r == 0 && from->memory)
		r = restore(&k);
	else if (r == 0)
		r = create_box(c, k.all, from->follow, &ret->made, e);
	json_decref(k.all);
	if (r < 0) {
		create_undo(c, &ret->made);
		return r;
	}
	/* The supervisor holds the claim now. */
	fd_close(steal_fd(&ret->made.claim.fd));
	return 0;
}
