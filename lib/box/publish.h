/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_PUBLISH_H
#define BOX_PUBLISH_H

#include <stdint.h>

#include "wire/json.h"

/*
 * Ports of a sandbox that can be reached from outside ("publish"):
 *
 *   INNER, PORT:INNER, ADDRESS:PORT:INNER, [V6ADDRESS]:PORT:INNER
 *
 * ADDRESS is one of the node's, 127.0.0.1 where it is not said; PORT 0, or
 * none, is any that is free.  The supervisor listens there
 * (cmd/dsec-box/relay.h).
 */
#define PUBLISH_MAX 16

struct publish {
	char address[46];
	uint16_t port;	/* 0: any */
	uint16_t inner; /* inside */
};

/* publish_parse(word, ret, e): code "bad_value". */
int publish_parse(const char *word, struct publish *ret, struct err *e);

/* publish_check(list, e): the field, NULL or a list of them. */
int publish_check(const json_t *list, struct err *e);

/*
 * publish_listen(p, e): a listening socket, non-blocking, close-on-exec;
 * ${p}->port is its port then.  "busy": somebody has that port; "bad_value":
 * the address is none of the node's.
 */
int publish_listen(struct publish *p, struct err *e);

/*
 * publish_json(p): {"address":..,"port":..,"inner":..}; publish_of(j, ret): the
 * reverse, of a file of ours; -EBADMSG.
 */
json_t *publish_json(const struct publish *p);
int publish_of(const json_t *j, struct publish *ret);

#endif
