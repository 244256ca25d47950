/* SPDX-License-Identifier: Apache-2.0 */
#ifndef POLICY_NETNAME_H
#define POLICY_NETNAME_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Names of the domain system, in one canonical form: lower case, no trailing
 * dot, labels of 1 to 63 of [a-z0-9_-] that neither begin nor end with '-',
 * 253 bytes in all.  Whoever takes a name from outside (a query, a ClientHello,
 * a rule) makes it canonical first; every comparison is of canonical names.
 */
#define NETNAME_MAX 253

/*
 * netname_canon(name, len, out):
 * The canonical form of ${name} (${len} bytes, not NUL-terminated) into
 * out[NETNAME_MAX + 1].  One trailing dot is taken off.  0, or -EINVAL: empty,
 * a byte or a label that is not allowed, too long.  A name whose last label is
 * all digits (or 0x..) is an address to somebody: -EINVAL as well.
 */
int netname_canon(const char *name, size_t len, char *out);

/*
 * netname_pattern(text, out):
 * The same for a rule's domain: a name, or "*." and a name.  -EINVAL also for
 * "*" alone and a '*' anywhere else.
 */
int netname_pattern(const char *text, char *out);

/*
 * netname_match(pattern, name):
 * Both canonical.  "a.b" is matched by "a.b" alone; "*.b" matches names below b
 * at any depth ("x.b", "y.x.b"), not b itself.
 */
bool netname_match(const char *pattern, const char *name);

/* netname_within(in, out): does pattern ${out} match all that ${in} matches? */
bool netname_within(const char *in, const char *out);

#endif
