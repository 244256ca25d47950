/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "sys/sockdiag.h"

/* A namespace with lo, which has an address more. */
#define OWN	"192.0.2.2"
#define OUTSIDE "192.0.2.77"

static struct sockaddr_in addr(const char *ip, int port)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
				.sin_port = htons((uint16_t)port)};

	inet_pton(AF_INET, ip, &a.sin_addr);
	return a;
}

static bool set_up(void)
{
	auto_close int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	struct ifreq more = {.ifr_name = "lo:1"};
	struct sockaddr_in a = addr(OWN, 0);

	memcpy(&more.ifr_addr, &a, sizeof(a));
	if (s < 0 || ioctl(s, SIOCSIFFLAGS, &lo) < 0 ||
	    ioctl(s, SIOCSIFADDR, &more) < 0)
		return false;
	a = addr("255.255.255.0", 0);
	memcpy(&more.ifr_netmask, &a, sizeof(a));
	return ioctl(s, SIOCSIFNETMASK, &more) == 0;
}

/* As the engine makes one again: connected, without asking the peer. */
static int to_outside(int family)
{
	struct sockaddr_in a = addr(OWN, 4000 + family);
	struct sockaddr_in b = addr(OUTSIDE, 80);
	struct sockaddr_in6 a6 = {.sin6_family = AF_INET6,
				  .sin6_port = a.sin_port};
	struct sockaddr_in6 b6 = {.sin6_family = AF_INET6,
				  .sin6_port = b.sin_port};
	int s = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
	bool v6 = family == AF_INET6; /* and an IPv4 address in it */

	inet_pton(AF_INET6, "::ffff:" OWN, &a6.sin6_addr);
	inet_pton(AF_INET6, "::ffff:" OUTSIDE, &b6.sin6_addr);
	if (s < 0 ||
	    setsockopt(s, IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on)) < 0 ||
	    bind(s, v6 ? (void *)&a6 : (void *)&a,
		 v6 ? sizeof(a6) : sizeof(a)) < 0 ||
	    connect(s, v6 ? (void *)&b6 : (void *)&b,
		    v6 ? sizeof(b6) : sizeof(b)) < 0)
		return -1;
	on = TCP_REPAIR_OFF_NO_WP;
	return setsockopt(s, IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on)) < 0 ? -1
									   : s;
}

/* A connection inside: listener, its end, the other end. */
static bool pair(const char *ip, int *fds)
{
	struct sockaddr_in a = addr(ip, 5000);
	int on = 1;

	fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(fds[0], SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fds[0], (void *)&a, sizeof(a)) < 0 || listen(fds[0], 5) < 0 ||
	    connect(fds[1], (void *)&a, sizeof(a)) < 0)
		return false;
	fds[2] = accept4(fds[0], NULL, NULL, SOCK_CLOEXEC);
	return fds[2] >= 0;
}

static bool works(const int *fds)
{
	char c = 'x';

	return write(fds[1], &c, 1) == 1 && read(fds[2], &c, 1) == 1 &&
	       write(fds[2], &c, 1) == 1 && read(fds[1], &c, 1) == 1;
}

static int udp_to(const char *ip)
{
	int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in a = addr(ip, 53);

	return connect(s, (void *)&a, sizeof(a)) < 0 ? -1 : s;
}

static int error_of(int s)
{
	int error = 0;
	socklen_t len = sizeof(error);

	getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &len);
	return error;
}

static void test_cut(int ns)
{
	int a[3], b[3], out[3], dns, r;
	struct err e = {0};
	char c;

	is_int(sockdiag_cut(ns, &e), 0, "nothing to cut");
	ok(pair("127.0.0.1", a) && pair(OWN, b), "connections inside");
	out[0] = to_outside(AF_INET);
	out[1] = to_outside(AF_INET6);
	out[2] = udp_to(OUTSIDE);
	dns = udp_to("127.0.0.53");
	ok(out[0] >= 0 && out[1] >= 0 && out[2] >= 0 && dns >= 0,
	   "connections to outside (%s)", strerror(errno));
	r = sockdiag_cut(ns, &e);
	is_int(r, 3, "those to outside are cut, and no others");
	if (r < 0)
		printf("# %s\n", e.msg);
	is_int(error_of(out[0]), ECONNABORTED, "IPv4");
	is_int(error_of(out[1]), ECONNABORTED, "IPv4 of an IPv6 socket");
	ok(read(out[0], &c, 1) <= 0 && send(out[0], &c, 1, MSG_NOSIGNAL) < 0,
	   "nothing goes there any more");
	is_int(error_of(out[2]), ECONNABORTED, "a connected UDP socket");
	ok(works(a) && works(b) && error_of(dns) == 0, "the others work");
	is_int(sockdiag_cut(ns, &e), 0, "nothing is left to cut");
	for (int i = 0; i < 3; i++) {
		close(a[i]);
		close(b[i]);
		close(out[i]);
	}
	close(dns);
}

/* What the kernel never says: an answer of our own, over a pair of sockets. */
static int take(const void *msg, size_t len, void *arg)
{
	(void)msg;
	*(size_t *)arg += len;
	return 0;
}

static int answered(uint16_t type, uint32_t claimed, size_t sent, size_t *got)
{
	_Alignas(struct nlmsghdr) char buf[256] = "";
	struct nlmsghdr *h = (struct nlmsghdr *)(void *)buf;
	int p[2], r;

	*got = 0;
	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, p) < 0)
		return -errno;
	h->nlmsg_type = type;
	h->nlmsg_len = claimed;
	memset(buf + sizeof(*h), 0xff, 4); /* an error's number: -1 */
	if (write(p[1], buf, sent) != (ssize_t)sent)
		r = -EIO;
	*h = (struct nlmsghdr){.nlmsg_type = NLMSG_DONE,
			       .nlmsg_len = NLMSG_LENGTH(0)};
	if (write(p[1], buf, NLMSG_LENGTH(0)) < 0)
		r = -EIO;
	r = sockdiag_dump(p[0], buf, 16, 40, take, got);
	close(p[0]);
	close(p[1]);
	return r;
}

static void test_answers(void)
{
	const uint16_t one = SOCK_DIAG_BY_FAMILY;
	size_t got;

	ok(answered(one, 16 + 40, 56, &got) == 0 && got == 40, "an answer");
	is_int(answered(one, 16 + 36, 52, &got), -EBADMSG, "one too short");
	is_int(answered(one, 16 + 40, 55, &got), -EBADMSG, "one cut off");
	is_int(answered(one, 0, 56, &got), -EBADMSG, "of no length");
	is_int(answered(one, 16, 8, &got), -EBADMSG, "not even a head");
	is_int(answered(NLMSG_ERROR, 36, 36, &got), -EPERM, "an error");
	is_int(answered(NLMSG_ERROR, 16, 16, &got), -EBADMSG, "an empty one");
	is_int(answered(7777, 56, 56, &got), -EBADMSG, "another kind");
	is_int((int)got, 0, "none of them is taken");
}

int main(void)
{
	auto_close int ns = -1;
	struct err e = {0};

	test_answers();
	if (unshare(CLONE_NEWNET) < 0 || !set_up()) {
		skip("cutting connections", "no network namespace of its own");
		return tap_done();
	}
	ns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	test_cut(ns);
	ok(sockdiag_cut(-1, &e) < 0 && e.code, "no namespace is an error");
	fd_close(steal_fd(&ns));
	return tap_done();
}
