/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of dsec-serve over TLS: both ends in one process, on one loop.
 * Field report 101: who is revoked is cut off. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../tap.h"
#include "base/clock.h"
#include "serve/server.h"
#include "tls/make.h"
#include "wire/record.h"

#define LIMIT_MS 10000

/* --- certificates --------------------------------------------------------- */

static char *ca_key, *ca, *empty_crl;

struct side {
	struct tls_pem pem;
	struct tls *tls;
	struct conn_env env;
};

static void make_side(struct side *s, enum tls_kind kind, const char *name,
		      unsigned days)
{
	static const char *const hosts[] = {"localhost", "127.0.0.1"};
	struct make_cert want = {.ident.kind = kind,
				 .hosts = hosts,
				 .nhosts = 2,
				 .days = days};
	struct err e = {0};

	strcpy(want.ident.name, name);
	if (make_key(&s->pem.key, &e) < 0)
		printf("# %s\n", e.msg);
	want.key = s->pem.key;
	if (make_cert(ca, ca_key, &want, &s->pem.cert, &e) < 0)
		printf("# %s\n", e.msg);
	s->pem.ca = strdup(ca);
	s->pem.crl = strdup(empty_crl);
}

static void open_side(struct side *s, struct loop *l)
{
	struct err e = {0};

	if (tls_new(&s->pem, &s->tls, &e) < 0 ||
	    conn_env_init(&s->env, l, s->tls, &e) < 0)
		printf("# %s\n", e.msg);
}

static void close_side(struct side *s)
{
	conn_env_done(&s->env);
	tls_free(s->tls);
	tls_pem_done(&s->pem);
	*s = (struct side){0};
}

/* --- a server that echoes, and a client ------------------------------------
 */

struct echo {
	struct call *call;
	struct stream in, out;
	char kept[STREAM_WINDOW];
	size_t nkept;
	bool slow; /* gives no credit */
};

struct bed {
	struct loop *loop;
	struct side a, b; /* client, server */
	struct server *srv;
	struct conn *c; /* the client's end */
	struct echo echo;
	unsigned stopped, left;
	enum call_stop how;
	struct call *waiting;
	/* the client */
	bool up, gone;
	int refused; /* by the server: why */
	struct err why;
	char text[4096]; /* lines that came, one after another */
	unsigned lines;
	struct stream in, out;
	uint64_t got, to_send;
	bool eof;
	struct loop_timer limit;
};

static void stop_loop(struct bed *b)
{
	loop_stop(b->loop, 0);
}

static void echo_pump(struct echo *x)
{
	size_t n;

	while (x->nkept > 0 && (n = stream_room(&x->out)) > 0) {
		n = n < x->nkept ? n : x->nkept;
		if (stream_send(&x->out, x->kept, n, NULL) < 0)
			return;
		memmove(x->kept, x->kept + n, x->nkept - n);
		x->nkept -= n;
		stream_taken(&x->in, n);
	}
	if (x->nkept == 0 && x->in.ended && !x->out.ended) {
		(void)stream_eof(&x->out, NULL);
		call_end(x->call, record_ok(x->call->req));
		x->call = NULL;
	}
}

static void echo_data(void *arg, struct stream *s, const char *data, size_t len)
{
	struct echo *x = arg;

	(void)s;
	if (x->slow)
		return;
	memcpy(x->kept + x->nkept, data, len);
	x->nkept += len;
	echo_pump(x);
}

static void echo_eof(void *arg, struct stream *s)
{
	(void)s;
	echo_pump(arg);
}

static void echo_room(void *arg, struct stream *s)
{
	(void)s;
	echo_pump(arg);
}

static const struct stream_ops echo_ops = {echo_data, echo_eof, echo_room};

