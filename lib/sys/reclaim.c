/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/sig.h"
#include "sys/cgroup_priv.h"
#include "sys/reclaim.h"

#define TIMEOUT_MS  60000
#define SMAPS_MAX   (256 * 1024 * 1024)
#define CHUNK	    ((uint64_t)64 * 1024 * 1024)
#define ROUNDS_IDLE 3 /* without a page less: that was all */

/*
 * What pushes out or reads in blocks in the kernel, for as long as the disk
 * takes, and nothing but a signal ends it.  So it runs in a child that can be
 * killed, and what it did is measured from here.
 */
struct work {
	const struct cgroup_root *root;
	const char *id;
	bool swap;
	uint64_t *done; /* shared: bytes asked for so far */
};
typedef void work_fn(const struct work *w);

static int wait_for(pid_t pid, int pidfd, const struct reclaim_opts *opts,
		    bool *ret_cut)
{
	uint64_t now = clock_ms(), until;
	struct pollfd p[] = {{.fd = pidfd, .events = POLLIN},
			     {.fd = opts->stop, .events = POLLIN}};
	int n = 0;

	until = now + (opts->timeout_ms ? opts->timeout_ms : TIMEOUT_MS);
	while (now < until && !p[0].revents && !p[1].revents) {
		n = poll(p, 2, (int)(until - now));
		if (n < 0 && errno != EINTR)
			break;
		now = clock_ms();
	}
	*ret_cut = !p[0].revents;
	if (*ret_cut)
		kill(pid, SIGKILL);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	return 0;
}

static int run(work_fn *fn, const struct work *w,
	       const struct reclaim_opts *opts, bool *ret_cut, struct err *e)
{
	auto_close int pidfd = -1;
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		return err_sys(e, errno, "fork");
	if (pid == 0) {
		sig_reset();
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() == parent)
			fn(w);
		_exit(0);
	}
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		return err_sys(e, errno, "watch a process");
	}
	return wait_for(pid, pidfd, opts, ret_cut);
}

/* --- memory of processes ------------------------------------------------- */

struct area {
	uint64_t start, end, swap_bytes;
};

/*
 * The next area of /proc/PID/smaps, which begins with "START-END rwxp ..", its
 * numbers following.  False: that was the last.
 */
static bool next_area(char **p, struct area *ret)
{
	struct area a = {0};
	char *line = *p, *end;
	bool found = false;

	for (; line && *line; line = end) {
		uint64_t from = strtoull(line, &end, 16);

		if (end > line && *end == '-') {
			if (found)
				break;
			a.start = from;
			a.end = strtoull(end + 1, NULL, 16);
			found = true;
		} else if (found && !strncmp(line, "Swap:", 5)) {
			a.swap_bytes = strtoull(line + 5, NULL, 10) * 1024;
		}
		end = strchr(line, '\n');
		if (!end)
			break;
		end++;
	}
	*p = line;
	*ret = a;
	return found;
}

static void advise(const struct work *w, int pidfd, const struct area *a,
		   int advice)
{
	struct iovec v;

	for (uint64_t at = a->start, n; at < a->end; at += n) {
		n = a->end - at < CHUNK ? a->end - at : CHUNK;
		v.iov_base = (void *)(uintptr_t)at;
		v.iov_len = n;
		/* Some areas cannot be, such as the kernel's own: so what. */
		if (syscall(SYS_process_madvise, pidfd, &v, 1, advice, 0) < 0 &&
		    errno == ESRCH)
			return;
		*w->done += n;
	}
}

static void advise_process(const struct work *w, pid_t pid, int pidfd,
			   int advice)
{
	auto_free char *text = NULL;
	struct area a;
	char path[64], *p;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid,
		 advice == MADV_WILLNEED ? "smaps" : "maps");
	if (fd_read_file(AT_FDCWD, path, SMAPS_MAX, &text, NULL, NULL) < 0)
		return;
	p = text;
	while (next_area(&p, &a))
		if (advice != MADV_WILLNEED || a.swap_bytes > 0)
			advise(w, pidfd, &a, advice);
}

/* A number that was read may be another process by now: it is of the sandbox if
 * it is in the list still when there is a descriptor for it. */
static bool is_member(const struct work *w, pid_t pid)
{
	auto_free pid_t *again = NULL;
	size_t n;

	if (cgroup_pids(w->root, w->id, NULL, &again, &n, NULL) < 0)
		return false;
	for (size_t i = 0; i < n; i++)
		if (again[i] == pid)
			return true;
	return false;
}

static void advise_all(const struct work *w, int advice)
{
	auto_free pid_t *pid = NULL;
	size_t n;
	int fd;

	if (cgroup_pids(w->root, w->id, NULL, &pid, &n, NULL) < 0)
		return;
	for (size_t i = 0; i < n; i++) {
		fd = (int)syscall(SYS_pidfd_open, pid[i], 0);
		if (fd < 0)
			continue;
		if (is_member(w, pid[i]))
			advise_process(w, pid[i], fd, advice);
		fd_close(fd);
	}
}

