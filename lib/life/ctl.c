/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "life/ctl.h"
#include "life/recover.h"
#include "life/teardown.h"
#include "wire/jsonl.h"
#include "wire/record.h"

#define RETRY_MS  20
#define CHUNK	  16384
#define QUEUE_MAX 64
#define CANCEL_MS 60000

struct ctl {
	const struct tree *tree;
	char id[BOX_ID_LEN + 1];
	int sock;
	bool nonblock;
	struct jsonl in;
	struct buf out; /* CTL_NONBLOCK: what did not fit */
	/* Descriptors that came, in order, and no record has claimed yet: a
	 * read may return a record together with the one before it. */
	int fds[QUEUE_MAX];
	size_t nfds;
};

int ctl_dead(const struct tree *t, const char *id, json_t **ret_rec,
	     struct err *e)
{
	if (teardown_recorded(t, id, ret_rec) || teardown_lost(t, id, ret_rec))
		return 0;
	return err_set(e, -ENOENT, "sandbox_unknown", "no sandbox '%s' here",
		       id);
}

/* The cause of a death that is on record. */
static int ended(const char *id, const json_t *dead, struct err *e)
{
	const char *outcome = json_str(dead, "outcome");
	const char *name = json_str(json_object_get(dead, "spec"), "name");
	int r;

	if (!strcmp(outcome, "supervisor-lost"))
		r = err_set(e, -EPIPE, "supervisor_lost",
			    "the supervisor of sandbox %s died, and the "
			    "sandbox with it",
			    id);
	else
		r = err_set(e, -ESHUTDOWN, "stopped",
			    "sandbox %s%s%s%s has ended: %.64s", id,
			    *name ? " ('" : "", name, *name ? "')" : "",
			    *outcome ? outcome : "cause unknown");
	if (e)
		e->infra = json_flag(dead, "infra");
	return r;
}

static int lost(const struct tree *t, const char *id, struct err *e)
{
	auto_json json_t *dead = NULL;
	int r;

	if (ctl_dead(t, id, &dead, NULL) == 0)
		return ended(id, dead, e);
	r = err_set(e, -EPIPE, "supervisor_lost",
		    "the supervisor of sandbox %s does not answer: it died, "
		    "and the sandbox with it",
		    id);
	if (e)
		e->infra = true;
	return r;
}

/* There is no socket: find out why. */
static int no_socket(const struct tree *t, const char *id, struct err *e)
{
	auto_json json_t *claim = NULL, *dead = NULL;
	auto_close int fd = -1;
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb/%s/claim.json", t->run, id);
	if (r < 0)
		return r;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 && errno != ENOENT && errno != ENOTDIR)
		return err_sys(e, errno, "open '%s'", path);
	if (fd < 0)
		return ctl_dead(t, id, &dead, e) < 0 ? -ENOENT
						     : ended(id, dead, e);
	if (flock(fd, LOCK_SH | LOCK_NB) == 0)
		return lost(t, id, e);
	/* The lock is held: it lives. */
	if (json_read_file(AT_FDCWD, path, &claim, NULL) == 0 &&
	    !strcmp(json_str(claim, "kind"), "one-shot"))
		return err_set(e, -EOPNOTSUPP, "one_shot",
			       "sandbox %s is a one-shot: it has no supervisor "
			       "to ask",
			       id);
	r = err_set(e, -EBUSY, "busy", "sandbox %s is being made", id);
	if (e)
		e->retry_after_ms = RETRY_MS;
	return r;
}

static int refused(const struct tree *t, const char *id, int errnum,
		   struct err *e)
{
	int r;

	switch (errnum) {
	case ENOENT:
	case ENOTDIR:
		return no_socket(t, id, e);
	case ECONNREFUSED:
		return lost(t, id, e);
	case EAGAIN:
		r = err_set(e, -EBUSY, "busy",
			    "too many wait for the supervisor of sandbox %s",
			    id);
		if (e)
			e->retry_after_ms = RETRY_MS;
		return r;
	default:
		return err_sys(e, errnum, "connect to sandbox %s", id);
	}
}

