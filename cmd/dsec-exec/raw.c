/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sig.h"
#include "pump.h"
#include "raw.h"
#include "recording.h"
#include "terminal.h"
#include "wire/exit.h"
#include "wire/record.h"

/* After so many requests to stop that it ignored, the command is left alone. */
#define PATIENCE 3
/* How long output may be missing after the command's record came. */
#define DRAIN_MS 5000
/* How long a supervisor may take to pass a signal on. */
#define SIGNAL_MS 5000

enum { OUT, ERR, STREAMS };

struct raw {
	const struct tree *tree;
	const struct raw_opts *opts;
	struct ctl *ctl;
	struct terminal term;
	int sigfd;
	int stdin_fd; /* write end to the command, or its terminal; -1 */
	struct pump in;
	struct pump out[STREAMS];
	uint64_t before[STREAMS]; /* bytes that neither file nor pipe brings */
	char exec[65];
	bool started;
	unsigned stops;	    /* requests to stop that we passed on */
	int pending;	    /* a signal that came before the command started */
	bool detached;	    /* the user gave up on it */
	json_t *rec;	    /* the command's record */
	uint64_t drain_ms;  /* the latest time to wait for output */
	uint64_t signal_ms; /* and for the answer to a signal; 0: none is due */
	uint64_t deadline_ms;
};

static const char *const names[STREAMS] = {"stdout", "stderr"};

static int send_op(struct raw *w, json_t *req, struct err *e)
{
	int r;

	if (!req)
		return err_sys(e, ENOMEM, "request");
	r = ctl_send(w->ctl, req, NULL, 0, e);
	json_decref(req);
	return r;
}

static int send_signal(struct raw *w, int sig, struct err *e)
{
	if (!w->signal_ms)
		w->signal_ms = clock_ms() + SIGNAL_MS;
	return send_op(w,
		       json_pack("{s:s, s:s, s:s, s:s}", "id", "s", "op",
				 "signal", "exec", w->exec, "signal",
				 sig_name(sig)),
		       e);
}

static int on_signal(struct raw *w, struct err *e)
{
	struct signalfd_siginfo si;

	if (read(w->sigfd, &si, sizeof(si)) != (ssize_t)sizeof(si))
		return 0;
	if (si.ssi_signo == SIGWINCH) {
		terminal_copy_size(&w->term, w->stdin_fd);
		return 0;
	}
	if (sig_is_stop((int)si.ssi_signo) && ++w->stops >= PATIENCE) {
		w->detached = true;
		return 0;
	}
	if (!w->started) {
		/* Twice before anything started: nobody answers. */
		if (w->pending)
			w->detached = true;
		w->pending = (int)si.ssi_signo;
		return 0;
	}
	return w->rec ? 0 : send_signal(w, (int)si.ssi_signo, e);
}

static uint64_t arrived(const struct raw *w, int stream)
{
	return w->before[stream] + w->out[stream].moved;
}

static uint64_t expected(const struct raw *w, int stream)
{
	const char *key = stream == OUT ? "stdout_bytes" : "stderr_bytes";

	return (uint64_t)json_int(w->rec, key, 0);
}

/* What was written before we came, from the files. */
static int replay(struct raw *w, int stream, uint64_t total, struct err *e)
{
	auto_close int dir = -1;
	struct output_stream rec;
	int r;

	dir = output_dir(w->tree, ctl_id(w->ctl), w->exec, e);
	if (dir < 0)
		return dir;
	rec = (struct output_stream){dir, w->exec, names[stream]};
	r = recording_pump(&rec, total, &w->out[stream], &w->before[stream], e);
	if (r == 0 && w->before[stream] > 0)
		log_info("%llu bytes of %s are not kept",
			 (unsigned long long)w->before[stream], names[stream]);
	return r;
}

static int take_output(struct raw *w, struct ctl_record *r, int stream,
		       struct err *e)
{
	const char *key = stream == OUT ? "stdout_offset" : "stderr_offset";
	int fd = ctl_take_fd(r, names[stream]), ret = 0;

	if (w->opts->attach)
		ret = replay(w, stream, (uint64_t)json_int(r->rec, key, 0), e);
	if (fd >= 0)
		pump_add(&w->out[stream], fd, 0, PUMP_PIPE);
	return ret;
}

