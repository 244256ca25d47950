/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "left.h"
#include "outer.h"
#include "session_priv.h"

#define PENDING_MAX (32U << 20) /* of all pipes together */
#define PIPE_SIZE   (1 << 20)

static int one(struct box *b, outer_fn *fn, void *arg, int fd,
	       enum outer_kind kind, pid_t inner)
{
	struct outer o = {.fd = fd, .kind = kind, .inner = inner};

	return fd >= 0 ? fn(b, &o, arg) : 0;
}

static int of_exec(struct box *b, struct exec *x, outer_fn *fn, void *arg)
{
	int r = 0;

	if (x->kind != EXEC_COMMAND)
		return 0;
	if (!x->gone)
		r = one(b, fn, arg, x->pidfd, OUTER_PID, x->inner);
	for (int i = 0; r == 0 && i < 2; i++)
		if (!x->tty && !x->out[i].ended)
			r = one(b, fn, arg, x->out[i].rec.src, OUTER_READ, 0);
	if (r == 0 && x->tty && !x->gone)
		r = one(b, fn, arg, x->tty_fd, OUTER_TTY, 0);
	if (r == 0 && x->stdin_ref >= 0)
		r = one(b, fn, arg, x->stdin_ref, OUTER_WRITE, 0);
	else if (r == 0)
		r = one(b, fn, arg, x->stdin_fd, OUTER_WRITE, 0);
	return r;
}

static int of_session(struct box *b, struct session *s, outer_fn *fn, void *arg)
{
	int r = 0;

	if (!s->ending) {
		r = one(b, fn, arg, s->pidfd, OUTER_PID, s->inner);
		if (r == 0)
			r = one(b, fn, arg, s->script, OUTER_WRITE, 0);
		if (r == 0)
			r = one(b, fn, arg, s->status, OUTER_READ, 0);
	}
	for (int i = 0; r == 0 && i < 2; i++)
		r = one(b, fn, arg, s->out[i], OUTER_READ, 0);
	return r;
}

int outer_each(struct box *b, outer_fn *fn, void *arg)
{
	int r;

	r = one(b, fn, arg, b->report_fd, OUTER_READ, 0);
	if (r == 0)
		r = one(b, fn, arg, b->init_fd, OUTER_PID, 1);
	for (struct exec *x = b->execs; r == 0 && x; x = x->next)
		r = of_exec(b, x, fn, arg);
	for (struct session *s = b->sessions; r == 0 && s; s = s->next)
		r = of_session(b, s, fn, arg);
	for (struct left *l = b->left; r == 0 && l; l = l->next)
		r = one(b, fn, arg, l->fd, OUTER_READ, 0);
	return r;
}

void outer_drain(struct box *b)
{
	struct exec *next;

	exec_reports(b);
	for (struct exec *x = b->execs; x; x = next) {
		next = x->next;
		if (x->kind != EXEC_FILE)
			exec_drain(x);
	}
}

/* The pipe that is meant by any descriptor of it, opened anew. */
static int reopen(int fd, int flags)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, flags | O_NONBLOCK | O_CLOEXEC);
}

bool outer_stdin_open(int fd)
{
	auto_close int rd = reopen(fd, O_RDONLY);
	struct pollfd p = {.fd = rd, .events = POLLIN};

	return rd >= 0 && poll(&p, 1, 0) >= 0 && !(p.revents & POLLHUP);
}

static int tee_all(int rd, const int copy[2], size_t n, char *data,
		   struct err *e)
{
	int size = fcntl(rd, F_GETPIPE_SZ);
	size_t done = 0;
	ssize_t m;

	/* In as many pieces as it was written in. */
	if (size > 0)
		fcntl(copy[0], F_SETPIPE_SZ, size);
	m = tee(rd, copy[1], n, SPLICE_F_NONBLOCK);
	if (m < (ssize_t)n)
		return err_sys(e, m < 0 ? errno : EIO, "look into a pipe");
	while (done < n) {
		m = read(copy[0], data + done, n - done);
		if (m < 0 && errno == EINTR)
			continue;
		if (m <= 0)
			return err_sys(e, m < 0 ? errno : EIO,
				       "look into a pipe");
		done += (size_t)m;
	}
	return 0;
}

