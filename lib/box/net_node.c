/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "box/net_priv.h"
#include "box/select.h"
#include "box/spec.h"
#include "net/helper.h"
#include "net/transit.h"

#define DETACH_S 2

/* How long the kernel may take to end a network namespace. */
#define GOING_MS      2000
#define GOING_STEP_MS 50

static int read_down(const struct tree *t, const char *id, json_t **ret)
{
	char path[PATH_MAX];
	int r;

	r = tree_path(path, NULL, "%s/sb/%s/" NET_FILE, t->run, id);
	if (r < 0)
		return r;
	if (access(path, F_OK) < 0)
		return -errno;
	return json_read_file(AT_FDCWD, path, ret, NULL);
}

/* Is it the namespace that was written down, or one whose pid is another's? */
static bool is_there(const json_t *was)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%lld/ns/net",
		 (long long)json_int(was, "pid", 0));
	return stat(path, &st) == 0 &&
	       (int64_t)st.st_ino == json_int(was, "netns", -1);
}

/* 1: and *${ret} is what was written down, the caller's. */
static int is_live(const struct tree *t, const char *id, json_t **ret)
{
	auto_json json_t *was = NULL;

	if (select_life(t, id, NULL) != SELECT_LIVE ||
	    read_down(t, id, &was) < 0 || !is_there(was))
		return 0;
	if (ret)
		*ret = steal_ptr(was);
	return 1;
}

/* --- away ---------------------------------------------------------------- */

