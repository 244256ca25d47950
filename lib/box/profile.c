/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/proc.h"
#include "box/profile.h"
#include "box/profile_file.h"
#include "sys/raw.h"

/* Lower case, digits and "-": never a path. */
static bool is_name(const char *name)
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");

	return n > 0 && n <= sizeof(((struct profile_file *)0)->name) &&
	       !name[n];
}

static int damaged(const char *path, const char *why, struct err *e)
{
	return err_set(e, -EBADMSG, "configuration",
		       "profile %s %s: build and install it again", path, why);
}

/* ${h} is the head of ${len} bytes: hold every length against that. */
static int check(struct profile_file *h, size_t len, const char *name,
		 const char *path, struct err *e)
{
	size_t want = sizeof(*h);
	uint64_t digest;

	if (len < sizeof(*h) || memcmp(h->magic, PROFILE_MAGIC, 8) != 0)
		return damaged(path, "is not a compiled profile", e);
	if (h->version != PROFILE_VERSION)
		return damaged(path, "is of another version", e);
	if (h->arch != PROFILE_ARCH)
		return damaged(path, "is of another architecture", e);
	if (h->nfilters < 1 || h->nfilters > PROFILE_FILTERS_MAX)
		return damaged(path, "has a bad number of filters", e);
	for (unsigned i = 0; i < PROFILE_FILTERS_MAX; i++) {
		if ((i < h->nfilters) != (h->lens[i] > 0) ||
		    h->lens[i] > BPF_MAXINSNS)
			return damaged(path, "has a filter of bad length", e);
		want += h->lens[i] * sizeof(struct sock_filter);
	}
	if (want != len)
		return damaged(path, "has a bad length", e);
	digest = h->digest;
	h->digest = 0;
	if (profile_digest(h, len) != digest)
		return damaged(path, "is damaged", e);
	if (h->flags & ~(uint32_t)PROFILE_FLAGS)
		return damaged(path, "has unknown flags", e);
	if (h->caps & (1ULL << PROFILE_INIT_CAP | 1ULL << CAP_SYS_PTRACE))
		return damaged(path, "has a capability to trace pid 1 by", e);
	if (strncmp(h->name, name, sizeof(h->name)) != 0)
		return damaged(path, "is another profile", e);
	return 0;
}

static int fill(const struct profile_file *h, size_t len, struct profile *p,
		struct err *e)
{
	struct sock_filter *insns;

	p->blob = malloc(len);
	if (!p->blob)
		return err_sys(e, ENOMEM, "profile");
	memcpy(p->blob, h, len);
	memcpy(p->name, h->name, sizeof(h->name));
	p->nested = h->flags & PROFILE_NESTED;
	p->sealed = h->flags & PROFILE_SEALED;
	p->checkpointable = h->flags & PROFILE_CHECKPOINTABLE;
	p->caps = h->caps;
	p->nfilters = h->nfilters;
	insns = (struct sock_filter *)(void *)(p->blob + sizeof(*h));
	for (unsigned i = 0; i < h->nfilters; i++) {
		p->filters[i].len = (unsigned short)h->lens[i];
		p->filters[i].filter = insns;
		insns += h->lens[i];
	}
	return 0;
}

int profile_load(const char *name, struct profile *ret, struct err *e)
{
	/* Most of it stays untouched: zeroing would cost its pages. */
	union {
		struct profile_file head;
		char bytes[PROFILE_FILE_MAX];
	} u __attribute__((uninitialized));
	struct profile p = {0};
	char path[PATH_MAX], file[64];
	auto_close int fd = -1;
	ssize_t n;
	int r;

	if (!is_name(name))
		return err_set(e, -EINVAL, "bad_value",
			       "'profile': there is no profile '%.40s'", name);
	snprintf(file, sizeof(file), "%s.bpf", name);
	r = proc_libexec(file, path, sizeof(path), e);
	if (r < 0)
		return r;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return err_set(e, -EINVAL, "bad_value",
			       "'profile': there is no profile '%s' (%s)", name,
			       path);
	if (fd < 0)
		return err_sys(e, errno, "open profile %s", path);
	n = read(fd, u.bytes, sizeof(u.bytes));
	if (n < 0)
		return err_sys(e, errno, "read profile %s", path);
	r = check(&u.head, (size_t)n, name, path, e);
	if (r < 0)
		return r;
	r = fill(&u.head, (size_t)n, &p, e);
	if (r < 0)
		return r;
	*ret = p;
	return 0;
}

void profile_done(struct profile *p)
{
	free(p->blob);
	memset(p, 0, sizeof(*p));
}

/*
 * What is held already and no more: after the change to another uid that is
 * nothing.  Ambient capabilities go with the inheritable ones.
 */
static int cut_caps(uint64_t caps)
{
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct d[2];
	long r;

	r = raw_call(SYS_capget, (long)&h, (long)d, 0, 0, 0);
	if (r < 0)
		return (int)r;
	for (unsigned i = 0; i < 2; i++) {
		d[i].permitted &= (uint32_t)(caps >> (32 * i));
		d[i].effective = d[i].permitted;
		d[i].inheritable = 0;
	}
	return (int)raw_call(SYS_capset, (long)&h, (long)d, 0, 0, 0);
}

static int apply(const struct profile *p, uint64_t caps)
{
	long r;

	r = cut_caps(caps);
	if (r < 0)
		return (int)r;
	r = raw_call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	for (unsigned i = 0; r == 0 && i < p->nfilters; i++)
		r = raw_call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0,
			     (long)&p->filters[i], 0, 0);
	return (int)r;
}

int profile_apply(const struct profile *p)
{
	return apply(p, p->caps);
}

int profile_apply_init(const struct profile *p)
{
	return apply(p, p->caps | 1ULL << PROFILE_INIT_CAP);
}

int profile_leave_init(const struct profile *p)
{
	return cut_caps(p->caps);
}
