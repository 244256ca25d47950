/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

/* clang-format off */
static const struct {
	int errnum;
	const char *code;
	bool infra;
} codes[] = {
	{ENOSPC, "no_space", true},	 {EDQUOT, "quota", false},
	{EMFILE, "no_fds", true},	 {ENFILE, "no_fds", true},
	{ENOMEM, "no_memory", true},	 {EIO, "io", true},
	{EACCES, "permission", false},	 {EPERM, "permission", false},
	{ENOENT, "not_found", false},	 {EEXIST, "exists", false},
	{EISDIR, "is_directory", false}, {ENOTDIR, "not_directory", false},
	{EROFS, "read_only", false},	 {ENOTEMPTY, "not_empty", false},
	{ETIMEDOUT, "timeout", false},	 {EBUSY, "busy", false},
	{EAGAIN, "busy", true},		 {ENOSYS, "unsupported", false},
	{EOPNOTSUPP, "unsupported", false},
	{E2BIG, "args_too_long", false}, {ELOOP, "bad_path", false},
	{EXDEV, "bad_path", false},	 {ENAMETOOLONG, "bad_path", false},
};
/* clang-format on */

const char *err_code_of(int errnum)
{
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
		if (codes[i].errnum == errnum)
			return codes[i].code;
	return "system";
}

bool err_infra_of(int errnum)
{
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
		if (codes[i].errnum == errnum)
			return codes[i].infra;
	return true;
}

int err_set(struct err *e, int r, const char *code, const char *fmt, ...)
{
	va_list ap;

	assert(r < 0);
	if (!e)
		return r;
	memset(e, 0, sizeof(*e));
	e->r = r;
	e->code = code;
	va_start(ap, fmt);
	vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	return r;
}

int err_sys(struct err *e, int errnum, const char *fmt, ...)
{
	va_list ap;
	size_t n;

	assert(errnum > 0);
	if (!e)
		return -errnum;
	memset(e, 0, sizeof(*e));
	e->r = -errnum;
	e->code = err_code_of(errnum);
	e->infra = err_infra_of(errnum);
	va_start(ap, fmt);
	vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	n = strlen(e->msg);
	snprintf(e->msg + n, sizeof(e->msg) - n, ": %s", strerror(errnum));
	return -errnum;
}

int err_wrap(struct err *e, int r, const char *fmt, ...)
{
	char was[ERR_MSG_MAX];
	va_list ap;
	size_t n;

	assert(r < 0);
	if (!e)
		return r;
	memcpy(was, e->msg, sizeof(was));
	va_start(ap, fmt);
	vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	n = strlen(e->msg);
	snprintf(e->msg + n, sizeof(e->msg) - n, ": %s", was);
	return r;
}
