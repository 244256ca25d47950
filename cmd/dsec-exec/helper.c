/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "box/result.h"
#include "exec.h"
#include "wire/exit.h"
#include "wire/record.h"

/* The next record that matters: "started", or the last one. */
static int next_record(struct file_call *c, struct ctl_record *ret,
		       struct err *e)
{
	int r;

	for (;;) {
		r = ctl_wait(c->ctl, c->deadline_ms, ret, e);
		if (r < 0 || ret->final ||
		    !strcmp(json_str(ret->rec, "event"), "started"))
			return r;
		ctl_record_done(ret);
	}
}

/* How often a request is made again whose like was ended under way. */
#define REPEATS 5

/*
 * It was run before, for the same key: its exit status says how that ended.
 * -EAGAIN: it was ended with the client it had, and was not done.
 */
static int repeated(struct file_call *c, const json_t *rec, struct err *e)
{
	int64_t status = json_int(rec, "exit_code", -1);
	int r = record_to_err(rec, e);

	if (r < 0)
		return r;
	if (strcmp(json_str(rec, "outcome"), "exited")) {
		err_set(e, -EAGAIN, "busy",
			"the first request of this key was ended");
		return -EAGAIN;
	}
	c->repeated = status == 0;
	err_set(e, -EALREADY, "internal",
		"the first request of this key failed so");
	status -= HELPER_EXIT_BASE;
	if (e && status >= 0 && status < (int64_t)exit_codes_len)
		e->code = exit_codes[status].code;
	return -EALREADY;
}

int file_helper_start(struct file_call *c, json_t *args, const char *user,
		      struct helper *ret, struct err *e)
{
	auto_ctl_record struct ctl_record rec = {0};
	auto_json json_t *req = NULL;
	unsigned tries = REPEATS;
	struct helper h;
	int r;

	r = json_pack_or(&req, e, "{s:s, s:O, s:s*, s:s*}", "op", "file",
			 "args", args, "user", user, "key", c->key);
	if (r < 0)
		return r;
	do {
		ctl_record_done(&rec);
		r = ctl_send(c->ctl, req, NULL, 0, e);
		if (r == 0)
			r = next_record(c, &rec, e);
		if (r == 0 && rec.final)
			r = repeated(c, rec.rec, e);
	} while (r == -EAGAIN && --tries > 0);
	if (r < 0)
		return r;
	h = (struct helper){ctl_take_fd(&rec, "stdin"),
			    ctl_take_fd(&rec, "stdout"),
			    ctl_take_fd(&rec, "stderr")};
	if (h.in >= 0 && h.out >= 0 && h.err >= 0) {
		*ret = h;
		return 0;
	}
	cleanup_close(&h.in);
	cleanup_close(&h.out);
	cleanup_close(&h.err);
	return err_set(e, -EBADMSG, "internal",
		       "the supervisor of sandbox %s started no helper",
		       ctl_id(c->ctl));
}

int helper_end(struct file_call *c, int *ret_status, struct err *e)
{
	auto_ctl_record struct ctl_record rec = {0};
	int r;

	r = next_record(c, &rec, e);
	if (r == 0)
		r = record_to_err(rec.rec, e);
	return r < 0 ? r : result_of_helper(rec.rec, ret_status, e);
}
