/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/recorder.h"

#define CHUNK (1U << 20) /* a full pipe */

void recorder_init(struct recorder *r)
{
	*r = (struct recorder){
		.src = -1,
		.dirfd = -1,
		.null_fd = -1,
		.head_fd = -1,
		.tail_fd = -1,
	};
}

void recorder_done(struct recorder *r)
{
	for (unsigned i = 0; i < r->nreaders; i++)
		fd_close(r->readers[i].fd);
	free(r->readers);
	if (r->head_fd >= 0)
		fd_close(r->head_fd);
	if (r->tail_fd >= 0)
		fd_close(r->tail_fd);
	recorder_init(r);
}

int recorder_add(struct recorder *r, int *fd, bool lossy, uint64_t id,
		 struct err *e)
{
	struct recorder_reader *p;

	if (r->nreaders >= RECORDER_READERS_MAX)
		return err_set(e, -EBUSY, "busy", "%d readers are attached",
			       RECORDER_READERS_MAX);
	p = realloc(r->readers, (r->nreaders + 1) * sizeof(*p));
	if (!p)
		return err_sys(e, ENOMEM, "attach a reader");
	r->readers = p;
	p[r->nreaders++] = (struct recorder_reader){
		.fd = steal_fd(fd),
		.lossy = lossy,
		.id = id,
	};
	return 0;
}

static void forget(struct recorder *r, unsigned i)
{
	fd_close(r->readers[i].fd);
	r->readers[i] = r->readers[--r->nreaders];
	if (r->nreaders == 0) {
		free(r->readers);
		r->readers = NULL;
	}
}

void recorder_cut(struct recorder *r, int fd)
{
	for (unsigned i = 0; i < r->nreaders; i++)
		if (r->readers[i].fd == fd) {
			forget(r, i);
			return;
		}
}

bool recorder_truncated(const struct recorder *r)
{
	return r->dropped > 0 || r->bytes > RECORDER_HEAD + RECORDER_TAIL;
}

