/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sig.h"
#include "client.h"
#include "wire/exit.h"
#include "wire/jsonl.h"
#include "wire/record.h"

#define AHEAD	  512 /* requests under way */
#define CLIENT	  "/etc/dsec/serve/client.json"
#define SIGNALLED 128

struct app {
	struct loop *loop;
	struct tls *tls;
	struct conn_env env;
	struct conn *c;
	const char *server; /* HOST:PORT */
	struct wanted want;
	struct stream in, out, err; /* raw: stdin; stdout; stderr */
	struct loop_source src;
	bool polled; /* stdin can be waited for */
	struct jsonl lines;
	uint64_t line;
	unsigned open; /* requests that are not answered */
	bool ended;    /* no more requests */
	enum exit_status status;
	struct err why;
};

/* --- where to, and who we are
 * --------------------------------------------------- */

struct place_of {
	char dir[PATH_MAX], server[SERVECONF_ADDR_MAX];
	char cert[PATH_MAX], key[PATH_MAX], ca[PATH_MAX];
};

/* A flag, else the environment, else the file's, which is relative to it. */
static void pick(const char *given, const char *name, const json_t *said,
		 const char *key, const char *dir, char *ret, size_t size)
{
	const char *v = given ? given : getenv(name);

	if (v && *v) {
		snprintf(ret, size, "%s", v);
		return;
	}
	v = json_str(said, key);
	snprintf(ret, size, "%s%s%s", *v && *v != '/' && *dir ? dir : "",
		 *v && *v != '/' && *dir ? "/" : "", v);
}

static int find_place(const struct args *a, struct place_of *p, struct err *e)
{
	const char *file = a->dir ? a->dir : getenv("DSEC_CLIENT");
	auto_json json_t *said = NULL;
	char copy[PATH_MAX];
	json_t *first;
	int r;

	snprintf(copy, sizeof(copy), "%s", file ? file : CLIENT);
	r = json_read_file(AT_FDCWD, copy, &said, e);
	if (r < 0 && (file || r != -ENOENT))
		return r;
	snprintf(p->dir, sizeof(p->dir), "%s", dirname(copy));
	pick(a->cert, "DSEC_CERT", said, "certificate", p->dir, p->cert,
	     sizeof(p->cert));
	pick(a->key, "DSEC_KEY", said, "key", p->dir, p->key, sizeof(p->key));
	pick(a->ca, "DSEC_CA", said, "ca", p->dir, p->ca, sizeof(p->ca));
	first = json_array_get(json_object_get(said, "addresses"), 0);
	pick(a->server, "DSEC_SERVER", NULL, "", "", p->server,
	     sizeof(p->server));
	if (!*p->server && json_is_string(first))
		snprintf(p->server, sizeof(p->server), "%s",
			 json_string_value(first));
	if (!*p->server || !*p->cert || !*p->key || !*p->ca)
		return err_set(e, -EINVAL, "configuration",
			       "no %s: --server, --cert, --key, --ca, or a "
			       "file as " CLIENT,
			       *p->server ? "certificate, key or authority"
					  : "address");
	p->server[strcspn(p->server, ",")] = '\0';
	return 0;
}

static int connect_to(const char *server, char *ret_host, size_t size,
		      struct err *e)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	const char *colon = strrchr(server, ':');
	struct addrinfo *list = NULL;
	int fd = -1, r = EHOSTUNREACH;

	if (!colon)
		return err_set(e, -EINVAL, "usage", "'%s' is not HOST:PORT",
			       server);
	snprintf(ret_host, size, "%.*s", (int)(colon - server), server);
	if (ret_host[0] == '[' && strlen(ret_host) > 2) {
		ret_host[strlen(ret_host) - 1] = '\0';
		memmove(ret_host, ret_host + 1, strlen(ret_host));
	}
	if (getaddrinfo(ret_host, colon + 1, &hints, &list) != 0)
		return err_set(e, -EHOSTUNREACH, "node_away",
			       "'%s' cannot be resolved", ret_host);
	for (struct addrinfo *ai = list; ai && fd < 0; ai = ai->ai_next) {
		fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd >= 0 && connect(fd, ai->ai_addr, ai->ai_addrlen) < 0) {
			r = errno;
			fd_close(steal_fd(&fd));
		}
	}
	freeaddrinfo(list);
	return fd >= 0 ? fd
		       : err_set(e, -r, "node_away", "connect to %s: %s",
				 server, strerror(r));
}

/* --- requests
 * ----------------------------------------------------------------- */

static void fail(struct app *app, const struct err *why)
{
	if (app->why.r == 0)
		app->why = *why;
	loop_stop(app->loop, 0);
}

static void send_req(struct app *app, json_t *req)
{
	struct err e = {0};
	int r = conn_put(app->c, req, &e);

	/* Why it is gone is told when it is. */
	if (r < 0 && r != -EPIPE)
		fail(app, &e);
	app->open++;
}

/* A final record: what it says counts. */
static void tell(struct app *app, const json_t *rec)
{
	struct err e = {0};

	if (record_to_err(rec, &e) < 0)
		app->status = exit_join(app->status, exit_of(&e));
	if (record_write(STDOUT_FILENO, rec, &e) < 0)
		fail(app, &e);
}

