/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_RESOLVER_PRIV_H
#define NET_RESOLVER_PRIV_H

#include "net/resolver.h"

#define RESOLVER_BUCKETS 4096 /* of the cache; a power of two */

struct cache_entry;

struct cache {
	struct cache_entry *buckets[RESOLVER_BUCKETS];
	struct cache_entry *newest, *oldest; /* by use */
	size_t n;
};

/*
 * cache_get(c, key, now_ms, ret): true with *${ret} if it is known and fresh.
 * cache_put(c, key, result, ttl_s, now_ms): without memory nothing is kept.
 */
struct cache_key {
	const char *name;
	sa_family_t family;
	uint32_t hash;
};
bool cache_get(struct cache *c, const struct cache_key *key, uint64_t now_ms,
	       struct resolver_result *ret);
void cache_put(struct cache *c, const struct cache_key *key,
	       const struct resolver_result *result, uint64_t now_ms);
void cache_done(struct cache *c);

/* A question that is out, with those who wait for it. */
struct resolver_flight {
	struct resolver *r;
	struct resolver_flight *chain;	     /* in its bucket, or free */
	struct resolver_flight *prev, *next; /* by try_at */
	struct resolver_wait *waits;
	struct resolver_wait *payer; /* that of them for whom it counts */
	bool over;		     /* they are being told */
	char name[DNS_NAME_MAX + 1];
	char asked[DNS_NAME_MAX + 1]; /* further on in its chain */
	uint32_t hash;
	uint32_t ttl; /* the lowest of the chain so far */
	sa_family_t family;
	uint16_t id;
	uint8_t server, tries, hops, bad;
	int fd;
	struct loop_source src;
	uint64_t try_at, end_at; /* when this try, and all of it, is over */
	/* TCP: what is sent, then what is received, its length before it */
	uint8_t *tcp;
	size_t at, len;
	bool receiving;
};

#define FLIGHT_BUCKETS 256

struct resolver {
	struct loop *loop;
	struct resolver_conf conf;
	struct resolver_stats stats;
	uint32_t seed;
	unsigned good; /* the server that answered last */
	size_t ntcp;
	struct loop_timer timer;
	struct resolver_flight *flights[FLIGHT_BUCKETS];
	struct resolver_flight *first, *last, *spare;
	struct resolver_result known; /* what resolver_ask() lends */
	struct cache cache;
	uint16_t ids[256]; /* random; those from nids on are used up */
	size_t nids;
	uint8_t msg[DNS_UDP_MAX + 1];
};

/* flight_send(f): begin the next try.  It never calls a waiter. */
void flight_send(struct resolver_flight *f);

/* flight_over(f, result): tell all who wait, and forget it. */
void flight_over(struct resolver_flight *f,
		 const struct resolver_result *result);

/* flight_pay(f, w): it counts for ${w} (NULL: for nobody) from now on. */
void flight_pay(struct resolver_flight *f, struct resolver_wait *w);

/* flight_close(f): its socket. */
void flight_close(struct resolver_flight *f);

/* flight_timer(l, t): the resolver's timer: tries whose time is up. */
void flight_timer(struct loop *l, struct loop_timer *t);

#endif
