/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "ckpt/ckpt.h"
#include "dump.h"

#define FLUSH_MS 20   /* a second flush is worth it */
#define HOLD_MS	 2000 /* to freeze, and to thaw */

/* All of ${from}, from its start, wherever its position is. */
static int copy(int from, int dirfd, const char *name, struct err *e)
{
	auto_close int to = -1;
	char buf[65536];
	off_t at = 0;
	ssize_t n;
	int r;

	to = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (to < 0)
		return err_sys(e, errno, "make '%s' of the checkpoint", name);
	while ((n = pread(from, buf, sizeof(buf), at)) > 0) {
		r = fd_write_all(to, buf, (size_t)n, e);
		if (r < 0)
			return err_wrap(e, r, "'%s' of the checkpoint", name);
		at += n;
	}
	return n < 0 ? err_sys(e, errno, "read for '%s'", name) : 0;
}

static int copy_file(const char *path, int dirfd, const char *name,
		     struct err *e)
{
	auto_close int from = open(path, O_RDONLY | O_CLOEXEC);

	if (from < 0)
		return err_sys(e, errno, "open '%s'", path);
	return copy(from, dirfd, name, e);
}

/* A file of its directory that not every sandbox has. */
static int copy_own(const struct dump *d, const char *name, struct err *e)
{
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb/%s/%s", d->tree.lib, d->id, name);
	if (r < 0)
		return r;
	if (access(path, F_OK) < 0 && errno == ENOENT)
		return 0;
	return copy_file(path, d->dir, name, e);
}

int dump_files(struct dump *d, struct err *e)
{
	char path[64];
	int r = 0;

	if (d->layer)
		r = copy_own(d, CKPT_STEPS, e);
	if (r == 0 && d->layer)
		r = copy_own(d, CKPT_NAMES, e);
	if (r < 0 || d->fs_only)
		return r;
	r = inside_pending(&d->inside, d->dir, e);
	if (r == 0)
		r = copy(d->state, d->dir, CKPT_STATE, e);
	snprintf(path, sizeof(path), "/proc/%d/exe", d->init);
	if (r == 0)
		r = copy_file(path, d->dir, CKPT_INIT, e);
	return r;
}

/* Where the names of the sandbox's layer are. */
static int open_home(const struct dump *d, struct err *e)
{
	char path[PATH_MAX];
	int fd, r;

	r = tree_path(path, e, "%s/sb/%s", d->tree.lib, d->id);
	if (r < 0)
		return r;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? err_sys(e, errno, "open '%s'", path) : fd;
}

/* The directory above ${to}, which is to have the copy. */
static int open_above(const struct dump *d, struct err *e)
{
	const char *slash = strrchr(d->to, '/');
	char path[PATH_MAX];
	int fd, r;

	r = tree_path(path, e, "%.*s", (int)(slash - d->to), d->to);
	if (r < 0)
		return r;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? err_sys(e, errno, "open '%s'", path) : fd;
}

/*
 * Twice, where the first took long: it is written to meanwhile.  What fails
 * here is done, and told, later.
 */
static void flush(const struct dump *d)
{
	uint64_t began = clock_ms();

	if (pool_flush(d->from, NULL) == 0 && clock_ms() - began > FLUSH_MS)
		(void)!pool_flush(d->from, NULL);
}

int dump_prepare(struct dump *d, struct err *e)
{
	int r;

	if (!d->layer)
		return 0;
	r = pool_open(d->tree.lib, &d->pool, e);
	if (r < 0)
		return r;
	d->from = open_home(d, e);
	if (d->from < 0)
		return d->from;
	d->home = open_above(d, e);
	if (d->home < 0)
		return d->home;
	if (!d->frozen)
		flush(d);
	return 0;
}

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Nobody is woken between the freeze, the snapshot and the thaw. */
static int hold(struct dump *d, struct err *e)
{
	if (!d->hold)
		return 0;
	d->held_at = now_us();
	return cgroup_freeze(d->cgroups, d->id, true, HOLD_MS, e);
}

static int let_go(struct dump *d, struct err *e)
{
	int r;

	if (!d->held_at)
		return 0;
	r = cgroup_freeze(d->cgroups, d->id, false, HOLD_MS, e);
	d->held_us = now_us() - d->held_at;
	d->held_at = 0;
	return r;
}

