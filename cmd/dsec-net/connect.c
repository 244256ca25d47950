/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "life/ctl.h"
#include "net.h"

/* stdin and stdout are a connection to a port inside, as ProxyCommand of ssh
 * wants it. */

#define BYTES (64 * 1024)

struct way {
	int from, to;
	bool eof, done; /* nothing more will come; and that was passed on */
	size_t at, len; /* of data: what is to be written */
	char data[BYTES];
};

static int take_in(struct way *w, struct err *e)
{
	ssize_t n = read(w->from, w->data, sizeof(w->data));

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n < 0)
		return err_sys(e, errno, "read");
	w->eof = n == 0;
	w->at = 0;
	w->len = (size_t)n;
	return 0;
}

static int put_out(struct way *w, struct err *e)
{
	ssize_t n = write(w->to, w->data + w->at, w->len - w->at);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n < 0)
		return err_sys(e, errno, "write");
	w->at += (size_t)n;
	return 0;
}

/* All of it was passed on, and no more comes: say so. */
static void finish(struct way *w)
{
	if (!w->eof || w->done || w->at < w->len)
		return;
	w->done = true;
	if (shutdown(w->to, SHUT_WR) < 0 && w->to == STDOUT_FILENO)
		fd_close(w->to);
}

static int step(struct way *w, short events, struct err *e)
{
	int r = 0;

	if (w->done)
		return 0;
	if (w->at < w->len)
		r = events ? put_out(w, e) : 0;
	else if (!w->eof)
		r = events ? take_in(w, e) : 0;
	if (r == 0)
		finish(w);
	return r;
}

/* Which descriptor ${w} waits for. */
static struct pollfd wants(const struct way *w)
{
	if (w->done)
		return (struct pollfd){.fd = -1};
	if (w->at < w->len)
		return (struct pollfd){.fd = w->to, .events = POLLOUT};
	return (struct pollfd){.fd = w->from, .events = POLLIN};
}

static int relay(int sock, struct err *e)
{
	auto_free struct way *w = calloc(2, sizeof(*w));
	struct pollfd p[2];
	int r = 0;

	if (!w)
		return err_sys(e, ENOMEM, "relay");
	w[0].from = STDIN_FILENO;
	w[0].to = sock;
	w[1].from = sock;
	w[1].to = STDOUT_FILENO;
	/* The far end's last word ends it, whatever we still had to say. */
	while (r == 0 && !w[1].done) {
		p[0] = wants(&w[0]);
		p[1] = wants(&w[1]);
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return err_sys(e, errno, "poll");
		r = step(&w[1], p[1].revents, e);
		if (r == 0 && step(&w[0], p[0].revents, NULL) < 0)
			w[0].done = true; /* nobody listens to us any more */
	}
	return r;
}

/* Its socket to port ${port}; ${c} stays open, which says that we are there. */
static int ask(struct ctl *c, int port, struct err *e)
{
	auto_json json_t *req = NULL;
	int r, sock = -1;

	r = json_pack_or(&req, e, "{s:i, s:s, s:i}", "id", 1, "op", "connect",
			 "port", port);
	if (r == 0)
		r = ctl_send(c, req, NULL, 0, e);
	while (r == 0 && sock < 0) {
		struct ctl_record rec auto_ctl_record = {.rec = NULL};

		r = ctl_wait(c, 0, &rec, e);
		if (r == 0 && rec.final)
			r = record_to_err(rec.rec, e);
		if (r == 0)
			sock = ctl_take_fd(&rec, "socket");
		if (r == 0 && rec.final && sock < 0)
			r = err_set(e, -EBADMSG, "internal",
				    "the supervisor sent no connection");
	}
	return r < 0 ? r : sock;
}

int mode_connect(const struct tree *t, const char *sandbox, const char *port,
		 struct err *e)
{
	auto_close int sock = -1;
	struct ctl *c = NULL;
	char *end;
	long n = strtol(port, &end, 10);
	int r;

	if (*port < '1' || *port > '9' || *end || n > 65535)
		return err_set(e, -EINVAL, "usage",
			       "--connect %s: not a port (1 to 65535)", port);
	r = ctl_open(t, sandbox, 0, &c, e);
	if (r == 0)
		r = sock = ask(c, (int)n, e);
	if (r >= 0)
		r = relay(sock, e);
	ctl_free(c);
	return r;
}
