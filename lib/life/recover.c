/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/proc.h"
#include "base/sig.h"
#include "ckpt/ckpt.h"
#include "box/claim.h"
#include "life/ctl.h"
#include "life/recover.h"
#include "box/select.h"
#include "box/spec.h"
#include "life/teardown.h"
#include "img/image.h"
#include "sys/clone.h"

#define STATE_MAX (64 * 1024 * 1024)
#define READY_MS  20000

extern char **environ;

bool recover_waits(const struct tree *t, const char *id)
{
	return select_life(t, id, NULL) == SELECT_GONE && teardown_kept(t, id);
}

struct each {
	const struct tree *t;
	recover_fn *fn;
	void *arg;
	bool lost; /* those, too, whose claim nobody has taken away yet */
};

static int one(void *arg, const char *id, struct err *e)
{
	auto_json json_t *spec = NULL;
	const struct each *u = arg;

	if (u->lost ? select_life(u->t, id, NULL) == SELECT_LIVE ||
			      !teardown_kept(u->t, id)
		    : !recover_waits(u->t, id))
		return 0;
	(void)spec_read(u->t, id, &spec, NULL);
	return u->fn(u->arg, id, spec, e);
}

int recover_each(const struct tree *t, recover_fn *fn, void *arg, struct err *e)
{
	struct each u = {t, fn, arg, false};

	return tree_each(t->lib, one, &u, e);
}

struct named {
	const char *name;
	char *id;
	unsigned n;
};

static int of_name(void *arg, const char *id, const json_t *spec, struct err *e)
{
	struct named *want = arg;

	(void)e;
	if (strcmp(json_str(spec, "name"), want->name) != 0)
		return 0;
	memcpy(want->id, id, BOX_ID_LEN + 1);
	want->n++;
	return 0;
}

int recover_find(const struct tree *t, const char *word, char *id,
		 struct err *e)
{
	char found[BOX_ID_LEN + 1];
	struct named want = {.name = word, .id = found};
	struct each u = {t, of_name, &want, true};
	int r;

	r = tree_find(t, word, id, e);
	if (r != -ENOENT || !*word || tree_each(t->lib, one, &u, NULL) < 0)
		return r;
	if (want.n > 1)
		return err_set(e, -ENOENT, "sandbox_unknown",
			       "several sandboxes on the disk had the name "
			       "'%s': say it by id",
			       word);
	if (want.n == 0)
		return r;
	memcpy(id, found, sizeof(found));
	return 0;
}

int recover_find_any(const struct tree *t, const char *word, char *id,
		     struct err *e)
{
	int r = tree_allowed(t, e);

	if (r == 0)
		r = recover_find(t, word, id, e);
	return r == -ENOENT && teardown_named(t, word, id) ? 0 : r;
}

/* --- one at a time ------------------------------------------------------- */

static int unknown(const char *id, struct err *e)
{
	return err_set(e, -ENOENT, "sandbox_unknown", "no sandbox '%s' here",
		       id);
}

/*
 * There is no claim whose lock would tell who works on it: the lock of its
 * directory in the library does.
 */
static int lock_alone(const struct tree *t, const char *id, int *ret_dir,
		      struct err *e)
{
	auto_close int dir = -1;
	char path[PATH_MAX];
	struct stat st;
	int r;

	r = tree_path(path, e, "%s/sb/%s", t->lib, id);
	if (r < 0)
		return r;
	dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0)
		return errno == ENOENT ? unknown(id, e)
				       : err_sys(e, errno, "open '%s'", path);
	if (flock(dir, LOCK_EX | LOCK_NB) < 0) {
		r = err_set(e, -EBUSY, "busy", "sandbox %s is being recovered",
			    id);
		if (e)
			e->retry_after_ms = 50;
		return r;
	}
	/* Removed between our opening and our locking it. */
	if (fstat(dir, &st) < 0 || st.st_nlink == 0)
		return unknown(id, e);
	*ret_dir = steal_fd(&dir);
	return 0;
}

/* The claim of a dead supervisor goes first, as a sweep would do it. */
static int bury_claim(const struct tree *t, struct cgroup_root *cgroups,
		      const char *id, struct err *e)
{
	if (select_life(t, id, NULL) != SELECT_LOST)
		return 0;
	return claim_sweep(t, teardown_bury, cgroups, NULL, e);
}

/* --- what it needs ------------------------------------------------------- */