static int take_input(struct raw *w, struct ctl_record *r, struct err *e)
{
	int fd = ctl_take_fd(r, "tty"), in;

	w->term.is_command_tty = fd >= 0;
	if (fd < 0)
		fd = ctl_take_fd(r, "stdin");
	w->stdin_fd = fd;
	if (!w->opts->interactive)
		return 0;
	if (fd < 0)
		return err_set(e, -EOPNOTSUPP, "unsupported",
			       "%s has no terminal: --op input sends to it",
			       w->exec);
	if (w->opts->attach)
		terminal_copy_size(&w->term, fd);
	/* Our own stays open: a terminal is restored through it. */
	in = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
	if (in < 0)
		return err_sys(e, errno, "standard input");
	/* Only the command reads there, and it has the other end. */
	fcntl(fd, F_SETFL, O_NONBLOCK);
	pump_init(&w->in, fd);
	w->in.once = true;
	w->in.watch_dst = !w->term.is_command_tty;
	w->in.copy = w->term.is_command_tty;
	pump_add(&w->in, in, 0, PUMP_PIPE);
	return 0;
}

static int on_started(struct raw *w, struct ctl_record *r, struct err *e)
{
	int ret;

	w->started = true;
	snprintf(w->exec, sizeof(w->exec), "%s", json_str(r->rec, "exec"));
	ret = take_input(w, r, e);
	if (ret == 0)
		ret = take_output(w, r, OUT, e);
	if (ret == 0)
		ret = take_output(w, r, ERR, e);
	if (ret == 0 && w->pending)
		ret = send_signal(w, w->pending, e);
	return ret;
}

static int on_final(struct raw *w, struct ctl_record *r, struct err *e)
{
	int ret = 0;

	/* The answer to a signal or a resize. */
	if (!strcmp(json_str(r->rec, "id"), "s")) {
		w->signal_ms = 0;
		return 0;
	}
	ret = record_to_err(r->rec, e);
	if (ret < 0)
		return ret;
	w->rec = json_incref(r->rec);
	w->drain_ms = clock_ms() + DRAIN_MS;
	if (w->started)
		return 0;
	/* It had ended already, or is a repeated one: all is on record. */
	snprintf(w->exec, sizeof(w->exec), "%s", json_str(r->rec, "exec"));
	for (int i = 0; i < STREAMS && ret == 0; i++)
		ret = replay(w, i, expected(w, i), e);
	return ret;
}

static int on_ctl(struct raw *w, struct err *e)
{
	int ret;

	for (;;) {
		auto_ctl_record struct ctl_record r = {0};

		ret = ctl_next(w->ctl, &r, e);
		if (ret == -EAGAIN)
			return 0;
		if (ret == 0 && r.final)
			ret = on_final(w, &r, e);
		else if (ret == 0 && !w->started &&
			 !strcmp(json_str(r.rec, "event"), "started"))
			ret = on_started(w, &r, e);
		if (ret < 0 || w->rec)
			return ret;
	}
}

/* The end of our input is the end of the command's. */
static void step_input(struct raw *w, const struct pollfd *fds)
{
	static const char eof[] = "\004\004";

	pump_step(&w->in, fds);
	if (w->in.lost)
		pump_stop(&w->in);
	if (pump_active(&w->in))
		return;
	if (!w->term.is_command_tty) {
		fd_close(steal_fd(&w->stdin_fd));
	} else if (!w->in.lost) {
		/* In the middle of a line the first only ends the line. */
		bool line = w->in.moved == 0 || w->in.last == '\n';

		if (write(w->stdin_fd, eof, line ? 1 : 2) < 0)
			log_debug("exec", "end of input not delivered");
	}
	pump_done(&w->in);
}

/* Nobody reads our output: as in a pipeline, the writer is told. */
static int step_output(struct raw *w, int stream, const struct pollfd *fds,
		       struct err *e)
{
	bool was = w->out[stream].lost;

	pump_step(&w->out[stream], fds);
	if (!w->out[stream].lost || was)
		return 0;
	if (w->out[stream].lost != EPIPE)
		log_error("%s: %s: the rest of it is only recorded",
			  names[stream], strerror(w->out[stream].lost));
	if (w->out[stream].lost != EPIPE || w->rec || !w->started)
		return 0;
	return send_signal(w, SIGPIPE, e);
}

