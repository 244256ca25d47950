/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_FORWARDER_PRIV_H
#define NET_FORWARDER_PRIV_H

#include <stddef.h>

#include "net/forwarder.h"

/* Lists whose members are in two of them. */
struct link {
	struct link *prev, *next;
};

static inline void link_init(struct link *l)
{
	l->prev = l->next = l;
}

/* link_add(l, head): at the end of the list ${head}. */
static inline void link_add(struct link *l, struct link *head)
{
	l->prev = head->prev;
	l->next = head;
	head->prev->next = l;
	head->prev = l;
}

static inline void link_del(struct link *l)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
	link_init(l);
}

#define link_of(l, type, member) ((type *)((char *)(l)-offsetof(type, member)))

struct forwarder {
	struct forwarder_conf conf;
	struct forwarder_stats own, *stats; /* where it is counted */
	int64_t tokens; /* thousandths of a query; below 0: over the rate */
	uint64_t tokens_ms;
	struct link pends, conns;
	size_t npends, nconns;
	size_t nout; /* questions that the resolver has out for it */
	struct pend *spare;
};

struct forwarder_port {
	struct loop *loop;
	int udp, tcp;
	struct loop_source udp_src, tcp_src;
	struct loop_timer timer; /* idle connections; accept again */
	bool resting;		 /* no descriptors: nothing is accepted */
	forwarder_find *find;
	void *arg;
	struct link pends, conns; /* connections by when they idle out */
};

#define PIPELINE 4 /* questions of a connection that wait */

/* A TCP connection of a sandbox. */
struct conn {
	struct forwarder_port *port;
	struct forwarder *f;
	struct link of_port, of_forwarder;
	int fd;
	struct loop_source src;
	uint64_t idle_at;
	unsigned pending; /* its questions that wait */
	bool eof, dead;
	size_t in_len, out_at, out_len;
	uint8_t in[2 + DNS_QUERY_MAX];
	uint8_t out[PIPELINE * (2 + DNS_UDP_MAX)];
};

/* Where a query came from. */
struct origin {
	struct forwarder_port *port;
	struct conn *conn; /* or it was a datagram: */
	union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} peer;
	socklen_t peer_len;
	sa_family_t to_family; /* of the address it was sent to; 0: unknown */
	union {
		struct in_pktinfo v4;
		struct in6_pktinfo v6;
	} to;
};

/*
 * forwarder_take(f, msg, len, from):
 * A query of ${f}'s sandbox: it is answered through origin_send(), now or
 * later, or dropped.
 */
void forwarder_take(struct forwarder *f, const void *msg, size_t len,
		    const struct origin *from);

/* forwarder_drop_pends(l, conn): forget what waits in the list ${l} of a port,
 * of ${conn} alone unless that is NULL. */
void forwarder_drop_pends(struct link *pends_of_port, const struct conn *conn);

/* origin_send(o, msg, len): the answer; one that cannot be sent is lost. */
void origin_send(const struct origin *o, const void *msg, size_t len);

/* forwarder_conn_accept(p): a connection waits at the port's listener. */
void forwarder_conn_accept(struct forwarder_port *p);
void forwarder_conn_send(struct conn *c, const void *msg, size_t len);

/* forwarder_conn_go_on(c): a question of it has been answered.  It may be
 * closed. */
void forwarder_conn_go_on(struct conn *c);
void forwarder_conn_close(struct conn *c);

/* port_timer_set(p): arm its timer for what comes next. */
void port_timer_set(struct forwarder_port *p);

#endif
