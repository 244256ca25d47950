/* SPDX-License-Identifier: Apache-2.0 */
#ifndef POLICY_PLACE_H
#define POLICY_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "policy/admit.h"

/*
 * Which node?  A guess, made from what one placer knows: the nodes' reports,
 * and what it placed itself since each was made (the overlay), without which a
 * burst would go to the node that looked empty a second ago.  The node's own
 * admission is the answer.
 *
 * Nodes that do not fit are left out; of k that do, taken at random, the one
 * that would be least loaded is chosen.  The load of a node is the greatest of
 * the parts of its limits (overcommit applied) that would be promised, and of
 * the part of its memory that would be in use.
 *
 * There is no clock here: every call is told the time, in milliseconds of one
 * clock, the placer's; one that goes back counts as the latest.  Choosing
 * allocates nothing and makes no system call.
 */
struct place;

#define PLACE_NODES_MAX	   65536
#define PLACE_NAME_MAX	   128 /* bytes of a node's or user's name */
#define PLACE_K_MAX	   16
#define PLACE_FEATURES_MAX 64 /* of a node; of a request */
#define PLACE_AVOID_MAX	   20 /* 16 of who asks, 4 that have refused it */
#define PLACE_AMONG_MAX	   64

struct place_conf {
	unsigned nodes_max;   /* up to PLACE_NODES_MAX */
	unsigned overlay_max; /* placements remembered; 0: no overlay */
	unsigned k;	      /* up to PLACE_K_MAX; 0: the best of all nodes */
	uint64_t fresh_ms;    /* an older report is not believed */
	uint64_t settle_ms;   /* one placed so long before a report, of which
				 nothing was heard, is in it */
	uint64_t overlay_ms;  /* a placement is remembered so long */
	uint64_t forget_ms;   /* so old a node gives its place to a new one */
	uint64_t seed;	      /* equal seeds and calls give equal choices */
};

/* place_conf_default(c): 16,384 nodes, k 2, fresh 10 s, settle 2 s, overlay of
 * 65,536 for 10 s, forgotten after 2 minutes, seed 1. */
void place_conf_default(struct place_conf *c);

must_check int place_new(const struct place_conf *c, struct place **ret,
			 struct err *e);
void place_free(struct place *p);

#define auto_place __attribute__((cleanup(place_cleanup)))
static inline void place_cleanup(struct place **p)
{
	place_free(*p);
}

/*
 * What seldom changes.  A feature is "backend:NAME", "capability:NAME",
 * "label:KEY=VALUE", or "user:NAME": the node is for that user (and others
 * named so) alone.
 */
struct place_traits {
	const char *const *features;
	size_t n;
	bool isolated; /* holds sandboxes of one user at a time */
};

/*
 * place_node(p, name, t, now_ms, ret_node, e):
 * The node of that name, made if need be, with these traits; its number stays
 * until it is forgotten.  -ENOSPC: nodes_max are known, all of them seen of
 * late; -EINVAL: too long a name or too many features.
 */
must_check int place_node(struct place *p, const char *name,
			  const struct place_traits *t, uint64_t now_ms,
			  unsigned *ret_node, struct err *e);

/* place_find(p, name): its number, or -ENOENT. */
int place_find(const struct place *p, const char *name);

/* place_forget(p, node): it is not there any more. */
void place_forget(struct place *p, unsigned node);

struct place_report {
	uint64_t at_ms; /* asked for: what was placed and confirmed before is
			   in it.  In the future: now */
	struct admit_amounts limit, held;
	uint64_t memory_total_mb;     /* 0: its use is not known */
	uint64_t memory_available_mb; /* UINT64_MAX: not known */
	uint64_t memory_reserve_mb;
	bool draining, unhealthy;
	bool pressed;	  /* it would refuse whatever is asked */
	unsigned users;	  /* different ones that have sandboxes there */
	const char *user; /* of exactly one: who; "" is one as well */
};

/*
 * place_report(p, node, r, now_ms):
 * Believe ${r}, and end what it shows of the overlay.  False: there is one that
 * is newer, nothing was done.
 */
bool place_report(struct place *p, unsigned node, const struct place_report *r,
		  uint64_t now_ms);

struct place_request {
	struct admit_amounts ask;
	const char *user;	  /* NULL is "" */
	const char *const *needs; /* features; all of them */
	const char *const *avoid; /* names of nodes, such as have refused it */
	const char *const *among; /* names of the nodes that it may be */
	size_t nneeds, navoid, namong; /* 0 of the last: any node */
	uint64_t now_ms;
	unsigned k; /* 0: the configuration's */
};

/* Why a node is left out, in the order in which it is asked; the words are
 * those of --explain. */
enum place_why {
	PLACE_FIT,
	PLACE_ELSEWHERE, /* it is not among those that it may be */
	PLACE_STALE,
	PLACE_UNHEALTHY,
	PLACE_AVOIDED,
	PLACE_DRAINING,
	PLACE_BACKEND,
	PLACE_CAPABILITY,
	PLACE_LABEL,
	PLACE_USER,
	PLACE_COUNT,
	PLACE_MEMORY,
	PLACE_CPU,
	PLACE_DISK,
	PLACE_PRESSURE,
	PLACE_REFUSED, /* it has refused as much since its report */
	PLACE_WHY_LEN
};
const char *place_why_word(enum place_why why);

struct place_candidate {
	unsigned node;
	double load;	    /* with the request, 0 to 1 */
	uint32_t in_flight; /* placements of ours that no report shows */
};

struct place_choice {
	unsigned node;
	uint64_t placement; /* for place_done(); 0 without overlay */
	unsigned ncandidates, chosen;
	struct place_candidate candidates[PLACE_K_MAX];
};

/*
 * place_choose(p, req, ret, e):
 * Choose, and remember it in the overlay.  -EAGAIN: nothing fits, with the code
 * of what comes nearest ("memory", "cpu", "disk", "count", "pressure", "busy",
 * "draining", "unsupported"), how many nodes were left out for what, and
 * retry_after_ms where waiting can help.
 */
must_check int place_choose(struct place *p, const struct place_request *req,
			    struct place_choice *ret, struct err *e);

/* place_explain(p, req, counts): how many nodes are left out for what now. */
void place_explain(struct place *p, const struct place_request *req,
		   unsigned counts[PLACE_WHY_LEN]);

/* How a placement ended. */
enum place_end {
	PLACE_END_TAKEN,    /* its claim is there: reports asked for from now
			       on show it */
	PLACE_END_REFUSED,  /* there is nothing of it, and the node is not
			       asked for as much before its next report */
	PLACE_END_DRAINING, /* refused, and the node takes nothing */
	PLACE_END_GIVEN_UP, /* there is nothing of it */
};

/* place_done(p, placement, end, now_ms): false when it is not remembered. */
bool place_done(struct place *p, uint64_t placement, enum place_end end,
		uint64_t now_ms);

/* What is known of a node; name borrowed until it is forgotten. */
struct place_view {
	const char *name;
	uint64_t at_ms; /* of its report */
	bool fresh, draining, unhealthy, pressed;
	struct admit_amounts limit, held, in_flight;
	uint32_t placements; /* in flight */
	double load;
};

/* place_count(p), place_nth(p, i): the nodes' numbers, in any order. */
unsigned place_count(const struct place *p);
unsigned place_nth(const struct place *p, unsigned i);
void place_look(struct place *p, unsigned node, uint64_t now_ms,
		struct place_view *ret);

/* place_name(p, node): borrowed until it is forgotten. */
const char *place_name(const struct place *p, unsigned node);

#endif
