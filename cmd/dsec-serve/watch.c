/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "serve/ops.h"
#include "watch.h"
#include "wire/exit.h"

#define TOLD_MS 1000 /* between lines of the log on refused handshakes */

enum {
	M_UP,
	M_CERTIFICATE,
	M_CONNECTIONS,
	M_CALLS,
	M_REQUESTS,
	M_SECONDS,
	M_REFUSALS,
	M_HANDSHAKES,
	M_NODE_STATE,
	M_NODE_DRAINING,
	M_NODE_PRESSED,
	M_NODE_STALLED,
	M_NODE_AVAILABLE,
	M_NODE_CPU,
	M_CLAIMED,
	M_LIMIT,
	M_SANDBOXES,
	M_STATES,
	M_PROJECTS,
	M_RESTARTS,
	M_COPROC_WAITING,
	M_LEN
};

/* clang-format off */
static const struct metric table[M_LEN] = {
	[M_UP] = {"dsec_up", "1 while it serves.", METRIC_GAUGE, 0, {NULL}},
	[M_CERTIFICATE] = {"dsec_certificate_expiry_timestamp_seconds", "When its own certificate expires, in Unix time.", METRIC_GAUGE, 0, {NULL}},
	[M_CONNECTIONS] = {"dsec_connections", "Clients that are connected.", METRIC_GAUGE, 0, {NULL}},
	[M_CALLS] = {"dsec_requests_under_way", "Requests that are not answered yet.", METRIC_GAUGE, 0, {NULL}},
	[M_REQUESTS] = {"dsec_requests_total", "Requests answered, by what came of them.", METRIC_COUNTER, 400, {"program", "op", "code"}},
	[M_SECONDS] = {"dsec_request_seconds", "From the request to its last record.", METRIC_HISTOGRAM, 60, {"program", "op"}},
	[M_REFUSALS] = {"dsec_refusals_total", "Requests that may be repeated: no room, busy.", METRIC_COUNTER, 40, {"program", "code"}},
	[M_HANDSHAKES] = {"dsec_handshakes_refused_total", "Handshakes that failed, by reason.", METRIC_COUNTER, 8, {"reason"}},
	[M_NODE_STATE] = {"dsec_node_state", "1 for the state a node is in.", METRIC_GAUGE, 4096, {"node", "state"}},
	[M_NODE_DRAINING] = {"dsec_node_draining", "1 where no new sandboxes are taken.", METRIC_GAUGE, 4096, {"node"}},
	[M_NODE_PRESSED] = {"dsec_node_pressed", "1 where anything would be refused for the moment.", METRIC_GAUGE, 4096, {"node"}},
	[M_NODE_STALLED] = {"dsec_node_memory_stalled_ratio", "Part of time in which all wait for memory.", METRIC_GAUGE, 4096, {"node"}},
	[M_NODE_AVAILABLE] = {"dsec_node_memory_available_mb", "Memory that is available.", METRIC_GAUGE, 4096, {"node"}},
	[M_NODE_CPU] = {"dsec_node_cpu_used_cores", "CPUs in use.", METRIC_GAUGE, 4096, {"node"}},
	[M_CLAIMED] = {"dsec_claimed", "What sandboxes hold of a node, by resource.", METRIC_GAUGE, 16384, {"node", "resource"}},
	[M_LIMIT] = {"dsec_limit", "What a node may promise, by resource.", METRIC_GAUGE, 16384, {"node", "resource"}},
	[M_SANDBOXES] = {"dsec_sandboxes", "Sandboxes by backend.", METRIC_GAUGE, 4096, {"node", "backend"}},
	[M_STATES] = {"dsec_sandboxes_by_state", "Sandboxes by state.", METRIC_GAUGE, 8192, {"node", "state"}},
	[M_PROJECTS] = {"dsec_sandboxes_by_project", "Sandboxes by project, of all nodes.", METRIC_GAUGE, 1000, {"project"}},
	[M_RESTARTS] = {"dsec_coprocess_restarts", "How often a program was started again.", METRIC_GAUGE, 8192, {"node", "program"}},
	[M_COPROC_WAITING] = {"dsec_coprocess_waiting", "Requests that wait for a program.", METRIC_GAUGE, 8192, {"node", "program"}},
};
/* clang-format on */