static void srv_begin(void *arg, struct call *k)
{
	struct bed *b = arg;
	struct err e = {0};

	if (!strcmp(k->program, "echo")) {
		struct echo *x = &b->echo;

		stream_done(&x->in);
		stream_done(&x->out);
		x->nkept = 0;
		x->call = k;
		x->slow = json_flag(k->req, "slow");
		x->in.way = STREAM_IN;
		x->out.way = STREAM_OUT;
		x->in.ops = x->out.ops = &echo_ops;
		x->in.arg = x->out.arg = x;
		if (stream_new(&x->in, k->client->c, k->id, "stdin", &e) < 0 ||
		    stream_new(&x->out, k->client->c, k->id, "stdout", &e) < 0)
			printf("# %s\n", e.msg);
		call_event(k, json_pack("{s:s}", "event", "started"));
	} else if (!strcmp(k->program, "mirror")) {
		json_t *rec = record_ok(k->req);

		json_object_set(rec, "pad", json_object_get(k->req, "pad"));
		call_end(k, rec);
	} else if (!strcmp(k->program, "wait")) {
		b->waiting = k;
	} else {
		err_set(&e, -EOPNOTSUPP, "unsupported", "no program '%.64s'",
			k->program);
		call_fail(k, &e);
	}
}

static void srv_stop(void *arg, struct call *k, enum call_stop how)
{
	struct bed *b = arg;
	struct err e = {0};

	b->stopped++;
	b->how = how;
	if (b->waiting == k)
		b->waiting = NULL;
	if (b->echo.call == k)
		b->echo.call = NULL;
	err_set(&e, -ECANCELED, how == CALL_LATE ? "deadline" : "cancelled",
		"as asked");
	call_fail(k, &e);
}

static void srv_left(void *arg, struct client *cl)
{
	struct bed *b = arg;

	(void)cl;
	b->left++;
	if (b->gone)
		stop_loop(b);
}

/* For the client the handshake is over: what it says now meets a closed
 * socket, before it has read why. */
static void srv_refused(void *arg, const struct err *why)
{
	struct bed *b = arg;
	auto_json json_t *line = json_pack("{s:s}", "program", "ping");

	b->refused = why->r;
	if (b->up)
		(void)conn_put(b->c, line, NULL);
}

static const struct server_ops srv_ops = {.begin = srv_begin,
					  .stop = srv_stop,
					  .left = srv_left,
					  .refused = srv_refused};

static void cl_up(void *arg, struct conn *c)
{
	struct bed *b = arg;

	(void)c;
	b->up = true;
}

static void cl_line(void *arg, struct conn *c, json_t *obj)
{
	struct bed *b = arg;
	char *text = json_dumps(obj, JSON_COMPACT | JSON_SORT_KEYS);

	(void)c;
	if (strlen(b->text) + strlen(text) + 2 < sizeof(b->text)) {
		strcat(b->text, text);
		strcat(b->text, "\n");
	}
	free(text);
	b->lines++;
	if (json_object_get(obj, "ok") || json_object_get(obj, "event"))
		stop_loop(b);
}

static void cl_gone(void *arg, struct conn *c, const struct err *why)
{
	struct bed *b = arg;

	(void)c;
	b->gone = true;
	b->why = *why;
	b->c = NULL;
	stop_loop(b);
}

static const struct conn_ops cl_ops = {.up = cl_up,
				       .line = cl_line,
				       .gone = cl_gone};

static void on_limit(struct loop *l, struct loop_timer *t)
{
	(void)t;
	ok(false, "it ends in time");
	loop_stop(l, 0);
}

/* Until something stops it. */
static void go(struct bed *b)
{
	b->limit = (struct loop_timer){.fn = on_limit, .arg = b};
	loop_timer_set(b->loop, &b->limit, clock_ms() + LIMIT_MS);
	(void)loop_run(b->loop, NULL);
	loop_timer_set(b->loop, &b->limit, 0);
}

/* Until the client has ${text} among what came. */
static bool go_until(struct bed *b, const char *text)
{
	while (!strstr(b->text, text) && !b->gone)
		go(b);
	return strstr(b->text, text) != NULL;
}

static void connect_to(struct bed *b, const struct tls_ident *peer,
		       const char *host)
{
	struct conn_conf conf = {.ops = &cl_ops,
				 .arg = b,
				 .peer = peer,
				 .host = host};
	struct err e = {0};
	int sv[2], fd;

	b->up = b->gone = b->eof = false;
	b->text[0] = '\0';
	b->lines = 0;
	b->got = 0;
	b->stopped = 0;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) < 0)
		perror("# socketpair");
	fd = sv[0];
	if (server_take(b->srv, &sv[1], &e) < 0 ||
	    conn_open(&b->a.env, &conf, &fd, &b->c, &e) < 0)
		printf("# %s\n", e.msg);
}

