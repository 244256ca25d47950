/* SPDX-License-Identifier: Apache-2.0 */
#include <asm/unistd.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "sys/raw.h"

/*
 * Two questions that the checkpoint engine asks the kernel are answered here
 * where the kernel does not, and one process is made as ours are.  This takes
 * the place of the C library's syscall() in the engine, which is how it asks
 * them.
 *
 * It asks for the limits of each process with prlimit64(), which the kernel
 * refuses for one of another user unless the caller has CAP_SYS_RESOURCE in
 * that process's user namespace.  In a container root may not have it.  The
 * same numbers are in /proc/PID/limits, for all to read.
 *
 * What inotify watches it knows by a file handle, and opens that to learn the
 * name.  An overlay without an index shows handles and opens none.  Whoever
 * starts the engine may have found the names: they are in the file that
 * DSEC_ENGINE_WATCHES names, a line each of the handle's type, its bytes in hex
 * and the path below its mount.
 *
 * It makes a user namespace as root, and so every namespace would be charged to
 * root for what is watched and made inside, against one limit for all.  The uid
 * in DSEC_ENGINE_OWNER is to be the owner, as of those that a launch makes.
 *
 * No C library but for the address of errno: it is loaded beside the engine's
 * own, whatever version that is.
 */

#define EXPORT __attribute__((visibility("default")))

/* A text of 16 lines of about 80 characters. */
#define LIMITS_MAX 4096

/* /proc/PID/limits: the name fills 25 columns and a blank. */
#define NAME_COLUMNS 26

extern int *__errno_location(void);
EXPORT long syscall(long nr, long a, long b, long c, long d, long e, long f);

/* In the order of RLIMIT_*. */
static const char names[RLIM_NLIMITS][NAME_COLUMNS] = {
	[RLIMIT_CPU] = "Max cpu time",
	[RLIMIT_FSIZE] = "Max file size",
	[RLIMIT_DATA] = "Max data size",
	[RLIMIT_STACK] = "Max stack size",
	[RLIMIT_CORE] = "Max core file size",
	[RLIMIT_RSS] = "Max resident set",
	[RLIMIT_NPROC] = "Max processes",
	[RLIMIT_NOFILE] = "Max open files",
	[RLIMIT_MEMLOCK] = "Max locked memory",
	[RLIMIT_AS] = "Max address space",
	[RLIMIT_LOCKS] = "Max file locks",
	[RLIMIT_SIGPENDING] = "Max pending signals",
	[RLIMIT_MSGQUEUE] = "Max msgqueue size",
	[RLIMIT_NICE] = "Max nice priority",
	[RLIMIT_RTPRIO] = "Max realtime priority",
	[RLIMIT_RTTIME] = "Max realtime timeout",
};

static char *add_number(char *at, unsigned long n)
{
	char digits[20];
	int len = 0;

	do
		digits[len++] = (char)('0' + n % 10);
	while ((n /= 10));
	while (len)
		*at++ = digits[--len];
	return at;
}

static char *add_text(char *at, const char *text)
{
	while (*text)
		*at++ = *text++;
	return at;
}

/* The text in ${text}, NUL-terminated, or false. */
static bool read_limits(long pid, char *text, size_t size)
{
	char path[64], *at = path;
	size_t len = 0;
	long fd, n;

	at = add_text(at, "/proc/");
	at = add_number(at, (unsigned long)pid);
	at = add_text(at, "/limits");
	*at = '\0';
	fd = raw_call6(__NR_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC,
		       0, 0, 0);
	if (fd < 0)
		return false;
	do {
		n = raw_call6(__NR_read, fd, (long)text + (long)len,
			      (long)(size - 1 - len), 0, 0, 0);
		len += n > 0 ? (size_t)n : 0;
	} while (n > 0 && len < size - 1);
	raw_call6(__NR_close, fd, 0, 0, 0, 0, 0);
	text[len] = '\0';
	return n == 0;
}

static bool begins(const char *text, const char *with)
{
	while (*with)
		if (*text++ != *with++)
			return false;
	return true;
}

/* A number or "unlimited" after blanks; NULL if there is neither. */
static const char *take(const char *at, rlim_t *ret)
{
	rlim_t n = 0;

	while (*at == ' ')
		at++;
	if (begins(at, "unlimited")) {
		*ret = RLIM_INFINITY;
		return at + sizeof("unlimited") - 1;
	}
	if (*at < '0' || *at > '9')
		return NULL;
	for (; *at >= '0' && *at <= '9'; at++)
		n = n * 10 + (rlim_t)(*at - '0');
	*ret = n;
	return at;
}

/* The line of ${name}: it begins with it, followed by blanks. */
static bool find_limit(const char *text, const char *name, struct rlimit64 *ret)
{
	size_t len = 0;
	rlim_t cur, max;

	while (name[len])
		len++;
	while (*text && !(begins(text, name) && text[len] == ' ')) {
		while (*text && *text != '\n')
			text++;
		text += *text == '\n';
	}
	for (int i = 0; i < NAME_COLUMNS; i++)
		if (!*text++)
			return false;
	text = take(text, &cur);
	if (!text || !take(text, &max))
		return false;
	ret->rlim_cur = cur;
	ret->rlim_max = max;
	return true;
}

extern char **environ;

/* As the kernel has it. */
struct handle {
	uint32_t bytes;
	int32_t type;
	unsigned char data[128];
};

