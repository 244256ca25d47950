/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/proc.h"
#include "ckpt/ckpt.h"
#include "measure.h"
#include "outer.h"
#include "reexec.h"
#include "reexec_priv.h"
#include "worker.h"

#define RETRY_MS 20

/* Is something half way through that is not written down? */
static bool unsettled(const struct box *b)
{
	if (b->state != BOX_RUNNING && b->state != BOX_PAUSED)
		return true;
	return b->job || b->waking || b->measure;
}

static bool is_fd(const char *key)
{
	static const char *const keys[] = {
		"fd",	    "src",	 "pidfd",  "tty_fd", "tty_pipe",
		"stdin_fd", "stdin_ref", "script", "status", "helper_fd",
		"out",	    "fds",	 "keep",
	};

	for (size_t i = 0; i < array_len(keys); i++)
		if (!strcmp(keys[i], key))
			return true;
	return false;
}

/* What was said by others has no descriptors of ours. */
static bool is_foreign(const char *key)
{
	return !strcmp(key, "echo") || !strcmp(key, "req");
}

/* Every descriptor of ours over the exec, or (on false) no more. */
static void pass(const char *name, const json_t *j, bool on)
{
	json_t *all = (json_t *)(uintptr_t)j, *v;
	const char *key;
	size_t i;

	json_array_foreach(all, i, v)
		pass(name, v, on);
	json_object_foreach(all, key, v)
		if (!is_foreign(key))
			pass(key, v, on);
	if (json_is_integer(j) && is_fd(name) && json_integer_value(j) > 2)
		fcntl((int)json_integer_value(j), F_SETFD, on ? 0 : FD_CLOEXEC);
}

static void pass_all(const struct box *b, const json_t *j, int memfd, bool on)
{
	const int own[] = {b->claim_fd, b->listen_fd, b->report_fd, b->init_fd,
			   memfd};

	pass("", j, on);
	for (size_t i = 0; i < array_len(own); i++)
		fcntl(own[i], F_SETFD, on ? 0 : FD_CLOEXEC);
}

/* argv[state_at] is the place for the descriptor. */
static int become(struct box *b, const json_t *j, const char *program,
		  const char **argv, size_t state_at, struct err *e)
{
	char path[PATH_MAX], number[16];
	auto_close int fd = -1;
	int r;

	r = proc_libexec(program, path, sizeof(path), e);
	if (r < 0)
		return r;
	fd = json_memfd(e);
	r = fd < 0 ? fd : json_to_memfd(fd, j, e);
	if (r < 0)
		return r;
	snprintf(number, sizeof(number), "%d", fd);
	argv[state_at] = number;
	if (b->prefetch) {
		worker_kill(b->prefetch);
		free(steal_ptr(b->prefetch));
	}
	if (b->measure) {
		worker_kill(b->measure);
		free(steal_ptr(b->measure));
	}
	pass_all(b, j, fd, true);
	execv(path, (char *const *)(uintptr_t)argv);
	r = err_sys(e, errno, "execute '%s'", path);
	pass_all(b, j, fd, false);
	return r;
}

static int reexec(struct box *b, struct err *e)
{
	const char *argv[] = {"dsec-box", "--state", NULL, b->id, NULL};
	auto_json json_t *j = reexec_save(b, false, e);

	return j ? become(b, j, "dsec-box", argv, 2, e) : -ENOMEM;
}

int reexec_restore(struct box *b, struct err *e)
{
	char from[PATH_MAX];
	const char *argv[] = {"dsec-ckpt", "restore", "--from",
			      from,	   "--state", NULL,
			      "--resume",  b->id,     NULL};
	auto_json json_t *j = NULL;
	int r;

	measure_abort(b); /* of the processes that ended */
	j = reexec_save(b, false, e);
	if (!j)
		return -ENOMEM;
	json_object_set_new(j, "waking", json_true());
	r = ckpt_dir(&b->tree, b->id, from, e);
	return r < 0 ? r : become(b, j, "dsec-ckpt", argv, 5, e);
}

/* Who repeats a request of the source's to a copy wants it done there. */
static void forget_keys(json_t *j)
{
	size_t i;
	json_t *v;

	json_array_foreach(json_object_get(j, "execs"), i, v)
		json_object_del(v, "key");
}

int reexec_copy(struct box *b, enum box_level level, json_t **ret,
		struct err *e)
{
	json_t *j = reexec_save(b, true, e), *table;
	int r;

	if (!j)
		return e && e->r < 0 ? e->r : -ENOMEM;
	r = outer_table(b, true, &table, e);
	if (r < 0) {
		json_decref(j);
		return r;
	}
	json_object_set_new(j, "fds", table);
	if (level != BOX_DISK)
		forget_keys(j);
	json_object_set_new(j, "level",
			    json_string(level == BOX_DISK ? "disk" : "freeze"));
	*ret = j;
	return 0;
}

static void on_soon(struct loop *l, struct loop_timer *t)
{
	struct box *b = t->arg;

	if (b->state == BOX_STOPPING || b->state == BOX_STOPPED)
		return;
	if (unsettled(b))
		loop_timer_set(l, t, clock_ms() + RETRY_MS);
	else
		(void)reexec(b, NULL); /* it did not work: we go on */
}

void reexec_soon(struct box *b)
{
	b->reexec_timer.fn = on_soon;
	b->reexec_timer.arg = b;
	loop_timer_set(b->loop, &b->reexec_timer, clock_ms());
}
