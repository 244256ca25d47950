/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "box/claim.h"
#include "box/ledger_priv.h"
#include "box/net_priv.h"

/* A node that is full is asked often; the dead are looked for only so often. */
#define SWEEP_EVERY_MS 200

struct admit_amounts claim_amounts(const json_t *spec)
{
	const json_t *cpu = json_object_get(spec, "cpu_cores_limit");

	return (struct admit_amounts){
		.memory_mb = (uint64_t)json_int(spec, "memory_limit_mb", 0),
		.cpu_milli = (uint64_t)(json_number_value(cpu) * 1000 + 0.5),
		.disk_mb = (uint64_t)json_int(spec, "disk_limit_mb", 0),
		.pids = (uint64_t)json_int(spec, "pids_limit", 0),
		.sandboxes = 1,
	};
}

/* Links: uid/<slot>, name/<name> and task/<task>/<id>, each saying the id. */

static int link_path(char *path, const struct tree *t, const char *dir,
		     const char *name, struct err *e)
{
	return tree_path(path, e, "%s/%s/%s", t->run, dir, name);
}

/* The id that a link says, into id[BOX_ID_LEN + 1]; "" if none. */
static void link_read(const char *path, char *id)
{
	ssize_t n = readlink(path, id, BOX_ID_LEN + 1);

	id[n == BOX_ID_LEN ? n : 0] = '\0';
}

static void link_remove(const struct tree *t, const char *dir, const char *name,
			const char *id)
{
	char path[PATH_MAX], is[BOX_ID_LEN + 1];

	if (link_path(path, t, dir, name, NULL) < 0)
		return;
	link_read(path, is);
	if (!strcmp(is, id))
		unlink(path);
}

/* 0; -EEXIST: somebody with a claim has it.  A link of nobody's is replaced. */
static int link_make(const struct tree *t, const char *dir, const char *name,
		     const char *id, struct err *e)
{
	char path[PATH_MAX], is[BOX_ID_LEN + 1];
	int r;

	r = link_path(path, t, dir, name, e);
	if (r < 0 || symlink(id, path) == 0)
		return r;
	if (errno != EEXIST)
		return err_sys(e, errno, "link '%s'", path);
	link_read(path, is);
	if (ledger_has_claim(t, is))
		return -EEXIST;
	if (unlink(path) < 0 || symlink(id, path) < 0)
		return err_sys(e, errno, "link '%s'", path);
	return 0;
}

static int task_make(const struct tree *t, const char *task, const char *id,
		     struct err *e)
{
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/task/%s/%s", t->run, task, id);
	if (r < 0 || symlink(id, path) == 0)
		return r;
	if (errno == ENOENT) {
		*strrchr(path, '/') = '\0';
		if (mkdir(path, 0700) < 0)
			return err_sys(e, errno, "make '%s'", path);
		path[strlen(path)] = '/';
		if (symlink(id, path) == 0)
			return 0;
	}
	return err_sys(e, errno, "link '%s'", path);
}

static void task_remove(const struct tree *t, const char *task, const char *id)
{
	char path[PATH_MAX];

	if (tree_path(path, NULL, "%s/task/%s/%s", t->run, task, id) < 0)
		return;
	unlink(path);
	*strrchr(path, '/') = '\0';
	rmdir(path); /* the task ends with its last sandbox */
}

/* A slot's number is that of its uids, so that a node whose uid_first was
 * changed never gives out a range that is held under another number. */
static int slot_link(const struct tree *t, uint32_t slot, const char *id,
		     struct err *e)
{
	char name[16];

	snprintf(name, sizeof(name), "%u", slot);
	return link_make(t, "uid", name, id, e);
}

