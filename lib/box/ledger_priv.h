/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_LEDGER_PRIV_H
#define BOX_LEDGER_PRIV_H

#include <stdbool.h>
#include <stdint.h>

#include "box/tree.h"
#include "policy/admit.h"

/*
 * $DSEC_RUN/ledger: one struct ledger_data, changed under an exclusive lock.
 * It holds nothing that is not also in the claims, the configuration and the
 * machine, so a ledger that is missing, torn, marked or from another time is
 * made again from those.
 */
struct ledger_data {
	char magic[8];
	uint32_t marked;     /* a change began and has not ended */
	uint32_t next_slot;  /* after slot_first: where to look first */
	uint64_t config;     /* which node.json this was made with */
	uint64_t swept_ms;   /* clock_ms() when the dead were last looked for */
	uint32_t slot_first; /* uid ranges there are to give */
	uint32_t slots;
	uint64_t tasks_max;
	struct admit_amounts capacity, held;
	struct admit_rules rules;
	struct admit_tenants tenants;
	uint64_t check; /* of everything before, with marked as 0 */
};

struct ledger {
	const struct tree *tree; /* borrowed */
	int fd;			 /* the lock */
	struct ledger_data d;
};

/*
 * ledger_open(t, l, e): take the lock, waiting for it, and read; rebuild if
 * need be.  ledger_close(l): let go.
 */
int ledger_open(const struct tree *t, struct ledger *l, struct err *e);
void ledger_close(struct ledger *l);

/*
 * ledger_mark(l, e): before claims or links are changed.
 * ledger_commit(l, e): after it; writes ${l}->d and takes the mark away.
 */
int ledger_mark(struct ledger *l, struct err *e);
int ledger_commit(struct ledger *l, struct err *e);

/* ledger_prune(l, e): remove links and directories without a claim. */
int ledger_prune(struct ledger *l, struct err *e);

/* ledger_now(l, claim, now, e): measure what admission asks about now; numbers
 * that cannot matter to ${claim} are left at a bound that is cheap to get. */
int ledger_now(const struct ledger *l, const struct admit_amounts *claim,
	       struct admit_now *now, struct err *e);

/*
 * ledger_hold(l, a, user): count a sandbox that holds ${a}; with ledger_drop()
 * it does not any more.  Of several users it is told that there are several
 * until all are gone, or the ledger is rebuilt.
 */
void ledger_hold(struct ledger *l, const struct admit_amounts *a,
		 const char *user);
void ledger_drop(struct ledger *l, const struct admit_amounts *a);

/* ledger_has_claim(t, id): sb/<id>/claim.json is there. */
bool ledger_has_claim(const struct tree *t, const char *id);

/* node.c: capacity and rules into ${d}, from the machine and node.json. */
int ledger_measure(const struct tree *t, struct ledger_data *d, struct err *e);

/* ledger_config(t): which node.json there is now; 0: none. */
uint64_t ledger_config(const struct tree *t);

#endif
