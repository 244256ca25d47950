/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/sig.h"
#include "exec.h"
#include "life.h"
#include "ops.h"
#include "pause.h"
#include "relay.h"
#include "repeat.h"
#include "session.h"
#include "wire/record.h"

#define LIST_MAX 1000 /* records in an answer of list-execs */

#define F(key, type, min, max)                                                 \
	{                                                                      \
		{.name = NULL}, key, type, min, max, NULL                      \
	}

/* clang-format off */
static const struct field exec_fields[] = {
	F("command", FIELD_CMD, 0, 0),
	F("env", FIELD_MAP, 0, 0),
	F("cwd", FIELD_STR, 1, 4095),
	F("user", FIELD_STR, 0, 256),
	F("timeout_ms", FIELD_MS, 1, 0),
	F("grace_ms", FIELD_MS, 0, 600000),
	F("stdin", FIELD_STR, 1, 16),
	F("tty", FIELD_BOOL, 0, 0),
	F("rows", FIELD_INT, 1, 65535),
	F("cols", FIELD_INT, 1, 65535),
	F("session", FIELD_STR, 1, 32),
	F("step", FIELD_INT, 0, 0),
	F("detach", FIELD_BOOL, 0, 0),
	F("leave", FIELD_BOOL, 0, 0),
	F("inline_kb", FIELD_INT, 0, 0),
	F("attach", FIELD_STRS, 0, 0),
	F("lossy", FIELD_BOOL, 0, 0),
};
static const struct field attach_fields[] = {
	F("exec", FIELD_STR, 1, 32),
	F("attach", FIELD_STRS, 0, 0),
	F("lossy", FIELD_BOOL, 0, 0),
	F("inline_kb", FIELD_INT, 0, 0),
};
static const struct field wait_fields[] = {
	F("exec", FIELD_STR, 1, 32),
	F("timeout_ms", FIELD_MS, 1, 0),
};
static const struct field signal_fields[] = {
	F("exec", FIELD_STR, 1, 32),
	F("signal", FIELD_ID, 0, 0),
};
static const struct field input_fields[] = {
	F("exec", FIELD_STR, 1, 32),
	F("data", FIELD_BYTES, 0, JSON_LINE_MAX),
	F("close", FIELD_BOOL, 0, 0),
};
static const struct field resize_fields[] = {
	F("exec", FIELD_STR, 1, 32),
	F("rows", FIELD_INT, 1, 65535),
	F("cols", FIELD_INT, 1, 65535),
};
static const struct field session_fields[] = {
	F("shell", FIELD_STR, 1, 255),
	F("env", FIELD_MAP, 0, 0),
	F("cwd", FIELD_STR, 1, 4095),
	F("user", FIELD_STR, 0, 256),
};
static const struct field close_fields[] = {
	F("session", FIELD_STR, 1, 32),
};
static const struct field file_fields[] = {
	F("args", FIELD_STRS, 0, 0),
	F("user", FIELD_STR, 0, 256),
};
static const struct field pause_fields[] = {
	F("level", FIELD_STR, 1, 32),
};
static const struct field snapshot_fields[] = {
	F("snapshot", FIELD_STR, 1, 32),
	F("fs_only", FIELD_BOOL, 0, 0),
};
static const struct field inspect_fields[] = {
	F("pss", FIELD_BOOL, 0, 0),
};
static const struct field connect_fields[] = {
	F("port", FIELD_INT, 1, 65535),
};
static const struct field stop_fields[] = {
	F("grace_ms", FIELD_MS, 0, 600000),
};
/* clang-format on */

static int unknown(const char *name, struct err *e)
{
	return err_set(e, -ESRCH, "exec_unknown",
		       "the sandbox has no command '%s'", name);
}

/* A name that is a file of ours: e and digits. */
static bool is_exec_name(const char *name)
{
	size_t n = strlen(name);

	return name[0] == 'e' && n > 1 && n < 20 &&
	       name[1 + strspn(name + 1, "0123456789")] == '\0';
}

