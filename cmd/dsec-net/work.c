/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "box/key.h"
#include "box/select.h"
#include "life/ctl.h"
#include "wire/jsonl.h"
#include "wire/record.h"
#include "work.h"

int work_conf(struct work *w, struct err *e)
{
	int r;

	if (w->configured)
		return 0;
	r = netconf_load(w->tree->config, &w->conf, e);
	if (r < 0)
		return r;
	r = services_open(w->tree->config, &w->conf, &w->services, e);
	if (r < 0)
		netconf_done(&w->conf);
	w->configured = r == 0;
	return r;
}

int work_helper(struct work *w, struct err *e)
{
	return w->helper ? 0 : helper_open(w->tree->run, 0, &w->helper, e);
}

void work_lost(struct work *w)
{
	helper_free(w->helper);
	w->helper = NULL;
}

/* --- a sandbox ----------------------------------------------------------- */

static int read_of(const char *dir, const char *id, const char *name,
		   json_t **ret, struct err *e)
{
	char path[PATH_MAX];
	int r = tree_path(path, e, "%s/sb/%s/%s", dir, id, name);

	return r < 0 ? r : json_read_file(AT_FDCWD, path, ret, e);
}

int work_awake(struct work *w, const char *id, struct err *e)
{
	auto_json json_t *state = NULL, *req = NULL, *rec = NULL;
	struct err why = {0};
	int r;

	/* The supervisor need not be asked about what its file says. */
	if (select_life(w->tree, id, NULL) == SELECT_LIVE &&
	    read_of(w->tree->run, id, "state.json", &state, NULL) == 0 &&
	    !strcmp(json_str(state, "state"), "running"))
		return 0;
	r = json_pack_or(&req, e, "{s:i, s:s}", "id", 1, "op", "resume");
	if (r < 0)
		return r;
	r = ctl_call(w->tree, id, req, 0, &rec, &why);
	if (r < 0 && why.code && !strcmp(why.code, "one_shot"))
		return 0;
	if (r < 0 && e)
		*e = why;
	return r < 0 ? r : 0;
}

int work_spec(struct work *w, const char *id, json_t **ret, struct err *e)
{
	int r;

	r = read_of(w->tree->lib, id, "spec.json", ret, e);
	if (r == -ENOENT)
		return err_set(e, r, "sandbox_unknown",
			       "there is no sandbox '%s' here, or it has no "
			       "network of its own to change",
			       id);
	return r;
}

/* The number may be somebody else's by now; the namespace is not. */
static bool is_in(pid_t pid, const json_t *net)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)pid);
	return stat(path, &st) == 0 &&
	       (json_int_t)st.st_ino == json_int(net, "netns", -1);
}

pid_t work_pid(struct work *w, const char *id, struct err *e)
{
	auto_json json_t *net = NULL, *state = NULL;
	pid_t pid = 0;

	if (read_of(w->tree->run, id, "net.json", &net, NULL) == 0)
		pid = (pid_t)json_int(net, "pid", 0);
	if (pid > 0 && is_in(pid, net))
		return pid;
	pid = 0;
	if (read_of(w->tree->run, id, "state.json", &state, NULL) == 0)
		pid = (pid_t)json_int(state, "init_pid", 0);
	if (pid > 0)
		return pid;
	return err_set(e, -ESRCH, "stopped", "sandbox %s has no processes", id);
}

/* --- requests ------------------------------------------------------------ */

/* ${*rec} is filled, or becomes that of the first request with its key. */
static int change_once(struct work *w, const char *id, const json_t *req,
		       json_t **rec, struct err *e)
{
	json_t *first = NULL;
	struct key key;
	struct err late;
	int r;

	r = key_begin(&key, w->tree, req, -1, &first, e);
	if (r > 0) {
		json_decref(*rec);
		*rec = first;
	}
	if (r != 0)
		return r < 0 ? r : 0;
	r = change(w, id, req, *rec, e);
	/* What was done stands, even when it cannot be kept. */
	(void)key_end(&key, r < 0 ? NULL : *rec, &late);
	key_done(&key);
	return r;
}

static int do_one(struct work *w, const json_t *req, json_t **rec,
		  struct err *e)
{
	const char *id = json_str(req, "sandbox");

	if (json_object_get(req, "show"))
		return show(w, id, *rec, e);
	if (json_object_get(req, "explain"))
		return explain(w, id, req, *rec, e);
	return change_once(w, id, req, rec, e);
}

static int answer(struct work *w, int fd, const json_t *req, struct err *e)
{
	auto_json json_t *rec = record_ok(req), *bad = NULL;
	struct err why = {0};
	int r;

	r = rec ? do_one(w, req, &rec, &why) : err_sys(&why, ENOMEM, "record");
	if (r < 0) {
		bad = record_error(req, &why);
		return bad ? record_write(fd, bad, e) : -ENOMEM;
	}
	r = record_write(fd, rec, e);
	if (r == -EMSGSIZE) {
		err_set(&why, r, "too_large", "the record is over 1 MiB");
		bad = record_error(req, &why);
		r = bad ? record_write(fd, bad, e) : -ENOMEM;
	}
	return r;
}

void work_serve(int fd, const struct tree *t)
{
	struct work w = {.tree = t};
	struct jsonl in = {.fd = fd};
	struct err e = {0};
	char *text;
	size_t len;
	int r = 0;

	while (r == 0 && jsonl_next(&in, &text, &len, &e) > 0) {
		auto_json json_t *req = NULL;

		r = json_parse(text, len, &req, &e);
		if (r == 0)
			r = answer(&w, fd, req, &e);
	}
	jsonl_done(&in);
	helper_free(w.helper);
	services_free(w.services);
	netconf_done(&w.conf);
}
