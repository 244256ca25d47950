/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_DENIED_H
#define NET_DENIED_H

#include <stdint.h>

#include "base/cleanup.h"
#include "base/loop.h"
#include "policy/netpol.h"

/*
 * What a sandbox tried and was refused, a line each of its denied.jsonl:
 *   {"at_ms","name","addr","port","proto","why","n"}
 * name, addr and port where they are known; n: how many more were not written
 * since the line before.  DENIED_PER_S a second, with DENIED_BURST at once, and
 * no more than DENIED_MAX bytes of file; the rest is only counted.  For each of
 * DENIED_STEPS parts that the file has, half as many a second: a flood takes
 * weeks to leave no room for what comes after it.
 */
#define DENIED_PER_S 10
#define DENIED_BURST 50
#define DENIED_MAX   (1024 * 1024)
#define DENIED_STEPS 16

struct denied;

struct denied_event {
	const char *name;	    /* NULL: not known */
	const struct netaddr *addr; /* NULL: not known */
	uint16_t port;		    /* 0: not known */
	enum netpol_proto proto;
	const char *why; /* name address port private limit dns_rate sni .. */
	unsigned more;	 /* suppressed before it reached us */
	bool counted;	 /* somebody else counts it: the kernel */
};

/* denied_new(l, fd, ret, e): ${fd} (open for appending, taken over on success)
 * or -1: count alone. */
must_check int denied_new(struct loop *l, int fd, struct denied **ret,
			  struct err *e);
void denied_free(struct denied *d);

/* denied_file(d, fd): another file; the counters stay. */
void denied_file(struct denied *d, int fd);

void denied_add(struct denied *d, const struct denied_event *event);

/* denied_total(d, at): count in *${at}, from what it says on; it outlives ${d}.
 * denied_count(d): attempts so far, written or not. */
void denied_total(struct denied *d, uint64_t *at);
uint64_t denied_count(const struct denied *d);

#endif
