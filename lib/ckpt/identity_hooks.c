/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "box/enter.h"
#include "box/env.h"
#include "ckpt/identity.h"
#include "box/init_report.h"

#define HOOKS_DIR "/etc/dsec/fork.d"
#define HOOKS_MAX 32
#define HOOK_NAME 64
#define SEED_LEN  32
#define KILL_MS	  2000

struct hooks {
	struct identity *i;
	char names[HOOKS_MAX][HOOK_NAME + 1];
	size_t n;
	char **env;
	uint64_t deadline;
	/* What pid 1 said of others meanwhile, for the supervisor. */
	struct init_report others[64];
	size_t nothers;
};

static bool is_plain(const char *name)
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz"
				"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");

	return name[0] != '.' && n <= HOOK_NAME && !name[n];
}

static int by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* A directory of the sandbox's; nothing in it is trusted, it is run inside. */
static int open_dir(const struct identity *i)
{
	auto_close int root = -1;
	char path[40];

	snprintf(path, sizeof(path), "/proc/%d/root", (int)i->init);
	root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return root < 0 ? -errno
			: fd_openat2(root, HOOKS_DIR, O_RDONLY | O_DIRECTORY,
				     RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
}

static void list(struct hooks *h)
{
	int fd = open_dir(h->i);
	auto_dir DIR *d = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *de;
	struct stat st;

	if (fd < 0 && fd != -ENOENT)
		identity_warn(h->i, HOOKS_DIR ": %s, none is run",
			      strerror(-fd));
	while (d && h->n < HOOKS_MAX && (de = readdir(d)))
		if (is_plain(de->d_name) &&
		    fstatat(fd, de->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    S_ISREG(st.st_mode) && (st.st_mode & 0111))
			snprintf(h->names[h->n++], sizeof(h->names[0]), "%.*s",
				 HOOK_NAME, de->d_name);
	qsort(h->names, h->n, sizeof(h->names[0]), by_name);
	if (h->n == HOOKS_MAX)
		identity_warn(h->i, HOOKS_DIR ": no more than %d are run",
			      HOOKS_MAX);
}

static int make_env(struct hooks *h, struct err *e)
{
	const json_t *spec = h->i->rs->spec;
	auto_json json_t *own = NULL;
	const json_t *maps[3];
	int r;

	r = json_pack_or(&own, e, "{s:s}", "DSEC_FORK", "1");
	if (r < 0)
		return r;
	maps[0] = json_object_get(spec, "image_env");
	maps[1] = json_object_get(spec, "env");
	maps[2] = own;
	return env_build(maps, array_len(maps), "/root", "root", &h->env, e);
}

/* The read end of a pipe with a seed in it, for root inside to open anew. */
static int seed_pipe(const struct hooks *h, int *ret_fd, struct err *e)
{
	uid_t base = (uid_t)json_int(h->i->rs->spec, "uid_base", 0);
	unsigned char seed[SEED_LEN];
	int p[2], r = 0;

	if (pipe2(p, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	if (getrandom(seed, sizeof(seed), 0) != sizeof(seed) ||
	    write(p[1], seed, sizeof(seed)) != sizeof(seed) ||
	    fchown(p[0], base, base) < 0)
		r = err_sys(e, errno, "seed");
	explicit_bzero(seed, sizeof(seed));
	fd_close(p[1]);
	if (r < 0)
		fd_close(p[0]);
	else
		*ret_fd = p[0];
	return r;
}

static void told(struct hooks *h, const struct init_report *rep)
{
	if (h->nothers < array_len(h->others))
		h->others[h->nothers++] = *rep;
}

/* Pid 1 reaps it.  1: *${ret_status}; 0: there is no time left. */
static int await(struct hooks *h, pid_t inner, int *ret_status)
{
	struct pollfd p = {.fd = h->i->report[0], .events = POLLIN};
	struct init_report rep;
	uint64_t now;

	for (;;) {
		now = clock_ms();
		if (now >= h->deadline)
			return 0;
		if (poll(&p, 1, (int)(h->deadline - now)) <= 0)
			continue;
		if (read(p.fd, &rep, sizeof(rep)) != sizeof(rep))
			return 0;
		if (rep.pid == inner) {
			*ret_status = rep.status;
			return 1;
		}
		told(h, &rep);
	}
}

static int start(struct hooks *h, const char *name, const char *leaf,
		 struct entered *ret, struct err *e)
{
	const struct restore *rs = h->i->rs;
	char path[sizeof(HOOKS_DIR) + HOOK_NAME + 1];
	const char *const argv[] = {path, NULL};
	auto_close int seed = -1;
	struct enter en = {
		.init_pidfd = h->i->init_pidfd,
		.id = rs->id,
		.leaf = leaf,
		.cgroups = rs->cgroups,
		.profile = rs->profile,
		.argv = argv,
		.envp = (const char *const *)h->env,
		.cwd = "/",
		.fds = {-1, -1, -1},
		.exe_fd = -1,
		.extra_fd = -1,
		.extra_fd2 = -1,
	};
	int r;

	snprintf(path, sizeof(path), HOOKS_DIR "/%s", name);
	r = seed_pipe(h, &seed, e);
	if (r < 0)
		return r;
	en.fds[0] = seed;
	return enter_start(&en, ret, e);
}

static void end(struct hooks *h, const char *name, pid_t inner)
{
	int status = 0;

	if (!await(h, inner, &status))
		identity_warn(h->i, HOOKS_DIR "/%s: not done in time, killed",
			      name);
	else if (WIFSIGNALED(status))
		identity_warn(h->i, HOOKS_DIR "/%s: ended by signal %d", name,
			      WTERMSIG(status));
	else if (WEXITSTATUS(status))
		identity_warn(h->i, HOOKS_DIR "/%s: ended with status %d", name,
			      WEXITSTATUS(status));
}

/* What it leaves behind would run while all else stands: it is killed.  So the
 * next one needs another leaf. */
static int run(struct hooks *h, size_t k, struct err *e)
{
	const struct restore *rs = h->i->rs;
	const char *name = h->names[k];
	struct err why = {0};
	struct entered in;
	char leaf[16];
	int r;

	snprintf(leaf, sizeof(leaf), "fork%zu", k);
	r = cgroup_leaf_make(rs->cgroups, rs->id, leaf, e);
	if (r < 0)
		return r;
	if (start(h, name, leaf, &in, &why) == 0) {
		end(h, name, in.inner);
		fd_close(in.pidfd);
	} else {
		identity_warn(h->i, HOOKS_DIR "/%s: %s", name, why.msg);
	}
	r = cgroup_kill(rs->cgroups, rs->id, leaf, KILL_MS, NULL, e);
	/* Empty, it is in nobody's way: it goes with the sandbox. */
	(void)cgroup_leaf_remove(rs->cgroups, rs->id, leaf, NULL);
	return r;
}

int identity_hooks(struct identity *i, struct err *e)
{
	auto_free struct hooks *h = calloc(1, sizeof(*h));
	int r;

	if (!h)
		return err_sys(e, ENOMEM, "hooks");
	h->i = i;
	h->deadline = clock_ms() + IDENTITY_HOOKS_MS;
	list(h);
	if (h->n == 0)
		return 0;
	r = make_env(h, e);
	for (size_t k = 0; r == 0 && k < h->n; k++)
		r = run(h, k, e);
	env_free(h->env);
	for (size_t k = 0; r == 0 && k < h->nothers; k++)
		if (write(i->report[1], &h->others[k], sizeof(h->others[k])) !=
		    sizeof(h->others[k]))
			r = err_sys(e, errno, "pass on what pid 1 said");
	return r;
}
