/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "life/listing.h"

/* 42s, 17m, 5h, 3d: how long ago. */
static void age(char *out, size_t size, int64_t since_ms)
{
	int64_t s = since_ms ? ((int64_t)clock_wall_ms() - since_ms) / 1000
			     : -1;

	if (since_ms && s < 0)
		s = 0;
	if (s < 0)
		snprintf(out, size, "-");
	else if (s < 120)
		snprintf(out, size, "%llds", (long long)s);
	else if (s < 7200)
		snprintf(out, size, "%lldm", (long long)(s / 60));
	else if (s < 172800)
		snprintf(out, size, "%lldh", (long long)(s / 3600));
	else
		snprintf(out, size, "%lldd", (long long)(s / 86400));
}

static const char *or_dash(const char *s)
{
	return *s ? s : "-";
}

void listing_line(const json_t *rec, char ret[LISTING_MAX])
{
	char state[64], created[16], cpu[16];
	const char *more;

	if (!rec) {
		snprintf(ret, LISTING_MAX,
			 "%-20s  %-16s  %-22s  %-6s  %4s  %7s  %-12s  %s",
			 "SANDBOX", "NAME", "STATE", "AGE", "CPU", "MEMORY",
			 "TASK", "PROJECT");
		return;
	}
	more = json_str(rec, "outcome");
	if (!*more)
		more = json_str(rec, "level");
	snprintf(state, sizeof(state), *more ? "%s/%s%s" : "%s%s%s",
		 json_str(rec, "state"), more,
		 json_flag(rec, "recovery") ? "/waits" : "");
	age(created, sizeof(created), json_int(rec, "created_ms", 0));
	snprintf(cpu, sizeof(cpu), "%g",
		 json_number_value(json_object_get(rec, "cpu_cores_limit")));
	snprintf(ret, LISTING_MAX,
		 "%-20s  %-16s  %-22s  %-6s  %4s  %6lldM  %-12s  %s",
		 json_str(rec, "sandbox"), or_dash(json_str(rec, "name")),
		 state, created, cpu,
		 (long long)json_int(rec, "memory_limit_mb", 0),
		 or_dash(json_str(rec, "task")),
		 or_dash(json_str(rec, "project")));
}
