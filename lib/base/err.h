/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdbool.h>

/*
 * One failure, told once.  A struct err is a fixed-size value that lives on
 * main's stack and needs no set-up beyond zeroing; it is filled by whoever sees
 * the failure first, widened by err_wrap() on the way up, and printed or sent
 * by cmd/.  Every function that takes one returns 0 (or a count, or an fd) or
 * -errno, and has set it whenever it returns a negative number.  Passing NULL
 * is allowed everywhere.
 */

#define ERR_MSG_MAX 512

struct err {
	int r;			 /* -errno; 0: nothing went wrong */
	const char *code;	 /* the word of PROTOCOL.md, a literal */
	bool infra;		 /* not the caller's fault: mask the sample */
	unsigned retry_after_ms; /* 0: repeating will not help by itself */
	bool quiet;		 /* nobody asks: log_err() says nothing */
	char msg[ERR_MSG_MAX];	 /* for people: the cause and the way out */
};

/*
 * err_set(e, r, code, fmt, ...):
 * Fill ${e} with ${r} (-errno, negative), the literal ${code} and the message.
 * Return ${r}.
 */
int err_set(struct err *e, int r, const char *code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/*
 * err_sys(e, errnum, fmt, ...):
 * A system call failed with ${errnum} (positive).  The message gets
 * ": <strerror>" appended, the code is that of err_code_of().  Return
 * -${errnum}.
 */
int err_sys(struct err *e, int errnum, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * err_wrap(e, r, fmt, ...):
 * Put "<message>: " before what ${e} says already.  Return ${r}.
 */
int err_wrap(struct err *e, int r, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* err_code_of(errnum): the wire code for a system error, e.g. "no_space". */
const char *err_code_of(int errnum);

/* err_infra_of(errnum): true where ${errnum} is the node's fault. */
bool err_infra_of(int errnum);

#endif
