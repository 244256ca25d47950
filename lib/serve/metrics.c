/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "serve/metrics.h"

/* Upper ends of a histogram's buckets, in microseconds, and as text. */
static const struct bound {
	uint64_t us;
	const char *text;
} bounds[] = {
	{500, "0.0005"},  {1000, "0.001"},    {2500, "0.0025"},
	{5000, "0.005"},  {10000, "0.01"},    {25000, "0.025"},
	{50000, "0.05"},  {100000, "0.1"},    {250000, "0.25"},
	{500000, "0.5"},  {1000000, "1"},     {2500000, "2.5"},
	{5000000, "5"},	  {10000000, "10"},   {30000000, "30"},
	{60000000, "60"}, {300000000, "300"},
};
#define BOUNDS array_len(bounds)

struct hist {
	uint64_t n, sum_us;
	uint64_t bucket[BOUNDS]; /* not cumulated */
};

struct series {
	bool used;
	uint64_t hash;
	double v;	   /* of a counter or gauge */
	struct hist *hist; /* of a histogram */
	char values[METRIC_LABELS_MAX][METRIC_VALUE_MAX + 1];
};

struct family {
	unsigned nlabels, nseries, room; /* room: with that of "other", last */
	uint32_t *index; /* by hash: 1 + which series, 0: free; a power of 2 */
	uint32_t mask;
	struct series *series;
	struct hist *hists;
};

struct metrics {
	const struct metric *table;
	size_t n;
	struct family *families;
};

static bool is_name(const char *s, const char *also)
{
	size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz_0123456789");

	return n > 0 && !s[n] && !(*s >= '0' && *s <= '9') &&
	       (!also || (strlen(s) > strlen(also) &&
			  !strcmp(s + strlen(s) - strlen(also), also)));
}

static int make_family(struct family *f, const struct metric *d, struct err *e)
{
	static const char *const ends[] = {
		[METRIC_COUNTER] = "_total",
		[METRIC_GAUGE] = NULL,
		[METRIC_HISTOGRAM] = "_seconds",
	};

	assert(is_name(d->name, ends[d->type]));
	while (f->nlabels < METRIC_LABELS_MAX && d->labels[f->nlabels])
		assert(is_name(d->labels[f->nlabels++], NULL));
	assert(!f->nlabels == !d->series_max);
	f->room = d->series_max + 1;
	f->series = calloc(f->room, sizeof(*f->series));
	for (f->mask = 1; f->mask < 2 * f->room; f->mask *= 2)
		;
	f->index = calloc(f->mask--, sizeof(*f->index));
	if (d->type == METRIC_HISTOGRAM)
		f->hists = calloc(f->room, sizeof(*f->hists));
	if (!f->series || !f->index ||
	    (d->type == METRIC_HISTOGRAM && !f->hists))
		return err_sys(e, ENOMEM, "metrics");
	for (unsigned i = 0; f->hists && i < f->room; i++)
		f->series[i].hist = &f->hists[i];
	/* What has no labels is there from the start, as 0. */
	if (!f->nlabels) {
		f->series[0].used = true;
		f->nseries = 1;
	}
	return 0;
}

int metrics_new(const struct metric *table, size_t n, struct metrics **ret,
		struct err *e)
{
	struct metrics *m = calloc(1, sizeof(*m));
	int r = 0;

	if (!m)
		return err_sys(e, ENOMEM, "metrics");
	m->table = table;
	m->n = n;
	m->families = calloc(n, sizeof(*m->families));
	if (!m->families)
		r = err_sys(e, ENOMEM, "metrics");
	for (size_t i = 0; r == 0 && i < n; i++)
		r = make_family(&m->families[i], &table[i], e);
	if (r < 0)
		metrics_free(m);
	else
		*ret = m;
	return r;
}

void metrics_free(struct metrics *m)
{
	if (!m)
		return;
	for (size_t i = 0; m->families && i < m->n; i++) {
		free(m->families[i].series);
		free(m->families[i].index);
		free(m->families[i].hists);
	}
	free(m->families);
	free(m);
}

/* --- series ----------------------------------------------------------------
 */