/* A line of stdin as a request.  1: there is nothing to ask, for it is a record
 * of another program that failed, or one that is not its last. */
static int take_line(struct app *app, char *text, size_t len, json_t **ret_req,
		     struct err *e)
{
	auto_json json_t *line = NULL;
	int r = json_parse(text, len, &line, e);

	if (r < 0)
		return r;
	if (json_is_true(json_object_get(line, "ok")))
		return record_to_request(line, ret_req, e);
	if (json_is_false(json_object_get(line, "ok")))
		tell(app, line);
	else if (!json_object_get(line, "event"))
		*ret_req = json_incref(line);
	return *ret_req ? 0 : 1;
}

static void send_line(struct app *app, char *text, size_t len)
{
	auto_json json_t *req = NULL;
	struct err e = {0};
	int r;

	app->line++;
	r = take_line(app, text, len, &req, &e);
	if (r < 0) {
		auto_json json_t *rec = record_error(NULL, &e);

		tell(app, rec);
	}
	if (r != 0)
		return;
	if (!json_object_get(req, "id"))
		json_object_set_new(req, "id",
				    json_integer((json_int_t)app->line));
	if (!json_object_get(req, "program"))
		json_object_set_new(req, "program",
				    json_string(app->want.program));
	send_req(app, req);
}

static void done_maybe(struct app *app)
{
	if (app->ended && app->open == 0)
		loop_stop(app->loop, 0);
}

/* A pipe that hung up is always ready: it is watched while it is read only. */
static void watch_input(struct app *app, loop_fn *fn, bool on)
{
	if (!app->polled)
		return;
	if (!on)
		loop_del(app->loop, &app->src);
	else if (!app->src.fn)
		(void)loop_add(app->loop, &app->src, STDIN_FILENO, EPOLLIN, fn,
			       app, NULL);
}

static void on_lines(struct loop *l, struct loop_source *s, uint32_t events);

/* One read, and only where there is something or it cannot wait: whoever writes
 * the next line may be waiting for our answer to this one. */
static void read_some(struct app *app)
{
	static char chunk[64 * 1024];
	struct err e = {0};
	ssize_t n;

	n = read(STDIN_FILENO, chunk, sizeof(chunk));
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n > 0 && jsonl_feed(&app->lines, chunk, (size_t)n) == 0)
		return;
	app->lines.eof = true;
	if (n != 0) {
		err_sys(&e, n < 0 ? errno : ENOMEM, "read requests");
		fail(app, &e);
	}
}

/* As many lines as may be under way. */
static void take_lines(struct app *app)
{
	struct err e = {0};
	size_t len;
	char *text;
	int r = 1;

	while (!app->ended && app->open < AHEAD) {
		r = jsonl_next(&app->lines, &text, &len, &e);
		if (r == 1)
			send_line(app, text, len);
		else if (r == -EAGAIN && !app->polled)
			read_some(app);
		else
			break;
	}
	if (r == 0)
		app->ended = true;
	else if (r < 0 && r != -EAGAIN)
		fail(app, &e);
	watch_input(app, on_lines, !app->ended && app->open < AHEAD);
	done_maybe(app);
}

static void on_lines(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct app *app = s->arg;

	(void)l, (void)events;
	read_some(app);
	take_lines(app);
}

/* --- a command with our descriptors
 * --------------------------------------------- */

