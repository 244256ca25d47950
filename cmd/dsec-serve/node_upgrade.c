/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/proc.h"
#include "node.h"
#include "node_starter.h"
#include "serve.h"
#include "wire/exit.h"

/*
 * The starter becomes another program by exec, with its descriptors under their
 * numbers and the rest in a file in memory.  The new one starts a keeper and a
 * worker of its own; those of before finish what they have.
 */

#define WAIT_MS	 15000
#define CHECK_MS 10000

static int keep_fd(int fd, bool on)
{
	return fd < 0 ? 0 : fcntl(fd, F_SETFD, on ? 0 : FD_CLOEXEC);
}

static int keep_fds(struct starter *s, bool on)
{
	int r = keep_fd(s->lock, on);

	for (size_t i = 0; i < s->nlisteners; i++)
		r |= keep_fd(s->listeners[i], on);
	for (struct child *c = s->children; c; c = c->next)
		r |= keep_fd(c->chan.fd, on);
	return r;
}

static int state_of(struct starter *s, json_t **ret, struct err *e)
{
	json_t *listeners = json_array(), *children = json_array();
	int r = 0;

	for (size_t i = 0; i < s->nlisteners; i++)
		r |= json_array_append_new(listeners,
					   json_integer(s->listeners[i]));
	for (struct child *c = s->children; c; c = c->next)
		r |= json_array_append_new(children,
					   json_pack("{si si si}", "role",
						     (int)c->role, "pid",
						     (int)c->pid, "fd",
						     c->chan.fd));
	if (json_pack_or(ret, e, "{ss ss sI si so so}", "dir", s->dir, "exe",
			 s->exe, "generation", (json_int_t)s->generation + 1,
			 "lock", s->lock, "listeners", listeners, "children",
			 children) < 0)
		return -ENOMEM;
	return r ? err_sys(e, ENOMEM, "what to hand over") : 0;
}

static int hand_over(struct starter *s, struct err *e)
{
	auto_close int fd = json_memfd(e);
	auto_json json_t *state = NULL;
	char number[16];
	int r;

	if (fd < 0)
		return fd;
	r = state_of(s, &state, e);
	if (r == 0)
		r = json_to_memfd(fd, state, e);
	if (r < 0)
		return r;
	snprintf(number, sizeof(number), "%d", fd);
	if (keep_fds(s, true) < 0 || keep_fd(fd, true) < 0)
		r = err_sys(e, errno, "keep descriptors");
	if (r == 0)
		execl(s->exe, "dsec-serve", "node", s->dir, "--adopt", number,
		      NULL);
	if (r == 0)
		r = err_sys(e, errno, "run '%s'", s->exe);
	keep_fds(s, false);
	return r;
}

/* Who asked for it left the path of the program; else it is our own. */
static void take_path(struct starter *s)
{
	auto_free char *text = NULL;
	char path[PATH_MAX];
	size_t len;

	if (tree_path(path, NULL, "%s/serve/upgrade", s->tree.run) < 0 ||
	    fd_read_file(AT_FDCWD, path, PATH_MAX - 1, &text, &len, NULL) < 0)
		return;
	(void)unlink(path);
	if (*text == '/' && strlen(text) == len)
		memcpy(s->exe, text, len + 1);
}

/* Whatever the new program cannot do or refuses, it says while there is still
 * somebody else to go on; but one of before it could be asked. */
static int check(const struct starter *s, struct err *e)
{
	const char *const argv[] = {s->exe, "check", s->dir, "node", NULL};
	int r = proc_run(argv, -1, -1, CHECK_MS, e);

	if (r == EXIT_USAGE_ERROR) {
		log_info("'%s' cannot be asked whether it can start", s->exe);
		return 0;
	}
	return r <= 0 ? r
		      : err_set(e, -EINVAL, "configuration",
				"'%s check %s node' ends with %d: nothing "
				"changes",
				s->exe, s->dir, r);
}

static void refuse(struct starter *s, const struct err *why)
{
	struct err e = {0};

	log_err(why);
	s->refused++;
	if (lock_write(s, &e) < 0)
		log_err(&e);
}

void upgrade(struct starter *s)
{
	struct err e = {0};
	char was[sizeof(s->exe)];

	if (s->stopping) {
		s->upgrades = false;
		return;
	}
	/* Half a line is not handed over: it comes back when it is sent. */
	s->upgrades = children_busy(s);
	if (s->upgrades)
		return;
	memcpy(was, s->exe, sizeof(was));
	take_path(s);
	log_info("hands over to '%s'", s->exe);
	if (check(s, &e) < 0 || hand_over(s, &e) < 0) {
		refuse(s, &e);
		memcpy(s->exe, was, sizeof(was)); /* what children are, too */
	}
}

/* --- the new one --------------------------------------------------------- */

