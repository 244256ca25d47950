/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "ckpt_cmd.h"
#include "memory.h"

static int warn(json_t *list, const char *text, struct err *e)
{
	return json_array_append_new(list, json_string(text)) < 0
		       ? err_sys(e, ENOMEM, "record")
		       : 0;
}

/* What kept memory in RAM, for people. */
static int add_warnings(const struct reclaim_done *d, json_t *rec,
			struct err *e)
{
	json_t *list = json_array();
	int r = 0;

	if (!list || json_object_set_new(rec, "warnings", list) < 0)
		return err_sys(e, ENOMEM, "record");
	if (!d->swap)
		r = warn(list,
			 "this node has no swap: only file pages could go "
			 "(dsec-doctor tells how to set up zram)",
			 e);
	if (r == 0 && d->cut)
		r = warn(list, "time was up before all was out", e);
	return r;
}

static int reclaim(const struct memory_job *job, json_t *rec, struct err *e)
{
	struct reclaim_done d;
	auto_json json_t *more = NULL;
	int r;

	r = reclaim_memory(job->cgroups, job->id, &job->opts, &d, e);
	if (r == 0)
		r = json_pack_or(&more, e,
				 "{s:I, s:I, s:I, s:I, s:I, s:b, s:b}",
				 "freed_bytes", (json_int_t)d.freed_bytes,
				 "before_bytes", (json_int_t)d.before_bytes,
				 "memory_bytes", (json_int_t)d.after_bytes,
				 "swapped_bytes", (json_int_t)d.swapped_bytes,
				 "anon_left_bytes",
				 (json_int_t)d.anon_left_bytes, "swap", d.swap,
				 "cut", d.cut);
	if (r == 0 && json_object_update(rec, more) < 0)
		r = err_sys(e, ENOMEM, "record");
	return r < 0 ? r : add_warnings(&d, rec, e);
}

int cmd_reclaim(int argc, char **argv)
{
	return memory_run(argc, argv, reclaim);
}
