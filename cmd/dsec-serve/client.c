/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "client.h"
#include "life/listing.h"
#include "wire/record.h"

#define AHEAD 512     /* requests under way */
#define HELLO "hello" /* the id of ours; no other request has it */

/* --- requests
 * ----------------------------------------------------------------- */

void app_fail(struct app *app, const struct err *why)
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
		app_fail(app, &e);
	app->open++;
}

/* A final record: what it says counts. */
static void tell(struct app *app, const json_t *rec)
{
	struct err e = {0};

	if (record_to_err(rec, &e) < 0)
		app->status = exit_join(app->status, exit_of(&e));
	if (record_write(STDOUT_FILENO, rec, &e) < 0)
		app_fail(app, &e);
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

/* In ASCII: it may be cut anywhere. */
static char *key_of(const json_t *id)
{
	return json_dumps(id, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
}

/* Records of several runs of a program have the same ids, and over the network
 * one id is one request: who comes second gets another there, and so does who
 * has one that is none there. */
static void take_id(struct app *app, json_t *req)
{
	json_t *said = json_object_get(req, "id");
	auto_json json_t *id = said && !json_is_null(said)
				       ? json_incref(said)
				       : json_integer(
						 (json_int_t)app->lines.line);
	auto_free char *key = key_of(id);

	if (key && (json_object_get(app->ids, key) || !frame_id_ok(id))) {
		json_object_set_new(req, "id",
				    json_sprintf("%.64s#%llu", key,
						 (unsigned long long)
							 app->lines.line));
		free(key);
		key = key_of(json_object_get(req, "id"));
	} else {
		json_object_set(req, "id", id);
	}
	if (key)
		json_object_set(app->ids, key, id);
}

static void give_id(struct app *app, json_t *rec, bool final)
{
	auto_free char *key = key_of(json_object_get(rec, "id"));
	json_t *id = key ? json_object_get(app->ids, key) : NULL;

	if (!id)
		return;
	json_object_set(rec, "id", id);
	if (final)
		json_object_del(app->ids, key);
}

static void send_line(struct app *app, char *text, size_t len)
{
	auto_json json_t *req = NULL;
	struct err e = {0};
	int r;

	r = take_line(app, text, len, &req, &e);
	if (r < 0) {
		auto_json json_t *bad = json_pack("{s:I}", "id",
						  (json_int_t)app->lines.line);
		auto_json json_t *rec = record_error(bad, &e);

		tell(app, rec);
	}
	if (r != 0)
		return;
	take_id(app, req);
	(void)json_object_update_missing(req, app->want.fields);
	send_req(app, req);
}

static void done_maybe(struct app *app)
{
	if (app->ended && app->open == 0)
		loop_stop(app->loop, 0);
}

void app_watch(struct app *app, loop_fn *fn, bool on)
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
		app_fail(app, &e);
	}
}

/* Of a device without a line, as /dev/null is, nobody meant to ask nothing. */
static void end_lines(struct app *app)
{
	struct err e = {0};
	struct stat st;

	app->ended = true;
	if (app->lines.line || fstat(STDIN_FILENO, &st) < 0 ||
	    !S_ISCHR(st.st_mode))
		return;
	err_set(&e, -EINVAL, "usage",
		"%s: nothing is asked for, and standard input has no request",
		app->want.program);
	app_fail(app, &e);
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
		end_lines(app);
	else if (r < 0 && r != -EAGAIN)
		app_fail(app, &e);
	app_watch(app, on_lines, !app->ended && app->open < AHEAD);
	done_maybe(app);
}

/* One from the flags alone, or for each word. */
static void take_words(struct app *app)
{
	const struct wanted *w = &app->want;
	size_t n = json_array_size(w->words);

	while (!app->ended && app->open < AHEAD) {
		auto_json json_t *req = json_copy(w->fields);
		struct err e = {0};

		if (!req ||
		    json_object_set_new(req, "id",
					json_integer((json_int_t)app->word +
						     1)) < 0 ||
		    (n > 0 && json_object_set(req, w->key,
					      json_array_get(w->words,
							     app->word)) < 0)) {
			err_sys(&e, ENOMEM, "request");
			app_fail(app, &e);
			return;
		}
		app->ended = ++app->word >= n;
		send_req(app, req);
	}
}

