/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/opt.h"
#include "base/sig.h"
#include "box/net.h"
#include "ckpt/ckpt.h"
#include "box/profile.h"
#include "box/spec.h"
#include "ckpt_cmd.h"
#include "dump.h"
#include "wire/exit.h"
#include "wire/jsonl.h"
#include "wire/record.h"

#define LOOKS 3 /* at a sandbox that runs */

#define USAGE                                                                  \
	"usage: dsec-ckpt dump --init PID --to DIR --state FD [OPTION...] "    \
	"SANDBOX"

enum {
	OPT_INIT,
	OPT_TO,
	OPT_STATE,
	OPT_LAYER,
	OPT_FS_ONLY,
	OPT_DURABLE,
	OPT_FROZEN,
	OPT_TIMEOUT,
	OPT_HELP,
};

static const struct opt options[] = {
	[OPT_INIT] = {"init", NULL, 0, "PID", "its pid 1, on the node"},
	[OPT_TO] = {"to", NULL, 0, "DIR", "the directory to make"},
	[OPT_STATE] = {"state", NULL, 0, "FD", "what the supervisor knows"},
	[OPT_LAYER] = {"layer", NULL, 0, "ID",
		       "copy the writable layer too, as the pool's layer ID"},
	[OPT_FS_ONLY] = {"fs-only", NULL, 0, NULL,
			 "nothing but the layer; no engine is needed"},
	[OPT_DURABLE] = {"durable", NULL, 0, NULL, "sync all of it"},
	[OPT_FROZEN] = {"frozen", NULL, 0, NULL,
			"it is frozen and the state is written: do not ask"},
	[OPT_TIMEOUT] = {"timeout-ms", NULL, 0, "N",
			 "most that the engine may take (by its size)"},
	[OPT_HELP] = {"help", NULL, 'h', NULL, "show this"},
};

static int take(void *to, int row, const char *arg, struct err *e)
{
	struct dump *a = to;

	switch (row) {
	case OPT_INIT:
		return cmd_number(arg, &a->init, e);
	case OPT_TO:
		a->to = arg;
		return 0;
	case OPT_STATE:
		return cmd_number(arg, &a->state, e);
	case OPT_LAYER:
		a->layer = arg;
		return 0;
	case OPT_FS_ONLY:
		a->fs_only = true;
		return 0;
	case OPT_DURABLE:
		a->durable = true;
		return 0;
	case OPT_TIMEOUT:
		return cmd_number(arg, &a->timeout_ms, e);
	default:
		a->frozen = true;
		return 0;
	}
}

static int check(const struct dump *a, struct err *e)
{
	if (!a->to || a->to[0] != '/' || (a->layer && !tree_is_id(a->layer)) ||
	    (!a->fs_only && (a->init <= 0 || a->state < 0)) ||
	    (a->fs_only && !a->layer))
		return err_set(e, -EINVAL, "usage", "%s", USAGE);
	return 0;
}

/* 1: help was asked for. */
static int parse(int argc, char **argv, struct dump *a, struct err *e)
{
	int r = cmd_parse(argc, argv, OPT_TABLE(options), USAGE, take, a,
			  &a->id, e);

	return r == 0 ? check(a, e) : r;
}

/* Some shapes never can be, whatever runs in them. */
static int check_shape(const struct dump *d, struct err *e)
{
	const char *name = json_str(d->spec, "profile");
	struct profile p;
	int r;

	if (!strcmp(json_str(d->spec, "image"), "host"))
		return err_set(e, -EBUSY, "not_checkpointable",
			       "a sandbox of image 'host' cannot be "
			       "checkpointed: it runs on the node's own files");
	r = profile_load(*name ? name : "default", &p, e);
	if (r < 0)
		return r;
	if (!p.checkpointable)
		r = err_set(e, -EBUSY, "not_checkpointable",
			    "a sandbox of profile '%s' cannot be checkpointed",
			    p.name);
	profile_done(&p);
	return r;
}

