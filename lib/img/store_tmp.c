/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of builders under tmp/.  This file needs no libcrypto. */
#include <assert.h>
#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "img/store_priv.h"

/*
 * Names say whose they are, so that a directory has an owner from the moment it
 * is there: HOST.PID.START.WHERE.RANDOM.  WHERE is a digest of the boot and the
 * namespaces: where it is ours, the process can be looked for.
 */

/* Letters that every file system takes. */
static void host_name(char *buf, size_t size)
{
	size_t n;

	if (gethostname(buf, size) < 0)
		buf[0] = '\0';
	buf[size - 1] = '\0';
	for (n = 0; buf[n]; n++)
		if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789-", buf[n]))
			buf[n] = '-';
	if (n == 0)
		snprintf(buf, size, "host");
}

static uint64_t fnv(uint64_t h, const char *s, size_t len)
{
	for (size_t i = 0; i < len; i++)
		h = (h ^ (uint8_t)s[i]) * 0x100000001b3;
	return h;
}

/* 0: not known. */
static uint64_t where(void)
{
	/* times of processes are told by the clock of a namespace */
	static const char *const spaces[] = {"/proc/self/ns/pid",
					     "/proc/self/ns/time"};
	uint64_t h = 0xcbf29ce484222325;
	auto_free char *boot = NULL;
	char text[64];
	size_t len;
	ssize_t n;

	if (fd_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 256,
			 &boot, &len, NULL) < 0)
		return 0;
	h = fnv(h, boot, len);
	for (size_t i = 0; i < array_len(spaces); i++) {
		n = readlink(spaces[i], text, sizeof(text));
		if (n < 0)
			return 0;
		h = fnv(h, text, (size_t)n);
	}
	return h >> 16;
}

/* When ${pid} began, in ticks of the clock after the boot; -1: there is none,
 * 0: not known. */
static long long started(long long pid)
{
	auto_free char *text = NULL;
	char path[64], *p;
	size_t len;
	int r;

	snprintf(path, sizeof(path), "/proc/%lld/stat", pid);
	r = fd_read_file(AT_FDCWD, path, 4096, &text, &len, NULL);
	if (r < 0)
		return 0;
	/* the name may hold anything; field 22 is the 20th behind it */
	p = strrchr(text, ')');
	for (int i = 0; p && i < 20; i++)
		p = strchr(p + 1, ' ');
	return p ? strtoll(p, NULL, 10) : 0;
}

int store_tmp_name(char *name, struct err *e)
{
	long long start = started(getpid());
	char host[17];
	uint32_t x;
	int len;

	if (getrandom(&x, sizeof(x), 0) != sizeof(x))
		return err_sys(e, errno, "random");
	host_name(host, sizeof(host));
	len = snprintf(name, STORE_TMP_NAME, "%s.%d.%llx.%012llx.%08x", host,
		       (int)getpid(), start > 0 ? start : 0,
		       (unsigned long long)where(), x);
	assert(len < STORE_TMP_NAME);
	return 0;
}

bool store_orphan(const char *name)
{
	unsigned long long start, at;
	const char *dot = strchr(name, '.');
	long long pid, now;
	int end = 0;

	if (!dot ||
	    sscanf(dot, ".%lld.%llx.%12llx.%*8x%n", &pid, &start, &at, &end) !=
		    3 ||
	    end == 0 || dot[end])
		return false;
	/* of another machine, or another boot of this one: who knows */
	if (start == 0 || at == 0 || at != where())
		return false;
	if (pid < 1 || pid > INT_MAX)
		return false;
	/* /proc may hide others' */
	if (kill((pid_t)pid, 0) < 0 && errno == ESRCH)
		return true;
	now = started(pid);
	return now > 0 && (unsigned long long)now != start;
}

/* --- directories --------------------------------------------------------- */

/* What dead builders left may be large, and nobody else may come. */
static void sweep(int tmp)
{
	auto_dir DIR *d = NULL;
	const struct dirent *de;
	int fd = openat(tmp, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return;
	d = fdopendir(fd);
	if (!d) {
		fd_close(fd);
		return;
	}
	while ((de = readdir(d)))
		if (store_orphan(de->d_name))
			(void)fd_remove_tree(tmp, de->d_name, NULL);
}

int store_tmp(const struct store *s, int *ret_fd, char *name, struct err *e)
{
	auto_close int tmp = -1;
	auto_close int fd = -1;
	int r;

	r = store_must_build(s, e);
	if (r < 0)
		return r;
	r = store_tmp_name(name, e);
	if (r < 0)
		return r;
	tmp = store_at(s, "tmp", O_RDONLY | O_DIRECTORY);
	if (tmp < 0)
		return err_sys(e, -tmp, "open 'tmp' of the store");
	sweep(tmp);
	if (mkdirat(tmp, name, 0755) < 0)
		return err_sys(e, errno, "make a directory in 'tmp'");
	fd = openat(tmp, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		r = err_sys(e, errno, "open 'tmp/%s'", name);
	/* another user may prune, and has to look into it */
	if (r == 0 && fchmod(fd, 0755) < 0)
		r = err_sys(e, errno, "mode of 'tmp/%s'", name);
	if (r < 0) {
		fd_remove_tree(tmp, name, NULL);
		return r;
	}
	*ret_fd = steal_fd(&fd);
	return 0;
}

void store_tmp_done(const struct store *s, int *fd, const char *name)
{
	auto_close int tmp = -1;

	if (*fd < 0)
		return;
	fd_close(steal_fd(fd));
	tmp = store_at(s, "tmp", O_RDONLY | O_DIRECTORY);
	if (tmp >= 0)
		fd_remove_tree(tmp, name, NULL);
}

int store_hold_only(int tmpfd, const struct digest *d, struct err *e)
{
	char hex[DIGEST_HEX + 1], name[DIGEST_HEX + 8];
	int fd;

	snprintf(name, sizeof(name), "use.%s", digest_hex(d, hex));
	fd = openat(tmpfd, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
		    0644);
	if (fd < 0)
		return err_sys(e, errno, "hold sha256:%s", hex);
	fd_close(fd);
	return 0;
}

int store_hold(const struct store *s, int tmpfd, const struct digest *digest,
	       struct err *e)
{
	int r = store_hold_only(tmpfd, digest, e);

	if (r == 0)
		store_rescue(s, digest);
	return r;
}
