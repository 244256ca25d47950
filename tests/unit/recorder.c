/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "box/recorder.h"

struct rig {
	char dir[32];
	int dirfd, null_fd, in;
	struct recorder r;
	uint64_t written;
};

/* Byte number p of the test's stream. */
static unsigned char byte_at(uint64_t p)
{
	return (unsigned char)(p * 2654435761U >> 13);
}

static void rig_up(struct rig *g)
{
	int p[2];

	memset(g, 0, sizeof(*g));
	strcpy(g->dir, "/tmp/dsec-rec-XXXXXX");
	if (!mkdtemp(g->dir) || pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0)
		abort();
	fcntl(p[1], F_SETPIPE_SZ, 1 << 20);
	recorder_init(&g->r);
	g->dirfd = open(g->dir, O_DIRECTORY | O_CLOEXEC);
	g->null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	g->in = p[1];
	g->r.src = p[0];
	g->r.dirfd = g->dirfd;
	g->r.null_fd = g->null_fd;
	strcpy(g->r.name, "e0.stdout");
}

static void rig_down(struct rig *g)
{
	fd_close(g->r.src);
	recorder_done(&g->r);
	fd_close(g->in);
	fd_close(g->null_fd);
	fd_close(g->dirfd);
	fd_remove_tree(AT_FDCWD, g->dir, NULL);
}

/* Put the next n bytes of the stream into the source; how many went in. */
static size_t put(struct rig *g, size_t n)
{
	static unsigned char buf[1 << 20];
	ssize_t k;

	for (size_t i = 0; i < n; i++)
		buf[i] = byte_at(g->written + i);
	k = write(g->in, buf, n);
	if (k > 0)
		g->written += (uint64_t)k;
	return k > 0 ? (size_t)k : 0;
}

static bool matches(struct rig *g, uint64_t from, uint64_t to)
{
	static unsigned char buf[65536];
	uint64_t at;
	ssize_t n;

	while (from < to) {
		n = recorder_read(g->dirfd, g->r.name, g->r.bytes, from, buf,
				  sizeof(buf), &at, NULL);
		if (n <= 0 || at != from)
			return false;
		for (ssize_t i = 0; i < n; i++)
			if (buf[i] != byte_at(at + (uint64_t)i))
				return false;
		from += (uint64_t)n;
	}
	return true;
}

static void feed(struct rig *g, uint64_t total)
{
	uint64_t moved;

	while (g->written < total) {
		uint64_t left = total - g->written;

		put(g, left < 1 << 20 ? (size_t)left : 1 << 20);
		recorder_pump(&g->r, UINT64_MAX, &moved);
	}
}

static void check_sizes(void)
{
	static const uint64_t totals[] = {
		0,
		1,
		RECORDER_HEAD,
		RECORDER_HEAD + 5,
		RECORDER_HEAD + RECORDER_TAIL,
		RECORDER_HEAD + RECORDER_TAIL + 12345,
		RECORDER_HEAD + 3 * RECORDER_TAIL + 7,
	};

	for (size_t i = 0; i < array_len(totals); i++) {
		uint64_t t = totals[i], at = 0;
		struct rig g;
		char c;

		rig_up(&g);
		feed(&g, t);
		is_int((long long)g.r.bytes, (long long)t, "all is counted");
		ok(matches(&g, 0, t < RECORDER_HEAD ? t : RECORDER_HEAD),
		   "the head of %llu bytes", (unsigned long long)t);
		if (t > RECORDER_HEAD) {
			uint64_t from = t > RECORDER_HEAD + RECORDER_TAIL
						? t - RECORDER_TAIL
						: RECORDER_HEAD;

			ok(matches(&g, from, t), "the tail of %llu bytes",
			   (unsigned long long)t);
			recorder_read(g.dirfd, g.r.name, t, RECORDER_HEAD, &c,
				      1, &at, NULL);
			is_int((long long)at, (long long)from,
			       "reading goes on behind the gap");
		}
		ok(recorder_truncated(&g.r) ==
			   (t > RECORDER_HEAD + RECORDER_TAIL),
		   "truncated or not");
		if (t == 0)
			ok(faccessat(g.dirfd, g.r.name, F_OK, 0) < 0,
			   "no file without a byte");
		rig_down(&g);
	}
}

