/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "life/recover.h"
#include "ps.h"

/* Somebody buries it: look again so soon. */
#define AGAIN_MS   50
#define WAITING_MS 500 /* it waits on the disk for a supervisor */

/* A sandbox that is looked after. */
struct tracked {
	struct tracker *k;
	struct tracked *next;
	char id[BOX_ID_LEN + 1];
	int wd;	     /* -1: its directory is gone */
	int pidfd;   /* of its owner; -1 */
	int64_t pid; /* the owner's */
	struct loop_source source;
	struct loop_timer again, deadline;
	json_t *req; /* --wait: to be answered; NULL for --watch */
	bool announced, foreign, over;
	char state[32];
	int64_t since_ms;
};

struct tracker {
	struct app *app;
	int ino, sb_wd;
	struct loop_source source;
	struct tracked *all;
};

static void sync_one(struct tracked *t);

static void tracked_free(struct tracked *t)
{
	struct tracker *k = t->k;
	struct tracked **p;
	bool shared = false;

	for (p = &k->all; *p != t; p = &(*p)->next)
		;
	*p = t->next;
	loop_del(k->app->loop, &t->source);
	loop_timer_set(k->app->loop, &t->again, 0);
	loop_timer_set(k->app->loop, &t->deadline, 0);
	/* Two that wait for the same one have one watch. */
	for (const struct tracked *o = k->all; o; o = o->next)
		shared |= o->wd == t->wd;
	if (t->wd >= 0 && !shared)
		inotify_rm_watch(k->ino, t->wd);
	if (t->pidfd >= 0)
		fd_close(t->pidfd);
	json_decref(t->req);
	free(t);
	if (tracker_idle(k) && k->app->ended)
		loop_stop(k->app->loop, 0);
}

/* --- what is told -------------------------------------------------------- */

static void event(struct tracked *t, const char *what, json_t *rec)
{
	if (rec) {
		json_object_set_new(rec, "event", json_string(what));
		json_object_set_new(rec, "sandbox", json_string(t->id));
		json_object_set_new(rec, "at_ms",
				    json_integer((json_int_t)clock_wall_ms()));
		app_write(t->k->app, rec);
	}
}

static json_t *subset(const json_t *rec, const char *const *keys, size_t n)
{
	json_t *to = json_object(), *v;

	for (size_t i = 0; to && i < n; i++) {
		v = json_object_get(rec, keys[i]);
		if (v)
			json_object_set(to, keys[i], v);
	}
	return to;
}

/* It has ended: ${rec} as ps_one() made it, or NULL when nothing is known. */
static void over(struct tracked *t, const json_t *rec)
{
	static const char *const keys[] = {"outcome", "infra", "ended_ms",
					   "exit_code", "signal"};
	json_t *answer = NULL;

	if (t->over)
		return;
	t->over = true;
	if (!t->req) {
		if (t->announced)
			event(t, "ended", subset(rec, keys, array_len(keys)));
		return;
	}
	answer = record_ok(t->req);
	if (answer && rec)
		json_object_update_missing(answer, (json_t *)(uintptr_t)rec);
	app_write(t->k->app, answer);
}

static void changed(struct tracked *t, const json_t *rec)
{
	static const char *const keys[] = {"state", "level", "since_ms",
					   "generation"};
	static const char *const first[] = {
		"name",	    "kind",	  "image",	"task",
		"project",  "labels",	  "state",	"level",
		"since_ms", "generation", "created_ms", "supervisor_pid",
	};
	const char *state = json_str(rec, "state");
	int64_t since_ms = json_int(rec, "since_ms", 0);

	if (t->announced && !strcmp(state, t->state) && since_ms == t->since_ms)
		return;
	snprintf(t->state, sizeof(t->state), "%s", state);
	t->since_ms = since_ms;
	if (t->req || t->foreign)
		return;
	if (t->announced) {
		event(t, "state", subset(rec, keys, array_len(keys)));
		return;
	}
	event(t, "created", subset(rec, first, array_len(first)));
	t->announced = true;
}

/* --- what is seen -------------------------------------------------------- */

static void on_owner_gone(struct loop *l, struct loop_source *s,
			  uint32_t events)
{
	struct tracked *t = s->arg;

	(void)events;
	loop_del(l, s);
	fd_close(t->pidfd);
	t->pidfd = -1;
	t->pid = 0;
	sync_one(t);
}

