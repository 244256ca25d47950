/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "box/publish.h"
#include "box/spec.h"

#define QOS "CPU protection classes"

/* clang-format off */
/* name, alias, letter, metavar, help | key, type, min, max, later */
const struct field spec_fields[] = {
	{{"name", NULL, 'n', "NAME", "a name, unique among live sandboxes"}, "name", FIELD_NAME, 1, 64, NULL},
	{{"image", NULL, 'i', "IMAGE", "what it is made of (host), as root/py:3.12"}, "image", FIELD_STR, 1, 256, NULL},
	{{"layer", NULL, 0, "IMAGE", "a layer on top, in order; repeats"}, "layers", FIELD_STRS, 0, 0, NULL},
	{{"snapshot", NULL, 0, "NAME", "start from a snapshot"}, "snapshot", FIELD_STR, 1, 330, NULL},
	{{"cmd", NULL, 0, "COMMAND", "a shell command, in place of -- ARGV"}, "command", FIELD_CMD, 0, 0, NULL},
	{{"env", NULL, 'e', "K=V", "an environment variable; repeats"}, "env", FIELD_MAP, 0, 0, NULL},
	{{"cwd", NULL, 'w', "DIR", "working directory"}, "cwd", FIELD_STR, 1, 4095, NULL},
	{{"init_user", "user", 'u', "USER[:GROUP]", "who the command runs as (root)"}, "init_user", FIELD_STR, 1, 256, NULL},
	{{"hostname", NULL, 0, "NAME", "host name inside (sandbox)"}, "hostname", FIELD_NAME, 1, 63, NULL},
	{{"cpu_cores_limit", "cpu", 'c', "CORES", "CPU limit, fractions allowed (1)"}, "cpu_cores_limit", FIELD_NUM, 10, 4096000, NULL},
	{{"memory_limit_mb", "memory", 'm', "SIZE", "memory limit (512M)"}, "memory_limit_mb", FIELD_MB, 1, 16777216, NULL},
	{{"disk_limit_mb", "disk", 0, "SIZE", "limit of the writable layer; needs a pool"}, "disk_limit_mb", FIELD_MB, 1, 1073741824, NULL},
	{{"pids_limit", "pids", 0, "N", "limit of processes and threads (1024)"}, "pids_limit", FIELD_INT, 2, 4194304, NULL},
	{{"shm_mb", "shm", 0, "SIZE", "size of /dev/shm (64M)"}, "shm_mb", FIELD_MB, 1, 16777216, NULL},
	{{"ttl_running_stop", "ttl-idle", 0, "TIME", "stop after so long without activity"}, "ttl_running_stop", FIELD_S, 1, 31536000, NULL},
	{{"ttl_absolute", "ttl", 0, "TIME", "stop so long after creation"}, "ttl_absolute", FIELD_S, 1, 31536000, NULL},
	{{"ttl_paused", "ttl-paused", 0, "TIME", "stop after so long paused"}, "ttl_paused", FIELD_S, 1, 31536000, NULL},
	{{"network_rules", "network", 0, "JSON", "network policy"}, "network_rules", FIELD_OBJ, 0, 0, NULL},
	{{"phases", NULL, 0, "JSON", "named network policies"}, "phases", FIELD_OBJ, 0, 0, NULL},
	{{"phase", NULL, 0, "NAME", "the phase it begins in"}, "phase", FIELD_NAME, 1, 64, NULL},
	{{"publish", NULL, 0, "PORT", "a port to reach from outside; repeats"}, "publish", FIELD_STRS, 0, 0, NULL},
	{{"label", NULL, 'l', "K=V", "a label; repeats"}, "labels", FIELD_MAP, 0, 0, NULL},
	{{"project", NULL, 0, "PATH", "project, as root/rl/job-42 (root)"}, "project", FIELD_STR, 1, 256, NULL},
	{{"task", NULL, 't', "NAME", "task the sandbox belongs to"}, "task", FIELD_NAME, 1, 128, NULL},
	{{"owner", NULL, 0, "NAME", "the person or agent it is for"}, "user", FIELD_STR, 1, 128, NULL},
	{{"qos", NULL, 0, "CLASS", "latency-sensitive or best-effort"}, "qos", FIELD_STR, 1, 16, QOS},
	{{"backend", NULL, 0, "NAME", "container (microvm and vm come later)"}, "backend", FIELD_STR, 1, 16, NULL},
	{{"profile", NULL, 'p', "NAME", "default, sealed or nested"}, "profile", FIELD_NAME, 1, 32, NULL},
	{{"mount", NULL, 0, "JSON", "{\"source\":..,\"target\":..}, read-only; in a list"}, "mounts", FIELD_OBJ, 0, 0, NULL},
	{{"tty", NULL, 0, NULL, "give the command a terminal"}, "tty", FIELD_BOOL, 0, 0, NULL},
};
/* clang-format on */
const size_t spec_fields_len = array_len(spec_fields);

