/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "life.h"
#include "session.h"
#include "session_priv.h"
#include "starter.h"

#define KILL_WAIT_MS 1000
#define READY_MS     10000	  /* for a shell to begin */
#define NOISE_MAX    4096	  /* bytes of nonsense on the status pipe */
#define IDLE_HIGH    (512 * 1024) /* output between commands: kept so far */
#define IDLE_DROP    (256 * 1024)

const char *session_name(const struct session *s)
{
	return s->name;
}

struct session *session_find(struct box *b, const char *name)
{
	for (struct session *s = b->sessions; s; s = s->next)
		if (!strcmp(s->name, name) && !s->dead)
			return s;
	return NULL;
}

static void close_at(int *fd)
{
	if (*fd >= 0)
		fd_close(steal_fd(fd));
}

static void fail_opener(struct session *s)
{
	struct err e;

	err_set(&e, -EINVAL, "bad_value",
		"'shell': '%s' did not begin to read commands", s->shell);
	ask_fail(s->opener, &e);
}

void session_free(struct session *s)
{
	struct box *b = s->box;
	struct session **p;

	for (p = &b->sessions; *p && *p != s; p = &(*p)->next)
		;
	if (*p) {
		*p = s->next;
		b->nsessions--;
	}
	loop_timer_set(b->loop, &s->kill, 0);
	loop_timer_set(b->loop, &s->late, 0);
	loop_del(b->loop, &s->pid_src);
	loop_del(b->loop, &s->status_src);
	loop_del(b->loop, &s->script_src);
	for (int i = 0; i < 2; i++) {
		loop_del(b->loop, &s->idle_src[i]);
		close_at(&s->out[i]);
	}
	close_at(&s->script);
	close_at(&s->status);
	close_at(&s->pidfd);
	buf_done(&s->text);
	while (s->closers)
		ask_answer(s->closers, NULL);
	if (s->opener)
		fail_opener(s);
	free(s);
}

/* Between commands: what jobs print waits for the next one, as on a terminal,
 * but never so much that they would wait for it too. */
static void on_idle(struct loop *l, struct loop_source *src, uint32_t events)
{
	struct session *s = src->arg;
	int n = 0;

	if (ioctl(src->fd, FIONREAD, &n) == 0 && n > IDLE_HIGH &&
	    box_null(s->box, NULL) == 0)
		while (splice(src->fd, NULL, s->box->null_fd, NULL, IDLE_DROP,
			      SPLICE_F_NONBLOCK) < 0 &&
		       errno == EINTR)
			;
	if (n <= 0 && (events & EPOLLHUP))
		loop_del(l, src);
}

void session_watch_idle(struct session *s, bool on)
{
	struct loop *l = s->box->loop;

	for (int i = 0; i < 2; i++) {
		loop_del(l, &s->idle_src[i]);
		if (on && !s->dead)
			loop_add(l, &s->idle_src[i], s->out[i],
				 EPOLLIN | EPOLLET, on_idle, s, NULL);
	}
}

static void on_script(struct loop *l, struct loop_source *src, uint32_t events)
{
	(void)events;
	loop_del(l, src);
	session_push(src->arg);
}

void session_push(struct session *s)
{
	ssize_t n;

	while (s->text.len > 0) {
		n = write(s->script, s->text.data, s->text.len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			loop_add(s->box->loop, &s->script_src, s->script,
				 EPOLLOUT, on_script, s, NULL);
			return;
		}
		if (n < 0)
			break; /* it is dying: its end will be reported */
		buf_drop(&s->text, (size_t)n);
	}
	buf_done(&s->text);
}

/* What a report of the shell's looks like when it is ready, and after. */
#define REPORT "{ \\echo %" PRIu64 " $? >&3; } 2>/dev/null\n"

/*
 * One command.  What it sees as $? is how the one before ended; "command" keeps
 * a shell that would exit on a mistake in what it evaluates from doing so.  One
 * that would exit at an open quotation even so is shown the text in a subshell
 * first, where that may be the matter.
 */