static int connect_once(const struct tree *t, const char *id, bool nonblock,
			struct err *e)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	auto_close int fd = -1;
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb/%s/ctl.sock", t->run, id);
	if (r < 0)
		return r;
	if (strlen(path) >= sizeof(addr.sun_path)) {
		fd = fd_unix_connect(path, e);
		if (fd < 0)
			return refused(t, id, -fd, e);
		if (nonblock && fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
			return err_sys(e, errno, "connect to sandbox %s", id);
		return steal_fd(&fd);
	}
	memcpy(addr.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX,
		    SOCK_STREAM | SOCK_CLOEXEC | (nonblock ? SOCK_NONBLOCK : 0),
		    0);
	if (fd < 0)
		return err_sys(e, errno, "socket");
	do
		r = connect(fd, (struct sockaddr *)&addr, sizeof(addr));
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return refused(t, id, errno, e);
	return steal_fd(&fd);
}

/* Whoever comes first after a restart of the node, or the death of the
 * supervisor, gives a sandbox on the disk a supervisor again. */
static int connect_to(const struct tree *t, const char *id, unsigned flags,
		      struct err *e)
{
	bool nonblock = flags & CTL_NONBLOCK;
	struct cgroup_root *cgroups = NULL;
	int fd, r;

	fd = connect_once(t, id, nonblock, e);
	if ((fd != -ENOENT && fd != -EPIPE) || !teardown_kept(t, id))
		return fd;
	if (flags & CTL_NO_RECOVER)
		return err_set(e, -ESTALE, "busy",
			       "sandbox %s has no supervisor yet", id);
	r = cgroup_open(t->cgroup, &cgroups, e);
	if (r < 0)
		return r;
	r = recover(t, cgroups, id, e);
	cgroup_close(cgroups);
	return r < 0 ? r : connect_once(t, id, nonblock, e);
}

int ctl_open(const struct tree *t, const char *sandbox, unsigned flags,
	     struct ctl **ret_ctl, struct err *e)
{
	char id[BOX_ID_LEN + 1];
	struct ctl *c;
	int r, sock;

	r = recover_find_any(t, sandbox, id, e);
	if (r < 0)
		return r;
	sock = connect_to(t, id, flags, e);
	if (sock < 0)
		return sock;
	c = calloc(1, sizeof(*c));
	if (!c) {
		fd_close(sock);
		return err_sys(e, ENOMEM, "connect to sandbox %s", id);
	}
	c->tree = t;
	memcpy(c->id, id, sizeof(id));
	c->sock = sock;
	c->nonblock = flags & CTL_NONBLOCK;
	c->in.fd = -1;
	*ret_ctl = c;
	return 0;
}

void ctl_free(struct ctl *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < c->nfds; i++)
		fd_close(c->fds[i]);
	fd_close(c->sock);
	jsonl_done(&c->in);
	buf_done(&c->out);
	free(c);
}

const char *ctl_id(const struct ctl *c)
{
	return c->id;
}

int ctl_fd(const struct ctl *c)
{
	return c->sock;
}

bool ctl_pending(const struct ctl *c)
{
	return c->out.len > 0;
}

/* The peer is gone.  It may have said why before: the next read tells. */
static bool hung_up(int errnum)
{
	return errnum == EPIPE || errnum == ECONNRESET;
}

int ctl_flush(struct ctl *c, struct err *e)
{
	ssize_t n;

	while (c->out.len > 0) {
		n = send(c->sock, c->out.data, c->out.len,
			 MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n < 0 && hung_up(errno)) {
			buf_done(&c->out);
			return 0;
		}
		if (n < 0)
			return err_sys(e, errno, "send to sandbox %s", c->id);
		buf_drop(&c->out, (size_t)n);
	}
	return 0;
}

