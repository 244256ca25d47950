/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIRE_INPUT_H
#define WIRE_INPUT_H

#include "base/cleanup.h"
#include "base/loop.h"
#include "wire/record.h"

/*
 * The requests of a program that works on several at once: lines of a
 * descriptor, read on its loop as they come and handed over one by one, checked
 * by record_take().  The reader keeps at most a line and what one read brought
 * along with it.  While it is held it reads nothing, so what feeds it waits.
 */
struct input;

/*
 * One line: a request, a failure of somebody else's to pass on, or (bad is
 * set) a line that is neither, with what could be read of it in req (at least
 * its id; NULL when memory is out).
 */
struct input_line {
	enum record_kind kind;
	json_t *req; /* the callee's */
	const struct err *bad;
};

struct input_ops {
	void (*line)(void *arg, struct input_line *line);
	/* No more lines; ${why} is set if that is a failure to read. */
	void (*end)(void *arg, const struct err *why);
};

struct input_from {
	int fd; /* borrowed; blocking or not; regular files are fine */
	const struct field *fields; /* of a request; borrowed */
	size_t nfields;
	json_t *defaults; /* NULL, or flags that fill in; borrowed */
	const struct input_ops *ops;
	void *arg;
};

/*
 * input_new(l, from, ret_input, e): nothing is called before the loop runs.
 * input_free() is not for its own callbacks.
 */
must_check int input_new(struct loop *l, const struct input_from *from,
			 struct input **ret_input, struct err *e);
void input_free(struct input *in);

/*
 * input_wanted(give, e): "usage" where standard input is a terminal, on which
 * nobody types requests: what else can be given, is ${give}.
 */
must_check int input_wanted(const char *give, struct err *e);

/* input_hold(in, on): take a rest, or go on.  Harmless after the end. */
void input_hold(struct input *in, bool on);

#endif
