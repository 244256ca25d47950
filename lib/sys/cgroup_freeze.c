/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "sys/cgroup_priv.h"

/*
 * Mostly it is so within some 50 us.  The kernel rate-limits its notifications
 * to one in 10 ms and v1 has none, so what is waited for is slices of time,
 * which grow.  To yield instead of the first would put us behind all who run.
 */
#define SLICE_MIN_NS 60000
#define SLICE_MAX_NS 16000000

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

struct cgroup_wait cgroup_wait_for(unsigned timeout_ms)
{
	uint64_t now = now_ns();

	return (struct cgroup_wait){
		.until_ns = now + (uint64_t)timeout_ms * 1000000,
		.slice_ns = SLICE_MIN_NS,
	};
}

bool cgroup_wait_more(struct cgroup_wait *w, int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLPRI};
	uint64_t now = now_ns();
	struct timespec t = {.tv_nsec = w->slice_ns};

	if (now >= w->until_ns)
		return false;
	if (w->until_ns - now < (uint64_t)w->slice_ns)
		t.tv_nsec = (long)(w->until_ns - now);
	ppoll(&p, 1, &t, NULL);
	if (w->slice_ns < SLICE_MAX_NS)
		w->slice_ns *= 2;
	return true;
}

/*
 * Wait until ${key} is ${value} in an open cgroup.events.  1, 0 when the time
 * is over, or -errno.
 */
static int wait_events(int fd, const char *key, uint64_t value,
		       unsigned timeout_ms, struct err *e)
{
	struct cgroup_wait w = cgroup_wait_for(timeout_ms);
	char text[256];
	uint64_t now;
	ssize_t n;

	do {
		n = pread(fd, text, sizeof(text) - 1, 0);
		if (n < 0)
			return err_sys(e, errno, "read cgroup.events");
		text[n] = '\0';
		if (cgroup_key(text, key, &now) && now == value)
			return 1;
	} while (cgroup_wait_more(&w, fd));
	return 0;
}

static int open_file(const struct cgroup_root *root, const char *dir,
		     const char *file, int flags, struct err *e)
{
	char path[CGROUP_PATH_MAX + 16];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	fd = openat(root->tree[0], path, flags | O_CLOEXEC);
	return fd >= 0 ? fd : err_sys(e, errno, "open '%s'", path);
}

int cgroup_wait_event(const struct cgroup_root *root, const char *dir,
		      const char *key, uint64_t value, unsigned timeout_ms,
		      struct err *e)
{
	auto_close int fd = -1;

	fd = open_file(root, dir, "cgroup.events", O_RDONLY, e);
	return fd < 0 ? fd : wait_events(fd, key, value, timeout_ms, e);
}

static const char *const v1_words[] = {"THAWED", "FROZEN"};

/* 1 when an open freezer.state is as it should be in time, else 0. */
static int wait_v1(int fd, bool on, unsigned timeout_ms, struct err *e)
{
	struct cgroup_wait w = cgroup_wait_for(timeout_ms);
	size_t len = strlen(v1_words[on]);
	char text[32];
	ssize_t n;

	do {
		n = pread(fd, text, sizeof(text) - 1, 0);
		if (n < 0)
			return err_sys(e, errno, "read freezer.state");
		if ((size_t)n > len && !memcmp(text, v1_words[on], len) &&
		    text[len] == '\n')
			return 1;
	} while (cgroup_wait_more(&w, -1));
	return 0;
}

static int open_dir(const struct cgroup_root *root, const char *dir,
		    struct cgroup_freezer *ret, struct err *e)
{
	bool v1 = root->mode == CGROUP_V1;
	struct cgroup_freezer f = {.state = -1, .v1 = v1};

	f.file = open_file(root, dir, v1 ? "freezer.state" : "cgroup.freeze",
			   v1 ? O_RDWR : O_WRONLY, e);
	if (f.file < 0)
		return f.file;
	if (!v1)
		f.state = open_file(root, dir, "cgroup.events", O_RDONLY, e);
	if (!v1 && f.state < 0) {
		fd_close(f.file);
		return f.state;
	}
	*ret = f;
	return 0;
}