static void bed_open(struct bed *b, enum tls_kind client, unsigned days)
{
	static const struct server_conf conf0 = {.role = "node", .name = "n1"};
	struct server_conf conf = conf0;
	struct err e = {0};

	memset(b, 0, sizeof(*b));
	if (loop_new(&b->loop, &e) < 0)
		printf("# %s\n", e.msg);
	make_side(&b->a, client, "alice", days);
	make_side(&b->b, TLS_NODE, "n1", 30);
	open_side(&b->a, b->loop);
	open_side(&b->b, b->loop);
	conf.ops = &srv_ops;
	conf.arg = b;
	if (server_new(&b->b.env, &conf, &b->srv, &e) < 0)
		printf("# %s\n", e.msg);
}

static void bed_close(struct bed *b)
{
	if (b->c) {
		conn_cut(b->c, NULL);
		while (!b->gone)
			go(b);
	}
	while (server_stats(b->srv).clients > 0)
		go(b);
	is_int(server_stats(b->srv).calls, 0, "no call is left");
	is_int((long long)b->b.env.held, 0, "and nothing is kept");
	stream_done(&b->in);
	stream_done(&b->out);
	stream_done(&b->echo.in);
	stream_done(&b->echo.out);
	server_free(b->srv);
	close_side(&b->a);
	close_side(&b->b);
	loop_free(b->loop);
}

static void say(struct bed *b, const char *text)
{
	json_t *obj = json_loads(text, 0, NULL);

	(void)conn_put(b->c, obj, NULL);
	json_decref(obj);
}

/* --- tests ---------------------------------------------------------------- */

static void test_lines(void)
{
	static struct bed b;

	bed_open(&b, TLS_CLIENT, 30);
	connect_to(&b, NULL, "localhost");
	say(&b, "{\"id\":1,\"program\":\"nothing\"}");
	ok(go_until(&b, "\"id\":1"), "a request sent at once is answered");
	ok(strstr(b.text, "{\"event\":\"hello\",\"name\":\"n1\","
			  "\"role\":\"node\",\"v\":1}\n") == b.text,
	   "after the hello");
	ok(strstr(b.text, "\"unsupported\"") != NULL, "with its error");
	say(&b, "{\"program\":\"ping\",\"id\":\"p\"}");
	ok(go_until(&b, "{\"id\":\"p\",\"ok\":true}"), "a ping is answered");
	say(&b, "{\"program\":\"nothing\"}");
	ok(go_until(&b, "\"id\":2"), "without an id the line's number is it");
	say(&b, "{\"program\":\"hello\",\"id\":9,\"v\":2}");
	ok(go_until(&b, "\"id\":9") && strstr(b.text, "this is version 1"),
	   "another version is refused");
	while (!b.gone)
		go(&b);
	ok(b.gone, "and the connection ended");
	bed_close(&b);
}

static void test_calls(void)
{
	static struct bed b;

	bed_open(&b, TLS_CLIENT, 30);
	connect_to(&b, NULL, NULL);
	say(&b, "{\"id\":1,\"program\":\"wait\"}");
	say(&b, "{\"id\":1,\"program\":\"wait\"}");
	ok(go_until(&b, "that of a request under way"),
	   "an id is used once at a time");
	say(&b, "{\"id\":2,\"cancel\":1}");
	ok(go_until(&b, "\"cancelled\":true,\"id\":2"), "a cancel finds it");
	ok(go_until(&b, "\"code\":\"cancelled\""), "and it ends");
	is_int(b.how, CALL_CANCELLED, "as cancelled");
	say(&b, "{\"id\":3,\"cancel\":1}");
	ok(go_until(&b, "\"cancelled\":false,\"id\":3"), "the next does not");
	say(&b, "{\"id\":4,\"program\":\"wait\",\"deadline_ms\":1}");
	ok(go_until(&b, "\"code\":\"deadline\""), "a deadline passes");
	say(&b, "{\"id\":5,\"program\":\"wait\"}");
	say(&b, "{\"program\":\"ping\",\"id\":\"p\"}");
	go_until(&b, "\"id\":\"p\"");
	conn_cut(b.c, NULL);
	while (!b.gone || b.left == 0)
		go(&b);
	is_int(b.how, CALL_LEFT, "who leaves leaves its calls");
	bed_close(&b);
}

#define BULK (8u * 1024 * 1024)

