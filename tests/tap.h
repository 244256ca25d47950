/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_TAP_H
#define TESTS_TAP_H

#include <dirent.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/*
 * TAP for a C test: ok() and is_*() per check, `return tap_done();` from main.
 * tap_done() also fails when the test leaves descriptors open.
 */
static int tap_n, tap_bad, tap_fds = -1;

static inline int tap_open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = -1; /* not the one of opendir itself */

	if (!d)
		return -1;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

__attribute__((constructor)) static void tap_start(void)
{
	tap_fds = tap_open_fds();
	setvbuf(stdout, NULL, _IOLBF, 0);
}

__attribute__((format(printf, 2, 3))) static inline bool
ok(bool good, const char *fmt, ...)
{
	va_list ap;

	printf("%sok %d - ", good ? "" : "not ", ++tap_n);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	if (!good)
		tap_bad++;
	return good;
}

static inline bool is_int(long long got, long long want, const char *what)
{
	if (got != want)
		printf("# %s: got %lld, want %lld\n", what, got, want);
	return ok(got == want, "%s", what);
}

static inline bool is_str(const char *got, const char *want, const char *what)
{
	bool same = got && want ? !strcmp(got, want) : got == want;

	if (!same)
		printf("# %s: got '%s', want '%s'\n", what,
		       got ? got : "(null)", want ? want : "(null)");
	return ok(same, "%s", what);
}

static inline void skip(const char *what, const char *why)
{
	printf("ok %d - %s # SKIP %s\n", ++tap_n, what, why);
}

static inline int tap_done(void)
{
	is_int(tap_open_fds(), tap_fds, "no descriptor left open");
	printf("1..%d\n", tap_n);
	return tap_bad != 0;
}

#endif
