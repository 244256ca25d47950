/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "job_file.h"
#include "wire/record.h"

/* What that process does: events and the final record to ${out}. */
static int work(const struct tree *tree, json_t *req, int out)
{
	struct file_call c = {.tree = tree, .req = req, .events = out};
	auto_json json_t *rec = NULL;
	struct err e = {0};
	int r;

	r = ctl_open(tree, json_str(req, "sandbox"), 0, &c.ctl, &e);
	if (r == 0)
		r = job_names_id(req, c.ctl, &e);
	if (r == 0)
		r = file_run(&c, &rec, &e);
	ctl_free(c.ctl);
	if (r < 0 && !rec)
		rec = record_error(req, &e);
	return rec && record_write(out, rec, &e) == 0 ? 0 : 1;
}

static void child(struct job *j, pid_t parent, int out)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	_exit(work(j->tree, j->req, out));
}

void job_file_stop(struct job *j)
{
	if (j->child > 0) {
		kill(j->child, SIGKILL);
		while (waitpid(j->child, NULL, 0) < 0 && errno == EINTR)
			;
	}
	j->child = 0;
	if (j->child_fd >= 0)
		fd_close(steal_fd(&j->child_fd));
	json_decref(j->child_rec);
	j->child_rec = NULL;
	jsonl_done(&j->lines);
}

/* Lines of our own process: an event, or the last one. */
static int take_lines(struct job *j, struct err *e)
{
	char *text;
	size_t len;
	int r;

	while ((r = jsonl_next(&j->lines, &text, &len, e)) == 1) {
		auto_json json_t *rec = NULL;

		r = json_parse(text, len, &rec, e);
		if (r < 0)
			return r;
		if (!json_object_get(rec, "ok"))
			j->ops->event(j->arg, rec);
		else if (!j->child_rec)
			j->child_rec = json_incref(rec);
	}
	return r == -EAGAIN ? 0 : r;
}

static void on_lines(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct job *j = s->arg;
	struct err e = {0};
	json_t *rec = NULL;
	char chunk[16384];
	ssize_t n;
	int r = 0;

	(void)events;
	n = read(j->child_fd, chunk, sizeof(chunk));
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n > 0)
		r = jsonl_feed(&j->lines, chunk, (size_t)n);
	if (n > 0 && r == 0)
		r = take_lines(j, &e);
	if (n > 0 && r == 0)
		return;
	loop_del(l, &j->source);
	j->watching = false;
	if (r == 0 && j->child_rec)
		rec = json_incref(j->child_rec);
	else if (r == 0)
		err_set(&e, -EIO, "internal",
			"the process of the file operation died");
	if (!rec)
		rec = record_error(j->req, &e);
	job_file_stop(j);
	j->finish(j, rec);
}

int job_file_start(struct job *j, void (*finish)(struct job *, json_t *),
		   struct err *e)
{
	pid_t self = getpid();
	int fds[2], r;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	j->child = fork();
	if (j->child == 0)
		child(j, self, fds[1]);
	fd_close(fds[1]);
	if (j->child < 0) {
		r = err_sys(e, errno, "fork");
		fd_close(fds[0]);
		return r;
	}
	j->child_fd = fds[0];
	j->finish = finish;
	r = loop_add(j->loop, &j->source, j->child_fd, EPOLLIN, on_lines, j, e);
	j->watching = r == 0;
	return r;
}
