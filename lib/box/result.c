/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/result.h"

/* The name comes from a record and becomes part of a path. */
static int is_exec(const char *exec)
{
	size_t n = strspn(exec, "abcdefghijklmnopqrstuvwxyz0123456789-");

	return n > 0 && n <= 64 && exec[n] == '\0';
}

static int open_out(const struct tree *t, const char *id, const char *exec,
		    const char *stream, struct err *e)
{
	char path[PATH_MAX];
	int fd, r;

	if (!is_exec(exec))
		return err_set(e, -ENOENT, "exec_unknown", "no command '%.64s'",
			       exec);
	r = tree_path(path, e, "%s/sb/%s/out/%s.%s", t->lib, id, exec, stream);
	if (r < 0)
		return r;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? err_sys(e, errno, "open '%s'", path) : fd;
}

static int add_stream(const struct tree *t, const char *id, json_t *rec,
		      const char *stream, size_t max, struct err *e)
{
	const char *exec = json_str(rec, "exec");
	auto_free char *text = NULL;
	auto_close int fd = -1;
	size_t len = 0;
	char key[32];
	ssize_t n;

	fd = open_out(t, id, exec, stream, e);
	if (fd < 0 && fd != -ENOENT)
		return fd;
	text = malloc(max + 1);
	if (!text)
		return err_sys(e, ENOMEM, "output of %s", exec);
	while (fd >= 0 && len < max) {
		n = read(fd, text + len, max - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, errno, "output of %s", exec);
		if (n == 0)
			break;
		len += (size_t)n;
	}
	snprintf(key, sizeof(key), "%s_bytes", stream);
	if (json_int(rec, key, 0) > (int64_t)len &&
	    json_object_set_new(rec, "truncated", json_true()) < 0)
		return err_sys(e, ENOMEM, "record");
	return json_set_bytes(rec, stream, text, len) < 0
		       ? err_sys(e, ENOMEM, "record")
		       : 0;
}

int result_add_output(const struct tree *t, const char *id, json_t *rec,
		      unsigned inline_kb, struct err *e)
{
	size_t max = (size_t)inline_kb * 1024;
	int r;

	r = add_stream(t, id, rec, "stdout", max, e);
	return r < 0 ? r : add_stream(t, id, rec, "stderr", max, e);
}

int result_of_helper(const json_t *end, int *ret_status, struct err *e)
{
	const char *outcome = json_str(end, "outcome");

	if (!strcmp(outcome, "killed"))
		return err_set(e, -ECANCELED, "cancelled",
			       "the file operation was ended: the sandbox was "
			       "stopped or paused to disk");
	if (!strcmp(outcome, "oom"))
		return err_set(e, -ENOMEM, "oom",
			       "the file operation was ended: the sandbox is "
			       "at its memory limit");
	if (!json_is_integer(json_object_get(end, "exit_code")))
		return err_set(e, -EIO, "internal",
			       "the file helper ended with %.32s", outcome);
	*ret_status = (int)json_int(end, "exit_code", 0);
	return 0;
}