static int prepare(struct dump *d, struct err *e)
{
	static const int signals[] = {SIGTERM, SIGINT};
	int r;

	d->stop = sig_block(signals, array_len(signals), e);
	if (d->stop < 0)
		return d->stop;
	r = tree_init(&d->tree, e);
	if (r == 0)
		r = spec_read(&d->tree, d->id, &d->spec, e);
	if (r == 0)
		r = net_note(&d->tree, d->id, d->spec, e);
	if (r == 0 && !d->fs_only)
		r = check_shape(d, e);
	if (r == 0)
		r = cgroup_open(d->tree.cgroup, &d->cgroups, e);
	if (r == 0 && !d->fs_only)
		r = engine_get(&d->tree, &d->engine, e);
	if (r == 0)
		r = ckpt_begin(d->to, &d->dir, e);
	return r;
}

/* What the supervisor has of the sandbox's; it is written before the look. */
static int read_fds(const struct dump *d, json_t **ret, struct err *e)
{
	auto_free char *text = NULL;
	struct stat st;
	json_error_t je;
	ssize_t n;

	if (fstat(d->state, &st) < 0)
		return err_sys(e, errno, "state (descriptor %d)", d->state);
	if (st.st_size > STATE_MAX)
		return err_set(e, -EFBIG, "too_large", "the state");
	text = malloc((size_t)st.st_size + 1);
	if (!text)
		return err_sys(e, ENOMEM, "state");
	n = pread(d->state, text, (size_t)st.st_size, 0);
	*ret = n < 0 ? NULL : json_loadb(text, (size_t)n, 0, &je);
	return *ret ? 0
		    : err_set(e, -EBADMSG, "internal",
			      "what the supervisor wrote is no state");
}

/* Before it is frozen there is no state yet: then nothing is the supervisor's,
 * which changes what is found external but for the mounts. */
static int look(struct dump *d, bool with_state, struct err *e)
{
	auto_json json_t *state = NULL, *known = NULL;
	struct inside_ask ask = {
		.cgroups = d->cgroups,
		.id = d->id,
		.init = d->init,
		.spec = d->spec,
	};
	int r = 0;

	if (with_state)
		r = read_fds(d, &state, e);
	if (r < 0)
		return r;
	ask.fds = json_object_get(state, "fds");
	ask.running = !with_state;
	if (d->looked) {
		known = json_incref(d->inside.watches);
		inside_done(&d->inside);
	}
	ask.known = known;
	d->looked = false;
	r = inside_survey(&ask, &d->inside, e);
	d->looked = r == 0;
	return r;
}

int dump_say(const char *event, struct err *e)
{
	auto_json json_t *rec = json_pack("{s:s}", "event", event);

	return rec ? record_write(STDOUT_FILENO, rec, e)
		   : err_sys(e, ENOMEM, "record");
}

/* A snapshot takes but a moment, and the sandbox may stand still for just that:
 * whoever takes it can hold it himself. */
static int say_ready(const struct dump *d, struct err *e)
{
	auto_json json_t *rec = json_pack("{s:s, s:b}", "event", "ready",
					  "moment",
					  d->fs_only && d->layer &&
						  pool_at_once(&d->pool,
							       d->from));

	return rec ? record_write(STDOUT_FILENO, rec, e)
		   : err_sys(e, ENOMEM, "record");
}

bool dump_stopped(const struct dump *d)
{
	struct pollfd p = {.fd = d->stop, .events = POLLIN};

	return poll(&p, 1, 0) > 0;
}

int dump_cancelled(struct err *e)
{
	return err_set(e, -ECANCELED, "cancelled", "the dump was taken back");
}

static int read_go(struct dump *d, struct err *e)
{
	struct jsonl in = {.fd = STDIN_FILENO};
	auto_json json_t *word = NULL;
	bool go = false;
	char *text;
	size_t len;
	int r;

	r = jsonl_next(&in, &text, &len, e);
	if (r == 1)
		go = json_parse(text, len, &word, e) == 0 &&
		     json_flag(word, "go");
	d->hold = go && json_flag(word, "hold");
	jsonl_done(&in);
	if (r < 0)
		return r;
	return go ? 0 : dump_cancelled(e);
}

static int wait_for_go(struct dump *d, struct err *e)
{
	struct pollfd p[] = {
		{.fd = STDIN_FILENO, .events = POLLIN},
		{.fd = d->stop, .events = POLLIN},
	};
	int r;

	do {
		r = poll(p, 2, -1);
	} while (r < 0 && errno == EINTR);
	return dump_stopped(d) ? dump_cancelled(e) : read_go(d, e);
}

