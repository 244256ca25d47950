/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "sys/cgroup_priv.h"

#define MOUNTINFO_MAX (16 * 1024 * 1024)

/* Where hierarchies are mounted; NULL for one that is not. */
enum { AT_V2, AT_MEMORY, AT_PIDS, AT_CPU, AT_CPUACCT, AT_FREEZER, AT_LEN };

struct mounts {
	const char *at[AT_LEN]; /* into text */
	char *text;		/* of mountinfo */
};

static const char *const v1_names[AT_LEN] = {
	[AT_MEMORY] = "memory",	  [AT_PIDS] = "pids",	    [AT_CPU] = "cpu",
	[AT_CPUACCT] = "cpuacct", [AT_FREEZER] = "freezer",
};

/* mountinfo writes blanks, newlines and backslashes as \ooo. */
static void unescape(char *s)
{
	char *out = s;

	for (; *s; s++) {
		unsigned c = (unsigned char)*s;

		if (*s == '\\' && strspn(s + 1, "01234567") >= 3) {
			c = (unsigned)((s[1] & 7) << 6 | (s[2] & 7) << 3 |
				       (s[3] & 7));
			s += 3;
		}
		*out++ = (char)c;
	}
	*out = '\0';
}

static bool has_word(const char *list, const char *word, char sep)
{
	size_t n = strlen(word);

	for (const char *p = list; p; p = strchr(p, sep)) {
		if (*p == sep)
			p++;
		if (!strncmp(p, word, n) && (p[n] == sep || p[n] == '\0'))
			return true;
	}
	return false;
}

static void note(struct mounts *m, int which, const char *at)
{
	/* The first mount counts: later ones are views of the same tree. */
	if (!m->at[which])
		m->at[which] = at;
}

/* Blank-separated field ${n} of ${s}, from 0; NULL if there are not so many. */
static char *nth(char *s, int n)
{
	for (; s && n > 0; n--) {
		s = strchr(s, ' ');
		s = s ? s + 1 : NULL;
	}
	return s;
}

/*
 * "30 22 0:27 ROOT AT rw,.. [tags] - FSTYPE SOURCE SUPER": a mount of a part of
 * a tree (ROOT is not "/") is taken too: it is all a container is given.
 */
static void take_line(struct mounts *m, char *line)
{
	char *type = strstr(line, " - cgroup");
	char *at = nth(line, 4), *super;

	if (!type || !at || at >= type)
		return;
	super = nth(type + 3, 2);
	at[strcspn(at, " ")] = '\0';
	unescape(at);
	if (!strncmp(type + 3, "cgroup2 ", 8)) {
		note(m, AT_V2, at);
		return;
	}
	for (int i = AT_MEMORY; super && i < AT_LEN; i++)
		if (has_word(super, v1_names[i], ','))
			note(m, i, at);
}

static int find_mounts(struct mounts *m, struct err *e)
{
	char *line, *next;
	int r;

	r = fd_read_file(AT_FDCWD, "/proc/self/mountinfo", MOUNTINFO_MAX,
			 &m->text, NULL, e);
	if (r < 0)
		return r;
	for (line = m->text; line && *line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		take_line(m, line);
	}
	return 0;
}

/* mkdir -p below an existing mount point; kernfs wants one level at a time. */
static int make_parent(int dirfd, const char *parent, struct err *e)
{
	char buf[PATH_MAX];
	size_t len = strlen(parent);

	if (len >= sizeof(buf))
		return err_sys(e, ENAMETOOLONG, "cgroup '%s'", parent);
	memcpy(buf, parent, len + 1);
	for (char *p = buf;; p++) {
		if (*p != '/' && *p != '\0')
			continue;
		*p = '\0';
		if (mkdirat(dirfd, buf, 0755) < 0 && errno != EEXIST)
			return err_sys(e, errno, "make cgroup '%s'", buf);
		if ((size_t)(p - buf) == len)
			return 0;
		*p = '/';
	}
}

