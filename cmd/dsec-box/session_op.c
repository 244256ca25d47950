/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "life.h"
#include "pause.h"
#include "session_priv.h"
#include "starter.h"
#include "wire/field.h"

#define QUEUE_MAX 64

/* The pipes of a new session: ours[] stay, theirs[] are the shell's 0 to 3. */
struct ends {
	int ours[4], theirs[4];
};

static void ends_done(struct ends *p)
{
	for (int i = 0; i < 4; i++) {
		if (p->ours[i] >= 0)
			fd_close(steal_fd(&p->ours[i]));
		if (p->theirs[i] >= 0)
			fd_close(steal_fd(&p->theirs[i]));
	}
}

static int ends_make(struct ends *p, const struct starter *st, struct err *e)
{
	int fd[2], r;

	for (int i = 0; i < 4; i++) {
		if (pipe2(fd, O_CLOEXEC) < 0)
			return err_sys(e, errno, "pipe");
		p->ours[i] = fd[i == 0];
		p->theirs[i] = fd[i != 0];
		if (i != 3)
			fcntl(fd[0], F_SETPIPE_SZ, 1 << 20);
		if (fcntl(p->ours[i], F_SETFL, O_NONBLOCK) < 0)
			return err_sys(e, errno, "pipe");
		r = starter_own(st, fd[0], e);
		if (r < 0)
			return r;
	}
	return 0;
}

static int enter(struct session *s, struct starter *st, struct ends *p,
		 struct err *e)
{
	struct entered en = {.tty = -1};
	int r;

	r = ends_make(p, st, e);
	if (r < 0)
		return r;
	memcpy(st->en.fds, p->theirs, sizeof(st->en.fds));
	st->en.extra_fd = p->theirs[3];
	exec_reports(s->box);
	r = starter_enter(st, s->name, &en, e);
	if (r < 0)
		return r;
	s->inner = en.inner;
	s->pidfd = en.pidfd;
	s->script = steal_fd(&p->ours[0]);
	s->out[0] = steal_fd(&p->ours[1]);
	s->out[1] = steal_fd(&p->ours[2]);
	s->status = steal_fd(&p->ours[3]);
	return 0;
}

static int start_shell(struct session *s, const json_t *req, const char *shell,
		       struct err *e)
{
	auto_json json_t *argv = json_pack("[s]", shell);
	const json_t *cwd = json_object_get(req, "cwd");
	const json_t *user = json_object_get(req, "user");
	struct starter_want want = {
		.argv = argv,
		.env = json_object_get(req, "env"),
		.cwd = cwd ? json_string_value(cwd) : NULL,
		.user = user ? json_string_value(user) : NULL,
	};
	struct ends p = {{-1, -1, -1, -1}, {-1, -1, -1, -1}};
	struct starter st;
	int r;

	if (!argv)
		return err_sys(e, ENOMEM, "session");
	r = starter_init(&st, s->box, &want, e);
	if (r < 0)
		return r;
	r = enter(s, &st, &p, e);
	starter_done(&st);
	ends_done(&p);
	return r;
}

/* bash where there is one: it is what people know. */
static int start_any(struct session *s, const json_t *req, struct err *e)
{
	const char *shell = json_str(req, "shell");
	int r;

	snprintf(s->shell, sizeof(s->shell), "%s", *shell ? shell : "bash");
	r = start_shell(s, req, s->shell, e);
	if (r < 0 && !*shell && !strcmp(e->code, "command_not_found")) {
		memcpy(s->shell, "sh", sizeof("sh"));
		r = start_shell(s, req, s->shell, e);
	}
	return r;
}

static void undo(struct session *s)
{
	struct cgroup_root *cgroups;
	struct box *b = s->box;

	if (s->pidfd >= 0 && box_cgroups(b, &cgroups, NULL) == 0) {
		cgroup_kill(cgroups, b->id, s->name, 1000, NULL, NULL);
		cgroup_leaf_remove(cgroups, b->id, s->name, NULL);
	}
	session_free(s);
}

