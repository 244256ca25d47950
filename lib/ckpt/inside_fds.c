/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "ckpt/ckpt.h"
#include "ckpt/inside_priv.h"
#include "sys/userns.h"

#define PTMX	   makedev(5, 2)
#define PTS_MAJOR  136
#define FDINFO_MAX (16 << 20) /* a line for each thing watched */

static int fdinfo(const struct survey *s, int num, char **ret_text,
		  struct err *e)
{
	char path[32];

	snprintf(path, sizeof(path), "fdinfo/%d", num);
	return fd_read_file(s->at_dir, path, FDINFO_MAX, ret_text, NULL, e);
}

/*
 * The engine gives a periodic timer the time that was left.  While a tick waits
 * to be read none is: it would never tick again.
 */
static int look_at_timer(struct survey *s, int num, const char *link,
			 struct err *e)
{
	auto_free char *text = NULL;
	unsigned long long ticks, s1, n1, s2, n2;
	const char *at, *value;
	int r;

	(void)link;
	r = fdinfo(s, num, &text, e);
	if (r < 0)
		return r;
	at = strstr(text, "ticks:");
	value = strstr(text, "it_value:");
	if (!at || !value || sscanf(at, "ticks: %llu", &ticks) != 1 ||
	    sscanf(value, "it_value: (%llu, %llu) it_interval: (%llu, %llu)",
		   &s1, &n1, &s2, &n2) != 4)
		return 0;
	if (!ticks || (!s2 && !n2) || s1 || n1)
		return 0;
	return inside_warn(s, e,
			   "a periodic timer (descriptor %d) has a tick that "
			   "was not read: it will not tick again in what is "
			   "restored",
			   num);
}

static int look_at_inotify(struct survey *s, int num, const char *link,
			   struct err *e)
{
	auto_close int fd = inside_getfd(s, num);
	auto_free char *text = NULL;
	int bytes = 0, r;

	(void)link;
	r = fdinfo(s, num, &text, e);
	if (r == 0)
		r = inside_add_watches(s, text, e);
	if (r < 0 || fd < 0 || ioctl(fd, FIONREAD, &bytes) < 0 || bytes == 0)
		return r;
	return inside_warn(s, e,
			   "events of inotify (descriptor %d) that were not "
			   "read are lost in what is restored",
			   num);
}

/* The engine does not ask, and what counted down by one is read whole. */
static int look_at_eventfd(struct survey *s, int num, const char *link,
			   struct err *e)
{
	auto_free char *text = NULL;
	int r;

	(void)link;
	r = fdinfo(s, num, &text, e);
	if (r < 0 || !strstr(text, "eventfd-semaphore: 1"))
		return r;
	return inside_warn(s, e,
			   "an eventfd (descriptor %d) is a semaphore: it is a "
			   "plain one in what is restored",
			   num);
}

static int nothing(struct survey *s, int num, const char *link, struct err *e)
{
	(void)s;
	(void)num;
	(void)link;
	(void)e;
	return 0;
}

/* All that the engine can make again; what is not here, it cannot. */
static const struct {
	const char *link;
	int (*look)(struct survey *s, int num, const char *link, struct err *e);
} anonymous[] = {
	{"[eventfd]", look_at_eventfd}, {"[eventpoll]", nothing},
	{"[signalfd]", nothing},	{"[pidfd]", nothing},
	{"inotify", look_at_inotify},	{"[timerfd]", look_at_timer},
};

static int look_at_anonymous(struct survey *s, int num, const char *link,
			     struct err *e)
{
	const char *kind = link + strlen("anon_inode:");
	char plain[64];

	for (size_t i = 0; i < array_len(anonymous); i++)
		if (!strcmp(kind, anonymous[i].link))
			return anonymous[i].look(s, num, link, e);
	inside_plain(plain, sizeof(plain), kind, strlen(kind));
	return inside_refuse(s, e,
			     "has a descriptor of a kind that cannot be "
			     "checkpointed: %s (descriptor %d)",
			     plain, num);
}

/* A host's id as one inside; root's where it is none of the sandbox's, as is
 * pid 1's own pipe. */
static int id_inside(const struct survey *s, unsigned id)
{
	uint64_t base = (uint64_t)json_int(s->ask->spec, "uid_base", 0);

	return id >= base && id - base < USERNS_IDS ? (int)(id - base) : 0;
}