static const char *watches_path(void)
{
	static const char key[] = "DSEC_ENGINE_WATCHES=";

	for (char **e = environ; e && *e; e++)
		if (begins(*e, key))
			return *e + sizeof(key) - 1;
	return NULL;
}

/* The file, which is never unmapped; its length in *${len}. */
static const char *watches(size_t *len)
{
	static const char *text;
	static size_t size;
	const char *path = text ? NULL : watches_path();
	long fd, end = 0, at;

	if (path) {
		fd = raw_call6(__NR_openat, AT_FDCWD, (long)path,
			       O_RDONLY | O_CLOEXEC, 0, 0, 0);
		if (fd >= 0)
			end = raw_call6(__NR_lseek, fd, 0, 2, 0, 0, 0);
		at = end > 0 ? raw_call6(__NR_mmap, 0, end, PROT_READ,
					 MAP_PRIVATE, fd, 0)
			     : 0;
		if (fd >= 0)
			raw_call6(__NR_close, fd, 0, 0, 0, 0, 0);
		if (at > 0) {
			text = (const char *)at;
			size = (size_t)end;
		}
	}
	*len = size;
	return text;
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "248 00fb1d.. srv/w": the path, where the line is about ${h}; it ends where
 * the line does. */
static const char *line_is(const char *at, const char *end,
			   const struct handle *h)
{
	int32_t type = 0;

	for (; at < end && *at >= '0' && *at <= '9'; at++)
		type = type * 10 + (*at - '0');
	if (type != h->type || at == end || *at++ != ' ')
		return NULL;
	for (uint32_t i = 0; i < h->bytes; i++, at += 2)
		if (end - at < 2 || hex(at[0]) * 16 + hex(at[1]) != h->data[i])
			return NULL;
	return at < end && *at == ' ' ? at + 1 : NULL;
}

/* Asked in the order of the lines, mostly: the search goes on where it was. */
static bool find_watch(const struct handle *h, char *path, size_t size)
{
	static size_t cursor;
	const char *text, *name;
	size_t len, end, n;

	text = watches(&len);
	for (int round = 0; text && round < 2; round++, cursor = 0)
		for (; cursor < len; cursor = end + 1) {
			for (end = cursor; end < len && text[end] != '\n';)
				end++;
			name = line_is(text + cursor, text + end, h);
			n = name ? (size_t)(text + end - name) : 0;
			if (!name || n >= size)
				continue;
			for (size_t i = 0; i < n; i++)
				path[i] = name[i];
			path[n] = '\0';
			return true;
		}
	return false;
}

static long open_watch(long mount, const struct handle *h, long flags)
{
	char path[4096];

	if (h->bytes > sizeof(h->data) || !find_watch(h, path, sizeof(path)))
		return -ESTALE;
	return raw_call6(__NR_openat, mount, (long)path, flags | O_NOFOLLOW, 0,
			 0, 0);
}

/* The uid to own a user namespace; -1: whoever we are. */
static long owner(void)
{
	static const char key[] = "DSEC_ENGINE_OWNER=";
	long uid = -1;

	for (char **e = environ; e && *e; e++)
		if (begins(*e, key)) {
			uid = 0;
			for (const char *p = *e + sizeof(key) - 1; *p; p++)
				uid = uid * 10 + (*p - '0');
		}
	return uid;
}

/* The owner is the effective uid of whoever clones; its capabilities stay.  A
 * change of that makes us unreadable, and the child could not open files of its
 * own in /proc. */
static long clone_owned(long args, long size)
{
	long uid = owner(), r;

	if (uid < 0)
		return raw_call6(__NR_clone3, args, size, 0, 0, 0, 0);
	raw_call6(__NR_prctl, PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0,
		  0, 0);
	raw_call6(__NR_setresuid, -1, uid, -1, 0, 0, 0);
	raw_call6(__NR_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0, 0);
	r = raw_call6(__NR_clone3, args, size, 0, 0, 0, 0);
	if (r == 0)
		return 0;
	raw_call6(__NR_setresuid, -1, 0, -1, 0, 0, 0);
	raw_call6(__NR_prctl, PR_SET_SECUREBITS, 0, 0, 0, 0, 0);
	raw_call6(__NR_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0, 0);
	return r;
}

static bool makes_userns(long nr, long args)
{
	return nr == __NR_clone3 && args &&
	       ((const struct clone_args *)(uintptr_t)args)->flags &
		       CLONE_NEWUSER;
}

EXPORT long syscall(long nr, long a, long b, long c, long d, long e, long f)
{
	char text[LIMITS_MAX];
	long r = makes_userns(nr, a) ? clone_owned(a, b)
				     : raw_call6(nr, a, b, c, d, e, f);

	if (nr == __NR_prlimit64 && r == -EPERM && a > 0 && b >= 0 &&
	    b < (long)RLIM_NLIMITS && !c && d &&
	    read_limits(a, text, sizeof(text)) &&
	    find_limit(text, names[b], (struct rlimit64 *)(uintptr_t)d))
		r = 0;
	if (nr == __NR_open_by_handle_at && r < 0 && b)
		r = open_watch(a, (const struct handle *)(uintptr_t)b, c);
	if (r < 0 && r > -4096) {
		*__errno_location() = (int)-r;
		return -1;
	}
	return r;
}
