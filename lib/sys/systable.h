/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_SYSTABLE_H
#define SYS_SYSTABLE_H

#include <linux/filter.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * A table of system calls as share/profiles/syscalls writes it (its head is the
 * grammar), and its translation into a seccomp filter.  Pure: names become
 * numbers through the caller.
 */
#define SYSTABLE_NAME_MAX    31
#define SYSTABLE_CLAUSES_MAX 24
#define SYSTABLE_CONDS_MAX   3
#define SYSTABLE_RULES_MAX   768

struct systable_cond {
	unsigned arg; /* 0 to 5 */
	uint32_t mask, value;
};

struct systable_clause {
	int action; /* 0: allow, else the errno */
	unsigned nconds;
	struct systable_cond conds[SYSTABLE_CONDS_MAX]; /* all must hold */
};

struct systable_rule {
	char name[SYSTABLE_NAME_MAX + 1];
	int nr; /* after "@", else -1; systable_compile()'s caller sets it */
	unsigned nclauses;
	struct systable_clause *clauses; /* the last has no condition */
};

struct systable {
	struct systable_rule *rules;
	size_t nrules;
};

/*
 * systable_parse(text, where, ret, e):
 * Every line of ${text}.  "bad_record" with ${where} and the line for what is
 * no line of the grammar, a name that comes back after another one, and lines
 * that cannot be reached or that leave a case open.
 */
int systable_parse(const char *text, const char *where, struct systable *ret,
		   struct err *e);
void systable_done(struct systable *t);

/*
 * systable_change(t, name, n, lines, e):
 * Replace the lines of ${name}, which must be there, by ${n} others, each
 * without the name.
 */
int systable_change(struct systable *t, const char *name, size_t n,
		    const char *const *lines, struct err *e);

/*
 * systable_decide(t, nr, args):
 * What the table says of call ${nr}: 0 (allow) or the errno.
 */
int systable_decide(const struct systable *t, int nr, const __u64 *args);

/*
 * systable_compile(t, arch, ret, max, e):
 * The filter for AUDIT_ARCH_* ${arch} into ret[${max}], the number of
 * instructions as result.  Rules with nr < 0 are left out.
 */
int systable_compile(const struct systable *t, uint32_t arch,
		     struct sock_filter *ret, size_t max, struct err *e);

#endif
