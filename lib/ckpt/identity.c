/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "ckpt/identity.h"

#define MACHINE_ID_HEX 32

int identity_merge(const struct tree *t, bool *ret, struct err *e)
{
	auto_json json_t *node = NULL;
	auto_close int dir = -1;
	int r;

	*ret = false;
	dir = open(t->config, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0 && errno == ENOENT)
		return 0;
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", t->config);
	r = json_read_file(dir, "node.json", &node, e);
	if (r == -ENOENT)
		return 0;
	*ret = r == 0 && json_flag(node, "single_tenant");
	return r;
}

void identity_warn(struct identity *i, const char *fmt, ...)
{
	char text[ERR_MSG_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	json_array_append_new(i->warnings, json_string(text));
}

static void say(json_t *list, const char *what)
{
	json_array_append_new(list, json_string(what));
}

/* A line of 32 hexadecimal digits. */
static bool is_machine_id(const char *text, ssize_t len)
{
	if (len < MACHINE_ID_HEX || len > MACHINE_ID_HEX + 1 ||
	    (len > MACHINE_ID_HEX && text[MACHINE_ID_HEX] != '\n'))
		return false;
	for (int k = 0; k < MACHINE_ID_HEX; k++)
		if (!isxdigit((unsigned char)text[k]))
			return false;
	return true;
}

/* Whatever the image made of the name, it is opened inside: links lead nowhere
 * else, and no directory of the host is changed. */
static int open_inside(int root, const char *path, uint64_t flags)
{
	return fd_openat2(root, path, flags,
			  RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS |
				  RESOLVE_NO_XDEV);
}

/* 1: there is one, and it is ${id} now; 0: there is none; -errno. */
static int put_machine_id(int root, const char *path, const char *id)
{
	auto_close int look = -1, fd = -1;
	char text[64];
	struct stat st;
	ssize_t n;

	look = open_inside(root, path, O_PATH);
	if (look == -ENOENT || look == -ENOTDIR || look == -EXDEV ||
	    look == -ELOOP)
		return 0;
	if (look < 0)
		return look;
	if (fstat(look, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return 0;
	fd = open_inside(root, path, O_RDWR | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return fd;
	n = pread(fd, text, sizeof(text), 0);
	if (!is_machine_id(text, n))
		return 0;
	return pwrite(fd, id, MACHINE_ID_HEX, 0) == MACHINE_ID_HEX ? 1 : -errno;
}

static int new_machine_id(char *id)
{
	unsigned char b[MACHINE_ID_HEX / 2];

	if (getrandom(b, sizeof(b), 0) != sizeof(b))
		return -EIO;
	/* A random UUID, which is what programs make of it. */
	b[6] = (b[6] & 0x0f) | 0x40;
	b[8] = (b[8] & 0x3f) | 0x80;
	for (size_t k = 0; k < sizeof(b); k++)
		snprintf(id + 2 * k, 3, "%02x", b[k]);
	return 0;
}

static void reset_machine_id(struct identity *i)
{
	static const char *const paths[] = {"etc/machine-id",
					    "var/lib/dbus/machine-id"};
	char id[MACHINE_ID_HEX + 1], path[40];
	auto_close int root = -1;
	bool done = false;
	int r;

	snprintf(path, sizeof(path), "/proc/%d/root", (int)i->init);
	root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	r = root < 0 ? -errno : new_machine_id(id);
	for (size_t k = 0; r >= 0 && k < array_len(paths); k++) {
		r = put_machine_id(root, paths[k], id);
		done |= r == 1;
	}
	if (r < 0)
		identity_warn(i, "the machine id is still the source's: %s",
			      strerror(-r));
	else if (done)
		say(i->reset, "machine-id");
}

/* In a child: it stays there. */
static int set_hostname(int init_pidfd, const char *name)
{
	if (setns(init_pidfd, CLONE_NEWUTS) < 0 ||
	    sethostname(name, strlen(name)) < 0)
		return errno;
	return 0;
}

static void reset_hostname(struct identity *i)
{
	const char *name = json_str(i->rs->spec, "hostname");
	int status = 0;
	pid_t pid;

	if (!*name || !strcmp(name, json_str(i->rs->ck->spec, "hostname")))
		return;
	pid = fork();
	if (pid == 0)
		_exit(set_hostname(i->init_pidfd, name));
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (pid < 0 || status)
		identity_warn(i, "the host name is still the source's");
	else
		say(i->reset, "hostname");
}

static int become_another(struct identity *i, struct err *e)
{
	const json_t *was = i->rs->ck->spec, *is = i->rs->spec;

	say(i->reset, "id");
	if (json_int(was, "uid_base", 0) != json_int(is, "uid_base", 0))
		say(i->reset, "uid-range");
	say(i->reset, "connections");
	reset_hostname(i);
	reset_machine_id(i);
	/* The kernel has one for all; a process keeps what is in its memory. */
	say(i->not_reset, "boot-id");
	say(i->not_reset, "address-layout");
	say(i->not_reset, "random-state");
	return identity_hooks(i, e);
}

/* Whether it took: an exec may have undone it on this kernel. */
static const char *memory_word(const struct identity *i)
{
	auto_free char *text = NULL;
	char path[40];

	if (!i->merge)
		return "private";
	snprintf(path, sizeof(path), "/proc/%d/ksm_stat", (int)i->init);
	if (fd_read_file(AT_FDCWD, path, 4096, &text, NULL, NULL) < 0 ||
	    !strstr(text, "ksm_merge_any"))
		return "ksm"; /* nobody says */
	return strstr(text, "ksm_merge_any: yes") ? "ksm" : "private";
}

int identity_take(struct identity *i, json_t **ret_rec, struct err *e)
{
	auto_json json_t *rec = NULL;
	int r;

	r = json_pack_or(&rec, e, "{s:[], s:[], s:s, s:[]}", "reset",
			 "not_reset", "memory", memory_word(i), "warnings");
	if (r < 0)
		return r;
	i->reset = json_object_get(rec, "reset");
	i->not_reset = json_object_get(rec, "not_reset");
	i->warnings = json_object_get(rec, "warnings");
	if (i->rs->fork)
		r = become_another(i, e);
	if (r == 0)
		*ret_rec = steal_ptr(rec);
	return r;
}
