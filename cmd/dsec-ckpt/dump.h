/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_CKPT_DUMP_H
#define DSEC_CKPT_DUMP_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/engine.h"
#include "ckpt/inside.h"
#include "box/tree.h"
#include "sys/cgroup.h"
#include "sys/pool.h"
#include "wire/json.h"

/*
 * One dump.  The engine takes its time to start, so it is started while the
 * sandbox runs; it runs us as its hook when it is about to begin, and that
 * waits on a pipe until the sandbox is frozen and was looked at.
 */
struct dump {
	/* As asked. */
	const char *id, *to, *layer;
	int init, state, timeout_ms;
	bool fs_only, durable, frozen;
	bool hold; /* it is ours to freeze, for the moment of a snapshot */

	struct tree tree;
	struct cgroup_root *cgroups;
	json_t *spec;
	struct inside inside;
	bool looked; /* inside is filled */
	int dir;     /* what is to become ${to} */
	struct pool pool;
	int from, home; /* directories: of the layer's names, and the copy's */
	int stop;	/* signalfd: SIGTERM takes the dump back */

	struct engine engine;
	struct engine_proc proc;
	int hook_r, hook_w; /* what it says; what it waits for */
	uint64_t engine_at; /* clock_ms() when it was let go */

	/* Found out. */
	uint64_t frozen_us, engine_ms;
	enum pool_copy how;
	bool copied;	 /* the layer */
	struct err said; /* that the source may go on */
	uint64_t held_at, held_us;
};

/* What is watched inside: a file of the checkpoint, of use to the dump alone.
 */
#define CKPT_WATCHES "watches"

/* Environment of the hook: names of two pipes, to say that it is there, and to
 * wait for the word. */
#define DUMP_HOOK_ENV "DSEC_CKPT_HOOK"

/* dump_say(event, e): to the supervisor. */
int dump_say(const char *event, struct err *e);

/* dump_stopped(d): was it taken back?  dump_cancelled(e): the error for it. */
bool dump_stopped(const struct dump *d);
int dump_cancelled(struct err *e);

/* dump_engine.c */

/*
 * dump_start(d, e): start the engine for what the last look found; it waits in
 * its hook, unless the sandbox was frozen from the start.
 * dump_ready(d, e): wait until it does.
 * dump_go(d, e): let it go on.
 * dump_wait(d, e): to its end.  "engine", with its last words, and with what
 * became of the sandbox's processes if that is more than nothing.
 */
int dump_start(struct dump *d, struct err *e);
int dump_ready(struct dump *d, struct err *e);
int dump_go(struct dump *d, struct err *e);
int dump_wait(struct dump *d, struct err *e);

/* dump_files.c */

/* dump_files(d, e): state, steps, program of pid 1, what stands in pipes. */
int dump_files(struct dump *d, struct err *e);

/*
 * dump_prepare(d, e): what of a copy of the layer can be done while the sandbox
 * runs.  dump_layer(d, e): the rest; it is told ("captured") as soon as the
 * sandbox may go on.
 */
int dump_prepare(struct dump *d, struct err *e);
int dump_layer(struct dump *d, struct err *e);
void dump_layer_undo(const struct dump *d);

/* dump_manifest(d, ret_rec, e): the last file; what to say of all. */
int dump_manifest(struct dump *d, json_t **ret_rec, struct err *e);

#endif
