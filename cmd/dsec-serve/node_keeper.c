/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/log.h"
#include "base/proc.h"
#include "base/sig.h"
#include "node.h"
#include "node_keeper.h"
#include "serve.h"
#include "sys/confine.h"
#include "wire/exit.h"
#include "wire/record.h"

#define OUT_FULL (1024 * 1024)	    /* what can be held is */
#define OUT_MAX	 (64 * 1024 * 1024) /* a worker that takes nothing */

/* --- workers ------------------------------------------------------------- */

static void channel_close(struct channel *ch)
{
	if (ch->dead)
		return;
	ch->dead = true;
	loop_del(ch->keeper->loop, &ch->src);
	for (size_t i = 0; i < ERRAND_BUCKETS; i++)
		while (ch->errands[i])
			errand_drop(ch->errands[i]); /* it leaves */
	chan_done(&ch->chan);
	fd_close(ch->chan.fd);
}

/* Once nothing of the round can be using them. */
static void bury(struct keeper *k)
{
	for (struct channel **p = &k->channels; *p;) {
		struct channel *ch = *p;

		if (!ch->dead) {
			p = &ch->next;
			continue;
		}
		*p = ch->next;
		free(ch);
	}
	keeper_settled(k);
}

bool keeper_full(const struct channel *ch)
{
	return ch->chan.out.len > OUT_FULL;
}

void keeper_hold(struct channel *ch, struct once *o)
{
	ch->holds = true;
	once_hold(o, true);
}

/* What was held for a worker that had much to take: however that went. */
static void go_on(struct channel *ch)
{
	if (!ch->holds || keeper_full(ch))
		return;
	ch->holds = false;
	for (size_t i = 0; i < ERRAND_BUCKETS; i++)
		for (struct errand *c = ch->errands[i]; c; c = c->next)
			if (c->once)
				once_hold(c->once, false);
}

static int flush(struct channel *ch)
{
	if (chan_flush(&ch->chan, NULL) < 0 || ch->chan.out.len > OUT_MAX)
		return -EPIPE;
	go_on(ch);
	return loop_mod(ch->keeper->loop, &ch->src,
			ch->chan.out.len ? EPOLLIN | EPOLLOUT : EPOLLIN, NULL);
}

static json_t *with_names(int64_t n, const json_t *rec,
			  const struct relay_fds *fds)
{
	json_t *line = NULL, *names;

	if (json_pack_or(&line, NULL, "{sI sO}", "n", (json_int_t)n, "rec",
			 rec) < 0)
		return NULL;
	if (!fds || fds->n == 0)
		return line;
	names = json_array();
	for (size_t i = 0; i < fds->n; i++)
		json_array_append_new(names, json_string(fds->names[i]));
	json_object_set_new(line, "fds", names);
	return line;
}

/* A record as long as a line may be is longer with what goes around it. */
static int put_too_large(struct channel *ch, int64_t n, const json_t *rec,
			 const struct err *why)
{
	auto_json json_t *fail = record_error(NULL, why);
	auto_json json_t *line = NULL;

	if (!json_is_boolean(json_object_get(rec, "ok")))
		return 0;
	line = fail ? with_names(n, fail, NULL) : NULL;
	return line ? chan_put(&ch->chan, line, NULL) : -ENOMEM;
}

void keeper_send(struct channel *ch, int64_t n, const json_t *rec,
		 struct relay_fds *fds)
{
	auto_json json_t *plain = keeper_plain(ch, n, rec);
	auto_json json_t *line = NULL;
	size_t nfds = fds ? fds->n : 0;
	struct err e = {0};
	int r;

	if (ch->dead)
		return;
	if (plain)
		rec = plain;
	line = rec ? with_names(n, rec, fds) : NULL;
	if (!line)
		return; /* no memory: the worker's deadline tells */
	if (fds)
		fds->n = 0;
	r = chan_put_fds(&ch->chan, line, fds ? fds->fds : NULL, nfds, &e);
	if (r == -EMSGSIZE)
		r = put_too_large(ch, n, rec, &e);
	/* Closed by the loop: its requests may be what is at work. */
	if (r < 0 || flush(ch) < 0)
		(void)loop_mod(ch->keeper->loop, &ch->src, EPOLLIN | EPOLLOUT,
			       NULL);
}

static void on_channel(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct channel *ch = s->arg;
	struct keeper *k = ch->keeper;
	auto_chan_msg struct chan_msg m = {0};
	struct err e = {0};
	int r = -EAGAIN;

	(void)l;
	if ((events & EPOLLOUT) && flush(ch) < 0)
		channel_close(ch);
	if (!ch->dead && (events & ~(uint32_t)EPOLLOUT))
		r = chan_read(&ch->chan, &e);
	while (!ch->dead && chan_lines(&ch->chan, &m, &r, &e))
		errand_line(ch, m.obj);
	if (r < 0 && r != -EAGAIN)
		log_info("a worker: %s", e.msg);
	if (r != -EAGAIN)
		channel_close(ch);
	bury(k);
}

