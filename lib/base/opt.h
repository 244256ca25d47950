/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_OPT_H
#define BASE_OPT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/*
 * Command lines.  A program has one table; it drives both parsing and -h.
 * Rows may be embedded as the first member of a larger row, hence the stride.
 */
struct opt {
	const char *name;    /* long form without dashes; NULL: no flag */
	const char *alias;   /* a second long form, or NULL */
	char letter;	     /* short form, or 0 */
	const char *metavar; /* NULL: takes no argument */
	const char *help;    /* one line for -h; NULL: not shown */
};

struct opt_table {
	const void *rows;
	size_t n, stride;
};

#define OPT_TABLE(a)                                                           \
	((struct opt_table){(a), sizeof(a) / sizeof((a)[0]), sizeof((a)[0])})

struct opt_parser {
	struct opt_table table;
	int argc;
	char **argv;
	int i;		   /* next word; after the end: what follows "--" */
	const char *rest;  /* inside a group of short flags */
	bool stop_at_word; /* the first plain word ends the options */
};

enum { OPT_END = -1, OPT_WORD = -2 };

/*
 * opt_next(p, ret_row, ret_arg, e):
 * The next thing on the command line: a row's index with its argument in
 * *${ret_arg} (NULL if it takes none); OPT_WORD with a plain word; OPT_END.
 * Errors (-EINVAL, code "usage"): an unknown flag, a missing or unwanted
 * argument.  ${p}->i starts at 1.  "--" ends options; the words after it are
 * not reported: they are argv[i] and on.
 */
int opt_next(struct opt_parser *p, int *ret_row, const char **ret_arg,
	     struct err *e);

/*
 * opt_each(p, flag, word, arg, e):
 * All of the command line, to its end or the first failure: ${flag} with each
 * row and its argument, ${word} with each plain word, also those after "--".
 */
typedef int opt_flag_fn(void *arg, int row, const char *value, struct err *e);
typedef int opt_word_fn(void *arg, const char *word, struct err *e);
int opt_each(struct opt_parser *p, opt_flag_fn *flag, opt_word_fn *word,
	     void *arg, struct err *e);

/* opt_row(t, i): row ${i} of ${t}. */
const struct opt *opt_row(struct opt_table t, size_t i);

/* opt_help(fd, usage, t): write the usage line and a line per shown flag. */
void opt_help(int fd, const char *usage, struct opt_table t);

#endif
