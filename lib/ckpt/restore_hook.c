/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine stops at certain points and runs a program, which is dsec-ckpt
 * once more.  That one only asks whoever called restore_run(), over two pipes
 * it finds among its descriptors, and tells the engine the answer: the work is
 * done where all is known.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "ckpt/restore_priv.h"

#define HOOK_ENV "DSEC_CKPT_HOOK"

struct request {
	char action[28];
	int32_t init; /* pid 1, where there is one */
};

static int open_end(pid_t pid, int fd, int flags)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
	fd = open(path, flags | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int restore_hook(const char *action)
{
	const char *where = getenv(HOOK_ENV),
		   *init = getenv("CRTOOLS_INIT_PID");
	auto_close int req = -1, ack = -1;
	struct request q = {.init = init ? (int32_t)strtol(init, NULL, 10) : 0};
	int pid, rfd, afd;
	char yes = 0;

	if (!where || sscanf(where, "%d,%d,%d", &pid, &rfd, &afd) != 3)
		return -EINVAL;
	if (strcmp(action, "setup-namespaces") && strcmp(action, "pre-resume"))
		return 0;
	snprintf(q.action, sizeof(q.action), "%s", action);
	req = open_end(pid, rfd, O_WRONLY);
	ack = open_end(pid, afd, O_RDONLY);
	if (req < 0 || ack < 0)
		return -EIO;
	if (write(req, &q, sizeof(q)) != sizeof(q))
		return -EIO;
	return read(ack, &yes, 1) == 1 && yes == 'y' ? 0 : -ECANCELED;
}

int restore_hook_open(struct restore_hook *h, char *env, size_t size,
		      struct err *e)
{
	*h = (struct restore_hook){{-1, -1}, {-1, -1}};
	if (pipe2(h->req, O_CLOEXEC) < 0 || pipe2(h->ack, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	/* The hook opens the other ends anew; ours tell it when we are gone. */
	snprintf(env, size, HOOK_ENV "=%d,%d,%d", (int)getpid(), h->req[0],
		 h->ack[1]);
	return 0;
}

void restore_hook_done(struct restore_hook *h)
{
	for (int i = 0; i < 2; i++) {
		if (h->req[i] >= 0)
			fd_close(steal_fd(&h->req[i]));
		if (h->ack[i] >= 0)
			fd_close(steal_fd(&h->ack[i]));
	}
}

static int raise_lo(void)
{
	struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	auto_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &ifr) < 0)
		return -errno;
	return 0;
}

static int join(pid_t pid, const char *name, int type)
{
	auto_close int fd = -1;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/ns/%s", (int)pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 || setns(fd, type) < 0 ? -errno : 0;
}

/* No user namespaces inside: the limit is asked of whoever opens the file. */
static int forbid_nesting(void)
{
	auto_close int fd = open("/proc/sys/user/max_user_namespaces",
				 O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	return write(fd, "0", 1) == 1 ? 0 : -errno;
}

/* In a child: it stays there. */
static int set_up(const struct restore *rs, pid_t init)
{
	int r = join(init, "net", CLONE_NEWNET);

	if (r == 0)
		r = raise_lo();
	if (r == 0)
		r = restore_net_lay(rs);
	if (r == 0)
		r = join(init, "user", CLONE_NEWUSER);
	if (r == 0 && !rs->profile->nested)
		r = forbid_nesting();
	return r;
}

static int setup_namespaces(const struct restore *rs, pid_t init, struct err *e)
{
	pid_t pid = fork();
	int status = 0;

	if (pid == 0)
		_exit(-set_up(rs, init));
	if (pid < 0)
		return err_sys(e, errno, "start a child");
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (!WIFEXITED(status))
		return err_set(e, -ECHILD, "system", "a child was killed");
	if (WEXITSTATUS(status))
		return err_sys(e, WEXITSTATUS(status),
			       "set up the sandbox's namespaces");
	return 0;
}

/* The last number of "NSpid:", which is that of the innermost namespace. */
static pid_t inner_pid(pid_t pid)
{
	auto_free char *text = NULL;
	char path[40], *line, *end, *last;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	if (fd_read_file(AT_FDCWD, path, 64 * 1024, &text, NULL, NULL) < 0)
		return -1;
	line = strstr(text, "\nNSpid:");
	if (!line)
		return -1;
	line++;
	end = strchrnul(line, '\n');
	*end = '\0';
	last = strrchr(line, '\t');
	return last ? (pid_t)strtol(last + 1, NULL, 10) : -1;
}

int restore_pids(const struct restore *rs, struct restore_pid **ret, size_t *n,
		 struct err *e)
{
	auto_free pid_t *pids = NULL;
	struct restore_pid *list;
	size_t all = 0;
	int r;

	r = cgroup_pids(rs->cgroups, rs->id, NULL, &pids, &all, e);
	if (r < 0)
		return r;
	list = calloc(all + 1, sizeof(*list));
	if (!list)
		return err_sys(e, ENOMEM, "processes");
	*n = 0;
	for (size_t i = 0; i < all; i++) {
		list[*n].pid = pids[i];
		list[*n].inner = inner_pid(pids[i]);
		*n += list[*n].inner > 0;
	}
	*ret = list;
	return 0;
}

static const char *leaf_of(const struct restore *rs, pid_t inner)
{
	char key[16];

	snprintf(key, sizeof(key), "%d", (int)inner);
	return json_string_value(json_object_get(rs->ck->leaves, key));
}

static int make_leaves(const struct restore *rs, struct err *e)
{
	auto_json json_t *made = json_object();
	const char *key, *leaf;
	json_t *v;
	int r = 0;

	if (!made)
		return err_sys(e, ENOMEM, "leaves");
	json_object_foreach((json_t *)(uintptr_t)rs->ck->leaves, key, v) {
		leaf = json_string_value(v);
		if (json_object_get(made, leaf))
			continue;
		r = cgroup_leaf_make(rs->cgroups, rs->id, leaf, e);
		if (r == 0)
			r = cgroup_leaf_freeze(rs->cgroups, rs->id, leaf, true,
					       0, e);
		if (r < 0)
			return r;
		json_object_set_new(made, leaf, json_true());
	}
	return r;
}

/* Every process stands still under the engine's hand: into its leaf, which is
 * frozen, so that it does not run when the engine lets go. */
static int pre_resume(const struct restore *rs, struct err *e)
{
	auto_free struct restore_pid *pids = NULL;
	const char *leaf;
	size_t n = 0;
	int r;

	r = make_leaves(rs, e);
	if (r == 0)
		r = restore_pids(rs, &pids, &n, e);
	for (size_t i = 0; r == 0 && i < n; i++) {
		leaf = leaf_of(rs, pids[i].inner);
		if (leaf)
			r = cgroup_leaf_add(rs->cgroups, rs->id, leaf,
					    pids[i].pid, e);
	}
	return r;
}

int restore_hook_serve(const struct restore *rs, struct restore_hook *h,
		       struct err *e)
{
	struct request q;
	int r;

	if (read(h->req[0], &q, sizeof(q)) != sizeof(q))
		return err_set(e, -EIO, "internal", "a torn request");
	if (!strcmp(q.action, "setup-namespaces"))
		r = setup_namespaces(rs, q.init, e);
	else
		r = pre_resume(rs, e);
	if (write(h->ack[1], r < 0 ? "n" : "y", 1) != 1 && r == 0)
		r = err_sys(e, errno, "answer the engine");
	return r;
}