int outer_peek(int fd, char **ret, size_t *ret_len, struct err *e)
{
	auto_close int rd = -1, c0 = -1, c1 = -1;
	auto_free char *data = NULL;
	int copy[2], n = 0, r;

	*ret = NULL;
	*ret_len = 0;
	rd = reopen(fd, O_RDONLY);
	if (rd < 0 || ioctl(rd, FIONREAD, &n) < 0)
		return err_sys(e, errno, "look into a pipe");
	if (n <= 0)
		return 0;
	if (pipe2(copy, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	c0 = copy[0];
	c1 = copy[1];
	data = malloc((size_t)n);
	if (!data)
		return err_sys(e, ENOMEM, "pipe");
	r = tee_all(rd, copy, (size_t)n, data, e);
	if (r < 0)
		return r;
	*ret = steal_ptr(data);
	*ret_len = (size_t)n;
	return 0;
}

struct table {
	json_t *list;
	bool pending;
	size_t bytes;
	struct err *e;
};

static int add_pending(struct table *t, json_t *row, int fd)
{
	auto_free char *data = NULL;
	size_t len;
	int r;

	if (!t->pending)
		return 0;
	r = outer_peek(fd, &data, &len, t->e);
	if (r < 0 || !data)
		return r;
	t->bytes += len;
	if (t->bytes > PENDING_MAX)
		return err_set(t->e, -EFBIG, "too_large",
			       "more than %u MiB stand in the pipes of its "
			       "commands",
			       PENDING_MAX >> 20);
	return json_set_b64(row, "pending", data, len) < 0
		       ? err_sys(t->e, ENOMEM, "descriptors")
		       : 0;
}

#define PTS_MAJOR 136

/* What the engine calls it, and for a terminal its number, put into ${row}. */
static int put_name(const struct outer *o, json_t *row, struct err *e)
{
	unsigned index = 0;
	struct stat st;
	char of[64];

	if (fstat(o->fd, &st) < 0)
		return err_sys(e, errno, "descriptor %d", o->fd);
	if (o->kind == OUTER_TTY) {
		if (ioctl(o->fd, TIOCGPTN, &index) < 0)
			return err_sys(e, errno, "number of a terminal");
		snprintf(of, sizeof(of), "tty[%llx:%llx]",
			 (unsigned long long)makedev(PTS_MAJOR, index),
			 (unsigned long long)st.st_dev);
		json_object_set_new(row, "index", json_integer(index));
	} else {
		snprintf(of, sizeof(of), "pipe:[%llu]",
			 (unsigned long long)st.st_ino);
	}
	return json_object_set_new(row, "of", json_string(of)) < 0
		       ? err_sys(e, ENOMEM, "descriptors")
		       : 0;
}

static int add_row(struct box *b, const struct outer *o, void *arg)
{
	static const char *const kinds[] = {
		[OUTER_READ] = "pipe-read",
		[OUTER_WRITE] = "pipe-write",
		[OUTER_TTY] = "tty",
		[OUTER_PID] = "pidfd",
	};
	json_t *row = json_pack("{s:s}", "kind", kinds[o->kind]);
	struct table *t = arg;
	char number[16];
	int r = 0;

	(void)b;
	/* One that no client writes to any more is at its end for good. */
	if (o->kind == OUTER_WRITE && !outer_stdin_open(o->fd)) {
		json_decref(row);
		return 0;
	}
	/* A process that is reaped, and not reported yet, comes not again. */
	if (o->kind == OUTER_PID &&
	    syscall(SYS_pidfd_send_signal, o->fd, 0, NULL, 0) < 0 &&
	    errno == ESRCH) {
		json_decref(row);
		return 0;
	}
	if (!row)
		return err_sys(t->e, ENOMEM, "descriptors");
	if (o->kind == OUTER_PID)
		json_object_set_new(row, "inner", json_integer(o->inner));
	else
		r = put_name(o, row, t->e);
	if (r == 0 && (o->kind == OUTER_READ || o->kind == OUTER_WRITE))
		r = add_pending(t, row, o->fd);
	if (r < 0) {
		json_decref(row);
		return r;
	}
	snprintf(number, sizeof(number), "%d", o->fd);
	return json_object_set_new(t->list, number, row) < 0
		       ? err_sys(t->e, ENOMEM, "descriptors")
		       : 0;
}

int outer_table(struct box *b, bool pending, json_t **ret, struct err *e)
{
	struct table t = {
		.list = json_object(),
		.pending = pending,
		.e = e,
	};
	int r;

	if (!t.list)
		return err_sys(e, ENOMEM, "descriptors");
	r = outer_each(b, add_row, &t);
	if (r < 0) {
		json_decref(t.list);
		return r;
	}
	*ret = t.list;
	return 0;
}

static int keep(struct box *b, int *fd, struct err *e)
{
	int *list = realloc(b->keep, (b->nkeep + 1) * sizeof(*list));

	if (!list)
		return err_sys(e, ENOMEM, "descriptors");
	b->keep = list;
	list[b->nkeep++] = steal_fd(fd);
	return 0;
}

static int keep_other(struct box *b, const struct outer *o, void *arg)
{
	auto_close int fd = -1;

	if (o->kind != OUTER_READ && o->kind != OUTER_WRITE)
		return 0;
	fd = reopen(o->fd, o->kind == OUTER_READ ? O_WRONLY : O_RDONLY);
	if (fd < 0)
		return err_sys(arg, errno, "hold a pipe");
	return keep(b, &fd, arg);
}

int outer_keep(struct box *b, struct err *e)
{
	struct err mine;
	int r = outer_each(b, keep_other, e ? e : &mine);

	if (r < 0)
		outer_let_go(b);
	return r;
}

void outer_let_go(struct box *b)
{
	for (size_t i = 0; i < b->nkeep; i++)
		fd_close(b->keep[i]);
	free(steal_ptr(b->keep));
	b->nkeep = 0;
}

void outer_sleep(struct box *b)
{
	loop_del(b->loop, &b->init_src);
	for (struct exec *x = b->execs; x; x = x->next)
		exec_sleep(x);
	for (struct session *s = b->sessions; s; s = s->next) {
		loop_del(b->loop, &s->pid_src);
		loop_timer_set(b->loop, &s->kill, 0);
		loop_timer_set(b->loop, &s->late, 0);
	}
}

/* Above all numbers of the table, so that nothing of ours is in the way. */
static int above(int *fd, int from, struct err *e)
{
	int high = fcntl(*fd, F_DUPFD_CLOEXEC, from);

	if (high < 0)
		return err_sys(e, errno, "descriptors");
	fd_close(*fd);
	*fd = high;
	return 0;
}

static int put_at(int *fd, int at, struct err *e)
{
	if (*fd != at) {
		if (dup3(*fd, at, O_CLOEXEC) < 0)
			return err_sys(e, errno, "descriptor %d", at);
		fd_close(*fd);
	}
	steal_fd(fd);
	return 0;
}

static int fill(int wr, const json_t *row, struct err *e)
{
	auto_free char *data = NULL;
	size_t len = 0;
	ssize_t n;
	int r;

	r = json_get_bytes(row, "pending", &data, &len, e);
	if (r <= 0)
		return r;
	if (len > PIPE_SIZE / 2)
		fcntl(wr, F_SETPIPE_SZ, 2 * PIPE_SIZE);
	n = write(wr, data, len);
	return n == (ssize_t)len
		       ? 0
		       : err_sys(e, n < 0 ? errno : ENOBUFS, "fill a pipe");
}

static int make_pipe(struct box *b, int at, int from, bool read_end,
		     const json_t *row, struct err *e)
{
	auto_close int ours = -1, theirs = -1;
	int p[2], r;

	if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0)
		return err_sys(e, errno, "pipe");
	fcntl(p[0], F_SETPIPE_SZ, PIPE_SIZE);
	ours = p[read_end ? 0 : 1];
	theirs = p[read_end ? 1 : 0];
	r = fill(p[1], row, e);
	if (r == 0)
		r = above(&ours, from, e);
	if (r == 0)
		r = above(&theirs, from, e);
	if (r == 0)
		r = put_at(&ours, at, e);
	return r < 0 ? r : keep(b, &theirs, e);
}

static int make_null(int at, int from, struct err *e)
{
	auto_close int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	int r;

	if (fd < 0)
		return err_sys(e, errno, "open /dev/null");
	r = above(&fd, from, e);
	return r < 0 ? r : put_at(&fd, at, e);
}

static int number_of(const char *text)
{
	char *end;
	long n = strtol(text, &end, 10);

	return *end || n < BOX_FD_REPORT || n > 1 << 20 ? -1 : (int)n;
}

int outer_make(struct box *b, const json_t *table, struct err *e)
{
	json_t *t = (json_t *)(uintptr_t)table, *row;
	int from = BOX_FD_INIT + 1, at, r = 0;
	const char *key;

	json_object_foreach(t, key, row) {
		at = number_of(key);
		if (at < 0)
			return err_set(e, -EBADMSG, "internal",
				       "the table of descriptors is torn");
		if (at >= from)
			from = at + 1;
	}
	json_object_foreach(t, key, row) {
		const char *kind = json_str(row, "kind");

		if (r < 0)
			break;
		at = number_of(key);
		if (!strncmp(kind, "pipe", 4))
			r = make_pipe(b, at, from, !strcmp(kind, "pipe-read"),
				      row, e);
		else
			r = make_null(at, from, e);
	}
	return r;
}
