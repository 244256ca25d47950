/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sig.h"
#include "client.h"
#include "wire/record.h"

#define SIGNALLED 128
#define PATIENCE  3 /* requests to stop; then the command is left alone */

/* --- bytes ---------------------------------------------------------------- */

static void on_data(void *arg, struct stream *s, const char *data, size_t len)
{
	struct app *app = arg;
	struct err e = {0};

	if (fd_write_all(s == &app->err ? STDERR_FILENO : STDOUT_FILENO, data,
			 len, &e) < 0) {
		err_set(&e, -EPIPE, "stdout_lost", "nobody reads the output");
		app_fail(app, &e);
	}
	stream_taken(s, len);
}

static void on_eof(void *arg, struct stream *s)
{
	(void)arg, (void)s;
}

static void on_input(struct loop *l, struct loop_source *s, uint32_t events);

static void pass_input(struct app *app)
{
	struct err e = {0};
	ssize_t n;
	bool lost;

	/* One read at a time where it might wait. */
	do
		n = stream_fill(&app->in, STDIN_FILENO, &e);
	while (n > 0 && !app->polled);
	/* For the command what cannot be read has ended. */
	lost = n < 0 && n != -EAGAIN && n != -ENOBUFS && n != -EPIPE;
	if (lost)
		log_error("standard input: %s", strerror((int)-n));
	if (n == 0 || lost)
		(void)stream_eof(&app->in, NULL);
	app_watch(app, on_input, n > 0 || n == -EAGAIN);
}

static void on_room(void *arg, struct stream *s)
{
	(void)s;
	pass_input(arg);
}

static void on_input(struct loop *l, struct loop_source *s, uint32_t events)
{
	(void)l, (void)events;
	pass_input(s->arg);
}

static int open_stream(struct app *app, struct stream *s, enum stream_way way,
		       const char *name, struct err *e)
{
	static const struct stream_ops ops = {on_data, on_eof, on_room};
	auto_json json_t *id = json_integer(1);

	*s = (struct stream){.way = way, .ops = &ops, .arg = app};
	return stream_new(s, app->c, id, name, e);
}

int raw_open(struct app *app, struct err *e)
{
	int r = open_stream(app, &app->out, STREAM_IN, "stdout", e);

	if (r == 0)
		r = open_stream(app, &app->err, STREAM_IN, "stderr", e);
	if (r == 0 && app->want.input)
		r = open_stream(app, &app->in, STREAM_OUT, "stdin", e);
	return r;
}

/* --- signals -------------------------------------------------------------- */

static const char *sandbox_of(const struct app *app)
{
	const char *name = json_string_value(
		json_array_get(app->want.words, 0));

	return name ? name : "";
}

static void send_signal(struct app *app, int sig)
{
	auto_json json_t *req = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}",
					  "id", "signal", "program", "exec",
					  "op", "signal", "sandbox",
					  sandbox_of(app), "exec", app->exec,
					  "signal", sig_name(sig));

	/* Of an earlier one the answer may not be here yet. */
	if (req && app->c &&
	    json_object_set_new(req, "id",
				json_sprintf("signal-%u", app->passed++)) == 0)
		(void)conn_put(app->c, req, NULL);
}

static void on_signal(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct app *app = s->arg;
	struct signalfd_siginfo si;
	struct err e = {0};

	(void)l, (void)events;
	if (read(app->sigfd, &si, sizeof(si)) != (ssize_t)sizeof(si))
		return;
	app->stops += sig_is_stop((int)si.ssi_signo);
	if (*app->exec && app->stops < PATIENCE) {
		send_signal(app, (int)si.ssi_signo);
	} else if (*app->exec || app->pending) {
		err_set(&e, -EINTR, "cancelled", "interrupted%s",
			*app->exec ? "" : " before the command started");
		app_fail(app, &e);
	} else {
		app->pending = (int)si.ssi_signo;
	}
}

int raw_signals(struct app *app, struct err *e)
{
	static const int signals[] = {SIGINT,  SIGTERM, SIGHUP,
				      SIGQUIT, SIGUSR1, SIGUSR2};

	app->sigfd = sig_block(signals, array_len(signals), e);
	return app->sigfd < 0 ? app->sigfd
			      : loop_add(app->loop, &app->signals, app->sigfd,
					 EPOLLIN, on_signal, app, e);
}

/* --- the command ---------------------------------------------------------- */

void raw_began(struct app *app, const json_t *rec)
{
	/* Of one alone it can be told how it is taken up. */
	if (json_array_size(app->want.words) == 1)
		snprintf(app->exec, sizeof(app->exec), "%s",
			 json_str(rec, "exec"));
	if (app->pending)
		send_signal(app, app->pending);
	if (!app->want.input)
		return;
	app->polled = loop_add(app->loop, &app->src, STDIN_FILENO, EPOLLIN,
			       on_input, app, NULL) == 0;
	if (!app->polled)
		pass_input(app);
}

int raw_status(const json_t *rec)
{
	const char *signal = json_str(rec, "signal");
	int sig = *signal ? sig_by_name(signal) : 0;
	struct err e = {0};

	if (record_to_err(rec, &e) < 0) {
		log_err(&e);
		return EXIT_RAW_FAILED;
	}
	if (json_object_get(rec, "exit_code"))
		return (int)json_int(rec, "exit_code", EXIT_RAW_FAILED);
	return sig > 0 ? SIGNALLED + sig : EXIT_RAW_FAILED;
}

void raw_left(const struct app *app)
{
	if (*app->exec)
		log_error("left running: dsec --server %s exec %s --attach %s "
			  "takes it up again",
			  app->place.servers[app->server], sandbox_of(app),
			  app->exec);
}
