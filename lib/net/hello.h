/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_HELLO_H
#define NET_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/netname.h"

/*
 * The server name of a TLS ClientHello, found as its bytes come in, whatever
 * pieces they come in and over however many records it is spread.  Nothing but
 * the name is kept; who feeds it keeps the bytes, to pass them on.
 */

#define HELLO_MAX 16384 /* bytes looked at */

struct hello {
	char name[NETNAME_MAX + 1]; /* when done: canonical */
	bool ech; /* has encrypted_client_hello: the name is the outer one */
	const char *why; /* when refused: a literal for people */
	/* the parser's */
	uint32_t seen;	 /* bytes in all */
	uint32_t acc;	 /* the number that is being read */
	uint32_t left;	 /* bytes of the number, or of what is passed over */
	uint32_t body;	 /* bytes of the message */
	uint32_t exts;	 /* bytes of its extensions */
	uint16_t record; /* bytes of the record */
	uint16_t name_len;
	uint16_t type; /* of the extension */
	uint8_t state, head;
};

/*
 * hello_feed(h, data, len): the next bytes, after an all-zero ${h}.  0: more
 * is needed; 1: done, the rest is not looked at; -EPROTO: refused (no TLS, no
 * name or a malformed one, two names, over HELLO_MAX), for good.
 *
 * Names have to be host names in lower or upper case, without a trailing dot
 * (RFC 6066), no addresses.
 */
int hello_feed(struct hello *h, const void *data, size_t len);

#endif
