/* SPDX-License-Identifier: Apache-2.0 */
#include <endian.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "sys/systable.h"

#if __BYTE_ORDER != __LITTLE_ENDIAN
#error "the lower half of an argument is read at its own offset"
#endif

/*
 * The filter: the architecture, then a binary search for the number.  A span is
 * a run of numbers with one answer; most are many calls long.  One pass with
 * few instructions counts, because the kernel runs the filter once per number
 * when it is loaded to find the calls that are always allowed.
 */
struct span {
	uint32_t first;
	int action;			  /* where rule is NULL */
	const struct systable_rule *rule; /* has conditions */
};

struct program {
	struct sock_filter *insns;
	size_t n, max;
	const struct span *spans;
	bool full;
};

#define X32_BIT 0x40000000u

static void emit(struct program *p, uint16_t code, uint8_t jt, uint8_t jf,
		 uint32_t k)
{
	if (p->n == p->max) {
		p->full = true;
		return;
	}
	p->insns[p->n++] = (struct sock_filter){code, jt, jf, k};
}

static void emit_return(struct program *p, int action)
{
	emit(p, BPF_RET | BPF_K, 0, 0,
	     action ? SECCOMP_RET_ERRNO | (uint32_t)action : SECCOMP_RET_ALLOW);
}

/* How many instructions one condition and one clause are. */
static unsigned cond_len(const struct systable_cond *c)
{
	return c->mask == UINT32_MAX ? 2 : 3;
}

static unsigned clause_len(const struct systable_clause *c)
{
	unsigned n = 1;

	for (unsigned i = 0; i < c->nconds; i++)
		n += cond_len(&c->conds[i]);
	return n;
}

static void emit_clause(struct program *p, const struct systable_clause *c)
{
	const struct systable_cond *d;
	unsigned left = clause_len(c);

	for (unsigned i = 0; i < c->nconds; i++) {
		d = &c->conds[i];
		left -= cond_len(d);
		emit(p, BPF_LD | BPF_W | BPF_ABS, 0, 0,
		     (uint32_t)offsetof(struct seccomp_data, args) +
			     8 * d->arg);
		if (d->mask != UINT32_MAX)
			emit(p, BPF_ALU | BPF_AND | BPF_K, 0, 0, d->mask);
		/* Not so: on to the next clause. */
		emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, (uint8_t)left, d->value);
	}
	emit_return(p, c->action);
}

static void emit_leaf(struct program *p, const struct span *s)
{
	if (!s->rule) {
		emit_return(p, s->action);
		return;
	}
	for (unsigned i = 0; i < s->rule->nclauses; i++)
		emit_clause(p, &s->rule->clauses[i]);
}

/* spans[lo..hi): numbers below the middle come first, the rest is jumped to. */
static void emit_search(struct program *p, size_t lo, size_t hi)
{
	size_t mid = lo + (hi - lo) / 2, at = p->n, len;

	if (hi - lo == 1) {
		emit_leaf(p, &p->spans[lo]);
		return;
	}
	emit(p, BPF_JMP | BPF_JGE | BPF_K, 0, 0, p->spans[mid].first);
	emit_search(p, lo, mid);
	if (p->full)
		return;
	len = p->n - at - 1;
	if (len <= UINT8_MAX) {
		p->insns[at].jt = (uint8_t)len;
	} else {
		/* Too far for a conditional jump: go by way of a plain one. */
		emit(p, 0, 0, 0, 0);
		if (p->full)
			return;
		memmove(&p->insns[at + 2], &p->insns[at + 1],
			len * sizeof(*p->insns));
		p->insns[at].jf = 1;
		p->insns[at + 1] = (struct sock_filter)BPF_STMT(BPF_JMP |
									BPF_JA,
								(uint32_t)len);
	}
	emit_search(p, mid, hi);
}

struct ref {
	const struct systable_rule *rule;
};

static int by_number(const void *a, const void *b)
{
	const struct ref *x = a, *y = b;

	return x->rule->nr - y->rule->nr;
}

static void add_span(struct span *spans, size_t *n, struct span s)
{
	const struct span *last = &spans[*n - 1];

	if (*n && !last->rule && !s.rule && last->action == s.action)
		return;
	spans[(*n)++] = s;
}

/* spans[] has room for two per rule and one more. */
static int make_spans(const struct systable *t, struct span *spans,
		      size_t *ret_n, struct err *e)
{
	auto_free struct ref *sorted = calloc(t->nrules + 1, sizeof(*sorted));
	const struct systable_rule *r;
	size_t n = 0, k = 0;

	if (!sorted)
		return err_sys(e, ENOMEM, "filter");
	for (size_t i = 0; i < t->nrules; i++)
		if (t->rules[i].nr >= 0)
			sorted[n++].rule = &t->rules[i];
	qsort(sorted, n, sizeof(*sorted), by_number);
	add_span(spans, &k, (struct span){0, ENOSYS, NULL});
	for (size_t i = 0; i < n; i++) {
		r = sorted[i].rule;
		if (i && sorted[i - 1].rule->nr == r->nr)
			return err_set(e, -EBADMSG, "bad_record",
				       "%s and %s have the same number",
				       sorted[i - 1].rule->name, r->name);
		/* The call 0 replaces the span that starts there. */
		if (r->nr == 0)
			k = 0;
		add_span(spans, &k,
			 (struct span){(uint32_t)r->nr, r->clauses[0].action,
				       r->nclauses > 1 ? r : NULL});
		if (i + 1 == n || sorted[i + 1].rule->nr != r->nr + 1)
			add_span(spans, &k,
				 (struct span){(uint32_t)r->nr + 1, ENOSYS,
					       NULL});
	}
	*ret_n = k;
	return 0;
}

int systable_compile(const struct systable *t, uint32_t arch,
		     struct sock_filter *ret, size_t max, struct err *e)
{
	auto_free struct span *spans = calloc(2 * t->nrules + 1,
					      sizeof(*spans));
	struct program p = {.insns = ret, .max = max, .spans = spans};
	size_t n;
	int r;

	if (!spans)
		return err_sys(e, ENOMEM, "filter");
	r = make_spans(t, spans, &n, e);
	if (r < 0)
		return r;
	emit(&p, BPF_LD | BPF_W | BPF_ABS, 0, 0,
	     (uint32_t)offsetof(struct seccomp_data, arch));
	emit(&p, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, arch);
	emit(&p, BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS);
	emit(&p, BPF_LD | BPF_W | BPF_ABS, 0, 0,
	     (uint32_t)offsetof(struct seccomp_data, nr));
	if (arch == AUDIT_ARCH_X86_64) {
		/* -1 is a tracer's way to skip a call, not one of x32. */
		emit(&p, BPF_JMP | BPF_JEQ | BPF_K, 2, 0, UINT32_MAX);
		emit(&p, BPF_JMP | BPF_JGE | BPF_K, 0, 1, X32_BIT);
		emit(&p, BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS);
	}
	emit_search(&p, 0, n);
	if (p.full)
		return err_set(e, -EFBIG, "too_large",
			       "the filter needs more than %zu instructions",
			       max);
	return (int)p.n;
}