int inside_owner(struct survey *s, int num, unsigned uid, const char *what,
		 struct err *e)
{
	int user = id_inside(s, uid);
	char key[64];

	snprintf(key, sizeof(key), "%d %s", (int)s->at->pid, what);
	if (user == 0 || inside_seen(s, key))
		return 0;
	return inside_warn(s, e,
			   "%s (descriptor %d) is user %d, and root in what is "
			   "restored",
			   what, num, user);
}

/* One that was made inside. */
static int look_at_own_pipe(struct survey *s, int num, struct err *e)
{
	struct stat st;
	char path[32];

	snprintf(path, sizeof(path), "fd/%d", num);
	if (fstatat(s->at_dir, path, &st, 0) < 0)
		return err_sys(e, errno, "look at a pipe of process %d",
			       (int)s->at->pid);
	return inside_owner(s, num, st.st_uid, "the owner of a pipe", e);
}

static int look_at_pipe(struct survey *s, int num, const char *link,
			struct err *e)
{
	json_t *list = json_object_get(s->in->externals, "pipes");
	const json_t *ours = json_object_get(s->ours, link);
	auto_close int fd = -1, reader = -1;
	struct stat st;
	char path[40];
	json_t *p;

	if (!ours)
		return look_at_own_pipe(s, num, e);
	if (inside_seen(s, link))
		return 0;
	/* There is room for each of them once. */
	if (s->in->npipes >= json_object_size(s->ours))
		return err_sys(e, ENOMEM, "survey");
	fd = inside_getfd(s, num);
	if (fd < 0)
		return err_sys(e, -fd, "look at a pipe of process %d",
			       (int)s->at->pid);
	/* Whichever end that one is. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (reader < 0 || fstat(reader, &st) < 0)
		return err_sys(e, errno, "open a pipe of process %d",
			       (int)s->at->pid);
	p = json_pack("{s:s, s:i, s:i, s:i}", "of", link, "size",
		      fcntl(reader, F_GETPIPE_SZ), "uid",
		      id_inside(s, st.st_uid), "gid", id_inside(s, st.st_gid));
	if (p && json_is_string(ours))
		json_object_set_new(p, "report", json_true());
	if (!p || json_array_append_new(list, p) < 0)
		return err_sys(e, ENOMEM, "survey");
	s->in->pipes[s->in->npipes++] = steal_fd(&reader);
	return 0;
}

static int add_index(json_t *set, unsigned index, json_t *v, struct err *e)
{
	char key[16];

	snprintf(key, sizeof(key), "%u", index);
	return json_object_set_new(set, key, v) < 0
		       ? err_sys(e, ENOMEM, "survey")
		       : 0;
}

static int look_at_master(struct survey *s, int num, struct err *e)
{
	auto_free char *text = NULL;
	const char *at;
	int r;

	r = fdinfo(s, num, &text, e);
	if (r < 0)
		return r;
	at = strstr(text, "tty-index:");
	return at ? add_index(s->masters, (unsigned)strtoul(at + 10, NULL, 10),
			      json_true(), e)
		  : 0;
}

static int look_at_device(struct survey *s, int num, const struct statx *x,
			  struct err *e)
{
	dev_t rdev = makedev(x->stx_rdev_major, x->stx_rdev_minor);
	dev_t dev = makedev(x->stx_dev_major, x->stx_dev_minor);
	char of[64];

	if (rdev == PTMX)
		return look_at_master(s, num, e);
	if (x->stx_rdev_major != PTS_MAJOR)
		return 0;
	snprintf(of, sizeof(of), "tty[%llx:%llx]", (unsigned long long)rdev,
		 (unsigned long long)dev);
	return add_index(s->slaves, x->stx_rdev_minor, json_string(of), e);
}

/* The kernel says it by a word after the name, which a name may end in, too. */
static bool is_deleted(struct survey *s, const char *link, uint64_t ino)
{
	static const char word[] = " (deleted)";
	size_t len = strlen(link), n = sizeof(word) - 1;
	auto_close int fd = -1;
	struct stat st;

	if (len <= n || strcmp(link + len - n, word) != 0)
		return false;
	fd = inside_open(s, link, O_PATH | O_NOFOLLOW);
	return fd < 0 || fstat(fd, &st) < 0 || st.st_ino != ino;
}

static int look_at_file(struct survey *s, int num, const char *link,
			struct err *e)
{
	struct statx x;
	char path[32];