/* That of ${want}, where it can be had; else the next that is free. */
static int slot_make(struct ledger *l, const struct claim_want *want,
		     uint32_t *ret_slot, struct err *e)
{
	uint32_t n = l->d.slots, first = l->d.slot_first, i, k;
	int r;

	*ret_slot = want->slot;
	if (want->slot >= first && want->slot - first < n) {
		r = slot_link(l->tree, want->slot, want->id, e);
		if (r != -EEXIST)
			return r;
	}
	for (i = 0; i < n; i++) {
		k = (l->d.next_slot + i) % n;
		r = slot_link(l->tree, first + k, want->id, e);
		if (r == -EEXIST)
			continue;
		if (r < 0)
			return r;
		l->d.next_slot = (k + 1) % n;
		*ret_slot = first + k;
		return 0;
	}
	return err_set(e, -EAGAIN, "count", "all %u uid ranges are held", n);
}

static void slot_remove(const struct tree *t, uint32_t slot, const char *id)
{
	char name[16];

	snprintf(name, sizeof(name), "%u", slot);
	link_remove(t, "uid", name, id);
}

/* What a sandbox holds of ${want}->spec now. */
static struct admit_amounts amounts_of(const struct claim_want *want)
{
	struct admit_amounts a = claim_amounts(want->spec);

	if (want->size == CLAIM_DISK_ONLY)
		a.memory_mb = a.cpu_milli = a.pids = 0;
	return a;
}

/* The keys of claim.json that say how much, as ${want} has them. */
static int set_amounts(json_t *obj, const struct claim_want *want,
		       struct err *e)
{
	static const char *const keys[] = {
		"disk_limit_mb",
		"cpu_cores_limit", /* from here on only what runs */
		"memory_limit_mb",
		"pids_limit",
	};
	size_t n = want->size == CLAIM_DISK_ONLY ? 1 : array_len(keys);
	json_t *v;

	for (size_t i = 0; i < array_len(keys); i++) {
		v = i < n ? json_object_get(want->spec, keys[i]) : NULL;
		if (!v)
			json_object_del(obj, keys[i]);
		else if (json_object_set(obj, keys[i], v) < 0)
			return err_sys(e, ENOMEM, "claim");
	}
	return 0;
}

/* claim.json: keys of the spec that tell what is held and by whom. */
static int describe(const struct claim_want *want, const struct claim *claim,
		    json_t **ret, struct err *e)
{
	static const char *const keys[] = {
		"name", "task", "project", "user", "backend", "labels", "image",
	};
	auto_json json_t *obj = NULL;
	json_t *v;
	int r;

	r = json_pack_or(&obj, e, "{s:s, s:s, s:I, s:I, s:i, s:I}", "sandbox",
			 want->id, "kind", want->kind, "slot",
			 (json_int_t)claim->slot, "uid_base",
			 (json_int_t)claim->uid_base, "pid", (int)getpid(),
			 "created_ms", (json_int_t)clock_wall_ms());
	if (r < 0)
		return r;
	for (size_t i = 0; i < array_len(keys); i++) {
		v = json_object_get(want->spec, keys[i]);
		if (v && json_object_set(obj, keys[i], v) < 0)
			return err_sys(e, ENOMEM, "claim");
	}
	if (want->layers &&
	    json_object_set(obj, "layers", (json_t *)(uintptr_t)want->layers) <
		    0)
		return err_sys(e, ENOMEM, "claim");
	r = set_amounts(obj, want, e);
	if (r == 0)
		*ret = steal_ptr(obj);
	return r;
}

