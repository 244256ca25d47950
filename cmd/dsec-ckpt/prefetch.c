/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "ckpt_cmd.h"
#include "memory.h"

static int prefetch(const struct memory_job *job, json_t *rec, struct err *e)
{
	uint64_t bytes;
	int r;

	r = reclaim_prefetch(job->cgroups, job->id, &job->opts, &bytes, e);
	if (r < 0)
		return r;
	return json_object_set_new(rec, "prefetched_bytes",
				   json_integer((json_int_t)bytes)) < 0
		       ? err_sys(e, ENOMEM, "record")
		       : 0;
}

int cmd_prefetch(int argc, char **argv)
{
	return memory_run(argc, argv, prefetch);
}
