/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/proc.h"
#include "wire/record.h"
#include "worker.h"

#define STATE_FD 3 /* where it finds what we know */

extern char **environ;

/* In a group of its own, so that it can be ended with what it started. */
static int spawn(const char *path, const char *const *argv, const int fds[3],
		 pid_t *ret)
{
	posix_spawn_file_actions_t fa;
	posix_spawnattr_t at;
	sigset_t none, all;
	int r;

	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&fa);
	posix_spawnattr_init(&at);
	posix_spawnattr_setsigmask(&at, &none);
	posix_spawnattr_setsigdefault(&at, &all);
	posix_spawnattr_setpgroup(&at, 0);
	posix_spawnattr_setflags(&at, POSIX_SPAWN_SETSIGMASK |
					      POSIX_SPAWN_SETSIGDEF |
					      POSIX_SPAWN_SETPGROUP);
	r = posix_spawn_file_actions_adddup2(&fa, fds[0], STDIN_FILENO);
	if (r == 0)
		r = posix_spawn_file_actions_adddup2(&fa, fds[1],
						     STDOUT_FILENO);
	if (r == 0 && fds[2] >= 0)
		r = posix_spawn_file_actions_adddup2(&fa, fds[2], STATE_FD);
	if (r == 0)
		r = posix_spawn(ret, path, &fa, &at,
				(char *const *)(uintptr_t)argv, environ);
	posix_spawnattr_destroy(&at);
	posix_spawn_file_actions_destroy(&fa);
	return -r;
}

static void let_go(struct worker *w)
{
	struct loop *l = w->box->loop;

	loop_del(l, &w->pid_src);
	loop_del(l, &w->out_src);
	loop_timer_set(l, &w->limit, 0);
	fd_close(steal_fd(&w->pidfd));
	fd_close(steal_fd(&w->in));
	fd_close(steal_fd(&w->out));
	buf_done(&w->text);
	w->running = false;
}

/* Its group goes while it is a zombie and nobody else can have its number. */
static int reap(struct worker *w)
{
	siginfo_t si = {0};

	kill(-w->pid, SIGKILL);
	while (waitid(P_PIDFD, (id_t)w->pidfd, &si, WEXITED) < 0)
		if (errno != EINTR)
			return -1;
	return si.si_code == CLD_EXITED ? si.si_status : -si.si_status;
}

void worker_kill(struct worker *w)
{
	if (!w->running)
		return;
	kill(w->pid, SIGKILL);
	reap(w);
	let_go(w);
	json_decref(w->result);
	w->result = NULL;
}

/* A line of it.  What is no record is nonsense and not heard. */
static void take_line(struct worker *w, const char *text, size_t len)
{
	json_t *rec = NULL;

	if (json_parse(text, len, &rec, NULL) < 0)
		return;
	if (json_object_get(rec, "ok")) {
		json_decref(w->result);
		w->result = rec;
		return;
	}
	if (w->on_event)
		w->on_event(w, rec);
	json_decref(rec);
}

/* An event may have ended it. */
static void take_lines(struct worker *w)
{
	char *nl;

	while (w->running && w->text.len > 0 &&
	       (nl = memchr(w->text.data, '\n', w->text.len))) {
		struct buf line = {0};
		size_t n = (size_t)(nl - w->text.data);

		if (buf_add(&line, w->text.data, n) < 0)
			return;
		buf_drop(&w->text, n + 1);
		take_line(w, line.data, n);
		buf_done(&line);
	}
}

/* What it has said so far. */
static void hear(struct worker *w)
{
	char part[4096];
	ssize_t n;

	while (w->running) {
		n = read(w->out, part, sizeof(part));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			if (n == 0 || errno != EAGAIN)
				loop_del(w->box->loop, &w->out_src);
			return;
		}
		if (w->text.len + (size_t)n <= JSON_LINE_MAX + 1)
			(void)!buf_add(&w->text, part, (size_t)n);
		take_lines(w);
	}
}

static void on_out(struct loop *l, struct loop_source *s, uint32_t events)
{
	(void)l;
	(void)events;
	hear(s->arg);
}

static void on_pid(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct worker *w = s->arg;
	json_t *result;
	struct err why = {0};
	int status;

	(void)l;
	(void)events;
	hear(w);
	if (!w->running)
		return;
	status = reap(w);
	let_go(w);
	result = steal_ptr(w->result);
	if (result)
		record_to_err(result, &why);
	if (why.r == 0 && (status != 0 || !result)) {
		err_set(&why, -EIO, "system",
			status < 0 ? "dsec-ckpt was ended by signal %d, and "
				     "processes of the sandbox may have "
				     "ended with it"
				   : "dsec-ckpt ended with status %d",
			status < 0 ? -status : status);
		why.infra = true;
	}
	w->on_end(w, why.r < 0 ? NULL : result, why.r < 0 ? &why : NULL);
	json_decref(result);
}

/* It is ended; that brings on_pid(). */
static void on_limit(struct loop *l, struct loop_timer *t)
{
	struct worker *w = t->arg;

	(void)l;
	kill(-w->pid, SIGKILL);
}

static int watch(struct worker *w, unsigned limit_ms, struct err *e)
{
	struct loop *l = w->box->loop;
	int r;

	r = loop_add(l, &w->pid_src, w->pidfd, EPOLLIN, on_pid, w, e);
	if (r == 0)
		r = loop_add(l, &w->out_src, w->out, EPOLLIN, on_out, w, e);
	w->limit.fn = on_limit;
	w->limit.arg = w;
	loop_timer_set(l, &w->limit, clock_ms() + limit_ms);
	return r;
}

static int pipes(int in[2], int out[2], struct err *e)
{
	if (pipe2(in, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	if (pipe2(out, O_CLOEXEC) == 0)
		return fcntl(out[0], F_SETFL, O_NONBLOCK) < 0
			       ? err_sys(e, errno, "pipe")
			       : 0;
	return err_sys(e, errno, "pipe");
}

int worker_start(struct worker *w, const char *const *argv, int state_fd,
		 unsigned limit_ms, struct err *e)
{
	int in[2] = {-1, -1}, out[2] = {-1, -1}, fds[3], r;
	char path[PATH_MAX];

	w->pid = 0;
	r = proc_libexec("dsec-ckpt", path, sizeof(path), e);
	if (r == 0)
		r = pipes(in, out, e);
	if (r == 0) {
		fds[0] = in[0];
		fds[1] = out[1];
		fds[2] = state_fd;
		r = spawn(path, argv, fds, &w->pid);
		if (r < 0)
			err_sys(e, -r, "execute '%s'", path);
	}
	if (in[0] >= 0)
		fd_close(in[0]);
	if (out[1] >= 0)
		fd_close(out[1]);
	w->in = in[1];
	w->out = out[0];
	w->pidfd = -1;
	if (r == 0) {
		w->pidfd = (int)syscall(SYS_pidfd_open, w->pid, 0);
		if (w->pidfd < 0)
			r = err_sys(e, errno, "watch '%s'", path);
	}
	if (r < 0) {
		if (w->pid > 0) {
			kill(-w->pid, SIGKILL);
			waitpid(w->pid, NULL, 0);
		}
		if (w->in >= 0)
			fd_close(steal_fd(&w->in));
		if (w->out >= 0)
			fd_close(steal_fd(&w->out));
		return r;
	}
	w->running = true;
	r = watch(w, limit_ms, e);
	if (r < 0)
		worker_kill(w);
	return r;
}

void worker_say(struct worker *w, const char *text)
{
	/* Far less than a pipe holds. */
	(void)!write(w->in, text, strlen(text));
}
