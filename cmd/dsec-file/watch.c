/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/walk.h"
#include "ops.h"
#include "wire/record.h"

#define MASK                                                                   \
	(IN_CREATE | IN_MODIFY | IN_ATTRIB | IN_DELETE | IN_MOVED_FROM |       \
	 IN_MOVED_TO | IN_DELETE_SELF | IN_EXCL_UNLINK)
#define PAIR_MS 20 /* how long the second half of a rename may take */

/* Watch descriptors only grow, so the table is sorted by them. */
struct watched {
	int wd;
	char *path; /* below the root, "" for it; NULL: gone */
};

struct watcher {
	int fd;
	const char *root;
	const char *only; /* of the root, where it is a single file */
	bool recursive, over;
	struct watched *dirs;
	size_t n, cap;
	int64_t events;
	/* a rename's first half */
	struct buf from;
	uint32_t cookie;
	bool from_is_dir;
	struct buf last; /* path of the last "modified", told once in a row */
};

static void watcher_done(struct watcher *w)
{
	for (size_t i = 0; i < w->n; i++)
		free(w->dirs[i].path);
	free(w->dirs);
	buf_done(&w->from);
	buf_done(&w->last);
	if (w->fd >= 0)
		fd_close(w->fd);
}

static struct watched *find(const struct watcher *w, int wd)
{
	size_t lo = 0, hi = w->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (w->dirs[mid].wd == wd)
			return w->dirs[mid].path ? &w->dirs[mid] : NULL;
		if (w->dirs[mid].wd < wd)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

static int emit(struct watcher *w, const char *event, const char *path,
		const char *to, bool dir, struct err *e)
{
	auto_json json_t *rec = json_pack("{s:s}", "event", event);
	bool again = path && !strcmp(event, "modified");

	if (again && w->last.len && !strcmp(w->last.data, path))
		return 0;
	w->last.len = 0;
	if (!rec || (again && buf_add(&w->last, path, strlen(path)) < 0) ||
	    (path && json_set_bytes(rec, "name", path, strlen(path)) < 0) ||
	    (to && json_set_bytes(rec, "to", to, strlen(to)) < 0) ||
	    (dir &&
	     json_object_set_new(rec, "type", json_string("directory")) < 0))
		return err_sys(e, ENOMEM, "watch");
	w->events++;
	return record_write(STDOUT_FILENO, rec, e);
}

static int full_path(const struct watcher *w, const char *path, struct buf *out)
{
	out->len = 0;
	if (buf_add(out, w->root, strlen(w->root)) < 0)
		return -ENOMEM;
	if (!*path)
		return 0;
	return buf_addf(out, "/%s", path);
}

static int remember(struct watcher *w, int wd, const char *path)
{
	size_t cap = w->cap ? w->cap * 2 : 64;
	struct watched *p;
	char *copy;

	p = find(w, wd);
	if (!p && w->n == w->cap) {
		p = realloc(w->dirs, cap * sizeof(*p));
		if (!p)
			return -ENOMEM;
		w->dirs = p;
		w->cap = cap;
		p = NULL;
	}
	copy = strdup(path);
	if (!copy)
		return -ENOMEM;
	if (p) {
		free(p->path);
		p->path = copy;
		return 0;
	}
	w->dirs[w->n++] = (struct watched){wd, copy};
	return 0;
}

/* A directory that cannot be watched is told, and the rest still is. */
static int add(struct watcher *w, const char *path, struct err *e)
{
	uint32_t mask = MASK | IN_ONLYDIR | (*path ? IN_DONT_FOLLOW : 0);
	auto_buf struct buf full = {0};
	int wd;

	if (full_path(w, path, &full) < 0)
		return err_sys(e, ENOMEM, "watch");
	wd = inotify_add_watch(w->fd, full.data, mask);
	if (wd >= 0)
		return remember(w, wd, path) < 0 ? err_sys(e, ENOMEM, "watch")
						 : 0;
	if (!*path && errno == ENOSPC)
		return err_set(e, -ENOSPC, "quota",
			       "no inotify watches are left");
	if (!*path)
		return err_sys(e, errno, "watch '%s'", w->root);
	if (errno == ENOENT || errno == ENOTDIR)
		return 0;
	return emit(w, "unwatched", path, NULL, true, e);
}

/*
 * Watch ${path} and what is below it.  What is found there came before the
 * watch did: with ${tell} it is told as created, perhaps a second time.
 */
static int add_tree(struct watcher *w, const char *path, bool tell,
		    struct err *e)
{
	auto_walk struct walk *walk = NULL;
	auto_buf struct buf full = {0}, rel = {0};
	struct walk_item it;
	int r = add(w, path, e);

