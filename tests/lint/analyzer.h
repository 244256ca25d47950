/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LINT_ANALYZER_H
#define LINT_ANALYZER_H

#include "base/err.h"

/* For the analyzers alone, which see one file at a time: these fail. */
#define err_negative_(call)                                                    \
	({                                                                     \
		int err_r_ = (call);                                           \
		if (err_r_ >= 0)                                               \
			__builtin_unreachable();                               \
		err_r_;                                                        \
	})
#define err_sys(...)  err_negative_((err_sys)(__VA_ARGS__))
#define err_set(...)  err_negative_((err_set)(__VA_ARGS__))
#define err_wrap(...) err_negative_((err_wrap)(__VA_ARGS__))

#endif
