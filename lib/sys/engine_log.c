/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "sys/engine.h"

/* An error of the engine is among the last lines; a log at -v4 can be large. */
#define TAIL_MAX 16384

/* "(00.012345) Error (file.c:12): words": from "Error" on. */
static const char *error_of(const char *line)
{
	const char *at = strstr(line, "Error (");

	/* It is told on every node that may not raise limits, and is harmless;
	 * the end of a failed run says only that it failed. */
	static const char *const idle[] = {
		"RLIMIT_NOFILE",   "Dumping FAILED", "Restoring FAILED",
		"exited, status=", "recv req error",
	};

	for (size_t i = 0; at && i < array_len(idle); i++)
		if (strstr(at, idle[i]))
			return NULL;
	return at;
}

/* What processes inside are called is in these lines. */
static void add_line(char *buf, size_t size, const char *line)
{
	size_t at = strlen(buf);
	int n;

	n = snprintf(buf + at, size - at, "%s%s", at ? "; " : "", line);
	if (n < 0)
		buf[at] = '\0';
	for (char *c = buf + at; *c; c++)
		if (*c < 0x20 || *c > 0x7e)
			*c = '?';
}

static size_t read_tail(int dirfd, const char *log, char *tail, size_t size)
{
	auto_close int fd = -1;
	off_t end;
	ssize_t n;

	fd = openat(dirfd, log, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return 0;
	end = lseek(fd, 0, SEEK_END);
	n = pread(fd, tail, size - 1,
		  end > (off_t)size - 1 ? end - (off_t)(size - 1) : 0);
	return n > 0 ? (size_t)n : 0;
}

const char *engine_words_of(char *text, char *buf, size_t size)
{
	const char *last[2] = {NULL, NULL}, *at;
	char *save = NULL, *line;

	buf[0] = '\0';
	for (line = strtok_r(text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		at = error_of(line);
		if (at) {
			last[0] = last[1];
			last[1] = at;
		}
	}
	for (int i = 0; i < 2; i++)
		if (last[i])
			add_line(buf, size, last[i]);
	return buf;
}

const char *engine_last_words(int dirfd, const char *log, char *buf,
			      size_t size)
{
	char tail[TAIL_MAX];
	size_t n;

	n = dirfd < 0 || !log ? 0 : read_tail(dirfd, log, tail, sizeof(tail));
	tail[n] = '\0';
	return engine_words_of(tail, buf, size);
}
