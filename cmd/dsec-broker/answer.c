/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "broker.h"

#define ECHO_WHY "the answer holds the secret"

static const char *reason(int status)
{
	static const struct {
		int status;
		const char *text;
	} all[] = {
		{100, "Continue"},
		{101, "Switching Protocols"},
		{200, "OK"},
		{201, "Created"},
		{202, "Accepted"},
		{204, "No Content"},
		{301, "Moved Permanently"},
		{302, "Found"},
		{303, "See Other"},
		{304, "Not Modified"},
		{307, "Temporary Redirect"},
		{308, "Permanent Redirect"},
		{400, "Bad Request"},
		{401, "Unauthorized"},
		{403, "Forbidden"},
		{404, "Not Found"},
		{429, "Too Many Requests"},
		{500, "Internal Server Error"},
		{502, "Bad Gateway"},
		{503, "Service Unavailable"},
		{504, "Gateway Timeout"},
	};

	for (size_t i = 0; i < array_len(all); i++)
		if (all[i].status == status)
			return all[i].text;
	return "";
}

static void add_status(struct space *o, int status)
{
	char line[64];

	snprintf(line, sizeof(line), "HTTP/1.1 %d %s\r\n", status,
		 reason(status));
	space_text(o, line);
}

/* The length of what HEAD would have been, or of what was not modified. */
static void add_told_length(struct space *o, const struct http_head *h)
{
	for (size_t i = 0; i < h->nfields; i++) {
		if (!http_is(h->fields[i].name, "content-length"))
			continue;
		space_text(o, "Content-Length: ");
		space_add(o, h->fields[i].value.at, h->fields[i].value.len);
		space_text(o, "\r\n");
	}
}

static void add_framing(struct conn *c, const struct http_head *h)
{
	char line[64];

	c->chunked = h->body == HTTP_CHUNKED || h->body == HTTP_TO_END;
	if (c->chunked) {
		space_text(&c->out, "Transfer-Encoding: chunked\r\n");
	} else if (h->body == HTTP_LENGTH) {
		snprintf(line, sizeof(line), "Content-Length: %llu\r\n",
			 (unsigned long long)h->length);
		space_text(&c->out, line);
	} else if (c->head || h->status == 304) {
		add_told_length(&c->out, h);
	}
	if (c->state == CONN_TUNNEL)
		space_text(&c->out, "Connection: Upgrade\r\n"
				    "Upgrade: websocket\r\n");
	else if (c->close)
		space_text(&c->out, "Connection: close\r\n");
	space_text(&c->out, "\r\n");
}

/* False: the head of the answer holds a secret. */
static bool is_clean(const struct conn *c, size_t from)
{
	struct scan_state st = {0};

	return scan_feed(c->ep->scan, &st, c->out.data + from,
			 c->out.len - from) >= 0;
}

/* There is room for a whole head. */
static void write_head(struct conn *c, const struct http_head *h)
{
	size_t from = c->out.len;

	add_status(&c->out, h->status);
	for (size_t i = 0; i < h->nfields; i++) {
		const struct http_field *f = &h->fields[i];

		if (http_drops(h, f) || http_is(f->name, "alt-svc"))
			continue;
		space_add(&c->out, f->name.at, f->name.len);
		space_text(&c->out, ": ");
		space_add(&c->out, f->value.at, f->value.len);
		space_text(&c->out, "\r\n");
	}
	add_framing(c, h);
	if (is_clean(c, from)) {
		c->answered = true;
		return;
	}
	c->out.len = from;
	conn_fail(c, 502, "blocked", ECHO_WHY);
}

