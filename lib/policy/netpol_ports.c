/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "policy/netpol_priv.h"

static void cut_out(struct ports *s, unsigned at, unsigned n)
{
	memmove(&s->v[at], &s->v[at + n], (s->n - at - n) * sizeof(*s->v));
	s->n -= n;
}

static int put_in(struct ports *s, unsigned at, struct netpol_range r)
{
	if (s->n == s->max)
		return -E2BIG;
	memmove(&s->v[at + 1], &s->v[at], (s->n - at) * sizeof(*s->v));
	s->v[at] = r;
	s->n++;
	return 0;
}

int ports_add(struct ports *s, struct netpol_range r)
{
	unsigned i = 0, end;

	while (i < s->n && s->v[i].hi + 1 < r.lo)
		i++;
	/* Those from i to end overlap or touch it. */
	for (end = i; end < s->n && s->v[end].lo <= r.hi + 1; end++) {
		if (s->v[end].lo < r.lo)
			r.lo = s->v[end].lo;
		if (s->v[end].hi > r.hi)
			r.hi = s->v[end].hi;
	}
	if (end == i)
		return put_in(s, i, r);
	s->v[i] = r;
	cut_out(s, i + 1, end - i - 1);
	return 0;
}

int ports_sub(struct ports *s, struct netpol_range r)
{
	struct netpol_range old, high;
	unsigned i = 0;
	int ret = 0;

	while (i < s->n) {
		old = s->v[i];
		if (old.hi < r.lo || old.lo > r.hi) {
			i++;
			continue;
		}
		cut_out(s, i, 1);
		if (old.lo < r.lo) {
			put_in(s, i, (struct netpol_range){old.lo, r.lo - 1});
			i++;
		}
		if (old.hi > r.hi) {
			high = (struct netpol_range){r.hi + 1, old.hi};
			if (put_in(s, i, high) < 0)
				ret = -E2BIG;
			else
				i++;
		}
	}
	return ret;
}

bool ports_has(const struct netpol_range *v, unsigned n, uint16_t port)
{
	for (unsigned i = 0; i < n; i++)
		if (port >= v[i].lo && port <= v[i].hi)
			return true;
	return false;
}

bool ports_within(const struct netpol_range *in, unsigned nin,
		  const struct netpol_range *out, unsigned nout)
{
	unsigned j = 0;

	for (unsigned i = 0; i < nin; i++) {
		while (j < nout && out[j].hi < in[i].lo)
			j++;
		if (j == nout || in[i].lo < out[j].lo || in[i].hi > out[j].hi)
			return false;
	}
	return true;
}

bool ports_all(const struct netpol_range *v, unsigned n)
{
	return n == 1 && v[0].lo == 1 && v[0].hi == 65535;
}