static int channel_new(struct keeper *k, int fd, struct err *e)
{
	struct channel *ch = calloc(1, sizeof(*ch));
	int r;

	if (!ch)
		return err_sys(e, ENOMEM, "channel");
	fcntl(fd, F_SETFL, O_NONBLOCK);
	r = loop_add(k->loop, &ch->src, fd, EPOLLIN, on_channel, ch, e);
	if (r < 0) {
		free(ch);
		return r;
	}
	ch->keeper = k;
	ch->chan.fd = fd;
	ch->next = k->channels;
	k->channels = ch;
	return 0;
}

/* --- the starter --------------------------------------------------------- */

void keeper_settled(struct keeper *k)
{
	if (k->retiring && k->nerrands == 0)
		loop_stop(k->loop, 0);
}

static int take_clients(struct keeper *k, const json_t *obj, struct err *e)
{
	struct auth *a;
	int r = auth_new(json_object_get(obj, "clients"), &a, e);

	if (r < 0)
		return r;
	auth_free(k->auth);
	k->auth = a;
	return 0;
}

static int on_order(struct keeper *k, struct chan_msg *m, struct err *e)
{
	const char *op = json_str(m->obj, "op");
	auto_close int fd = -1;
	int r;

	if (!strcmp(op, "clients"))
		return take_clients(k, m->obj, e);
	if (!strcmp(op, "channel")) {
		fd = chan_take(m, "channel");
		r = fd < 0 ? err_sys(e, EMFILE, "the way to a worker")
			   : channel_new(k, fd, e);
		if (r == 0)
			fd = -1;
		return r;
	}
	if (!strcmp(op, "reopen")) {
		audit_moved(k->audit);
		return 0;
	}
	if (!strcmp(op, "retire")) {
		k->retiring = true;
		keeper_audit_close(k); /* for the next */
		keeper_settled(k);
	}
	return 0;
}

static void on_ctl(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct keeper *k = s->arg;
	auto_chan_msg struct chan_msg m = {0};
	struct err e = {0};
	int r = chan_read(&k->ctl, &e);

	(void)events;
	while (chan_lines(&k->ctl, &m, &r, &e))
		if (on_order(k, &m, &e) < 0)
			log_err(&e);
	if (r != -EAGAIN)
		loop_stop(l, 0); /* the starter is gone: so are we */
}

static void on_signal(struct loop *l, struct loop_source *s, uint32_t events)
{
	(void)s;
	(void)events;
	loop_stop(l, 0);
}

/* --- the whole ----------------------------------------------------------- */

json_t *keeper_state(const struct keeper *k)
{
	json_t *o = json_object(), *list = json_object();

	for (unsigned i = 0; i < FILTERS; i++) {
		struct coproc_stats s;
		const char *name;
		json_t *one;

		if (!k->filters[i])
			continue;
		coproc_stats(k->filters[i], &s);
		name = strrchr(k->paths[i], '/'); /* of one that runs */
		one = json_pack("{si si si si sI sI}", "pid", (int)s.pid,
				"running", (int)s.running, "waiting",
				(int)s.waiting, "restarts", (int)s.restarts,
				"asked", (json_int_t)s.asked, "lost",
				(json_int_t)s.lost);
		json_object_set_new(list,
				    i == FILTER_WAIT ? "dsec-ps --wait"
				    : name	     ? name + 1
						     : "?",
				    one);
	}
	json_object_set_new(o, "pid", json_integer(getpid()));
	json_object_set_new(o, "requests", json_integer((json_int_t)k->asked));
	json_object_set_new(o, "refused", json_integer((json_int_t)k->refused));
	json_object_set_new(o, "running", json_integer(k->nerrands));
	json_object_set_new(o, "coprocesses", list);
	return o;
}

static int start(struct keeper *k, struct err *e)
{
	static const int signals[] = {SIGTERM, SIGINT};
	int r, fd;

	r = tree_init(&k->tree, e);
	if (r == 0)
		r = tree_make(&k->tree, e);
	keeper_hide(k);
	if (r == 0)
		r = auth_new(NULL, &k->auth, e);
	if (r == 0)
		r = loop_new(&k->loop, e);
	if (r < 0)
		return r;
	fd = sig_block(signals, array_len(signals), e);
	if (fd < 0)
		return fd;
	fcntl(ROLE_FD, F_SETFL, O_NONBLOCK);
	fcntl(ROLE_FD, F_SETFD, FD_CLOEXEC);
	k->ctl.fd = ROLE_FD;
	k->ctl.lossy = true;
	r = loop_add(k->loop, &k->signals, fd, EPOLLIN, on_signal, k, e);
	if (r == 0)
		r = loop_add(k->loop, &k->ctl_src, ROLE_FD, EPOLLIN, on_ctl, k,
			     e);
	return r;
}

int verb_keeper(const struct args *a, struct err *e)
{
	static struct keeper k;
	int r;

	(void)a;
	proc_raise_files();
	prctl(PR_SET_DUMPABLE, 0);
	r = start(&k, e);
	if (r == 0) {
		keeper_audit_open(&k);
		r = loop_run(k.loop, e);
		keeper_audit_close(&k);
	}
	/* What is under way is finished by those who do it. */
	return r;
}
