/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_BROKER_H
#define NET_BROKER_H

#include <sys/types.h>

#include "base/cleanup.h"

/*
 * The two ends between the helper's worker and the credential broker (the
 * internal program dsec-broker), a SOCK_SEQPACKET pair.  For each connection of
 * a sandbox to broker.internal the worker hands over one end of a stream pair,
 * with the sandbox's id and the endpoints that its policy names, and joins the
 * other end with the sandbox's socket.  So counting, limits and cutting are as
 * for any other connection: a policy that names fewer endpoints has to cut
 * them.
 */

#define BROKER_ENDPOINTS_MAX 64
#define BROKER_ENDPOINT_NAME 64 /* with its NUL */
#define BROKER_SANDBOX	     64 /* an id with its NUL */

struct broker_conn {
	int fd; /* stream, non-blocking */
	char sandbox[BROKER_SANDBOX];
	size_t n;
	char endpoints[BROKER_ENDPOINTS_MAX][BROKER_ENDPOINT_NAME];
};

struct broker_start {
	const char *config, *lib; /* $DSEC_CONFIG, $DSEC_LIB */
	int log;		  /* what it says goes there */
};

/*
 * broker_start(how, ret_sock, ret_pid, e):
 * As root: start the broker if broker.json exists; *${ret_sock} is
 * the worker's end, -1 if there is no such file.  It has read configuration and
 * secrets, and serves, when this returns; what is wrong with them is in ${e}
 * ("configuration").  It ends when the last copy of *${ret_sock} is closed, and
 * starts its own worker anew if that dies.  *${ret_pid} is the caller's child.
 */
must_check int broker_start(const struct broker_start *how, int *ret_sock,
			    pid_t *ret_pid, struct err *e);

/*
 * broker_hand(sock, sandbox, endpoints, n, e):
 * A new connection; returns the descriptor (non-blocking) to be joined with the
 * sandbox's.  -EAGAIN: the broker has no time for more; -EPIPE: it is gone.
 * Never waits.
 */
must_check int broker_hand(int sock, const char *sandbox,
			   const char *const *endpoints, size_t n,
			   struct err *e);

/*
 * broker_take(sock, ret, e): the broker's side.  1: a connection; 0: the worker
 * has gone for good; -EAGAIN: none now.  One that is malformed is -EBADMSG, and
 * is over.
 */
must_check int broker_take(int sock, struct broker_conn *ret, struct err *e);

#endif
