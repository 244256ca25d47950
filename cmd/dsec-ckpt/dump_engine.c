/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/proc.h"
#include "ckpt/ckpt.h"
#include "ckpt_cmd.h"
#include "dump.h"
#include "wire/exit.h"

#define START_MS   20000 /* of the engine, to its hook */
#define FREEZE_MS  10000
#define SETTLE_MS  300	 /* for who ran into code of the engine */
#define BASE_MS	   20000 /* of a dump, whatever its size */
#define PER_MB_MS  100	 /* a disk of 10 MB/s */
#define SPACE_LEFT (1 << 20)

/* What of the host is inside: mounts and terminals. */
static size_t list_given(const struct inside *in, struct engine_given *given)
{
	const json_t *mounts = json_object_get(in->externals, "mounts");
	const json_t *ttys = json_object_get(in->externals, "ttys");
	size_t i, n = 0;
	json_t *v;

	json_array_foreach(mounts, i, v)
		given[n++] = (struct engine_given){
			.kind = ENGINE_MOUNT,
			.of = json_str(v, "key"),
			.at = json_str(v, "inside"),
		};
	json_array_foreach(ttys, i, v)
		given[n++] = (struct engine_given){
			.kind = ENGINE_TTY,
			.of = json_str(v, "of"),
		};
	return n;
}

static int make_args(const struct dump *d, struct engine_args *ret,
		     struct err *e)
{
	const json_t *x = d->inside.externals;
	auto_free struct engine_given *given = NULL;
	char images[PATH_MAX], work[PATH_MAX], freezer[PATH_MAX];
	char self[PATH_MAX];
	struct engine_dump what = {
		.init = d->init,
		.images = images,
		.work = work,
		.log = CKPT_LOG,
		.freezer = freezer,
	};
	ssize_t n;
	int r;

	given = calloc(json_array_size(json_object_get(x, "mounts")) +
			       json_array_size(json_object_get(x, "ttys")) + 1,
		       sizeof(*given));
	if (!given)
		return err_sys(e, ENOMEM, "arguments");
	what.given = given;
	what.ngiven = list_given(&d->inside, given);
	r = tree_path(work, e, "%s" CKPT_NEW, d->to);
	if (r == 0)
		r = tree_path(images, e, "%s/" CKPT_IMAGES, work);
	if (r == 0)
		r = cgroup_freezer_dir(d->cgroups, d->id, freezer, e);
	if (r < 0)
		return r;
	if (!d->frozen) {
		n = readlink("/proc/self/exe", self, sizeof(self) - 1);
		if (n < 0)
			return err_sys(e, errno, "our own name");
		self[n] = '\0';
		what.hook = self;
	}
	r = d->engine.ops->dump(&what, ret);
	return r < 0 ? err_sys(e, -r, "arguments") : 0;
}

