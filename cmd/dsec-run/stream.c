/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many requests: this process reads and writes, workers launch.  A worker is a
 * plain process that does one request after another, so the launch is the same
 * straight-line code for one sandbox and for thousands, and a worker's end
 * costs one request.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sig.h"
#include "run.h"
#include "wire/exit.h"
#include "wire/jsonl.h"
#include "wire/record.h"

#define WORKERS_MAX 256

struct worker {
	pid_t pid;
	int fd;
	struct jsonl in;
	json_t *req;	      /* being worked on; NULL: idle */
	const char *stopping; /* why it was told to stop: an error code */
	uint64_t deadline_ms;
};

struct pool_of {
	const struct tree *tree;
	json_t *defaults;
	struct worker w[WORKERS_MAX];
	unsigned n, max, busy;
	struct jsonl in;
	bool eof;
	unsigned failed;	 /* records that were not ok */
	enum exit_status status; /* of the failures, as long as they agree */
	bool lost;
	int sig, ended_by; /* ended_by: the signal that told us to end; or 0 */
	uint64_t ended_ms; /* when it came */
};

static void note_failure(struct pool_of *p, const char *code)
{
	struct err e = {.code = code};
	enum exit_status s = exit_of(&e);

	p->status = p->failed == 0 || p->status == s ? s : EXIT_NO;
	p->failed++;
}

static void put(struct pool_of *p, const json_t *rec)
{
	struct err e;

	if (json_is_false(json_object_get(rec, "ok")))
		note_failure(p,
			     json_str(json_object_get(rec, "error"), "code"));
	if (!p->lost && record_write(STDOUT_FILENO, rec, &e) < 0) {
		log_err(&e);
		p->lost = true;
	}
}

static void put_error(struct pool_of *p, const json_t *req,
		      const struct err *why)
{
	auto_json json_t *rec = record_error(req, why);

	if (rec)
		put(p, rec);
	else
		note_failure(p, "no_memory");
}

/* The worker's own life: lines in, records out, until its input ends.  Once
 * told to stop it does no more. */
static int serve(const struct tree *t, int fd)
{
	static const int signals[] = {SIGTERM};
	struct jsonl in = {.fd = fd};
	struct creator c;
	struct err e = {0};
	size_t len;
	char *text;
	int sig, r;

	sig = sig_block(signals, 1, &e);
	if (sig < 0)
		return 71;
	r = creator_open(t, &c, &e);
	while (jsonl_next(&in, &text, &len, NULL) == 1) {
		auto_json json_t *req = NULL;
		auto_json json_t *rec = NULL;
		int bad;

		if (r < 0) /* what was lacking for the one before */
			r = creator_open(t, &c, &e);
		bad = r;
		if (bad == 0)
			bad = json_parse(text, len, &req, &e);
		if (bad == 0)
			bad = request_do(&c, req, sig, &rec, &e);
		if (bad < 0)
			rec = request_failed(req, &e);
		if (!rec || record_write(fd, rec, &e) < 0)
			break;
	}
	return 0;
}

static int start_worker(struct pool_of *p, struct worker **ret, struct err *e)
{
	struct worker *w = p->w;
	int pair[2];
	pid_t pid;

	/* Where one was lost, its place; fewer than max are busy. */
	while (w < &p->w[p->n] && w->fd >= 0)
		w++;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return err_sys(e, errno, "socket for a worker");
	pid = fork();
	if (pid < 0) {
		fd_close(pair[0]);
		fd_close(pair[1]);
		return err_sys(e, errno, "start a worker");
	}
	if (pid == 0) {
		int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

		prctl(PR_SET_PDEATHSIG, SIGTERM);
		for (unsigned i = 0; i < p->n; i++)
			if (p->w[i].fd >= 0)
				fd_close(p->w[i].fd);
		fd_close(pair[0]);
		/* Records are the parent's to write. */
		if (null >= 0)
			dup2(null, STDIN_FILENO);
		dup2(STDERR_FILENO, STDOUT_FILENO);
		_exit(serve(p->tree, pair[1]));
	}
	fd_close(pair[1]);
	*w = (struct worker){.pid = pid, .fd = pair[0], .in.fd = -1};
	if (w == &p->w[p->n])
		p->n++;
	*ret = w;
	return 0;
}

static struct worker *idle_worker(struct pool_of *p)
{
	for (unsigned i = 0; i < p->n; i++)
		if (p->w[i].fd >= 0 && !p->w[i].req)
			return &p->w[i];
	return NULL;
}