struct waiting {
	struct pollfd fds[8];
	unsigned n, in, out[STREAMS];
};

static void collect(const struct raw *w, struct waiting *p)
{
	p->fds[0] = (struct pollfd){.fd = w->rec ? -1 : ctl_fd(w->ctl),
				    .events = POLLIN};
	p->fds[1] = (struct pollfd){.fd = w->sigfd, .events = POLLIN};
	p->n = 2;
	for (int i = 0; i < STREAMS; i++) {
		p->out[i] = p->n;
		p->n += pump_poll(&w->out[i], p->fds + p->n);
	}
	p->in = p->n;
	p->n += w->rec ? 0 : pump_poll(&w->in, p->fds + p->n);
}

static bool any(const struct waiting *p, unsigned from, unsigned to)
{
	for (; from < to; from++)
		if (p->fds[from].revents)
			return true;
	return false;
}

/* In this order, so that what a command wrote comes out before its end. */
static int dispatch(struct raw *w, const struct waiting *p, struct err *e)
{
	int r = 0;

	if (any(p, p->out[OUT], p->out[ERR]))
		r = step_output(w, OUT, p->fds + p->out[OUT], e);
	if (r == 0 && any(p, p->out[ERR], p->in))
		r = step_output(w, ERR, p->fds + p->out[ERR], e);
	if (r == 0 && any(p, p->in, p->n))
		step_input(w, p->fds + p->in);
	if (r == 0 && p->fds[1].revents)
		r = on_signal(w, e);
	/* Behind the signals: its failure ends it all. */
	if (r == 0 && p->fds[0].revents)
		r = on_ctl(w, e);
	return r;
}

static bool flowing(const struct raw *w, int stream)
{
	if (!pump_active(&w->out[stream]))
		return false;
	/* A process that was left may hold the stream open for ever. */
	return !w->rec || arrived(w, stream) < expected(w, stream);
}

static bool stuck(const struct pump *p)
{
	return pump_active(p) && (p->blocked || p->buf_len > 0);
}

static int timeout_of(const struct raw *w)
{
	uint64_t at = w->drain_ms ? w->drain_ms : w->deadline_ms;
	uint64_t now;

	if (!w->drain_ms && w->signal_ms && (!at || w->signal_ms < at))
		at = w->signal_ms;
	/* Whoever reads our output may take his time. */
	if (!at || (w->rec && (stuck(&w->out[OUT]) || stuck(&w->out[ERR]))))
		return -1;
	now = clock_ms();
	if (at <= now)
		return 0;
	return at - now > 1000000000 ? 1000000000 : (int)(at - now);
}

static bool over(const struct raw *w)
{
	return w->detached || (w->rec && !flowing(w, OUT) && !flowing(w, ERR));
}

static int late(struct raw *w, struct err *e)
{
	if (!w->signal_ms || clock_ms() < w->signal_ms) {
		if (w->started && !w->opts->attach)
			send_signal(w, SIGKILL, NULL);
		return err_set(e, -ETIMEDOUT, "deadline",
			       "the command did not end in time");
	}
	err_set(e, -ETIMEDOUT, "supervisor_lost",
		"the supervisor of sandbox %s does not answer", ctl_id(w->ctl));
	e->infra = true;
	return -ETIMEDOUT;
}

