/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bulk data for measuring proxies.
 *
 *   netbulk serve ADDR         a DNS server that says ADDR to every question,
 *                              and TCP on 443 and 7000: who says something
 *                              there gets bytes without end
 *   netbulk get NAME PORT MS   take them from there for so long; prints Mbit/s.
 *                              NAME is an address, or asked for at 198.18.0.1;
 *                              what is said is a ClientHello for NAME
 *   netbulk relay PID ADDR     listen on 7001 in PID's namespace and join who
 *                              comes with ADDR port 7000: as little as a relay
 *                              can do, to compare ours with
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/dns.h"
#include "sys/netns.h"

#define CHUNK (256 * 1024)

static int bound(int type, const char *addr, int port)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
				.sin_port = htons((uint16_t)port)};
	const int on = 1;
	int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);

	inet_pton(AF_INET, addr, &a.sin_addr);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, (void *)&a, sizeof(a)) < 0 ||
	    (type == SOCK_STREAM && listen(fd, 64) < 0)) {
		perror("netbulk");
		exit(71);
	}
	return fd;
}

static void answer(int fd, const char *addr)
{
	struct dns_addrs addrs = {.family = AF_INET, .n = 1, .ttl = 60};
	const struct dns_reply reply = {.rcode = DNS_NOERROR,
					.ede = DNS_EDE_NONE,
					.ttl = 60,
					.addrs = &addrs};
	char msg[DNS_QUERY_MAX], out[DNS_UDP_MAX];
	struct sockaddr_in from;
	socklen_t len = sizeof(from);
	struct dns_query q;
	ssize_t n = recvfrom(fd, msg, sizeof(msg), 0, (void *)&from, &len);
	size_t size;

	inet_pton(AF_INET, addr, &addrs.v4[0]);
	if (n <= 0 || dns_query_parse(msg, (size_t)n, &q) != 0)
		return;
	size = dns_reply_build(msg, &q, &reply, false, out, sizeof(out));
	(void)!sendto(fd, out, size, 0, (void *)&from, len);
}

static void feed(int fd)
{
	static char buf[CHUNK];

	if (read(fd, buf, sizeof(buf)) > 0)
		while (write(fd, buf, sizeof(buf)) > 0)
			;
	_exit(0);
}

static void serve(const char *addr)
{
	struct pollfd p[] = {
		{.fd = bound(SOCK_DGRAM, addr, 53), .events = POLLIN},
		{.fd = bound(SOCK_STREAM, addr, 443), .events = POLLIN},
		{.fd = bound(SOCK_STREAM, addr, 7000), .events = POLLIN},
	};

	signal(SIGCHLD, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	puts("ready");
	fflush(stdout);
	while (poll(p, 3, -1) > 0) {
		if (p[0].revents)
			answer(p[0].fd, addr);
		for (int i = 1; i < 3; i++) {
			int fd = p[i].revents ? accept(p[i].fd, NULL, NULL)
					      : -1;

			if (fd >= 0 && fork() == 0)
				feed(fd);
			if (fd >= 0)
				close(fd);
		}
	}
}

/* One direction, to its end. */
static void splice_all(int from, int to)
{
	ssize_t n, m;
	int p[2];

	if (pipe2(p, O_CLOEXEC) < 0)
		_exit(71);
	(void)fcntl(p[1], F_SETPIPE_SZ, CHUNK);
	while ((n = splice(from, NULL, p[1], NULL, CHUNK, SPLICE_F_MOVE)) > 0)
		for (; n > 0; n -= m) {
			m = splice(p[0], NULL, to, NULL, (size_t)n,
				   SPLICE_F_MOVE);
			if (m <= 0)
				_exit(0);
		}
	shutdown(to, SHUT_WR);
}

static void join(int fd, const char *addr)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_port = htons(7000)};
	int up = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	inet_pton(AF_INET, addr, &to.sin_addr);
	(void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
	if (connect(up, (void *)&to, sizeof(to)) < 0)
		_exit(71);
	if (fork() == 0)
		splice_all(fd, up);
	else
		splice_all(up, fd);
	_exit(0);
}

