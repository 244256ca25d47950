/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of builders under tmp/.  This file needs no libcrypto. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "img/store_priv.h"

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

int store_tmp_name(char *name, struct err *e)
{
	char host[25];
	uint64_t x;

	if (getrandom(&x, sizeof(x), 0) != sizeof(x))
		return err_sys(e, errno, "random");
	host_name(host, sizeof(host));
	snprintf(name, STORE_TMP_NAME, "%s.%d.%016llx", host, (int)getpid(),
		 (unsigned long long)x);
	return 0;
}

/* --- whose it is --------------------------------------------------------- */

struct owner {
	char boot[64], pidns[64];
	long long pid, start; /* clock ticks after the boot */
};

/* When ${pid} began; -1: there is none, 0: not known. */
static long long started(long long pid)
{
	auto_free char *text = NULL;
	char path[64], *p;
	size_t len;
	int r;

	snprintf(path, sizeof(path), "/proc/%lld/stat", pid);
	r = fd_read_file(AT_FDCWD, path, 4096, &text, &len, NULL);
	if (r < 0)
		return r == -ENOENT || r == -ESRCH ? -1 : 0;
	/* the name may hold anything; field 22 is the 20th behind it */
	p = strrchr(text, ')');
	for (int i = 0; p && i < 20; i++)
		p = strchr(p + 1, ' ');
	return p ? strtoll(p, NULL, 10) : 0;
}

static int own(struct owner *o)
{
	auto_free char *text = NULL;
	size_t len;
	ssize_t n;
	int r;

	memset(o, 0, sizeof(*o));
	r = fd_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 256,
			 &text, &len, NULL);
	if (r < 0)
		return r;
	snprintf(o->boot, sizeof(o->boot), "%.*s", (int)strcspn(text, "\n"),
		 text);
	n = readlink("/proc/self/ns/pid", o->pidns, sizeof(o->pidns) - 1);
	if (n < 0)
		return -errno;
	o->pid = getpid();
	o->start = started(o->pid);
	return o->start > 0 ? 0 : -ENOENT;
}

int store_owner(int dirfd, struct err *e)
{
	auto_json json_t *obj = NULL;
	auto_free char *text = NULL;
	auto_close int fd = -1;
	struct owner o;
	int r;

	if (own(&o) < 0)
		return 0; /* then its age decides */
	r = json_pack_or(&obj, e, "{s:s,s:s,s:I,s:I}", "boot", o.boot, "pidns",
			 o.pidns, "pid", (json_int_t)o.pid, "start",
			 (json_int_t)o.start);
	if (r < 0)
		return r;
	text = json_dumps(obj, JSON_COMPACT);
	if (!text)
		return err_sys(e, ENOMEM, "owner");
	fd = openat(dirfd, STORE_OWNER,
		    O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		return err_sys(e, errno, "make '" STORE_OWNER "'");
	return fd_write_all(fd, text, strlen(text), e);
}

bool store_orphan(int dirfd)
{
	auto_json json_t *obj = NULL;
	long long start;
	struct owner o;

	if (json_read_file(dirfd, STORE_OWNER, &obj, NULL) < 0 || own(&o) < 0)
		return false;
	/* Of another machine, or another boot of one so named: who knows. */
	if (strcmp(json_str(obj, "boot"), o.boot) != 0 ||
	    strcmp(json_str(obj, "pidns"), o.pidns) != 0)
		return false;
	start = started(json_int(obj, "pid", -1));
	return start < 0 ||
	       (start > 0 && start != json_int(obj, "start", start));
}

/* --- directories --------------------------------------------------------- */

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
	if (mkdirat(tmp, name, 0755) < 0)
		return err_sys(e, errno, "make a directory in 'tmp'");
	fd = openat(tmp, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		r = err_sys(e, errno, "open 'tmp/%s'", name);
	/* another user may prune, and has to look into it */
	if (r == 0 && fchmod(fd, 0755) < 0)
		r = err_sys(e, errno, "mode of 'tmp/%s'", name);
	if (r == 0)
		r = store_owner(fd, e);
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

int store_hold(const struct store *s, int tmpfd, const struct digest *digest,
	       struct err *e)
{
	char hex[DIGEST_HEX + 1], name[DIGEST_HEX + 8];
	int fd;

	(void)s;
	snprintf(name, sizeof(name), "use.%s", digest_hex(digest, hex));
	fd = openat(tmpfd, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
		    0644);
	if (fd < 0)
		return err_sys(e, errno, "hold sha256:%s", hex);
	fd_close(fd);
	return 0;
}