static void take_more(struct app *app)
{
	if (app->want.lines)
		take_lines(app);
	else
		take_words(app);
}

static void on_lines(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct app *app = s->arg;

	(void)l, (void)events;
	read_some(app);
	take_lines(app);
}

/* --- answers -------------------------------------------------------------- */

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

/*
 * What the program would have written here, of one request: each record of
 * several by itself, and behind them only what they do not say.
 */
static const json_t *as_local(struct app *app, const json_t *obj)
{
	const json_t *record = json_object_get(obj, "record");

	if (app->want.lines)
		return obj;
	if (!strcmp(json_str(obj, "event"), "record") && json_is_object(record))
		return record;
	if (!json_is_true(json_object_get(obj, "ok")) ||
	    !json_object_get(obj, "failed") || json_object_get(obj, "next") ||
	    json_object_get(obj, "missing"))
		return obj;
	return json_int(obj, "count", 0) > 0 || !strcmp(app->want.program, "ps")
		       ? NULL
		       : obj;
}

/* A sandbox for people; NULL: the heading. */
static void show_line(struct app *app, const json_t *rec)
{
	char line[LISTING_MAX + 1];
	struct err e = {0};
	size_t n;

	listing_line(rec, line);
	n = strlen(line);
	line[n] = '\n';
	if (fd_write_all(STDOUT_FILENO, line, n + 1, &e) < 0)
		app_fail(app, &e);
}

static void show(struct app *app, const json_t *obj)
{
	const json_t *rec = as_local(app, obj);
	struct err e = {0};

	if (rec && app->want.table && json_object_get(rec, "state"))
		show_line(app, rec);
	else if (rec && record_write(STDOUT_FILENO, rec, &e) < 0)
		app_fail(app, &e);
}

static void on_final(struct app *app, const json_t *obj)
{
	struct err e = {0};

	warn_missing(obj);
	if (app->want.raw)
		app->status = (enum exit_status)raw_status(obj);
	else if (record_to_err(obj, &e) < 0)
		app->status = exit_join(app->status, exit_of(&e));
	app->exec[0] = '\0';
	app->open -= app->open > 0;
	if (!app->ended)
		take_more(app);
	done_maybe(app);
}

/* --- the connection ------------------------------------------------------- */

static void on_up(void *arg, struct conn *c)
{
	struct app *app = arg;
	const char *token = getenv("DSEC_TOKEN");
	json_t *hello;

	app->up = true;
	app->why.r = 0; /* of servers before it */
	if (token && *token) {
		hello = json_pack("{s:s, s:s, s:i, s:s}", "id", HELLO,
				  "program", "hello", "v", 1, "token", token);
		(void)conn_put(c, hello, NULL);
		json_decref(hello);
	}
	conn_set_busy(c, 1);
	if (app->want.lines)
		app->polled = loop_add(app->loop, &app->src, STDIN_FILENO,
				       EPOLLIN, on_lines, app, NULL) == 0;
	if (app->want.table)
		show_line(app, NULL);
	take_more(app);
}

/* A refusal of the connection, not of a request: it ends with it. */
static bool is_refused(struct app *app, const json_t *obj)
{
	const char *server = app->place.servers[app->server];
	const json_t *id = json_object_get(obj, "id");
	struct err e = {0};

	if (!json_is_false(json_object_get(obj, "ok")) ||
	    (id && strcmp(json_str(obj, "id"), HELLO) != 0))
		return false;
	(void)record_to_err(obj, &e);
	err_wrap(&e, e.r, "%s", server);
	app_fail(app, &e);
	return true;
}

static void on_line(void *arg, struct conn *c, json_t *obj)
{
	struct app *app = arg;
	bool final = json_is_boolean(json_object_get(obj, "ok"));
	const char *event = json_str(obj, "event");

	(void)c;
	if (!strcmp(event, "hello") || is_refused(app, obj) ||
	    !strcmp(json_str(obj, "id"), HELLO))
		return;
	/* Not the command's: an answer to a signal. */
	if (app->want.raw && json_int(obj, "id", 0) != 1)
		return;
	if (app->want.lines)
		give_id(app, obj, final);
	if (!app->want.lines && !strcmp(event, "started"))
		raw_began(app, obj);
	else if (!app->want.raw)
		show(app, obj);
	if (final)
		on_final(app, obj);
}

