/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_SERVE_CLIENT_H
#define DSEC_SERVE_CLIENT_H

#include "serve.h"

/* What the words behind "dsec --server HOST:PORT" ask for. */
struct wanted {
	json_t *req; /* one request, or NULL: lines of stdin are */
	const char *program;
	bool raw;   /* a command with our descriptors and its status */
	bool input; /* ... our stdin as well */
};

/* wanted_parse(argv, ret, e): argv[0] is the program.  1: help was printed. */
int wanted_parse(char **argv, struct wanted *ret, struct err *e);

#endif
