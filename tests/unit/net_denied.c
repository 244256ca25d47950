/* SPDX-License-Identifier: Apache-2.0 */
/* Denied attempts: what is written, what is only counted. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tap.h"
#include "base/clock.h"
#include "net/denied.h"
#include "wire/json.h"

static void on_stop(struct loop *l, struct loop_timer *t)
{
	(void)t;
	loop_stop(l, 0);
}

static unsigned lines_of(int fd, char *text, size_t size)
{
	ssize_t n = pread(fd, text, size - 1, 0);
	unsigned lines = 0;

	text[n > 0 ? n : 0] = '\0';
	for (char *p = text; (p = strchr(p, '\n')); p++)
		lines++;
	return lines;
}

/* One that is half full is filled slowly. */
static void half_full(struct loop *l, int fd, const struct denied_event *ev)
{
	struct loop_timer t = {.fn = on_stop};
	struct denied *d = NULL;
	struct stat st;
	off_t size;

	if (ftruncate(fd, DENIED_MAX / 2) < 0 || lseek(fd, 0, SEEK_END) < 0 ||
	    denied_new(l, fcntl(fd, F_DUPFD_CLOEXEC, 3), &d, NULL) < 0)
		abort();
	for (int i = 0; i < 60; i++)
		denied_add(d, ev);
	fstat(fd, &st);
	ok(st.st_size > DENIED_MAX / 2, "a burst is written still");
	size = st.st_size;
	loop_timer_set(l, &t, clock_ms() + 300);
	loop_run(l, NULL);
	denied_add(d, ev);
	fstat(fd, &st);
	is_int((long long)st.st_size, (long long)size,
	       "but not as many a second as before");
	denied_free(d);
}

int main(void)
{
	const struct netaddr addr = netaddr_v4(htonl(0xc6336401));
	struct denied_event ev = {.name = "x.test",
				  .addr = &addr,
				  .port = 80,
				  .proto = NETPOL_TCP,
				  .why = "port"};
	struct loop_timer t = {.fn = on_stop};
	static char text[1 << 20];
	int fd = memfd_create("denied", MFD_CLOEXEC);
	struct denied *d = NULL;
	uint64_t total = 500;
	struct loop *l = NULL;
	struct err e = {0};
	json_t *o = NULL;
	struct stat st;

	is_int(loop_new(&l, &e), 0, "a loop");
	is_int(denied_new(l, fcntl(fd, F_DUPFD_CLOEXEC, 3), &d, &e), 0, "new");
	for (int i = 0; i < 500; i++)
		denied_add(d, &ev);
	is_int(lines_of(fd, text, sizeof(text)), DENIED_BURST, "a burst");
	is_int((long long)denied_count(d), 500, "all are counted");
	*strchr(text, '\n') = '\0';
	is_int(json_parse(text, strlen(text), &o, &e), 0, "a line");
	is_str(json_str(o, "addr"), "198.51.100.1", "its address");
	is_str(json_str(o, "why"), "port", "and why");
	json_decref(o);
	loop_timer_set(l, &t, clock_ms() + 1500);
	loop_run(l, &e);
	is_int(lines_of(fd, text, sizeof(text)), DENIED_BURST + 1,
	       "the rest is told when all is quiet");
	ok(strstr(text, "\"n\":449}") != NULL, "with how many there were");

	half_full(l, fd, &ev);
	denied_total(d, &total);
	is_int((long long)denied_count(d), 500,
	       "counted on where it is told to");

	/* A file that is full. */
	if (ftruncate(fd, DENIED_MAX - 10) < 0)
		abort();
	denied_file(d, fcntl(fd, F_DUPFD_CLOEXEC, 3));
	ev.more = 7;
	denied_add(d, &ev);
	is_int(fstat(fd, &st), 0, "its size");
	is_int((long long)st.st_size, DENIED_MAX - 10, "stays");
	is_int((long long)denied_count(d), 508, "it is counted yet");
	ev.counted = true;
	denied_add(d, &ev);
	is_int((long long)denied_count(d), 508,
	       "what the kernel counts is not");
	is_int((long long)total, 508, "nor elsewhere");
	denied_free(d);
	loop_free(l);
	fd_close(fd);
	return tap_done();
}