/* A server that says nothing more answers nothing more. */
static void on_end(void *arg, struct conn *c)
{
	(void)arg;
	conn_cut(c, NULL);
}

static int open_conn(struct app *app, struct err *e);

static void on_gone(void *arg, struct conn *c, const struct err *why)
{
	struct app *app = arg;
	const char *server = app->place.servers[app->server];
	bool refused = why->r < 0 && !strcmp(why->code, "permission");
	struct err e = {0};

	(void)c;
	app->c = NULL;
	if (refused)
		err_set(&e, why->r, "permission", "%s: %s", server, why->msg);
	else
		err_set(&e, -ECONNRESET, "node_away",
			"the connection to %s ended%s%s", server,
			why->r ? ": " : "", why->r ? why->msg : "");
	if (!app->up && app->server + 1 < app->place.nservers) {
		/* A refusal is told where the others are away. */
		if (refused && app->why.r == 0)
			app->why = e;
		app->server++;
		if (open_conn(app, &e) == 0)
			return;
	}
	app_fail(app, &e);
}

static int open_tls(struct app *app, struct err *e)
{
	const struct place *p = &app->place;
	const struct tls_files files = {p->ca, p->cert, p->key, NULL};
	struct tls_pem pem = {0};
	int r = tls_pem_read(AT_FDCWD, &files, &pem, e);

	if (r == 0)
		r = tls_new(&pem, &app->tls, e);
	tls_pem_done(&pem);
	return r < 0 ? r : conn_env_init(&app->env, app->loop, app->tls, e);
}

static int open_one(struct app *app, struct err *e)
{
	static const struct conn_ops ops = {on_up, on_line, on_end, on_gone};
	char host[SERVECONF_ADDR_MAX];
	struct conn_conf conf = {.host = host,
				 .peer = app->peer,
				 .ops = &ops,
				 .arg = app};
	int fd = place_connect(app->place.servers[app->server], host,
			       sizeof(host), e);
	int r;

	if (fd < 0)
		return fd;
	r = conn_open(&app->env, &conf, &fd, &app->c, e);
	return r < 0 || !app->want.raw ? r : raw_open(app, e);
}

/* The first of those that are left that can be connected to. */
static int open_conn(struct app *app, struct err *e)
{
	int r = open_one(app, e);

	while (r < 0 && app->server + 1 < app->place.nservers) {
		app->server++;
		r = open_one(app, e);
	}
	return r;
}

static int begin(struct app *app, const struct args *a, struct tls_ident *peer,
		 struct err *e)
{
	int r = place_find(a, &app->place, e);

	if (r < 0)
		return r;
	if (a->peer && tls_ident_parse(a->peer, strlen(a->peer), peer) < 0)
		return err_set(e, -EINVAL, "usage",
			       "--peer %s: not dsec://KIND/NAME", a->peer);
	app->peer = a->peer ? peer : NULL;
	app->ids = json_pack("{s:s}", "\"" HELLO "\"", HELLO);
	r = app->ids ? loop_new(&app->loop, e) : err_sys(e, ENOMEM, "client");
	if (r == 0)
		r = open_tls(app, e);
	if (r == 0)
		r = open_conn(app, e);
	if (r == 0 && app->want.raw)
		r = raw_signals(app, e);
	return r;
}

int verb_client(const struct args *a, struct err *e)
{
	static struct app app = {.lines = {.fd = -1 /* fed */}};
	struct tls_ident peer;
	int r;

	if (!a->rest[0])
		return err_set(e, -EINVAL, "usage",
			       "client: which program is to be asked?");
	r = wanted_parse(a->rest, &app.want, e);
	if (r != 0)
		return r == 1 ? EXIT_OK : r;
	r = begin(&app, a, &peer, e);
	if (r == 0)
		r = loop_run(app.loop, e);
	if (r == 0 && app.why.r < 0) {
		*e = app.why;
		r = e->r;
	}
	if (r == 0)
		return (int)app.status;
	raw_left(&app);
	if (!app.want.raw)
		return r;
	log_err(e);
	return EXIT_RAW_FAILED;
}