static int check_checkpoint(int dir, const char *id, struct err *e)
{
	auto_ckpt struct ckpt c = {0};
	auto_close int ckpt = -1;
	int r;

	ckpt = openat(dir, "ckpt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (ckpt < 0)
		return unknown(id, e);
	r = ckpt_read(ckpt, &c, e);
	if (r == 0 && strcmp(c.sandbox, id))
		r = err_set(e, -EBADMSG, "checkpoint_damaged",
			    "the checkpoint is of sandbox %s", c.sandbox);
	return r;
}

/* Its uids may have changed; those on the disk are the sandbox's own. */
static int write_spec(int dir, json_t *spec, const struct claim *claim,
		      struct err *e)
{
	if (json_int(spec, "slot", 0) == claim->slot &&
	    json_int(spec, "uid_base", 0) == claim->uid_base)
		return 0;
	if (json_object_set_new(spec, "slot", json_integer(claim->slot)) < 0 ||
	    json_object_set_new(spec, "uid_base",
				json_integer(claim->uid_base)) < 0)
		return err_sys(e, ENOMEM, "spec");
	return json_write_file(dir, "spec.json", spec, 0, e);
}

/* --- the supervisor ------------------------------------------------------ */

/* What it knew, as its new program wants it: in a memfd. */
static int open_state(int dir, struct err *e)
{
	auto_free char *text = NULL;
	auto_json json_t *state = NULL;
	auto_close int fd = -1;
	size_t len = 0;
	int r;

	r = fd_read_file(dir, "ckpt/" CKPT_STATE, STATE_MAX, &text, &len, e);
	if (r < 0)
		return r;
	state = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
	if (!json_is_object(state))
		return err_set(e, -EBADMSG, "checkpoint_damaged",
			       "what its supervisor knew does not read");
	if (json_object_set_new(state, "recover", json_true()) < 0)
		return err_sys(e, ENOMEM, "state");
	fd = json_memfd(e);
	r = fd < 0 ? fd : json_to_memfd(fd, state, e);
	return r < 0 ? r : steal_fd(&fd);
}

#define STACK (64 * 1024)
static _Alignas(16) char stack[STACK];

struct starter {
	const char *path;
	const char *const *argv;
	struct cgroup_join join;
	int fds[3]; /* claim, listen, state: as 3, 4 and 7; over 16 here */
	int null;   /* the same */
	int r;
};

/* In the child, which shares our memory: system calls alone. */
static int starter_main(void *arg)
{
	static const int at[] = {3, 4, 7};
	struct starter *s = arg;

	s->r = cgroup_leaf_join(&s->join);
	if (s->r < 0)
		return 1;
	for (int i = 0; i < 3; i++)
		if (dup2(s->null, i) < 0 || dup2(s->fds[i], at[i]) < 0)
			goto err;
	/* 5 and 6 are of processes: there are none. */
	if (syscall(SYS_close_range, 5, 6, 0) < 0 ||
	    syscall(SYS_close_range, 8, ~0U, 0) < 0)
		goto err;
	setsid();
	if (chdir("/") < 0)
		goto err;
	sig_reset();
	execve(s->path, (char *const *)(uintptr_t)s->argv, environ);
err:
	s->r = -errno;
	return 1;
}

static int lift(int fd, int *ret, struct err *e)
{
	*ret = fcntl(fd, F_DUPFD_CLOEXEC, 16);
	return *ret < 0 ? err_sys(e, errno, "supervisor's descriptors") : 0;
}

static int prepare(struct starter *s, const int *fds, struct err *e)
{
	auto_close int null = -1;
	int r = 0;

	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null < 0)
		return err_sys(e, errno, "open /dev/null");
	r = lift(null, &s->null, e);
	for (int i = 0; r == 0 && i < 3; i++)
		r = lift(fds[i], &s->fds[i], e);
	return r;
}

static int spawn(struct starter *s, const struct cgroup_root *cgroups,
		 pid_t *ret_pid, struct err *e)
{
	struct clone_child child = {
		.flags = CLONE_VFORK,
		.exit_signal = SIGCHLD,
		.stack = stack,
		.stack_size = sizeof(stack),
	};
	int r;

	r = cgroup_supervisor_prepare(cgroups, &s->join, e);
	if (r < 0)
		return r;
	child.into_cgroup = s->join.into;
	*ret_pid = clone_child(&child, starter_main, s);
	cgroup_join_done(&s->join);
	if (*ret_pid < 0)
		return err_sys(e, -*ret_pid, "start the supervisor");
	if (s->r == 0)
		return 0;
	while (waitpid(*ret_pid, NULL, 0) < 0 && errno == EINTR)
		;
	return err_sys(e, -s->r, "start the supervisor");
}