static void pump_out(struct bed *b)
{
	static char block[STREAM_CHUNK];
	size_t n;

	while (b->to_send > 0 && (n = stream_room(&b->out)) > 0) {
		n = n < b->to_send ? n : (size_t)b->to_send;
		for (size_t i = 0; i < n; i++)
			block[i] = (char)((b->out.moved + i) * 7 >> 3);
		if (stream_send(&b->out, block, n, NULL) < 0)
			return;
		b->to_send -= n;
	}
	if (b->to_send == 0 && !b->out.ended)
		(void)stream_eof(&b->out, NULL);
}

static bool same;

static void cl_data(void *arg, struct stream *s, const char *data, size_t len)
{
	struct bed *b = arg;

	for (size_t i = 0; i < len; i++)
		same &= data[i] == (char)((b->got + i) * 7 >> 3);
	b->got += len;
	stream_taken(s, len);
}

static void cl_eof(void *arg, struct stream *s)
{
	struct bed *b = arg;

	(void)s;
	b->eof = true;
}

static void cl_room(void *arg, struct stream *s)
{
	(void)s;
	pump_out(arg);
}

static const struct stream_ops cl_stream = {cl_data, cl_eof, cl_room};

static void open_streams(struct bed *b, int64_t n)
{
	json_t *id = json_integer(n);
	struct err e = {0};

	stream_done(&b->in);
	stream_done(&b->out);
	b->in = (struct stream){.way = STREAM_IN, .ops = &cl_stream, .arg = b};
	b->out = (struct stream){.way = STREAM_OUT,
				 .ops = &cl_stream,
				 .arg = b};
	if (stream_new(&b->in, b->c, id, "stdout", &e) < 0 ||
	    stream_new(&b->out, b->c, id, "stdin", &e) < 0)
		printf("# %s\n", e.msg);
	json_decref(id);
}

static void test_streams(void)
{
	static struct bed b;

	bed_open(&b, TLS_CLIENT, 30);
	connect_to(&b, NULL, NULL);
	open_streams(&b, 7);
	say(&b, "{\"id\":7,\"program\":\"echo\"}");
	go_until(&b, "started");
	b.to_send = BULK;
	same = true;
	pump_out(&b);
	ok(go_until(&b, "{\"id\":7,\"ok\":true}"), "the echo ends");
	is_int((long long)b.got, BULK, "all bytes came back");
	ok(same && b.eof, "as they were, and the end");

	/* One that is not read stops itself alone. */
	open_streams(&b, 8);
	say(&b, "{\"id\":8,\"program\":\"echo\",\"slow\":true}");
	b.text[0] = '\0';
	go_until(&b, "started");
	b.to_send = BULK;
	pump_out(&b);
	say(&b, "{\"program\":\"ping\",\"id\":\"p\"}");
	ok(go_until(&b, "\"id\":\"p\""), "past a stream that stands still");
	is_int((long long)b.out.moved, STREAM_WINDOW, "a window was sent");
	conn_cut(b.c, NULL);
	while (!b.gone || b.left == 0)
		go(&b);
	ok(b.in.c == NULL && stream_room(&b.out) == 0,
	   "streams of a connection that is gone are loose");
	bed_close(&b);
}

/* From a descriptor, without a copy of ours. */
static void test_fill(void)
{
	static struct bed b;
	char text[] = "0123456789";
	struct err e = {0};
	int p[2];

	bed_open(&b, TLS_CLIENT, 30);
	connect_to(&b, NULL, NULL);
	open_streams(&b, 1);
	say(&b, "{\"id\":1,\"program\":\"echo\"}");
	go_until(&b, "started");
	if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0)
		perror("# pipe");
	for (size_t i = 0; i < sizeof(text) - 1; i++)
		text[i] = (char)(i * 7 >> 3);
	(void)!write(p[1], text, 10);
	is_int(stream_fill(&b.out, p[0], &e), 10, "what is there is sent");
	is_int(stream_fill(&b.out, p[0], &e), -EAGAIN, "and no more");
	close(p[1]);
	is_int(stream_fill(&b.out, p[0], &e), 0, "then the end");
	close(p[0]);
	same = true;
	(void)stream_eof(&b.out, &e);
	ok(go_until(&b, "{\"id\":1,\"ok\":true}") && b.got == 10 && same,
	   "the bytes are as they were");
	bed_close(&b);
}

