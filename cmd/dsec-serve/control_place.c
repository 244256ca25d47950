/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/proc.h"
#include "control.h"

#define WINDOW	  1024
#define QUEUE_MAX 16384

static void note(const char *text)
{
	log_info("dsec-place: %s", text);
}

/* --- what it is told ---------------------------------------------------------
 */

pid_t placer_told(const struct control *c)
{
	struct coproc_stats st;

	coproc_stats(c->place, &st);
	return st.pid == c->place_pid ? st.pid : 0;
}

static void tell(const struct member *m)
{
	json_t *line = m->report ? json_copy(m->report) : NULL;

	if (!line)
		return;
	json_object_del(line, "id");
	json_object_set_new(line, "at_ms",
			    json_integer((json_int_t)m->report_at_ms));
	/* What it does not take now the next second's report brings. */
	(void)coproc_tell(m->c->place, line);
	json_decref(line);
}

void placer_report(struct member *m)
{
	if (placer_told(m->c))
		tell(m);
	else
		placer_tick(m->c);
}

static bool ignore_record(void *arg, json_t *rec)
{
	(void)arg;
	return json_is_boolean(json_object_get(rec, "ok"));
}

static void ignore_failure(void *arg, const struct err *why)
{
	(void)arg, (void)why;
}

static void ask_aside(struct control *c, json_t *req)
{
	static const struct coproc_ops ops = {ignore_record, ignore_failure};
	struct coproc_call *call;

	if (req && coproc_ask(c->place, req, 0, &ops, NULL, &call, NULL) < 0)
		log_debug("control", "dsec-place is busy");
	json_decref(req);
}

void placer_forget(struct member *m)
{
	if (*m->code && placer_told(m->c))
		ask_aside(m->c, json_pack("{s:s, s:s}", "op", "forget", "node",
					  m->code));
}

/* Another process has placements of its own under the same numbers. */
void placer_end(struct job *j, const char *how)
{
	if (j->placement && j->placer == placer_told(j->c))
		ask_aside(j->c, json_pack("{s:s, s:I, s:s}", "op", "done",
					  "placement", (json_int_t)j->placement,
					  "end", how));
}

/* --- its life
 * ------------------------------------------------------------------ */

void placer_wait(struct job *j)
{
	struct control *c = j->c;

	j->next_waiting = NULL;
	j->pprev_waiting = c->waiting_end;
	*c->waiting_end = j;
	c->waiting_end = &j->next_waiting;
}

void placer_leave(struct job *j)
{
	if (!j->pprev_waiting)
		return;
	*j->pprev_waiting = j->next_waiting;
	if (j->next_waiting)
		j->next_waiting->pprev_waiting = j->pprev_waiting;
	else
		j->c->waiting_end = j->pprev_waiting;
	j->pprev_waiting = NULL;
}

/* Each is out of the list before anything comes of it: it may be gone then, and
 * others with it. */
static void run_waiting(struct control *c)
{
	struct job *j;

	while ((j = c->waiting) && placer_told(c)) {
		placer_leave(j);
		run_again(j);
	}
}

void placer_tick(struct control *c)
{
	const struct member *m = NULL;
	struct coproc_stats st;

	coproc_stats(c->place, &st);
	if (!st.pid) {
		ask_aside(c, json_pack("{s:s}", "op", "nodes"));
		return;
	}
	if (st.pid != c->place_pid) {
		c->place_pid = st.pid;
		while ((m = member_node(c, m)))
			tell(m);
	}
	run_waiting(c);
}

int placer_open(struct control *c, struct err *e)
{
	struct coproc_conf conf = {
		.loop = c->loop,
		.window = WINDOW,
		.queue_max = QUEUE_MAX,
		.note = note,
	};
	int r = proc_program("dsec-place", c->place_path, sizeof(c->place_path),
			     e);

	if (r < 0)
		return r;
	c->waiting_end = &c->waiting;
	c->place_argv[0] = c->place_path;
	conf.argv = c->place_argv;
	r = coproc_new(&conf, &c->place, e);
	if (r == 0)
		placer_tick(c);
	return r;
}