/* The owner changes once: who launched it, then its supervisor. */
static void follow_owner(struct tracked *t, const json_t *rec,
			 const json_t *claim)
{
	int64_t pid = json_int(rec, "supervisor_pid", 0);
	struct loop *l = t->k->app->loop;
	struct err e;

	if (pid <= 0)
		pid = json_int(claim, "pid", 0);
	if (pid == t->pid || pid <= 0 || pid > INT32_MAX)
		return;
	loop_del(l, &t->source);
	if (t->pidfd >= 0)
		fd_close(t->pidfd);
	t->pid = pid;
	t->pidfd = pidfd_open((pid_t)pid, 0);
	if (t->pidfd >= 0 && loop_add(l, &t->source, t->pidfd, EPOLLIN,
				      on_owner_gone, t, &e) == 0)
		return;
	/* Gone already, or no descriptor left: look again from time to time. */
	t->pid = 0;
	loop_timer_set(l, &t->again, clock_ms() + AGAIN_MS);
}

static void finish(struct tracked *t, const json_t *rec)
{
	over(t, rec);
	if (t->req || t->wd < 0)
		tracked_free(t);
}

static void gone(struct tracked *t)
{
	struct app *app = t->k->app;
	auto_json json_t *dead = NULL;
	struct err e = {0};

	if (ps_dead(app, t->id, &dead, &e) < 0 && t->req && !t->state[0]) {
		app_fail(app, t->req, &e);
		t->over = true;
	} else if (!t->req && !t->announced && t->wd >= 0) {
		return; /* not there yet: its claim comes */
	}
	if (!dead && t->req && !t->over)
		dead = json_pack("{s:s}", "state", "stopped");
	finish(t, dead);
}

static void sync_one(struct tracked *t)
{
	struct app *app = t->k->app;
	auto_json json_t *claim = NULL, *rec = NULL;
	enum select_life life;

	if (t->over && t->wd >= 0)
		return;
	life = select_life(&app->tree, t->id, &claim);
	if (life == SELECT_GONE && recover_waits(&app->tree, t->id)) {
		/* It has not ended; nothing tells when it gets a claim. */
		loop_timer_set(app->loop, &t->again, clock_ms() + WAITING_MS);
		return;
	}
	if (life == SELECT_GONE ||
	    ps_live(app, t->id, claim, false, &rec, NULL) < 0) {
		gone(t);
		return;
	}
	if (!t->req && claim)
		t->foreign = !select_match(&app->sel, claim);
	if (!strcmp(json_str(rec, "state"), "stopped")) {
		auto_json json_t *dead = NULL;

		changed(t, rec);
		ps_dead(app, t->id, &dead, NULL);
		finish(t, dead ? dead : rec);
		return;
	}
	changed(t, rec);
	follow_owner(t, rec, claim);
	if (t->wd < 0) /* its directory is a new one */
		loop_timer_set(app->loop, &t->again, clock_ms() + WAITING_MS);
}

static void on_again(struct loop *l, struct loop_timer *timer)
{
	(void)l;
	sync_one(timer->arg);
}

static void on_deadline(struct loop *l, struct loop_timer *timer)
{
	struct tracked *t = timer->arg;
	struct err e = {0};

	(void)l;
	err_set(&e, -ETIMEDOUT, "deadline", "sandbox %s has not ended yet",
		t->id);
	app_fail(t->k->app, t->req, &e);
	tracked_free(t);
}

static int watch_dir(struct tracked *t, struct err *e)
{
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb/%s", t->k->app->tree.run, t->id);
	if (r < 0)
		return r;
	t->wd = inotify_add_watch(t->k->ino, path,
				  IN_MOVED_TO | IN_CLOSE_WRITE |
					  IN_DELETE_SELF | IN_ONLYDIR);
	if (t->wd < 0 && errno != ENOENT)
		return err_sys(e, errno,
			       "watch '%s' (limit fs.inotify.max_user_watches)",
			       path);
	return 0;
}

static int track(struct tracker *k, const char *id, json_t *req, struct err *e)
{
	struct tracked *t = calloc(1, sizeof(*t));
	int64_t ms = json_int(req, "deadline_ms", 0);

	if (!t)
		return err_sys(e, ENOMEM, "sandbox %s", id);
	t->k = k;
	memcpy(t->id, id, sizeof(t->id));
	t->pidfd = t->wd = -1;
	t->again = (struct loop_timer){.fn = on_again, .arg = t};
	t->deadline = (struct loop_timer){.fn = on_deadline, .arg = t};
	t->next = k->all;
	k->all = t;
	/* The watch first: what changes after this is seen. */
	if (watch_dir(t, e) < 0) {
		int r = e ? e->r : -EIO;

		tracked_free(t);
		return r;
	}
	t->req = req;
	if (ms > 0)
		loop_timer_set(k->app->loop, &t->deadline,
			       clock_ms() + (uint64_t)ms);
	sync_one(t);
	return 0;
}