/* An answer before the answer: only the one that a client waits for. */
static void take_interim(struct conn *c, const struct http_head *h)
{
	if (h->status == 100)
		space_text(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
}

static void take_final(struct conn *c, const struct http_head *h)
{
	c->use.status = h->status;
	if (h->encoded && h->body != HTTP_NO_BODY) {
		conn_fail(c, 502, "blocked",
			  "the answer is encoded, though nobody asked for it");
		return;
	}
	c->close |= !c->request.done;
	http_reader_init(&c->answer, h);
	write_head(c, h);
}

static void take_switch(struct conn *c, const struct http_head *h)
{
	if (!c->upgrade) {
		conn_fail(c, 502, "failed", "an upgrade nobody asked for");
		return;
	}
	c->use.status = 101;
	c->state = CONN_TUNNEL;
	write_head(c, h);
}

static bool take_head(struct conn *c)
{
	struct upstream *up = c->up;
	struct http_head h;
	size_t len;
	int r;

	/* What is written anew is a little longer than what was read. */
	if (space_left(&c->out) < HTTP_HEAD_MAX + 4096)
		return false;
	r = http_answer(up->in.data + up->in.at, space_has(&up->in), c->head,
			&h);
	if (r == 0 && !up->eof)
		return false;
	if (r == 0) {
		conn_fail(c, 502, "failed", "the upstream hung up");
		return true;
	}
	if (r < 0) {
		conn_fail(c, 502, "failed", h.why);
		return true;
	}
	len = h.len;
	if (h.status == 101)
		take_switch(c, &h);
	else if (h.status < 200)
		take_interim(c, &h);
	else
		take_final(c, &h);
	if (c->up)
		space_used(&c->up->in, len);
	return true;
}

static void emit(struct conn *c, const char *a, size_t na, const char *b,
		 size_t nb)
{
	if (na + nb == 0)
		return;
	if (c->chunked)
		space_chunk(&c->out, na + nb);
	space_add(&c->out, a, na);
	space_add(&c->out, b, nb);
	if (c->chunked)
		space_text(&c->out, "\r\n");
	c->use.received += na + nb;
}

/* A run of the answer's bytes: what may be passed on is, the rest is held. */
static bool sift(struct conn *c, const char *data, size_t n)
{
	int hold = scan_feed(c->ep->scan, &c->scan, data, n);
	size_t all = c->nheld + n, go, of_held;

	if (hold < 0) {
		conn_fail(c, 502, "blocked", ECHO_WHY);
		return false;
	}
	/* Its first bytes may be gone: they were too few to be held. */
	go = all - ((size_t)hold < all ? (size_t)hold : all);
	of_held = go < c->nheld ? go : c->nheld;
	emit(c, c->held, of_held, data, go - of_held);
	memmove(c->held, c->held + of_held, c->nheld - of_held);
	c->nheld -= of_held;
	memcpy(c->held + c->nheld, data + (go - of_held), n - (go - of_held));
	c->nheld += n - (go - of_held);
	return true;
}

/* The most bytes of a run for which there is room, held ones included. */
static size_t room_for(const struct conn *c)
{
	size_t left = space_left(&c->out), need = c->nheld + 2 * FRAME;

	return left > need ? left - need : 0;
}

static void finish(struct conn *c)
{
	emit(c, c->held, c->nheld, NULL, 0);
	c->nheld = 0;
	if (c->chunked)
		space_text(&c->out, "0\r\n\r\n");
	conn_done(c);
}

static bool take_body(struct conn *c)
{
	struct upstream *up = c->up;
	size_t n = space_has(&up->in), room = room_for(c);
	struct http_str run;
	ssize_t used;

	if (c->answer.done || room == 0) {
		if (c->answer.done && room)
			finish(c);
		return c->answer.done && room;
	}
	n = n < room ? n : room;
	used = http_read(&c->answer, up->in.data + up->in.at, n, &run);
	if (used < 0) {
		conn_fail(c, 502, "failed", "a malformed body of an answer");
		return true;
	}
	if (run.len && !sift(c, run.at, run.len))
		return true;
	space_used(&up->in, (size_t)used);
	/* One that ends with the connection has to end it in order. */
	if (used == 0 && up->eof && !up->torn && c->answer.body == HTTP_TO_END)
		c->answer.done = true;
	else if (used == 0 && up->eof)
		conn_fail(c, 502, "failed", "the answer was cut off");
	else
		return used > 0;
	return true;
}

static bool tunnel_down(struct conn *c)
{
	struct upstream *up = c->up;
	size_t n = space_has(&up->in), room = room_for(c);

	n = n < room ? n : room;
	if (n && !sift(c, up->in.data + up->in.at, n))
		return true;
	if (n)
		space_used(&up->in, n);
	if ((n == 0 && up->eof && room) ||
	    (c->eof && !space_has(&c->in) && !space_has(&up->out))) {
		c->close = true;
		finish(c);
		return true;
	}
	return n > 0;
}

bool answer_take(struct conn *c)
{
	if (!c->up || c->dead)
		return false;
	if (c->state == CONN_TUNNEL)
		return tunnel_down(c);
	return c->answered ? take_body(c) : take_head(c);
}
