/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "exec.h"
#include "starter.h"
#include "pause.h"
#include "repeat.h"
#include "session.h"
#include "wire/record.h"

#define GRACE_MS 500

static const char *const stream_names[2] = {"stdout", "stderr"};

struct exec *exec_find(struct box *b, const char *name)
{
	for (struct exec *x = b->execs; x; x = x->next)
		if (!strcmp(x->name, name))
			return x;
	return NULL;
}

/* Both streams at their end, and the process gone: the record is due. */
static void on_stream_end(struct stream *s)
{
	exec_settled(s->arg);
}

/* Does anybody but that reader wait for this command? */
static bool others(struct stream *s, uint64_t reader)
{
	struct exec *x = s->arg;

	for (int i = 0; i < 2; i++)
		for (unsigned k = 0; k < x->out[i].rec.nreaders; k++)
			if (x->out[i].rec.readers[k].id != reader)
				return true;
	for (struct ask *a = x->waiters; a; a = a->wait_next)
		if (a->conn->id != reader)
			return true;
	return false;
}

static void on_timeout(struct loop *l, struct loop_timer *t)
{
	struct exec *x = t->arg;

	(void)l;
	x->timeout_at = 0;
	exec_kill(x, "timeout", x->grace_ms);
}

struct exec *exec_new(struct box *b, enum exec_kind kind, struct err *e)
{
	struct exec *x;

	if (b->nexecs >= BOX_EXECS_MAX) {
		err_set(e, -EBUSY, "busy", "%d commands are running",
			BOX_EXECS_MAX);
		if (e)
			e->retry_after_ms = 100;
		return NULL;
	}
	x = calloc(1, sizeof(*x));
	if (!x) {
		err_sys(e, ENOMEM, "command");
		return NULL;
	}
	x->box = b;
	x->kind = kind;
	x->number = kind == EXEC_FILE ? b->next_helper++ : b->next_exec++;
	snprintf(x->name, sizeof(x->name), "%c%llu",
		 kind == EXEC_FILE ? 'f' : 'e', (unsigned long long)x->number);
	x->pidfd = x->tty_fd = x->tty_pipe = -1;
	x->stdin_fd = x->stdin_ref = -1;
	x->step = -1;
	x->grace_ms = GRACE_MS;
	x->timeout.fn = on_timeout;
	x->kill.fn = exec_on_kill;
	x->timeout.arg = x->kill.arg = x;
	for (int i = 0; i < 2; i++)
		stream_init(&x->out[i], b->loop, on_stream_end, others, x);
	x->next = b->execs;
	b->execs = x;
	b->nexecs++;
	return x;
}

int exec_restream(struct exec *x, const int src[2], struct err *e)
{
	int r = box_null(x->box, e);

	for (int i = 0; r == 0 && i < 2; i++) {
		struct recorder *rec = &x->out[i].rec;

		rec->src = src[i];
		rec->dirfd = x->box->out_fd;
		rec->null_fd = x->box->null_fd;
		snprintf(rec->name, sizeof(rec->name), "%s.%s", x->name,
			 stream_names[i]);
		if (!x->out[i].ended)
			r = stream_start(&x->out[i], e);
	}
	return r;
}

int exec_streams(struct exec *x, const int src[2], struct err *e)
{
	for (int i = 0; i < 2; i++) {
		x->has_out[i] = src[i] >= 0;
		x->out[i].ended = src[i] < 0;
	}
	return exec_restream(x, src, e);
}

int exec_options(struct exec *x, const json_t *req, struct err *e)
{
	const char *key = json_str(req, "key");
	int64_t timeout = json_int(req, "timeout_ms", 0);

	x->step = json_int(req, "step", -1);
	x->leave = json_flag(req, "leave");
	x->grace_ms = (unsigned)json_int(req, "grace_ms", GRACE_MS);
	x->timeout_at = timeout > 0 ? (uint64_t)timeout : 0;
	if (!*key)
		return 0;
	x->key = strdup(key);
	x->key_hash = repeat_hash(req);
	return x->key ? 0 : err_sys(e, ENOMEM, "command");
}