	snprintf(path, sizeof(path), "fd/%d", num);
	if (statx(s->at_dir, path, AT_STATX_DONT_SYNC,
		  STATX_BASIC_STATS | STATX_MNT_ID, &x) < 0)
		return err_sys(e, errno, "look at descriptor %d of process %d",
			       num, (int)s->at->pid);
	if (x.stx_nlink == 0 && !strncmp(link, "/memfd:", 7))
		return 0;
	/* A terminal that came through a restore is one of the sandbox's,
	 * opened where that was staged. */
	if (!inside_has_mount(s, x.stx_mnt_id) &&
	    !(S_ISCHR(x.stx_mode) && x.stx_rdev_major == PTS_MAJOR))
		return inside_refuse(s, e,
				     "has a file open that lies outside of "
				     "the sandbox (descriptor %d)",
				     num);
	if (S_ISCHR(x.stx_mode))
		return look_at_device(s, num, &x, e);
	if (S_ISREG(x.stx_mode) && x.stx_nlink > 0 &&
	    is_deleted(s, link, x.stx_ino))
		return inside_refuse(s, e,
				     "has a file open whose name was removed "
				     "while another one of it, or that in a "
				     "layer, is there (descriptor %d)",
				     num);
	if (S_ISREG(x.stx_mode) && x.stx_nlink == 0 &&
	    x.stx_size > INSIDE_GHOST_MAX)
		return inside_refuse(s, e,
				     "has an unlinked file open of more than "
				     "1 GiB (descriptor %d)",
				     num);
	return 0;
}

static int look_at_ns(struct survey *s, int num, const char *link,
		      struct err *e)
{
	for (size_t i = 0; i < INSIDE_NS; i++)
		if (!strcmp(link, s->ns[i]))
			return 0;
	return inside_refuse(s, e,
			     "has a namespace open that is not the sandbox's "
			     "(descriptor %d)",
			     num);
}

static int look_at_fd(struct survey *s, int num, const char *link,
		      struct err *e)
{
	if (link[0] == '/')
		return look_at_file(s, num, link, e);
	if (!strncmp(link, "pipe:", 5))
		return look_at_pipe(s, num, link, e);
	if (!strncmp(link, "anon_inode:", 11))
		return look_at_anonymous(s, num, link, e);
	if (!strncmp(link, "socket:", 7))
		return inside_seen(s, link) ? 0
					    : inside_socket(s, num, link, e);
	return look_at_ns(s, num, link, e);
}

/* The bounds of the list of external pipes: all that the supervisor has. */
static int take_ours(struct survey *s, struct err *e)
{
	const char *kind, *of, *key;
	json_t *v, *index;
	int r;

	json_object_foreach((json_t *)(uintptr_t)s->ask->fds, key, v) {
		kind = json_str(v, "kind");
		of = json_str(v, "of");
		index = json_object_get(v, "index");
		if (!strncmp(kind, "pipe", 4) &&
		    json_object_set_new(s->ours, of,
					json_flag(v, "report") ||
							!strcmp(key, "5")
						? json_string("report")
						: json_true()) < 0)
			return err_sys(e, ENOMEM, "survey");
		if (strcmp(kind, "tty") != 0)
			continue;
		r = add_index(s->masters,
			      json_is_integer(index)
				      ? (unsigned)json_integer_value(index)
				      : (unsigned)strtoul(
						of + strcspn(of, "0123456789"),
						NULL, 10),
			      json_string("ours"), e);
		if (r < 0)
			return r;
	}
	s->in->pipes = calloc(json_object_size(s->ours) + 1, sizeof(int));
	return s->in->pipes &&
			       json_object_set_new(s->in->externals, "pipes",
						   json_array()) == 0 &&
			       json_object_set_new(s->in->externals, "ttys",
						   json_array()) == 0
		       ? 0
		       : err_sys(e, ENOMEM, "survey");
}

int inside_fds(struct survey *s, struct err *e)
{
	auto_dir DIR *d = NULL;
	char link[PATH_MAX];
	struct dirent *de;
	ssize_t n;
	int fd, r = 0;

	if (!s->in->pipes)
		r = take_ours(s, e);
	fd = openat(s->at_dir, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	d = fd < 0 ? NULL : fdopendir(fd);
	if (!d)
		return err_sys(e, errno, "look at the files of process %d",
			       (int)s->at->pid);
	while (r == 0 && (de = readdir(d))) {
		if (!isdigit((unsigned char)de->d_name[0]))
			continue;
		n = readlinkat(dirfd(d), de->d_name, link, sizeof(link) - 1);
		if (n < 0 && errno == ENAMETOOLONG)
			return inside_refuse(s, e,
					     "has a file open whose path is "
					     "too long (descriptor %.16s)",
					     de->d_name);
		if (n < 0)
			return err_sys(e, errno,
				       "look at descriptor %s of process %d",
				       de->d_name, (int)s->at->pid);
		link[n] = '\0';
		r = look_at_fd(s, (int)strtol(de->d_name, NULL, 10), link, e);
	}
	return r;
}

int inside_streams(struct survey *s, struct err *e)
{
	json_t *list = json_object_get(s->in->externals, "ttys");
	json_t *mounts = json_object_get(s->in->externals, "mounts");
	const json_t *master;
	const char *index;
	json_t *of;

	json_object_foreach(s->slaves, index, of) {
		master = json_object_get(s->masters, index);
		if (!master && !s->ask->running)
			return err_set(e, -EBUSY, "not_checkpointable",
				       "terminal /dev/pts/%s is open inside "
				       "and its other end is gone",
				       index);
		if (master && !json_is_string(master))
			continue;
		if (json_array_append_new(list,
					  json_pack("{s:O, s:i}", "of", of,
						    "index",
						    (int)strtol(index, NULL,
								10))) < 0)
			return err_sys(e, ENOMEM, "survey");
	}
	if (json_array_size(list) > 0 &&
	    json_array_append_new(mounts,
				  json_pack("{s:s, s:s}", "key", CKPT_KEY_PTS,
					    "inside", "/dev/pts")) < 0)
		return err_sys(e, ENOMEM, "survey");
	return 0;
}

/* What stands in the pipe, which keeps it. */
static int copy_pending(int fd, int dirfd, const char *name, size_t bytes,
			struct err *e)
{
	auto_close int in = -1, out = -1;
	auto_free char *data = NULL;
	int p[2], size = fcntl(fd, F_GETPIPE_SZ);
	ssize_t n = 0;
	size_t len;
	int r;

	if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0)
		return err_sys(e, errno, "pipe");
	in = p[0];
	out = p[1];
	if (size > 0 && fcntl(out, F_SETPIPE_SZ, size) < 0)
		return err_sys(e, errno, "pipe");
	n = tee(fd, out, bytes, SPLICE_F_NONBLOCK);
	if (n < 0 && errno != EAGAIN)
		return err_sys(e, errno, "read a pipe");
	if (n != (ssize_t)bytes)
		return err_set(e, -EIO, "internal",
			       "a pipe gave %zd of its %zu bytes", n, bytes);
	fd_close(steal_fd(&out));
	r = fd_read_all(in, bytes, &data, &len, e);
	return r < 0 ? r : fd_replace(dirfd, name, data, len, 0, e);
}

int inside_pending(struct inside *in, int dirfd, struct err *e)
{
	json_t *list = json_object_get(in->externals, "pipes"), *p;
	char name[64];
	int r = 0, bytes;

	for (size_t i = 0; r == 0 && i < in->npipes; i++) {
		p = json_array_get(list, i);
		bytes = 0;
		if (ioctl(in->pipes[i], FIONREAD, &bytes) == 0 && bytes > 0) {
			snprintf(name, sizeof(name), "pipe-%lu",
				 strtoul(json_str(p, "of") + 6, NULL, 10));
			r = copy_pending(in->pipes[i], dirfd, name,
					 (size_t)bytes, e);
			if (r == 0 &&
			    json_object_set_new(p, "pending",
						json_string(name)) < 0)
				r = err_sys(e, ENOMEM, "survey");
		}
	}
	while (in->npipes > 0)
		fd_close(in->pipes[--in->npipes]);
	return r;
}
