/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "net/forwarder_priv.h"

#define BATCH	64  /* datagrams before others have their turn */
#define REST_MS 100 /* without descriptors */

union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(sizeof(struct in6_pktinfo))];
};

/* The address it was sent to is the one that has to answer. */
static void take_control(struct msghdr *m, struct origin *o)
{
	struct cmsghdr *c;

	for (c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
			o->to_family = AF_INET;
			memcpy(&o->to.v4, CMSG_DATA(c), sizeof(o->to.v4));
		} else if (c->cmsg_level == IPPROTO_IPV6 &&
			   c->cmsg_type == IPV6_PKTINFO) {
			o->to_family = AF_INET6;
			memcpy(&o->to.v6, CMSG_DATA(c), sizeof(o->to.v6));
		}
	}
}

static void give_control(const struct origin *o, union control *ctl,
			 struct msghdr *m)
{
	bool v4 = o->to_family == AF_INET;
	size_t len = v4 ? sizeof(o->to.v4) : sizeof(o->to.v6);
	struct cmsghdr *c;

	if (!o->to_family)
		return;
	memset(ctl, 0, sizeof(*ctl));
	m->msg_control = ctl;
	m->msg_controllen = CMSG_SPACE(len);
	c = CMSG_FIRSTHDR(m);
	c->cmsg_level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
	c->cmsg_type = v4 ? IP_PKTINFO : IPV6_PKTINFO;
	c->cmsg_len = CMSG_LEN(len);
	memcpy(CMSG_DATA(c), &o->to, len);
}

void origin_send(const struct origin *o, const void *msg, size_t len)
{
	struct iovec iov = {(void *)msg, len};
	struct msghdr m = {.msg_name = (void *)&o->peer,
			   .msg_namelen = o->peer_len,
			   .msg_iov = &iov,
			   .msg_iovlen = 1};
	union control ctl;

	if (o->conn) {
		forwarder_conn_send(o->conn, msg, len);
		return;
	}
	give_control(o, &ctl, &m);
	if (sendmsg(o->port->udp, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return; /* full, or the sandbox has gone: it asks again */
}

static void on_udp(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct forwarder_port *p = s->arg;
	uint8_t msg[DNS_QUERY_MAX + 1];
	struct forwarder *f;
	union control ctl;
	ssize_t n;

	(void)l, (void)events;
	for (unsigned i = 0; i < BATCH; i++) {
		struct origin o = {.port = p};
		struct iovec iov = {msg, sizeof(msg)};
		struct msghdr m = {.msg_name = &o.peer,
				   .msg_namelen = sizeof(o.peer),
				   .msg_iov = &iov,
				   .msg_iovlen = 1,
				   .msg_control = &ctl,
				   .msg_controllen = sizeof(ctl)};

		n = recvmsg(p->udp, &m, MSG_DONTWAIT);
		if (n < 0)
			return;
		o.peer_len = m.msg_namelen;
		take_control(&m, &o);
		f = p->find(p->arg, &o.peer.sa);
		if (f)
			forwarder_take(f, msg, (size_t)n, &o);
	}
}

static void on_tcp(struct loop *l, struct loop_source *s, uint32_t events)
{
	(void)l, (void)events;
	forwarder_conn_accept(s->arg);
}

static void on_timer(struct loop *l, struct loop_timer *t)
{
	struct forwarder_port *p = t->arg;
	uint64_t now = clock_ms();
	struct conn *c;

	while (p->conns.next != &p->conns) {
		c = link_of(p->conns.next, struct conn, of_port);
		if (c->idle_at > now)
			break;
		forwarder_conn_close(c);
	}
	p->resting = p->resting && loop_mod(l, &p->tcp_src, EPOLLIN, NULL) < 0;
	port_timer_set(p);
}

void port_timer_set(struct forwarder_port *p)
{
	uint64_t at = 0;

	if (p->conns.next != &p->conns)
		at = link_of(p->conns.next, struct conn, of_port)->idle_at;
	if (p->resting && (!at || at > clock_ms() + REST_MS))
		at = clock_ms() + REST_MS;
	if (at && (!p->timer.at_ms || p->timer.at_ms > at))
		loop_timer_set(p->loop, &p->timer, at);
}

static int prepare(int fd, bool datagrams, struct err *e)
{
	int flags = fcntl(fd, F_GETFL), one = 1;

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return err_sys(e, errno, "DNS socket");
	if (!datagrams)
		return 0;
	if (setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &one, sizeof(one)) < 0)
		return err_sys(e, errno, "DNS socket");
	/* Fails where it is for IPv4 alone. */
	(void)setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &one, sizeof(one));
	return 0;
}

int forwarder_port_new(struct loop *l, int udp, int tcp, forwarder_find *find,
		       void *arg, struct forwarder_port **ret, struct err *e)
{
	struct forwarder_port *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return err_sys(e, ENOMEM, "DNS port");
	p->loop = l;
	p->udp = udp;
	p->tcp = tcp;
	p->find = find;
	p->arg = arg;
	p->timer.fn = on_timer;
	p->timer.arg = p;
	link_init(&p->pends);
	link_init(&p->conns);
	r = prepare(udp, true, e);
	if (r == 0)
		r = prepare(tcp, false, e);
	if (r == 0)
		r = loop_add(l, &p->udp_src, udp, EPOLLIN, on_udp, p, e);
	if (r == 0)
		r = loop_add(l, &p->tcp_src, tcp, EPOLLIN, on_tcp, p, e);
	if (r < 0) {
		forwarder_port_free(p);
		return r;
	}
	*ret = p;
	return 0;
}

void forwarder_port_free(struct forwarder_port *p)
{
	if (!p)
		return;
	while (p->conns.next != &p->conns)
		forwarder_conn_close(
			link_of(p->conns.next, struct conn, of_port));
	forwarder_drop_pends(&p->pends, NULL);
	loop_timer_set(p->loop, &p->timer, 0);
	loop_del(p->loop, &p->udp_src);
	loop_del(p->loop, &p->tcp_src);
	free(p);
}
