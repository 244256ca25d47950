/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/hash.h"
#include "box/claim.h"
#include "box/ledger_priv.h"

static const char magic[8] = {'d', 's', 'e', 'c', 'l', 'e', 'd', '3'};

/* Against a torn or foreign file, not against an enemy, who could not write
 * here. */
static uint64_t check_of(const struct ledger_data *d)
{
	struct ledger_data copy = *d;

	copy.marked = 0;
	return hash_fnv(&copy, offsetof(struct ledger_data, check));
}

bool ledger_has_claim(const struct tree *t, const char *id)
{
	char path[PATH_MAX];

	return tree_is_id(id) &&
	       tree_path(path, NULL, "%s/sb/%s/claim.json", t->run, id) == 0 &&
	       access(path, F_OK) == 0;
}

/* Every entry of ${dir} that is not "." or a hidden file. */
typedef int entry_fn(struct ledger *l, int dirfd, const char *name,
		     struct err *e);

static int each_entry(struct ledger *l, int dirfd, entry_fn *fn, struct err *e)
{
	auto_dir DIR *d = NULL;
	auto_close int fd = -1;
	const struct dirent *de;
	int r = 0;

	fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open a directory");
	d = fdopendir(fd);
	if (!d)
		return err_sys(e, errno, "read a directory");
	steal_fd(&fd);
	while (r == 0 && (de = readdir(d)))
		if (strcmp(de->d_name, ".") && strcmp(de->d_name, ".."))
			r = fn(l, dirfd, de->d_name, e);
	return r;
}

static int each_in(struct ledger *l, const char *sub, entry_fn *fn,
		   struct err *e)
{
	auto_close int fd = -1;
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/%s", l->tree->run, sub);
	if (r < 0)
		return r;
	fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	r = each_entry(l, fd, fn, e);
	return r < 0 ? err_wrap(e, r, "'%s'", path) : 0;
}

void ledger_hold(struct ledger *l, const struct admit_amounts *a,
		 const char *user)
{
	struct admit_tenants *t = &l->d.tenants;

	if (!l->d.held.sandboxes || !t->users) {
		t->users = 1;
		snprintf(t->user, sizeof(t->user), "%s", user);
	} else if (strcmp(t->user, user)) {
		t->users = 2;
	}
	admit_add(&l->d.held, a);
}

void ledger_drop(struct ledger *l, const struct admit_amounts *a)
{
	admit_sub(&l->d.held, a);
	if (!l->d.held.sandboxes)
		l->d.tenants.users = 0;
}

static int add_claim(struct ledger *l, int dirfd, const char *name,
		     struct err *e)
{
	auto_json json_t *claim = NULL;
	struct admit_amounts a;
	char path[NAME_MAX + 16];
	int r;

	if (!tree_is_id(name))
		return 0;
	snprintf(path, sizeof(path), "%s/claim.json", name);
	r = json_read_file(dirfd, path, &claim, e);
	if (r == -ENOENT || r == -ENOTDIR)
		return 0; /* for ledger_prune() */
	/* One that does not read counts as a sandbox all the same. */
	if (r < 0 && r != -EBADMSG && r != -EFBIG)
		return r;
	a = claim_amounts(claim);
	ledger_hold(l, &a, json_str(claim, "user"));
	return 0;
}

static int rebuild(struct ledger *l, struct err *e)
{
	uint32_t next_slot = l->d.next_slot;
	int r;

	memset(&l->d, 0, sizeof(l->d));
	l->d.next_slot = next_slot; /* any number will do */
	l->d.config = ledger_config(l->tree);
	r = ledger_measure(l->tree, &l->d, e);
	if (r == 0)
		r = ledger_mark(l, e);
	if (r == 0)
		r = ledger_prune(l, e);
	if (r == 0)
		r = each_in(l, "sb", add_claim, e);
	return r < 0 ? r : ledger_commit(l, e);
}

int ledger_open(const struct tree *t, struct ledger *l, struct err *e)
{
	char path[PATH_MAX];
	ssize_t n;
	int r;

	memset(l, 0, sizeof(*l));
	l->tree = t;
	l->fd = -1;
	r = tree_path(path, e, "%s/ledger", t->run);
	if (r < 0)
		return r;
	l->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (l->fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	do
		r = flock(l->fd, LOCK_EX);
	while (r < 0 && errno == EINTR);
	if (r < 0) {
		r = err_sys(e, errno, "lock '%s'", path);
		goto err;
	}
	n = pread(l->fd, &l->d, sizeof(l->d), 0);
	if (n < 0) {
		r = err_sys(e, errno, "read '%s'", path);
		goto err;
	}
	if (n == sizeof(l->d) && !memcmp(l->d.magic, magic, sizeof(magic)) &&
	    !l->d.marked && l->d.check == check_of(&l->d) &&
	    l->d.config == ledger_config(t))
		return 0;
	r = rebuild(l, e);
	if (r == 0)
		return 0;
	err_wrap(e, r, "rebuild '%s'", path);
err:
	ledger_close(l);
	return r;
}

void ledger_close(struct ledger *l)
{
	if (l->fd >= 0)
		fd_close(l->fd);
	l->fd = -1;
}

static int put(struct ledger *l, const void *data, size_t len, off_t at,
	       struct err *e)
{
	ssize_t n;

	do
		n = pwrite(l->fd, data, len, at);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_sys(e, errno, "write the ledger");
	return (size_t)n == len ? 0 : err_sys(e, ENOSPC, "write the ledger");
}

int ledger_mark(struct ledger *l, struct err *e)
{
	const uint32_t yes = 1;

	return put(l, &yes, sizeof(yes), offsetof(struct ledger_data, marked),
		   e);
}

int ledger_commit(struct ledger *l, struct err *e)
{
	memcpy(l->d.magic, magic, sizeof(magic));
	l->d.marked = 0;
	l->d.check = check_of(&l->d);
	return put(l, &l->d, sizeof(l->d), 0, e);
}

/* A link under uid/ or name/, whose text is an id. */
static int prune_link(struct ledger *l, int dirfd, const char *name,
		      struct err *e)
{
	char id[BOX_ID_LEN + 2];
	ssize_t n = readlinkat(dirfd, name, id, sizeof(id));

	if (n == BOX_ID_LEN) {
		id[n] = '\0';
		if (ledger_has_claim(l->tree, id))
			return 0;
	}
	if (unlinkat(dirfd, name, 0) < 0 && errno != ENOENT)
		return err_sys(e, errno, "remove '%s'", name);
	return 0;
}

static int prune_task(struct ledger *l, int dirfd, const char *name,
		      struct err *e)
{
	auto_close int fd = -1;
	int r;

	fd = openat(dirfd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", name);
	r = each_entry(l, fd, prune_link, e);
	if (r < 0)
		return r;
	unlinkat(dirfd, name, AT_REMOVEDIR); /* goes if nothing is in it */
	return 0;
}

static int prune_dir(struct ledger *l, int dirfd, const char *name,
		     struct err *e)
{
	if (!tree_is_id(name) || ledger_has_claim(l->tree, name))
		return 0;
	return fd_remove_tree(dirfd, name, e);
}

int ledger_prune(struct ledger *l, struct err *e)
{
	int r;

	r = each_in(l, "sb", prune_dir, e);
	if (r == 0)
		r = each_in(l, "uid", prune_link, e);
	if (r == 0)
		r = each_in(l, "name", prune_link, e);
	return r < 0 ? r : each_in(l, "task", prune_task, e);
}
