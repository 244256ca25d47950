/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "box/user.h"

#define FILE_MAX   (1024 * 1024)
#define GROUPS_MAX 1024
#define WORD_MAX   256

/* A line of passwd or group, cut at its colons in place. */
struct line {
	char *field[7];
	unsigned n;
};

void user_done(struct user *u)
{
	free(u->groups);
	free(u->name);
	free(u->home);
	*u = (struct user){0};
}

/* A file of the sandbox as text; NULL where there is none to be had. */
static char *read_inside(int root_fd, const char *path)
{
	auto_close int fd = -1;
	char *text = NULL;
	struct stat st;

	fd = fd_openat2(root_fd, path, O_RDONLY | O_NONBLOCK | O_NOCTTY,
			RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return NULL;
	if (fd_read_all(fd, FILE_MAX, &text, NULL, NULL) < 0)
		return NULL;
	return text;
}

/* Decimal, no sign, no leading zero, in the sandbox's range; or -1. */
static long id_of(const char *s)
{
	size_t n = strspn(s, "0123456789");
	long v;

	if (n == 0 || n > 9 || s[n] != '\0' || (s[0] == '0' && n > 1))
		return -1;
	v = strtol(s, NULL, 10);
	return v < USER_IDS ? v : -1;
}

static bool is_digits(const char *s)
{
	return *s && s[strspn(s, "0123456789")] == '\0';
}

/* The next line of *${text}, split; false at the end. */
static bool next_line(char **text, struct line *ret)
{
	char *s = *text, *end;

	if (!s || !*s)
		return false;
	end = strchrnul(s, '\n');
	*text = *end ? end + 1 : end;
	*end = '\0';
	ret->n = 0;
	while (s && ret->n < array_len(ret->field)) {
		ret->field[ret->n++] = s;
		s = strchr(s, ':');
		if (s)
			*s++ = '\0';
	}
	return true;
}

/*
 * The first passwd line for name or uid (name NULL).  1: found, 0: not,
 * -ENOMEM.
 */
static int from_passwd(int root_fd, const char *name, long uid,
		       struct user *ret)
{
	auto_free char *text = read_inside(root_fd, "etc/passwd");
	char *rest = text;
	long u, g;
	struct line l;

	while (next_line(&rest, &l)) {
		if (l.n < 6)
			continue;
		u = id_of(l.field[2]);
		g = id_of(l.field[3]);
		if (u < 0 || g < 0 || l.field[0][0] == '\0')
			continue;
		if (name ? strcmp(name, l.field[0]) != 0 : u != uid)
			continue;
		ret->uid = (uid_t)u;
		ret->gid = (gid_t)g;
		ret->name = strdup(l.field[0]);
		ret->home = strdup(l.field[5][0] == '/' ? l.field[5] : "/");
		return ret->name && ret->home ? 1 : -ENOMEM;
	}
	return 0;
}

static bool is_member(char *members, const char *name)
{
	size_t n = strlen(name);

	for (char *m = members; m && *m; m = strchr(m, ',')) {
		m += *m == ',';
		if (!strncmp(m, name, n) && (m[n] == ',' || m[n] == '\0'))
			return true;
	}
	return false;
}

static int add_group(struct user *u, gid_t gid)
{
	gid_t *p;

	if (gid == u->gid || u->ngroups >= GROUPS_MAX)
		return 0;
	for (size_t i = 0; i < u->ngroups; i++)
		if (u->groups[i] == gid)
			return 0;
	p = realloc(u->groups, (u->ngroups + 1) * sizeof(*p));
	if (!p)
		return -ENOMEM;
	u->groups = p;
	u->groups[u->ngroups++] = gid;
	return 0;
}

static int supplementary(int root_fd, struct user *u)
{
	auto_free char *text = NULL;
	char *rest;
	struct line l;
	long gid;
	int r;

	if (!u->name)
		return 0;
	text = read_inside(root_fd, "etc/group");
	rest = text;
	while (next_line(&rest, &l)) {
		if (l.n < 4 || !is_member(l.field[3], u->name))
			continue;
		gid = id_of(l.field[2]);
		r = gid < 0 ? 0 : add_group(u, (gid_t)gid);
		if (r < 0)
			return r;
	}
	return 0;
}

static long group_by_name(int root_fd, const char *name)
{
	auto_free char *text = read_inside(root_fd, "etc/group");
	char *rest = text;
	struct line l;

	while (next_line(&rest, &l))
		if (l.n >= 3 && !strcmp(l.field[0], name))
			return id_of(l.field[2]);
	return -1;
}

static int unknown(struct err *e, const char *what, const char *word)
{
	return err_set(e, -ENOENT, "user_unknown", "the sandbox has no %s '%s'",
		       what, word);
}

static int resolve_user(int root_fd, const char *word, struct user *u,
			struct err *e)
{
	long uid = -1;
	int r;

	if (is_digits(word)) {
		uid = id_of(word);
		if (uid < 0)
			return unknown(e, "user", word);
	}
	r = from_passwd(root_fd, uid < 0 ? word : NULL, uid, u);
	if (r < 0)
		return err_sys(e, ENOMEM, "user '%s'", word);
	if (r == 0 && uid < 0 && !strcmp(word, "root"))
		uid = 0; /* needs no file to say so */
	if (r == 0 && uid < 0)
		return unknown(e, "user", word);
	if (r > 0)
		return 0;
	u->uid = (uid_t)uid;
	u->gid = (gid_t)uid;
	u->home = strdup("/");
	return u->home ? 0 : err_sys(e, ENOMEM, "user '%s'", word);
}

static int resolve_group(int root_fd, const char *word, struct user *u,
			 struct err *e)
{
	long gid = is_digits(word) ? id_of(word) : group_by_name(root_fd, word);

	if (gid < 0)
		return unknown(e, "group", word);
	u->gid = (gid_t)gid;
	return 0;
}

static int resolve(int root_fd, const char *name, const char *group,
		   struct user *ret, struct err *e)
{
	int r;

	r = resolve_user(root_fd, name, ret, e);
	if (r < 0)
		return r;
	if (group)
		return resolve_group(root_fd, group, ret, e);
	if (supplementary(root_fd, ret) < 0)
		return err_sys(e, ENOMEM, "groups of '%s'", name);
	return 0;
}

int user_resolve(int root_fd, const char *word, const char *dflt,
		 struct user *ret, struct err *e)
{
	char name[WORD_MAX + 1], own[WORD_MAX + 1], *colon, *group = NULL;
	struct user u = {0};
	size_t n = strlen(word);
	int r;

	if (n == 0 || n > WORD_MAX)
		return unknown(e, "user", n ? "(too long)" : "");
	memcpy(name, word, n + 1);
	colon = strchr(name, ':');
	if (colon) {
		*colon = '\0';
		group = colon + 1;
		if (!*group || strchr(group, ':'))
			return unknown(e, "group", word);
	}
	if (name[0] == '\0') {
		n = strcspn(dflt, ":");
		dflt = n > 0 && n <= WORD_MAX ? dflt : "0";
		snprintf(own, sizeof(own), "%.*s", (int)strcspn(dflt, ":"),
			 dflt);
	}
	r = resolve(root_fd, name[0] ? name : own, group, &u, e);
	if (r < 0) {
		user_done(&u);
		return r;
	}
	*ret = u;
	return 0;
}
