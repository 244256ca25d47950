/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/engine.h"
#include "wire/json.h"

#define INSTALLED "/usr/lib/dsec/engine/usr/sbin/criu"

static const char *const on_path[] = {
	"/usr/local/sbin/criu", "/usr/local/bin/criu", "/usr/sbin/criu",
	"/usr/bin/criu",	"/sbin/criu",
};

/* 1: ${path} is what the operator says; 0: he says nothing. */
static int configured(const struct tree *t, char *path, struct err *e)
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
	if (criu[0] != '/' || json_object_size(conf) != 1)
		return err_set(e, -EINVAL, "configuration",
			       "%s is not {\"criu\":\"/PATH\"}", file);
	r = tree_path(path, e, "%s", criu);
	return r < 0 ? r : 1;
}

int engine_find(const struct tree *t, struct engine *ret, struct err *e)
{
	char path[PATH_MAX];
	int r;

	r = configured(t, path, e);
	if (r < 0)
		return r;
	if (r == 1)
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

int engine_probe(const struct tree *t, struct engine *ret, struct err *e)
{
	struct engine en;
	int r;

	r = engine_find(t, &en, e);
	if (r < 0)
		return r;
	r = engine_ask_version(&en, e);
	if (r < 0)
		return r;
	*ret = en;
	return 0;
}

int engine_get(const struct tree *t, struct engine *ret, struct err *e)
{
	return engine_probe(t, ret, e);
}