static int give(struct pool_of *p, json_t *req, struct err *e)
{
	struct worker *w = idle_worker(p);
	int64_t deadline = json_int(req, "deadline_ms", 0);
	int r;

	if (p->ended_by)
		return err_set(e, -ECANCELED, "cancelled",
			       "%s came before it was begun",
			       sig_name(p->ended_by));
	if (!w) {
		r = start_worker(p, &w, e);
		if (r < 0)
			return r;
	}
	r = record_write(w->fd, req, e);
	if (r < 0)
		return r;
	w->req = json_incref(req);
	w->stopping = NULL;
	w->deadline_ms = deadline ? clock_ms() + (uint64_t)deadline : 0;
	p->busy++;
	return 0;
}

static void tell_stop(struct worker *w, const char *why)
{
	w->stopping = why;
	kill(w->pid, SIGTERM);
}

static bool same_id(const json_t *req, const json_t *id)
{
	return json_equal(json_object_get(req, "id"), id);
}

/* {"cancel": id}: a request that is being worked on is told to stop; one whose
 * record is out already is left alone. */
static void cancel(struct pool_of *p, const json_t *req)
{
	const json_t *id = json_object_get(req, "cancel");
	auto_json json_t *rec = record_ok(req);
	bool found = false;

	for (unsigned i = 0; i < p->n; i++) {
		struct worker *w = &p->w[i];

		if (!w->req || !same_id(w->req, id))
			continue;
		tell_stop(w, "cancelled");
		found = true;
	}
	if (rec) {
		json_object_set_new(rec, "cancelled", json_boolean(found));
		put(p, rec);
	}
}

static void take_line(struct pool_of *p, const char *text, size_t len)
{
	struct record_line line = {text, len, p->in.line};
	auto_json json_t *req = NULL;
	enum record_kind kind;
	struct err e = {0};
	int r;

	r = record_take(&line, run_fields, run_fields_len, p->defaults, &kind,
			&req, &e);
	if (r == 0 && kind == RECORD_PASS) {
		put(p, req);
		return;
	}
	if (r == 0 && json_object_get(req, "cancel")) {
		cancel(p, req);
		return;
	}
	if (r == 0)
		r = give(p, req, &e);
	if (r < 0)
		put_error(p, req, &e);
}

/* Requests that have arrived, as long as there is a worker for them. */
static void take_lines(struct pool_of *p)
{
	struct err e;
	size_t len;
	char *text;
	int r;

	while (p->busy < p->max) {
		r = jsonl_next(&p->in, &text, &len, &e);
		if (r == 1) {
			take_line(p, text, len);
		} else if (r == -EMSGSIZE) {
			auto_json json_t *id = json_pack("{s:I}", "id",
							 (json_int_t)
								 p->in.line);

			put_error(p, id, &e);
		} else {
			p->eof = r != -EAGAIN;
			return;
		}
	}
}

/* One read at a time and only when there is something: we must not wait for
 * requests while records are to be written. */
static void read_requests(struct pool_of *p)
{
	static char chunk[64 * 1024];
	struct err e = {0};
	ssize_t n;

	n = read(STDIN_FILENO, chunk, sizeof(chunk));
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n < 0) {
		err_sys(&e, errno, "read requests");
		put_error(p, NULL, &e);
	}
	if (n <= 0)
		p->in.eof = true;
	else if (jsonl_feed(&p->in, chunk, (size_t)n) < 0)
		p->in.eof = true;
}

/* Why it was stopped is more than what it failed with then, but for what it
 * says of a sandbox that lives on. */
static void name_reason(struct worker *w, json_t *rec)
{
	json_t *error = json_object_get(rec, "error");
	bool waited = !strcmp(json_str(error, "code"), "cancelled");
	auto_json json_t *was = NULL;
	struct err e = {0};

	if (waited) {
		json_object_set_new(error, "code", json_string(w->stopping));
		return;
	}
	err_set(&e, -ECANCELED, w->stopping, "the request was ended: %s",
		w->stopping);
	was = record_error(w->req, &e);
	json_object_set(rec, "error", json_object_get(was, "error"));
}

static void finish(struct pool_of *p, struct worker *w, json_t *rec)
{
	if (w->stopping && json_is_false(json_object_get(rec, "ok"))) {
		name_reason(w, rec);
		if (p->ended_by)
			log_error("%s", json_str(json_object_get(rec, "error"),
						 "message"));
	}
	put(p, rec);
	json_decref(w->req);
	w->req = NULL;
	p->busy--;
}

static void lose_worker(struct pool_of *p, struct worker *w)
{
	struct err e = {0};

	fd_close(steal_fd(&w->fd));
	jsonl_done(&w->in);
	waitpid(w->pid, NULL, 0);
	if (!w->req)
		return;
	err_set(&e, -ECHILD, "helper_lost",
		"the process that worked on this request died");
	e.infra = true;
	put_error(p, w->req, &e);
	json_decref(w->req);
	w->req = NULL;
	p->busy--;
}