void exec_armed(struct exec *x)
{
	x->started_ms = clock_wall_ms();
	x->started_at = box_now(x->box);
	if (!x->timeout_at)
		return;
	x->timeout_at += x->started_at;
	loop_timer_set(x->box->loop, &x->timeout,
		       box_real(x->box, x->timeout_at));
}

static bool lists(const json_t *list, const char *word)
{
	size_t i;
	json_t *v;

	json_array_foreach(list, i, v)
		if (!strcmp(json_string_value(v), word))
			return true;
	return false;
}

static int check_attach(const json_t *list, struct err *e)
{
	size_t i;
	json_t *v;

	json_array_foreach(list, i, v)
		if (strcmp(json_string_value(v), "stdout") &&
		    strcmp(json_string_value(v), "stderr"))
			return err_set(e, -EBADMSG, "bad_value",
				       "'attach': \"stdout\" and \"stderr\"");
	return 0;
}

/* What goes out with the event "started". */
struct handing {
	int fds[4];
	size_t n;
	json_t *names;
};

static void hand(struct handing *h, const char *name, int fd)
{
	h->fds[h->n++] = fd;
	json_array_append_new(h->names, json_string(name));
}

static void hand_done(struct handing *h)
{
	for (size_t i = 0; i < h->n; i++)
		fd_close(h->fds[i]);
	json_decref(h->names);
}

/* New readers and the terminal; ${stdin_wr} is taken over. */
static int started(struct exec *x, struct ask *a, const json_t *req,
		   int *stdin_wr, struct err *e)
{
	const json_t *attach = json_object_get(req, "attach");
	bool lossy = json_flag(req, "lossy");
	struct handing h = {.names = json_array()};
	json_t *rec;
	int fd, r = 0;

	rec = json_pack("{s:s, s:s}", "event", "started", "exec", x->name);
	if (*stdin_wr >= 0)
		hand(&h, "stdin", steal_fd(stdin_wr));
	for (int i = 0; r == 0 && i < 2; i++) {
		char key[32];

		if (!lists(attach, stream_names[i]) || !x->has_out[i])
			continue;
		r = stream_attach(&x->out[i], lossy, a->conn->id, &fd, e);
		if (r < 0)
			break;
		hand(&h, stream_names[i], fd);
		snprintf(key, sizeof(key), "%s_offset", stream_names[i]);
		json_object_set_new(rec, key,
				    json_integer(
					    (json_int_t)x->out[i].rec.bytes));
	}
	if (r == 0 && x->tty_fd >= 0) {
		fd = fcntl(x->tty_fd, F_DUPFD_CLOEXEC, 0);
		if (fd < 0)
			r = err_sys(e, errno, "hand out the terminal");
		else
			hand(&h, "tty", fd);
	}
	if (r < 0 || !rec) {
		hand_done(&h);
		json_decref(rec);
		return r < 0 ? r : err_sys(e, ENOMEM, "command");
	}
	json_object_set_new(rec, "fds", h.names);
	ask_event(a, rec, h.fds, h.n);
	return 0;
}

int exec_attach(struct exec *x, struct ask *a, const json_t *req, struct err *e)
{
	const json_t *attach = json_object_get(req, "attach");
	int none = -1, r;

	r = check_attach(attach, e);
	if (r < 0 || x->finishing || !attach)
		return r;
	return started(x, a, req, &none, e);
}

/* What a command starts with; -1: closed or handed over. */
struct pipes {
	int in[2], out[2], err[2];
};

static void pipes_done(struct pipes *p)
{
	int *all[] = {p->in, p->out, p->err};

	for (size_t i = 0; i < array_len(all); i++)
		for (int k = 0; k < 2; k++)
			if (all[i][k] >= 0)
				fd_close(steal_fd(&all[i][k]));
}

static int make_pipes(struct pipes *p, const struct starter *l, bool with_in,
		      struct err *e)
{
	int r;

