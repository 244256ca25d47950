/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/clock.h"
#include "broker.h"
#include "policy/netpol.h"

bool space_add(struct space *s, const void *data, size_t len)
{
	if (space_left(s) < len)
		return false;
	memcpy(s->data + s->len, data, len);
	s->len += len;
	return true;
}

bool space_text(struct space *s, const char *text)
{
	return space_add(s, text, strlen(text));
}

bool space_chunk(struct space *s, size_t n)
{
	char head[FRAME];

	snprintf(head, sizeof(head), "%zx\r\n", n);
	return space_text(s, head);
}

static void copy(char *to, size_t size, struct http_str from)
{
	size_t n = from.len < size ? from.len : size - 1;

	memcpy(to, from.at, n);
	to[n] = '\0';
}

/* Without its query, which may say more than an audit should keep. */
static void note_use(struct conn *c, const struct http_head *h)
{
	struct http_str path = h->target;
	const char *query = path.len ? memchr(path.at, '?', path.len) : NULL;

	c->use = (struct use){.start_ms = clock_ms()};
	if (query)
		path.len = (size_t)(query - path.at);
	copy(c->use.method, sizeof(c->use.method), h->method);
	copy(c->use.path, sizeof(c->use.path), path);
}

/* The endpoint of "/NAME/...", if this sandbox has it; the rest into ${rest}.
 */
static const struct broker_endpoint *
find(const struct conn *c, struct http_str target, struct http_str *rest)
{
	const char *slash = memchr(target.at + 1, '/', target.len - 1);
	struct http_str name = {target.at + 1, 0};

	if (!slash)
		return NULL;
	name.len = (size_t)(slash - name.at);
	*rest = (struct http_str){slash, target.len - name.len - 1};
	for (size_t i = 0; i < c->who.n; i++)
		if (strlen(c->who.endpoints[i]) == name.len &&
		    !memcmp(c->who.endpoints[i], name.at, name.len))
			return broker_conf_find(c->s->conf, name);
	return NULL;
}

static bool is_host(struct http_str host)
{
	return http_is(host, NETPOL_BROKER_NAME) ||
	       http_is(host, NETPOL_BROKER_NAME ":80");
}

/*
 * What does not go on: the client's own credentials; what would let an answer
 * hide a secret from us (in a coding, in parts).
 */
static bool is_dropped(const struct broker_endpoint *ep,
		       const struct http_head *h, const struct http_field *f)
{
	static const char *const names[] = {
		"authorization", "cookie",   "accept-encoding",
		"range",	 "if-range", "sec-websocket-extensions",
	};

	for (size_t i = 0; i < array_len(names); i++)
		if (http_is(f->name, names[i]))
			return true;
	return http_drops(h, f) || broker_replaces(ep, f->name);
}

static bool add_field(struct space *o, const struct http_field *f)
{
	return space_add(o, f->name.at, f->name.len) && space_text(o, ": ") &&
	       space_add(o, f->value.at, f->value.len) && space_text(o, "\r\n");
}

static bool add_first(struct space *o, const struct broker_endpoint *ep,
		      const struct http_head *h, struct http_str rest)
{
	char port[16] = "";

	if (ep->port != 443)
		snprintf(port, sizeof(port), ":%u", ep->port);
	return space_add(o, h->method.at, h->method.len) &&
	       space_text(o, " ") && space_text(o, ep->base) &&
	       space_add(o, rest.at, rest.len) &&
	       space_text(o, " HTTP/1.1\r\nHost: ") &&
	       space_text(o, ep->host) && space_text(o, port) &&
	       space_text(o, "\r\n");
}

static bool add_last(struct space *o, const struct http_head *h)
{
	char length[64] = "";

	if (h->body == HTTP_LENGTH)
		snprintf(length, sizeof(length), "Content-Length: %llu\r\n",
			 (unsigned long long)h->length);
	else if (h->body == HTTP_CHUNKED)
		snprintf(length, sizeof(length),
			 "Transfer-Encoding: chunked\r\n");
	return space_text(o, length) &&
	       space_text(o, h->expect ? "Expect: 100-continue\r\n" : "") &&
	       space_text(o, h->upgrade ? "Connection: Upgrade\r\n"
					  "Upgrade: websocket\r\n"
					: "Connection: close\r\n") &&
	       space_text(o, "Accept-Encoding: identity\r\n\r\n");
}

