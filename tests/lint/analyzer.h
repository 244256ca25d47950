/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LINT_ANALYZER_H
#define LINT_ANALYZER_H

#include "base/err.h"

/* For the analyzers alone, which see one file at a time: what these return. */
#define err_sys(e, errnum, ...)                                                \
	((void)(err_sys)(e, errnum, __VA_ARGS__), (errnum) > 0 ? -(errnum) : -5)
#define err_set(e, r, ...)                                                     \
	((void)(err_set)(e, r, __VA_ARGS__), (r) < 0 ? (r) : -5)
#define err_wrap(e, r, ...)                                                    \
	((void)(err_wrap)(e, r, __VA_ARGS__), (r) < 0 ? (r) : -5)

#endif
