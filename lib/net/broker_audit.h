/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_BROKER_AUDIT_H
#define NET_BROKER_AUDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/loop.h"
#include "wire/json.h"

/*
 * The audit of the credential broker, broker.jsonl: whole lines, each in the
 * file or told to be lost, whoever else of ours writes to it.
 *
 * Refusals cost a sandbox nothing, so in a round BROKER_DENIED_ALL are written,
 * and BROKER_DENIED_SANDBOX of one sandbox; but the first of each is, whatever
 * others do, and of what was left out its number is told when the round ends.
 * A round lasts a second, and longer when BROKER_DENIED_ALL a second would not
 * do for the first ones.  BROKER_DENIED_PLACES sandboxes in a round are told
 * apart.
 */
#define BROKER_DENIED_ALL     20
#define BROKER_DENIED_SANDBOX 10
#define BROKER_DENIED_PLACES  1024

struct broker_audit;

/*
 * broker_audit_open(dir, e):
 * As root: the file in the directory ${dir}, made if there is none.  The half
 * of a line that a crash has left in it is ended.  Returns the descriptor.
 */
must_check int broker_audit_open(int dir, struct err *e);

/* Writing fails (once, ${why}), or goes on after ${lost} lines (NULL). */
typedef void broker_audit_state_fn(const struct err *why, uint64_t lost);

/*
 * broker_audit_new(l, fd, state, ret, e): ${fd} is taken over on success.
 * broker_audit_free(a): what was left out, and lost, is told before.
 * broker_audit_file(a, fd): go on in this one (taken over); how many lines were
 * lost is told at once.
 */
must_check int broker_audit_new(struct loop *l, int fd,
				broker_audit_state_fn *state,
				struct broker_audit **ret, struct err *e);
void broker_audit_free(struct broker_audit *a);
void broker_audit_file(struct broker_audit *a, int fd);

/* broker_audit_may(a, sandbox): may this refusal be written?  If not, it has
 * been counted. */
bool broker_audit_may(struct broker_audit *a, const char *sandbox);

/* broker_audit_add(a, line): a line; "lost" is added to it: how many before it
 * could not be written. */
void broker_audit_add(struct broker_audit *a, json_t *line);

/* broker_audit_tell(a): the round ends now. */
void broker_audit_tell(struct broker_audit *a);

#endif
