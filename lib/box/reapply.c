/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "box/reapply.h"

/* The engine and its helpers run in the sandbox's group until all is there. */
#define WIDER_PIDS  64
#define WIDER_BYTES (64ULL << 20)
/* A layer that is full to its limit is mounted all the same. */
#define WIDER_DISK (64ULL << 20)

static struct cgroup_limits limits_of(const json_t *spec)
{
	const json_t *cores = json_object_get(spec, "cpu_cores_limit");

	return (struct cgroup_limits){
		.memory_bytes = (uint64_t)json_int(spec, "memory_limit_mb", 0)
				<< 20,
		.cpu_milli = (uint64_t)llround(json_number_value(cores) * 1000),
		.pids = (uint32_t)json_int(spec, "pids_limit", 0),
	};
}

struct cgroup_limits reapply_first(const json_t *spec)
{
	struct cgroup_limits lim = limits_of(spec);

	lim.cpu_milli = 0;
	return lim;
}

int reapply_rest(const struct cgroup_root *root, const char *id,
		 const json_t *spec, struct err *e)
{
	const struct cgroup_limits lim = {
		.cpu_milli = limits_of(spec).cpu_milli,
	};

	return cgroup_limit(root, id, &lim, e);
}

static int limit_disk(const struct pool *pool, const char *id,
		      const json_t *spec, uint64_t more, struct err *e)
{
	uint64_t mb = (uint64_t)json_int(spec, "disk_limit_mb", 0);

	return pool && mb ? pool_set_limit(pool, id, (mb << 20) + more, e) : 0;
}

int reapply_cpu(const struct cgroup_root *root, const char *id,
		const json_t *spec, struct err *e)
{
	return cgroup_limit_cpu(root, id, limits_of(spec).cpu_milli, e);
}

int reapply(const struct cgroup_root *root, const struct pool *pool,
	    const char *id, const json_t *spec, struct err *e)
{
	struct cgroup_limits lim = limits_of(spec);
	int r = limit_disk(pool, id, spec, 0, e);

	return r < 0 ? r : cgroup_limit(root, id, &lim, e);
}

int reapply_later(const struct cgroup_root *root, const struct pool *pool,
		  const char *id, const json_t *spec, struct err *e)
{
	struct cgroup_limits lim = reapply_first(spec);
	int r = limit_disk(pool, id, spec, WIDER_DISK, e);

	if (r < 0)
		return r;
	if (lim.memory_bytes)
		lim.memory_bytes += WIDER_BYTES;
	if (lim.pids)
		lim.pids += WIDER_PIDS;
	return cgroup_limit(root, id, &lim, e);
}