/* Freeze or thaw; 1 when it is so in time, else 0. */
static int set(const struct cgroup_freezer *f, bool on, unsigned timeout_ms,
	       struct err *e)
{
	const char *text = f->v1 ? v1_words[on] : on ? "1" : "0";
	ssize_t n;

	do
		n = pwrite(f->file, text, strlen(text), 0);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_sys(e, errno, "write '%s' to a cgroup's freezer",
			       text);
	if (f->v1)
		return wait_v1(f->file, on, timeout_ms, e);
	return wait_events(f->state, "frozen", on, timeout_ms, e);
}

int cgroup_freeze_dir(const struct cgroup_root *root, const char *dir, bool on,
		      unsigned timeout_ms, struct err *e)
{
	struct cgroup_freezer f;
	int r;

	r = open_dir(root, dir, &f, e);
	if (r < 0)
		return r;
	r = set(&f, on, timeout_ms, e);
	cgroup_freezer_done(&f);
	return r;
}

static int did_not(bool on, const char *what, unsigned timeout_ms,
		   struct err *e)
{
	return err_set(e, -ETIMEDOUT, "timeout",
		       "the %s did not %s within %u ms%s", what,
		       on ? "freeze" : "thaw", timeout_ms,
		       on ? " and was thawed again" : "");
}

int cgroup_freezer_open(const struct cgroup_root *root, const char *id,
			struct cgroup_freezer *ret_freezer, struct err *e)
{
	char dir[CGROUP_PATH_MAX];
	int r;

	r = cgroup_path(dir, id, NULL, NULL, e);
	return r < 0 ? r : open_dir(root, dir, ret_freezer, e);
}

int cgroup_freezer_set(const struct cgroup_freezer *f, bool on,
		       unsigned timeout_ms, struct err *e)
{
	int r = set(f, on, timeout_ms, e);

	if (r != 0)
		return r < 0 ? r : 0;
	if (on)
		(void)!set(f, false, 0, NULL);
	return did_not(on, "sandbox", timeout_ms, e);
}

void cgroup_freezer_done(struct cgroup_freezer *f)
{
	if (f->file >= 0)
		fd_close(f->file);
	if (f->state >= 0)
		fd_close(f->state);
	f->file = f->state = -1;
}

int cgroup_freeze(const struct cgroup_root *root, const char *id, bool on,
		  unsigned timeout_ms, struct err *e)
{
	struct cgroup_freezer f;
	int r;

	r = cgroup_freezer_open(root, id, &f, e);
	if (r < 0)
		return r;
	r = cgroup_freezer_set(&f, on, timeout_ms, e);
	cgroup_freezer_done(&f);
	return r;
}

int cgroup_leaf_freeze(const struct cgroup_root *root, const char *id,
		       const char *leaf, bool on, unsigned timeout_ms,
		       struct err *e)
{
	char dir[CGROUP_PATH_MAX];
	int r;

	r = cgroup_path(dir, id, leaf, NULL, e);
	if (r == 0)
		r = cgroup_freeze_dir(root, dir, on, timeout_ms, e);
	if (r != 0 || timeout_ms == 0)
		return r < 0 ? r : 0;
	if (on)
		cgroup_freeze_dir(root, dir, false, 0, NULL);
	return did_not(on, "command", timeout_ms, e);
}

int cgroup_is_frozen(const struct cgroup_root *root, const char *id,
		     const char *leaf, struct err *e)
{
	auto_close int fd = -1;
	char dir[CGROUP_PATH_MAX];
	int r;

	r = cgroup_path(dir, id, leaf, NULL, e);
	if (r < 0)
		return r;
	if (root->mode != CGROUP_V1)
		return cgroup_wait_event(root, dir, "frozen", 1, 0, e);
	fd = open_file(root, dir, "freezer.state", O_RDONLY, e);
	return fd < 0 ? fd : wait_v1(fd, true, 0, e);
}