static int start_box(const struct cgroup_root *cgroups, const char *id,
		     const int *fds, pid_t *ret_pid, struct err *e)
{
	const char *const argv[] = {"dsec-box", "--state", "7", id, NULL};
	char path[PATH_MAX];
	struct starter s = {.path = path,
			    .argv = argv,
			    .fds = {-1, -1, -1},
			    .null = -1};
	int r;

	r = proc_libexec("dsec-box", path, sizeof(path), e);
	if (r == 0)
		r = prepare(&s, fds, e);
	if (r == 0)
		r = spawn(&s, cgroups, ret_pid, e);
	for (int i = 0; i < 3; i++)
		if (s.fds[i] >= 0)
			fd_close(s.fds[i]);
	if (s.null >= 0)
		fd_close(s.null);
	return r;
}

static int wait_ready(const struct tree *t, const char *id, struct err *e)
{
	auto_json json_t *req = json_pack("{s:i, s:s}", "id", 1, "op",
					  "inspect");
	auto_json json_t *rec = NULL;

	if (!req)
		return err_sys(e, ENOMEM, "sandbox %s", id);
	return ctl_call(t, id, req, clock_ms() + READY_MS, &rec, e);
}

static int give_supervisor(const struct tree *t,
			   const struct cgroup_root *cgroups, const char *id,
			   int dir, int claim, struct err *e)
{
	auto_close int listen = -1, state = -1;
	char sock[PATH_MAX];
	pid_t pid;
	int r;

	r = tree_path(sock, e, "%s/sb/%s/ctl.sock", t->run, id);
	if (r < 0)
		return r;
	state = open_state(dir, e);
	if (state < 0)
		return state;
	listen = fd_unix_listen(sock, e);
	if (listen < 0)
		return listen;
	r = start_box(cgroups, id, (const int[]){claim, listen, state}, &pid,
		      e);
	if (r < 0)
		return r;
	fd_close(steal_fd(&listen)); /* or its end would not be seen */
	r = wait_ready(t, id, e);
	if (r == 0)
		return 0;
	kill(pid, SIGKILL);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	return err_wrap(e, r, "the supervisor of sandbox %s", id);
}

/* --- all of it ----------------------------------------------------------- */

static int bring_back(const struct tree *t, struct cgroup_root *cgroups,
		      const char *id, int dir, struct err *e)
{
	auto_json json_t *spec = NULL;
	struct claim_want want = {
		.id = id,
		.size = CLAIM_DISK_ONLY,
		.kind = "supervised",
		.bury = teardown_bury,
		.bury_arg = cgroups,
	};
	const struct image_where where = {t->run, t->lib, t->config};
	struct claim claim = {.fd = -1};
	int r;

	r = spec_read(t, id, &spec, e);
	if (r == 0)
		r = check_checkpoint(dir, id, e);
	if (r == 0)
		r = image_check(&where, spec, e);
	if (r < 0)
		return r;
	want.spec = spec;
	want.slot = (uint32_t)json_int(spec, "slot", 0);
	want.layers = json_object_get(spec, "image_layers");
	r = claim_take(t, &want, &claim, e);
	if (r < 0)
		return r;
	r = write_spec(dir, spec, &claim, e);
	if (r == 0)
		r = give_supervisor(t, cgroups, id, dir, claim.fd, e);
	if (r < 0)
		(void)claim_release(t, id, &claim.fd, NULL);
	if (claim.fd >= 0)
		fd_close(claim.fd);
	return r;
}

int recover_may_begin(const struct tree *t, const char *id, struct err *e)
{
	auto_close int dir = -1;

	return lock_alone(t, id, &dir, e);
}

int recover(const struct tree *t, struct cgroup_root *cgroups, const char *id,
	    struct err *e)
{
	auto_close int dir = -1;
	int r;

	r = tree_make(t, e);
	if (r == 0)
		r = lock_alone(t, id, &dir, e);
	if (r == 0)
		r = bury_claim(t, cgroups, id, e);
	if (r < 0)
		return r;
	if (select_life(t, id, NULL) == SELECT_LIVE)
		return 0;
	if (!teardown_kept(t, id))
		return unknown(id, e);
	r = bring_back(t, cgroups, id, dir, e);
	return r < 0 ? err_wrap(e, r, "recover sandbox %s", id) : 0;
}

int recover_drop(const struct tree *t, const struct cgroup_root *cgroups,
		 const char *id, const json_t *why, struct err *e)
{
	auto_close int dir = -1;
	int r;

	r = lock_alone(t, id, &dir, e);
	if (r < 0)
		return r;
	if (!recover_waits(t, id))
		return err_set(e, -EBUSY, "busy", "sandbox %s has a claim", id);
	return teardown(t, cgroups, id, why, e);
}
