/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "remote.h"
#include "wire/record.h"

#define SAID_MAX (JSON_LINE_MAX + 64 * 1024)

static int vappend(json_t *args, const char *fmt, va_list ap)
{
	char text[256];

	if (vsnprintf(text, sizeof(text), fmt, ap) >= (int)sizeof(text))
		return -ENAMETOOLONG;
	return json_array_append_new(args, json_string(text)) < 0 ? -ENOMEM : 0;
}

int remote_arg(json_t *args, const char *fmt, ...)
{
	va_list ap;
	int r;

	va_start(ap, fmt);
	r = vappend(args, fmt, ap);
	va_end(ap);
	return r;
}

int remote_path(json_t *args, const char *key, const char *path)
{
	auto_json json_t *obj = json_object();
	auto_buf struct buf text = {0};
	const char *b64;
	int r;

	if (!obj || json_set_bytes(obj, "p", path, strlen(path)) < 0)
		return -ENOMEM;
	b64 = json_string_value(json_object_get(obj, "p_b64"));
	r = buf_addf(&text, "%s%s=%s", key, b64 ? "_b64" : "",
		     b64 ? b64 : path);
	if (r < 0)
		return r;
	r = json_array_append_new(args, json_string(text.data));
	return r < 0 ? -ENOMEM : 0;
}

static void close_end(int *fd)
{
	if (*fd >= 0)
		fd_close(steal_fd(fd));
}

void remote_done(struct remote *rm)
{
	close_end(&rm->h.in);
	close_end(&rm->h.out);
	close_end(&rm->h.err);
	buf_done(&rm->said);
}

static int nonblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

int remote_start(struct remote *rm, struct file_call *c, json_t *args,
		 struct err *e)
{
	const json_t *user = json_object_get(c->req, "user");
	int r;

	*rm = (struct remote){.c = c, .h = {-1, -1, -1}};
	if (!args)
		return err_sys(e, ENOMEM, "request");
	/* A helper that gives up closes its input and says why elsewhere. */
	signal(SIGPIPE, SIG_IGN);
	r = file_helper_start(c, args, json_string_value(user), &rm->h, e);
	json_decref(args);
	if (r < 0)
		return r;
	rm->started = true;
	if (nonblock(rm->h.in) < 0 || nonblock(rm->h.out) < 0 ||
	    nonblock(rm->h.err) < 0)
		return err_sys(e, errno, "helper");
	rm->alive_ms = clock_ms();
	return 0;
}

/* Blank lines are signs of life; only the result is kept. */
static int hear(struct remote *rm, struct err *e)
{
	char data[4096];
	ssize_t n = read(rm->h.err, data, sizeof(data)), from = 0;

	if (n < 0)
		return errno == EAGAIN || errno == EINTR
			       ? 0
			       : err_sys(e, errno, "listen to the helper");
	if (n == 0)
		close_end(&rm->h.err);
	while (rm->said.len == 0 && from < n && data[from] == '\n')
		from++;
	if (rm->said.len + (size_t)n > SAID_MAX)
		return err_set(e, -EBADMSG, "internal",
			       "the file helper talks too much");
	if (n > from && buf_add(&rm->said, data + from, (size_t)(n - from)) < 0)
		return err_sys(e, ENOMEM, "listen to the helper");
	return 0;
}

/* A sandbox that is paused on purpose is not a helper that is stuck. */
static bool is_paused(const struct remote *rm)
{
	auto_json json_t *state = NULL;
	char path[PATH_MAX];

	return tree_path(path, NULL, "%s/sb/%s/state.json", rm->c->tree->run,
			 ctl_id(rm->c->ctl)) == 0 &&
	       json_read_file(AT_FDCWD, path, &state, NULL) == 0 &&
	       !strcmp(json_str(state, "state"), "paused");
}

