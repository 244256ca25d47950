/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_METRICS_H
#define SERVE_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

/*
 * What a daemon counts, as Prometheus reads it.  A program has one table of
 * metrics; everything is allocated when that is taken, so that counting an
 * event allocates nothing, however many clients make up however many words: a
 * metric has room for so many sets of label values, and what comes after goes
 * to one whose values are all "other".
 */
struct metrics;

enum metric_type {
	METRIC_COUNTER, /* only grows; names end with _total */
	METRIC_GAUGE,
	METRIC_HISTOGRAM, /* of times; names end with _seconds */
};

#define METRIC_LABELS_MAX 4
#define METRIC_VALUE_MAX  63 /* bytes of a label's value; the rest is cut */

struct metric {
	const char *name; /* literals, kept */
	const char *help;
	enum metric_type type;
	unsigned series_max; /* sets of label values; 0: without labels */
	const char *labels[METRIC_LABELS_MAX];
};

/* metrics_new(table, n, ret, e): ${table} is kept; a metric is called by its
 * place in it. */
must_check int metrics_new(const struct metric *table, size_t n,
			   struct metrics **ret, struct err *e);
void metrics_free(struct metrics *m);

#define auto_metrics __attribute__((cleanup(metrics_cleanup)))
static inline void metrics_cleanup(struct metrics **m)
{
	metrics_free(*m);
}

/*
 * metrics_add(m, metric, values, n): add to a counter or gauge.
 * metrics_set(m, metric, values, v): of a gauge.
 * metrics_observe(m, metric, values, us): one time, in microseconds.
 * ${values}: as many as the metric has labels, NULL if none; a NULL among them
 * is "".  ${m} NULL: nothing happens.
 */
void metrics_add(struct metrics *m, unsigned metric, const char *const *values,
		 int64_t n);
void metrics_set(struct metrics *m, unsigned metric, const char *const *values,
		 double v);
void metrics_observe(struct metrics *m, unsigned metric,
		     const char *const *values, uint64_t us);

/* METRIC_VALUES("run", "ok"): as ${values}. */
#define METRIC_VALUES(...) ((const char *const[]){__VA_ARGS__})

/* metrics_clear(m, metric): forget its series, before all of a gauge that is
 * read from elsewhere are set anew. */
void metrics_clear(struct metrics *m, unsigned metric);

/* metrics_get(m, metric, values): a counter or gauge, a histogram's count; 0
 * where there is none. */
double metrics_get(const struct metrics *m, unsigned metric,
		   const char *const *values);

/* metrics_text(m, out): the exposition format 0.0.4; 0 or -ENOMEM. */
must_check int metrics_text(const struct metrics *m, struct buf *out);

#endif
