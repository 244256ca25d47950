/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_HELPER_H
#define NET_HELPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "policy/netpol.h"
#include "wire/json.h"

/*
 * The client of the node's network helper (`dsec-net --serve`), over
 * $DSEC_RUN/net/ctl.sock: JSON lines of root, with descriptors.  The helper
 * serves DNS and connections of the sandboxes it was told of; whoever makes or
 * changes a sandbox's network tells it.  Needs no library of its own, so
 * static programs may use it.
 */

/* Who the helper's processes are; the broker is the next one.  Above every
 * range that sandboxes get (box/claim.h). */
#define HELPER_UID 2147418112u
#define BROKER_UID 2147418113u

/* Descriptors of one line: two for DNS, one per port, the two files. */
#define HELPER_FDS_MAX	 (NETPOL_LISTEN_MAX + 4)
#define HELPER_PORTS_MAX (NETPOL_LISTEN_MAX + 1)

struct helper;

enum helper_flags {
	HELPER_START = 1 << 0, /* start it if nobody serves */
};

/*
 * helper_open(run, flags, ret, e):
 * Connect to the helper of the tree ${run} ($DSEC_RUN).  "configuration" and
 * the like: it could not be started (what it said is in the message);
 * -ECONNREFUSED, "helper_lost" (without HELPER_START): nobody serves.
 * The program is `dsec-net` beside our own; it inherits the environment, and
 * is a child of nobody.
 */
must_check int helper_open(const char *run, unsigned flags, struct helper **ret,
			   struct err *e);
void helper_free(struct helper *h);

#define auto_helper __attribute__((cleanup(helper_cleanup)))
static inline void helper_cleanup(struct helper **h)
{
	helper_free(*h);
}

/*
 * What it is told about a sandbox.  Everything is borrowed.  Descriptors are
 * -1 where there is none.
 */
struct helper_attach {
	const char *sandbox; /* its id */
	enum netpol_strength strength;
	const json_t *policy; /* compiled */
	const char *hash;
	int denied; /* denied.jsonl, for appending */
	int names;  /* the file of net/fakename.h, for reading and appending */
	/* names: bound in the sandbox to 0.0.0.0 */
	int udp53, tcp53;
	const uint16_t *ports; /* ascending */
	const int *tcp;	       /* listening on them */
	size_t nports;
	/* routed */
	const char *address, *iface, *mac;
	uint64_t transit; /* netns_cookie() of where its link ends; or 0 */
	uint64_t netns;	  /* inode of its network namespace; or 0 */
	/* Nobody of it has run yet: whatever there is of a sandbox with this
	 * id, or this interface, is of another and goes first. */
	bool fresh;
};

/*
 * helper_attach(h, a, e):
 * From when this returns, the policy is in force.  One that is attached already
 * is replaced: the sockets that came with it serve from now on, connections
 * that the policy allows go on.  -ESTALE, "transit_unknown": it does not serve
 * the namespace ${a}->transit; helper_transit() first.
 *
 * helper_write_attach(h, a, e), then helper_post_attach(h, netns, fds, n): the
 * request in two steps, for who has its descriptors and the namespace only in
 * the second, which allocates nothing and returns 0 or -errno; helper_answer()
 * has the rest.  In the first, a descriptor of ${a} that is not -1 says that
 * there will be one; in the second they come in this order: udp53, tcp53,
 * denied, names, those of the ports.
 *
 * helper_policy(h, sandbox, policy, hash, ret_cut, e):
 * Another policy: when this returns no byte passes any more that it denies;
 * *${ret_cut} (may be NULL) connections were cut.  On failure the old one is in
 * force still.  -ENOENT, "sandbox_unknown": the helper does not know it;
 * "unsupported": it needs a port that has no listener, or more strength.
 *
 * helper_detach(h, sandbox, e): forget it: its connections are cut, its sockets
 * closed.  Fine when there is none.
 * helper_send_detach(h, sandbox, netns, e): the same without waiting for it; of
 * one that was attached with another ${netns} (0: any) nothing is forgotten.
 */
must_check int helper_attach(struct helper *h, const struct helper_attach *a,
			     struct err *e);
must_check int helper_write_attach(struct helper *h,
				   const struct helper_attach *a,
				   struct err *e);
must_check int helper_post_attach(struct helper *h, uint64_t netns,
				  const int *fds, size_t n);
must_check int helper_policy(struct helper *h, const char *sandbox,
			     const json_t *policy, const char *hash,
			     unsigned *ret_cut, struct err *e);
must_check int helper_detach(struct helper *h, const char *sandbox,
			     struct err *e);
must_check int helper_send_detach(struct helper *h, const char *sandbox,
				  uint64_t netns, struct err *e);

/*
 * helper_ports(h, sandbox, ret, ret_n, e): the TCP ports, ascending, for which
 * it has a listener, 53 among them, into ret[HELPER_PORTS_MAX].  -ENOENT as
 * above.
 *
 * helper_stats(h, sandbox, ret, e): {"sandboxes":{ID:{..}}} with the counters
 * of one or (NULL) all:
 *   connections (now), accepted, refused, cut, sent_bytes, received_bytes (as
 *   the sandbox sees it), dns, dns_denied, denied (attempts in all), names,
 *   hash (of one alone), strength
 * With NULL also "helper":{pid, worker, restarts, version, fds, rss_kb}.
 */
must_check int helper_ports(struct helper *h, const char *sandbox,
			    uint16_t *ret, size_t *ret_n, struct err *e);
must_check int helper_stats(struct helper *h, const char *sandbox, json_t **ret,
			    struct err *e);

/* helper_list(h, ret, e): a list of the ids that are attached. */
must_check int helper_list(struct helper *h, json_t **ret, struct err *e);

/*
 * helper_transit(h, netns, e): see that it serves the transit namespace
 * ${netns} (net/transit.h); one that does already is left alone.  Before a
 * routed sandbox is attached.
 */
must_check int helper_transit(struct helper *h, int netns, struct err *e);

/*
 * helper_sweep(h, e): the rules of routed sandboxes that it does not know are
 * of no use: away with what is left of those that ended while nobody served.
 * For after everyone who lives has been attached.
 */
must_check int helper_sweep(struct helper *h, struct err *e);

/* helper_ping(h, e): both of its processes answer. */
must_check int helper_ping(struct helper *h, struct err *e);

/*
 * The same in two halves, for whoever has better to do than wait; answers come
 * in the order of what was sent.
 */
must_check int helper_send_attach(struct helper *h,
				  const struct helper_attach *a, struct err *e);
must_check int helper_send(struct helper *h, const json_t *req, const int *fds,
			   size_t nfds, struct err *e);

/*
 * helper_answer(h, ret, e): wait for the next answer (30 s at most); one with
 * "ok":false becomes ${e} with its code.  *${ret} (may be NULL) is the
 * caller's.  -EPIPE, "helper_lost": it went away before it answered.
 */
must_check int helper_answer(struct helper *h, json_t **ret, struct err *e);

/* helper_fd(h): its socket, to be watched or kept over an exec. */
int helper_fd(const struct helper *h);

#endif