	r = stream_pipe(p->out, e);
	if (r == 0)
		r = stream_pipe(p->err, e);
	if (r == 0)
		r = starter_own(l, p->out[1], e);
	if (r == 0)
		r = starter_own(l, p->err[1], e);
	if (r < 0)
		return r;
	if (!with_in) /* the sandbox's own null device */
		return 0;
	if (pipe2(p->in, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	return starter_own(l, p->in[0], e);
}

static void on_pidfd(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct exec *x = s->arg;

	(void)events;
	loop_del(l, s);
	exec_awaited(x);
}

int exec_watch(struct exec *x, struct entered *en, struct err *e)
{
	x->inner = en->inner;
	x->pidfd = en->pidfd;
	x->leaf_made = true;
	x->tty_fd = en->tty;
	return loop_add(x->box->loop, &x->pid_src, x->pidfd, EPOLLIN, on_pidfd,
			x, e);
}

/* Its end of the client's stdin, kept so that more can be said later. */
static int keep_stdin(struct exec *x, struct pipes *p, bool ours, struct err *e)
{
	char path[40];

	if (ours) {
		x->stdin_fd = steal_fd(&p->in[1]);
		if (fcntl(x->stdin_fd, F_SETFL, O_NONBLOCK) < 0)
			return err_sys(e, errno, "stdin");
		return 0;
	}
	/* Not a write end: the client's closing must be the end of file. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", p->in[1]);
	x->stdin_ref = open(path, O_PATH | O_CLOEXEC);
	return x->stdin_ref < 0 ? err_sys(e, errno, "stdin") : 0;
}

static int start_tty(struct exec *x, struct starter *l, const json_t *req,
		     struct err *e)
{
	struct entered en = {.tty = -1};
	int src[2] = {-1, -1}, p[2], r;

	l->en.rows = (unsigned short)json_int(req, "rows", 24);
	l->en.cols = (unsigned short)json_int(req, "cols", 80);
	r = starter_enter(l, x->name, &en, e);
	if (r < 0)
		return r;
	r = exec_watch(x, &en, e);
	if (r == 0)
		r = stream_pipe(p, e);
	if (r < 0)
		return r;
	src[0] = p[0];
	x->tty_pipe = p[1];
	x->out[0].rec.src = p[0];
	r = exec_streams(x, src, e);
	return r < 0 ? r : exec_tty(x, e);
}

static int start_plain(struct exec *x, struct starter *l, const json_t *req,
		       int *ret_stdin, struct err *e)
{
	struct pipes p = {{-1, -1}, {-1, -1}, {-1, -1}};
	bool with_in = !strcmp(json_str(req, "stdin"), "pipe");
	struct entered en = {.tty = -1};
	int src[2], r;

	r = make_pipes(&p, l, with_in, e);
	if (r == 0 && with_in)
		r = keep_stdin(x, &p, json_flag(req, "detach"), e);
	if (r == 0) {
		l->en.fds[0] = p.in[0];
		l->en.fds[1] = p.out[1];
		l->en.fds[2] = p.err[1];
		r = starter_enter(l, x->name, &en, e);
	}
	if (r == 0)
		r = exec_watch(x, &en, e);
	if (r == 0) {
		src[0] = steal_fd(&p.out[0]);
		src[1] = steal_fd(&p.err[0]);
		x->out[0].rec.src = src[0];
		x->out[1].rec.src = src[1];
		r = exec_streams(x, src, e);
		*ret_stdin = steal_fd(&p.in[1]);
	}
	pipes_done(&p);
	return r;
}

static int start(struct exec *x, const json_t *req, int *ret_stdin,
		 struct err *e)
{
	const json_t *cwd = json_object_get(req, "cwd");
	const json_t *user = json_object_get(req, "user");
	struct starter_want want = {
		.argv = json_object_get(req, "command"),
		.env = json_object_get(req, "env"),
		.cwd = cwd ? json_string_value(cwd) : NULL,
		.user = user ? json_string_value(user) : NULL,
		.tty = json_flag(req, "tty"),
	};
	struct starter l;
	int r;

	r = exec_options(x, req, e);
	if (r == 0)
		r = starter_init(&l, x->box, &want, e);
	if (r < 0)
		return r;
	x->tty = want.tty;
	x->oom_before = box_oom_kills(x->box);
	exec_reports(x->box); /* old news must not be taken for its end */
	if (x->tty)
		r = start_tty(x, &l, req, e);
	else
		r = start_plain(x, &l, req, ret_stdin, e);
	starter_done(&l);
	if (r == 0)
		exec_armed(x);
	return r;
}

void exec_undo(struct exec *x)
{
	struct cgroup_root *cgroups;
	struct box *b = x->box;

	if (x->leaf_made && box_cgroups(b, &cgroups, NULL) == 0) {
		cgroup_kill(cgroups, b->id, x->name, 1000, NULL, NULL);
		cgroup_leaf_remove(cgroups, b->id, x->name, NULL);
	}
	exec_free(x);
}

static int check_request(const json_t *req, struct err *e)
{
	const char *in = json_str(req, "stdin");
	int r;

	r = field_need(req, "command", e);
	if (r == 0)
		r = check_attach(json_object_get(req, "attach"), e);
	if (r == 0 && *in && strcmp(in, "null") && strcmp(in, "pipe"))
		r = err_set(e, -EBADMSG, "bad_value",
			    "'stdin': \"null\" or \"pipe\"");
	return r;
}

/* Answer or keep the ask of a command that runs. */
int exec_hand_over(struct exec *x, struct ask *a, const json_t *req,
		   int *stdin_wr, struct err *e)
{
	int r;

	memcpy(a->exec, x->name, sizeof(a->exec));
	a->starter = true;
	if (json_flag(req, "detach")) {
		ask_answer(a, json_pack("{s:s}", "exec", x->name));
		return 1;
	}
	r = started(x, a, req, stdin_wr, e);
	if (r < 0)
		return r;
	ask_wait(a, &x->waiters);
	return 1;
}

int exec_request(struct ask *a, json_t *req, struct err *e)
{
	auto_close int stdin_wr = -1;
	struct box *b = a->box;
	struct exec *x;
	int r;

	r = check_request(req, e);
	if (r == 0)
		r = pause_awake(a, req, e);
	if (r != 0)
		return r;
	if (json_object_get(req, "session"))
		return session_exec(a, req, e);
	x = exec_new(b, EXEC_COMMAND, e);
	if (!x)
		return e ? e->r : -ENOMEM;
	r = start(x, req, &stdin_wr, e);
	if (r == 0)
		r = exec_hand_over(x, a, req, &stdin_wr, e);
	if (r < 0)
		exec_undo(x);
	return r;
}

/* The failure of the first command is its record: nobody else hears of it. */
static void record_failure(struct box *b, const char *name,
			   const struct err *why)
{
	auto_json json_t *rec = record_error(NULL, why);
	char file[40];

	json_object_set_new(rec, "exec", json_string(name));
	json_object_set_new(rec, "sandbox", json_string(b->id));
	snprintf(file, sizeof(file), "%s.json", name);
	json_write_file(b->out_fd, file, rec, 0, NULL);
}

void exec_first(struct box *b)
{
	auto_json json_t *spec = NULL, *req = NULL;
	const json_t *command;
	int none = -1, r;
	struct err e = {0};
	struct exec *x;

	if (box_spec(b, &spec, &e) < 0)
		return;
	command = json_object_get(spec, "command");
	if (!command)
		return;
	req = json_pack("{s:O, s:b, s:b}", "command", command, "tty",
			json_flag(spec, "tty"), "detach", 1);
	x = req ? exec_new(b, EXEC_COMMAND, &e) : NULL;
	if (!x)
		return;
	r = start(x, req, &none, &e);
	if (r < 0) {
		record_failure(b, x->name, &e);
		exec_undo(x);
	}
}
