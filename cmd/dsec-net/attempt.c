/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/icmp6.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "net/dns.h"
#include "sys/netns.h"
#include "work.h"

/* The sandbox's resolver, the same in all of them. */
#define RESOLVER   0xc6120001 /* 198.18.0.1 */
#define RESOLVE_MS 6000
#define CONNECT_MS 5000
/* A refusal of the helper comes after its accept; a connection that stands so
 * long has been let through. */
#define STANDS_MS   1000
#define DATAGRAM_MS 1500
#define PATIENCE_MS 20000

/* What the child says, in one write. */
struct said {
	int error; /* errno: it could not even try */
	char outcome[16];
	struct netaddr addr; /* that was tried */
	bool has_addr;
	bool resolver; /* it answered */
	uint32_t ms;
};

static void say(struct said *s, const char *outcome)
{
	snprintf(s->outcome, sizeof(s->outcome), "%s", outcome);
}

static const char *word_of(int errnum)
{
	switch (errnum) {
	case ECONNREFUSED:
		return "refused";
	case ECONNRESET:
	case ECONNABORTED:
	case EPIPE:
		return "reset";
	case ENETUNREACH:
	case EHOSTUNREACH:
	case EACCES:
	case EPERM:
	case EADDRNOTAVAIL:
	case EAFNOSUPPORT:
		return "unreachable";
	default:
		return "timeout";
	}
}

/* --- the resolver -------------------------------------------------------- */

static int ask(int fd, const struct attempt *to, uint16_t type, struct said *s,
	       struct dns_answer *ret)
{
	char query[DNS_QUERY_MAX], reply[DNS_UDP_MAX];
	struct pollfd p = {.fd = fd, .events = POLLIN};
	uint64_t now = clock_ms(), until = now + RESOLVE_MS;
	uint16_t id = 0;
	size_t len;
	ssize_t n;

	if (getrandom(&id, sizeof(id), 0) < 0)
		return -errno;
	len = dns_ask_build(id, to->name, type, query);
	if (send(fd, query, len, 0) < 0)
		return -errno;
	for (; now < until; now = clock_ms()) {
		if (poll(&p, 1, (int)(until - now)) <= 0)
			continue;
		n = recv(fd, reply, sizeof(reply), 0);
		if (n < 0)
			return -errno;
		if (dns_answer_parse(reply, (size_t)n, id, to->name, type,
				     ret) == 0) {
			s->resolver = true;
			return 0;
		}
	}
	return -ETIMEDOUT;
}

static bool resolve(const struct attempt *to, struct said *s)
{
	struct sockaddr_in server = {.sin_family = AF_INET,
				     .sin_port = htons(53),
				     .sin_addr.s_addr = htonl(RESOLVER)};
	auto_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct dns_answer a;
	int r;

	if (fd < 0 ||
	    connect(fd, (struct sockaddr *)&server, sizeof(server)) < 0) {
		say(s, "no_resolver");
		return false;
	}
	r = ask(fd, to, DNS_A, s, &a);
	if (r == 0 && a.addrs.n > 0) {
		s->addr = netaddr_v4(a.addrs.v4[0].s_addr);
		return true;
	}
	if (r == 0 && a.rcode == DNS_NOERROR)
		r = ask(fd, to, DNS_AAAA, s, &a);
	if (r == 0 && a.addrs.n > 0) {
		s->addr = (struct netaddr){.v6 = true};
		memcpy(s->addr.b, &a.addrs.v6[0], 16);
		return true;
	}
	say(s, s->resolver ? "not_resolved" : "no_resolver");
	return false;
}

/* --- the connection ------------------------------------------------------ */

