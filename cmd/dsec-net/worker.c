/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "net.h"
#include "work.h"

static void worker_free(struct worker *wk)
{
	struct worker **p;

	for (p = &wk->app->workers; *p != wk; p = &(*p)->next)
		;
	*p = wk->next;
	wk->app->nworkers--;
	loop_del(wk->app->loop, &wk->source);
	fd_close(wk->fd);
	jsonl_done(&wk->in);
	/* It ends when it has nobody to talk to, and its work is done. */
	while (!wk->job && waitpid(wk->pid, NULL, 0) < 0 && errno == EINTR)
		;
	free(wk);
}

static void answer(struct worker *wk, const char *text, size_t len)
{
	struct job *j = wk->job;
	json_t *rec = NULL;
	struct err e = {0};

	wk->job = NULL;
	if (!j)
		return;
	if (j->told) {
		job_end(j);
		return;
	}
	if (json_parse(text, len, &rec, &e) < 0) {
		app_fail(j->app, j->req, &e);
	} else {
		if (record_to_err(rec, &e) < 0)
			j->app->status = exit_join(j->app->status, exit_of(&e));
		app_answer(j->app, rec);
	}
	job_end(j);
}

static void on_record(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct worker *wk = s->arg;
	struct err e = {0};
	struct job *j;
	size_t len;
	char *text;
	int r;

	(void)l;
	(void)events;
	r = jsonl_next(&wk->in, &text, &len, &e);
	if (r == -EAGAIN)
		return;
	if (r > 0) {
		answer(wk, text, len);
		return;
	}
	j = wk->job;
	wk->job = NULL;
	worker_free(wk);
	if (!j)
		return;
	if (r == 0)
		err_set(&e, -EIO, "internal", "a process of ours died");
	if (!j->told)
		app_fail(j->app, j->req, &e);
	job_end(j);
}

static void child(int fd, const struct tree *t)
{
	/* Those of the other workers would keep them from seeing our end. */
	if (fd != 3 && dup3(fd, 3, O_CLOEXEC) < 0)
		_exit(EXIT_SYSTEM);
	if (close_range(4, ~0U, 0) < 0)
		_exit(EXIT_SYSTEM);
	/* Nor does who reads our output wait for it. */
	for (int i = 0; i < 3; i++) {
		fd_close(i);
		if (open("/dev/null", O_RDWR) != i)
			_exit(EXIT_SYSTEM);
	}
	signal(SIGPIPE, SIG_IGN);
	work_serve(3, t);
	_exit(EXIT_OK);
}

static int start(struct app *app, struct worker **ret, struct err *e)
{
	struct worker *wk = calloc(1, sizeof(*wk));
	auto_close int theirs = -1;
	int pair[2], r;

	if (!wk)
		return err_sys(e, ENOMEM, "process");
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
		r = err_sys(e, errno, "socket");
		free(wk);
		return r;
	}
	theirs = pair[1];
	*wk = (struct worker){.app = app, .fd = pair[0], .in.fd = pair[0]};
	wk->pid = fork();
	if (wk->pid == 0)
		child(theirs, &app->tree);
	r = wk->pid < 0 ? err_sys(e, errno, "fork")
			: loop_add(app->loop, &wk->source, wk->fd, EPOLLIN,
				   on_record, wk, e);
	if (r < 0) {
		fd_close(wk->fd);
		free(wk);
		return r;
	}
	wk->next = app->workers;
	app->workers = wk;
	app->nworkers++;
	*ret = wk;
	return 0;
}

int worker_give(struct job *j, struct err *e)
{
	struct app *app = j->app;
	struct worker *wk = app->workers;
	int r;

	while (wk && wk->job)
		wk = wk->next;
	if (!wk && app->nworkers == app->workers_max)
		return 0;
	if (!wk) {
		r = start(app, &wk, e);
		if (r < 0)
			return r;
	}
	r = record_write(wk->fd, j->req, e);
	if (r < 0)
		return r;
	wk->job = j;
	j->worker = wk;
	return 1;
}

void workers_end(struct app *app)
{
	while (app->workers)
		worker_free(app->workers);
}
