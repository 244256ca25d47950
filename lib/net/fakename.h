/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_FAKENAME_H
#define NET_FAKENAME_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"

/*
 * The names that a sandbox has asked for, each with a fake address of its own
 * in 198.18.0.0/15: 256 plus a hash of the name, and on to the next free one.
 * The sandbox's file has a line "198.18.3.7 example.org" for each (with " wild"
 * if a wildcard allowed it), so that an address means the same name after a
 * restart of the helper, a resume and in a fork, which begins with a copy of
 * the file.
 *
 * It is also the budget against data that leaves in names below an allowed
 * wildcard: a new name of that kind costs 1, or FAKENAME_LONG_COST if it is
 * longer than FAKENAME_LONG or has a label longer than FAKENAME_LABEL, out of
 * FAKENAME_BUDGET for the sandbox's life (phases, restarts and copies
 * included); names that a rule has in full cost nothing, and are bounded by
 * FAKENAME_MAX in all.  It keeps this map for routed sandboxes too, which do
 * not use the addresses.
 */

#define FAKENAME_NET	   0xc6120000u /* 198.18.0.0/15, host order */
#define FAKENAME_BITS	   17
#define FAKENAME_FIRST	   256 /* of the network: those below are ours */
#define FAKENAME_MAX	   4096
#define FAKENAME_BUDGET	   1024
#define FAKENAME_LONG	   100
#define FAKENAME_LABEL	   32
#define FAKENAME_LONG_COST 8

struct fakename;

/*
 * fakename_new(fd, ret, e):
 * Read the map of ${fd}, which is open for reading and appending and is taken
 * over on success; -1: it is kept in memory alone.  Lines that are damaged are
 * passed over, an unfinished last one is closed.
 */
must_check int fakename_new(int fd, struct fakename **ret, struct err *e);
void fakename_free(struct fakename *f);

/*
 * fakename_get(f, name, wild, ret): the address of ${name} (canonical), a new
 * one if it has none; ${wild}: a wildcard allows it.  0; -ENOSPC: the budget
 * is used up; -EIO: the file could not be written, nothing has changed.
 */
must_check int fakename_get(struct fakename *f, const char *name, bool wild,
			    struct in_addr *ret);

/* fakename_name(f, addr): the name of ${addr}, borrowed, or NULL. */
const char *fakename_name(const struct fakename *f, struct in_addr addr);

/* fakename_count(f), fakename_cost(f): names, and what of the budget is used */
size_t fakename_count(const struct fakename *f);
unsigned fakename_cost(const struct fakename *f);

#endif
