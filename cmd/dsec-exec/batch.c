/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "batch.h"
#include "job.h"
#include "wire/exit.h"
#include "wire/input.h"
#include "wire/record.h"

/* Requests that wait for their turn while the line of a cancel is looked for.
 */
#define AHEAD 256
/* Descriptors that are not connections: our own, and those used for a moment */
#define FDS_SPARE 10

struct batch {
	const struct batch_opts *o;
	struct loop *loop;
	struct input *input;
	struct job *first, *last; /* all of them, in order */
	unsigned running, waiting, jobs;
	bool ended;    /* no more lines */
	bool starting; /* start_more() is at work */
	bool lost;     /* standard output is */
	enum exit_status status;
};

static void stop_if_done(struct batch *b)
{
	if (b->ended && !b->first)
		loop_stop(b->loop, 0);
}

/* Whoever reads our records is gone: there is no point in going on. */
static int write_record(struct batch *b, const json_t *rec, struct err *e)
{
	int r = record_write(STDOUT_FILENO, rec, e);

	if (r == 0 || r == -EMSGSIZE)
		return r;
	log_err(e);
	b->status = exit_of(e);
	b->lost = true;
	loop_stop(b->loop, 0);
	return r;
}

static void count(struct batch *b, const struct err *e)
{
	if (!b->lost)
		b->status = exit_join(b->status, exit_of(e));
}

/* Write a final record (borrowed; NULL: memory is out) and count a failure. */
static void answer(struct batch *b, const json_t *rec)
{
	auto_json json_t *small = NULL;
	struct err e = {0};

	if (!rec) {
		err_sys(&e, ENOMEM, "record");
		log_err(&e);
		count(b, &e);
		return;
	}
	if (record_to_err(rec, &e) < 0)
		count(b, &e);
	if (write_record(b, rec, &e) != -EMSGSIZE)
		return;
	count(b, &e);
	small = record_error(NULL, &e);
	json_object_set(small, "id", json_object_get(rec, "id"));
	json_object_set(small, "exec", json_object_get(rec, "exec"));
	write_record(b, small, &e);
}

static void refuse(struct batch *b, const json_t *req, const struct err *why)
{
	auto_json json_t *rec = record_error(req, why);

	answer(b, rec);
}

static void start_more(struct batch *b);

static void unlink_job(struct batch *b, struct job *j)
{
	*(j->prev ? &j->prev->next : &b->first) = j->next;
	*(j->next ? &j->next->prev : &b->last) = j->prev;
}

static void on_event(void *arg, const json_t *rec)
{
	struct err e = {0};

	write_record(arg, rec, &e);
}

static void on_done(void *arg, struct job *j, const json_t *rec)
{
	struct batch *b = arg;

	unlink_job(b, j);
	if (j->running)
		b->running--;
	else
		b->waiting--;
	answer(b, rec);
	job_free(j);
	start_more(b);
	stop_if_done(b);
}

static const struct job_ops job_ops = {on_event, on_done};

static void start_more(struct batch *b)
{
	struct job *j;

	/* One that fails at once comes back here: no deeper than this. */
	if (b->starting)
		return;
	b->starting = true;
	while (!b->lost && b->waiting > 0 && b->running < b->jobs) {
		for (j = b->first; j->running; j = j->next)
			;
		b->waiting--;
		b->running++;
		job_start(j);
	}
	b->starting = false;
	if (b->input)
		input_hold(b->input, b->waiting >= AHEAD);
}

static void enqueue(struct batch *b, json_t *req)
{
	struct job like = {.tree = b->o->tree,
			   .loop = b->loop,
			   .ops = &job_ops,
			   .arg = b};
	struct job *j = job_new(&like, req);

	if (!j) {
		answer(b, NULL);
		json_decref(req);
		return;
	}
	j->prev = b->last;
	*(b->last ? &b->last->next : &b->first) = j;
	b->last = j;
	b->waiting++;
}