#define LONG	(900 * 1024)
#define MIRRORS 12

/* Both have more to say than either keeps while it does not read: one of them
 * has to read on. */
static void test_both_full(void)
{
	char *text = malloc(LONG + 100), *pad = malloc(LONG + 1);
	static struct bed b;

	memset(pad, 'x', LONG);
	pad[LONG] = '\0';
	bed_open(&b, TLS_CLIENT, 30);
	connect_to(&b, NULL, NULL);
	go_until(&b, "hello");
	b.lines = 0;
	for (int i = 0; i < MIRRORS; i++) {
		sprintf(text,
			"{\"id\":%d,\"program\":\"mirror\",\"pad\":\"%s\"}", i,
			pad);
		say(&b, text);
	}
	for (int i = 0; i < MIRRORS && b.lines < MIRRORS && !b.gone; i++)
		go(&b);
	is_int(b.lines, MIRRORS, "long requests with long answers, at once");
	free(text);
	free(pad);
	bed_close(&b);
}

/* --- bytes that come in any pieces -----------------------------------------
 */

#define PIECES 200 /* requests */

/* Between the two ends: so many bytes at a time each way, and no more until
 * those were taken. */
struct wire {
	struct loop_source src[2];
	int fd[2];
	size_t piece;
};

static void on_wire(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct wire *w = s->arg;
	int side = s == &w->src[1];
	char data[65536];
	ssize_t n;

	(void)events;
	n = read(w->fd[side], data, w->piece);
	if (n <= 0) {
		loop_del(l, s);
		(void)shutdown(w->fd[!side], SHUT_WR);
		return;
	}
	for (ssize_t at = 0, put; at < n; at += put) {
		put = send(w->fd[!side], data + at, (size_t)(n - at),
			   MSG_NOSIGNAL);
		if (put < 0)
			return;
	}
}

static void connect_by(struct bed *b, struct wire *w, size_t piece)
{
	struct conn_conf conf = {.ops = &cl_ops, .arg = b};
	struct err e = {0};
	int near[2], far[2];

	*w = (struct wire){.piece = piece};
	b->gone = false;
	b->lines = 0;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, near) < 0 ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, far) < 0)
		perror("# socketpair");
	w->fd[0] = near[1];
	w->fd[1] = far[0];
	for (int i = 0; i < 2; i++)
		if (loop_add(b->loop, &w->src[i], w->fd[i], EPOLLIN, on_wire, w,
			     &e) < 0)
			printf("# %s\n", e.msg);
	if (server_take(b->srv, &far[1], &e) < 0 ||
	    conn_open(&b->a.env, &conf, &near[0], &b->c, &e) < 0)
		printf("# %s\n", e.msg);
}

/* Requests of many lengths, ${ahead} of them before the first is answered. */
static void test_pieces(size_t piece, unsigned ahead)
{
	static char text[8192], pad[4096];
	static struct bed b;
	struct wire w;
	const size_t most = piece < 64 ? 128 : sizeof(pad);
	unsigned asked = 0;

	bed_open(&b, TLS_CLIENT, 30);
	connect_by(&b, &w, piece);
	while (b.lines < PIECES + 1 && !b.gone) {
		while (asked < PIECES && asked + 1 < b.lines + ahead) {
			size_t n = (size_t)asked * 37 % most;

			memset(pad, 'x', n);
			pad[n] = '\0';
			sprintf(text,
				"{\"id\":%u,\"program\":\"mirror\","
				"\"pad\":\"%s\"}",
				asked++, pad);
			say(&b, text);
		}
		go(&b);
	}
	ok(b.lines == PIECES + 1, "%zu bytes at a time, %u requests ahead",
	   piece, ahead);
	bed_close(&b);
	for (int i = 0; i < 2; i++)
		close(w.fd[i]);
}

