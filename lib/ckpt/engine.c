/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ckpt/engine_priv.h"
#include "wire/field.h"
#include "wire/json.h"

/* $DSEC_RUN/engine.json */
#define RECORD	  "engine.json"
#define FAILED_MS 60000 /* how long a failed try is believed */

#define INSTALLED "/usr/lib/dsec/engine/usr/sbin/criu"

static const char *const on_path[] = {
	"/usr/local/sbin/criu", "/usr/local/bin/criu", "/usr/sbin/criu",
	"/usr/bin/criu",	"/sbin/criu",
};

/* $DSEC_CONFIG/engine.json */
static const struct field fields[] = {
	{.key = "criu", .type = FIELD_STR, .min = 1, .max = PATH_MAX - 1},
	{.key = "timeout_ms",
	 .type = FIELD_INT,
	 .min = 1000,
	 .max = ENGINE_TIMEOUT_MAX},
};

/* 1: ${path}, if not "", is what the operator says; 0: he says nothing. */
static int configured(const struct tree *t, char *path, unsigned *timeout_ms,
		      struct err *e)
{
	auto_json json_t *conf = NULL;
	char file[PATH_MAX];
	const char *criu;
	int r;

	r = tree_path(file, e, "%s/engine.json", t->config);
	if (r < 0)
		return r;
	if (access(file, F_OK) < 0 && (errno == ENOENT || errno == ENOTDIR))
		return 0;
	r = json_read_file(AT_FDCWD, file, &conf, e);
	if (r < 0)
		return err_wrap(e, r, "%s", file);
	criu = json_str(conf, "criu");
	r = field_check(fields, array_len(fields), conf, e);
	if (r == 0 && *criu && *criu != '/')
		r = err_set(e, -EINVAL, "bad_value", "'criu' is not absolute");
	if (r < 0) {
		if (e)
			e->code = "configuration";
		return err_wrap(e, r, "%s", file);
	}
	*timeout_ms = (unsigned)json_int(conf, "timeout_ms", 0);
	r = tree_path(path, e, "%s", criu);
	return r < 0 ? r : 1;
}

static int find(const struct tree *t, const char *path, struct engine *ret,
		struct err *e)
{
	if (*path)
		return engine_open(path, ret, e);
	if (access(INSTALLED, X_OK) == 0)
		return engine_open(INSTALLED, ret, e);
	for (size_t i = 0; i < array_len(on_path); i++)
		if (access(on_path[i], X_OK) == 0)
			return engine_open(on_path[i], ret, e);
	return err_set(e, -ENOENT, "unsupported",
		       "no checkpoint engine (CRIU 4.2 or later) on this "
		       "node: make deps installs one, or name one in "
		       "%s/engine.json",
		       t->config);
}

int engine_find(const struct tree *t, struct engine *ret, struct err *e)
{
	char path[PATH_MAX] = "";
	unsigned timeout_ms = 0;
	int r;

	r = configured(t, path, &timeout_ms, e);
	if (r >= 0)
		r = find(t, path, ret, e);
	if (r == 0)
		ret->timeout_ms = timeout_ms;
	return r;
}

int engine_run_dir(const struct tree *t, char *buf, struct err *e)
{
	int r;

	r = tree_path(buf, e, "%s/engine", t->run);
	if (r < 0)
		return r;
	if (mkdir(buf, 0700) < 0 && errno != EEXIST)
		return err_sys(e, errno, "make %s", buf);
	return 0;
}

/* What a try holds for: this file, as this kernel since its boot sees it. */
static int identity(const struct engine *en, json_t **ret, struct err *e)
{
	auto_free char *boot = NULL;
	struct utsname u;
	struct stat st;
	size_t len;
	int r;

	if (stat(en->path, &st) < 0)
		return err_sys(e, errno, "%s", en->path);
	r = fd_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 64, &boot,
			 &len, e);
	if (r < 0)
		return r;
	boot[strcspn(boot, "\n")] = '\0';
	if (uname(&u) < 0)
		return err_sys(e, errno, "ask which kernel this is");
	return json_pack_or(ret, e, "{s:s, s:I, s:I, s:I, s:I, s:s, s:s, s:s}",
			    "path", en->path, "device", (json_int_t)st.st_dev,
			    "inode", (json_int_t)st.st_ino, "size",
			    (json_int_t)st.st_size, "changed_ns",
			    (json_int_t)(st.st_ctim.tv_sec * 1000000000LL +
					 st.st_ctim.tv_nsec),
			    "kernel", u.release, "boot", boot, "shim",
			    en->shim);
}