	if (r < 0 || !w->recursive)
		return r;
	if (full_path(w, path, &full) < 0 ||
	    (!*path && buf_add(&full, "/.", 2) < 0))
		return err_sys(e, ENOMEM, "watch");
	if (walk_open(AT_FDCWD, full.data, WALK_NO_PROC, &walk, NULL) < 0)
		return 0;
	while (r >= 0 && walk_next(walk, &it, NULL) > 0) {
		if (it.depth == 0 || it.errnum)
			continue;
		rel.len = 0;
		if (buf_addf(&rel, "%s%s%s", path, *path ? "/" : "", it.path) <
		    0)
			return err_sys(e, ENOMEM, "watch");
		if (S_ISDIR(it.st.st_mode))
			r = add(w, rel.data, e);
		if (r >= 0 && tell)
			r = emit(w, "created", rel.data, NULL,
				 S_ISDIR(it.st.st_mode), e);
	}
	return r;
}

static bool below(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	return !strncmp(path, dir, n) && (!path[n] || path[n] == '/');
}

/* A watched directory has moved: to ${to}, or (NULL) out of the tree. */
static int moved_dir(struct watcher *w, const char *from, const char *to)
{
	for (size_t i = 0; i < w->n; i++) {
		struct watched *d = &w->dirs[i];
		auto_buf struct buf path = {0};

		if (!d->path || !*d->path || !below(d->path, from))
			continue;
		if (!to) {
			inotify_rm_watch(w->fd, d->wd);
			free(steal_ptr(d->path));
			continue;
		}
		if (buf_addf(&path, "%s%s", to, d->path + strlen(from)) < 0)
			return -ENOMEM;
		free(d->path);
		d->path = steal_ptr(path.data);
	}
	return 0;
}

/* The second half of a rename did not come: it left the tree. */
static int flush_from(struct watcher *w, struct err *e)
{
	int r;

	if (w->from.len == 0)
		return 0;
	if (w->from_is_dir && moved_dir(w, w->from.data, NULL) < 0)
		return err_sys(e, ENOMEM, "watch");
	r = emit(w, "removed", w->from.data, NULL, w->from_is_dir, e);
	w->from.len = 0;
	return r;
}

static int arrived(struct watcher *w, const char *path, uint32_t cookie,
		   bool dir, struct err *e)
{
	int r;

	if (w->from.len && w->cookie == cookie) {
		if (dir && moved_dir(w, w->from.data, path) < 0)
			return err_sys(e, ENOMEM, "watch");
		r = emit(w, "moved", w->from.data, path, dir, e);
		w->from.len = 0;
		return r;
	}
	r = emit(w, "created", path, NULL, dir, e);
	return r < 0 || !dir || !w->recursive ? r : add_tree(w, path, true, e);
}

static int about(struct watcher *w, const struct inotify_event *ev,
		 const char *path, struct err *e)
{
	bool dir = ev->mask & IN_ISDIR;
	int r = 0;

	if (!(ev->mask & IN_MOVED_TO) || ev->cookie != w->cookie)
		r = flush_from(w, e);
	if (r < 0)
		return r;
	if (ev->mask & IN_MOVED_TO)
		return arrived(w, path, ev->cookie, dir, e);
	if (ev->mask & IN_CREATE)
		return arrived(w, path, 0, dir, e);
	if (ev->mask & IN_DELETE)
		return emit(w, "removed", path, NULL, dir, e);
	if (ev->mask & (IN_MODIFY | IN_ATTRIB))
		return emit(w, "modified", path, NULL, dir, e);
	if (ev->mask & IN_MOVED_FROM) {
		w->cookie = ev->cookie;
		w->from_is_dir = dir;
		if (buf_add(&w->from, path, strlen(path)) < 0)
			return err_sys(e, ENOMEM, "watch");
	}
	return 0;
}

static int one(struct watcher *w, const struct inotify_event *ev, struct err *e)
{
	auto_buf struct buf path = {0};
	const struct watched *d;

	if (ev->mask & IN_Q_OVERFLOW)
		return emit(w, "overflow", NULL, NULL, false, e);
	d = find(w, ev->wd);
	if (!d)
		return 0;
	if (ev->mask & (IN_IGNORED | IN_DELETE_SELF | IN_UNMOUNT)) {
		w->over = w->over || !*d->path;
		if (ev->mask & IN_IGNORED)
			free(steal_ptr(w->dirs[d - w->dirs].path));
		return 0;
	}
	if (ev->len == 0 || (w->only && strcmp(ev->name, w->only)))
		return 0;
	if (buf_addf(&path, "%s%s%s", d->path, *d->path ? "/" : "", ev->name) <
	    0)
		return err_sys(e, ENOMEM, "watch");
	return about(w, ev, path.data, e);
}

static int events(struct watcher *w, struct err *e)
{
	_Alignas(struct inotify_event) char data[16 * 1024];
	const struct inotify_event *ev;
	ssize_t n = read(w->fd, data, sizeof(data));
	int r = 0;

	if (n < 0)
		return errno == EAGAIN || errno == EINTR
			       ? 0
			       : err_sys(e, errno, "read events");
	w->last.len = 0;
	for (const char *p = data; r == 0 && p < data + n;
	     p += sizeof(*ev) + ev->len) {
		ev = (const void *)p;
		r = one(w, ev, e);
	}
	return r;
}

/* Does the caller still hold our stdin open?  What it sends is dropped. */
static bool caller_left(const struct pollfd *p)
{
	char drop[512];

	return p->revents && read(STDIN_FILENO, drop, sizeof(drop)) <= 0;
}

static int serve(struct watcher *w, uint64_t until, struct err *e)
{
	struct pollfd p[2] = {{w->fd, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
	int r = 0;

	while (r >= 0 && !w->over) {
		uint64_t now = clock_ms();
		int wait = w->from.len ? PAIR_MS : -1;

		if (until && now >= until)
			break;
		if (until && wait < 0)
			wait = until - now > 60000 ? 60000 : (int)(until - now);
		r = poll(p, 2, wait);
		if (r < 0 && errno == EINTR) {
			r = 0;
			continue;
		}
		if (r < 0)
			return err_sys(e, errno, "poll");
		if (r == 0) {
			r = flush_from(w, e);
			continue;
		}
		if (p[0].revents)
			r = events(w, e);
		if (r >= 0 && caller_left(&p[1]))
			break;
	}
	return r < 0 ? r : flush_from(w, e);
}

/* A single file is watched through its directory: it may be replaced. */
static int choose_root(struct watcher *w, char *path, struct err *e)
{
	struct stat st;
	char *slash;

	if (stat(path, &st) < 0)
		return err_sys(e, errno, "'%s'", path);
	w->root = path;
	if (S_ISDIR(st.st_mode))
		return 0;
	slash = strrchr(path, '/');
	w->only = slash ? slash + 1 : path;
	w->root = slash == path ? "/" : slash ? path : ".";
	if (slash)
		*slash = '\0';
	w->recursive = false;
	return 0;
}

int op_watch(struct call *c, struct err *e)
{
	struct watcher w = {.recursive = c->recursive};
	uint64_t until = 0;
	int r;

	w.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (w.fd < 0)
		return err_sys(e, errno, "inotify");
	if (c->timeout_ms)
		until = clock_ms() + (uint64_t)c->timeout_ms;
	r = choose_root(&w, c->path, e);
	if (r == 0)
		r = add_tree(&w, "", false, e);
	if (r == 0)
		r = emit(&w, "watching", NULL, NULL, false, e);
	if (r == 0)
		r = serve(&w, until, e);
	if (r == 0 && json_object_set_new(c->res, "events",
					  json_integer(w.events - 1)) < 0)
		r = err_sys(e, ENOMEM, "result");
	watcher_done(&w);
	return r;
}
