/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "sys/cgroup_priv.h"

bool cgroup_key(const char *text, const char *key, uint64_t *ret)
{
	size_t n = strlen(key);

	for (const char *p = text; p && *p; p = strchr(p, '\n')) {
		p += *p == '\n';
		if (strncmp(p, key, n) || p[n] != ' ')
			continue;
		*ret = strtoull(p + n + 1, NULL, 10);
		return true;
	}
	return false;
}

int cgroup_get(int tree, const char *id, const char *file, const char *key,
	       uint64_t *ret, struct err *e)
{
	char path[CGROUP_PATH_MAX], text[4096];
	int r;

	r = cgroup_path(path, id, NULL, file, e);
	if (r < 0)
		return r;
	r = cgroup_read(tree, path, text, sizeof(text), e);
	if (r < 0)
		return r;
	if (key && !cgroup_key(text, key, ret))
		return err_set(e, -EIO, "system", "'%s' has no '%s'", path,
			       key);
	if (!key)
		*ret = strtoull(text, NULL, 10);
	return 0;
}

/* v1 has no count of limits reached that can be relied on (failcnt leaves out
 * memsw on some kernels): the peak was at the limit, but for a batch. */
static int limit_reached(const struct cgroup_root *root, const char *id,
			 uint64_t peak, uint64_t *ret, struct err *e)
{
	uint64_t limit;
	int r;

	if (root->mode == CGROUP_V2)
		return cgroup_get(root->memory, id, "memory.events", "oom", ret,
				  e);
	r = cgroup_get(root->memory, id, "memory.limit_in_bytes", NULL, &limit,
		       e);
	if (r == 0)
		*ret = peak >= limit - limit / 16;
	return r;
}

static int memory(const struct cgroup_root *root, const char *id,
		  struct cgroup_stats *st, struct err *e)
{
	bool v2 = root->mode == CGROUP_V2;
	int r;

	r = cgroup_get(root->memory, id,
		       v2 ? "memory.current" : "memory.usage_in_bytes", NULL,
		       &st->memory_bytes, e);
	if (r < 0)
		return r;
	r = cgroup_get(root->memory, id,
		       v2 ? "memory.peak" : "memory.max_usage_in_bytes", NULL,
		       &st->memory_peak_bytes, e);
	if (r == -ENOENT && v2) { /* older than the file */
		st->memory_peak_bytes = st->memory_bytes;
		r = 0;
	}
	return r;
}

/*
 * Every kill by the OOM killer is counted, those for the node's sake as well.
 * Only a group that reached its own limit was killed by it.
 */
int cgroup_oom_kills(const struct cgroup_root *root, const char *id,
		     uint64_t *ret_kills, struct err *e)
{
	bool v2 = root->mode == CGROUP_V2;
	struct cgroup_stats st = {0};
	uint64_t kills, reached = 0;
	int r;

	r = cgroup_get(root->memory, id,
		       v2 ? "memory.events" : "memory.oom_control", "oom_kill",
		       &kills, e);
	if (r == 0 && kills > 0)
		r = memory(root, id, &st, e);
	if (r == 0 && kills > 0)
		r = limit_reached(root, id, st.memory_peak_bytes, &reached, e);
	if (r == 0)
		*ret_kills = reached ? kills : 0;
	return r;
}

int cgroup_stats(const struct cgroup_root *root, const char *id,
		 struct cgroup_stats *ret_stats, struct err *e)
{
	struct cgroup_stats st = {0};
	uint64_t pids = 0;
	int r;

	r = memory(root, id, &st, e);
	if (r == 0)
		r = cgroup_oom_kills(root, id, &st.oom_kills, e);
	if (r == 0)
		r = cgroup_get(root->pids, id, "pids.current", NULL, &pids, e);
	if (r < 0)
		return r;
	if (root->mode != CGROUP_V1) {
		r = cgroup_get(root->tree[0], id, "cpu.stat", "usage_usec",
			       &st.cpu_us, e);
	} else {
		r = cgroup_get(root->cpuacct, id, "cpuacct.usage", NULL,
			       &st.cpu_us, e);
		st.cpu_us /= 1000;
	}
	if (r < 0)
		return r;
	st.pids = (uint32_t)pids;
	*ret_stats = st;
	return 0;
}
