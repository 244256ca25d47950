/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_NET_H
#define BOX_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "box/tree.h"
#include "policy/netpol.h"
#include "wire/json.h"

/*
 * The network of a sandbox, as its spec.json says it ("network": "none",
 * "names" or "routed"; "policy": {"compiled":..,"hash":..}): put in place when
 * its processes are made and before any of them runs, taken away when they have
 * ended.  The rules themselves are enforced by the helper (net/helper.h),
 * which is given the sockets that it serves inside.
 *
 * What was put in place is written down in $DSEC_RUN/sb/<id>/net.json, for
 * whoever takes it away.  For a sandbox of strength "none" there is no such
 * file, and every function here returns at once.
 */

/* net_strength(spec): by its "network"; NETPOL_NONE where it has none. */
enum netpol_strength net_strength(const json_t *spec);

/*
 * net_plan(t, spec, e):
 * Of a complete ${spec}: compile "network_rules" and "phases", and put in
 * "network", "policy" and "policies" (phase: {"compiled":..,"hash":..}).
 * The codes: those of netpol_compile(); "bad_value" where "phase" is none of
 * "phases".
 */
int net_plan(const struct tree *t, json_t *spec, struct err *e);

/* net_entry(p): {"compiled":..,"hash":..} of ${p}, as spec.json has it; NULL:
 * no memory. */
json_t *net_entry(const struct netpol *p);

/* net_has_port(spec, port): is that TCP port the node's inside?  Then nothing
 * of the sandbox can listen there. */
bool net_has_port(const json_t *spec, uint16_t port);

/*
 * net_attach(t, id, pid, spec, e):
 * Put it in force for the live sandbox ${id} whose pid 1 is ${pid} (host's
 * number): address and routes, sockets inside for every port of the policy that
 * has none yet, the helper told; the helper is started if need be.  What is in
 * place already stays, so it is also the way to a policy with more ports, and
 * back after the helper died.  The process has no threads; whoever may not be
 * alone holds sb/<id>/net.lock.  "unsupported": the node cannot;
 * "configuration": it is not set up for it; "busy": a port is taken inside.
 */
int net_attach(const struct tree *t, const char *id, pid_t pid,
	       const json_t *spec, struct err *e);

/*
 * net_unserved(h, id, spec, ret, ret_n, e):
 * The TCP ports that the node serves a sandbox of names on, and has no socket
 * for: the sandbox took them itself while no helper held them.  Into
 * ret[HELPER_PORTS_MAX].  -ENOENT: the helper does not know it.
 *
 * net_taken(t, fn, arg): fn() of every live sandbox that has such ports.
 */
struct helper;
int net_unserved(struct helper *h, const char *id, const json_t *spec,
		 uint16_t *ret, size_t *ret_n, struct err *e);
typedef void net_taken_fn(void *arg, const char *id, const uint16_t *ports,
			  size_t n);
void net_taken(const struct tree *t, net_taken_fn *fn, void *arg);

/*
 * net_detach(t, id):
 * The processes of ${id} have ended, or are about to: the helper is told to
 * forget it and to let go of its sockets, and does so soon, in any case before
 * it hears of another on the same slot.  Its link ends with its network
 * namespace; see net_sweep().  Fine when there is nothing; never starts the
 * helper, never fails: whatever could not be done now, net_clean() does.
 *
 * net_sweep(t, transit, spare): links in that namespace (a descriptor) whose
 * slot no claim holds are removed, if they are more than ${spare}.
 */
void net_sweep(const struct tree *t, int transit, unsigned spare);
void net_detach(const struct tree *t, const char *id);

/*
 * net_clean(t, fix, ret_n, e):
 * What the helper or the transit namespace has of sandboxes that are not there
 * any more: how many into *${ret_n}; with ${fix} it is taken away.
 */
int net_clean(const struct tree *t, bool fix, unsigned *ret_n, struct err *e);

/*
 * net_mend(t, ret_n, e):
 * Attach every live sandbox that has a network and that the helper does not
 * know: after it died, or the node's tables did.  The helper is started if
 * there is such a sandbox.  Where all are, the rules of others go.  How many
 * were attached into *${ret_n} (may be NULL).  Goes on after a failure and
 * returns the first.
 */
int net_mend(const struct tree *t, unsigned *ret_n, struct err *e);

/*
 * net_note(t, id, spec, e): for the spec of a checkpoint: "network_address",
 * the one that a routed sandbox has now.
 */
int net_note(const struct tree *t, const char *id, json_t *spec, struct err *e);

/* net_lock(t, id, ret_fd, e): sb/<id>/net.lock, waiting for it. */
int net_lock(const struct tree *t, const char *id, int *ret_fd, struct err *e);

/*
 * The same for processes that are being made, in steps, for a launch has better
 * to do than wait:
 *
 *   net_begin(n, e)    connect to the helper, and write the request where
 *                      nothing will be known later (names, no ${n}->follow);
 *                      before there are processes
 *   net_inside(n)      in the sandbox's network namespace, by whoever has
 *                      CAP_NET_ADMIN there and shares our descriptors and
 *                      memory; sends the request that is written; allocates
 *                      nothing; 0, or -errno with ${n}->what
 *   net_send(n, pid, e)  what net_inside() could not: the link, if any, and
 *                      all of it to the helper
 *   net_finish(n, e)   its answer: it is in force
 *   net_done(n)        always last; after a failure net_detach() is due
 *
 * net_put(n, pid, e): all of them, for processes that are there.
 *
 * The caller sets the first four of ${n}.  A copy of a live sandbox is to have
 * the policy that this one has in the moment when the copy's is put in force:
 * ${n}->follow is its id, and NULL means that of ${n}->spec.  One that changed
 * since is written to spec.json of the copy.
 */

struct net {
	const struct tree *tree;
	const char *id;
	const json_t *spec; /* all that spec.json of ${id} has */
	const char *follow;
	json_t *own; /* in place of what the caller gave as ${spec} */
	enum netpol_strength strength;
	uint16_t port[NETPOL_LISTEN_MAX];
	int tcp[NETPOL_LISTEN_MAX]; /* listening inside; -1: not ours to make */
	size_t nports;
	int udp53, tcp53;
	int denied, names; /* its files */
	bool keep;	   /* a port that is taken inside is left out */
	bool started;	   /* by us: it knows of nobody yet */
	bool early;	   /* the request is written, and posted from inside */
	bool posted;
	int lock;	 /* net.lock, until it is done */
	int follow_lock; /* that of ${follow} */
	struct helper *helper;
	/* routed */
	int transit;
	uint64_t transit_cookie, netns; /* as net/helper.h has them */
	uint32_t address, slot;
	unsigned mbit;
	char address_text[16], mac_text[18], iface[16];
	const char *what; /* that failed inside */
};

/*
 * net_addresses(strength): of the network namespace we are in: those that the
 * sandbox keeps, whoever talks to it.  Allocates nothing; 0 or -errno.
 */
int net_addresses(enum netpol_strength strength);

int net_begin(struct net *n, struct err *e);
int net_inside(struct net *n);
int net_send(struct net *n, pid_t pid, struct err *e);
int net_finish(struct net *n, struct err *e);
void net_done(struct net *n);
int net_put(struct net *n, pid_t pid, struct err *e);

#endif
