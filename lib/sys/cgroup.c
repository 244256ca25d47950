/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "sys/cgroup_priv.h"

#define CPU_PERIOD_US 100000

int cgroup_path(char *path, const char *id, const char *leaf, const char *file,
		struct err *e)
{
	const char *below;
	int n;

	assert(*id && !strchr(id, '/') && id[0] != '.');
	assert(!leaf || (*leaf && !strchr(leaf, '/') && leaf[0] != '.'));
	below = !leaf ? "" : !strcmp(leaf, "init") ? "/" : "/init/";
	n = snprintf(path, CGROUP_PATH_MAX, "%s%s%s%s%s", id, below,
		     leaf ? leaf : "", file ? "/" : "", file ? file : "");
	if (n < 0 || n >= CGROUP_PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "cgroup '%s'", id);
	return 0;
}

int cgroup_read(int dirfd, const char *path, char *buf, size_t size,
		struct err *e)
{
	auto_close int fd = -1;
	ssize_t n;

	fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open cgroup file '%s'", path);
	do
		n = read(fd, buf, size - 1);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_sys(e, errno, "read cgroup file '%s'", path);
	buf[n] = '\0';
	return (int)n;
}

int cgroup_set(int tree, const char *id, const char *file, uint64_t value,
	       struct err *e)
{
	char path[CGROUP_PATH_MAX], text[24];
	int r;

	r = cgroup_path(path, id, NULL, file, e);
	if (r < 0)
		return r;
	snprintf(text, sizeof(text), "%" PRIu64, value);
	return fd_write_str(tree, path, text, e);
}

static int limit_memory(const struct cgroup_root *root, const char *id,
			uint64_t bytes, struct err *e)
{
	int r;

	if (root->mode == CGROUP_V2) {
		r = cgroup_set(root->memory, id, "memory.max", bytes, e);
		if (r < 0)
			return r;
		/*
		 * Memory and swap cannot be limited together here, so swap is
		 * off, or the limit would be as wide as the node's swap.  What
		 * reclaims a paused sandbox into swap raises this meanwhile.
		 */
		r = cgroup_set(root->memory, id, "memory.swap.max", 0, e);
		return r == -ENOENT ? 0 : r;
	}
	/*
	 * Memory and swap together, so that swap does not widen the limit.  The
	 * one for both is never the lower one: it goes first when they rise.
	 */
	r = cgroup_set(root->memory, id, "memory.limit_in_bytes", bytes, e);
	if (r == -EINVAL) {
		r = cgroup_set(root->memory, id, "memory.memsw.limit_in_bytes",
			       bytes, e);
		if (r == 0)
			r = cgroup_set(root->memory, id,
				       "memory.limit_in_bytes", bytes, e);
	}
	if (r < 0)
		return r;
	r = cgroup_set(root->memory, id, "memory.memsw.limit_in_bytes", bytes,
		       e);
	return r == -ENOENT ? 0 : r;
}

int cgroup_limit_cpu(const struct cgroup_root *root, const char *id,
		     uint64_t milli, struct err *e)
{
	uint64_t quota_us = milli * (CPU_PERIOD_US / 1000);
	bool v2 = root->mode == CGROUP_V2;
	const char *file = v2 ? "cpu.max" : "cpu.cfs_quota_us";
	char path[CGROUP_PATH_MAX];
	int r;

	if (milli == 0) {
		r = cgroup_path(path, id, NULL, file, e);
		return r < 0 ? r
			     : fd_write_str(root->cpu, path, v2 ? "max" : "-1",
					    e);
	}
	/* The period is left as the kernel makes it: CPU_PERIOD_US. */
	if (quota_us < 1000)
		quota_us = 1000; /* the least the kernel takes */
	return cgroup_set(root->cpu, id, file, quota_us, e);
}

int cgroup_limit(const struct cgroup_root *root, const char *id,
		 const struct cgroup_limits *limits, struct err *e)
{
	int r = 0;

	if (limits->memory_bytes)
		r = limit_memory(root, id, limits->memory_bytes, e);
	if (r == 0 && limits->pids)
		r = cgroup_set(root->pids, id, "pids.max", limits->pids, e);
	if (r == 0 && limits->cpu_milli)
		r = cgroup_limit_cpu(root, id, limits->cpu_milli, e);
	return r;
}

