/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIRE_EXIT_H
#define WIRE_EXIT_H

#include <stddef.h>

#include "base/err.h"

/* How our programs end.  Raw mode of dsec-exec and dsec-run apart: there the
 * command's own status is passed on, and EXIT_RAW_FAILED is ours. */
enum exit_status {
	EXIT_OK = 0,
	EXIT_NO = 1,		 /* the answer is no; a record failed */
	EXIT_USAGE_ERROR = 64,	 /* the command line is wrong */
	EXIT_BAD_RECORD = 65,	 /* an input record is wrong */
	EXIT_PEER_AWAY = 69,	 /* nobody answers, or it cannot be done here */
	EXIT_BUG = 70,		 /* our mistake */
	EXIT_SYSTEM = 71,	 /* a system call failed */
	EXIT_STDOUT_LOST = 74,	 /* results could not be written */
	EXIT_TRY_AGAIN = 75,	 /* a refusal that may pass */
	EXIT_NOT_PERMITTED = 77, /* not root, not the owner */
	EXIT_CONFIGURATION = 78, /* the node or its configuration is unfit */
	EXIT_RAW_FAILED = 125,	 /* raw mode: we failed, not the command */
};

/* The words of error.code, each with its exit status and meaning.
 * PROTOCOL.md lists the same table; a test compares them. */
struct exit_code {
	const char *code;
	enum exit_status status;
	const char *meaning;
};
extern const struct exit_code exit_codes[];
extern const size_t exit_codes_len;

/*
 * How the file helper ends when it fails: this plus the place of its error's
 * code in exit_codes, so that its status alone says which.
 */
#define HELPER_EXIT_BASE 128
int exit_helper(const struct err *e);

/* The words of "outcome". */
struct exit_outcome {
	const char *outcome;
	bool infra;
	const char *meaning;
};
extern const struct exit_outcome exit_outcomes[];
extern const size_t exit_outcomes_len;

/* exit_of(e): the exit status for a failure. */
enum exit_status exit_of(const struct err *e);

/* exit_join(was, one): that of a program with the failures ${was} so far
 * (EXIT_OK: none) and one more; EXIT_NO when they differ. */
enum exit_status exit_join(enum exit_status was, enum exit_status one);

#endif