static int time_left(struct remote *rm, struct err *e)
{
	uint64_t now = clock_ms(), until = rm->alive_ms + REMOTE_STALL_MS;

	if (rm->c->deadline_ms && now >= rm->c->deadline_ms)
		return err_set(e, -ETIMEDOUT, "deadline", "deadline_ms passed");
	if (now >= until) {
		if (!is_paused(rm)) {
			err_set(e, -ETIMEDOUT, "timeout",
				"the file helper gave no sign of life for %d "
				"s",
				REMOTE_STALL_MS / 1000);
			return -ETIMEDOUT;
		}
		rm->alive_ms = now;
		until = now + REMOTE_STALL_MS;
	}
	if (rm->c->deadline_ms && until > rm->c->deadline_ms)
		until = rm->c->deadline_ms;
	return (int)(until - now);
}

/* Wait until ${fd} (or -1: only its stderr) is ready; 1: it is. */
static int wait_for(struct remote *rm, int fd, short events, struct err *e)
{
	struct pollfd p[3] = {{fd, events, 0},
			      {rm->h.err, POLLIN, 0},
			      {rm->stop_fd ? rm->stop_fd : -1, POLLIN, 0}};
	int ms = time_left(rm, e), r;

	if (ms < 0)
		return ms;
	r = poll(p, 3, ms);
	if (r < 0)
		return errno == EINTR ? 0 : err_sys(e, errno, "poll");
	if (p[2].revents)
		return err_set(e, -ECANCELED, "cancelled",
			       "a signal ended the copy");
	if (r > 0)
		rm->alive_ms = clock_ms();
	if (p[1].revents && hear(rm, e) < 0)
		return e ? e->r : -EIO;
	return p[0].revents != 0;
}

static void moved(struct remote *rm, size_t n)
{
	rm->bytes += n;
	rm->alive_ms = clock_ms();
	if (rm->progress)
		rm->progress(rm->arg, rm->bytes);
}

ssize_t remote_read(void *arg, void *data, size_t cap, struct err *e)
{
	struct remote *rm = arg;
	ssize_t n;
	int r;

	while (rm->h.out >= 0) {
		n = read(rm->h.out, data, cap);
		if (n > 0)
			moved(rm, (size_t)n);
		if (n > 0)
			return n;
		if (n == 0) {
			close_end(&rm->h.out);
			break;
		}
		if (errno != EAGAIN && errno != EINTR)
			return err_sys(e, errno, "read from the helper");
		r = wait_for(rm, rm->h.out, POLLIN, e);
		if (r < 0)
			return r;
	}
	return 0;
}

int remote_write(void *arg, const void *data, size_t len, struct err *e)
{
	struct remote *rm = arg;
	const char *p = data;
	ssize_t n;
	int r;

	while (len > 0) {
		n = rm->h.in < 0 ? (errno = EPIPE, -1)
				 : write(rm->h.in, p, len);
		if (n > 0) {
			moved(rm, (size_t)n);
			p += n;
			len -= (size_t)n;
			continue;
		}
		if (errno != EAGAIN && errno != EINTR)
			return err_sys(e, errno, "write to the helper");
		r = wait_for(rm, rm->h.in, POLLOUT, e);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Its last words, or that there were none. */
static int result_of(struct remote *rm, json_t **ret_result, struct err *e)
{
	size_t len = rm->said.len;

	while (len > 0 && rm->said.data[len - 1] == '\n')
		len--;
	if (len == 0 || json_parse(rm->said.data, len, ret_result, NULL) < 0)
		return err_set(e, -EBADMSG, "internal",
			       "the file helper was ended without a result");
	return record_to_err(*ret_result, e);
}

int remote_end(struct remote *rm, json_t **ret_result, struct err *e)
{
	uint64_t deadline = rm->c->deadline_ms;
	int status = 0, r = 0;

	*ret_result = NULL;
	close_end(&rm->h.in);
	close_end(&rm->h.out);
	while (r >= 0 && rm->h.err >= 0)
		r = wait_for(rm, -1, 0, e);
	if (r < 0)
		return r;
	/* It has said all it had to say: now it ends, or is stuck. */
	if (!deadline || deadline > clock_ms() + REMOTE_STALL_MS)
		rm->c->deadline_ms = clock_ms() + REMOTE_STALL_MS;
	r = helper_end(rm->c, &status, rm->said.len ? NULL : e);
	rm->c->deadline_ms = deadline;
	if (r < 0 && rm->said.len == 0)
		return r;
	return result_of(rm, ret_result, e);
}