static void on_captured(void *arg)
{
	struct dump *d = arg;

	if (let_go(d, &d->said) == 0)
		(void)!dump_say("captured", &d->said);
}

int dump_layer(struct dump *d, struct err *e)
{
	const struct pool_snapshot want = {
		.from = d->from,
		.id = d->layer,
		.home = d->home,
		.limit_bytes = (uint64_t)json_int(d->spec, "disk_limit_mb", 0)
			       << 20,
		.stop = d->stop,
		.captured = on_captured,
		.arg = d,
	};
	int r;

	if (!d->layer)
		return dump_say("captured", e);
	r = hold(d, e);
	if (r == 0)
		r = pool_snapshot(&d->pool, &want, &d->how, e);
	(void)!let_go(d, NULL);
	d->copied = r == 0;
	if (r == 0 && d->said.r < 0) {
		*e = d->said;
		r = e->r;
	}
	return r;
}

void dump_layer_undo(const struct dump *d)
{
	/* What stays belongs to a directory that is swept. */
	if (d->copied && pool_remove_at(&d->pool, d->home, d->layer, NULL) < 0)
		return;
}

/* What a resume needs beside the checkpoint: the layer, kept or copied. */
static int sync_layer(const struct dump *d, struct err *e)
{
	auto_close int home = d->layer ? open_above(d, e) : open_home(d, e);

	return home < 0 ? home : pool_sync(home, e);
}

static int describe(const struct dump *d, json_t *m, struct err *e)
{
	const struct inside *in = &d->inside;
	auto_json json_t *state = NULL;

	(void)json_read_file(d->dir, CKPT_STATE, &state, NULL);
	if (json_object_set(m, "leaves", in->leaves) < 0 ||
	    json_object_set(m, "stopped", in->stopped) < 0 ||
	    json_object_set(m, "externals", in->externals) < 0 ||
	    json_object_set_new(m, "state_v",
				json_integer(json_int(state, "v", 0))) < 0 ||
	    json_object_set_new(m, "engine_version",
				json_string(d->engine.version)) < 0)
		return err_sys(e, ENOMEM, "manifest");
	return ckpt_facts(m, e);
}

static json_t *warnings(const struct dump *d)
{
	json_t *list = d->inside.warnings ? json_copy(d->inside.warnings)
					  : json_array();

	if (list && d->layer && d->how == POOL_COPY_COPIED)
		json_array_append_new(
			list, json_string("the layer was copied file by file "
					  "while the sandbox stood still: this "
					  "node's pool takes no snapshots"));
	return list;
}

static const char *layer_word(const struct dump *d)
{
	return d->layer ? pool_copy_name(d->how) : "kept";
}

int dump_manifest(struct dump *d, json_t **ret_rec, struct err *e)
{
	auto_json json_t *m = NULL;
	int r;

	r = json_pack_or(&m, e, "{s:s, s:O, s:I, s:s, s:I, s:i, s:s, s:o}",
			 "sandbox", d->id, "spec", d->spec, "made_ms",
			 (json_int_t)clock_wall_ms(), "engine",
			 d->fs_only ? "none" : d->engine.ops->name, "frozen_ms",
			 (json_int_t)((d->frozen_us + 500) / 1000), "processes",
			 (int)d->inside.n, "layer", layer_word(d), "warnings",
			 warnings(d));
	if (r == 0 && !d->fs_only)
		r = describe(d, m, e);
	if (r == 0 && d->durable)
		r = sync_layer(d, e);
	(void)unlinkat(d->dir, CKPT_WATCHES, 0);
	if (r == 0)
		r = ckpt_write(d->dir, m, d->durable, e);
	if (r < 0)
		return r;
	r = json_pack_or(ret_rec, e, "{s:b, s:I, s:I, s:O, s:s, s:i, s:o}",
			 "ok", 1, "engine_frozen_ms",
			 (json_int_t)((d->frozen_us + 500) / 1000), "engine_ms",
			 (json_int_t)d->engine_ms, "bytes",
			 json_object_get(m, "bytes"), "layer", layer_word(d),
			 "processes", (int)d->inside.n, "warnings",
			 warnings(d));
	if (r == 0 && d->hold &&
	    json_object_set_new(*ret_rec, "frozen_ms",
				json_integer((json_int_t)((d->held_us + 500) /
							  1000))) < 0)
		r = err_sys(e, ENOMEM, "record");
	return r;
}
