/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_NET_WORK_H
#define DSEC_NET_WORK_H

#include "box/tree.h"
#include "net/helper.h"
#include "net/services.h"

/* What a worker process keeps from one request to the next. */
struct work {
	const struct tree *tree;
	bool configured;
	struct netconf conf;
	struct services *services;
	struct helper *helper; /* NULL: not connected */
};

/* work_serve(fd, t): answer each request that comes from ${fd}, until it ends.
 * Their "sandbox" is an id. */
void work_serve(int fd, const struct tree *t);

/* work_conf(w, e): the node's configuration and its semantic names. */
int work_conf(struct work *w, struct err *e);
/* work_helper(w, e): connected, if it is there: -ECONNREFUSED. */
int work_helper(struct work *w, struct err *e);
/* work_lost(w, r): ${r} says that the helper is gone: forget it. */
void work_lost(struct work *w);

/* work_awake(w, id, e): it lives and is not paused. */
int work_awake(struct work *w, const char *id, struct err *e);
int work_spec(struct work *w, const char *id, json_t **ret, struct err *e);
/* work_pid(w, id, e): of its pid 1, as the node counts. */
pid_t work_pid(struct work *w, const char *id, struct err *e);

/* The operations: ${rec} has id, sandbox and ok already. */
int change(struct work *w, const char *id, const json_t *req, json_t *rec,
	   struct err *e);
int show(struct work *w, const char *id, json_t *rec, struct err *e);
int explain(struct work *w, const char *id, const json_t *req, json_t *rec,
	    struct err *e);

/* rules_of(spec): those that hold, as they were given: of the phase it is in,
 * or the sandbox's own; NULL: none. */
const json_t *rules_of(const json_t *spec);

/* policy_of(spec, ret, e): as spec.json has it; the empty one where a sandbox
 * was given no rules. */
int policy_of(const json_t *spec, struct netpol **ret, struct err *e);

/* node_deny(w, ret, e): what is always denied, the node's own addresses as they
 * are now. */
int node_deny(struct work *w, struct netdeny **ret, struct err *e);

/*
 * A connection tried from inside a sandbox: by a child in its network
 * namespace, with its resolver, which sends nothing but the handshake (UDP: one
 * byte; ICMP: one echo request).
 *
 * attempt(pid, to, ret, e): {"outcome":..,"resolver":..,"address":..,"ms":N}.
 * outcome: "connected"; "answered" (UDP, ICMP); "silent" (UDP, ICMP: no
 * answer, no refusal); "reset", "refused", "unreachable", "timeout";
 * "not_resolved" (the resolver said no), "no_resolver" (nobody answered).
 */
struct attempt {
	char name[NETNAME_MAX + 1]; /* "": addr */
	struct netaddr addr;
	enum netpol_proto proto;
	uint16_t port;
};
int attempt(pid_t pid, const struct attempt *to, json_t **ret, struct err *e);

#endif