/* Raw bytes of a peer that keeps no rules. */
static void test_rules(void)
{
	static const struct {
		const char *line, *want;
	} bad[] = {
		{"{\"id\":1,\"event\":\"credit\",\"stream\":\"stdout\","
		 "\"bytes\":1}",
		 "were not sent"},
		{"{\"id\":1,\"event\":\"eof\"}", "needs 'id' and 'stream'"},
		{"{\"id\":1,\"event\":\"data\",\"stream\":\"stdin\","
		 "\"bytes\":262145}",
		 "1 to 262144"},
	};
	static struct bed b;

	bed_open(&b, TLS_CONTROL, 30);
	for (size_t i = 0; i < array_len(bad); i++) {
		connect_to(&b, NULL, NULL);
		say(&b, "{\"id\":1,\"program\":\"echo\"}");
		go_until(&b, "started");
		say(&b, bad[i].line);
		ok(go_until(&b, bad[i].want), "%s is an error", bad[i].line);
		while (!b.gone)
			go(&b);
	}
	bed_close(&b);
}

static void refused(enum tls_kind kind, unsigned days,
		    const struct tls_ident *peer, const char *host,
		    const char *what)
{
	static struct bed b;

	bed_open(&b, kind, days);
	connect_to(&b, peer, host);
	while (!b.gone)
		go(&b);
	ok(b.lines == 0, "%s: nothing is said", what);
	printf("# %s\n", b.why.msg);
	bed_close(&b);
}

/* A file that holds ${text}, and begins again. */
static void torn(struct bed *b, char **at, const char *text, const char *what)
{
	char *was = *at;
	struct err e = {0};

	*at = strdup(text);
	is_int(tls_replace(b->b.tls, &b->b.pem, &e), 0, "a whole text");
	free(*at);
	if (asprintf(at, "%s%.100s", text, text) < 0)
		abort();
	ok(tls_replace(b->b.tls, &b->b.pem, &e) < 0, "%s", what);
	free(*at);
	*at = was;
}

static void test_trust(void)
{
	static const struct tls_ident other = {TLS_NODE, "n2"};
	static const struct tls_ident right = {TLS_NODE, "n1"};
	static struct bed b;
	char *crl = NULL;
	struct err e = {0};

	refused(TLS_NODE, 30, NULL, NULL, "a node as a client");
	refused(TLS_CLIENT, 0, NULL, NULL, "an expired certificate");
	refused(TLS_CLIENT, 30, &other, NULL, "a node of another name");
	refused(TLS_CLIENT, 30, NULL, "example.org", "another host");

	bed_open(&b, TLS_CLIENT, 30);
	connect_to(&b, &right, NULL);
	ok(go_until(&b, "hello"), "the node that was meant");
	if (make_crl(ca, ca_key, empty_crl, b.a.pem.cert, &crl, &e) < 0)
		printf("# %s\n", e.msg);
	free(b.b.pem.crl);
	b.b.pem.crl = crl;
	is_int(tls_replace(b.b.tls, &b.b.pem, &e), 0, "a new list is taken");
	while (!b.gone)
		go(&b);
	ok(b.gone, "who is revoked is cut off");
	connect_to(&b, NULL, NULL);
	while (!b.gone)
		go(&b);
	is_int(b.lines, 0, "and not let in again");
	is_int(b.refused, -EKEYREVOKED, "which the server is told");
	is_str(b.why.msg, "the peer refused this certificate: revoked",
	       "as the client is");
	is_str(b.why.code, "permission", "and need not try again");
	free(b.b.pem.crl);
	b.b.pem.crl = strdup("no list");
	ok(tls_replace(b.b.tls, &b.b.pem, &e) < 0, "no list is not one");
	free(b.b.pem.crl);
	b.b.pem.crl = strdup(empty_crl);
	torn(&b, &b.b.pem.crl, empty_crl, "nor is one with half of another");
	torn(&b, &b.b.pem.ca, ca, "authorities likewise");
	bed_close(&b);
}

int main(void)
{
	struct err e = {0};

	signal(SIGPIPE, SIG_IGN);
	if (make_key(&ca_key, &e) < 0 ||
	    make_ca(ca_key, "test", 30, &ca, &e) < 0 ||
	    make_crl(ca, ca_key, NULL, NULL, &empty_crl, &e) < 0)
		printf("# %s\n", e.msg);
	test_lines();
	test_calls();
	test_streams();
	test_fill();
	test_both_full();
	test_pieces(1, 2);
	test_pieces(13, 100);
	test_pieces(1400, 1000);
	test_pieces(65536, 2);
	test_pieces(65536, 1000);
	test_rules();
	test_trust();
	free(ca_key);
	free(ca);
	free(empty_crl);
	return tap_done();
}