static void cancel(struct batch *b, json_t *req)
{
	const json_t *id = json_object_get(req, "cancel");
	auto_json json_t *rec = record_ok(req);
	struct err why = {0};
	struct job *j;

	for (j = b->first; j; j = j->next)
		if (json_equal(json_object_get(j->req, "id"), id))
			break;
	json_object_set_new(rec, "cancelled", json_boolean(j != NULL));
	answer(b, rec);
	if (!j)
		return;
	err_set(&why, -ECANCELED, "cancelled", "the request was cancelled");
	job_end(j, &why);
}

static void take_request(struct batch *b, json_t *req)
{
	struct err e = {0};

	if (json_object_get(req, "cancel")) {
		cancel(b, req);
		json_decref(req);
		return;
	}
	if (op_check(req, &e) < 0) {
		refuse(b, req, &e);
		json_decref(req);
		return;
	}
	enqueue(b, req);
	start_more(b);
}

static void on_line(void *arg, struct input_line *line)
{
	struct batch *b = arg;

	if (line->bad) {
		refuse(b, line->req, line->bad);
		json_decref(line->req);
	} else if (line->kind == RECORD_PASS) {
		answer(b, line->req);
		json_decref(line->req);
	} else {
		op_fit(line->req, b->o->req);
		take_request(b, line->req);
	}
}

static void on_end(void *arg, const struct err *why)
{
	struct batch *b = arg;

	b->ended = true;
	if (why) {
		log_err(why);
		b->status = exit_join(b->status, exit_of(why));
	}
	stop_if_done(b);
}

static int from_stdin(struct batch *b, struct err *e)
{
	static const struct input_ops ops = {on_line, on_end};
	struct input_from from = {.fd = STDIN_FILENO,
				  .fields = exec_fields,
				  .nfields = exec_fields_len,
				  .defaults = b->o->req,
				  .ops = &ops,
				  .arg = b};

	int r;

	/* What is wrong with the flags is so for all of the lines. */
	r = field_check(exec_fields, exec_fields_len, b->o->req, e);
	if (r < 0) {
		e->code = "usage";
		return r;
	}
	return input_new(b->loop, &from, &b->input, e);
}

/* A request per sandbox on the command line. */
static int from_words(struct batch *b, struct err *e)
{
	for (size_t i = 0; i < b->o->nwords; i++) {
		json_t *req = json_deep_copy(b->o->req);

		if (!req)
			return err_sys(e, ENOMEM, "request");
		json_object_set_new(req, "id", json_integer((int)i + 1));
		json_object_set_new(req, "sandbox",
				    json_string(b->o->words[i]));
		if (field_check(exec_fields, exec_fields_len, req, e) < 0) {
			refuse(b, req, e);
			json_decref(req);
			continue;
		}
		take_request(b, req);
	}
	b->ended = true;
	return 0;
}

/*
 * A request needs a descriptor, or two while its output is read: as many at
 * once as there are descriptors for.
 */
static unsigned jobs_within_limits(unsigned asked)
{
	struct rlimit lim;
	rlim_t room;

	if (getrlimit(RLIMIT_NOFILE, &lim) < 0)
		return asked;
	lim.rlim_cur = lim.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &lim) < 0 &&
	    getrlimit(RLIMIT_NOFILE, &lim) < 0)
		return asked;
	room = lim.rlim_cur > FDS_SPARE + 1 ? lim.rlim_cur - FDS_SPARE : 1;
	return asked < room ? asked : (unsigned)room;
}

static void drop_all(struct batch *b)
{
	struct job *j;

	while ((j = b->first)) {
		unlink_job(b, j);
		job_free(j);
	}
}

int batch_run(const struct batch_opts *o, struct err *e)
{
	struct batch b = {.o = o};
	int r;

	signal(SIGPIPE, SIG_IGN);
	b.jobs = jobs_within_limits(o->jobs);
	r = loop_new(&b.loop, e);
	if (r < 0)
		return r;
	r = o->nwords > 0 ? from_words(&b, e) : from_stdin(&b, e);
	if (r == 0 && !b.lost && (!b.ended || b.first))
		r = loop_run(b.loop, e);
	drop_all(&b);
	input_free(b.input);
	loop_free(b.loop);
	return r < 0 ? r : (int)b.status;
}
