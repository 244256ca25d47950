/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_EXEC_REMOTE_H
#define DSEC_EXEC_REMOTE_H

#include "base/buf.h"
#include "exec.h"
#include "wire/tar.h"

/*
 * One run of the helper inside the sandbox.  Whatever it says is taken as a
 * stranger's word: bounded, checked, and not waited for without a sign of life.
 */
struct remote {
	struct file_call *c;
	bool started;	 /* the helper runs, or ran */
	struct helper h; /* -1 where closed */
	struct buf said; /* its stderr: blank lines, then the result */
	uint64_t alive_ms;
	int stop_fd; /* readable: stop; 0: none */
	/* Called as data goes in or out, or NULL. */
	void (*progress)(void *arg, uint64_t bytes);
	void *arg;
	uint64_t bytes;
};

/* How long it may give no sign of life; it gives one each five seconds. */
#define REMOTE_STALL_MS 30000

/*
 * remote_start(rm, c, args, e): start it with ${args} (taken over, NULL: out of
 * memory), as the user of ${c}->req.  remote_done(rm): close what is open.
 */
int remote_start(struct remote *rm, struct file_call *c, json_t *args,
		 struct err *e);
void remote_done(struct remote *rm);

/* remote_read(rm, data, cap, e): bytes of its output; 0 at the end.  A
 * tar_source with ${rm} as its argument. */
ssize_t remote_read(void *arg, void *data, size_t cap, struct err *e);

/* remote_write(rm, data, len, e): all of it to its input.  -EPIPE: it reads no
 * more; remote_end() knows why.  A tar_sink. */
int remote_write(void *arg, const void *data, size_t len, struct err *e);

/*
 * remote_end(rm, ret_result, e):
 * Close its input and output and wait for its result.  A result with
 * "ok":false becomes ${e}; *${ret_result} is set then as well, for its other
 * keys.
 */
int remote_end(struct remote *rm, json_t **ret_result, struct err *e);

/* remote_arg(args, key, fmt, ...): append "key=VALUE" to ${args}. */
int remote_arg(json_t *args, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* remote_path(args, key, path): "key=PATH", in base64 where it is not UTF-8. */
int remote_path(json_t *args, const char *key, const char *path);

#endif