static bool write_head(struct space *o, const struct broker_endpoint *ep,
		       const struct http_head *h, struct http_str rest)
{
	if (!add_first(o, ep, h, rest))
		return false;
	for (size_t i = 0; i < h->nfields; i++)
		if (!is_dropped(ep, h, &h->fields[i]) &&
		    !add_field(o, &h->fields[i]))
			return false;
	for (size_t i = 0; i < ep->nheaders; i++)
		if (!space_text(o, ep->headers[i].name) ||
		    !space_text(o, ": ") ||
		    !space_text(o, ep->headers[i].value) ||
		    !space_text(o, "\r\n"))
			return false;
	return add_last(o, h);
}

static void begin(struct conn *c, const struct http_head *h)
{
	const struct broker_endpoint *ep;
	struct http_str rest;

	if (!is_host(h->host)) {
		conn_fail(c, 403, "denied", "the host is not broker.internal");
		return;
	}
	ep = find(c, h->target, &rest);
	if (!ep) {
		conn_fail(c, 403, "denied",
			  "no such endpoint for this sandbox");
		return;
	}
	snprintf(c->use.endpoint, sizeof(c->use.endpoint), "%s", ep->name);
	if (!broker_allows(ep, h->method, rest)) {
		conn_fail(c, 403, "denied",
			  "method or path not allowed at this endpoint");
		return;
	}
	c->ep = ep;
	c->head = h->method.len == 4 && !memcmp(h->method.at, "HEAD", 4);
	c->upgrade = h->upgrade;
	c->close = h->close || c->s->leaving;
	http_reader_init(&c->request, h);
	c->up = upstream_new(c);
	if (!c->up) {
		conn_fail(c, 503, "failed", "out of memory");
	} else if (!write_head(&c->up->out, ep, h, rest)) {
		conn_fail(c, 431, "denied", "the head is too long");
	} else {
		c->state = CONN_EXCHANGE;
		upstream_begin(c->up);
	}
}

bool request_take(struct conn *c)
{
	struct http_head h;
	int r;

	if (c->state != CONN_HEAD || space_has(&c->out))
		return false;
	r = http_request(c->in.data + c->in.at, space_has(&c->in), &h);
	if (r == 0) {
		c->dead |= c->eof;
		return false;
	}
	c->since_ms = clock_ms();
	c->answered = c->chunked = c->head = c->upgrade = false;
	c->nheld = 0;
	memset(&c->scan, 0, sizeof(c->scan));
	c->close = true;
	note_use(c, &h);
	if (r < 0) {
		conn_fail(c, h.error, "denied", h.why);
		return true;
	}
	begin(c, &h);
	if (!c->dead && c->state == CONN_EXCHANGE)
		space_used(&c->in, h.len);
	return true;
}

/* A run of the body's bytes, framed as the head has told. */
static void pass_on(struct conn *c, struct http_str run)
{
	struct space *o = &c->up->out;
	bool chunked = c->request.body == HTTP_CHUNKED;

	c->use.sent += run.len;
	if (c->up->deaf)
		return;
	if (run.len && chunked)
		space_chunk(o, run.len);
	space_add(o, run.at, run.len);
	if (run.len && chunked)
		space_text(o, "\r\n");
	if (c->request.done && chunked)
		space_text(o, "0\r\n\r\n");
}

static bool tunnel_up(struct conn *c)
{
	size_t n = space_has(&c->in), room = space_left(&c->up->out);

	n = n < room ? n : room;
	if (c->up->deaf || n == 0)
		return false;
	space_add(&c->up->out, c->in.data + c->in.at, n);
	space_used(&c->in, n);
	c->use.sent += n;
	return true;
}

bool request_body(struct conn *c)
{
	size_t n = space_has(&c->in), room;
	struct http_str run;
	ssize_t used;

	if (!c->up || c->dead)
		return false;
	if (c->state == CONN_TUNNEL)
		return tunnel_up(c);
	if (c->request.done)
		return false;
	room = space_left(&c->up->out);
	if (room < 2 * FRAME)
		return false;
	if (n > room - 2 * FRAME)
		n = room - 2 * FRAME;
	used = http_read(&c->request, c->in.data + c->in.at, n, &run);
	if (used < 0) {
		conn_fail(c, 400, "denied", "a malformed body");
		return true;
	}
	if (used == 0 && c->eof) {
		conn_fail(c, 400, "aborted", "the request was cut off");
		return true;
	}
	if (used > 0)
		pass_on(c, run);
	space_used(&c->in, (size_t)used);
	return used > 0;
}
