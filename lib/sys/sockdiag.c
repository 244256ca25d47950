/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <ifaddrs.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "sys/netns.h"
#include "sys/sockdiag.h"

#define REPLY_SIZE 32768
/* Sockets are charged to the sandbox; this is beyond what its files allow. */
#define CUT_MAX 1000000

/* Nothing to cut in a socket that listens or is closed. */
#define TCP_STATES (~(1U << TCP_LISTEN | 1U << TCP_CLOSE))
#define UDP_STATES (1U << TCP_ESTABLISHED)

struct inside {
	int sock;	       /* NETLINK_SOCK_DIAG of that namespace */
	struct ifaddrs *addrs; /* its addresses */
};

/* An end of a TCP connection within the sandbox; its peer's has both swapped.
 */
struct end {
	struct in6_addr addr[2]; /* its own, the peer's */
	uint16_t port[2];
};

/* What to cut: what a destroy request needs of a dumped socket. */
struct target {
	uint8_t family, protocol;
	struct inet_diag_sockid id;
};

/* All that was found. */
struct found {
	struct buf targets; /* struct target */
	struct buf ends;    /* struct end */
	struct buf within;  /* struct target: established ones of ${ends} */
};

/* The address as IPv6: v4 ones mapped, as a v6 socket may have them. */
static void as_v6(int family, const void *addr, struct in6_addr *ret)
{
	if (family == AF_INET6) {
		memcpy(ret, addr, sizeof(*ret));
		return;
	}
	memset(ret, 0, 10);
	memset(ret->s6_addr + 10, 0xff, 2);
	memcpy(ret->s6_addr + 12, addr, 4);
}

static bool is_inside(const struct inside *in, const struct in6_addr *a)
{
	struct in6_addr b;
	const void *addr;

	if (IN6_IS_ADDR_LOOPBACK(a) ||
	    (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127))
		return true;
	for (const struct ifaddrs *i = in->addrs; i; i = i->ifa_next) {
		if (!i->ifa_addr)
			continue;
		if (i->ifa_addr->sa_family == AF_INET)
			addr = &((struct sockaddr_in *)(void *)i->ifa_addr)
					->sin_addr;
		else if (i->ifa_addr->sa_family == AF_INET6)
			addr = &((struct sockaddr_in6 *)(void *)i->ifa_addr)
					->sin6_addr;
		else
			continue;
		as_v6(i->ifa_addr->sa_family, addr, &b);
		if (IN6_ARE_ADDR_EQUAL(a, &b))
			return true;
	}
	return false;
}

static int send_request(int sock, uint16_t type, uint16_t flags,
			const void *req, size_t len)
{
	struct {
		struct nlmsghdr h;
		char req[128];
	} m = {
		.h = {.nlmsg_len = (uint32_t)NLMSG_LENGTH(len),
		      .nlmsg_type = type,
		      .nlmsg_flags = NLM_F_REQUEST | flags},
	};

	if (len > sizeof(m.req))
		return -EINVAL;
	memcpy(m.req, req, len);
	return send(sock, &m, m.h.nlmsg_len, 0) < 0 ? -errno : 0;
}

struct dump {
	size_t min;
	sockdiag_fn *fn;
	void *arg;
};

/* A datagram of the answer: 1 there is more. */
static int read_some(int sock, const struct dump *d, char *reply)
{
	const struct nlmsghdr *h = (const struct nlmsghdr *)(void *)reply;
	ssize_t n;
	int r;

	n = recv(sock, reply, REPLY_SIZE, 0);
	if (n < 0)
		return errno == EINTR ? 1 : -errno;
	if (!NLMSG_OK(h, (size_t)n))
		return -EBADMSG;
	for (; NLMSG_OK(h, (size_t)n); h = NLMSG_NEXT(h, n)) {
		if (h->nlmsg_type == NLMSG_DONE)
			return 0;
		if (h->nlmsg_type == NLMSG_ERROR &&
		    h->nlmsg_len >= NLMSG_LENGTH(sizeof(int)))
			r = *(const int *)NLMSG_DATA(h);
		else if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
			 h->nlmsg_len < NLMSG_LENGTH(d->min))
			r = -EBADMSG;
		else
			r = d->fn(NLMSG_DATA(h), NLMSG_PAYLOAD(h, 0), d->arg);
		if (r < 0)
			return r;
	}
	return 1;
}

int sockdiag_dump(int sock, const void *req, size_t len, size_t min,
		  sockdiag_fn *fn, void *arg)
{
	const struct dump d = {min, fn, arg};
	auto_free char *reply = malloc(REPLY_SIZE);
	int r;

	if (!reply)
		return -ENOMEM;
	r = send_request(sock, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, req, len);
	if (r == 0)
		do
			r = read_some(sock, &d, reply);
		while (r == 1);
	return r;
}

static struct end end_of(const struct target *t)
{
	struct end end;

	memset(&end, 0, sizeof(end));
	as_v6(t->family, t->id.idiag_src, &end.addr[0]);
	as_v6(t->family, t->id.idiag_dst, &end.addr[1]);
	end.port[0] = t->id.idiag_sport;
	end.port[1] = t->id.idiag_dport;
	return end;
}

/* Both ends of it are the sandbox's. */
static int add_end(struct found *f, const struct target *t, uint8_t state)
{
	struct end end = end_of(t);
	int r = buf_add(&f->ends, &end, sizeof(end));

	/* One whose peer has closed has had its last word. */
	if (r == 0 && state == TCP_ESTABLISHED)
		r = buf_add(&f->within, t, sizeof(*t));
	return r;
}