int cgroup_make(const struct cgroup_root *root, const char *id,
		const struct cgroup_limits *limits, struct err *e)
{
	char path[CGROUP_PATH_MAX];
	int r;

	r = cgroup_path(path, id, NULL, NULL, e);
	if (r < 0)
		return r;
	/* Whoever makes it in the tree of leaves owns the name in all trees. */
	if (mkdirat(root->tree[0], id, 0755) < 0)
		return err_sys(e, errno, "make cgroup '%s'", id);
	for (unsigned i = 1; i < root->ntrees && r == 0; i++)
		if (mkdirat(root->tree[i], id, 0755) < 0)
			r = err_sys(e, errno, "make cgroup '%s'", id);
	if (r == 0)
		r = cgroup_limit(root, id, limits, e);
	if (r == 0)
		r = cgroup_leaf_make(root, id, "init", e);
	if (r < 0)
		cgroup_remove(root, id, NULL);
	return r;
}

int cgroup_leaf_make(const struct cgroup_root *root, const char *id,
		     const char *leaf, struct err *e)
{
	char path[CGROUP_PATH_MAX];
	int r;

	r = cgroup_path(path, id, leaf, NULL, e);
	if (r == 0 && mkdirat(root->tree[0], path, 0755) < 0)
		r = err_sys(e, errno, "make cgroup '%s'", path);
	return r;
}

int cgroup_swap_allow(const struct cgroup_root *root, const char *id, bool on,
		      struct err *e)
{
	char path[CGROUP_PATH_MAX];
	int r;

	/* v1 limits memory and swap together: more swap is no more memory. */
	if (root->mode != CGROUP_V2)
		return 0;
	r = cgroup_path(path, id, NULL, "memory.swap.max", e);
	if (r == 0)
		r = fd_write_str(root->memory, path, on ? "max" : "0", e);
	return r == -ENOENT ? 0 : r;
}

