/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MATRIX_H
#define MATRIX_H

/* The reports of matrix.c: how its processes write them, and who reads them. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE	 160
#define ROUND_MS 40

static const char *dir;

/* --- reports ------------------------------------------------------------- */

struct role {
	const char *name;
	int fd;
	pid_t pid, parent;
	unsigned long n;
	char bad[80]; /* "" while all is well */
	struct timespec last;
};

static struct role me;

static void write_report(void)
{
	char line[LINE + 1];
	int n;

	n = snprintf(line, sizeof(line), "%s %d %lu %s ", me.name, (int)me.pid,
		     me.n, *me.bad ? me.bad : "ok");
	memset(line + n, ' ', (size_t)(LINE - n));
	line[LINE - 1] = '\n';
	if (pwrite(me.fd, line, LINE, 0) != LINE)
		_exit(3);
}

static void bad(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void bad(const char *fmt, ...)
{
	va_list ap;

	if (*me.bad)
		return;
	va_start(ap, fmt);
	vsnprintf(me.bad, sizeof(me.bad), fmt, ap);
	va_end(ap);
	write_report();
}

#define WANT(x)                                                                \
	do {                                                                   \
		if (!(x))                                                      \
			bad("line %d: %s (errno %d)", __LINE__, #x, errno);    \
	} while (0)

static void start(const char *name)
{
	char path[512];

	me = (struct role){.name = name, .pid = getpid(), .parent = getppid()};
	snprintf(path, sizeof(path), "%s/r/%s", dir, name);
	me.fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (me.fd < 0)
		_exit(2);
	clock_gettime(CLOCK_MONOTONIC, &me.last);
	write_report();
}

/* The end of a round: what every process may count on. */
static void round_done(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	WANT(now.tv_sec > me.last.tv_sec ||
	     (now.tv_sec == me.last.tv_sec && now.tv_nsec >= me.last.tv_nsec));
	me.last = now;
	WANT(getpid() == me.pid);
	WANT(getppid() == me.parent);
	me.n++;
	write_report();
	usleep(ROUND_MS * 1000);
}

#define PATIENT_MS 20000 /* within which a partner answers, however slow */

static unsigned char pattern(unsigned long at)
{
	return (unsigned char)(at * 31 + (at >> 8) * 7 + 1);
}

static void fill(unsigned char *buf, size_t len, unsigned long at)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = pattern(at + i);
}

static bool filled(const unsigned char *buf, size_t len, unsigned long at)
{
	for (size_t i = 0; i < len; i++)
		if (buf[i] != pattern(at + i))
			return false;
	return true;
}

/*
 * Until ${fd} has something, within ${ms}.  A call that waits with a time limit
 * may end with EINTR when what it waits in comes back from a checkpoint.
 */
static bool comes(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int r;

	do
		r = poll(&p, 1, ms);
	while (r < 0 && errno == EINTR);
	return r == 1;
}

/* Exactly ${len} bytes, or less at an end or after PATIENT_MS. */
static size_t get(int fd, void *buf, size_t len)
{
	size_t n = 0;
	ssize_t r;

	while (n < len && comes(fd, PATIENT_MS)) {
		r = read(fd, (char *)buf + n, len - n);
		if (r <= 0)
			break;
		n += (size_t)r;
	}
	return n;
}

/* --- a look from beside -------------------------------------------------- */

struct seen {
	char name[64], text[LINE];
	unsigned long n;
};

static bool look(const char *name, struct seen *ret)
{
	char path[512], line[LINE + 1] = {0};
	int fd, pid;

	snprintf(path, sizeof(path), "%s/r/%s", dir, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	if (read(fd, line, LINE) != LINE)
		line[0] = '\0';
	close(fd);
	return sscanf(line, "%63s %d %lu %159[^\n]", ret->name, &pid, &ret->n,
		      ret->text) == 4;
}

static bool well(const struct seen *s)
{
	return !strncmp(s->text, "ok ", 3);
}

static int check(int seconds)
{
	struct seen was[64] = {0}, is;
	struct dirent *de;
	char path[512];
	int n = 0, wrong = 0;
	DIR *d;

	snprintf(path, sizeof(path), "%s/r", dir);
	d = opendir(path);
	while (d && (de = readdir(d)) && n < 64)
		if (de->d_name[0] != '.' && !look(de->d_name, &was[n]))
			snprintf(was[n++].name, 64, "%.63s", de->d_name);
		else if (de->d_name[0] != '.')
			n++;
	for (int i = 0; i < n; i++) {
		memset(&is, 0, sizeof(is));
		for (int k = 0; k < seconds * 20; k++) {
			if (look(was[i].name, &is) && is.n >= was[i].n + 2)
				break;
			usleep(50000);
		}
		if (well(&is) && is.n >= was[i].n + 2)
			continue;
		wrong++;
		printf("%s %s: %lu, %lu: %s\n", was[i].name,
		       well(&is) ? "stands still" : "is unwell", was[i].n, is.n,
		       is.text);
	}
	printf("%d processes\n", n);
	return wrong ? 1 : 0;
}

#endif
