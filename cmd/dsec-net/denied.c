/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/select.h"
#include "life/ctl.h"
#include "life/recover.h"
#include "net.h"

/* What sandboxes tried and were refused, as the helper has written it down. */

#define LIFE_MS 1000 /* how often we look whether they still live */

struct follow {
	const struct tree *tree;
	const json_t *req;
	char id[BOX_ID_LEN + 1];
	int fd; /* of the file; -1: not there yet */
	struct jsonl in;
	uint64_t count;
	bool ended;
};

static int say(struct follow *f, const char *text, size_t len, struct err *e)
{
	auto_json json_t *line = NULL, *rec = NULL;
	int r;

	/* A line of ours that was cut short by a full disk. */
	if (json_parse(text, len, &line, NULL) < 0)
		return 0;
	r = json_pack_or(&rec, e, "{s:s, s:s}", "sandbox", f->id, "event",
			 "denied");
	if (r == 0 && json_object_get(f->req, "id"))
		json_object_set(rec, "id", json_object_get(f->req, "id"));
	if (r == 0 && json_object_update_missing(rec, line) < 0)
		r = err_sys(e, ENOMEM, "record");
	f->count++;
	return r < 0 ? r : record_write(STDOUT_FILENO, rec, e);
}

static void open_file(struct follow *f)
{
	char path[PATH_MAX];

	if (f->fd >= 0 || tree_path(path, NULL, "%s/sb/%s/denied.jsonl",
				    f->tree->lib, f->id) < 0)
		return;
	f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
}

/* What the file has now, from where we were. */
static int read_on(struct follow *f, struct err *e)
{
	char data[16 * 1024], *text;
	size_t len;
	ssize_t n;
	int r = 0;

	open_file(f);
	while (f->fd >= 0 && r >= 0) {
		n = read(f->fd, data, sizeof(data));
		if (n < 0)
			return err_sys(e, errno, "read denied.jsonl");
		if (n == 0)
			break;
		if (jsonl_feed(&f->in, data, (size_t)n) < 0)
			return err_sys(e, ENOMEM, "record");
		while ((r = jsonl_next(&f->in, &text, &len, e)) > 0) {
			r = say(f, text, len, e);
			if (r < 0)
				return r;
		}
		r = r == -EAGAIN || r == -EMSGSIZE ? 0 : r;
	}
	return r;
}

static int begin(struct follow *f, const struct tree *t, const json_t *req,
		 struct err *e)
{
	char path[PATH_MAX];
	int r;

	*f = (struct follow){.tree = t, .req = req, .fd = -1};
	f->in.fd = -1;
	r = recover_find_any(t, json_str(req, "sandbox"), f->id, e);
	if (r == 0)
		r = tree_path(path, e, "%s/sb/%s/spec.json", t->lib, f->id);
	if (r == 0 && access(path, F_OK) < 0)
		r = err_set(e, -ENOENT, "sandbox_unknown",
			    "there is no sandbox '%s' here", f->id);
	return r;
}

static void done(struct follow *f)
{
	if (f->fd >= 0)
		fd_close(f->fd);
	jsonl_done(&f->in);
}

static int finish(struct follow *f, struct err *e)
{
	auto_json json_t *rec = record_ok(f->req);

	if (!rec ||
	    json_object_set_new(rec, "sandbox", json_string(f->id)) < 0 ||
	    json_object_set_new(rec, "count",
				json_integer((json_int_t)f->count)) < 0)
		return err_sys(e, ENOMEM, "record");
	return record_write(STDOUT_FILENO, rec, e);
}

/* --- following ----------------------------------------------------------- */

static bool lives(const struct follow *f)
{
	return select_life(f->tree, f->id, NULL) == SELECT_LIVE;
}

static int look(struct follow *v, size_t n, size_t *ret_left, struct err *e)
{
	bool live;
	int r = 0;

	*ret_left = 0;
	for (size_t i = 0; r == 0 && i < n; i++) {
		if (v[i].ended)
			continue;
		live = lives(&v[i]); /* first: then what it did last is there */
		r = read_on(&v[i], e);
		if (r == 0 && !live) {
			v[i].ended = true;
			r = finish(&v[i], e);
		}
		*ret_left += !v[i].ended;
	}
	return r;
}

static int follow_all(struct follow *v, size_t n, struct err *e)
{
	auto_close int in = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	struct pollfd p = {.fd = in, .events = POLLIN};
	char path[PATH_MAX], events[4096];
	size_t left = n;
	int r = 0;

	if (in < 0)
		return err_sys(e, errno, "inotify");
	for (size_t i = 0; i < n; i++)
		if (tree_path(path, NULL, "%s/sb/%s", v[i].tree->lib,
			      v[i].id) == 0)
			(void)inotify_add_watch(in, path,
						IN_MODIFY | IN_CREATE |
							IN_DELETE_SELF);
	for (;;) {
		r = look(v, n, &left, e);
		if (r < 0 || left == 0)
			return r;
		if (poll(&p, 1, LIFE_MS) > 0)
			while (read(in, events, sizeof(events)) > 0)
				;
	}
}

static int tell_all(struct follow *f, struct err *e)
{
	int r = read_on(f, e);

	return r < 0 ? r : finish(f, e);
}

int denied_tell(const struct tree *t, const json_t *req, struct err *e)
{
	struct follow f;
	int r = begin(&f, t, req, e);

	if (r == 0)
		r = tell_all(&f, e);
	done(&f);
	return r;
}

int mode_denied(const struct tree *t, const json_t *words, bool follow,
		struct err *e)
{
	size_t n = json_array_size(words), i;
	auto_free struct follow *v = calloc(n, sizeof(*v));
	int r = 0;

	if (!v)
		return err_sys(e, ENOMEM, "sandboxes");
	for (i = 0; r == 0 && i < n; i++)
		r = begin(&v[i], t, json_array_get(words, i), e);
	n = i;
	if (r == 0 && follow)
		r = follow_all(v, n, e);
	for (i = 0; r == 0 && !follow && i < n; i++)
		r = tell_all(&v[i], e);
	for (i = 0; i < n; i++)
		done(&v[i]);
	return r;
}