static int fill(json_t *obj, struct err *e)
{
	auto_json json_t *defaults = NULL;
	int r;

	r = json_pack_or(&defaults, e,
			 "{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i}", "image",
			 "host", "backend", "container", "profile", "default",
			 "project", "root", "cpu_cores_limit", 1,
			 "memory_limit_mb", 512, "pids_limit", 1024, "shm_mb",
			 64);
	if (r < 0)
		return r;
	if (json_object_update_missing(obj, defaults) < 0)
		return err_sys(e, ENOMEM, "request");
	return 0;
}

bool spec_is_project(const char *p)
{
	static const char chars[] = "abcdefghijklmnopqrstuvwxyz"
				    "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	size_t n = strcspn(p, "/");

	/* Or a selector of root would not have all that there is. */
	if (n != 4 || strncmp(p, "root", n))
		return false;
	for (;;) {
		n = strspn(p, chars);
		if (n == 0 || p[0] == '.' || (p[n] != '/' && p[n] != '\0'))
			return false;
		if (p[n] == '\0')
			return true;
		p += n + 1;
	}
}

static int check_mounts(const json_t *mounts, struct err *e)
{
	const char *source, *target;
	size_t i;
	json_t *m;

	if (mounts && !json_is_array(mounts))
		return err_set(e, -EBADMSG, "bad_value",
			       "'mounts' is not a list");
	json_array_foreach(mounts, i, m) {
		source = json_str(m, "source");
		target = json_str(m, "target");
		if (source[0] != '/' || target[0] != '/' ||
		    json_object_size(m) != 2)
			return err_set(e, -EBADMSG, "bad_value",
				       "'mounts': each is {\"source\": "
				       "\"/HOST/DIR\", \"target\": \"/DIR\"}");
	}
	return 0;
}

static bool is_phase(const char *name)
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz"
				"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");

	return n > 0 && n <= 64 && !name[n] && name[0] != '.' && name[0] != '-';
}

/* The form alone: what the rules say is net_plan()'s. */
static int check_network(const json_t *obj, struct err *e)
{
	const json_t *rules = json_object_get(obj, "network_rules");
	const json_t *phases = json_object_get(obj, "phases");
	const char *phase = json_str(obj, "phase"), *name;
	json_t *v;

	if (rules && !json_is_object(rules))
		return err_set(e, -EBADMSG, "bad_value",
			       "'network_rules' is not an object");
	if (phases && !json_is_object(phases))
		return err_set(e, -EBADMSG, "bad_value",
			       "'phases' is not an object of network rules");
	if (json_object_size(phases) > SPEC_PHASES_MAX)
		return err_set(e, -EBADMSG, "bad_value",
			       "'phases' are more than %d", SPEC_PHASES_MAX);
	json_object_foreach((json_t *)(uintptr_t)phases, name, v)
		if (!is_phase(name) || !json_is_object(v))
			return err_set(e, -EBADMSG, "bad_value",
				       "'phases': '%.64s' is not a name with "
				       "network rules",
				       name);
	if (*phase && !json_object_get(phases, phase))
		return err_set(e, -EBADMSG, "bad_value",
			       "'phase': '%s' is none of 'phases'", phase);
	return publish_check(json_object_get(obj, "publish"), e);
}

int spec_complete(json_t *obj, struct err *e)
{
	int64_t memory;
	int r;

	r = fill(obj, e);
	if (r < 0)
		return r;
	if (strcmp(json_str(obj, "backend"), "container"))
		return err_set(e, -EOPNOTSUPP, "unsupported",
			       "backend '%s' is not in this release: only "
			       "container",
			       json_str(obj, "backend"));
	if (!spec_is_project(json_str(obj, "project")))
		return err_set(e, -EBADMSG, "bad_value",
			       "'project' is not a path of names such as "
			       "root/rl/job-42");
	memory = json_int(obj, "memory_limit_mb", 0);
	if (memory < SPEC_MEMORY_MIN_MB)
		return err_set(e, -EINVAL, "memory_too_small",
			       "memory_limit_mb %lld: a sandbox needs at least "
			       "%d",
			       (long long)memory, SPEC_MEMORY_MIN_MB);
	r = check_network(obj, e);
	return r < 0 ? r : check_mounts(json_object_get(obj, "mounts"), e);
}

#define FILE_NAME "spec.json"

int spec_read(const struct tree *t, const char *id, json_t **ret, struct err *e)
{
	char path[PATH_MAX];
	int r = tree_path(path, e, "%s/sb/%s/" FILE_NAME, t->lib, id);

	return r < 0 ? r : json_read_file(AT_FDCWD, path, ret, e);
}

int spec_write(const struct tree *t, const char *id, const json_t *spec,
	       struct err *e)
{
	auto_close int dir = -1;
	char path[PATH_MAX];
	int r = tree_path(path, e, "%s/sb/%s", t->lib, id);

	if (r < 0)
		return r;
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", path);
	return json_write_file(dir, FILE_NAME, spec, 0, e);
}
