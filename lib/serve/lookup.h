/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_LOOKUP_H
#define SERVE_LOOKUP_H

#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/loop.h"

/*
 * Where HOST:PORT is, without the loop waiting for whom the resolver asks: a
 * child of its own for each name, with a deadline.  What is an address already
 * needs none.
 */
#define LOOKUP_MS 5000

struct lookup;

struct lookup_addr {
	struct sockaddr_storage addr;
	socklen_t len;
};

/* ${found} NULL: ${why} says it.  The lookup is gone when this is called. */
typedef void lookup_fn(void *arg, const struct lookup_addr *found,
		       const struct err *why);

/* lookup_numeric(address, ret): 0, of one that is no name; else -ENOENT. */
must_check int lookup_numeric(const char *address, struct lookup_addr *ret);

/*
 * lookup_new(l, address, fn, arg, ret, e):
 * Begin; ${fn} comes from the loop, later.
 * lookup_free(k): its child is ended, ${fn} does not come.
 */
must_check int lookup_new(struct loop *l, const char *address, lookup_fn *fn,
			  void *arg, struct lookup **ret, struct err *e);
void lookup_free(struct lookup *k);

#endif