static int open_file(struct recorder *r, bool tail)
{
	int *fd = tail ? &r->tail_fd : &r->head_fd;
	char name[64];

	if (*fd >= 0)
		return 0;
	if (r->dirfd < 0)
		return -EBADF;
	snprintf(name, sizeof(name), "%s%s", r->name, tail ? ".tail" : "");
	*fd = openat(r->dirfd, name,
		     O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	return *fd < 0 ? -errno : 0;
}

/* Where the next byte goes: the file, its offset, and the room up to its end.*/
static int place(struct recorder *r, int *ret_fd, loff_t *ret_off,
		 uint64_t *ret_room)
{
	bool tail = r->bytes >= RECORDER_HEAD;
	int err;

	if (r->dropped > 0)
		return -ENOSPC;
	err = open_file(r, tail);
	if (err < 0)
		return err;
	if (!tail) {
		*ret_fd = r->head_fd;
		*ret_off = (loff_t)r->bytes;
		*ret_room = RECORDER_HEAD - r->bytes;
		return 0;
	}
	*ret_fd = r->tail_fd;
	*ret_off = (loff_t)((r->bytes - RECORDER_HEAD) % RECORDER_TAIL);
	*ret_room = RECORDER_TAIL - (uint64_t)*ret_off;
	return 0;
}

/* Take bytes off the source, to the files or to nowhere; -errno or how many. */
static ssize_t sink_once(struct recorder *r, uint64_t len)
{
	ssize_t n = -1;
	uint64_t room;
	loff_t off;
	int fd;

	if (place(r, &fd, &off, &room) == 0) {
		n = splice(r->src, NULL, fd, &off, len < room ? len : room,
			   SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return -errno;
		if (n >= 0) {
			r->bytes += (uint64_t)n;
			return n;
		}
	}
	/* Not recorded any more, from here on: a hole would read as data. */
	n = splice(r->src, NULL, r->null_fd, NULL, len,
		   SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
	if (n < 0)
		return -errno;
	r->bytes += (uint64_t)n;
	r->dropped += (uint64_t)n;
	return n;
}

static uint64_t sink(struct recorder *r, uint64_t len)
{
	uint64_t done = 0;
	ssize_t n;

	while (done < len) {
		n = sink_once(r, len - done);
		if (n == -EINTR)
			continue;
		if (n <= 0)
			break;
		done += (uint64_t)n;
	}
	return done;
}

/*
 * Give the head of the source to every reader that does not have it.  Each
 * gets at most *len bytes; afterwards *len is what all that count have.
 */
static void share(struct recorder *r, uint64_t *len)
{
	struct recorder_reader *p;
	uint64_t want = *len, take = *len;
	ssize_t n;

	if (!r->readers)
		return;
	for (unsigned i = 0; i < r->nreaders; i++) {
		p = &r->readers[i];
		if (p->ahead && p->ahead < want)
			want = p->ahead;
	}
	take = want;
	for (unsigned i = 0; r->readers && i < r->nreaders;) {
		p = &r->readers[i];
		if (p->ahead) {
			i++;
			continue;
		}
		do
			n = tee(r->src, p->fd, want, SPLICE_F_NONBLOCK);
		while (n < 0 && errno == EINTR);
		if (n < 0 && errno != EAGAIN) {
			forget(r, i);
			continue;
		}
		p->ahead = n > 0 ? (uint64_t)n : 0;
		if (!p->lossy && p->ahead < take)
			take = p->ahead;
		i++;
	}
	*len = take;
}

static void settle(struct recorder *r, uint64_t taken)
{
	struct recorder_reader *p;

	if (!r->readers)
		return;
	for (unsigned i = 0; i < r->nreaders; i++) {
		p = &r->readers[i];
		if (p->ahead >= taken) {
			p->ahead -= taken;
			continue;
		}
		p->lost += taken - p->ahead;
		p->ahead = 0;
	}
}

enum recorder_state recorder_pump(struct recorder *r, uint64_t max,
				  uint64_t *ret_moved)
{
	uint64_t moved = 0, len, taken;
	int avail;

	while (moved < max) {
		*ret_moved = moved;
		if (ioctl(r->src, FIONREAD, &avail) < 0 || avail <= 0)
			return RECORDER_EMPTY;
		len = max - moved < CHUNK ? max - moved : CHUNK;
		if (len > (uint64_t)avail)
			len = (uint64_t)avail;
		share(r, &len);
		if (len == 0)
			return RECORDER_BLOCKED;
		taken = sink(r, len);
		settle(r, taken);
		moved += taken;
		if (taken == 0)
			break;
	}
	*ret_moved = moved;
	return RECORDER_MORE;
}

int recorder_blocker(const struct recorder *r)
{
	for (unsigned i = 0; i < r->nreaders; i++)
		if (!r->readers[i].lossy && r->readers[i].ahead == 0)
			return r->readers[i].fd;
	return -1;
}

/* The first position at or after offset that the files hold. */
static uint64_t kept_from(uint64_t bytes, uint64_t offset)
{
	uint64_t gap_end;

	if (offset < RECORDER_HEAD || bytes <= RECORDER_HEAD + RECORDER_TAIL)
		return offset;
	gap_end = bytes - RECORDER_TAIL;
	return offset < gap_end ? gap_end : offset;
}

ssize_t recorder_read(int dirfd, const char *name, uint64_t bytes,
		      uint64_t offset, void *buf, size_t size,
		      uint64_t *ret_offset, struct err *e)
{
	auto_close int fd = -1;
	char file[64];
	uint64_t at, room, left;
	ssize_t n;

	offset = kept_from(bytes, offset);
	*ret_offset = offset;
	if (offset >= bytes)
		return 0;
	left = bytes - offset;
	at = offset;
	room = RECORDER_HEAD - offset;
	if (offset >= RECORDER_HEAD) {
		at = (offset - RECORDER_HEAD) % RECORDER_TAIL;
		room = RECORDER_TAIL - at;
	}
	snprintf(file, sizeof(file), "%s%s", name,
		 offset >= RECORDER_HEAD ? ".tail" : "");
	fd = openat(dirfd, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd < 0)
		return err_sys(e, errno, "open recording '%s'", file);
	if (room < left)
		left = room;
	n = pread(fd, buf, size < left ? size : left, (off_t)at);
	return n < 0 ? err_sys(e, errno, "read recording '%s'", file) : n;
}
