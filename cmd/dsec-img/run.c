/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/sig.h"
#include "base/log.h"
#include "img.h"

#define TERMINAL_MS 100 /* between two progress lines */
#define EVENT_MS    500 /* between two progress records */
#define PATIENCE_S  20	/* from a signal until it ends us */

/* Set by a signal, which is why it is here and not in the context. */
static volatile sig_atomic_t interrupted;

/* Most work looks often whether it is to end; what waits for a file system or
 * a stranger's pipe does not, and ends all the same. */
static void on_signal(int sig)
{
	static uint64_t at_ms;

	if (sig_is_echo(&at_ms))
		return;
	if (interrupted) { /* asked again: at once, then */
		signal(sig, SIG_DFL);
		raise(sig);
	}
	interrupted = sig;
	alarm(PATIENCE_S);
}

void img_signals(void)
{
	static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction sa = {.sa_handler = on_signal};

	signal(SIGPIPE, SIG_IGN);
	for (size_t i = 0; i < array_len(ends); i++)
		sigaction(ends[i], &sa, NULL);
}

int img_interrupted(void)
{
	return interrupted;
}

/* --- records ------------------------------------------------------------- */

/* The progress line gives way to whatever is written next. */
static void clear_line(struct img_ctx *c)
{
	if (c->told_len)
		dprintf(STDERR_FILENO, "\r%*s\r", (int)c->told_len, "");
	c->told_len = 0;
}

int img_write(struct img_ctx *c, json_t *rec, struct err *e)
{
	int r;

	clear_line(c);
	if (!rec)
		return err_sys(e, ENOMEM, "record");
	if (c->table && c->op && c->op->print) {
		c->op->print(rec, c->rows++);
		r = fflush(stdout) ? errno : ferror(stdout) ? EIO : 0;
		r = r ? record_lost(r, e) : 0;
	} else {
		r = record_write(STDOUT_FILENO, rec, e);
	}
	json_decref(rec);
	return r;
}

int img_refuse(struct img_ctx *c, const json_t *req, const struct err *why,
	       struct err *e)
{
	json_t *rec;

	clear_line(c);
	c->status = exit_join(c->status, exit_of(why));
	if (c->table) {
		log_err(why);
		return 0;
	}
	rec = record_error(req, why);
	if (!rec)
		return err_sys(e, ENOMEM, "record");
	return img_write(c, rec, e);
}

int img_event(struct img_ctx *c, const char *event, json_t *rec, struct err *e)
{
	json_t *id = json_object_get(c->req, "id");

	if (!rec)
		return err_sys(e, ENOMEM, "record");
	if ((id && json_object_set(rec, "id", id) < 0) ||
	    json_object_set_new(rec, "event", json_string(event)) < 0) {
		json_decref(rec);
		return err_sys(e, ENOMEM, "record");
	}
	return img_write(c, rec, e);
}

/* --- progress ------------------------------------------------------------ */

static void tell_line(struct img_ctx *c, uint64_t done, uint64_t total,
		      const char *what)
{
	char line[80];
	int n;

	if (total)
		n = snprintf(line, sizeof(line), "%.50s: %u%%", what,
			     (unsigned)(done >= total ? 100
						      : done * 100.0 / total));
	else if (done < 1000000)
		n = snprintf(line, sizeof(line), "%.50s: %llu", what,
			     (unsigned long long)done);
	else
		n = snprintf(line, sizeof(line), "%.50s: %.1fM", what,
			     (double)done / 1e6);
	if (n < 0 || (size_t)n >= sizeof(line))
		return;
	dprintf(STDERR_FILENO, "\r%-*s", (int)c->told_len, line);
	c->told_len = (size_t)n;
}

static int tell_event(struct img_ctx *c, uint64_t done, uint64_t total,
		      const char *what, struct err *e)
{
	json_t *rec = json_pack("{s:s, s:I}", "what", what, "done",
				(json_int_t)done);

	if (rec && total)
		json_object_set_new(rec, "total",
				    json_integer((json_int_t)total));
	return img_event(c, "progress", rec, e);
}

