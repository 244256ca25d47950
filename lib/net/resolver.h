/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_RESOLVER_H
#define NET_RESOLVER_H

#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/loop.h"
#include "net/dns.h"

/*
 * Asks upstream servers for the addresses of names, on the caller's loop, for
 * all sandboxes of a node, and remembers the answers.  It knows no policy: who
 * asks has checked that the name may leave, and checks every address before it
 * is used (upstreams may answer 127.0.0.1).
 *
 * A question goes out with a random id from a socket of its own; no answer
 * within a second or so, or one that is SERVFAIL or the like: the next server,
 * over the list twice (four tries at least) and for RESOLVER_DEADLINE_MS in all
 * at most.  The server that answered last is asked first.  A truncated
 * answer is fetched over TCP.  The same question asked by many goes out once.
 * Chains whose end the server did not resolve are followed by further
 * questions.  Everything is bounded: RESOLVER_FLIGHT questions, RESOLVER_CACHE
 * answers (the least recently used goes).  And nobody may have more questions
 * out than a part of those that are left: so that however many sandboxes ask
 * for what is never answered, something is left for the next.
 */

#define RESOLVER_SERVERS_MAX 4
#define RESOLVER_DEADLINE_MS 4500
#define RESOLVER_FLIGHT	     1024
#define RESOLVER_CACHE	     4096

struct resolver;

enum resolver_status {
	RESOLVER_OK,	  /* there are addresses */
	RESOLVER_NONE,	  /* the name exists, and has none of this family */
	RESOLVER_NO_NAME, /* NXDOMAIN */
	RESOLVER_FAILED,  /* no upstream answered, or none usefully */
};

struct resolver_result {
	enum resolver_status status;
	uint32_t left_s; /* how long the cache holds it: the TTL to pass on */
	struct dns_addrs addrs;
};

/* Somebody who waits: storage of the caller's, to stay put until the callback
 * or resolver_cancel().  All zero is one that waits for nothing. */
struct resolver_wait;
typedef void resolver_fn(struct resolver_wait *w,
			 const struct resolver_result *result);
struct resolver_wait {
	resolver_fn *fn;
	void *arg;
	size_t *out; /* questions out for whom it waits; NULL: not counted */
	/* the resolver's, as is what out points at */
	struct resolver_flight *flight;
	struct resolver_wait *next;
};

struct resolver_conf {
	struct sockaddr_storage servers[RESOLVER_SERVERS_MAX];
	size_t nservers;      /* 0: everything fails at once */
	unsigned try_ms;      /* for one server; 0: 1,000 */
	unsigned deadline_ms; /* in all; 0: RESOLVER_DEADLINE_MS */
};

struct resolver_stats {
	uint64_t asked, cached, sent, tcp, failed,
		bad; /* bad: no answer to us */
	size_t flight, entries;
};

must_check int resolver_new(struct loop *l, const struct resolver_conf *conf,
			    struct resolver **ret, struct err *e);

/* resolver_free(r): whoever waits still is called with RESOLVER_FAILED. */
void resolver_free(struct resolver *r);

/*
 * resolver_ask(r, name, family, w, ret):
 * The addresses of ${name} (canonical).  1: they are known, in *${ret}, and
 * ${w} is not used.  0: ${w}->fn will be called, from the loop and not before
 * this returns.  -EBUSY: too many questions are out, of ${w}->out or of all;
 * -EINVAL: no name.
 * ${ret} is borrowed from the cache: it is good until the next call of
 * resolver_ask() or until control returns to the loop.
 */
must_check int resolver_ask(struct resolver *r, const char *name,
			    sa_family_t family, struct resolver_wait *w,
			    const struct resolver_result **ret);

/* resolver_cancel(r, w): it is not called any more.  Harmless when idle.  A
 * question that nobody waits for is over. */
void resolver_cancel(struct resolver *r, struct resolver_wait *w);

void resolver_stats(const struct resolver *r, struct resolver_stats *ret);

/*
 * resolver_server(text, ret): "192.0.2.1", "192.0.2.1:5353", "2001:db8::1",
 * "[2001:db8::1]:53" into *${ret}; false if it is none.
 */
bool resolver_server(const char *text, struct sockaddr_storage *ret);

/*
 * resolver_conf_file(path, conf, e): the nameserver lines of a resolv.conf,
 * RESOLVER_SERVERS_MAX of them at most, after those ${conf} has already.
 */
must_check int resolver_conf_file(const char *path, struct resolver_conf *conf,
				  struct err *e);

#endif
