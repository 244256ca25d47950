/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

static const char *log_program = "dsec";
static const char *log_areas;

void log_init(const char *program)
{
	log_program = program;
	log_areas = getenv("DSEC_DEBUG");
}

/* Messages name files and more of strangers': no word of theirs commands the
 * terminal, nor begins a line.  C2 80 to C2 9F are control characters in
 * UTF-8. */
static void make_plain(char *line)
{
	for (unsigned char *s = (void *)line; *s; s++) {
		if (*s == 0xc2 && s[1] >= 0x80 && s[1] <= 0x9f)
			s[0] = s[1] = '?';
		if (*s < ' ' || *s == 0x7f)
			*s = '?';
	}
}

static void put(const char *prefix, const char *fmt, va_list ap)
{
	char line[ERR_MSG_MAX + 128];
	size_t n;

	n = (size_t)snprintf(line, sizeof(line), "%s: %s", log_program, prefix);
	if (n < sizeof(line))
		vsnprintf(line + n, sizeof(line) - n, fmt, ap);
	make_plain(line);
	n = strlen(line);
	if (n > sizeof(line) - 2)
		n = sizeof(line) - 2;
	line[n++] = '\n';
	if (write(STDERR_FILENO, line, n) < 0)
		return; /* nobody is left to tell */
}

void log_error(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put("", fmt, ap);
	va_end(ap);
}

void log_info(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put("", fmt, ap);
	va_end(ap);
}

void log_err(const struct err *e)
{
	if (!e->quiet)
		log_error("%s", e->msg);
}

bool log_debugging(const char *area)
{
	size_t n = strlen(area);
	const char *p = log_areas;

	if (!p)
		return false;
	if (!strcmp(p, "all"))
		return true;
	for (; (p = strstr(p, area)); p += n)
		if ((p == log_areas || p[-1] == ',') &&
		    (p[n] == ',' || p[n] == '\0'))
			return true;
	return false;
}

void log_debug(const char *area, const char *fmt, ...)
{
	char prefix[32];
	va_list ap;

	if (!log_debugging(area))
		return;
	snprintf(prefix, sizeof(prefix), "[%s] ", area);
	va_start(ap, fmt);
	put(prefix, fmt, ap);
	va_end(ap);
}