static int past_record(struct box *b, const char *name, json_t **ret,
		       struct err *e)
{
	char file[40];

	if (!is_exec_name(name))
		return unknown(name, e);
	snprintf(file, sizeof(file), "%s.json", name);
	if (json_read_file(b->out_fd, file, ret, NULL) < 0)
		return unknown(name, e);
	return 0;
}

/* The record of one that ended; that of a failure to start is a failure. */
static int answer_past(struct ask *a, const char *name, struct err *e)
{
	json_t *rec = NULL;
	int r;

	r = past_record(a->box, name, &rec, e);
	if (r < 0)
		return r;
	if (json_is_false(json_object_get(rec, "ok"))) {
		record_to_err(rec, e);
		json_decref(rec);
		return -EREMOTEIO;
	}
	ask_answer(a, rec);
	return 1;
}

static void on_deadline(struct loop *l, struct loop_timer *t)
{
	struct ask *a = t->arg;
	struct exec *x = a->starter ? exec_find(a->box, a->exec) : NULL;
	struct box *b = a->box;
	bool job = a->job;
	struct err e;

	(void)l;
	err_set(&e, -ETIMEDOUT, "deadline", "the time for it is over");
	ask_fail(a, &e);
	if (job)
		job_cancel(b);
	if (x)
		exec_kill(x, "killed", x->grace_ms);
}

void ops_deadline(struct ask *a, uint64_t at_ms)
{
	if (!at_ms)
		return;
	a->deadline.fn = on_deadline;
	a->deadline.arg = a;
	loop_timer_set(a->box->loop, &a->deadline, at_ms);
}

static void set_deadline(struct ask *a, int64_t ms)
{
	if (ms > 0)
		ops_deadline(a, clock_ms() + (uint64_t)ms);
}

static int op_attach(struct ask *a, json_t *req, struct err *e)
{
	struct exec *x;
	int r;

	r = field_need(req, "exec", e);
	if (r < 0)
		return r;
	x = exec_find(a->box, json_str(req, "exec"));
	if (!x)
		return answer_past(a, json_str(req, "exec"), e);
	r = pause_awake(a, req, e);
	if (r == 0)
		r = exec_attach(x, a, req, e);
	if (r != 0)
		return r;
	ask_wait(a, &x->waiters);
	return 1;
}

static int op_wait(struct ask *a, json_t *req, struct err *e)
{
	struct exec *x;
	int r;

	r = field_need(req, "exec", e);
	if (r < 0)
		return r;
	x = exec_find(a->box, json_str(req, "exec"));
	if (!x)
		return answer_past(a, json_str(req, "exec"), e);
	set_deadline(a, json_int(req, "timeout_ms", 0));
	ask_wait(a, &x->waiters);
	return 1;
}

/* 0: and the command; 1: parked. */
static int running(struct ask *a, json_t *req, struct exec **ret, struct err *e)
{
	json_t *past = NULL;
	int r;

	r = pause_awake_for(a, req, "exec", e);
	if (r != 0)
		return r;
	*ret = exec_find(a->box, json_str(req, "exec"));
	if (*ret && !(*ret)->gone)
		return 0;
	r = past_record(a->box, json_str(req, "exec"), &past, e);
	json_decref(past);
	if (r < 0 && !*ret)
		return r;
	return err_set(e, -ESRCH, "exec_unknown", "%s has ended",
		       json_str(req, "exec"));
}

static int signal_of(const json_t *req, struct err *e)
{
	const json_t *v = json_object_get(req, "signal");
	int sig;

	if (json_is_integer(v))
		sig = json_integer_value(v) > 0 && json_integer_value(v) <= 64
			      ? (int)json_integer_value(v)
			      : -EINVAL;
	else
		sig = sig_by_name(json_str(req, "signal"));
	if (sig <= 0)
		return err_set(e, -EBADMSG, "bad_value",
			       "'signal' is not a signal");
	return sig;
}

