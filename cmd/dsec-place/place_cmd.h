/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_PLACE_CMD_H
#define DSEC_PLACE_CMD_H

#include "base/buf.h"
#include "policy/place.h"
#include "wire/field.h"

/* The fields of requests: those of spec.h, then ours. */
struct table {
	struct field *rows;
	size_t n;	/* all, flags too */
	size_t nfields; /* that requests have */
};

struct filter {
	const struct table *table;
	struct place *place;
	json_t *defaults; /* of the command line, or NULL */
	bool explain;
	struct buf out; /* answers that were not written yet */
};

/*
 * filter_line(f, text, len, line, e):
 * One line: a request or a report.  What is answered goes to ${f}->out.
 * 0; 1: the answer is a failure; -ENOMEM.
 */
int filter_line(struct filter *f, const char *text, size_t len, uint64_t line,
		struct err *e);

/* filter_answer(f, rec, e): a record to ${f}->out. */
int filter_answer(struct filter *f, const json_t *rec, struct err *e);

/*
 * report_take(p, rec, now_ms, e):
 * The report of a node, as dsec-admit prints it.  It may come from a machine
 * that lies: what is no number counts as 0, what is no name is "bad_value".
 */
int report_take(struct place *p, const json_t *rec, uint64_t now_ms,
		struct err *e);

/* --- simulation ------------------------------------------------------------
 */

struct sim_conf {
	unsigned nodes, placers, k;
	uint64_t requests, burst;
	double rate;   /* a second, after the burst */
	double life_s; /* median; the 99th of 100 is ten times that */
	unsigned report_ms;
	unsigned latency_ms; /* of each way between placer and node */
	unsigned launch_ms;  /* from the claim to the answer */
	unsigned lose;	     /* nodes that die, and come back empty */
	unsigned down_ms;    /* ... after so long */
	unsigned retries;
	unsigned hidden; /* nodes of a hundred whose report does not say
			    that they refuse everything */
	uint64_t node_memory_mb,
		node_cpu_milli; /* limits, overcommit applied */
	uint64_t seed;
	const char *trace;    /* file, or NULL: generated */
	const char *svg;      /* file, or NULL */
	const char *policies; /* words, with commas between; NULL: all */
};

/* sim_run(c, ret_rec, e): the record of all policies. */
int sim_run(const struct sim_conf *c, json_t **ret_rec, struct err *e);

#endif