static int send_line(struct ctl *c, const char *line, size_t len,
		     const int *fds, size_t nfds, struct err *e)
{
	ssize_t n = 0;

	/* Behind what waits already, nothing may overtake. */
	if (c->out.len == 0 || nfds > 0)
		n = c->out.len ? -EAGAIN
			       : fd_send(c->sock, line, len, fds, nfds, 0);
	if (hung_up((int)-n))
		return 0;
	if (n == -EAGAIN && nfds == 0)
		n = 0;
	if (n < 0)
		return err_sys(e, (int)-n, "send to sandbox %s", c->id);
	if ((size_t)n == len)
		return 0;
	if (c->nonblock)
		return buf_add(&c->out, line + n, len - (size_t)n) < 0
			       ? err_sys(e, ENOMEM, "send")
			       : 0;
	while ((size_t)n < len) {
		ssize_t k = fd_send(c->sock, line + n, len - (size_t)n, NULL, 0,
				    0);

		if (hung_up((int)-k))
			return 0;
		if (k < 0)
			return err_sys(e, (int)-k, "send to sandbox %s", c->id);
		n += k;
	}
	return 0;
}

int ctl_send(struct ctl *c, const json_t *req, const int *fds, size_t nfds,
	     struct err *e)
{
	auto_free char *text = NULL;
	size_t len;

	if (nfds > CTL_FDS_MAX)
		return err_set(e, -EINVAL, "internal", "%zu descriptors", nfds);
	text = json_dumps(req, JSON_COMPACT);
	if (!text)
		return err_sys(e, ENOMEM, "request");
	len = strlen(text);
	if (len > JSON_LINE_MAX)
		return err_set(e, -EMSGSIZE, "too_large",
			       "a request of %zu bytes (%d at most)", len,
			       JSON_LINE_MAX);
	text[len] = '\n'; /* in place of the NUL */
	return send_line(c, text, len + 1, fds, nfds, e);
}

void ctl_record_done(struct ctl_record *r)
{
	json_decref(r->rec);
	for (size_t i = 0; i < r->nfds; i++)
		if (r->fds[i] >= 0)
			fd_close(r->fds[i]);
	memset(r, 0, sizeof(*r));
}

int ctl_take_fd(struct ctl_record *r, const char *name)
{
	json_t *names = json_object_get(r->rec, "fds");
	const char *s;

	for (size_t i = 0; i < r->nfds; i++) {
		s = json_string_value(json_array_get(names, i));
		if (s && !strcmp(s, name) && r->fds[i] >= 0)
			return steal_fd(&r->fds[i]);
	}
	return -1;
}

/* Give the record the descriptors it names. */
static int claim_fds(struct ctl *c, struct ctl_record *r, struct err *e)
{
	json_t *names = json_object_get(r->rec, "fds");
	size_t n = json_array_size(names);

	if (names && !json_is_array(names))
		return err_set(e, -EBADMSG, "internal",
			       "sandbox %s: 'fds' is not a list", c->id);
	if (n > CTL_FDS_MAX || n > c->nfds)
		return err_set(e, -EBADMSG, "internal",
			       "sandbox %s: a record names %zu descriptors, "
			       "%zu came",
			       c->id, n, c->nfds);
	memcpy(r->fds, c->fds, n * sizeof(int));
	r->nfds = n;
	c->nfds -= n;
	memmove(c->fds, c->fds + n, c->nfds * sizeof(int));
	return 0;
}

/* A record that is there already: 0, -EAGAIN or another -errno. */
static int parse_next(struct ctl *c, struct ctl_record *ret, struct err *e)
{
	struct ctl_record rec = {0};
	json_t *ok;
	char *text;
	size_t len;
	int r;

	r = jsonl_next(&c->in, &text, &len, e);
	if (r <= 0)
		return r == 0 ? -EAGAIN : r;
	r = json_parse(text, len, &rec.rec, e);
	if (r < 0)
		return err_wrap(e, r, "the supervisor of sandbox %s", c->id);
	r = claim_fds(c, &rec, e);
	if (r < 0) {
		ctl_record_done(&rec);
		return r;
	}
	ok = json_object_get(rec.rec, "ok");
	rec.final = json_is_boolean(ok);
	*ret = rec;
	return 0;
}