int session_open(struct ask *a, json_t *req, struct err *e)
{
	struct box *b = a->box;
	struct session *s;
	int r;

	r = pause_awake(a, req, e);
	if (r != 0)
		return r;
	if (b->nsessions >= BOX_SESSIONS_MAX)
		return err_set(e, -EBUSY, "busy", "%d sessions are open",
			       BOX_SESSIONS_MAX);
	s = calloc(1, sizeof(*s));
	if (!s)
		return err_sys(e, ENOMEM, "session");
	s->box = b;
	s->pidfd = s->script = s->status = s->out[0] = s->out[1] = -1;
	snprintf(s->name, sizeof(s->name), "s%llu",
		 (unsigned long long)b->next_session++);
	s->next = b->sessions;
	b->sessions = s;
	b->nsessions++;
	r = start_any(s, req, e);
	if (r == 0)
		r = session_watch(s, e);
	if (r == 0 && session_greet(s) < 0)
		r = err_sys(e, ENOMEM, "session");
	if (r < 0) {
		undo(s);
		return r;
	}
	life_quiet(b);
	ask_wait(a, &s->opener);
	return 1;
}

static struct session *find(struct box *b, const json_t *req, struct err *e)
{
	struct session *s = session_find(b, json_str(req, "session"));

	if (!s)
		err_set(e, -ESRCH, "session_unknown",
			"the sandbox has no session '%s'",
			json_str(req, "session"));
	return s;
}

int session_close(struct ask *a, json_t *req, struct err *e)
{
	struct session *s;
	int r;

	r = pause_awake_for(a, req, "session", e);
	if (r != 0)
		return r;
	s = find(a->box, req, e);
	if (!s)
		return -ESRCH;
	if (s->current && !s->current->cause)
		s->current->cause = "killed";
	ask_wait(a, &s->closers);
	session_kill(s, 0);
	return 1;
}

/*
 * What the shell is to evaluate.  A command that was a string is its text as it
 * stands, so that cd and variables are the session's; a list is its words.
 */
static int text_of(const json_t *argv, char **ret, struct err *e)
{
	auto_buf struct buf b = {0};
	size_t i;
	json_t *v;
	int r = 0;

	if (json_array_size(argv) == 3 &&
	    !strcmp(json_string_value(json_array_get(argv, 0)), "/bin/sh") &&
	    !strcmp(json_string_value(json_array_get(argv, 1)), "-c")) {
		*ret = strdup(json_string_value(json_array_get(argv, 2)));
		return *ret ? 0 : err_sys(e, ENOMEM, "command");
	}
	json_array_foreach(argv, i, v) {
		if (r == 0 && i > 0)
			r = buf_add(&b, " ", 1);
		if (r == 0)
			r = session_quote(&b, json_string_value(v));
	}
	if (r < 0)
		return err_sys(e, ENOMEM, "command");
	*ret = steal_ptr(b.data);
	b.len = b.cap = 0;
	return 0;
}

/* What belongs to the session and cannot differ by command. */
static int check(const json_t *req, struct err *e)
{
	static const char *const not [] = {"env",  "cwd",  "user", "tty",
					   "rows", "cols", "leave"};

	for (size_t i = 0; i < array_len(not ); i++)
		if (json_object_get(req, not [i]))
			return err_set(e, -EBADMSG, "bad_value",
				       "'%s' cannot be set for a command of a "
				       "session",
				       not [i]);
	if (!strcmp(json_str(req, "stdin"), "pipe"))
		return err_set(e, -EBADMSG, "bad_value",
			       "'stdin': a command of a session has none");
	return 0;
}

static int prepare(struct exec *x, struct session *s, const json_t *req,
		   struct err *e)
{
	int r;

	r = exec_options(x, req, e);
	if (r == 0)
		r = text_of(json_object_get(req, "command"), &x->script, e);
	x->session = s;
	x->has_out[0] = x->has_out[1] = true;
	x->oom_before = box_oom_kills(x->box);
	return r;
}

int session_exec(struct ask *a, const json_t *req, struct err *e)
{
	struct box *b = a->box;
	struct session *s;
	struct exec *x;
	unsigned n = 0;
	int none = -1, r;

	r = check(req, e);
	if (r < 0)
		return r;
	s = find(b, req, e);
	if (!s)
		return -ESRCH;
	for (x = s->queue; x; x = x->queued)
		n++;
	if (n >= QUEUE_MAX)
		return err_set(e, -EBUSY, "busy", "%u commands wait for %s", n,
			       s->name);
	x = exec_new(b, EXEC_SESSION, e);
	if (!x)
		return e->r;
	r = prepare(x, s, req, e);
	if (r == 0)
		r = exec_hand_over(x, a, req, &none, e);
	if (r < 0) {
		exec_free(x);
		return r;
	}
	session_enqueue(s, x);
	return 1;
}