static void hear(struct pool_of *p, struct worker *w)
{
	static char chunk[64 * 1024];
	size_t len;
	char *text;
	ssize_t n;

	n = read(w->fd, chunk, sizeof(chunk));
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n <= 0 || jsonl_feed(&w->in, chunk, (size_t)n) < 0) {
		lose_worker(p, w);
		return;
	}
	while (jsonl_next(&w->in, &text, &len, NULL) == 1) {
		auto_json json_t *rec = NULL;

		if (w->req && json_parse(text, len, &rec, NULL) == 0)
			finish(p, w, rec);
	}
	/* It may hear only now that it is to stop, and would stop the next. */
	if (!w->req && w->stopping)
		lose_worker(p, w);
}

static int next_deadline(struct pool_of *p)
{
	uint64_t now = clock_ms(), at = 0;

	for (unsigned i = 0; i < p->n; i++) {
		struct worker *w = &p->w[i];

		if (!w->req || !w->deadline_ms || w->stopping)
			continue;
		if (w->deadline_ms <= now) {
			tell_stop(w, "deadline");
		} else if (!at || w->deadline_ms < at) {
			at = w->deadline_ms;
		}
	}
	return at ? (int)(at - now) : -1;
}

static void end_by(int sig)
{
	sigset_t heard;

	sigemptyset(&heard);
	sigaddset(&heard, sig);
	sigprocmask(SIG_UNBLOCK, &heard, NULL);
	raise(sig);
}

/* What is under way says how far it came; nothing more is begun.  A second
 * signal ends this process. */
static void take_signal(struct pool_of *p)
{
	struct signalfd_siginfo si;

	if (read(p->sig, &si, sizeof(si)) != sizeof(si) ||
	    sig_is_echo(&p->ended_ms))
		return;
	if (p->ended_by)
		end_by((int)si.ssi_signo);
	p->ended_by = (int)si.ssi_signo;
	p->in.eof = true;
	for (unsigned i = 0; i < p->n; i++)
		if (p->w[i].req)
			tell_stop(&p->w[i], "cancelled");
}

static int turn(struct pool_of *p, struct err *e)
{
	struct pollfd fds[WORKERS_MAX + 2];
	unsigned n = p->n;
	bool reading = !p->in.eof && p->busy < p->max;

	for (unsigned i = 0; i < n; i++)
		fds[i] = (struct pollfd){p->w[i].fd, POLLIN, 0};
	fds[n] = (struct pollfd){reading ? STDIN_FILENO : -1, POLLIN, 0};
	fds[n + 1] = (struct pollfd){p->sig, POLLIN, 0};
	if (poll(fds, n + 2, next_deadline(p)) < 0 && errno != EINTR)
		return err_sys(e, errno, "wait for workers");
	for (unsigned i = 0; i < n; i++)
		if (p->w[i].fd >= 0 && fds[i].revents)
			hear(p, &p->w[i]);
	if (fds[n].revents)
		read_requests(p);
	if (fds[n + 1].revents)
		take_signal(p);
	return 0;
}

static void dismiss(struct pool_of *p)
{
	for (unsigned i = 0; i < p->n; i++) {
		if (p->w[i].fd < 0)
			continue;
		fd_close(p->w[i].fd);
		jsonl_done(&p->w[i].in);
		waitpid(p->w[i].pid, NULL, 0);
	}
	jsonl_done(&p->in);
}

/* Of a device without a line, as /dev/null is, nobody meant to ask nothing. */
static int check_asked(const struct pool_of *p, struct err *e)
{
	struct stat st;

	if (p->in.line || p->ended_by || fstat(STDIN_FILENO, &st) < 0 ||
	    !S_ISCHR(st.st_mode))
		return 0;
	return err_set(e, -EINVAL, "usage",
		       "nothing is asked for: give -- COMMAND or --detach, or "
		       "requests on standard input");
}

int stream(const struct tree *tree, json_t *defaults, unsigned jobs,
	   struct err *e)
{
	static struct pool_of p;
	int r = 0;

	p.tree = tree;
	p.defaults = defaults;
	p.max = jobs < WORKERS_MAX ? jobs : WORKERS_MAX;
	p.in.fd = -1; /* fed */
	p.sig = run_signals(e);
	if (p.sig < 0)
		return p.sig;
	while (r == 0 && !p.lost) {
		if (!p.eof)
			take_lines(&p);
		if (p.eof && p.busy == 0)
			break;
		r = turn(&p, e);
	}
	if (r == 0 && !p.lost)
		r = check_asked(&p, e);
	dismiss(&p);
	fd_close(p.sig);
	if (r < 0)
		return r;
	if (p.lost)
		return EXIT_STDOUT_LOST;
	if (p.failed)
		return (int)p.status;
	return p.ended_by ? 128 + p.ended_by : EXIT_OK;
}