static int send_signal(struct exec *x, int sig, struct err *e)
{
	struct cgroup_root *cgroups;
	struct box *b = x->box;
	int r;

	if (x->session && session_forget(x->session, x)) {
		exec_abandon(x, "killed");
		return 0;
	}
	x->asked_signal = sig;
	if (x->session)
		return session_signal(x->session, sig, e);
	r = box_cgroups(b, &cgroups, e);
	if (r < 0)
		return r;
	if (sig == SIGKILL)
		return cgroup_kill(cgroups, b->id, x->name, 1000, NULL, e);
	return cgroup_signal(cgroups, b->id, x->name, sig, e);
}

static int op_signal(struct ask *a, json_t *req, struct err *e)
{
	struct exec *x;
	int sig, r;

	r = field_need(req, "signal", e);
	if (r == 0)
		r = running(a, req, &x, e);
	if (r != 0)
		return r;
	sig = signal_of(req, e);
	if (sig < 0)
		return sig;
	r = send_signal(x, sig, e);
	if (r < 0)
		return r;
	ask_answer(a, NULL);
	return 1;
}

static int op_input(struct ask *a, json_t *req, struct err *e)
{
	struct exec *x;
	char *data = NULL;
	size_t len = 0;
	int r;

	r = running(a, req, &x, e);
	if (r != 0)
		return r;
	r = json_get_bytes(req, "data", &data, &len, e);
	if (r < 0)
		return r;
	return exec_input(x, a, data, len, json_flag(req, "close"), e);
}

static int op_resize(struct ask *a, json_t *req, struct err *e)
{
	struct winsize ws = {0};
	struct exec *x;
	int r;

	r = field_need(req, "rows", e);
	if (r == 0)
		r = field_need(req, "cols", e);
	if (r == 0)
		r = running(a, req, &x, e);
	if (r != 0)
		return r;
	if (x->tty_fd < 0)
		return err_set(e, -EBADMSG, "bad_value", "%s has no terminal",
			       x->name);
	ws.ws_row = (unsigned short)json_int(req, "rows", 0);
	ws.ws_col = (unsigned short)json_int(req, "cols", 0);
	if (ioctl(x->tty_fd, TIOCSWINSZ, &ws) < 0)
		return err_sys(e, errno, "resize the terminal of %s", x->name);
	ask_answer(a, NULL);
	return 1;
}