/* It appears under its name complete and locked. */
static int put_claim(const struct tree *t, const char *id, const json_t *obj,
		     int *ret_fd, struct err *e)
{
	auto_free char *text = NULL;
	auto_close int fd = -1;
	char path[PATH_MAX], tmp[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb/%s/claim.json", t->run, id);
	if (r == 0)
		r = tree_path(tmp, e, "%s/sb/%s/.claim", t->run, id);
	if (r < 0)
		return r;
	text = json_dumps(obj, JSON_COMPACT);
	if (!text)
		return err_sys(e, ENOMEM, "claim");
	if (strlen(text) > JSON_LINE_MAX)
		return err_set(e, -EMSGSIZE, "too_large",
			       "name, task, project and labels together are "
			       "over %d bytes",
			       JSON_LINE_MAX);
	unlink(tmp); /* of one who was killed here */
	fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_sys(e, errno, "create '%s'", tmp);
	r = flock(fd, LOCK_EX | LOCK_NB) < 0
		    ? err_sys(e, errno, "lock '%s'", tmp)
		    : 0;
	if (r == 0)
		r = fd_write_all(fd, text, strlen(text), e);
	if (r == 0 && rename(tmp, path) < 0)
		r = err_sys(e, errno, "rename to '%s'", path);
	if (r < 0) {
		unlink(tmp);
		return r;
	}
	*ret_fd = steal_fd(&fd);
	return 0;
}

static int write_claim(const struct tree *t, const struct claim_want *want,
		       struct claim *claim, struct err *e)
{
	auto_json json_t *obj = NULL;
	int r;

	r = describe(want, claim, &obj, e);
	return r < 0 ? r : put_claim(t, want->id, obj, &claim->fd, e);
}

static int name_taken(const char *name, struct err *e)
{
	return err_set(e, -EEXIST, "name_taken",
		       "a live sandbox has the name '%s'", name);
}

static int make_links(struct ledger *l, const struct claim_want *want,
		      struct claim *claim, struct err *e)
{
	const char *name = json_str(want->spec, "name");
	const char *task = json_str(want->spec, "task");
	int r;

	r = slot_make(l, want, &claim->slot, e);
	if (r < 0)
		return r;
	claim->uid_base = claim->slot * CLAIM_UID_RANGE;
	if (*name)
		r = link_make(l->tree, "name", name, want->id, e);
	if (r == -EEXIST)
		r = name_taken(name, e);
	if (r < 0)
		goto err2;
	if (*task)
		r = task_make(l->tree, task, want->id, e);
	if (r < 0)
		goto err1;
	return 0;
err1:
	task_remove(l->tree, task, want->id);
	if (*name)
		link_remove(l->tree, "name", name, want->id);
err2:
	slot_remove(l->tree, claim->slot, want->id);
	return r;
}

static void remove_links(const struct tree *t, const char *id, uint32_t slot,
			 const json_t *spec)
{
	const char *name = json_str(spec, "name");
	const char *task = json_str(spec, "task");

	if (*task)
		task_remove(t, task, id);
	if (*name)
		link_remove(t, "name", name, id);
	slot_remove(t, slot, id);
}

/* With the ledger marked: directory, links, and last the claim itself. */
static int make_all(struct ledger *l, const struct claim_want *want,
		    struct claim *claim, struct err *e)
{
	char dir[PATH_MAX];
	int r;

	r = tree_path(dir, e, "%s/sb/%s", l->tree->run, want->id);
	if (r < 0)
		return r;
	if (mkdir(dir, 0700) < 0)
		return err_sys(e, errno, "make '%s'", dir);
	r = make_links(l, want, claim, e);
	if (r < 0)
		goto err2;
	r = write_claim(l->tree, want, claim, e);
	if (r < 0)
		goto err1;
	return 0;
err1:
	remove_links(l->tree, want->id, claim->slot, want->spec);
err2:
	rmdir(dir);
	return r;
}

static int decide(struct ledger *l, const struct admit_amounts *a,
		  struct err *e)
{
	struct admit_node node = {.capacity = l->d.capacity,
				  .held = l->d.held,
				  .rules = l->d.rules};
	int r;

	r = ledger_now(l, a, &node.now, e);
	return r < 0 ? r : admit_decide(&node, a, e);
}

/* A new sandbox. */
static int admit(struct ledger *l, const struct admit_amounts *a,
		 const json_t *spec, struct err *e)
{
	int r = decide(l, a, e);

	return r < 0 ? r
		     : admit_tenant(&l->d.tenants, json_str(spec, "user"), e);
}

int claim_check(const struct tree *t, const json_t *spec, struct err *e)
{
	const struct admit_amounts a = claim_amounts(spec);
	char path[PATH_MAX], id[BOX_ID_LEN + 1];
	const char *name = json_str(spec, "name");
	struct ledger l;
	int r;

	r = ledger_open(t, &l, e);
	if (r < 0)
		return r;
	r = admit(&l, &a, spec, e);
	if (r == 0 && *name)
		r = link_path(path, t, "name", name, e);
	if (r == 0 && *name) {
		link_read(path, id);
		if (ledger_has_claim(t, id))
			r = name_taken(name, e);
	}
	ledger_close(&l);
	return r;
}

static int take_locked(struct ledger *l, const struct claim_want *want,
		       void *arg, struct err *e)
{
	struct claim *claim = arg;
	struct admit_amounts a = amounts_of(want);
	int r;

	r = admit(l, &a, want->spec, e);
	if (r == 0)
		r = ledger_mark(l, e);
	if (r < 0)
		return r;
	r = make_all(l, want, claim, e);
	if (r == 0)
		ledger_hold(l, &a, json_str(want->spec, "user"));
	/* A ledger that cannot be written stays marked and is rebuilt; what was
	 * made or undone is right in any case. */
	(void)ledger_commit(l, NULL);
	return r;
}

static int remove_dir(const struct tree *t, const char *id, struct err *e)
{
	auto_close int sb = -1;
	char path[PATH_MAX], lock[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb/%s", t->run, id);
	if (r < 0 || rmdir(path) == 0 || errno == ENOENT)
		return r;
	/* All that is left of a network, as a rule. */
	r = tree_path(lock, e, "%s/" NET_LOCK, path);
	if (r < 0 || (unlink(lock) == 0 && rmdir(path) == 0))
		return r;
	*strrchr(path, '/') = '\0';
	sb = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (sb < 0)
		return err_sys(e, errno, "open '%s'", path);
	return fd_remove_tree(sb, id, e);
}

/* Of a claim that does not read, or that somebody has removed, nobody knows
 * what it held: the ledger stays marked, and the sums are made anew. */
static int release_unknown(struct ledger *l, const char *id, struct err *e)
{
	int r;

	r = ledger_mark(l, e);
	return r < 0 ? r : remove_dir(l->tree, id, e);
}

static int release_locked(struct ledger *l, const char *id, struct err *e)
{
	auto_json json_t *claim = NULL;
	struct admit_amounts a;
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb/%s/claim.json", l->tree->run, id);
	if (r < 0)
		return r;
	r = json_read_file(AT_FDCWD, path, &claim, e);
	if (r == -EBADMSG || r == -EFBIG)
		return release_unknown(l, id, e);
	if (r == -ENOENT) {
		*strrchr(path, '/') = '\0';
		return access(path, F_OK) < 0 ? 0 : release_unknown(l, id, e);
	}
	if (r == 0)
		r = ledger_mark(l, e);
	if (r < 0)
		return r;
	remove_links(l->tree, id, (uint32_t)json_int(claim, "slot", UINT32_MAX),
		     claim);
	if (unlink(path) < 0 && errno != ENOENT)
		return err_sys(e, errno, "remove '%s'", path);
	a = claim_amounts(claim);
	ledger_drop(l, &a);
	r = remove_dir(l->tree, id, e);
	(void)ledger_commit(l, NULL); /* if not, it stays marked */
	return r;
}

int claim_release(const struct tree *t, const char *id, int *fd, struct err *e)
{
	struct ledger l;
	int r;

	r = ledger_open(t, &l, e);
	if (r < 0)
		return r;
	r = release_locked(&l, id, e);
	ledger_close(&l);
	if (r == 0 && fd && *fd >= 0)
		fd_close(steal_fd(fd));
	return r;
}

/* The lock of a claim whose holder is gone; -EBUSY: somebody lives. */
static int lock_dead(const struct tree *t, const char *id, int *ret_fd,
		     struct err *e)
{
	auto_close int fd = -1;
	char path[PATH_MAX];
	struct stat st;
	int r;

	r = tree_path(path, e, "%s/sb/%s/claim.json", t->run, id);
	if (r < 0)
		return r;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK
			       ? -EBUSY
			       : err_sys(e, errno, "lock '%s'", path);
	/* Released between our opening and our locking it. */
	if (fstat(fd, &st) < 0 || st.st_nlink == 0)
		return -ENOENT;
	*ret_fd = steal_fd(&fd);
	return 0;
}

/* 1 buried, 0 not dead, or -errno. */
static int bury_one(const struct tree *t, const char *id, claim_bury_fn *bury,
		    void *arg, struct err *e)
{
	auto_json json_t *claim = NULL;
	auto_close int fd = -1;
	char path[PATH_MAX];
	int r;

	r = lock_dead(t, id, &fd, e);
	if (r == -EBUSY || r == -ENOENT || r == -ENOTDIR)
		return 0;
	if (r == 0)
		r = tree_path(path, e, "%s/sb/%s/claim.json", t->run, id);
	if (r == 0)
		r = json_read_file(AT_FDCWD, path, &claim, e);
	if (r < 0 && r != -EBADMSG && r != -EFBIG)
		return r;
	r = bury ? bury(t, id, claim, arg, e) : 0;
	if (r == 0 && ledger_has_claim(t, id))
		r = claim_release(t, id, NULL, e);
	return r < 0 ? err_wrap(e, r, "bury '%s'", id) : 1;
}

/* One change of the ledger; *${ret_sweep}: refused, and the dead have not been
 * looked for of late. */
typedef int change_fn(struct ledger *l, const struct claim_want *want,
		      void *arg, struct err *e);

static int change_once(const struct tree *t, const struct claim_want *want,
		       change_fn *fn, void *arg, bool *ret_sweep, struct err *e)
{
	struct ledger l;
	int r;

	*ret_sweep = false;
	r = ledger_open(t, &l, e);
	if (r < 0)
		return r;
	r = fn(&l, want, arg, e);
	if (r == -EAGAIN && want->bury &&
	    clock_ms() - l.d.swept_ms >= SWEEP_EVERY_MS) {
		l.d.swept_ms = clock_ms();
		*ret_sweep = ledger_commit(&l, NULL) == 0;
	}
	ledger_close(&l);
	return r;
}

/* Whoever has the wanted name, if he is dead: 1 buried. */
static int bury_namesake(const struct tree *t, const struct claim_want *want)
{
	char path[PATH_MAX], id[BOX_ID_LEN + 1];

	if (link_path(path, t, "name", json_str(want->spec, "name"), NULL) < 0)
		return 0;
	link_read(path, id);
	return tree_is_id(id)
		       ? bury_one(t, id, want->bury, want->bury_arg, NULL)
		       : 0;
}

int claim_take(const struct tree *t, const struct claim_want *want,
	       struct claim *ret_claim, struct err *e)
{
	struct claim claim = {.fd = -1};
	unsigned buried = 0;
	bool sweep;
	int r;

	r = change_once(t, want, take_locked, &claim, &sweep, e);
	if (r == -EEXIST && want->bury)
		buried = bury_namesake(t, want) == 1;
	else if (sweep)
		(void)claim_sweep(t, want->bury, want->bury_arg, &buried, NULL);
	if (r < 0 && buried > 0)
		r = change_once(t, want, take_locked, &claim, &sweep, e);
	if (r == 0)
		*ret_claim = claim;
	return r;
}

/*
 * The lock is of the file, so the new claim.json is locked before it has the
 * name, and the caller's descriptor becomes one of it only then: whoever looks
 * meanwhile finds a lock held, or a file that has no name any more.
 */
static int resize_locked(struct ledger *l, const struct claim_want *want,
			 void *arg, struct err *e)
{
	struct admit_amounts was, is, grown;
	auto_json json_t *obj = NULL;
	auto_close int fd = -1;
	const int *held = arg;
	char path[PATH_MAX];
	int r, flags;

	flags = fcntl(*held, F_GETFD);
	if (flags < 0)
		return err_sys(e, errno, "the lock of claim '%s'", want->id);
	r = tree_path(path, e, "%s/sb/%s/claim.json", l->tree->run, want->id);
	if (r == 0)
		r = json_read_file(AT_FDCWD, path, &obj, e);
	if (r < 0)
		return r;
	was = claim_amounts(obj);
	r = set_amounts(obj, want, e);
	if (r < 0)
		return r;
	grown = is = claim_amounts(obj);
	admit_sub(&grown, &was);
	if (grown.memory_mb || grown.cpu_milli || grown.disk_mb || grown.pids)
		r = decide(l, &grown, e);
	if (r == 0)
		r = ledger_mark(l, e);
	if (r < 0)
		return r;
	r = put_claim(l->tree, want->id, obj, &fd, e);
	if (r == 0) {
		while (dup3(fd, *held, flags & FD_CLOEXEC ? O_CLOEXEC : 0) < 0)
			assert(errno == EINTR || errno == EBUSY);
		admit_sub(&l->d.held, &was);
		admit_add(&l->d.held, &is);
	}
	(void)ledger_commit(l, NULL); /* if not, it stays marked */
	return r;
}

int claim_resize(const struct tree *t, const struct claim_want *want, int fd,
		 struct err *e)
{
	unsigned buried = 0;
	bool sweep;
	int r;

	r = change_once(t, want, resize_locked, &fd, &sweep, e);
	if (sweep)
		(void)claim_sweep(t, want->bury, want->bury_arg, &buried, NULL);
	if (r < 0 && buried > 0)
		r = change_once(t, want, resize_locked, &fd, &sweep, e);
	return r;
}

static int sweep_claims(const struct tree *t, claim_bury_fn *bury, void *arg,
			unsigned *ret_buried, struct err *e)
{
	auto_dir DIR *d = NULL;
	const struct dirent *de;
	char path[PATH_MAX];
	int r, first = 0;

	r = tree_path(path, e, "%s/sb", t->run);
	if (r < 0)
		return r;
	d = opendir(path);
	if (!d)
		return errno == ENOENT ? 0
				       : err_sys(e, errno, "open '%s'", path);
	while ((de = readdir(d))) {
		if (!tree_is_id(de->d_name))
			continue;
		r = bury_one(t, de->d_name, bury, arg, first ? NULL : e);
		if (r < 0 && first == 0)
			first = r;
		if (r > 0 && ret_buried)
			(*ret_buried)++;
	}
	return first;
}

int claim_sweep(const struct tree *t, claim_bury_fn *bury, void *arg,
		unsigned *ret_buried, struct err *e)
{
	struct ledger l;
	int r, swept;

	if (ret_buried)
		*ret_buried = 0;
	swept = sweep_claims(t, bury, arg, ret_buried, e);
	r = ledger_open(t, &l, swept < 0 ? NULL : e);
	if (r == 0) {
		r = ledger_prune(&l, swept < 0 ? NULL : e);
		ledger_close(&l);
	}
	return swept < 0 ? swept : r;
}

int claim_slots(const struct tree *t, uint32_t *ret_n, struct err *e)
{
	struct ledger l;
	int r;

	r = ledger_open(t, &l, e);
	if (r < 0)
		return r;
	*ret_n = l.d.slots;
	ledger_close(&l);
	return 0;
}

int claim_node(const struct tree *t, struct admit_node *ret_node, struct err *e)
{
	const struct admit_amounts most = {.memory_mb = UINT32_MAX};
	struct admit_node node;
	struct ledger l;
	int r;

	r = ledger_open(t, &l, e);
	if (r < 0)
		return r;
	node = (struct admit_node){.capacity = l.d.capacity,
				   .held = l.d.held,
				   .rules = l.d.rules};
	r = ledger_now(&l, &most, &node.now, e);
	ledger_close(&l);
	if (r == 0)
		*ret_node = node;
	return r;
}
