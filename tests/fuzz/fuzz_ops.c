/* SPDX-License-Identifier: Apache-2.0 */
/* What anybody on the machine may send to the address of the metrics: an answer
 * of HTTP, or a hang-up; in pieces the same as whole. */
#include <assert.h>
#include <string.h>
#include <sys/socket.h>

#include "../../lib/serve/ops.c"
#include "fuzz.h"

static const struct metric table[] = {
	{"dsec_up", "One.", METRIC_GAUGE, 0, {NULL}},
};

/* Sent in pieces; what comes back, up to the hang-up or the end. */
static void talk(struct ops *o, const uint8_t *data, size_t size, size_t piece,
		 struct buf *ret)
{
	struct ops_conn *c = &o->conns[0];
	char text[2048];
	ssize_t n;
	int sv[2];

	assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
			  0, sv) == 0);
	c->fd = sv[0];
	c->len = c->sent = 0;
	assert(loop_add(o->loop, &c->source, c->fd, EPOLLIN, on_conn, c,
			NULL) == 0);
	while (size && c->fd >= 0 && !c->out.len) {
		n = send(sv[1], data, size < piece ? size : piece,
			 MSG_NOSIGNAL);
		if (n <= 0)
			break;
		data += n;
		size -= (size_t)n;
		on_conn(o->loop, &c->source, EPOLLIN);
	}
	if (c->fd >= 0 && c->out.len)
		on_conn(o->loop, &c->source, EPOLLOUT);
	while ((n = recv(sv[1], text, sizeof(text), 0)) > 0)
		assert(buf_add(ret, text, (size_t)n) == 0);
	if (c->fd >= 0)
		hang_up(c);
	fd_close(sv[1]);
}

static void check(const struct buf *b, const uint8_t *data)
{
	static const char *const known[] = {"200 OK", "404 Not Found",
					    "405 Method Not Allowed"};
	bool found = !b->len;

	for (size_t i = 0; !found && i < array_len(known); i++)
		found = !strncmp(b->data, "HTTP/1.1 ", 9) &&
			!strncmp(b->data + 9, known[i], strlen(known[i]));
	assert(found);
	if (b->len && !strncmp(b->data + 9, known[0], 6))
		assert(!memcmp(data, "GET /metrics", 12) ||
		       !memcmp(data, "GET /healthz", 12) ||
		       !memcmp(data, "GET /readyz", 11));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct ops o = {.fd = -1, .listening = true};
	auto_buf struct buf whole = {0};
	auto_buf struct buf parts = {0};

	if (!o.loop) {
		assert(loop_new(&o.loop, NULL) == 0);
		assert(metrics_new(table, 1, &o.conf.metrics, NULL) == 0);
		o.conns[0].ops = &o;
		o.conns[0].timer = (struct loop_timer){.fn = on_late,
						       .arg = &o.conns[0]};
	}
	if (size < 2)
		return 0;
	talk(&o, data + 1, size - 1, size, &whole);
	check(&whole, data + 1);
	talk(&o, data + 1, size - 1, data[0] + 1u, &parts);
	check(&parts, data + 1);
	/* A NUL or the limit may come after the end of the request. */
	if (parts.len && whole.len && size <= REQUEST_MAX)
		assert(parts.len == whole.len &&
		       !memcmp(parts.data, whole.data, whole.len));
	return 0;
}