/* --- inotify ------------------------------------------------------------- */

static bool known(const struct tracker *k, const char *id)
{
	for (const struct tracked *t = k->all; t; t = t->next)
		if (!strcmp(t->id, id))
			return true;
	return false;
}

static void appeared(struct tracker *k, const char *id)
{
	struct err e = {0};

	if (!tree_is_id(id) || known(k, id))
		return;
	if (track(k, id, NULL, &e) < 0)
		app_fail(k->app, NULL, &e);
}

/* Events were lost: look at everything. */
static void rescan(struct tracker *k)
{
	struct tracked *t, *next;
	auto_dir DIR *d = NULL;
	const struct dirent *de;
	char path[PATH_MAX];

	for (t = k->all; t; t = next) {
		next = t->next;
		sync_one(t);
	}
	if (k->sb_wd < 0 ||
	    tree_path(path, NULL, "%s/sb", k->app->tree.run) < 0)
		return;
	d = opendir(path);
	while (d && (de = readdir(d)))
		appeared(k, de->d_name);
}

static void on_event(struct tracker *k, const struct inotify_event *ev)
{
	struct tracked *t, *next;

	if (ev->mask & IN_Q_OVERFLOW) {
		rescan(k);
		return;
	}
	if (ev->wd == k->sb_wd) {
		if (ev->len && (ev->mask & (IN_CREATE | IN_MOVED_TO)))
			appeared(k, ev->name);
		return;
	}
	for (t = k->all; t; t = next) {
		next = t->next;
		if (t->wd != ev->wd)
			continue;
		/* The kernel drops the watch with the directory. */
		if (ev->mask & IN_IGNORED)
			t->wd = -1;
		sync_one(t);
	}
}

static void on_inotify(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct tracker *k = s->arg;
	_Alignas(struct inotify_event) char buf[16384];
	ssize_t n;

	(void)l;
	(void)events;
	while ((n = read(k->ino, buf, sizeof(buf))) > 0) {
		for (char *p = buf; p < buf + n;) {
			const struct inotify_event *ev = (const void *)p;

			p += sizeof(*ev) + ev->len;
			on_event(k, ev);
		}
	}
}

bool tracker_idle(const struct tracker *k)
{
	return !k->all && k->sb_wd < 0;
}

int tracker_new(struct app *app, struct err *e)
{
	struct tracker *k = calloc(1, sizeof(*k));
	int r;

	if (!k)
		return err_sys(e, ENOMEM, "watch");
	k->app = app;
	k->sb_wd = -1;
	k->ino = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (k->ino < 0) {
		r = err_sys(e, errno,
			    "inotify (limit fs.inotify.max_user_instances)");
		free(k);
		return r;
	}
	app->tracker = k;
	return loop_add(app->loop, &k->source, k->ino, EPOLLIN, on_inotify, k,
			e);
}

void tracker_free(struct tracker *k)
{
	if (!k)
		return;
	while (k->all)
		tracked_free(k->all);
	loop_del(k->app->loop, &k->source);
	fd_close(k->ino);
	free(k);
}

int tracker_all(struct tracker *k, struct err *e)
{
	char path[PATH_MAX];
	int r;

	r = tree_make(&k->app->tree, e);
	if (r == 0)
		r = tree_path(path, e, "%s/sb", k->app->tree.run);
	if (r < 0)
		return r;
	k->sb_wd = inotify_add_watch(k->ino, path,
				     IN_CREATE | IN_MOVED_TO | IN_ONLYDIR);
	if (k->sb_wd < 0)
		return err_sys(e, errno, "watch '%s'", path);
	rescan(k);
	return 0;
}

int tracker_wait(struct tracker *k, json_t *req, const char *id, struct err *e)
{
	return track(k, id, req, e);
}

bool tracker_cancel(struct tracker *k, const json_t *id)
{
	struct err why = {0};
	struct tracked *t, *next;
	bool any = false;

	err_set(&why, -ECANCELED, "cancelled", "the request was cancelled");
	for (t = k->all; t; t = next) {
		next = t->next;
		if (!t->req || !json_equal(json_object_get(t->req, "id"), id))
			continue;
		app_fail(k->app, t->req, &why);
		tracked_free(t);
		any = true;
	}
	return any;
}