/* --- out ----------------------------------------------------------------- */

static bool is_v2(const struct work *w)
{
	return cgroup_mode(w->root) == CGROUP_V2;
}

static uint64_t charged(const struct work *w)
{
	uint64_t n;

	return cgroup_get(w->root->memory, w->id,
			  is_v2(w) ? "memory.current" : "memory.usage_in_bytes",
			  NULL, &n, NULL) < 0
		       ? 0
		       : n;
}

/* Until asking again frees nothing more: pages that were written to a disk are
 * freed only by whoever comes for them again. */
static void ask_kernel(const struct work *w)
{
	uint64_t was = charged(w), is;
	int idle = 0;

	while (was > 0 && idle < ROUNDS_IDLE) {
		if (is_v2(w))
			cgroup_set(w->root->memory, w->id, "memory.reclaim",
				   was < CHUNK ? was : CHUNK, NULL);
		else
			cgroup_set(w->root->memory, w->id, "memory.force_empty",
				   0, NULL);
		is = charged(w);
		idle = is < was ? 0 : idle + 1;
		was = is;
	}
}

/*
 * By the processes' own areas first where the kernel's other way is slow; it
 * leaves out what several share, which the other way takes.
 */
static void push_out(const struct work *w)
{
	if (w->swap && !is_v2(w))
		advise_all(w, MADV_PAGEOUT);
	ask_kernel(w);
}

static void read_in(const struct work *w)
{
	advise_all(w, MADV_WILLNEED);
}

/* --- how much ------------------------------------------------------------ */

static int stat_of(const struct work *w, const char *key, uint64_t *ret,
		   struct err *e)
{
	return cgroup_get(w->root->memory, w->id, "memory.stat", key, ret, e);
}

/* What is in swap: v1 counts it only where swap is limited as well. */
static int swapped(const struct work *w, uint64_t *ret, struct err *e)
{
	struct reclaim_pss pss;
	int r;

	r = is_v2(w) ? cgroup_get(w->root->memory, w->id, "memory.swap.current",
				  NULL, ret, NULL)
		     : stat_of(w, "total_swap", ret, NULL);
	if (r == 0)
		return 0;
	r = reclaim_pss(w->root, w->id, &pss, e);
	if (r == 0)
		*ret = pss.swap_bytes;
	return r;
}

static int measure(const struct work *w, struct reclaim_done *d, struct err *e)
{
	uint64_t active = 0, inactive = 0;
	int r;

	d->after_bytes = charged(w);
	d->freed_bytes = d->before_bytes > d->after_bytes
				 ? d->before_bytes - d->after_bytes
				 : 0;
	r = stat_of(w, is_v2(w) ? "active_anon" : "total_active_anon", &active,
		    e);
	if (r == 0)
		r = stat_of(w,
			    is_v2(w) ? "inactive_anon" : "total_inactive_anon",
			    &inactive, e);
	d->anon_left_bytes = active + inactive;
	return r < 0 ? r : swapped(w, &d->swapped_bytes, e);
}

static int with_counter(work_fn *fn, struct work *w,
			const struct reclaim_opts *opts, bool *ret_cut,
			uint64_t *ret_bytes, struct err *e)
{
	size_t len = (size_t)sysconf(_SC_PAGESIZE);
	void *page = mmap(NULL, len, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int r;

	if (page == MAP_FAILED)
		return err_sys(e, errno, "a page to count in");
	w->done = page;
	r = run(fn, w, opts, ret_cut, e);
	*ret_bytes = *w->done;
	munmap(page, len);
	return r;
}

int reclaim_memory(const struct cgroup_root *root, const char *id,
		   const struct reclaim_opts *opts,
		   struct reclaim_done *ret_done, struct err *e)
{
	struct work w = {.root = root, .id = id};
	struct reclaim_done d = {0};
	struct reclaim_node node;
	uint64_t asked;
	int r;

	/* That it is there, and the numbers can be read. */
	r = measure(&w, &d, e);
	if (r == 0)
		r = reclaim_node(&node, e);
	if (r == 0)
		r = cgroup_swap_allow(root, id, true, e);
	if (r < 0)
		return r;
	d.before_bytes = d.after_bytes;
	d.swap = w.swap = node.swap_total_bytes > 0;
	r = with_counter(push_out, &w, opts, &d.cut, &asked, e);
	if (r == 0)
		r = measure(&w, &d, e);
	if (r == 0)
		*ret_done = d;
	return r;
}

int reclaim_prefetch(const struct cgroup_root *root, const char *id,
		     const struct reclaim_opts *opts, uint64_t *ret_bytes,
		     struct err *e)
{
	struct work w = {.root = root, .id = id};
	struct reclaim_done d = {0};
	bool cut;
	int r;

	r = measure(&w, &d, e);
	if (r < 0)
		return r;
	*ret_bytes = 0;
	if (d.swapped_bytes == 0)
		return 0;
	return with_counter(read_in, &w, opts, &cut, ret_bytes, e);
}