/*
 * While the sandbox runs: what forbids a dump is found before it is stopped,
 * most of it.  What changes under the look is not an answer.
 */
static int early_look(struct dump *d, struct err *e)
{
	int r = 0;

	for (int i = 0; i < LOOKS; i++) {
		r = look(d, false, e);
		if (r == 0)
			break;
	}
	return r == -ENOENT || r == -ESRCH ? 0 : r;
}

/* Does the engine that waits know what it must? */
static bool still_right(const struct dump *d, const json_t *was)
{
	static const char *const keys[] = {"mounts", "ttys"};

	for (size_t i = 0; i < array_len(keys); i++)
		if (!json_equal(json_object_get(was, keys[i]),
				json_object_get(d->inside.externals, keys[i])))
			return false;
	return json_object_size(d->inside.watches) == 0 || d->engine.shim[0];
}

/* The engine waits; stop the sandbox, look, and let the engine go.  What has to
 * be told to the engine at its start may be another now: start again. */
static int freeze_and_go(struct dump *d, struct err *e)
{
	auto_json json_t *was = json_incref(d->inside.externals);
	int r;

	r = d->looked ? dump_start(d, e) : 0;
	if (r == 0 && d->looked)
		r = dump_ready(d, e);
	if (r == 0)
		r = dump_say("ready", e);
	if (r == 0)
		r = wait_for_go(d, e);
	if (r == 0)
		r = look(d, true, e);
	if (r < 0)
		return r;
	if (was && still_right(d, was))
		return dump_go(d, e);
	engine_kill(&d->proc);
	d->frozen = true;
	return dump_start(d, e);
}

static int dump_processes(struct dump *d, struct err *e)
{
	struct err own = {0};
	int r, f;

	if (d->frozen) {
		r = look(d, true, e);
		if (r == 0)
			r = dump_start(d, e);
	} else {
		r = early_look(d, e);
		if (r == 0)
			r = freeze_and_go(d, e);
	}
	if (r < 0)
		return r;
	/* While the engine works.  It is let come to its end even so: ended in
	 * the middle, it may take processes along. */
	f = dump_files(d, &own);
	r = dump_wait(d, e);
	if (r == 0 && f < 0)
		*e = own;
	return r < 0 ? r : f;
}

/* Of a layer alone: it is consistent as it is, when the sandbox stands still;
 * where the pool can do it at once, it need not. */
static int dump_fs_only(struct dump *d, struct err *e)
{
	int r = 0;

	if (!d->frozen) {
		r = say_ready(d, e);
		if (r == 0)
			r = wait_for_go(d, e);
	}
	return r < 0 ? r : dump_files(d, e);
}

static int run(struct dump *d, json_t **ret_rec, struct err *e)
{
	int r;

	r = prepare(d, e);
	if (r < 0)
		return r;
	r = dump_prepare(d, e);
	if (r < 0)
		return r;
	r = d->fs_only ? dump_fs_only(d, e) : dump_processes(d, e);
	if (r == 0)
		r = dump_layer(d, e);
	if (r == 0)
		r = dump_manifest(d, ret_rec, e);
	if (r == 0)
		r = ckpt_commit(d->to, d->durable, e);
	if (r < 0)
		dump_layer_undo(d);
	return r;
}

static void done(struct dump *d)
{
	engine_kill(&d->proc);
	if (d->looked)
		inside_done(&d->inside);
	cgroup_close(d->cgroups);
	pool_close(&d->pool);
	json_decref(d->spec);
}

int cmd_dump(int argc, char **argv)
{
	struct dump d = {
		.state = -1,
		.dir = -1,
		.stop = -1,
		.hook_r = -1,
		.hook_w = -1,
		.pool = POOL_INIT,
		.from = -1,
		.home = -1,
	};
	auto_json json_t *rec = NULL;
	struct err e = {0};
	int r;

	r = parse(argc, argv, &d, &e);
	if (r == 1)
		return EXIT_OK;
	if (r < 0)
		return cmd_fail(&e);
	r = run(&d, &rec, &e);
	done(&d);
	if (r < 0)
		ckpt_discard(d.to);
	else
		r = record_write(STDOUT_FILENO, rec, &e);
	return r < 0 ? cmd_fail(&e) : EXIT_OK;
}