/* The engine closes what it inherits, so the hook opens ours: by our number. */
static int make_hook(struct dump *d, char *env, size_t size, struct err *e)
{
	int said[2], word[2];

	if (pipe2(said, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	d->hook_r = said[0];
	if (pipe2(word, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	d->hook_w = word[1];
	snprintf(env, size, DUMP_HOOK_ENV "=/proc/%d/fd/%d:/proc/%d/fd/%d",
		 (int)getpid(), said[1], (int)getpid(), word[0]);
	return 0;
}

/* It knows the names of what is watched, which the kernel does not tell. */
static int need_shim(struct dump *d, struct err *e)
{
	if (d->engine.shim[0])
		return 0;
	return proc_libexec("engine-shim.so", d->engine.shim,
			    sizeof(d->engine.shim), e);
}

static int spawn(struct dump *d, const struct engine_args *a, struct err *e)
{
	char run_dir[PATH_MAX], watches[PATH_MAX + 64], hook[128] = "";
	const char *const env[] = {watches, hook, NULL};
	struct engine_run run = {
		.args = a->v,
		.env = env,
		.out = -1,
		.run_dir = run_dir,
	};
	int r;

	snprintf(watches, sizeof(watches),
		 "DSEC_ENGINE_WATCHES=%s" CKPT_NEW "/" CKPT_WATCHES, d->to);
	r = engine_run_dir(&d->tree, run_dir, e);
	if (r == 0 && json_object_size(d->inside.watches) > 0)
		r = need_shim(d, e);
	if (r == 0 && !d->frozen)
		r = make_hook(d, hook, sizeof(hook), e);
	return r < 0 ? r : engine_spawn(&d->engine, &run, &d->proc, e);
}

/* Before the engine asks for the first of them. */
static int write_watches(const struct dump *d, struct err *e)
{
	if (json_object_size(d->inside.watches) == 0)
		return 0;
	return inside_watches(&d->inside, d->dir, CKPT_WATCHES, e);
}

int dump_start(struct dump *d, struct err *e)
{
	struct engine_args args;
	int r;

	r = make_args(d, &args, e);
	if (r < 0)
		return r;
	if (d->frozen)
		r = write_watches(d, e);
	if (r == 0) {
		d->engine_at = clock_ms();
		r = spawn(d, &args, e);
	}
	engine_args_done(&args);
	return r;
}

/* It ended, or failed to start, where it should wait or go on. */
static int ended(struct dump *d, int status, struct err *e)
{
	char words[ERR_MSG_MAX / 2];
	struct statvfs vfs;

	engine_last_words(d->dir, CKPT_LOG, words, sizeof(words));
	if (fstatvfs(d->dir, &vfs) == 0 &&
	    (uint64_t)vfs.f_bavail * vfs.f_frsize < SPACE_LEFT)
		return err_sys(e, ENOSPC, "the checkpoint in '%s'", d->to);
	err_set(e, -EIO, "engine", "the checkpoint engine failed (%d): %s",
		status, words[0] ? words : "it said nothing");
	if (e)
		e->infra = true;
	return -EIO;
}

int dump_ready(struct dump *d, struct err *e)
{
	struct pollfd p[] = {
		{.fd = d->hook_r, .events = POLLIN},
		{.fd = d->proc.pidfd, .events = POLLIN},
		{.fd = d->stop, .events = POLLIN},
	};
	char byte;
	int r;

	do {
		r = poll(p, 3, START_MS);
	} while (r < 0 && errno == EINTR);
	if (dump_stopped(d))
		return dump_cancelled(e);
	if (r > 0 && p[0].revents & POLLIN && read(d->hook_r, &byte, 1) == 1)
		return 0;
	r = engine_wait(&d->proc, 0, e);
	return r < 0 ? r : ended(d, r, e);
}

int dump_go(struct dump *d, struct err *e)
{
	int r = write_watches(d, e);

	if (r < 0)
		return r;
	d->engine_at = clock_ms();
	if (write(d->hook_w, "g", 1) != 1)
		return err_sys(e, errno, "let the engine go on");
	fd_close(steal_fd(&d->hook_w));
	return 0;
}

static unsigned time_limit(const struct dump *d)
{
	struct cgroup_stats stats;

	if (d->timeout_ms > 0)
		return (unsigned)d->timeout_ms;
	if (d->engine.timeout_ms)
		return d->engine.timeout_ms;
	if (cgroup_stats(d->cgroups, d->id, &stats, NULL) < 0)
		stats.memory_bytes = 1ULL << 30;
	return BASE_MS + (unsigned)(stats.memory_bytes >> 20) * PER_MB_MS;
}

/* How many of those who were there are not any more. */
static unsigned lost(const struct dump *d)
{
	auto_free pid_t *pids = NULL;
	unsigned gone = 0;
	size_t n, k;

	if (cgroup_pids(d->cgroups, d->id, NULL, &pids, &n, NULL) < 0)
		return 0;
	for (size_t i = 0; i < d->inside.n; i++) {
		for (k = 0; k < n; k++)
			if (pids[k] == d->inside.procs[i].pid)
				break;
		if (k == n && !d->inside.procs[i].zombie)
			gone++;
	}
	return gone;
}

static int lost_some(unsigned n, const struct err *why, int r, struct err *e)
{
	err_set(e, r, "engine",
		"%.300s; %u of the sandbox's processes ended meanwhile",
		why->msg, n);
	if (e)
		e->infra = true;
	return r;
}

/*
 * Ended in the middle of its work, the engine may leave a process in code of
 * the engine's, which ends it as soon as it runs.  So let them run for a
 * moment, and it is known who does not.
 */
static void let_run(const struct dump *d)
{
	if (cgroup_freeze(d->cgroups, d->id, false, FREEZE_MS, NULL) == 0)
		(void)poll(NULL, 0, SETTLE_MS);
}

/*
 * The engine thaws the sandbox for a moment, with everybody traced, and freezes
 * it again.  Where it was ended on the way, that is for us to do.
 */
static int still_frozen(struct dump *d, int r, bool killed, struct err *e)
{
	struct err own = {0}, why = {0};
	unsigned n;
	int f;

	if (e)
		why = *e;
	if (killed)
		let_run(d);
	f = cgroup_freeze(d->cgroups, d->id, true, FREEZE_MS, &own);
	n = r < 0 ? lost(d) : 0;
	if (n > 0)
		return lost_some(n, &why, r, e);
	if (r == 0 && f < 0 && e)
		*e = own;
	return r < 0 ? r : f;
}

/* A number of protobuf's at *${p}, before ${end}. */
static bool number(const unsigned char **p, const unsigned char *end,
		   uint64_t *ret)
{
	unsigned shift = 0;

	for (*ret = 0; *p < end && shift < 64; shift += 7) {
		*ret |= (uint64_t)(**p & 0x7f) << shift;
		if (!(*(*p)++ & 0x80))
			return true;
	}
	return false;
}

/*
 * The engine's own measure: two magic numbers, a size, then a message whose
 * first field is a message whose second field is what we look for, all before
 * it numbers.
 */
static uint64_t frozen_us(const struct dump *d)
{
	auto_free char *text = NULL;
	const unsigned char *p, *end;
	uint64_t key, v;
	size_t len;

	if (fd_read_file(d->dir, "stats-dump", 65536, &text, &len, NULL) < 0 ||
	    len < 12)
		return 0;
	p = (const unsigned char *)text + 12;
	end = (const unsigned char *)text + len;
	if (!number(&p, end, &key) || key != 0x0a || !number(&p, end, &v))
		return 0;
	while (number(&p, end, &key) && (key & 7) == 0 && number(&p, end, &v))
		if (key >> 3 == 2)
			return v;
	return 0;
}

int dump_wait(struct dump *d, struct err *e)
{
	bool killed;
	int r;

	r = engine_wait(&d->proc, time_limit(d), e);
	killed = r < 0;
	d->engine_ms = clock_ms() - d->engine_at;
	if (r > 0)
		r = ended(d, r, e);
	r = still_frozen(d, r, killed, e);
	/* Ended in the middle of its work, it may take a process along: whoever
	 * takes the dump back waits for that long. */
	if (r == 0 && dump_stopped(d))
		r = dump_cancelled(e);
	if (r == 0)
		d->frozen_us = frozen_us(d);
	return r;
}

/* "/proc/1/fd/3:/proc/1/fd/4": what to say it on, and where the word comes. */
int hook_dump(const char *action)
{
	const char *env = getenv(DUMP_HOOK_ENV);
	char said[64], word[64], byte;
	int out, in;

	if (strcmp(action, "pre-dump") != 0)
		return EXIT_OK;
	if (!env || sscanf(env, "%63[^:]:%63s", said, word) != 2)
		return EXIT_BUG;
	out = open(said, O_WRONLY | O_CLOEXEC);
	in = open(word, O_RDONLY | O_CLOEXEC);
	if (out < 0 || in < 0 || write(out, "r", 1) != 1)
		return EXIT_SYSTEM;
	return read(in, &byte, 1) == 1 && byte == 'g' ? EXIT_OK : EXIT_NO;
}
