/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sys/prctl.h>

#include "base/err.h"
#include "sys/reclaim.h"

#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

int reclaim_node(struct reclaim_node *ret_node, struct err *e)
{
	(void)e;
	*ret_node = (struct reclaim_node){0};
	return 0;
}

int reclaim_memory(const struct cgroup_root *root, const char *id,
		   const struct reclaim_opts *opts,
		   struct reclaim_done *ret_done, struct err *e)
{
	struct cgroup_stats st;
	int r;

	(void)opts;
	r = cgroup_stats(root, id, &st, e);
	if (r < 0)
		return r;
	*ret_done = (struct reclaim_done){.before_bytes = st.memory_bytes,
					  .after_bytes = st.memory_bytes};
	return 0;
}

int reclaim_prefetch(const struct cgroup_root *root, const char *id,
		     const struct reclaim_opts *opts, uint64_t *ret_bytes,
		     struct err *e)
{
	(void)root;
	(void)id;
	(void)opts;
	(void)e;
	*ret_bytes = 0;
	return 0;
}

int reclaim_pss(const struct cgroup_root *root, const char *id,
		struct reclaim_pss *ret_pss, struct err *e)
{
	(void)root;
	(void)id;
	(void)e;
	*ret_pss = (struct reclaim_pss){0};
	return 0;
}

int reclaim_ksm(struct err *e)
{
	if (prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) == 0)
		return 0;
	if (errno == EINVAL)
		return err_set(e, -EOPNOTSUPP, "unsupported",
			       "this kernel does not merge equal pages of a "
			       "process (KSM)");
	return err_sys(e, errno, "allow merging of equal pages");
}
