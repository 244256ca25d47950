/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_PS_H
#define DSEC_PS_H

#include "base/loop.h"
#include "life/ctl.h"
#include "box/select.h"
#include "wire/exit.h"
#include "wire/input.h"

struct app {
	struct tree tree;
	json_t *defaults;  /* what the flags say: task, project, labels, .. */
	json_t *words;	   /* names of sandboxes */
	struct select sel; /* points into defaults */
	bool table, all, stats, watch, wait;
	json_t *net; /* counters of the helper by sandbox; NULL: none */
	enum exit_status status;

	/* --watch and --wait only */
	struct loop *loop;
	struct input *input;
	struct tracker *tracker;
	bool ended; /* no more requests will come */
};

/* app_write(app, rec): one record; it is taken over. */
void app_write(struct app *app, json_t *rec);
void app_fail(struct app *app, const json_t *req, const struct err *why);

/*
 * ps_live(app, id, claim, stats, e): what is known of a live sandbox whose
 * claim was read, as a record without "ok"; from files, and with ${stats} from
 * its supervisor as well.  NULL with ${e} set; -ENOENT when it went meanwhile.
 * ps_waiting(app, id, e): of one that is on the disk and has no supervisor.
 * ps_dead(app, id, e): that of one that ended, from what is kept about it.
 * Neither has "id"; the caller adds the request's.
 */
int ps_live(const struct app *app, const char *id, const json_t *claim,
	    bool stats, json_t **ret_rec, struct err *e);
int ps_waiting(const struct app *app, const char *id, json_t **ret_rec,
	       struct err *e);
int ps_dead(const struct app *app, const char *id, json_t **ret_rec,
	    struct err *e);
int ps_one(const struct app *app, const char *id, bool stats, json_t **ret_rec,
	   struct err *e);

/*
 * ps_net_open(app): have the counters of networks, for --stats.
 * ps_net(app, rec): what a record says of its network: strength, phase, hash,
 * and the counters.
 */
void ps_net_open(struct app *app);
void ps_net(const struct app *app, json_t *rec);

/* ps_list(app, e): every sandbox that fits, with --all the ended ones too. */
int ps_list(struct app *app, struct err *e);

/* ps_table(rec): the same for people, a line; NULL: the heading. */
void ps_table(const json_t *rec);

/*
 * The states of sandboxes as they change, by inotify on their run directories
 * and a pidfd of each owner, whose death no file tells.
 */
int tracker_new(struct app *app, struct err *e);
void tracker_free(struct tracker *k);

/* tracker_all(k, e): --watch: all that are there and all that come. */
int tracker_all(struct tracker *k, struct err *e);

/*
 * tracker_wait(k, req, id, e): answer ${req} (taken over on success) when ${id}
 * has ended; "deadline" after its deadline_ms.
 */
int tracker_wait(struct tracker *k, json_t *req, const char *id, struct err *e);
/* tracker_cancel(k, id): "cancelled" to the waits of request ${id}, if any. */
bool tracker_cancel(struct tracker *k, const json_t *id);
bool tracker_idle(const struct tracker *k);

#endif
