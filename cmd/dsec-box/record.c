/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/sig.h"
#include "record.h"
#include "session.h"
#include "wire/exit.h"

#define KILLED_STATUS (128 + SIGKILL) /* a shell's word for it */

bool record_infra(const char *outcome)
{
	for (size_t i = 0; i < exit_outcomes_len; i++)
		if (!strcmp(exit_outcomes[i].outcome, outcome))
			return exit_outcomes[i].infra;
	return true;
}

static bool was_killed(int status)
{
	return (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
	       (WIFEXITED(status) && WEXITSTATUS(status) == KILLED_STATUS);
}

/* Kills by the memory limit while it ran. */
static uint64_t oom_kills(const struct exec *x)
{
	uint64_t kills = box_oom_kills(x->box);

	if (kills > x->box->oom_seen)
		x->box->oom_seen = kills;
	return kills > x->oom_before ? kills - x->oom_before : 0;
}

static const char *outcome_of(const struct exec *x, uint64_t kills)
{
	int status = x->report.status;

	if (x->cause)
		return x->cause;
	if (x->lost)
		return "died";
	if (kills > 0 && was_killed(status))
		return "oom";
	if (WIFSIGNALED(status))
		return x->asked_signal == WTERMSIG(status) ? "killed"
							   : "signalled";
	return "exited";
}

static void put(json_t *rec, const char *key, uint64_t v)
{
	json_object_set_new(rec, key, json_integer((json_int_t)v));
}

static void put_end(const struct exec *x, json_t *rec)
{
	uint64_t kills = oom_kills(x);
	const char *outcome = outcome_of(x, kills);
	int status = x->report.status;

	json_object_set_new(rec, "outcome", json_string(outcome));
	if (WIFSIGNALED(status))
		json_object_set_new(rec, "signal",
				    json_string(sig_name(WTERMSIG(status))));
	else if (!x->lost)
		put(rec, "exit_code", (uint64_t)WEXITSTATUS(status));
	json_object_set_new(rec, "infra", json_boolean(record_infra(outcome)));
	if (kills > 0) {
		auto_json json_t *spec = NULL;
		struct cgroup_stats stats;

		box_stats(x->box, &stats);

		/* They are told now: a later death of pid 1 is not theirs. */
		x->box->oom_seen = stats.oom_kills;

		box_spec(x->box, &spec, NULL);
		json_object_set_new(
			rec, "oom",
			json_pack("{s:I, s:I, s:I}", "limit_mb",
				  (json_int_t)json_int(spec, "memory_limit_mb",
						       0),
				  "peak_mb",
				  (json_int_t)(stats.memory_peak_bytes >> 20),
				  "kills", (json_int_t)kills));
	}
	put(rec, "ended_ms", x->ended_ms);
	put(rec, "duration_ms", x->ended_at - x->started_at);
	if (x->session_ended)
		json_object_set_new(rec, "session_ended", json_true());
	if (!x->report.pid) /* nobody accounted for it */
		return;
	put(rec, "cpu_ms", (x->report.utime_us + x->report.stime_us) / 1000);
	put(rec, "max_rss_kb", x->report.maxrss_kb);
}

static void put_stream(const struct exec *x, json_t *rec, int i)
{
	const struct recorder *r = &x->out[i].rec;
	const char *name = i == 0 ? "stdout" : "stderr";
	uint64_t kept = r->bytes - r->dropped;
	char key[32];

	snprintf(key, sizeof(key), "%s_bytes", name);
	put(rec, key, r->bytes);
	if (r->dropped) {
		snprintf(key, sizeof(key), "%s_kept", name);
		put(rec, key, kept);
	}
	if (kept > RECORDER_HEAD + RECORDER_TAIL) {
		snprintf(key, sizeof(key), "%s_tail_start", name);
		put(rec, key, (kept - RECORDER_HEAD) % RECORDER_TAIL);
	}
}

json_t *exec_record(const struct exec *x)
{
	json_t *rec = json_pack("{s:s, s:b, s:s}", "sandbox", x->box->id, "ok",
				1, "exec", x->name);

	if (!rec)
		return NULL;
	if (x->session)
		json_object_set_new(rec, "session",
				    json_string(session_name(x->session)));
	if (x->step >= 0)
		put(rec, "step", (uint64_t)x->step);
	put(rec, "started_ms", x->started_ms);
	if (x->gone)
		put_end(x, rec);
	else
		json_object_set_new(rec, "running", json_true());
	if (x->kind == EXEC_FILE)
		return rec;
	put_stream(x, rec, 0);
	put_stream(x, rec, 1);
	json_object_set_new(rec, "truncated",
			    json_boolean(recorder_truncated(&x->out[0].rec) ||
					 recorder_truncated(&x->out[1].rec)));
	if (x->left_killed)
		put(rec, "left_killed", x->left_killed);
	return rec;
}