static int serve(struct raw *w, struct err *e)
{
	struct waiting p;
	int r;

	while (!over(w)) {
		collect(w, &p);
		r = poll(p.fds, p.n, timeout_of(w));
		if (r < 0 && errno != EINTR)
			return err_sys(e, errno, "wait");
		if (r == 0 && w->drain_ms)
			return 0;
		if (r == 0)
			return late(w, e);
		if (r > 0) {
			if (w->drain_ms)
				w->drain_ms = clock_ms() + DRAIN_MS;
			r = dispatch(w, &p, e);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

/* When the supervisor is gone: what it still wrote is ours to pass on. */
static void drain(struct raw *w)
{
	struct waiting p;

	w->drain_ms = clock_ms() + DRAIN_MS;
	while (pump_active(&w->out[OUT]) || pump_active(&w->out[ERR])) {
		collect(w, &p);
		p.fds[0].fd = -1;
		if (poll(p.fds, p.in, timeout_of(w)) <= 0 || p.fds[1].revents)
			return;
		for (int i = 0; i < STREAMS; i++)
			if (any(&p, p.out[i], i == OUT ? p.out[ERR] : p.in))
				pump_step(&w->out[i], p.fds + p.out[i]);
	}
}

static bool incomplete(const struct raw *w, int stream)
{
	uint64_t want = expected(w, stream), got = arrived(w, stream);

	if (w->out[stream].lost)
		return true;
	if (got >= want)
		return false;
	log_error("%llu bytes of %s did not arrive: dsec-exec --op output "
		  "--exec %s has what was recorded",
		  (unsigned long long)(want - got), names[stream], w->exec);
	return true;
}

static int status_of(const struct raw *w)
{
	const char *outcome = json_str(w->rec, "outcome");
	const char *name = json_str(w->rec, "signal");
	int sig = *name ? sig_by_name(name) : -EINVAL;
	int code = (int)json_int(w->rec, "exit_code", EXIT_RAW_FAILED);
	bool lost = incomplete(w, OUT);

	lost = incomplete(w, ERR) || lost; /* each says what it lacks */
	if (!strcmp(outcome, "exited"))
		return code == 0 && lost ? EXIT_STDOUT_LOST : code;
	if (!strcmp(outcome, "signalled") && sig > 0)
		return 128 + sig;
	log_error("%s: %.64s", w->exec, *outcome ? outcome : "no outcome");
	if (!strcmp(outcome, "timeout"))
		return RAW_TIMEOUT;
	if (json_flag(w->rec, "infra"))
		return EXIT_RAW_FAILED;
	return 128 + (sig > 0 ? sig : SIGKILL);
}

static int finish(struct raw *w, int *ret_status, struct err *e)
{
	if (w->rec) {
		*ret_status = status_of(w);
		return 0;
	}
	if (!w->started)
		return err_set(e, -EINTR, "cancelled",
			       "interrupted before the command started");
	log_error("left running: dsec-exec %s --attach %s takes it up again",
		  ctl_id(w->ctl), w->exec);
	*ret_status = EXIT_RAW_FAILED;
	return 0;
}

static int set_up(struct raw *w, const json_t *req, struct err *e)
{
	static const int signals[] = {SIGINT,  SIGTERM, SIGHUP,	 SIGQUIT,
				      SIGUSR1, SIGUSR2, SIGWINCH};
	size_t n = array_len(signals) - (w->term.wanted ? 0 : 1);
	int64_t deadline = json_int(req, "deadline_ms", 0);
	int r;

	w->sigfd = sig_block(signals, n, e);
	if (w->sigfd < 0)
		return w->sigfd;
	if (deadline > 0)
		w->deadline_ms = clock_ms() + (uint64_t)deadline;
	r = ctl_open(w->tree, json_str(req, "sandbox"), 0, &w->ctl, e);
	if (r < 0)
		return r;
	return terminal_raw(&w->term, e);
}

static int send_request(struct raw *w, json_t *req, struct err *e)
{
	auto_json json_t *line = NULL;
	int r;

	r = op_request(req, &line, e);
	if (r < 0)
		return r;
	json_object_set_new(line, "attach",
			    json_pack("[s, s]", names[OUT], names[ERR]));
	if (w->opts->interactive && !w->opts->attach)
		json_object_set_new(line, "stdin", json_string("pipe"));
	if (w->term.wanted && !w->opts->attach)
		terminal_describe(&w->term, line);
	return ctl_send(w->ctl, line, NULL, 0, e);
}

int raw_run(const struct tree *tree, json_t *req, const struct raw_opts *opts,
	    int *ret_status, struct err *e)
{
	struct raw w = {.tree = tree,
			.opts = opts,
			.sigfd = -1,
			.stdin_fd = -1};
	int r;

	pump_init(&w.in, -1);
	pump_init(&w.out[OUT], STDOUT_FILENO);
	pump_init(&w.out[ERR], STDERR_FILENO);
	w.term.wanted = opts->tty;
	w.term.interactive = opts->interactive;
	r = set_up(&w, req, e);
	if (r == 0)
		r = send_request(&w, req, e);
	if (r == 0)
		r = serve(&w, e);
	if (r < 0 && r != -ETIMEDOUT && w.started && !w.rec)
		drain(&w);
	terminal_restore(&w.term);
	if (r == 0)
		r = finish(&w, ret_status, e);
	/* The process ends now, and that closes everything. */
	return r;
}
