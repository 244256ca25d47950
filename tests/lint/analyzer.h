/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LINT_ANALYZER_H
#define LINT_ANALYZER_H

#include "base/err.h"

/* For the analyzers alone, which see one file at a time: what these return. */
#define err_sys(e, errnum, ...)                                                \
	({                                                                     \
		int err_n_ = (errnum);                                         \
		(void)(err_sys)(e, err_n_, __VA_ARGS__);                       \
		err_n_ > 0 ? -err_n_ : -5;                                     \
	})
#define err_set(e, r, ...)                                                     \
	({                                                                     \
		int err_r_ = (r);                                              \
		(void)(err_set)(e, err_r_, __VA_ARGS__);                       \
		err_r_ < 0 ? err_r_ : -5;                                      \
	})
#define err_wrap(e, r, ...)                                                    \
	({                                                                     \
		int err_r_ = (r);                                              \
		(void)(err_wrap)(e, err_r_, __VA_ARGS__);                      \
		err_r_ < 0 ? err_r_ : -5;                                      \
	})

#endif