struct watch {
	struct watch_conf conf;
	struct metrics *m;
	struct ops *ops;
	json_t *report; /* of this node, the last that was asked for */
};

/* --- requests --------------------------------------------------------------
 */

/* Words of clients make no series of their own. */
static const char *program_of(const struct call *k)
{
	static const char *const known[] = {
		"run",	 "exec",   "file",  "pause", "ps",
		"fork",	 "net",	   "img",   "admit", "task",
		"hello", "report", "nodes", "ping",  "drain",
	};

	for (size_t i = 0; i < array_len(known); i++)
		if (!strcmp(k->program, known[i]))
			return known[i];
	return "other";
}

/* The code of an answer, and its status; "ok". */
static const char *code_of(const json_t *rec, enum exit_status *ret_status)
{
	const char *code = json_str(json_object_get(rec, "error"), "code");

	*ret_status = EXIT_OK;
	if (json_is_true(json_object_get(rec, "ok")))
		return "ok";
	*ret_status = EXIT_BUG;
	for (size_t i = 0; i < exit_codes_len; i++)
		if (!strcmp(exit_codes[i].code, code)) {
			*ret_status = exit_codes[i].status;
			return exit_codes[i].code;
		}
	return "other";
}

void watch_ended(struct watch *w, const struct call *k, const json_t *rec)
{
	enum exit_status status;
	const char *program, *op, *code;

	if (!w)
		return;
	program = program_of(k);
	code = code_of(rec, &status);
	/* An op that was refused as a word may be any word. */
	op = status == EXIT_BAD_RECORD || status == EXIT_PEER_AWAY ||
			     !strcmp(program, "other")
		     ? ""
		     : json_str(k->req, "op");
	metrics_add(w->m, M_REQUESTS, METRIC_VALUES(program, op, code), 1);
	metrics_observe(w->m, M_SECONDS, METRIC_VALUES(program, op),
			(clock_ms() - k->began_ms) * 1000);
	if (status == EXIT_TRY_AGAIN)
		metrics_add(w->m, M_REFUSALS, METRIC_VALUES(program, code), 1);
	if (!w->conf.refresh && status == EXIT_OK &&
	    !strcmp(program, "report") && rec) {
		json_decref(w->report);
		w->report = json_incref((json_t *)(uintptr_t)rec);
	}
}

static const char *reason_of(const struct err *why)
{
	switch (-why->r) {
	case EKEYREVOKED:
		return "revoked";
	case EKEYEXPIRED:
		return "expired";
	case EACCES:
		return "certificate";
	case EKEYREJECTED:
		return "by_client";
	case ETIMEDOUT:
		return "timeout";
	case ECONNRESET:
		return "broken_off";
	default:
		return "other";
	}
}

void watch_refused(struct watch *w, struct refusals *r, const struct err *why)
{
	uint64_t now = clock_ms();

	if (w)
		metrics_add(w->m, M_HANDSHAKES, METRIC_VALUES(reason_of(why)),
			    1);
	if (strcmp(why->code, "permission"))
		return;
	if (r->told_ms && now - r->told_ms < TOLD_MS) {
		r->untold++;
		return;
	}
	log_info("a handshake was refused: %s (%u more since the last line)",
		 why->msg, r->untold);
	*r = (struct refusals){.told_ms = now};
}

/* --- nodes -----------------------------------------------------------------
 */

static double number(const json_t *obj, const char *key)
{
	const json_t *v = json_object_get(obj, key);

	return json_is_true(v) ? 1 : json_number_value(v);
}

static void amounts(struct watch *w, unsigned metric, const char *node,
		    const json_t *obj)
{
	static const char *const keys[] = {"memory_mb", "cpu_cores", "disk_mb",
					   "pids", "sandboxes"};

	for (size_t i = 0; i < array_len(keys); i++)
		metrics_set(w->m, metric, METRIC_VALUES(node, keys[i]),
			    number(obj, keys[i]));
}

