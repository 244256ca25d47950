/* SPDX-License-Identifier: Apache-2.0 */
/* Counters, gauges and histograms, and their text. */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

#include "../tap.h"
#include "serve/metrics.h"

enum { REQUESTS, LIVE, UP, TOOK };
static const struct metric table[] = {
	[REQUESTS] = {"dsec_requests_total",
		      "Requests.",
		      METRIC_COUNTER,
		      3,
		      {"op", "code"}},
	[LIVE] = {"dsec_sandboxes", "Sandboxes.", METRIC_GAUGE, 4, {"state"}},
	[UP] = {"dsec_up", "One.", METRIC_GAUGE, 0, {NULL}},
	[TOOK] =
		{"dsec_request_seconds", "Times.", METRIC_HISTOGRAM, 2, {"op"}},
};

static struct metrics *new (void)
{
	struct metrics *m = NULL;

	if (metrics_new(table, 4, &m, NULL) < 0)
		abort();
	return m;
}

static void test_values(void)
{
	auto_metrics struct metrics *m = new ();

	metrics_add(m, REQUESTS, METRIC_VALUES("run", "ok"), 1);
	metrics_add(m, REQUESTS, METRIC_VALUES("run", "ok"), 2);
	metrics_add(m, REQUESTS, METRIC_VALUES("run", NULL), 1);
	is_int((long long)metrics_get(m, REQUESTS, METRIC_VALUES("run", "ok")),
	       3, "a counter");
	is_int((long long)metrics_get(m, REQUESTS, METRIC_VALUES("run", "")), 1,
	       "no value is an empty one");
	is_int((long long)metrics_get(m, REQUESTS, METRIC_VALUES("ok", "run")),
	       0, "in their order");
	metrics_set(m, LIVE, METRIC_VALUES("running"), 7);
	metrics_add(m, LIVE, METRIC_VALUES("running"), -2);
	is_int((long long)metrics_get(m, LIVE, METRIC_VALUES("running")), 5,
	       "a gauge");
	metrics_clear(m, LIVE);
	is_int((long long)metrics_get(m, LIVE, METRIC_VALUES("running")), 0,
	       "cleared");
	metrics_set(m, UP, NULL, 1);
	is_int((long long)metrics_get(m, UP, NULL), 1, "without labels");
	metrics_add(NULL, UP, NULL, 1);
	metrics_observe(NULL, TOOK, METRIC_VALUES("run"), 1);
	ok(true, "no metrics, nothing happens");
}

/* Words of a client do not make it grow. */
static void test_bounded(void)
{
	auto_metrics struct metrics *m = new ();
	char word[200];
	struct mallinfo2 was, is;

	metrics_add(m, REQUESTS, METRIC_VALUES("run", "ok"), 1);
	was = mallinfo2();
	for (unsigned i = 0; i < 10000; i++) {
		snprintf(word, sizeof(word), "w%u", i);
		metrics_add(m, REQUESTS, METRIC_VALUES(word, "ok"), 1);
		metrics_observe(m, TOOK, METRIC_VALUES(word), i);
	}
	is = mallinfo2();
	is_int((long long)(is.uordblks - was.uordblks), 0,
	       "an event allocates nothing");
	is_int((long long)metrics_get(m, REQUESTS,
				      METRIC_VALUES("other", "other")),
	       9998, "what there is no room for is other");
	metrics_clear(m, REQUESTS);
	memset(word, 'x', sizeof(word) - 1);
	word[sizeof(word) - 1] = '\0';
	metrics_add(m, REQUESTS, METRIC_VALUES(word, "ok"), 1);
	word[100] = 'y';
	metrics_add(m, REQUESTS, METRIC_VALUES(word, "ok"), 1);
	is_int((long long)metrics_get(m, REQUESTS, METRIC_VALUES(word, "ok")),
	       2, "a long value is cut, and one then");
}

/* Cleared and set again, over and over, in another order. */
static void test_again(void)
{
	static const struct metric many[] = {
		{"dsec_n", "N.", METRIC_GAUGE, 1000, {"n"}},
	};
	struct metrics *m = NULL;
	unsigned wrong = 0;
	char word[16];

	if (metrics_new(many, 1, &m, NULL) < 0)
		abort();
	for (unsigned round = 0; round < 20; round++) {
		metrics_clear(m, 0);
		for (unsigned i = 0; i < 1000; i++) {
			snprintf(word, sizeof(word), "%u",
				 i * 7 % 1000 + round);
			metrics_set(m, 0, METRIC_VALUES(word), i);
		}
		for (unsigned i = 0; i < 1000; i++) {
			snprintf(word, sizeof(word), "%u",
				 i * 7 % 1000 + round);
			wrong += metrics_get(m, 0, METRIC_VALUES(word)) != i;
		}
	}
	is_int(wrong, 0, "each is found, and has its own");
	metrics_set(m, 0, METRIC_VALUES("one more"), 1);
	is_int((long long)metrics_get(m, 0, METRIC_VALUES("other")), 1,
	       "the thousand and first is other");
	metrics_free(m);
}

static void has(const struct buf *b, const char *line, const char *what)
{
	bool there = strstr(b->data, line) != NULL;

	ok(there, "%s", what);
	if (!there)
		printf("# no '%s' in\n# %s\n", line, b->data);
}

static void test_text(void)
{
	auto_metrics struct metrics *m = new ();
	auto_buf struct buf b = {0};

	metrics_add(m, REQUESTS, METRIC_VALUES("a\"b\\c\nd\xff", "ok"), 1);
	metrics_observe(m, TOOK, METRIC_VALUES("run"), 700);
	metrics_observe(m, TOOK, METRIC_VALUES("run"), 2500);
	metrics_observe(m, TOOK, METRIC_VALUES("run"), 400000000);
	is_int(metrics_text(m, &b), 0, "text");
	has(&b,
	    "# HELP dsec_requests_total Requests.\n"
	    "# TYPE dsec_requests_total counter\n"
	    "dsec_requests_total{op=\"a\\\"b\\\\c\\nd?\",code=\"ok\"} 1\n",
	    "labels are quoted");
	has(&b, "dsec_up 0\n", "what has no labels is there from the start");
	has(&b, "dsec_request_seconds_bucket{op=\"run\",le=\"0.0005\"} 0\n",
	    "a bucket");
	has(&b,
	    "{op=\"run\",le=\"0.001\"} 1\n"
	    "dsec_request_seconds_bucket{op=\"run\",le=\"0.0025\"} 2\n",
	    "buckets add up, their ends belong to them");
	has(&b,
	    "{op=\"run\",le=\"300\"} 2\n"
	    "dsec_request_seconds_bucket{op=\"run\",le=\"+Inf\"} 3\n"
	    "dsec_request_seconds_sum{op=\"run\"} 400.003200\n"
	    "dsec_request_seconds_count{op=\"run\"} 3\n",
	    "sum and count");
	ok(strstr(b.data, "dsec_sandboxes{") == NULL, "nothing of no series");
}

int main(void)
{
	test_values();
	test_bounded();
	test_again();
	test_text();
	return tap_done();
}
