/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "ckpt_cmd.h"
#include "memory.h"

static int pss(const struct memory_job *job, json_t *rec, struct err *e)
{
	auto_json json_t *more = NULL;
	struct reclaim_pss p = {0};
	int r;

	r = reclaim_pss(job->cgroups, job->id, &p, e);
	if (r == 0)
		r = json_pack_or(&more, e, "{s:I, s:I, s:I}", "pss_bytes",
				 (json_int_t)p.pss_bytes, "rss_bytes",
				 (json_int_t)p.rss_bytes, "swap_bytes",
				 (json_int_t)p.swap_bytes);
	if (r == 0 && json_object_update(rec, more) < 0)
		r = err_sys(e, ENOMEM, "record");
	return r;
}

int cmd_pss(int argc, char **argv)
{
	return memory_run(argc, argv, pss);
}
