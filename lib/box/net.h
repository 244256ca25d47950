/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_NET_H
#define BOX_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "box/tree.h"
#include "wire/json.h"

/*
 * The network of a sandbox, as its spec.json says it ("network": "none",
 * "names" or "routed"; "policy": {"compiled":..,"hash":..}): put in place when
 * its processes are made and before any of them runs, taken away when they have
 * ended.  The rules themselves are enforced by the helper (net/helper.h),
 * which is given the sockets that it serves inside.
 *
 * For a sandbox of strength "none" every function here returns at once.
 */

enum net_strength { NET_NONE, NET_NAMES, NET_ROUTED };

/* net_strength(spec): by its "network"; NET_NONE where it has none. */
enum net_strength net_strength(const json_t *spec);

/* net_strength_name(s): "none", "names", "routed". */
const char *net_strength_name(enum net_strength s);

/*
 * net_plan(t, spec, e):
 * Of a complete ${spec}: compile "network_rules" and "phases", and put in
 * "network", "policy" and "policies" (phase: {"compiled":..,"hash":..}).
 * The codes: those of netpol_compile(); "bad_value" where "phase" is none of
 * "phases".
 */
int net_plan(const struct tree *t, json_t *spec, struct err *e);

/*
 * net_attach(t, id, pid, spec, e):
 * Put it in force for the live sandbox ${id} whose pid 1 is ${pid} (host's
 * number): address and routes, sockets inside for every port of the policy that
 * has none yet, the helper told; the helper is started if need be.  What is in
 * place already stays, so it is also the way to a policy with more ports, and
 * back after the helper died.  The process has no threads.  On failure what was
 * made is undone.  "unsupported": the node cannot; "configuration": it is not
 * set up for it; "busy": a port is taken inside.
 */
int net_attach(const struct tree *t, const char *id, pid_t pid,
	       const json_t *spec, struct err *e);

/*
 * net_detach(t, id, spec):
 * The processes of ${id} have ended, or are about to: the helper forgets it and
 * lets go of its sockets, its link is removed.  Fine when there is nothing;
 * never starts the helper, never fails: whatever could not be done now,
 * net_clean() does.
 */
void net_detach(const struct tree *t, const char *id, const json_t *spec);

/*
 * net_clean(t, ret_n, e):
 * Detach all that the helper or the transit namespace has of sandboxes that are
 * not there any more; how many into *${ret_n} (may be NULL).
 */
int net_clean(const struct tree *t, unsigned *ret_n, struct err *e);

/*
 * The steps of net_attach(), for a launch, which has better to do than wait:
 *
 *   net_begin(n, e)    connect to the helper; before there are processes
 *   net_inside(n)      in the sandbox's network namespace, by whoever has
 *                      CAP_NET_ADMIN there and shares our descriptors and
 *                      memory: raw system calls alone; 0, or -errno with
 *                      ${n}->what
 *   net_send(n, e)     the link, if any, and all of it to the helper
 *   net_finish(n, e)   its answer: it is in force
 *   net_undo(n)        after any failure: nothing is left
 *   net_done(n)        always last
 */
#define NET_PORTS_MAX 64

struct net {
	const struct tree *tree;
	const char *id;
	const json_t *spec;
	bool live; /* what is there stays */

	enum net_strength strength;
	uint16_t port[NET_PORTS_MAX];
	int tcp[NET_PORTS_MAX]; /* listening inside; -1 */
	size_t nports;
	int udp53, tcp53, rtnl; /* made inside */
	int ctl;		/* to the helper */
	bool sent;
	const char *what; /* that failed inside */
};

int net_begin(struct net *n, const struct tree *t, const char *id,
	      const json_t *spec, struct err *e);
int net_inside(struct net *n);
int net_send(struct net *n, struct err *e);
int net_finish(struct net *n, struct err *e);
void net_undo(struct net *n);
void net_done(struct net *n);

#endif