static int open_parent(const char *at, const char *parent, struct err *e)
{
	auto_close int top = -1;
	char path[PATH_MAX];
	int fd, r;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", at, parent) >=
	    sizeof(path))
		return err_sys(e, ENAMETOOLONG, "cgroup '%s'", parent);
	fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	if (errno != ENOENT)
		return err_sys(e, errno, "open cgroup '%s'", path);
	top = open(at, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (top < 0)
		return err_sys(e, errno, "open '%s'", at);
	r = make_parent(top, parent, e);
	if (r < 0)
		return err_wrap(e, r, "'%s'", at);
	fd = openat(top, parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return fd >= 0 ? fd : err_sys(e, errno, "open cgroup '%s'", path);
}

static int add_tree(struct cgroup_root *root, const char *at,
		    const char *parent, struct err *e)
{
	int fd = open_parent(at, parent, e);

	if (fd >= 0)
		root->tree[root->ntrees++] = fd;
	return fd;
}

static int unfit(struct err *e, const char *what)
{
	return err_set(e, -EOPNOTSUPP, "configuration",
		       "the cgroup controller '%s' is not available: mount it "
		       "(v1) or enable it (v2); dsec-doctor tells how",
		       what);
}

/* The v1 controllers, those that share a hierarchy once. */
static int open_v1(struct cgroup_root *root, const struct mounts *m,
		   const char *parent, struct err *e)
{
	static const int which[] = {AT_MEMORY, AT_PIDS, AT_CPU, AT_CPUACCT};
	int *fds[] = {&root->memory, &root->pids, &root->cpu, &root->cpuacct};
	size_t n = root->mode == CGROUP_V1 ? 4 : 3;

	for (size_t i = 0; i < n; i++) {
		for (size_t k = 0; k < i; k++)
			if (m->at[which[i]] == m->at[which[k]])
				*fds[i] = *fds[k];
		if (*fds[i] >= 0)
			continue;
		if (!m->at[which[i]])
			return unfit(e, v1_names[which[i]]);
		*fds[i] = add_tree(root, m->at[which[i]], parent, e);
		if (*fds[i] < 0)
			return *fds[i];
	}
	return 0;
}

static const char *const v2_needed[] = {"memory", "pids", "cpu"};

/* What of v2_needed is missing from a list such as "cpuset cpu io". */
static const char *missing(char *list)
{
	list[strcspn(list, "\n")] = '\0';
	for (size_t i = 0; i < array_len(v2_needed); i++)
		if (!has_word(list, v2_needed[i], ' '))
			return v2_needed[i];
	return NULL;
}

/* Switch the controllers on for the children of one group. */
static int enable_in(const char *dir, struct err *e)
{
	char path[PATH_MAX], have[512];
	const char *what;
	int r;

	if ((size_t)snprintf(path, sizeof(path), "%s/cgroup.controllers",
			     dir) >= sizeof(path))
		return err_sys(e, ENAMETOOLONG, "cgroup '%s'", dir);
	r = cgroup_read(AT_FDCWD, path, have, sizeof(have), e);
	if (r < 0)
		return r;
	what = missing(have);
	if (what)
		return unfit(e, what);
	if ((size_t)snprintf(path, sizeof(path), "%s/cgroup.subtree_control",
			     dir) >= sizeof(path))
		return err_sys(e, ENAMETOOLONG, "cgroup '%s'", dir);
	r = fd_write_str(AT_FDCWD, path, "+memory +pids +cpu", e);
	if (r < 0 && e)
		e->code = "configuration";
	return r < 0 ? err_wrap(e, r, "enable the cgroup controllers") : 0;
}

/* In each group from the top of the mount down to the parent. */
static int enable_v2(const char *at, const char *parent, struct err *e)
{
	char dir[PATH_MAX];
	const char *end = parent;
	int r;

	for (;;) {
		if ((size_t)snprintf(dir, sizeof(dir), "%s/%.*s", at,
				     (int)(end - parent),
				     parent) >= sizeof(dir))
			return err_sys(e, ENAMETOOLONG, "cgroup '%s'", parent);
		r = enable_in(dir, e);
		if (r < 0 || !*end)
			return r;
		end += *end == '/';
		end += strcspn(end, "/");
	}
}

static int open_v2(struct cgroup_root *root, const struct mounts *m,
		   const char *parent, struct err *e)
{
	char have[512];
	int fd, r;

	fd = add_tree(root, m->at[AT_V2], parent, e);
	if (fd < 0)
		return fd;
	root->memory = root->pids = root->cpu = fd;
	r = cgroup_read(fd, "cgroup.subtree_control", have, sizeof(have), e);
	if (r < 0)
		return r;
	return missing(have) ? enable_v2(m->at[AT_V2], parent, e) : 0;
}

/*
 * clone3() of a child that shares our memory and stack, and therefore must not
 * touch either: it exits in the instruction after the call.
 */
static long clone_and_exit(struct clone_args *args)
{
	long r;
#if defined(__x86_64__)
	args->flags |= CLONE_VM | CLONE_VFORK;
	__asm__ volatile("syscall\n\ttest %%eax, %%eax\n\tjnz 1f\n\t"
			 "xor %%edi, %%edi\n\tmov %[exit], %%eax\n\t"
			 "syscall\n1:"
			 : "=a"(r)
			 : "0"((long)SYS_clone3), "D"(args),
			   "S"(sizeof(*args)), [exit] "i"(SYS_exit)
			 : "rcx", "r11", "cc", "memory");
#else
	r = syscall(SYS_clone3, args, sizeof(*args));
	if (r == 0)
		_exit(0);
	if (r < 0)
		r = -errno;
#endif
	return r;
}

/* The top of the v2 tree cannot be killed.  0:: is the line of that tree. */
static bool in_top_group(void)
{
	char text[4096];

	if (cgroup_read(AT_FDCWD, "/proc/self/cgroup", text, sizeof(text),
			NULL) < 0)
		return false;
	return !strcmp(text, "0::/\n") || strstr(text, "\n0::/\n");
}

/*
 * Some kernels kill a child that is cloned into a group when the group of its
 * parent was ever killed as a whole, so that it works is seen only by doing it.
 * It is so for the caller and says nothing about others.  The group made for
 * this stays for the next one who asks.
 */
static bool clone_into_works(int tree)
{
	struct clone_args args = {.flags = CLONE_INTO_CGROUP};
	auto_close int fd = -1;
	int status = -1;
	long pid;

	fd = openat(tree, "self-check", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT &&
	    (mkdirat(tree, "self-check", 0755) == 0 || errno == EEXIST))
		fd = openat(tree, "self-check",
			    O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return false;
	args.cgroup = (unsigned)fd;
	pid = clone_and_exit(&args);
	if (pid < 0)
		return false;
	while (waitpid((pid_t)pid, &status, __WALL) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static enum cgroup_mode choose(const struct mounts *m, int want)
{
	if (want >= 0)
		return (enum cgroup_mode)want;
	/* A controller is in one tree only: if v1 has it, v2 does not. */
	if (!m->at[AT_MEMORY] && !m->at[AT_PIDS] && !m->at[AT_CPU] &&
	    m->at[AT_V2])
		return CGROUP_V2;
	return m->at[AT_V2] ? CGROUP_HYBRID : CGROUP_V1;
}

static int open_all(struct cgroup_root *root, const struct mounts *m,
		    const char *parent, struct err *e)
{
	int leaves = root->mode == CGROUP_V1 ? AT_FREEZER : AT_V2;
	int r;

	if (!m->at[leaves])
		return unfit(e, leaves == AT_V2 ? "cgroup2" : "freezer");
	if (root->mode == CGROUP_V2)
		return open_v2(root, m, parent, e);
	r = add_tree(root, m->at[leaves], parent, e);
	return r < 0 ? r : open_v1(root, m, parent, e);
}

int cgroup_open_as(const char *parent, int want, struct cgroup_root **ret_root,
		   struct err *e)
{
	struct cgroup_root *root = calloc(1, sizeof(*root));
	struct mounts m = {.text = NULL};
	int r;

	if (!root)
		return err_sys(e, ENOMEM, "cgroups");
	root->memory = root->pids = root->cpu = root->cpuacct = -1;
	r = find_mounts(&m, e);
	if (r == 0) {
		root->mode = choose(&m, want);
		r = open_all(root, &m, parent, e);
	}
	free(m.text);
	if (r < 0) {
		cgroup_close(root);
		return r;
	}
	root->clone_into = root->mode != CGROUP_V1 &&
			   (in_top_group() || clone_into_works(root->tree[0]));
	*ret_root = root;
	return 0;
}

int cgroup_open(const char *parent, struct cgroup_root **ret_root,
		struct err *e)
{
	return cgroup_open_as(parent, -1, ret_root, e);
}

void cgroup_close(struct cgroup_root *root)
{
	if (!root)
		return;
	for (unsigned i = 0; i < root->ntrees; i++)
		fd_close(root->tree[i]);
	free(root);
}

bool cgroup_clone_into(const struct cgroup_root *root)
{
	return root->clone_into;
}

enum cgroup_mode cgroup_mode(const struct cgroup_root *root)
{
	return root->mode;
}

const char *cgroup_mode_name(enum cgroup_mode mode)
{
	static const char *const names[] = {"v2", "hybrid", "v1"};

	return names[mode];
}
