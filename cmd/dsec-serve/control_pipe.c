/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "control.h"

/* Bytes of a request's stream, from its node to the client or the other way,
 * each side with a window of its own: what cannot be passed on is kept, and no
 * more than a window comes meanwhile. */
struct pipe {
	struct pipe *next;
	struct job *j;
	struct stream in, out;
	struct buf kept;
	size_t at;
	bool eof, to_client;
};

static void pass_kept(struct pipe *p)
{
	size_t n, left;

	while ((left = p->kept.len - p->at) > 0 &&
	       (n = stream_room(&p->out)) > 0) {
		n = n < left ? n : left;
		if (stream_send(&p->out, p->kept.data + p->at, n, NULL) < 0)
			return;
		p->at += n;
		stream_taken(&p->in, n);
	}
	if (left > 0)
		return;
	buf_done(&p->kept);
	p->at = 0;
}

static void settle(struct pipe *p)
{
	struct job *j = p->j;

	if (p->eof && p->kept.len == 0 && !p->out.ended && p->out.c)
		(void)stream_eof(&p->out, NULL);
	if (j->final && pipes_over(j))
		job_end(j, steal_ptr(j->final));
}

static void on_data(void *arg, struct stream *s, const char *data, size_t len)
{
	struct pipe *p = arg;
	size_t n;

	while (p->kept.len == 0 && len > 0 && (n = stream_room(&p->out)) > 0) {
		n = n < len ? n : len;
		if (stream_send(&p->out, data, n, NULL) < 0)
			return;
		data += n;
		len -= n;
		stream_taken(s, n);
	}
	if (len > 0 && buf_add(&p->kept, data, len) < 0) {
		struct err e = {0};

		/* Bytes may not be lost without a word. */
		err_sys(&e, ENOMEM, "pass bytes on");
		conn_cut(s->c, &e);
	}
}

static void on_eof(void *arg, struct stream *s)
{
	struct pipe *p = arg;

	(void)s;
	p->eof = true;
	settle(p);
}

static void on_room(void *arg, struct stream *s)
{
	struct pipe *p = arg;

	(void)s;
	pass_kept(p);
	settle(p);
}

static const struct stream_ops ops = {on_data, on_eof, on_room};

static void pipe_free(struct pipe *p)
{
	stream_done(&p->in);
	stream_done(&p->out);
	buf_done(&p->kept);
	free(p);
}

static int pipe_new(struct job *j, const char *name, bool to_client,
		    struct err *e)
{
	struct pipe *p = calloc(1, sizeof(*p));
	struct conn *node = j->ask->m->conn, *client = j->call->client->c;
	int r;

	if (!p)
		return err_sys(e, ENOMEM, "streams");
	*p = (struct pipe){.j = j, .to_client = to_client};
	p->in.way = STREAM_IN;
	p->out.way = STREAM_OUT;
	p->in.ops = p->out.ops = &ops;
	p->in.arg = p->out.arg = p;
	r = stream_new(&p->in, to_client ? node : client,
		       to_client ? j->ask->id : j->call->id, name, e);
	if (r == 0)
		r = stream_new(&p->out, to_client ? client : node,
			       to_client ? j->call->id : j->ask->id, name, e);
	if (r < 0) {
		pipe_free(p);
		return r;
	}
	p->next = j->pipes;
	j->pipes = p;
	return 0;
}

int pipes_start(struct job *j, const json_t *started, struct err *e)
{
	/* Names are literals here: what a node says is not taken as it is. */
	static const struct {
		const char *name;
		bool to_node, to_client;
	} known[] = {
		{"stdin", true, false},	 {"tty", true, true},
		{"stdout", false, true}, {"stderr", false, true},
		{"socket", true, true},
	};
	const json_t *list = json_object_get(started, "streams"), *v;
	int r = 0;
	size_t n;

	if (j->pipes || !j->ask->m->conn)
		return 0;
	json_array_foreach(list, n, v) {
		const char *name = json_string_value(v);

		for (size_t i = 0; name && i < array_len(known); i++) {
			if (strcmp(known[i].name, name))
				continue;
			if (known[i].to_node)
				r = pipe_new(j, known[i].name, false, e);
			if (r == 0 && known[i].to_client)
				r = pipe_new(j, known[i].name, true, e);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

bool pipes_over(const struct job *j)
{
	for (const struct pipe *p = j->pipes; p; p = p->next)
		if (p->to_client && p->out.c && !p->out.ended)
			return false;
	return true;
}

void pipes_finish(struct job *j)
{
	/* A node that ends a request has ended its streams. */
	for (struct pipe *p = j->pipes; p; p = p->next) {
		if (!p->to_client)
			continue;
		p->eof = true;
		pass_kept(p);
		if (p->kept.len == 0 && !p->out.ended && p->out.c)
			(void)stream_eof(&p->out, NULL);
	}
}

void pipes_stop(struct job *j)
{
	struct pipe *p;

	while ((p = j->pipes)) {
		j->pipes = p->next;
		pipe_free(p);
	}
}