static int open_procs(struct cgroup_join *join, int tree, const char *id,
		      const char *leaf, struct err *e)
{
	char path[CGROUP_PATH_MAX];
	int fd, r;

	r = cgroup_path(path, id, leaf, "cgroup.procs", e);
	if (r < 0)
		return r;
	fd = openat(tree, path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	join->procs[join->n++] = fd;
	return 0;
}

int cgroup_leaf_prepare(const struct cgroup_root *root, const char *id,
			const char *leaf, struct cgroup_join *ret_join,
			struct err *e)
{
	struct cgroup_join join = {.into = -1};
	char path[CGROUP_PATH_MAX];
	int r;

	r = cgroup_path(path, id, leaf, NULL, e);
	if (r < 0)
		return r;
	if (root->clone_into) {
		join.into = openat(root->tree[0], path,
				   O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (join.into < 0)
			r = err_sys(e, errno, "open cgroup '%s'", path);
	} else {
		r = open_procs(&join, root->tree[0], id, leaf, e);
	}
	/* The CPU limit comes last: it slows what the child has left to do. */
	for (unsigned i = 1; i < root->ntrees && r == 0; i++)
		r = open_procs(&join, root->tree[i], id, NULL, e);
	if (r < 0) {
		cgroup_join_done(&join);
		return r;
	}
	*ret_join = join;
	return 0;
}

#define SUPERVISORS "supervisors"

/* On v2 they share the CPU with every sandbox's group and answer for all. */
static int supervisors_make(const struct cgroup_root *root, struct err *e)
{
	if (mkdirat(root->tree[0], SUPERVISORS, 0755) < 0)
		return errno == EEXIST ? 0
				       : err_sys(e, errno, "make cgroup '%s'",
						 SUPERVISORS);
	if (root->mode == CGROUP_V2)
		return cgroup_set(root->cpu, SUPERVISORS, "cpu.weight", 10000,
				  e);
	return 0;
}

/* v1 processes may stand beside groups: in the parent itself, with no group to
 * be made, and for memory alone, the one tree where a session's limit hurts. */
static int supervisors_v1(const struct cgroup_root *root,
			  struct cgroup_join *join, struct err *e)
{
	int fd;

	if (root->mode == CGROUP_V2)
		return 0;
	fd = openat(root->memory, "cgroup.procs", O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open cgroup.procs");
	join->procs[join->n++] = fd;
	return 0;
}

int cgroup_supervisor_prepare(const struct cgroup_root *root,
			      struct cgroup_join *ret_join, struct err *e)
{
	struct cgroup_join join = {.into = -1};
	int flags = O_PATH | O_DIRECTORY | O_CLOEXEC, r = 0;

	if (root->clone_into) {
		join.into = openat(root->tree[0], SUPERVISORS, flags);
		if (join.into < 0 && errno == ENOENT) {
			r = supervisors_make(root, e);
			join.into = openat(root->tree[0], SUPERVISORS, flags);
		}
		if (r == 0 && join.into < 0)
			r = err_sys(e, errno, "open cgroup '%s'", SUPERVISORS);
	} else {
		r = supervisors_make(root, e);
		if (r == 0)
			r = open_procs(&join, root->tree[0], SUPERVISORS, NULL,
				       e);
	}
	if (r == 0)
		r = supervisors_v1(root, &join, e);
	if (r < 0) {
		cgroup_join_done(&join);
		return r;
	}
	*ret_join = join;
	return 0;
}

/* write() without errno, which a child that shares our memory must not set. */
static long raw_write(int fd, const void *data, size_t len)
{
#if defined(__x86_64__)
	long r;

	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "0"((long)SYS_write), "D"((long)fd), "S"(data),
			   "d"(len)
			 : "rcx", "r11", "memory");
	return r;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = SYS_write;
	register long x0 __asm__("x0") = fd;
	register const void *x1 __asm__("x1") = data;
	register size_t x2 __asm__("x2") = len;

	__asm__ volatile("svc #0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2)
			 : "memory");
	return x0;
#else
#error "write a raw system call for this machine"
#endif
}

int cgroup_leaf_join(const struct cgroup_join *join)
{
	long r;

	for (unsigned i = 0; i < join->n; i++) {
		do
			r = raw_write(join->procs[i], "0", 1);
		while (r == -EINTR);
		if (r < 0)
			return (int)r;
	}
	return 0;
}

void cgroup_join_done(struct cgroup_join *join)
{
	if (join->into >= 0)
		fd_close(join->into);
	join->into = -1;
	while (join->n > 0)
		fd_close(join->procs[--join->n]);
}

static int remove_at(int tree, const char *path, struct err *e)
{
	if (unlinkat(tree, path, AT_REMOVEDIR) == 0 || errno == ENOENT)
		return 0;
	return err_sys(e, errno, "remove cgroup '%s'", path);
}

int cgroup_leaf_remove(const struct cgroup_root *root, const char *id,
		       const char *leaf, struct err *e)
{
	char path[CGROUP_PATH_MAX];
	int r;

	r = cgroup_path(path, id, leaf, NULL, e);
	return r < 0 ? r : remove_at(root->tree[0], path, e);
}

static int remove_leaf(const struct cgroup_root *root, const char *id,
		       const char *leaf, void *arg, struct err *e)
{
	(void)arg;
	return cgroup_leaf_remove(root, id, leaf, e);
}

/* Mostly init's is the only leaf; look for others only if not. */
static int remove_leaves(const struct cgroup_root *root, const char *id,
			 struct err *e)
{
	int r = cgroup_leaf_remove(root, id, "init", NULL);

	return r ? cgroup_each_leaf(root, id, remove_leaf, NULL, e) : 0;
}

/* The tree of leaves comes last: while the group is there, a removal that was
 * interrupted can be seen and finished. */
int cgroup_remove(const struct cgroup_root *root, const char *id, struct err *e)
{
	int r;

	r = remove_leaves(root, id, e);
	for (unsigned i = 1; i < root->ntrees && r == 0; i++)
		r = remove_at(root->tree[i], id, e);
	return r < 0 ? r : remove_at(root->tree[0], id, e);
}