int img_progress(struct img_ctx *c, uint64_t done, uint64_t total,
		 const char *what, struct err *e)
{
	uint64_t now = clock_ms();

	if (interrupted)
		return err_set(e, -ECANCELED, "cancelled",
			       "interrupted by a signal");
	if (c->deadline_ms && now >= c->deadline_ms)
		return err_set(e, -ETIMEDOUT, "deadline",
			       "the deadline passed before it was done");
	if (now - c->told_ms < (c->events ? EVENT_MS : TERMINAL_MS))
		return 0;
	c->told_ms = now;
	if (c->events)
		return tell_event(c, done, total, what, e);
	if (isatty(STDERR_FILENO))
		tell_line(c, done, total, what);
	return 0;
}

/* --- the store ----------------------------------------------------------- */

int img_store_path(const struct img_ctx *c, char *path, struct err *e)
{
	const char *dir = json_str(c->req, "store");

	if (*dir && *dir != '/')
		return err_set(e, -EINVAL, "bad_value",
			       "'store' is no absolute path: '%.64s'", dir);
	return tree_path(path, e, "%s", *dir ? dir : c->config.store);
}

/* The default store is made with what is above it; of another path that is
 * where a disk may be missing. */
static int make_store(struct img_ctx *c, const char *path, struct err *e)
{
	char dir[PATH_MAX];
	size_t len;
	int r;

	r = tree_path(dir, e, "%s/img", c->tree.lib);
	len = strlen(dir);
	if (r == 0 && !strncmp(path, dir, len) && !strcmp(path + len, "/store"))
		r = fd_mkdir_p(dir, 0755, e);
	return r < 0 ? r : store_create(path, &c->store, e);
}

int img_store(struct img_ctx *c, bool create, const struct store **ret,
	      struct err *e)
{
	char path[PATH_MAX];
	int r = 0;

	if (!c->have_store) {
		r = img_store_path(c, path, e);
		if (r == 0)
			r = create ? make_store(c, path, e)
				   : store_open(path, &c->store, e);
		c->have_store = r == 0;
	}
	if (r == 0)
		*ret = &c->store;
	return r;
}

int img_resolve(struct img_ctx *c, const struct store *s, const char *text,
		struct img_name *ret_name, struct digest *ret_digest,
		struct err *e)
{
	struct img_name name;
	int r;

	(void)c;
	r = img_name_parse(text, &name, e);
	if (r == 0)
		r = store_resolve(s, &name, ret_digest, e);
	if (r == 0 && ret_name)
		*ret_name = name;
	return r;
}

/* --- a request ----------------------------------------------------------- */

static int need_words(const struct img_op *op, const json_t *req, struct err *e)
{
	int r = 0;

	for (unsigned i = 0; r == 0 && i < op->need; i++)
		r = field_need(req, op->words[i], e);
	return r;
}

static int work(struct img_ctx *c, json_t *req, json_t **ret_rec, struct err *e)
{
	auto_json json_t *rec = record_ok(req);
	auto_json json_t *answer = json_object();
	int r;

	if (!rec || !answer)
		return err_sys(e, ENOMEM, "answer");
	r = need_words(c->op, req, e);
	if (r == 0)
		r = img_progress(c, 0, 0, c->op->name, e);
	if (r == 0)
		r = c->op->run(c, req, answer, e);
	if (r < 0)
		return r;
	if (json_object_update_missing(rec, answer) < 0)
		return err_sys(e, ENOMEM, "answer");
	*ret_rec = steal_ptr(rec);
	return 0;
}

int img_run(struct img_ctx *c, json_t *req, struct err *e)
{
	int64_t after = json_int(req, "deadline_ms", 0);
	struct err why = {0};
	json_t *rec = NULL;
	int r;

	c->req = req;
	c->op = img_op_find(json_str(req, "op"));
	c->deadline_ms = after ? clock_ms() + (uint64_t)after : 0;
	c->told_ms = clock_ms();
	c->rows = 0;
	r = work(c, req, &rec, &why);
	if (r == 0)
		r = img_write(c, rec, &why);
	if (r == -EPIPE && e)
		*e = why;
	else if (r < 0)
		r = img_refuse(c, req, &why, e);
	if (c->have_store)
		store_close(&c->store);
	c->have_store = false;
	c->req = NULL;
	c->op = NULL;
	return r;
}