struct listing {
	const struct inside *in;
	struct found *f;
	uint8_t protocol;
};

static int add_target(const void *msg, size_t len, void *arg)
{
	const struct inet_diag_msg *d = msg;
	const struct listing *l = arg;
	struct target t = {d->idiag_family, l->protocol, d->id};
	struct found *f = l->f;
	struct in6_addr peer;

	(void)len;
	if (f->ends.len / sizeof(struct end) >= CUT_MAX)
		return -E2BIG;
	as_v6(d->idiag_family, d->id.idiag_dst, &peer);
	if (is_inside(l->in, &peer))
		return l->protocol == IPPROTO_TCP
			       ? add_end(f, &t, d->idiag_state)
			       : 0;
	if (!d->id.idiag_dport && IN6_IS_ADDR_UNSPECIFIED(&peer))
		return 0;
	if (f->targets.len / sizeof(t) >= CUT_MAX)
		return -E2BIG;
	return buf_add(&f->targets, &t, sizeof(t));
}

static int list(const struct inside *in, struct found *f, uint8_t family,
		uint8_t protocol)
{
	const struct inet_diag_req_v2 req = {
		.sdiag_family = family,
		.sdiag_protocol = protocol,
		.idiag_states = protocol == IPPROTO_TCP ? TCP_STATES
							: UDP_STATES,
	};
	struct listing l = {in, f, protocol};
	int r;

	r = sockdiag_dump(in->sock, &req, sizeof(req),
			  sizeof(struct inet_diag_msg), add_target, &l);
	/* Without IPv6 or a module there is none of that kind. */
	return r == -ENOENT || r == -EAFNOSUPPORT ? 0 : r;
}

/* 1 cut, 0 it had gone. */
static int destroy(const struct inside *in, const struct target *t)
{
	const struct inet_diag_req_v2 req = {
		.sdiag_family = t->family,
		.sdiag_protocol = t->protocol,
		.id = t->id,
	};
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
		char more[256];
	} m;
	ssize_t n;
	int r;

	r = send_request(in->sock, SOCK_DESTROY, NLM_F_ACK, &req, sizeof(req));
	if (r < 0)
		return r;
	do
		n = recv(in->sock, &m, sizeof(m), 0);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	if ((size_t)n < sizeof(m.h) + sizeof(m.e.error) ||
	    m.h.nlmsg_type != NLMSG_ERROR)
		return -EBADMSG;
	return m.e.error == -ENOENT ? 0 : m.e.error < 0 ? m.e.error : 1;
}

static int compare(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct end));
}

/* Those whose peer should be inside, and is not. */
static int add_alone(struct found *f)
{
	const struct target *t = (const struct target *)(void *)f->within.data;
	size_t n = f->ends.len / sizeof(struct end);
	struct end end;
	int r = 0;

	if (n > 0)
		qsort(f->ends.data, n, sizeof(end), compare);
	for (size_t i = 0; r == 0 && i < f->within.len / sizeof(*t); i++) {
		const struct end own = end_of(&t[i]);

		memset(&end, 0, sizeof(end));
		for (int k = 0; k < 2; k++) {
			end.addr[k] = own.addr[!k];
			end.port[k] = own.port[!k];
		}
		if (!bsearch(&end, f->ends.data, n, sizeof(end), compare))
			r = buf_add(&f->targets, &t[i], sizeof(t[i]));
	}
	return r;
}

static int cut_all(const struct inside *in, struct found *f, struct err *e)
{
	static const uint8_t families[] = {AF_INET, AF_INET6};
	static const uint8_t protocols[] = {IPPROTO_TCP, IPPROTO_UDP};
	const struct target *t;
	int r = 0, n = 0;

	for (size_t i = 0; i < 4 && r == 0; i++)
		r = list(in, f, families[i / 2], protocols[i % 2]);
	if (r == 0)
		r = add_alone(f);
	if (r < 0)
		return err_sys(e, -r, "list the connections of a sandbox");
	t = (const struct target *)(void *)f->targets.data;
	for (size_t i = 0; i < f->targets.len / sizeof(*t); i++) {
		r = destroy(in, &t[i]);
		if (r == -EOPNOTSUPP)
			return err_set(e, r, "unsupported",
				       "this kernel cannot cut connections "
				       "(INET_DIAG_DESTROY)");
		if (r < 0)
			return err_sys(e, -r, "cut a connection");
		n += r;
	}
	return n;
}

static int cut(const struct inside *in, struct err *e)
{
	struct found f = {{0}, {0}, {0}};
	int r = cut_all(in, &f, e);

	buf_done(&f.targets);
	buf_done(&f.ends);
	buf_done(&f.within);
	return r;
}

/* The socket is of the namespace it was made in. */
static int look_inside(int netns, struct inside *in, struct err *e)
{
	auto_netns int back = -1;
	int r;

	in->sock = netns_socket(netns, AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG,
				e);
	if (in->sock < 0)
		return in->sock;
	r = netns_enter(netns, &back, e);
	if (r == 0 && getifaddrs(&in->addrs) < 0)
		r = err_sys(e, errno, "look into a network namespace");
	return r;
}

int sockdiag_cut(int netns, struct err *e)
{
	struct inside in = {.sock = -1};
	int r;

	r = look_inside(netns, &in, e);
	if (r == 0)
		r = cut(&in, e);
	if (in.sock >= 0)
		fd_close(in.sock);
	if (in.addrs)
		freeifaddrs(in.addrs);
	return r;
}
