/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_ONCE_H
#define SERVE_ONCE_H

#include "base/cleanup.h"
#include "base/loop.h"
#include "wire/json.h"

/*
 * A program of ours that is run once for one request: a list, a report, what is
 * watched.  Its stdin is empty; each line of its stdout is a record.
 */
struct once;

struct once_ops {
	void (*record)(void *arg, json_t *rec); /* borrowed */
	/* It ended, with that exit status; -1: a signal, or no sense in what it
	 * said.  It is freed afterwards. */
	void (*end)(void *arg, int status);
};

/*
 * once_new(l, argv, ops, arg, ret, e): ${argv}, with a path in argv[0], is
 * borrowed for the call.  Nothing is called before it returns.
 * once_hold(o, on): read no more of what it says for now.
 * once_free(o): kills it; its ops are not called again.
 */
must_check int once_new(struct loop *l, const char *const *argv,
			const struct once_ops *ops, void *arg,
			struct once **ret, struct err *e);
void once_hold(struct once *o, bool on);
void once_free(struct once *o);

#endif
