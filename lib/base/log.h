/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

#include "base/err.h"

/*
 * People read stderr.  log_init() takes the program's name (borrowed) and reads
 * DSEC_DEBUG (a list of areas, or "all").  Only cmd/ calls log_error() and
 * log_info(); lib/ calls log_debug() alone.  A line is one write.
 */
void log_init(const char *program);
void log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* log_err(e): "program: message" for a failure. */
void log_err(const struct err *e);

/* log_debug(area, fmt, ...): printed when DSEC_DEBUG names ${area}. */
void log_debug(const char *area, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
bool log_debugging(const char *area);

#endif
