/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_NET_SERVE_PRIV_H
#define DSEC_NET_SERVE_PRIV_H

#include "net/chan.h"
#include "net/conf.h"
#include "net/transit.h"
#include "sys/netns.h"

/*
 * The helper is two processes of a uid of their own.  The *keeper* listens on
 * ctl.sock, takes lines of root alone, and keeps what it was told about each
 * sandbox, descriptors included.  The *worker*, its child, does the work: what
 * sandboxes send reaches it alone.  A worker that ends is replaced, and told
 * all again.
 */

#define HELPER_ID_MAX 128

#define WORKER_FD 3 /* the worker's end of the socket between them */
#define BROKER_FD 4 /* the way to the broker, where there is one */

/* Descriptors of the transit namespace, by the names of their lines. */
#define TRANSIT_FDS                                                            \
	{                                                                      \
		"nft", "nflog", "dns_udp", "dns_tcp", "sni", "broker"          \
	}

/* What a keeper starts with; the descriptors stay the caller's, but those of
 * the transit. */
struct keeper_start {
	int listener;
	int lock;   /* of the tree: held by being open */
	int broker; /* -1, or the way to the broker */
	const struct netconf *conf;
	struct transit_socks transit;
	int totals;    /* -1, or those that there are */
	json_t *state; /* NULL, or what the keeper before us had */
};

/* keeper_run(start, e): serve until SIGTERM. */
int keeper_run(struct keeper_start *start, struct err *e);

/* worker_run(sock, broker, conf, totals): the worker, until its keeper hangs
 * up.  Returns its exit status. */
struct total;
struct totals;
int worker_run(int sock, int broker, const struct netconf *conf,
	       struct totals *totals);

/*
 * What is counted of each sandbox, in memory of both processes: or a worker
 * that ends would take it along, and with it what a limit of bytes has left.
 *
 * totals_map(fd, ret, e): the memory *${fd}, or a new one where that is -1 or
 * of another program, which counted other things.
 * totals_get(t, id): its place, made if need be; NULL: there is none left.
 * totals_drop(t, id): it starts at zero again.
 */
int totals_map(int *fd, struct totals **ret, struct err *e);
struct total *totals_get(struct totals *t, const char *id);
void totals_drop(struct totals *t, const char *id);

/* held_detaches(req, netns): does that detach mean one that was attached with
 * ${netns}, or is it a late one, of a life before? */
bool held_detaches(const json_t *req, int64_t netns);

/* same_netns(a, b): are these sockets of the same network namespace? */
bool same_netns(int a, int b);

/* note(fmt, ..): a line of the log, which stays bounded. */
void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