static int take_children(struct starter *s, const json_t *list, struct err *e)
{
	const json_t *v;
	size_t i;
	int r;

	json_array_foreach(list, i, v) {
		struct child like = {
			.role = json_int(v, "role", 0) == ROLE_WORKER
					? ROLE_WORKER
					: ROLE_KEEPER,
			.pid = (pid_t)json_int(v, "pid", 0),
			.chan.fd = (int)json_int(v, "fd", -1),
		};

		r = child_adopt(s, &like, e);
		if (r < 0)
			return r;
	}
	return 0;
}

/* The new ones first: there is always somebody who answers. */
static void renew(struct starter *s)
{
	struct child *old = s->children;

	for (struct child *c = old; c; c = c->next)
		c->retiring = true;
	child_start(s, ROLE_KEEPER);
	child_start(s, ROLE_WORKER);
	for (struct child *c = old; c; c = c->next) {
		c->retiring = false;
		child_retire(c);
	}
}

static int adopt(struct starter *s, const json_t *state, struct err *e)
{
	json_t *list = json_object_get(state, "listeners"), *v;
	size_t i;
	int r;

	snprintf(s->dir, sizeof(s->dir), "%s", json_str(state, "dir"));
	snprintf(s->exe, sizeof(s->exe), "%s", json_str(state, "exe"));
	s->generation = json_int(state, "generation", 0);
	s->lock = (int)json_int(state, "lock", -1);
	(void)keep_fd(s->lock, false);
	json_array_foreach(list, i, v) {
		if (i == SERVECONF_LISTEN_MAX)
			break;
		s->listeners[s->nlisteners++] = (int)json_integer_value(v);
		(void)keep_fd((int)json_integer_value(v), false);
	}
	r = starter_load(s, e);
	if (r == 0)
		r = take_children(s, json_object_get(state, "children"), e);
	if (r < 0)
		return r;
	renew(s);
	return lock_write(s, e);
}

int node_adopt(int fd, struct err *e)
{
	struct starter s = {.dirfd = -1, .lock = -1, .ready = -1};
	auto_json json_t *state = json_loadfd(fd, 0, NULL);
	int r;

	fd_close(fd);
	r = state ? adopt(&s, state, e)
		  : err_set(e, -EBADMSG, "internal", "no state to adopt");
	if (r == 0)
		r = starter_run(&s, e);
	starter_done(&s);
	return r;
}

/* --- who asks for it ----------------------------------------------------- */

/* What the daemon says of itself. */
struct said {
	pid_t pid;
	int64_t generation, refused;
};

static int read_lock(struct said *ret, struct err *e)
{
	auto_json json_t *o = NULL;
	char path[PATH_MAX];
	struct tree t;
	int r;

	r = tree_init(&t, e);
	if (r == 0)
		r = tree_path(path, e, "%s/serve/node.lock", t.run);
	if (r == 0)
		r = json_read_file(AT_FDCWD, path, &o, e);
	if (r < 0)
		return r;
	if (json_int(o, "pid", 0) <= 1)
		return err_set(e, -ESRCH, "configuration",
			       "no node daemon serves '%s'", t.run);
	*ret = (struct said){
		.pid = (pid_t)json_int(o, "pid", 0),
		.generation = json_int(o, "generation", 0),
		.refused = json_int(o, "refused", 0),
	};
	return 0;
}

static int leave_path(struct err *e)
{
	char exe[PATH_MAX], path[PATH_MAX];
	auto_close int dir = -1;
	struct tree t;
	ssize_t n;
	int r;

	n = readlink("/proc/self/exe", exe, sizeof(exe));
	if (n < 0 || n == sizeof(exe))
		return err_sys(e, n < 0 ? errno : ENAMETOOLONG,
			       "find our own program");
	r = tree_init(&t, e);
	if (r == 0)
		r = tree_path(path, e, "%s/serve", t.run);
	if (r < 0)
		return r;
	dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", path);
	return fd_replace(dir, "upgrade", exe, (size_t)n, 0, e);
}

/* We are the new program: what we refuse the daemon need not be asked for. */
int node_upgrade(const char *dir, struct err *e)
{
	uint64_t until = clock_ms() + WAIT_MS;
	struct said was, now;
	int r = role_check(dir, "node", false, e);

	if (r == 0)
		r = read_lock(&was, e);
	if (r == 0)
		r = leave_path(e);
	if (r < 0)
		return r;
	if (kill(was.pid, SIGUSR2) < 0)
		return err_sys(e, errno, "ask %d to upgrade", (int)was.pid);
	now = was;
	do {
		poll(NULL, 0, 20);
		(void)read_lock(&now, NULL);
		if (now.generation != was.generation)
			return 0;
	} while (now.refused == was.refused && clock_ms() < until);
	if (now.refused != was.refused)
		return err_set(e, -EINVAL, "configuration",
			       "the daemon refused and serves on as it was; "
			       "its log says why");
	return err_set(e, -ETIMEDOUT, "timeout",
		       "the daemon did not upgrade; its log says why");
}