static void on_data(void *arg, struct stream *s, const char *data, size_t len)
{
	struct app *app = arg;
	struct err e = {0};

	if (fd_write_all(s == &app->err ? STDERR_FILENO : STDOUT_FILENO, data,
			 len, &e) < 0) {
		err_set(&e, -EPIPE, "stdout_lost", "nobody reads the output");
		fail(app, &e);
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
	ssize_t n = 1;

	/* One read at a time where it might wait. */
	do
		n = stream_fill(&app->in, STDIN_FILENO, &e);
	while (n > 0 && !app->polled);
	if (n == 0)
		(void)stream_eof(&app->in, NULL);
	watch_input(app, on_input, n > 0 || n == -EAGAIN);
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

static const struct stream_ops raw_ops = {on_data, on_eof, on_room};

static int open_stream(struct app *app, struct stream *s, enum stream_way way,
		       const char *name, struct err *e)
{
	const json_t *id = json_object_get(app->want.req, "id");

	*s = (struct stream){.way = way, .ops = &raw_ops, .arg = app};
	return stream_new(s, app->c, id, name, e);
}

static void begin_input(struct app *app)
{
	app->polled = loop_add(app->loop, &app->src, STDIN_FILENO, EPOLLIN,
			       on_input, app, NULL) == 0;
	if (!app->polled)
		pass_input(app);
}

static int raw_status(const json_t *rec)
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

/* --- the connection
 * ------------------------------------------------------------- */

static void on_up(void *arg, struct conn *c)
{
	struct app *app = arg;
	const char *token = getenv("DSEC_TOKEN");
	json_t *hello;

	if (token && *token) {
		hello = json_pack("{s:s, s:s, s:i, s:s}", "id", "hello",
				  "program", "hello", "v", 1, "token", token);
		(void)conn_put(c, hello, NULL);
		json_decref(hello);
	}
	conn_set_busy(c, 1);
	if (app->want.req) {
		app->ended = true;
		send_req(app, app->want.req);
		return;
	}
	app->polled = loop_add(app->loop, &app->src, STDIN_FILENO, EPOLLIN,
			       on_lines, app, NULL) == 0;
	take_lines(app);
}

/* For people; programs have it in the record. */
static void warn_missing(const json_t *rec)
{
	const json_t *names = json_object_get(rec, "missing");
	const char *name;
	json_t *v;
	size_t i;

	json_array_foreach(names, i, v) {
		name = json_string_value(v);
		log_error("node %.64s could not be asked: what it has is "
			  "missing here",
			  name ? name : "?");
	}
}

static void on_line(void *arg, struct conn *c, json_t *obj)
{
	struct app *app = arg;
	bool final = json_is_boolean(json_object_get(obj, "ok"));
	const char *event = json_str(obj, "event");
	struct err e = {0};

	(void)c;
	if (!strcmp(event, "hello") || !strcmp(json_str(obj, "id"), "hello"))
		return;
	if (app->want.raw && !strcmp(event, "started") && app->want.input)
		begin_input(app);
	if (!app->want.raw && record_write(STDOUT_FILENO, obj, &e) < 0) {
		fail(app, &e);
		return;
	}
	if (!final)
		return;
	warn_missing(obj);
	if (app->want.raw)
		app->status = (enum exit_status)raw_status(obj);
	else if (record_to_err(obj, &e) < 0)
		app->status = exit_join(app->status, exit_of(&e));
	app->open -= app->open > 0;
	if (!app->ended)
		take_lines(app);
	done_maybe(app);
}

static void on_gone(void *arg, struct conn *c, const struct err *why)
{
	struct app *app = arg;
	struct err e = {0};

	(void)c;
	app->c = NULL;
	if (why->r < 0 && !strcmp(why->code, "permission"))
		err_set(&e, why->r, "permission", "%s: %s", app->server,
			why->msg);
	else
		err_set(&e, -ECONNRESET, "node_away",
			"the connection ended%s%s", why->r ? ": " : "",
			why->r ? why->msg : "");
	fail(app, &e);
}

static const struct conn_ops conn_ops = {.up = on_up,
					 .line = on_line,
					 .gone = on_gone};

static int open_tls(struct app *app, const struct place_of *p, struct err *e)
{
	const struct tls_files files = {p->ca, p->cert, p->key, NULL};
	struct tls_pem pem = {0};
	int r = tls_pem_read(AT_FDCWD, &files, &pem, e);

	if (r == 0)
		r = tls_new(&pem, &app->tls, e);
	tls_pem_done(&pem);
	return r;
}

static int open_conn(struct app *app, const struct args *a,
		     const struct place_of *p, struct err *e)
{
	char host[SERVECONF_ADDR_MAX];
	struct conn_conf conf = {.host = host, .ops = &conn_ops, .arg = app};
	struct tls_ident peer;
	int fd, r;

	if (a->peer) {
		if (tls_ident_parse(a->peer, strlen(a->peer), &peer) < 0)
			return err_set(e, -EINVAL, "usage",
				       "--peer %s: not dsec://KIND/NAME",
				       a->peer);
		conf.peer = &peer;
	}
	app->server = p->server;
	fd = connect_to(p->server, host, sizeof(host), e);
	if (fd < 0)
		return fd;
	r = conn_env_init(&app->env, app->loop, app->tls, e);
	if (r == 0)
		r = conn_open(&app->env, &conf, &fd, &app->c, e);
	if (r == 0 && app->want.raw) {
		r = open_stream(app, &app->out, STREAM_IN, "stdout", e);
		if (r == 0)
			r = open_stream(app, &app->err, STREAM_IN, "stderr", e);
		if (r == 0 && app->want.input)
			r = open_stream(app, &app->in, STREAM_OUT, "stdin", e);
	}
	return r;
}

int verb_client(const struct args *a, struct err *e)
{
	static struct app app;
	struct place_of p = {0};
	int r;

	if (!a->rest[0])
		return err_set(e, -EINVAL, "usage",
			       "client: which program is to be asked?");
	r = wanted_parse(a->rest, &app.want, e);
	if (r != 0)
		return r == 1 ? EXIT_OK : r;
	app.lines.fd = -1; /* fed */
	r = find_place(a, &p, e);
	if (r == 0)
		r = loop_new(&app.loop, e);
	if (r == 0)
		r = open_tls(&app, &p, e);
	if (r == 0)
		r = open_conn(&app, a, &p, e);
	if (r == 0)
		r = loop_run(app.loop, e);
	if (r == 0 && app.why.r < 0) {
		*e = app.why;
		r = e->r;
	}
	if (r < 0 && app.want.raw) {
		log_err(e);
		return EXIT_RAW_FAILED;
	}
	return r < 0 ? r : (int)app.status;
}