static int new_reader(struct rig *g, bool lossy, int size)
{
	int p[2];

	if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0)
		abort();
	fcntl(p[1], F_SETPIPE_SZ, size);
	if (recorder_add(&g->r, &p[1], lossy, 1, NULL) < 0)
		abort();
	return p[0];
}

/* Read what is there; false when a byte is not the one that must come. */
static bool drain(int fd, uint64_t *pos)
{
	static unsigned char buf[65536];
	bool good = true;
	ssize_t n;

	while ((n = read(fd, buf, sizeof(buf))) > 0) {
		for (ssize_t i = 0; i < n; i++)
			good &= buf[i] == byte_at(*pos + (uint64_t)i);
		*pos += (uint64_t)n;
	}
	return good;
}

/* Readers of different appetite, each must get every byte once. */
static void check_readers(void)
{
	uint64_t pos[3] = {0}, moved, total = 6 << 20;
	int fd[3];
	struct rig g;
	bool good = true;
	unsigned seed = 1;

	rig_up(&g);
	fd[0] = new_reader(&g, false, 1 << 20);
	fd[1] = new_reader(&g, false, 4096);
	fd[2] = new_reader(&g, false, 65536);
	while (pos[0] < total || pos[1] < total || pos[2] < total) {
		uint64_t left = total - g.written;

		seed = seed * 1103515245 + 12345;
		if (left)
			put(&g, left < seed >> 14 ? left : seed >> 14);
		recorder_pump(&g.r, UINT64_MAX, &moved);
		for (int i = 0; i < 3; i++)
			if (i == (int)(seed >> 9) % 4 || i == 1)
				good &= drain(fd[i], &pos[i]);
	}
	ok(good, "every reader got every byte once");
	is_int((long long)g.r.bytes, (long long)total, "and so the recording");
	ok(matches(&g, 0, total), "which is right");
	for (int i = 0; i < 3; i++)
		fd_close(fd[i]);
	rig_down(&g);
}

static void check_blocked(void)
{
	uint64_t pos = 0, moved;
	struct rig g;
	int slow, lossy;

	rig_up(&g);
	slow = new_reader(&g, false, 4096);
	put(&g, 100000);
	is_int(recorder_pump(&g.r, UINT64_MAX, &moved), RECORDER_BLOCKED,
	       "a full reader stops the stream");
	ok(moved >= 4096 && moved < 100000, "after what it had room for");
	is_int(recorder_blocker(&g.r), g.r.readers[0].fd, "it is the blocker");
	ok(drain(slow, &pos), "what it got is right");
	recorder_pump(&g.r, UINT64_MAX, &moved);
	ok(moved > 0, "room lets it go on");
	fd_close(slow);
	is_int(recorder_pump(&g.r, UINT64_MAX, &moved), RECORDER_EMPTY,
	       "a gone reader stops nothing");
	is_int(g.r.nreaders, 0, "it is forgotten");
	is_int((long long)g.r.bytes, 100000, "everything is recorded");

	lossy = new_reader(&g, true, 4096);
	put(&g, 100000);
	is_int(recorder_pump(&g.r, UINT64_MAX, &moved), RECORDER_EMPTY,
	       "a lossy reader stops nothing");
	ok(g.r.readers[0].lost > 0, "it loses bytes");
	fd_close(lossy);
	rig_down(&g);
}

/* No room on the disk: the writer must not notice. */
static void check_full(void)
{
	struct rig g;
	int full;

	rig_up(&g);
	full = open("/dev/full", O_WRONLY | O_CLOEXEC);
	if (full < 0) {
		skip("full disk", "no /dev/full");
		rig_down(&g);
		return;
	}
	g.r.head_fd = full;
	feed(&g, 3 << 20);
	is_int((long long)g.r.bytes, 3 << 20, "a full disk: all is counted");
	ok(recorder_truncated(&g.r), "and called truncated");
	is_int((long long)g.r.dropped, 3 << 20, "and dropped");
	rig_down(&g);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	check_sizes();
	check_readers();
	check_blocked();
	check_full();
	return tap_done();
}