/* Of what is kept of the values, so that one cut short is the same again. */
static uint64_t hash_of(unsigned n, const char *const *values)
{
	uint64_t h = hash_fnv("", 0);

	for (unsigned i = 0; i < n; i++) {
		const char *v = values[i] ? values[i] : "";

		h = hash_fnv_more(h, v, strnlen(v, METRIC_VALUE_MAX));
		h = hash_fnv_more(h, "\xff", 1);
	}
	return h;
}

static bool same(const struct series *s, unsigned n, const char *const *values)
{
	for (unsigned i = 0; i < n; i++)
		if (strncmp(s->values[i], values[i] ? values[i] : "",
			    METRIC_VALUE_MAX))
			return false;
	return true;
}

/* Where it is in the index, or would be. */
static uint32_t *slot_of(const struct family *f, uint64_t hash,
			 const char *const *values)
{
	const struct series *s;
	uint32_t i;

	for (i = (uint32_t)hash & f->mask; f->index[i]; i = (i + 1) & f->mask) {
		s = &f->series[f->index[i] - 1];
		if (s->hash == hash && same(s, f->nlabels, values))
			break;
	}
	return &f->index[i];
}

static struct series *find(const struct family *f, uint64_t hash,
			   const char *const *values)
{
	const uint32_t *slot = slot_of(f, hash, values);

	return *slot ? &f->series[*slot - 1] : NULL;
}

static struct series *make(struct family *f, uint64_t hash,
			   const char *const *values)
{
	bool other = f->nseries == f->room - 1;
	struct series *s = &f->series[other ? f->room - 1 : f->nseries];

	if (!other)
		*slot_of(f, hash, values) = ++f->nseries;
	if (s->used)
		return s;
	s->used = true;
	s->hash = hash;
	for (unsigned i = 0; i < f->nlabels; i++) {
		const char *v = other ? "other" : values[i];

		v = v ? v : "";
		memcpy(s->values[i], v, strnlen(v, METRIC_VALUE_MAX));
	}
	return s;
}

static struct series *series_of(struct metrics *m, unsigned metric,
				const char *const *values)
{
	struct family *f = &m->families[metric];
	struct series *s;
	uint64_t hash;

	assert(metric < m->n && !values == !f->nlabels);
	if (!f->nlabels)
		return &f->series[0];
	hash = hash_of(f->nlabels, values);
	s = find(f, hash, values);
	return s ? s : make(f, hash, values);
}

void metrics_add(struct metrics *m, unsigned metric, const char *const *values,
		 int64_t n)
{
	if (!m)
		return;
	assert(m->table[metric].type == METRIC_GAUGE || n >= 0);
	series_of(m, metric, values)->v += (double)n;
}

void metrics_set(struct metrics *m, unsigned metric, const char *const *values,
		 double v)
{
	if (!m)
		return;
	assert(m->table[metric].type == METRIC_GAUGE);
	series_of(m, metric, values)->v = v;
}

void metrics_observe(struct metrics *m, unsigned metric,
		     const char *const *values, uint64_t us)
{
	struct hist *h;

	if (!m)
		return;
	assert(m->table[metric].type == METRIC_HISTOGRAM);
	h = series_of(m, metric, values)->hist;
	h->n++;
	h->sum_us += us;
	for (size_t i = 0; i < BOUNDS; i++)
		if (us <= bounds[i].us) {
			h->bucket[i]++;
			return;
		}
}

static void wipe(struct series *s)
{
	struct hist *h = s->hist;

	*s = (struct series){.hist = h};
	if (h)
		*h = (struct hist){.n = 0};
}

/* Its place in the index; what came after it is not there any more. */
static void unindex(struct family *f, uint32_t i)
{
	uint32_t at = (uint32_t)f->series[i].hash & f->mask;

	while (f->index[at] != i + 1)
		at = (at + 1) & f->mask;
	f->index[at] = 0;
}

void metrics_clear(struct metrics *m, unsigned metric)
{
	struct family *f;

	if (!m)
		return;
	f = &m->families[metric];
	if (!f->nlabels) {
		wipe(&f->series[0]);
		f->series[0].used = true;
		return;
	}
	/* The last first, so that nobody's way through the index is cut. */
	while (f->nseries > 0) {
		unindex(f, --f->nseries);
		wipe(&f->series[f->nseries]);
	}
	if (f->series[f->room - 1].used)
		wipe(&f->series[f->room - 1]);
}