static int script_of(struct session *s, const char *text)
{
	auto_buf struct buf word = {0};
	char before[24] = "";
	int r = session_word(&word, text);

	if (s->last > 0)
		snprintf(before, sizeof(before), "(exit %d)\n", s->last);
	if (r == 0 && session_may_be_open(text))
		r = buf_addf(&s->text,
			     "if (\\command \\eval 'dsec_try() {\n'%s'}') "
			     "</dev/null 3>&-; then\n"
			     "%s\\command \\eval %s </dev/null 3>&-\n"
			     "else (exit 2); fi\n",
			     word.data, before, word.data);
	else if (r == 0)
		r = buf_addf(&s->text,
			     "%s\\command \\eval %s </dev/null 3>&-\n", before,
			     word.data);
	return r < 0 ? r : buf_addf(&s->text, REPORT, s->seq);
}

/* The first of the queue runs; the shell is idle. */
static void run_next(struct session *s)
{
	struct exec *x = s->queue;
	struct err e;

	if (!x || s->current || s->ending || !s->ready)
		return;
	s->queue = x->queued;
	x->queued = NULL;
	s->current = x;
	s->seq++;
	session_watch_idle(s, false);
	if (exec_streams(x, s->out, &e) < 0 || script_of(s, x->script) < 0) {
		/* Nothing was sent; but its streams may be half set up. */
		session_kill(s, 0);
		return;
	}
	free(steal_ptr(x->script));
	exec_armed(x);
	session_push(s);
}

void session_idle(struct session *s, struct exec *x)
{
	if (s->current != x)
		return;
	s->current = NULL;
	if (s->dead) {
		session_free(s);
		return;
	}
	session_watch_idle(s, true);
	run_next(s);
}

bool session_forget(struct session *s, struct exec *x)
{
	for (struct exec **p = &s->queue; *p; p = &(*p)->queued)
		if (*p == x) {
			*p = x->queued;
			x->queued = NULL;
			return true;
		}
	return false;
}

void session_enqueue(struct session *s, struct exec *x)
{
	struct exec **end = &s->queue;

	while (*end)
		end = &(*end)->queued;
	*end = x;
	run_next(s);
}

static void command_ended(struct session *s, int status)
{
	struct exec *x = s->current;

	if (!x || x->gone)
		return;
	s->last = status;
	x->report.status = status << 8;
	exec_gone(x);
}

static void ready(struct session *s)
{
	s->ready = true;
	loop_timer_set(s->box->loop, &s->late, 0);
	if (s->opener)
		ask_answer(s->opener, json_pack("{s:s, s:s}", "session",
						s->name, "shell", s->shell));
	run_next(s);
}

/* "SEQ STATUS" of the command that runs; anything else is noise. */
static void take_status(struct session *s, char *line)
{
	unsigned long long seq;
	int status, used = 0;

	if (sscanf(line, "%20llu %3d%n", &seq, &status, &used) != 2 ||
	    line[used] != '\0' || seq != s->seq || status < 0 || status > 255)
		s->noise += strlen(line) + 1;
	else if (!s->ready)
		ready(s);
	else
		command_ended(s, status);
}

static void read_status(struct session *s)
{
	char *nl, *line = s->status_line;
	size_t room = sizeof(s->status_line) - 1 - s->status_len;
	ssize_t n;

	n = read(s->status, line + s->status_len, room);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		loop_del(s->box->loop, &s->status_src);
	if (n <= 0)
		return;
	s->status_len += (size_t)n;
	line[s->status_len] = '\0';
	while ((nl = memchr(line, '\n', s->status_len))) {
		size_t used = (size_t)(nl - line) + 1;
		char copy[sizeof(s->status_line)];

		*nl = '\0';
		memcpy(copy, line, used);
		s->status_len -= used;
		memmove(line, nl + 1, s->status_len + 1);
		take_status(s, copy);
	}
	if (s->status_len == sizeof(s->status_line) - 1) {
		s->noise += s->status_len;
		s->status_len = 0;
	}
	if (s->noise > NOISE_MAX)
		session_kill(s, 0);
}

static void on_status(struct loop *l, struct loop_source *src, uint32_t events)
{
	(void)l;
	(void)events;
	read_status(src->arg);
}

/* Those that never began. */
static void fail_queue(struct session *s)
{
	struct err e;

	err_set(&e, -ESRCH, "session_unknown",
		"session %s ended before the command began", s->name);
	while (s->queue) {
		struct exec *x = s->queue;

		s->queue = x->queued;
		x->session = NULL;
		while (x->waiters)
			ask_fail(x->waiters, &e);
		exec_free(x);
	}
}