static int queue_fds(struct ctl *c, struct msghdr *msg, struct err *e)
{
	bool bad = msg->msg_flags & MSG_CTRUNC;
	struct cmsghdr *h;
	size_t n;
	int fd;

	for (h = CMSG_FIRSTHDR(msg); h; h = CMSG_NXTHDR(msg, h)) {
		if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
			continue;
		n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			memcpy(&fd, CMSG_DATA(h) + i * sizeof(int),
			       sizeof(int));
			if (c->nfds < QUEUE_MAX) {
				c->fds[c->nfds++] = fd;
			} else {
				fd_close(fd);
				bad = true;
			}
		}
	}
	return bad ? err_set(e, -EMFILE, "no_fds",
			     "sandbox %s: descriptors were lost on the way",
			     c->id)
		   : 0;
}

/* One read of the socket into the reader: 1, 0 at its end, -errno. */
static int receive(struct ctl *c, int flags, struct err *e)
{
	union {
		char buf[CMSG_SPACE(CTL_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} u;
	char data[CHUNK];
	struct iovec iov = {data, sizeof(data)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = u.buf,
			     .msg_controllen = sizeof(u.buf)};
	ssize_t n;
	int r;

	do
		n = recvmsg(c->sock, &msg, MSG_CMSG_CLOEXEC | flags);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return -EAGAIN;
	if (n < 0 && errno == ECONNRESET)
		return 0;
	if (n < 0)
		return err_sys(e, errno, "receive from sandbox %s", c->id);
	r = queue_fds(c, &msg, e);
	if (r < 0 || n == 0)
		return r;
	if (jsonl_feed(&c->in, data, (size_t)n) < 0)
		return err_sys(e, ENOMEM, "receive from sandbox %s", c->id);
	return 1;
}

static int next(struct ctl *c, int flags, struct ctl_record *ret, struct err *e)
{
	int r;

	for (;;) {
		r = parse_next(c, ret, e);
		if (r != -EAGAIN)
			return r;
		r = receive(c, flags, e);
		if (r == 0)
			return lost(c->tree, c->id, e);
		if (r < 0)
			return r;
	}
}

int ctl_next(struct ctl *c, struct ctl_record *ret, struct err *e)
{
	return next(c, MSG_DONTWAIT, ret, e);
}

static int wait_ms(uint64_t deadline_ms)
{
	uint64_t now = clock_ms();

	if (deadline_ms <= now)
		return 0;
	return deadline_ms - now > INT_MAX ? INT_MAX : (int)(deadline_ms - now);
}

int ctl_wait(struct ctl *c, uint64_t deadline_ms, struct ctl_record *ret,
	     struct err *e)
{
	struct pollfd p = {.fd = c->sock, .events = POLLIN};
	int r;

	if (!deadline_ms && !c->nonblock)
		return next(c, 0, ret, e);
	for (;;) {
		r = ctl_next(c, ret, e);
		if (r != -EAGAIN)
			return r;
		p.events = ctl_pending(c) ? POLLIN | POLLOUT : POLLIN;
		r = poll(&p, 1, deadline_ms ? wait_ms(deadline_ms) : -1);
		if (r < 0 && errno != EINTR)
			return err_sys(e, errno, "wait for sandbox %s", c->id);
		if (r == 0)
			return err_set(e, -ETIMEDOUT, "deadline",
				       "sandbox %s did not answer in time",
				       c->id);
		if (p.revents & POLLOUT) {
			r = ctl_flush(c, e);
			if (r < 0)
				return r;
		}
	}
}

int ctl_call(const struct tree *t, const char *sandbox, const json_t *req,
	     uint64_t deadline_ms, json_t **ret_rec, struct err *e)
{
	struct ctl_record rec = {0};
	struct ctl *c = NULL;
	int r;

	r = ctl_open(t, sandbox, 0, &c, e);
	if (r < 0)
		return r;
	r = ctl_send(c, req, NULL, 0, e);
	while (r == 0) {
		r = ctl_wait(c, deadline_ms, &rec, e);
		if (r < 0 || rec.final)
			break;
		ctl_record_done(&rec);
	}
	ctl_free(c);
	if (r == 0)
		r = record_to_err(rec.rec, e);
	if (r == 0)
		*ret_rec = steal_ptr(rec.rec);
	ctl_record_done(&rec);
	return r;
}

static int send_cancel(struct ctl *c, json_t *id, struct err *e)
{
	auto_json json_t *req = json_pack("{s:i, s:O}", "id", -1, "cancel", id);

	return req ? ctl_send(c, req, NULL, 0, e)
		   : err_sys(e, ENOMEM, "request");
}

/* 1: ${stop} reads, and nothing came from the supervisor. */
static int wait_either(const struct ctl *c, int stop, struct err *e)
{
	struct pollfd p[] = {
		{.fd = c->sock, .events = POLLIN},
		{.fd = stop, .events = POLLIN},
	};
	int r;

	do
		r = poll(p, 2, -1);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return err_sys(e, errno, "wait for sandbox %s", c->id);
	return p[0].revents ? 0 : 1;
}

static int final_or_stop(struct ctl *c, json_t *id, int stop,
			 struct ctl_record *ret, struct err *e)
{
	uint64_t deadline = 0;
	int r = 0;

	while (r >= 0) {
		r = deadline ? ctl_wait(c, deadline, ret, e)
			     : ctl_next(c, ret, e);
		if (r == 0 && ret->final &&
		    json_equal(json_object_get(ret->rec, "id"), id))
			return 0;
		if (r == 0)
			ctl_record_done(ret);
		if (r != -EAGAIN)
			continue;
		r = wait_either(c, stop, e);
		if (r == 1) {
			deadline = clock_ms() + CANCEL_MS;
			r = send_cancel(c, id, e);
		}
	}
	return r;
}

int ctl_call_stop(const struct tree *t, const char *sandbox, const json_t *req,
		  int stop, json_t **ret_rec, struct err *e)
{
	auto_ctl_record struct ctl_record rec = {0};
	struct ctl *c = NULL;
	int r;

	r = ctl_open(t, sandbox, 0, &c, e);
	if (r < 0)
		return r;
	r = ctl_send(c, req, NULL, 0, e);
	if (r == 0)
		r = final_or_stop(c, json_object_get(req, "id"), stop, &rec, e);
	ctl_free(c);
	if (r == 0)
		r = record_to_err(rec.rec, e);
	if (r == 0)
		*ret_rec = steal_ptr(rec.rec);
	return r;
}

static int made_and_ended(const struct tree *t, const char *id,
			  json_t **ret_rec, struct err *e)
{
	auto_json json_t *dead = NULL;
	int r = ctl_dead(t, id, &dead, e);

	/* One that was half made, and taken away. */
	if (r == -ENOENT || (r == 0 && json_flag(dead, "infra")))
		return 1;
	if (r == 0)
		r = json_pack_or(ret_rec, e, "{s:s}", "state", "stopped");
	if (r == 0 && json_object_get(dead, "spec"))
		json_object_update_missing(*ret_rec,
					   json_object_get(dead, "spec"));
	return r;
}

int ctl_made(const struct tree *t, const char *id, json_t **ret_rec,
	     struct err *e)
{
	auto_json json_t *req = NULL;
	int r = json_pack_or(&req, e, "{s:i, s:s}", "id", 0, "op", "inspect");

	if (r == 0)
		r = ctl_call(t, id, req, 0, ret_rec, e);
	if (r == 0)
		return 0;
	if (!strcmp(e->code, "stopped"))
		return made_and_ended(t, id, ret_rec, e);
	return strcmp(e->code, "sandbox_unknown") != 0 &&
			       strcmp(e->code, "supervisor_lost") != 0
		       ? r
		       : 1;
}
