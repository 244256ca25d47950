/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "exec.h"

#define QUEUE_MAX 64

static void input_free(struct exec_input *in)
{
	free(in->data);
	free(in);
}

/* Where bytes go: ours, the terminal's, or a new end of the client's pipe. */
static int target(struct exec *x, struct err *e)
{
	char path[40];
	int fd;

	if (x->tty_fd >= 0)
		return x->tty_fd;
	if (x->stdin_fd >= 0)
		return x->stdin_fd;
	if (x->stdin_ref < 0)
		return err_set(e, -EINVAL, "bad_value",
			       "%s was not started with stdin \"pipe\", or its "
			       "stdin is closed",
			       x->name);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", x->stdin_ref);
	fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return err_set(e, -EPIPE, "bad_value",
			       "nobody reads the stdin of %s any more",
			       x->name);
	x->stdin_fd = fd;
	return fd;
}

static void close_stdin(struct exec *x)
{
	if (x->stdin_fd >= 0)
		fd_close(steal_fd(&x->stdin_fd));
	if (x->stdin_ref >= 0)
		fd_close(steal_fd(&x->stdin_ref));
}

/* The first of the queue is done, or cannot be. */
static void pop(struct exec *x, const struct err *why)
{
	struct exec_input *in = x->input;

	x->input = in->next;
	if (in->list && why)
		ask_fail(in->list, why);
	else if (in->list)
		ask_answer(in->list, NULL);
	if (in->close && !why)
		close_stdin(x);
	input_free(in);
}

/* -EAGAIN: the command must read first. */
static int feed(struct exec *x)
{
	struct exec_input *in = x->input;
	ssize_t n;

	while (in->done < in->len) {
		n = write(x->tty_fd >= 0 ? x->tty_fd : x->stdin_fd,
			  in->data + in->done, in->len - in->done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		in->done += (size_t)n;
	}
	return 0;
}

static void run(struct exec *x);

static void on_room(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct exec *x = s->arg;

	(void)events;
	loop_del(l, s);
	run(x);
}

static void run(struct exec *x)
{
	struct err e;
	int r, fd;

	while (x->input) {
		fd = target(x, &e);
		r = fd < 0 ? fd : feed(x);
		if (r == -EAGAIN && x->tty_fd >= 0) {
			/* The master is watched for reading already. */
			fd = -1;
			err_set(&e, -EBUSY, "busy",
				"the terminal of %s takes no more now",
				x->name);
			pop(x, &e);
			continue;
		}
		if (r == -EAGAIN) {
			loop_add(x->box->loop, &x->input_src, fd, EPOLLOUT,
				 on_room, x, NULL);
			return;
		}
		if (r < 0 && fd >= 0)
			err_set(&e, r, "bad_value",
				"nobody reads the stdin of %s any more",
				x->name);
		pop(x, r < 0 ? &e : NULL);
	}
	/* Between inputs the client's end alone keeps its pipe open. */
	if (x->stdin_ref >= 0 && x->stdin_fd >= 0)
		fd_close(steal_fd(&x->stdin_fd));
}

void exec_input_run(struct exec *x)
{
	run(x);
}

int exec_input_add(struct exec *x, char *data, size_t len, bool close,
		   struct exec_input **ret, struct err *e)
{
	struct exec_input *in, **end = &x->input;
	unsigned n = 0;

	for (; *end; end = &(*end)->next)
		n++;
	if (n >= QUEUE_MAX) {
		free(data);
		return err_set(e, -EBUSY, "busy", "%s does not read its stdin",
			       x->name);
	}
	in = calloc(1, sizeof(*in));
	if (!in) {
		free(data);
		return err_sys(e, ENOMEM, "input");
	}
	in->data = data;
	in->len = len;
	in->close = close;
	*end = in;
	*ret = in;
	return 0;
}

int exec_input(struct exec *x, struct ask *a, char *data, size_t len,
	       bool close, struct err *e)
{
	struct exec_input *in;
	int r;

	r = exec_input_add(x, data, len, close, &in, e);
	if (r < 0)
		return r;
	ask_wait(a, &in->list);
	if (x->input == in)
		run(x);
	return 1;
}

void exec_input_drop(struct exec *x)
{
	struct err e;

	loop_del(x->box->loop, &x->input_src);
	err_set(&e, -ESRCH, "exec_unknown", "%s has ended", x->name);
	while (x->input)
		pop(x, &e);
}