double metrics_get(const struct metrics *m, unsigned metric,
		   const char *const *values)
{
	const struct family *f = &m->families[metric];
	const struct series *s = &f->series[0];

	if (f->nlabels) {
		s = find(f, hash_of(f->nlabels, values), values);
		/* "other" stands apart. */
		if (!s && same(&f->series[f->room - 1], f->nlabels, values))
			s = &f->series[f->room - 1];
	}
	if (!s)
		return 0;
	return s->hist ? (double)s->hist->n : s->v;
}

/* --- text ------------------------------------------------------------------
 */

/* What a value may not hold as it is: backslash, quote, end of line; and
 * whatever is not printable ASCII, which a client may have sent. */
static int add_value(struct buf *out, const char *v)
{
	int r = 0;

	for (; r == 0 && *v; v++) {
		unsigned char c = (unsigned char)*v;

		if (c == '\\' || c == '"')
			r = buf_addf(out, "\\%c", c);
		else if (c == '\n')
			r = buf_add(out, "\\n", 2);
		else
			r = buf_add(out, c < 0x20 || c > 0x7e ? "?" : v, 1);
	}
	return r;
}

/* {a="x",b="y"} or nothing; ${le}: a bucket's bound, or NULL. */
static int add_labels(struct buf *out, const struct metric *d,
		      const struct series *s, const char *le)
{
	const char *sep = "{";
	int r = 0;

	for (unsigned i = 0; i < METRIC_LABELS_MAX && d->labels[i]; i++) {
		r = buf_addf(out, "%s%s=\"", sep, d->labels[i]);
		if (r == 0)
			r = add_value(out, s->values[i]);
		if (r == 0)
			r = buf_add(out, "\"", 1);
		if (r < 0)
			return r;
		sep = ",";
	}
	if (le)
		r = buf_addf(out, "%sle=\"%s\"", sep, le);
	if (r == 0 && (le || d->labels[0]))
		r = buf_add(out, "}", 1);
	return r;
}

static int add_line(struct buf *out, const struct metric *d,
		    const struct series *s, double v)
{
	int r = buf_addf(out, "%s", d->name);

	if (r == 0)
		r = add_labels(out, d, s, NULL);
	return r < 0 ? r : buf_addf(out, " %.15g\n", v);
}

static int add_bucket(struct buf *out, const struct metric *d,
		      const struct series *s, const char *le, uint64_t n)
{
	int r = buf_addf(out, "%s_bucket", d->name);

	if (r == 0)
		r = add_labels(out, d, s, le);
	return r < 0 ? r : buf_addf(out, " %" PRIu64 "\n", n);
}

static int add_hist(struct buf *out, const struct metric *d,
		    const struct series *s)
{
	uint64_t n = 0;
	int r = 0;

	for (size_t i = 0; r == 0 && i < BOUNDS; i++) {
		n += s->hist->bucket[i];
		r = add_bucket(out, d, s, bounds[i].text, n);
	}
	if (r == 0)
		r = add_bucket(out, d, s, "+Inf", s->hist->n);
	if (r == 0)
		r = buf_addf(out, "%s_sum", d->name);
	if (r == 0)
		r = add_labels(out, d, s, NULL);
	if (r == 0)
		r = buf_addf(out, " %.6f\n", (double)s->hist->sum_us / 1e6);
	if (r == 0)
		r = buf_addf(out, "%s_count", d->name);
	if (r == 0)
		r = add_labels(out, d, s, NULL);
	return r < 0 ? r : buf_addf(out, " %" PRIu64 "\n", s->hist->n);
}

int metrics_text(const struct metrics *m, struct buf *out)
{
	static const char *const types[] = {"counter", "gauge", "histogram"};
	int r = 0;

	for (size_t i = 0; r == 0 && i < m->n; i++) {
		const struct metric *d = &m->table[i];
		const struct family *f = &m->families[i];

		r = buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", d->name,
			     d->help, d->name, types[d->type]);
		/* What was never used is not touched: it is no memory yet. */
		for (unsigned k = 0; r == 0 && k <= f->nseries; k++) {
			const struct series *s =
				&f->series[k < f->nseries ? k : f->room - 1];

			if (s->used && (f->nlabels || k == 0))
				r = s->hist ? add_hist(out, d, s)
					    : add_line(out, d, s, s->v);
		}
	}
	return r;
}