static int wait_error(int fd, int ms, short events, short *ret)
{
	struct pollfd p = {.fd = fd, .events = events};
	socklen_t len = sizeof(int);
	int r, error = 0;

	do
		r = poll(&p, 1, ms);
	while (r < 0 && errno == EINTR);
	*ret = r > 0 ? p.revents : 0;
	if (r > 0 && p.revents & (POLLERR | POLLHUP))
		(void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
	return error;
}

/* What the other end does with a connection that stands. */
static void watch(int fd, struct said *s)
{
	short events;
	char byte;
	int error = wait_error(fd, STANDS_MS, POLLIN | POLLRDHUP, &events);

	if (!error && events & POLLIN &&
	    recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0)
		error = errno;
	say(s, error ? word_of(error) : "connected");
}

static void try_tcp(int fd, const struct sockaddr *sa, socklen_t len,
		    struct said *s)
{
	short events;
	int error;

	if (connect(fd, sa, len) < 0 && errno != EINPROGRESS) {
		say(s, word_of(errno));
		return;
	}
	error = wait_error(fd, CONNECT_MS, POLLOUT, &events);
	if (error || !events)
		say(s, error ? word_of(error) : "timeout");
	else
		watch(fd, s);
}

static void try_udp(int fd, const struct sockaddr *sa, socklen_t len,
		    struct said *s)
{
	short events;
	int error = 0;

	if (connect(fd, sa, len) < 0 || send(fd, "", 1, 0) < 0)
		error = errno;
	if (!error)
		error = wait_error(fd, DATAGRAM_MS, POLLIN, &events);
	if (error)
		say(s, word_of(error));
	else
		say(s, events & POLLIN ? "answered" : "silent");
}

static uint16_t checksum(const void *data, size_t len)
{
	const uint8_t *b = data;
	uint32_t sum = 0;

	for (size_t i = 0; i + 1 < len; i += 2)
		sum += (uint32_t)b[i] << 8 | b[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return htons((uint16_t)~sum);
}

/* Is it the reply to ${sent}?  Of v4 the header of IP comes first. */
static bool is_echo(const uint8_t *msg, size_t len, bool v6,
		    const struct icmphdr *sent)
{
	size_t at = v6 || len == 0 ? 0 : (msg[0] & 15) * 4u;
	struct icmphdr h;

	if (len < at + sizeof(h))
		return false;
	memcpy(&h, msg + at, sizeof(h));
	return h.type == (v6 ? ICMP6_ECHO_REPLY : ICMP_ECHOREPLY) &&
	       h.un.echo.id == sent->un.echo.id &&
	       h.un.echo.sequence == sent->un.echo.sequence;
}

/* What comes to a raw socket is everybody's: until the reply is among it. */
static void hear_echo(int fd, bool v6, const struct icmphdr *sent,
		      struct said *s)
{
	uint64_t now = clock_ms(), until = now + DATAGRAM_MS;
	uint8_t msg[1500];
	short events;
	ssize_t n;
	int error;

	for (; now < until; now = clock_ms()) {
		error = wait_error(fd, (int)(until - now), POLLIN, &events);
		n = events & POLLIN ? recv(fd, msg, sizeof(msg), MSG_DONTWAIT)
				    : 0;
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			error = errno;
		if (error || (n > 0 && is_echo(msg, (size_t)n, v6, sent))) {
			say(s, error ? word_of(error) : "answered");
			return;
		}
	}
	say(s, "silent");
}

/* One echo request, as ping sends it. */
static void try_icmp(int fd, const struct sockaddr *sa, socklen_t len,
		     struct said *s)
{
	bool v6 = sa->sa_family == AF_INET6;
	struct icmphdr h = {.type = v6 ? ICMP6_ECHO_REQUEST : ICMP_ECHO,
			    .un.echo.sequence = htons(1)};
	int on = 1;

	if (getrandom(&h.un.echo.id, sizeof(h.un.echo.id), 0) < 0)
		h.un.echo.id = (uint16_t)getpid();
	/* The kernel adds that of v6 itself. */
	if (!v6)
		h.checksum = checksum(&h, sizeof(h));
	/* Refusals are told to a raw socket that asks for them alone. */
	(void)setsockopt(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP,
			 v6 ? IPV6_RECVERR : IP_RECVERR, &on, sizeof(on));
	if (connect(fd, sa, len) < 0 || send(fd, &h, sizeof(h), 0) < 0)
		say(s, word_of(errno));
	else
		hear_echo(fd, v6, &h, s);
}

static int open_socket(enum netpol_proto proto, sa_family_t family)
{
	const int flags = SOCK_CLOEXEC | SOCK_NONBLOCK;

	if (proto == NETPOL_ICMP)
		return socket(family, SOCK_RAW | flags,
			      family == AF_INET6 ? IPPROTO_ICMPV6
						 : IPPROTO_ICMP);
	return socket(family,
		      (proto == NETPOL_UDP ? SOCK_DGRAM : SOCK_STREAM) | flags,
		      0);
}

static void try(const struct attempt *to, struct said *s)
{
	struct sockaddr_storage sa;
	struct sockaddr *to_sa = (struct sockaddr *)&sa;
	uint64_t began = clock_ms();
	auto_close int fd = -1;
	socklen_t len;

	s->addr = to->addr;
	if (!to->name[0] || resolve(to, s)) {
		s->has_addr = true;
		len = netaddr_sock(&s->addr, to->port, &sa);
		fd = open_socket(to->proto, sa.ss_family);
		if (fd < 0)
			say(s, word_of(errno));
		else if (to->proto == NETPOL_ICMP)
			try_icmp(fd, to_sa, len, s);
		else if (to->proto == NETPOL_UDP)
			try_udp(fd, to_sa, len, s);
		else
			try_tcp(fd, to_sa, len, s);
	}
	s->ms = (uint32_t)(clock_ms() - began);
}

/* --- the child ----------------------------------------------------------- */

static void child(int netns, int out, const struct attempt *to)
{
	struct said s = {.error = 0};
	int back = -1;

	signal(SIGALRM, SIG_DFL);
	alarm(PATIENCE_MS / 1000);
	s.error = -netns_enter(netns, &back, NULL);
	if (!s.error)
		try(to, &s);
	_exit(write(out, &s, sizeof(s)) == sizeof(s) ? 0 : 1);
}

static int hear(int in, pid_t pid, struct said *s, struct err *e)
{
	struct pollfd p = {.fd = in, .events = POLLIN};
	ssize_t n = -1;

	if (poll(&p, 1, PATIENCE_MS) > 0)
		n = read(in, s, sizeof(*s));
	kill(pid, SIGKILL);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	if (n != sizeof(*s))
		return err_set(e, -ETIMEDOUT, "timeout",
			       "the attempt from inside did not end");
	if (s->error)
		return err_sys(e, s->error,
			       "enter the sandbox's network namespace");
	return 0;
}

static int record_of(const struct attempt *to, const struct said *s,
		     json_t **ret, struct err *e)
{
	char text[NETADDR_TEXT];
	auto_json json_t *j = NULL;
	int r;

	r = json_pack_or(&j, e, "{s:s, s:i}", "outcome", s->outcome, "ms",
			 (int)s->ms);
	if (r < 0)
		return r;
	if (to->name[0])
		r |= json_object_set_new(j, "resolver",
					 json_string(s->resolver ? "answered"
								 : "silent"));
	if (s->has_addr)
		r |= json_object_set_new(j, "address",
					 json_string(
						 netaddr_text(&s->addr, text)));
	if (r < 0)
		return err_sys(e, ENOMEM, "record");
	*ret = steal_ptr(j);
	return 0;
}

int attempt(pid_t pid, const struct attempt *to, json_t **ret, struct err *e)
{
	auto_close int netns = netns_of(pid, e), in = -1, out = -1;
	struct said s = {.error = 0};
	int pair[2], r;
	pid_t tries;

	if (netns < 0)
		return netns;
	if (pipe2(pair, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	in = pair[0];
	out = pair[1];
	tries = fork();
	if (tries < 0)
		return err_sys(e, errno, "fork");
	if (tries == 0)
		child(netns, out, to);
	fd_close(steal_fd(&out));
	r = hear(in, tries, &s, e);
	return r < 0 ? r : record_of(to, &s, ret, e);
}
