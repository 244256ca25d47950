/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_RECLAIM_H
#define SYS_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "sys/cgroup.h"

/*
 * The memory of a frozen sandbox out of RAM and back, and what the node has for
 * that.
 */

struct reclaim_node {
	uint64_t swap_total_bytes, swap_free_bytes;
	bool zram_used; /* some of the swap is compressed memory */
	bool zram_can;	/* the kernel has zram, or a module of it */
	bool ksm_can;	/* the kernel merges equal pages if told to */
	bool ksm_runs;	/* and has been told */
	uint64_t ksm_saved_bytes;
};

/* reclaim_node(ret_node, e): read from the kernel; cheap. */
must_check int reclaim_node(struct reclaim_node *ret_node, struct err *e);

struct reclaim_opts {
	unsigned timeout_ms; /* 0: 60 s */
	int stop;	     /* -1, or a descriptor that reads as "stop now" */
};

struct reclaim_done {
	uint64_t before_bytes, after_bytes; /* charged to the memory cgroup */
	uint64_t freed_bytes;		    /* the difference, never below 0 */
	uint64_t swapped_bytes;	  /* of its memory that is in swap afterwards */
	uint64_t anon_left_bytes; /* anonymous memory still in RAM */
	bool swap;		  /* the node had some to go to */
	bool cut;		  /* time was up, or it was stopped */
};

/*
 * reclaim_memory(root, id, opts, ret_done, e):
 * Push out what can be pushed out: file pages, and anonymous memory as far as
 * the node has swap.  Swap is allowed to the sandbox from now on; whoever thaws
 * it calls cgroup_swap_allow(root, id, false, e).  It is no failure if little
 * or nothing went: the numbers say so.
 */
must_check int reclaim_memory(const struct cgroup_root *root, const char *id,
			      const struct reclaim_opts *opts,
			      struct reclaim_done *ret_done, struct err *e);

/*
 * reclaim_prefetch(root, id, opts, ret_bytes, e):
 * Ask the kernel to read back what is in swap, before a thaw or just after it;
 * how much it was asked for into *${ret_bytes}.
 */
must_check int reclaim_prefetch(const struct cgroup_root *root, const char *id,
				const struct reclaim_opts *opts,
				uint64_t *ret_bytes, struct err *e);

/* Of all processes of a sandbox together; pss: a page that n share is 1/n. */
struct reclaim_pss {
	uint64_t pss_bytes, rss_bytes, swap_bytes;
	unsigned processes;
};
must_check int reclaim_pss(const struct cgroup_root *root, const char *id,
			   struct reclaim_pss *ret_pss, struct err *e);

#endif
