/* SPDX-License-Identifier: Apache-2.0 */
#ifndef POLICY_PLACE_PRIV_H
#define POLICY_PLACE_PRIV_H

#include "policy/place.h"

/* struct admit_amounts as a row, in the order in which refusals are told. */
enum { A_COUNT, A_MEMORY, A_CPU, A_DISK, A_PIDS, A_LEN };

#define NONE UINT32_MAX

struct feature {
	uint64_t hash;
	const char *text; /* into the node's text */
};

struct node {
	/* what choosing reads, first */
	uint64_t limit[A_LEN];
	uint64_t used[A_LEN]; /* held as reported, and in flight */
	double inv[A_LEN];    /* 1 / limit */
	uint64_t at_ms;	      /* of the report; valid if reported */
	bool live, reported, draining, unhealthy, pressed, isolated, reserved;
	bool refused;
	uint8_t nfeatures;
	uint32_t flights; /* how many */
	uint32_t first;	  /* of its flights, or NONE */
	unsigned users;
	/* Hashes: who chooses a name that has another's is misguided by it, and
	 * refused by the node, which compares names. */
	uint64_t user;	       /* of users 1 */
	uint64_t flying_user;  /* of flights that are there */
	uint64_t start_mb;     /* memory that must be available to start */
	uint64_t available_mb; /* UINT64_MAX: not known */
	double memory_used;    /* MiB in use; with memory_inv 0 not known */
	double memory_inv;     /* 1 / total */
	double memory_ratio;   /* of what is promised, so much is used */

	uint64_t held[A_LEN];
	uint64_t refused_ask[A_LEN], refused_ms;
	uint64_t hash; /* of name */
	uint32_t at;   /* in live */
	uint32_t chain;
	struct feature *features;
	char *text;
	char name[PLACE_NAME_MAX + 1];
};

/* A placement that no report shows yet. */
struct flight {
	uint64_t id; /* 0: free */
	uint64_t at_ms;
	uint64_t done_ms; /* 0: nothing was heard of it */
	uint64_t ask[A_LEN];
	uint32_t node;
	uint32_t next, prev;   /* of its node; next also of the free */
	uint32_t newer, older; /* of all */
};

struct place {
	struct place_conf conf;
	struct node *nodes;
	uint32_t *live; /* numbers of the nodes there are */
	uint32_t *hash; /* heads of chains, nhash of them */
	uint32_t nlive, nnodes, nhash, free_node;
	struct flight *flights;
	uint32_t free_flight, oldest, newest;
	uint64_t next_id;
	uint64_t now_ms;
	uint64_t random;
};

/* FNV-1a of text; equal hashes are followed by comparing what was hashed. */
uint64_t place_hash(const char *text);

void place_amounts(const struct admit_amounts *a, uint64_t *row);

/* place_time(p, now_ms): it is now so late; placements whose time is over are
 * forgotten. */
void place_time(struct place *p, uint64_t now_ms);

/* place_fly(p, node, ask, user): into the overlay; its id, 0 without one. */
uint64_t place_fly(struct place *p, uint32_t node, const uint64_t *ask,
		   uint64_t user);

#endif
