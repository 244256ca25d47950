/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "box/reapply.h"

int reapply(const struct cgroup_root *root, const char *id, const json_t *spec,
	    struct err *e)
{
	const json_t *cores = json_object_get(spec, "cpu_cores_limit");

	return cgroup_limit_cpu(root, id,
				(uint64_t)llround(json_number_value(cores) *
						  1000),
				e);
}