/*
 * 1: the record in ${dir} is of ${id} and says the engine works, 0: there is
 * none to believe; or the failure it tells of.
 */
static int recall(int dir, const json_t *id, struct engine *en, struct err *e)
{
	auto_json json_t *rec = NULL;
	int64_t age;

	if (json_read_file(dir, RECORD, &rec, NULL) < 0 ||
	    !json_equal(json_object_get(rec, "engine"), id))
		return 0;
	if (json_flag(rec, "ok")) {
		const char *version = json_str(rec, "version");

		if (!version[0] || strlen(version) >= sizeof(en->version))
			return 0;
		snprintf(en->version, sizeof(en->version), "%s", version);
		return 1;
	}
	age = (int64_t)clock_wall_ms() - json_int(rec, "tried_ms", 0);
	if (age < 0 || age > FAILED_MS)
		return 0;
	return err_set(e, -ENOTSUP, "unsupported", "%s",
		       json_str(rec, "reason"));
}

static int remember(int dir, const json_t *id, const struct engine *en,
		    const struct err *failed, struct err *e)
{
	auto_json json_t *rec = NULL;
	int r;

	r = json_pack_or(&rec, e, "{s:O, s:b, s:s, s:s, s:I}", "engine", id,
			 "ok", failed == NULL, "version", en->version, "reason",
			 failed ? failed->msg : "", "tried_ms",
			 (json_int_t)clock_wall_ms());
	return r < 0 ? r : json_write_file(dir, RECORD, rec, 0, e);
}

/* Ask and try, and keep what came out. */
static int find_out(const struct tree *t, int dir, const json_t *id,
		    struct engine *en, struct err *e)
{
	struct err why = {0};
	int r;

	r = engine_ask_version(en, &why);
	if (r == 0)
		r = engine_try(t, en, ENGINE_TRY_MS, &why);
	if (r == 0)
		return remember(dir, id, en, NULL, e);
	err_wrap(&why, r, "the checkpoint engine %s does not work here",
		 en->path);
	why.code = "unsupported";
	why.infra = false;
	/* Nobody is told of a record that could not be written: the next one
	 * tries again. */
	remember(dir, id, en, &why, NULL);
	if (e)
		*e = why;
	return r;
}

static int get(const struct tree *t, bool anew, struct engine *ret,
	       struct err *e)
{
	auto_close int dir = -1;
	auto_close int lock = -1;
	auto_json json_t *id = NULL;
	char run_dir[PATH_MAX];
	struct engine en;
	int r;

	r = engine_find(t, &en, e);
	if (r < 0)
		return r;
	r = identity(&en, &id, e);
	if (r < 0)
		return r;
	if (access(t->run, F_OK) < 0 && errno == ENOENT)
		return err_set(e, -ENOENT, "unsupported",
			       "the checkpoint engine was not tried since the "
			       "node was started: %s is not there "
			       "(dsec-doctor --fix makes it)",
			       t->run);
	r = engine_run_dir(t, run_dir, e);
	if (r < 0)
		return r;
	dir = open(t->run, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_sys(e, errno, "open %s", t->run);
	r = anew ? 0 : recall(dir, id, &en, e);
	if (r == 0) {
		/* One tries, the others wait for what it finds. */
		lock = open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (lock < 0 || flock(lock, LOCK_EX) < 0)
			return err_sys(e, errno, "lock %s", run_dir);
		r = anew ? 0 : recall(dir, id, &en, e);
	}
	if (r == 0)
		r = find_out(t, dir, id, &en, e);
	if (r < 0)
		return r;
	*ret = en;
	return 0;
}

int engine_get(const struct tree *t, struct engine *ret, struct err *e)
{
	return get(t, false, ret, e);
}

int engine_probe(const struct tree *t, struct engine *ret, struct err *e)
{
	return get(t, true, ret, e);
}
