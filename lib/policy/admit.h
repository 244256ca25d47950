/* SPDX-License-Identifier: Apache-2.0 */
#ifndef POLICY_ADMIT_H
#define POLICY_ADMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/*
 * May this node take one more sandbox?  Arithmetic alone: the caller has
 * measured the node and holds whatever lock keeps the numbers still.
 */

/* What a node may give, what its sandboxes hold together, or what one asks. */
struct admit_amounts {
	uint64_t memory_mb;
	uint64_t cpu_milli; /* thousandths of a CPU */
	uint64_t disk_mb;   /* 0: not limited, so nothing is claimed */
	uint64_t pids;
	uint64_t sandboxes;
};

/* How much more than it has may be promised: thousandths, 1000 is none. */
struct admit_rules {
	uint64_t memory_overcommit;
	uint64_t cpu_overcommit;
	uint64_t pids_overcommit;
	uint64_t memory_reserve_mb;  /* must stay available for the host */
	uint64_t disk_reserve_mb;    /* must stay free */
	uint64_t pressure_max_milli; /* of time all tasks wait for memory */
	uint64_t swap_max_milli;     /* of swap in use, where memory may be
					promised more than once */
};

/* What is so at this moment. */
struct admit_now {
	uint64_t memory_available_mb; /* UINT64_MAX: not known */
	uint64_t memory_full_milli;   /* PSI: memory, full, avg10 */
	uint64_t swap_mb, swap_free_mb;
	uint64_t disk_free_mb; /* UINT64_MAX: not known */
	const char *disk;      /* of what: borrowed, or NULL */
	uint64_t tasks;	       /* processes and threads of the node */
	uint64_t tasks_max;    /* 0: not known */
	bool draining;
};

struct admit_node {
	struct admit_amounts capacity, held;
	struct admit_rules rules;
	struct admit_now now;
};

/*
 * admit_rules_default(rules, memory_mb):
 * CPU may be promised 8 times, memory once, pids 64 times (limits of processes
 * are far from their use); reserves that suit a node of ${memory_mb}.
 */
void admit_rules_default(struct admit_rules *rules, uint64_t memory_mb);

/* admit_limit(node): what may be promised in all: capacity, rules applied. */
struct admit_amounts admit_limit(const struct admit_node *node);

/*
 * admit_decide(node, claim, e):
 * 0: yes.  -EAGAIN: no, with the code of PROTOCOL.md ("draining", "count",
 * "memory", "cpu", "disk", "pressure"), the numbers in the message, and
 * retry_after_ms where waiting can help (0: not even an empty node could).
 */
int admit_decide(const struct admit_node *node,
		 const struct admit_amounts *claim, struct err *e);

/*
 * admit_pressed(node, e): would it refuse whatever is asked, as of now?  0, or
 * -EAGAIN as admit_decide() has it; draining is not looked at.
 */
int admit_pressed(const struct admit_node *node, struct err *e);

/*
 * Whose sandboxes a node holds, and may hold.  Names are kept whole: a hash
 * that is not long and strong could be met by a user who chooses a name for it,
 * to be beside another whom the node is to keep apart from him.
 */
#define ADMIT_RESERVED_MAX 8
#define ADMIT_USER_SIZE	   136 /* with its NUL; a multiple of 8 */
struct admit_tenants {
	uint32_t isolated;	    /* one user at a time */
	uint32_t users;		    /* 0, 1, or 2 for several */
	uint64_t nreserved;	    /* 0: anybody */
	char user[ADMIT_USER_SIZE]; /* of one; "" is a user, too */
	char reserved[ADMIT_RESERVED_MAX][ADMIT_USER_SIZE];
};

/* admit_tenant(t, user, e): 0; -EAGAIN, code "isolation". */
int admit_tenant(const struct admit_tenants *t, const char *user,
		 struct err *e);

/* admit_add, admit_sub: sums that saturate instead of wrapping. */
void admit_add(struct admit_amounts *sum, const struct admit_amounts *a);
void admit_sub(struct admit_amounts *sum, const struct admit_amounts *a);

#endif