static void counts(struct watch *w, unsigned metric, const char *node,
		   json_t *obj)
{
	const char *key;
	json_t *v;

	json_object_foreach(obj, key, v) {
		metrics_set(w->m, metric, METRIC_VALUES(node, key),
			    json_number_value(v));
	}
}

static void coprocesses(struct watch *w, const char *node, json_t *list)
{
	const char *key;
	json_t *v;

	json_object_foreach(list, key, v) {
		metrics_set(w->m, M_RESTARTS, METRIC_VALUES(node, key),
			    number(v, "restarts"));
		metrics_set(w->m, M_COPROC_WAITING, METRIC_VALUES(node, key),
			    number(v, "waiting"));
	}
}

void watch_node(struct watch *w, const char *name, const char *state,
		const json_t *report)
{
	static const struct {
		unsigned metric;
		const char *key;
	} one[] = {
		{M_NODE_DRAINING, "draining"},
		{M_NODE_PRESSED, "pressed"},
		{M_NODE_STALLED, "memory_full"},
		{M_NODE_AVAILABLE, "memory_available_mb"},
		{M_NODE_CPU, "cpu_used"},
	};
	const char *key;
	json_t *v;

	if (!w)
		return;
	metrics_set(w->m, M_NODE_STATE, METRIC_VALUES(name, state), 1);
	if (!report)
		return;
	for (size_t i = 0; i < array_len(one); i++)
		if (json_object_get(report, one[i].key))
			metrics_set(w->m, one[i].metric, METRIC_VALUES(name),
				    number(report, one[i].key));
	amounts(w, M_CLAIMED, name, json_object_get(report, "held"));
	amounts(w, M_LIMIT, name, json_object_get(report, "limit"));
	counts(w, M_SANDBOXES, name, json_object_get(report, "sandboxes"));
	counts(w, M_STATES, name, json_object_get(report, "states"));
	coprocesses(w, name,
		    json_object_get(json_object_get(report, "daemon"),
				    "coprocesses"));
	json_object_foreach(json_object_get(report, "projects"), key, v) {
		metrics_add(w->m, M_PROJECTS, METRIC_VALUES(key),
			    json_integer_value(v));
	}
}

/* Gauges of before say nothing: a node may have gone. */
static void on_refresh(void *arg)
{
	struct watch *w = arg;
	struct server_stats s = server_stats(w->conf.server);
	uint64_t until_s = w->conf.until_ms(w->conf.arg) / 1000;

	for (unsigned i = M_NODE_STATE; i < M_LEN; i++)
		metrics_clear(w->m, i);
	metrics_set(w->m, M_UP, NULL, 1);
	metrics_set(w->m, M_CERTIFICATE, NULL, (double)until_s);
	metrics_set(w->m, M_CONNECTIONS, NULL, s.clients);
	metrics_set(w->m, M_CALLS, NULL, s.calls);
	if (w->conf.refresh)
		w->conf.refresh(w->conf.arg, w);
	else if (w->report)
		watch_node(w, json_str(w->report, "node"), "live", w->report);
}

static const char *on_unready(void *arg)
{
	const struct watch *w = arg;

	return w->conf.unready ? w->conf.unready(w->conf.arg) : NULL;
}

int watch_open(const struct watch_conf *c, struct watch **ret, struct err *e)
{
	struct ops_conf conf = {.address = c->address,
				.refresh = on_refresh,
				.unready = on_unready};
	struct watch *w;
	int r;

	*ret = NULL;
	if (!c->address)
		return 0;
	w = calloc(1, sizeof(*w));
	if (!w)
		return err_sys(e, ENOMEM, "metrics");
	w->conf = *c;
	w->conf.address = NULL; /* the caller's */
	r = metrics_new(table, M_LEN, &w->m, e);
	conf.metrics = w->m;
	conf.arg = w;
	if (r == 0)
		r = ops_open(c->loop, &conf, &w->ops, e);
	if (r < 0)
		watch_close(w);
	else
		*ret = w;
	return r;
}

void watch_close(struct watch *w)
{
	if (!w)
		return;
	ops_close(w->ops);
	metrics_free(w->m);
	json_decref(w->report);
	free(w);
}