static int relay(pid_t pid, const char *addr)
{
	struct err e = {0};
	int ns = netns_of(pid, &e);
	int s = ns < 0 ? ns : netns_bind(ns, SOCK_STREAM, INADDR_ANY, 7001, &e);
	struct pollfd p = {.fd = s, .events = POLLIN};

	if (s < 0) {
		fprintf(stderr, "netbulk: %s\n", e.msg);
		return 71;
	}
	signal(SIGCHLD, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	puts("ready");
	fflush(stdout);
	while (poll(&p, 1, -1) > 0) {
		int fd = accept(s, NULL, NULL);

		if (fd >= 0 && fork() == 0)
			join(fd, addr);
		if (fd >= 0)
			close(fd);
	}
	return 71;
}

static struct in_addr resolve(const char *name)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(53)};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct in_addr ret = {0};
	struct dns_answer a;
	char msg[DNS_UDP_MAX];
	size_t n;
	ssize_t got;

	if (inet_pton(AF_INET, name, &ret) == 1) {
		close(fd);
		return ret;
	}
	inet_pton(AF_INET, "198.18.0.1", &to.sin_addr);
	n = dns_ask_build(7, name, DNS_A, msg);
	(void)!sendto(fd, msg, n, 0, (void *)&to, sizeof(to));
	got = recv(fd, msg, sizeof(msg), 0);
	if (got > 0 &&
	    dns_answer_parse(msg, (size_t)got, 7, name, DNS_A, &a) == 0 &&
	    a.addrs.n > 0)
		ret = a.addrs.v4[0];
	close(fd);
	return ret;
}

static size_t put(unsigned char *out, size_t n, const void *data, size_t len)
{
	memcpy(out + n, data, len);
	return n + len;
}

static size_t put16(unsigned char *out, size_t n, size_t v)
{
	out[n] = (unsigned char)(v >> 8);
	out[n + 1] = (unsigned char)v;
	return n + 2;
}

/* A ClientHello with nothing but what has to be there, and the name. */
static size_t hello(const char *name, unsigned char *out)
{
	size_t len = strlen(name), n = 0, ext = len + 9;
	size_t body = 2 + 32 + 1 + 4 + 2 + 2 + ext;

	n = put(out, n, "\x16\x03\x01", 3);
	n = put16(out, n, body + 4);
	n = put(out, n, "\x01\0", 2);
	n = put16(out, n, body);
	n = put(out, n, "\x03\x03", 2);
	memset(out + n, 'r', 32);
	n = put(out, n + 32, "\0\0\x02\x13\x01\x01\0", 7);
	n = put16(out, n, ext);
	n = put16(out, n, 0);
	n = put16(out, n, len + 5);
	n = put16(out, n, len + 3);
	n = put(out, n, "\0", 1);
	n = put16(out, n, len);
	return put(out, n, name, len);
}

static int get(const char *name, int port, uint64_t ms)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_port = htons((uint16_t)port),
				 .sin_addr = resolve(name)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	static char buf[CHUNK];
	unsigned char first[512];
	uint64_t t, total = 0;
	ssize_t n;

	if (connect(fd, (void *)&to, sizeof(to)) < 0 ||
	    write(fd, first, hello(name, first)) < 0) {
		perror(name);
		return 1;
	}
	/* The first bytes are there when all is set up. */
	if (read(fd, buf, sizeof(buf)) <= 0) {
		perror(name);
		return 1;
	}
	t = clock_ms();
	while (clock_ms() - t < ms && (n = read(fd, buf, sizeof(buf))) > 0)
		total += (uint64_t)n;
	t = clock_ms() - t;
	printf("%llu\n", (unsigned long long)(total * 8 / 1000 / (t ? t : 1)));
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "serve"))
		serve(argv[2]);
	if (argc == 5 && !strcmp(argv[1], "get"))
		return get(argv[2], atoi(argv[3]),
			   (uint64_t)strtoul(argv[4], NULL, 10));
	if (argc == 4 && !strcmp(argv[1], "relay"))
		return relay(atoi(argv[2]), argv[3]);
	return 64;
}