/* The newest of those that ended, as many as one answer holds. */
static int add_past(struct box *b, json_t *list)
{
	for (uint64_t n = b->next_exec; n-- > 0;) {
		json_t *rec = NULL;
		char name[24];

		if (json_array_size(list) >= LIST_MAX)
			break;
		snprintf(name, sizeof(name), "e%llu", (unsigned long long)n);
		if (exec_find(b, name) || past_record(b, name, &rec, NULL) < 0)
			continue;
		if (json_array_append_new(list, rec) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int op_list(struct ask *a, json_t *req, struct err *e)
{
	json_t *list = json_array();
	struct box *b = a->box;

	(void)req;
	for (struct exec *x = b->execs; list && x; x = x->next)
		if (x->kind != EXEC_FILE)
			json_array_append_new(list, exec_record(x));
	if (!list || add_past(b, list) < 0) {
		json_decref(list);
		return err_sys(e, ENOMEM, "list");
	}
	ask_answer(a, json_pack("{s:o}", "execs", list));
	return 1;
}

/* The request of that id on the same connection. */
static struct ask *find_ask(struct ask *mine, const json_t *id)
{
	for (struct ask *a = mine->conn->asks; a; a = a->next)
		if (a != mine && json_equal(json_object_get(a->echo, "id"), id))
			return a;
	return NULL;
}

static int op_cancel(struct ask *a, json_t *req, struct err *e)
{
	struct ask *other = find_ask(a, json_object_get(req, "cancel"));
	struct box *b = a->box;
	struct exec *x;
	struct err why;
	int r;

	if (!other)
		return err_set(e, -ENOENT, "not_found",
			       "no request of that id is waiting");
	x = other->starter ? exec_find(b, other->exec) : NULL;
	if (x && (r = pause_awake(a, req, e)) != 0)
		return r;
	ask_answer(a, NULL);
	if (other->job) { /* it is told when all is as it was before */
		job_cancel(b);
		return 1;
	}
	if (x) {
		exec_kill(x, "killed", x->grace_ms);
		return 1;
	}
	err_set(&why, -ECANCELED, "cancelled", "the request was cancelled");
	ask_fail(other, &why);
	return 1;
}

typedef int op_fn(struct ask *a, json_t *req, struct err *e);

static int op_stop(struct ask *a, json_t *req, struct err *e)
{
	return life_stop(a, req, e);
}

static int op_inspect(struct ask *a, json_t *req, struct err *e)
{
	return life_inspect(a, req, e);
}

static int op_watch(struct ask *a, json_t *req, struct err *e)
{
	return life_watch(a, req, e);
}

#define T(a) a, array_len(a)

/* clang-format off */
static const struct op {
	const char *name;
	const struct field *fields;
	size_t n;
	op_fn *fn;
} ops[] = {
	{"exec", T(exec_fields), exec_request},
	{"attach", T(attach_fields), op_attach},
	{"wait", T(wait_fields), op_wait},
	{"signal", T(signal_fields), op_signal},
	{"input", T(input_fields), op_input},
	{"resize", T(resize_fields), op_resize},
	{"list-execs", NULL, 0, op_list},
	{"session", T(session_fields), session_open},
	{"close-session", T(close_fields), session_close},
	{"file", T(file_fields), exec_file},
	{"pause", T(pause_fields), pause_op_pause},
	{"resume", NULL, 0, pause_op_resume},
	{"snapshot", T(snapshot_fields), pause_op_snapshot},
	{"hold", NULL, 0, pause_op_hold},
	{"connect", T(connect_fields), relay_op_connect},
	{"stop", T(stop_fields), op_stop},
	{"inspect", T(inspect_fields), op_inspect},
	{"watch", NULL, 0, op_watch},
};
/* clang-format on */

static const struct op *find_op(const json_t *req, struct err *e)
{
	const json_t *v = json_object_get(req, "op");
	const char *name = v ? json_str(req, "op") : "exec";

	for (size_t i = 0; i < array_len(ops); i++)
		if (!strcmp(ops[i].name, name))
			return &ops[i];
	err_set(e, -EBADMSG, "bad_value", "'op' is none of a supervisor's");
	return NULL;
}

/* "op" and "sandbox" are in every request and in no table. */
static int check(const struct op *op, const struct ask *a, json_t *req,
		 struct err *e)
{
	const char *sandbox = json_str(req, "sandbox");
	int r;

	if (json_object_get(req, "ok"))
		return err_set(e, -EBADMSG, "unknown_field",
			       "a record, not a request");
	if (*sandbox && tree_is_id(sandbox) && strcmp(sandbox, a->box->id))
		return err_set(e, -ESRCH, "sandbox_unknown",
			       "this is sandbox %s", a->box->id);
	json_object_del(req, "sandbox");
	json_object_del(req, "op");
	r = field_check(op->fields, op->n, req, e);
	if (r == 0)
		json_object_set_new(req, "op", json_string(op->name));
	return r;
}

static int take(struct ask *a, json_t *req, struct err *e)
{
	const char *key;
	const struct op *op;
	int r;

	if (json_object_get(req, "cancel"))
		return op_cancel(a, req, e);
	op = find_op(req, e);
	if (!op)
		return -EBADMSG;
	r = check(op, a, req, e);
	if (r < 0)
		return r;
	r = repeat_check(a, req, e);
	if (r != 0)
		return r;
	key = json_str(req, "key");
	if (*key && op->fn != exec_request && op->fn != exec_file) {
		free(a->key); /* it may have been parked */
		a->key = strdup(key);
		a->key_hash = repeat_hash(req);
	}
	set_deadline(a, json_int(req, "deadline_ms", 0));
	return op->fn(a, req, e);
}

void ops_take(struct ask *a, json_t *req)
{
	struct err e = {0};

	if (take(a, req, &e) < 0)
		ask_fail(a, &e);
}
