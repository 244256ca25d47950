/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sig.h"
#include "fork.h"

struct worker {
	struct request *r;
	unsigned index;
	work_done_fn *done;
	pid_t pid;
	int fd; /* its record comes here */
	struct buf said;
	struct loop_source source;
	struct worker *next;
};

/* --- in the worker ------------------------------------------------------- */

/* Its input and output are nobody's; what it has to tell goes to ${fd}. */
static int settle(struct err *e)
{
	static const int signals[] = {SIGTERM};
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (null >= 0)
		dup2(null, STDIN_FILENO);
	dup2(STDERR_FILENO, STDOUT_FILENO);
	return sig_block(signals, array_len(signals), e);
}

static void work(struct request *r, unsigned index, work_fn *fn, int fd)
{
	auto_json json_t *rec = NULL;
	struct err e = {0};
	int stop, res;

	stop = settle(&e);
	res = stop < 0 ? stop : fn(r, index, stop, &rec, &e);
	if (res < 0) {
		json_decref(rec);
		rec = record_error(NULL, &e);
	}
	if (!rec || record_write(fd, rec, &e) < 0)
		log_err(&e);
}

/* --- here ---------------------------------------------------------------- */

static void forget(struct worker *w)
{
	struct app *app = w->r->app;
	struct worker **p;

	for (p = &app->workers; *p != w; p = &(*p)->next)
		;
	*p = w->next;
	app->nworkers--;
	loop_del(app->loop, &w->source);
	fd_close(w->fd);
	buf_done(&w->said);
	free(w);
}

static int parse_said(const struct worker *w, json_t **ret, struct err *e)
{
	size_t len = w->said.len;
	int r;

	while (len > 0 && w->said.data[len - 1] == '\n')
		len--;
	if (len == 0) {
		r = err_set(e, -ECHILD, "helper_lost",
			    "the process that worked on this request died");
		e->infra = true;
		return r;
	}
	r = json_parse(w->said.data, len, ret, e);
	return r < 0 ? r : record_to_err(*ret, e);
}

static void on_end(struct worker *w)
{
	auto_json json_t *rec = NULL;
	struct request *r = w->r;
	unsigned index = w->index;
	work_done_fn *done = w->done;
	struct err e = {0};
	int res;

	while (waitpid(w->pid, NULL, 0) < 0 && errno == EINTR)
		;
	res = parse_said(w, &rec, &e);
	forget(w);
	r->running--;
	done(r, index, res < 0 ? NULL : rec, res < 0 ? &e : NULL);
	app_pump(r->app);
}

static void on_readable(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct worker *w = s->arg;
	char chunk[8192];
	ssize_t n;

	(void)l;
	(void)events;
	n = read(w->fd, chunk, sizeof(chunk));
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n > 0 && buf_add(&w->said, chunk, (size_t)n) == 0)
		return;
	on_end(w);
}

static int spawn(struct worker *w, work_fn *fn, struct err *e)
{
	int pair[2];

	if (pipe2(pair, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe for a worker");
	w->pid = fork();
	if (w->pid == 0) {
		fd_close(pair[0]);
		work(w->r, w->index, fn, pair[1]);
		_exit(0);
	}
	fd_close(pair[1]);
	w->fd = pair[0];
	if (w->pid < 0) {
		int r = err_sys(e, errno, "start a worker");

		fd_close(steal_fd(&w->fd));
		return r;
	}
	return 0;
}

int work_start(struct request *r, unsigned index, work_fn *fn,
	       work_done_fn *done, struct err *e)
{
	struct worker *w = calloc(1, sizeof(*w));
	int res;

	if (!w)
		return err_sys(e, ENOMEM, "worker");
	w->r = r;
	w->index = index;
	w->done = done;
	w->fd = -1;
	res = spawn(w, fn, e);
	if (res < 0) {
		free(w);
		return res;
	}
	w->next = r->app->workers;
	r->app->workers = w;
	r->app->nworkers++;
	r->running++;
	res = loop_add(r->app->loop, &w->source, w->fd, EPOLLIN, on_readable, w,
		       e);
	if (res == 0)
		return 0;
	/* It cannot be listened to: it is waited for here and now. */
	kill(w->pid, SIGTERM);
	waitpid(w->pid, NULL, 0);
	r->running--;
	forget(w);
	return res;
}

void work_stop(struct request *r)
{
	for (struct worker *w = r->app->workers; w; w = w->next)
		if (w->r == r)
			kill(w->pid, SIGTERM);
}
