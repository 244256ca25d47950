/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/cleanup.h"
#include "hold.h"
#include "wire/record.h"

/* A supervisor that says nothing for so long hangs. */
#define PATIENCE_MS 30000

enum { HOLD = 1, INSPECT };

static int ask(struct hold *h, int id, const char *op, struct err *e)
{
	auto_json json_t *req = NULL;
	int r;

	r = json_pack_or(&req, e, "{s:i, s:s}", "id", id, "op", op);
	return r < 0 ? r : ctl_send(h->ctl, req, NULL, 0, e);
}

/* The hold is over: why. */
static int over(const struct ctl_record *rec, struct err *e)
{
	int r = record_to_err(rec->rec, e);

	if (r < 0)
		return r;
	return err_set(e, -ESHUTDOWN, "stopped", "the sandbox has ended: %.32s",
		       json_str(rec->rec, "outcome"));
}

/* The first record that is ${id}'s; a final one of the hold's ends it all. */
static int await(struct hold *h, int id, json_t **ret, struct err *e)
{
	uint64_t until = clock_ms() + PATIENCE_MS;
	int r;

	for (;;) {
		auto_ctl_record struct ctl_record rec = {0};

		r = ctl_wait(h->ctl, until, &rec, e);
		if (r < 0)
			return r;
		if (json_int(rec.rec, "id", 0) == HOLD && rec.final)
			return over(&rec, e);
		if (json_int(rec.rec, "id", 0) != id)
			continue;
		r = rec.final ? record_to_err(rec.rec, e) : 0;
		if (r == 0)
			*ret = steal_ptr(rec.rec);
		return r;
	}
}

/* What the supervisor says comes in the order in which it happens: an answer
 * without a word of the hold's before it means that it held so far. */
static int inspect(struct hold *h, json_t **ret, struct err *e)
{
	int r = ask(h, INSPECT, "inspect", e);

	return r < 0 ? r : await(h, INSPECT, ret, e);
}

int hold_take(const struct tree *t, const char *sandbox, struct hold *ret,
	      struct err *e)
{
	auto_hold struct hold h = {0};
	auto_json json_t *rec = NULL;
	int r;

	r = ctl_open(t, sandbox, 0, &h.ctl, e);
	if (r == 0)
		r = ask(&h, HOLD, "hold", e);
	if (r == 0)
		r = await(&h, HOLD, &rec, e);
	if (r == 0)
		r = inspect(&h, &h.spec, e);
	if (r < 0)
		return err_wrap(e, r, "hold the sandbox");
	*ret = h;
	h = (struct hold){0};
	return 0;
}

int hold_check(struct hold *h, struct err *e)
{
	auto_json json_t *rec = NULL;
	int r;

	r = inspect(h, &rec, e);
	if (r < 0)
		return err_wrap(e, r, "while it was packed");
	return 0;
}

void hold_done(struct hold *h)
{
	ctl_free(h->ctl);
	json_decref(h->spec);
	*h = (struct hold){0};
}
