/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_FORWARDER_H
#define NET_FORWARDER_H

#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/loop.h"
#include "net/dns.h"
#include "net/fakename.h"
#include "net/resolver.h"

/*
 * The DNS server that sandboxes see.  A *port* is a pair of sockets that it
 * serves, a *forwarder* is one sandbox's side of it: policy (through
 * callbacks), rate, budget, counters.  Where a sandbox has sockets of its own
 * (strength names) the port has one forwarder; the port in the transit serves
 * all routed sandboxes and tells them apart by the sender's address.
 *
 * What a query gets:
 *   name not allowed, or not one of our form	NXDOMAIN, EDE 15; nothing is
 *						asked upstream
 *   budget or rate used up			SERVFAIL, EDE 0; far over the
 *						rate: dropped
 *   type ANY					REFUSED, EDE 21
 *   another type than A (AAAA with v6)		no data
 *   localhost and below			127.0.0.1
 *   reverse names				NXDOMAIN, not told as denied
 *   NXDOMAIN upstream				NXDOMAIN
 *   no upstream answers			SERVFAIL, EDE 22, within 5 s
 *   addresses, all of them denied		no data, EDE 15
 *   strength names				the fake address, TTL
 *						FORWARDER_FAKE_TTL; also for one
 *						that has v6 addresses alone
 *   strength routed				those that may be used, the TTL
 *						that the cache has left
 * In both strengths the name is asked for upstream first (the answer is cached,
 * and is what a connect uses then), so that one that does not exist says so.
 * CNAMEs are not shown: the addresses stand at the name that was asked for.
 */

#define FORWARDER_FAKE_TTL 60
#define FORWARDER_GATEWAY  (FAKENAME_NET + 1)
#define FORWARDER_PENDING  64 /* questions of one sandbox that wait, at most */
#define FORWARDER_CONNS	   16 /* TCP connections of one sandbox */
#define FORWARDER_IDLE_MS  10000

struct forwarder;
struct forwarder_port;

enum forwarder_verdict {
	FORWARDER_DENY,
	FORWARDER_EXACT, /* a rule has this very name */
	FORWARDER_WILD,	 /* a wildcard covers it */
	/* Ours: no upstream is asked.  Its fake address, or the gateway's. */
	FORWARDER_OURS,
};

struct forwarder_ops {
	/* May ${name} (canonical) be resolved? */
	enum forwarder_verdict (*name)(void *arg, const char *name);
	/* May ${addr} (struct in_addr or in6_addr) be a result of ${name}? */
	bool (*addr)(void *arg, const char *name, sa_family_t family,
		     const void *addr);
	/*
	 * Routed: these are about to be told; let them through, for
	 * ${addrs}->ttl seconds and some more.  Not 0: SERVFAIL is told.
	 */
	int (*learn)(void *arg, const char *name,
		     const struct dns_addrs *addrs);
	/* ${why} is a word of denied.jsonl: name, private, dns_rate, limit. */
	void (*denied)(void *arg, const char *name, const char *why);
};

struct forwarder_conf {
	struct loop *loop;
	struct resolver *resolver;	 /* borrowed */
	struct fakename *names;		 /* borrowed */
	const struct forwarder_ops *ops; /* borrowed */
	void *arg;
	bool fake;	/* strength names */
	bool v6;	/* routed: AAAA are answered */
	unsigned per_s; /* queries; 0: 100 */
};

struct forwarder_stats {
	uint64_t queries, answered, denied, nxdomain, failed, limited, dropped;
};

must_check int forwarder_new(const struct forwarder_conf *conf,
			     struct forwarder **ret, struct err *e);

/* forwarder_free(f): its connections are closed, its questions forgotten. */
void forwarder_free(struct forwarder *f);

/* forwarder_rate(f, per_s): a policy with another limit. */
void forwarder_rate(struct forwarder *f, unsigned per_s);

/* forwarder_count(f, at): count in ${at}, from what it says on; it outlives
 * ${f}. */
void forwarder_count(struct forwarder *f, struct forwarder_stats *at);
void forwarder_stats(const struct forwarder *f, struct forwarder_stats *ret);

/* Whose query is it: NULL drops it. */
typedef struct forwarder *forwarder_find(void *arg,
					 const struct sockaddr *peer);

/*
 * forwarder_port_new(l, udp, tcp, find, arg, ret, e):
 * Serve a bound UDP and a listening TCP socket, borrowed both (their flags
 * become non-blocking).  Free the port before what ${find} returns.
 */
must_check int forwarder_port_new(struct loop *l, int udp, int tcp,
				  forwarder_find *find, void *arg,
				  struct forwarder_port **ret, struct err *e);
void forwarder_port_free(struct forwarder_port *p);

#endif