static void sweep(struct session *s)
{
	struct cgroup_root *cgroups;
	struct box *b = s->box;
	unsigned killed = 0;

	if (box_cgroups(b, &cgroups, NULL) < 0)
		return;
	cgroup_kill(cgroups, b->id, s->name, KILL_WAIT_MS, &killed, NULL);
	cgroup_leaf_remove(cgroups, b->id, s->name, NULL);
	if (s->current)
		s->current->left_killed = killed;
}

/* The shell is gone, and with it what ran in it. */
static void gone(struct session *s, const struct init_report *rep)
{
	struct box *b = s->box;
	struct exec *x;

	if (s->ending)
		return;
	s->ending = true;
	/* It may have said how its last command ended. */
	read_status(s);
	s->dead = true;
	loop_del(s->box->loop, &s->status_src);
	loop_del(s->box->loop, &s->pid_src);
	loop_timer_set(s->box->loop, &s->kill, 0);
	loop_timer_set(s->box->loop, &s->late, 0);
	session_watch_idle(s, false);
	sweep(s);
	fail_queue(s);
	x = s->current;
	if (!x) {
		session_free(s);
		life_quiet(b);
		return;
	}
	if (x->gone)
		return; /* session_idle() comes when it is done with */
	x->report.status = rep->status;
	x->session_ended = true;
	exec_gone(x);
}

void session_report(struct box *b, const struct init_report *rep)
{
	struct pollfd pfd = {.events = POLLIN};

	for (struct session *s = b->sessions; s; s = s->next) {
		pfd.fd = s->pidfd;
		if (s->ending || s->inner != rep->pid || poll(&pfd, 1, 0) != 1)
			continue;
		gone(s, rep);
		return;
	}
}

static void on_kill(struct loop *l, struct loop_timer *t)
{
	struct session *s = t->arg;
	struct cgroup_root *cgroups;

	(void)l;
	if (box_cgroups(s->box, &cgroups, NULL) == 0)
		cgroup_kill(cgroups, s->box->id, s->name, KILL_WAIT_MS, NULL,
			    NULL);
}

int session_signal(struct session *s, int sig, struct err *e)
{
	struct cgroup_root *cgroups;
	int r;

	r = box_cgroups(s->box, &cgroups, e);
	return r < 0 ? r : cgroup_signal(cgroups, s->box->id, s->name, sig, e);
}

void session_kill(struct session *s, unsigned grace_ms)
{
	s->kill.fn = on_kill;
	s->kill.arg = s;
	if (grace_ms == 0) {
		on_kill(s->box->loop, &s->kill);
		return;
	}
	session_signal(s, SIGTERM, NULL);
	session_signal(s, SIGCONT, NULL);
	loop_timer_set(s->box->loop, &s->kill, clock_ms() + grace_ms);
}

void session_abandon_all(struct box *b)
{
	struct session *next;

	for (struct session *s = b->sessions; s; s = next) {
		next = s->next;
		s->ending = s->dead = true;
		fail_queue(s);
		if (!s->current)
			session_free(s);
	}
}

static void on_late(struct loop *l, struct loop_timer *t)
{
	struct session *s = t->arg;
	struct init_report lost = {.status = SIGKILL};

	(void)l;
	gone(s, &lost);
}

static void on_pidfd(struct loop *l, struct loop_source *src, uint32_t events)
{
	struct session *s = src->arg;

	(void)events;
	loop_del(l, src);
	s->late.fn = on_late;
	s->late.arg = s;
	loop_timer_set(l, &s->late, clock_ms() + 10000);
	exec_reports(s->box);
}

int session_watch(struct session *s, struct err *e)
{
	int r = 0;

	if (s->box->init_pid) /* else it has no process now */
		r = loop_add(s->box->loop, &s->pid_src, s->pidfd, EPOLLIN,
			     on_pidfd, s, e);
	if (r == 0)
		r = loop_add(s->box->loop, &s->status_src, s->status, EPOLLIN,
			     on_status, s, e);
	session_watch_idle(s, true);
	return r;
}

static void on_silent(struct loop *l, struct loop_timer *t)
{
	(void)l;
	session_kill(t->arg, 0);
}

int session_greet(struct session *s)
{
	/* An interrupt is for what runs in it, not for the shell. */
	int r = buf_addf(&s->text, "trap : INT\n" REPORT, s->seq);

	if (r < 0)
		return r;
	s->late.fn = on_silent;
	s->late.arg = s;
	loop_timer_set(s->box->loop, &s->late, clock_ms() + READY_MS);
	session_push(s);
	return 0;
}