static bool is_held(void *arg, uint32_t slot)
{
	const struct tree *t = arg;
	char path[PATH_MAX];

	return tree_path(path, NULL, "%s/uid/%u", t->run, slot) < 0 ||
	       faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

void net_sweep(const struct tree *t, int transit, unsigned spare)
{
	(void)!transit_sweep(transit, spare, is_held, (void *)(uintptr_t)t,
			     NULL);
}

/*
 * Who takes a sandbox apart does not wait for the answer, nor long for one that
 * hangs.
 */
static void tell_helper(const struct tree *t, const char *id, uint64_t netns)
{
	const struct timeval wait = {.tv_sec = DETACH_S};
	auto_helper struct helper *h = NULL;

	if (helper_open(t->run, 0, &h, NULL) < 0)
		return;
	setsockopt(helper_fd(h), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
	setsockopt(helper_fd(h), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	(void)!helper_send_detach(h, id, netns, NULL);
}

void net_detach(const struct tree *t, const char *id)
{
	auto_json json_t *was = NULL;
	char path[PATH_MAX];

	/* Who made it holds that lock from before the helper hears of it, and
	 * may have been killed before it had anything to write down. */
	if (tree_path(path, NULL, "%s/sb/%s/" NET_LOCK, t->run, id) < 0 ||
	    access(path, F_OK) < 0)
		return;
	(void)read_down(t, id, &was);
	tell_helper(t, id, (uint64_t)json_int(was, "netns", 0));
	if (tree_path(path, NULL, "%s/sb/%s/" NET_FILE, t->run, id) == 0)
		unlink(path);
}

int net_note(const struct tree *t, const char *id, json_t *spec, struct err *e)
{
	auto_json json_t *was = NULL;
	int r = read_down(t, id, &was);

	if (r < 0 || !json_object_get(was, "address"))
		return 0;
	return json_object_set(spec, "network_address",
			       json_object_get(was, "address")) < 0
		       ? err_sys(e, ENOMEM, "spec")
		       : 0;
}

/* --- all of a node ------------------------------------------------------- */

/* Of those that the helper has. */
static int clean_helper(const struct tree *t, bool fix, unsigned *n,
			struct err *e)
{
	auto_helper struct helper *h = NULL;
	auto_json json_t *list = NULL;
	const char *id;
	size_t i;
	json_t *v;
	int r;

	r = helper_open(t->run, 0, &h, e);
	if (r == -ECONNREFUSED)
		return 0;
	if (r == 0)
		r = helper_list(h, &list, e);
	json_array_foreach(list, i, v) {
		id = json_string_value(v);
		if (r < 0 || !id || is_live(t, id, NULL))
			continue;
		(*n)++;
		if (fix)
			r = helper_detach(h, id, e);
	}
	return r;
}

#define SLOTS_MAX TRANSIT_SLOTS

/* Has that slot a sandbox whose network namespace is there? */
static bool is_served(void *arg, uint32_t slot)
{
	const struct tree *t = arg;
	char path[PATH_MAX], id[BOX_ID_LEN + 2];
	ssize_t n;

	if (tree_path(path, NULL, "%s/uid/%u", t->run, slot) < 0)
		return true;
	n = readlink(path, id, sizeof(id));
	if (n != BOX_ID_LEN)
		return n < 0 && errno != ENOENT;
	id[n] = '\0';
	return is_live(t, id, NULL);
}

/* How many links have no sandbox.  Links first: one that is made meanwhile is
 * in no list of ours. */
static int dead_links(const struct tree *t, int transit, uint32_t *slots,
		      struct err *e)
{
	int count = transit_slots(transit, slots, SLOTS_MAX, e), n = 0;

	for (int i = 0; i < count && i < SLOTS_MAX; i++)
		n += !is_served((void *)(uintptr_t)t, slots[i]);
	return count < 0 ? count : n;
}

/* The link of one that has ended just now goes by itself. */
static int clean_links(const struct tree *t, bool fix, unsigned *n,
		       struct err *e)
{
	auto_close int transit = transit_open(t->run, NULL);
	auto_free uint32_t *slots = calloc(SLOTS_MAX, sizeof(*slots));
	uint64_t until = clock_ms() + GOING_MS;
	int r;

	if (transit < 0)
		return 0;
	if (!slots)
		return err_sys(e, ENOMEM, "links");
	while ((r = dead_links(t, transit, slots, e)) > 0 && clock_ms() < until)
		(void)poll(NULL, 0, GOING_STEP_MS);
	if (r <= 0)
		return r;
	*n += (unsigned)r;
	if (fix)
		r = transit_sweep(transit, 0, is_served, (void *)(uintptr_t)t,
				  e);
	return r < 0 ? r : 0;
}

int net_clean(const struct tree *t, bool fix, unsigned *ret_n, struct err *e)
{
	unsigned n = 0;
	int r;

	r = clean_helper(t, fix, &n, e);
	if (r == 0)
		r = clean_links(t, fix, &n, e);
	*ret_n = n;
	return r < 0 ? err_wrap(e, r, "networks of the dead") : 0;
}

static int lock(const struct tree *t, const char *id, int how, int *ret_fd,
		struct err *e)
{
	auto_close int fd = -1;
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb/%s/" NET_LOCK, t->run, id);
	if (r < 0)
		return r;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	do
		r = flock(fd, how);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return err_sys(e, errno, "lock '%s'", path);
	*ret_fd = steal_fd(&fd);
	return 0;
}

int net_lock(const struct tree *t, const char *id, int *ret_fd, struct err *e)
{
	return lock(t, id, LOCK_EX, ret_fd, e);
}

int net_lock_shared(const struct tree *t, const char *id, int *ret_fd,
		    struct err *e)
{
	return lock(t, id, LOCK_SH, ret_fd, e);
}

struct mending {
	const struct tree *t;
	struct helper *h;
	unsigned n;
	int first;
	struct err e;
};

/* Does the helper know it? */
static bool is_known(struct mending *m, const char *id)
{
	uint16_t ports[HELPER_PORTS_MAX];
	size_t n;

	if (!m->h && helper_open(m->t->run, 0, &m->h, NULL) < 0)
		return false;
	return helper_ports(m->h, id, ports, &n, NULL) == 0;
}

static int attach_one(const struct tree *t, const char *id, pid_t pid,
		      struct err *e)
{
	auto_json json_t *spec = NULL;
	int r = spec_read(t, id, &spec, e);

	return r < 0 ? r : net_attach(t, id, pid, spec, e);
}

static int mend_one(void *arg, const char *id, struct err *e)
{
	auto_json json_t *was = NULL;
	auto_close int lock = -1;
	struct mending *m = arg;
	struct err why = {0};
	int r;

	(void)e;
	if (!is_live(m->t, id, &was))
		return 0;
	r = net_lock(m->t, id, &lock, &why);
	if (r == 0 && is_known(m, id))
		return 0;
	if (r == 0)
		r = attach_one(m->t, id, (pid_t)json_int(was, "pid", 0), &why);
	if (r == 0)
		m->n++;
	else if (m->first == 0) {
		m->first = err_wrap(&why, r, "sandbox %s", id);
		m->e = why;
	}
	return 0;
}

/* --- what they took ------------------------------------------------------ */

struct taken {
	const struct tree *t;
	struct helper *h;
	net_taken_fn *fn;
	void *arg;
};

static int taken_one(void *arg, const char *id, struct err *e)
{
	auto_json json_t *spec = NULL;
	struct taken *k = arg;
	uint16_t port[HELPER_PORTS_MAX];
	size_t n = 0;

	(void)e;
	if (is_live(k->t, id, NULL) && spec_read(k->t, id, &spec, NULL) == 0 &&
	    net_unserved(k->h, id, spec, port, &n, NULL) == 0 && n > 0)
		k->fn(k->arg, id, port, n);
	return 0;
}

void net_taken(const struct tree *t, net_taken_fn *fn, void *arg)
{
	struct taken k = {.t = t, .fn = fn, .arg = arg};

	if (helper_open(t->run, 0, &k.h, NULL) < 0)
		return;
	(void)!tree_each(t->run, taken_one, &k, NULL);
	helper_free(k.h);
}

/* --- all of them --------------------------------------------------------- */

/* Rules that nobody has are only a waste: it need not work. */
static void sweep(struct mending *m)
{
	if (m->h || helper_open(m->t->run, 0, &m->h, NULL) == 0)
		(void)!helper_sweep(m->h, NULL);
}

int net_mend(const struct tree *t, unsigned *ret_n, struct err *e)
{
	struct mending m = {.t = t};
	int r;

	r = tree_each(t->run, mend_one, &m, e);
	/* The rules of one that lives are still to be claimed otherwise. */
	if (r == 0 && m.first == 0)
		sweep(&m);
	helper_free(m.h);
	if (ret_n)
		*ret_n = m.n;
	if (r == 0 && m.first < 0) {
		r = m.first;
		if (e)
			*e = m.e;
	}
	return r;
}
