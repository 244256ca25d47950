/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dns COUNT: the DNS forwarder under load.  Three processes: clients with 32
 * queries in flight, the forwarder, an upstream that answers at once.  Every
 * name is asked for once, so every query goes upstream; a sandbox asks for
 * 2,000 names and makes place for another.  All names are of one length, so
 * that a cache that is full weighs the same whichever they are.  One JSON line:
 *   per_cpu_s		answers per second of processor time of the forwarder
 *   per_s		answers per second, on whatever there is of processors
 *   rss_kb, rss_half_kb, rss_end_kb
 *			of the forwarder, after a tenth, a half and at the end
 */
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/forwarder.h"

#define FLIGHT	  32
#define NAMES	  2000
#define NAME	  "n%08u.example.test"
#define REPLY_MAX 1500

static int bound(int type, struct sockaddr_in *addr)
{
	socklen_t len = sizeof(*addr);
	int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);

	*addr = (struct sockaddr_in){.sin_family = AF_INET,
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (fd < 0 || bind(fd, (struct sockaddr *)addr, len) < 0 ||
	    getsockname(fd, (struct sockaddr *)addr, &len) < 0)
		return -1;
	return fd;
}

static pid_t child(void)
{
	pid_t pid = fork();

	if (pid == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

/* The question comes back with an address. */
static void serve_upstream(int fd)
{
	static const uint8_t rr[16] = {0xc0, 12, 0, 1, 0,   1, 0, 0,
				       0,    60, 0, 4, 192, 0, 2, 1};
	uint8_t msg[REPLY_MAX];
	struct sockaddr_in peer;
	struct dns_query q;
	socklen_t len;
	ssize_t n;

	for (;;) {
		len = sizeof(peer);
		n = recvfrom(fd, msg, sizeof(msg), 0, (struct sockaddr *)&peer,
			     &len);
		if (n < 0 || dns_query_parse(msg, (size_t)n, &q) != 0)
			continue;
		n = DNS_HEADER + q.question_len;
		memcpy(msg + 2, "\x81\x80\0\1\0\1\0\0\0\0", 10);
		memcpy(msg + n, rr, sizeof(rr));
		sendto(fd, msg, (size_t)n + sizeof(rr), 0,
		       (struct sockaddr *)&peer, len);
	}
}

/* The sandbox that asks now, and the one before: it may wait for answers. */
struct box {
	struct forwarder_conf conf;
	struct forwarder *f, *old;
	struct fakename *old_names;
	struct forwarder_port *port;
	unsigned long asked;
};

static enum forwarder_verdict name(void *arg, const char *text)
{
	(void)arg, (void)text;
	return FORWARDER_EXACT;
}

static bool addr(void *arg, const char *text, sa_family_t family, const void *a)
{
	(void)arg, (void)text, (void)family, (void)a;
	return true;
}

static const struct forwarder_ops ops = {.name = name, .addr = addr};

static void next_box(struct box *b)
{
	forwarder_free(b->old);
	fakename_free(b->old_names);
	b->old = b->f;
	b->old_names = b->conf.names;
	if (fakename_new(-1, &b->conf.names, NULL) < 0 ||
	    forwarder_new(&b->conf, &b->f, NULL) < 0)
		_exit(1);
}

static struct forwarder *find(void *arg, const struct sockaddr *peer)
{
	struct box *b = arg;

	(void)peer;
	if (b->asked++ % NAMES == 0)
		next_box(b);
	return b->f;
}

static void serve(int udp, int tcp, const struct sockaddr_in *upstream)
{
	struct resolver_conf conf = {.nservers = 1};
	struct box b = {.conf = {.ops = &ops, .fake = true, .per_s = 1000000}};

	memcpy(&conf.servers[0], upstream, sizeof(*upstream));
	if (loop_new(&b.conf.loop, NULL) < 0 ||
	    resolver_new(b.conf.loop, &conf, &b.conf.resolver, NULL) < 0 ||
	    forwarder_port_new(b.conf.loop, udp, tcp, find, &b, &b.port, NULL) <
		    0)
		_exit(1);
	loop_run(b.conf.loop, NULL);
	_exit(1);
}

static long rss_kb(pid_t pid)
{
	char path[64], line[256];
	long kb = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "VmRSS: %ld", &kb) == 1)
			break;
	if (f)
		fclose(f);
	return kb;
}

/* Processor time of ${pid} so far, in seconds. */
static double cpu_s(pid_t pid)
{
	struct timespec ts = {0};
	clockid_t id;

	if (clock_getcpuclockid(pid, &id) == 0)
		clock_gettime(id, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static unsigned ask(int fd, unsigned i)
{
	uint8_t msg[DNS_QUERY_MAX];
	char text[64];
	size_t n;

	snprintf(text, sizeof(text), NAME, i);
	n = dns_ask_build((uint16_t)i, text, DNS_A, msg);
	return send(fd, msg, n, 0) == (ssize_t)n;
}

/* ${count} good answers; how many were lost on the way. */
static unsigned run(int fd, unsigned from, unsigned count)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	uint8_t msg[REPLY_MAX];
	unsigned sent = 0, got = 0, out = 0, lost = 0;

	while (got < count) {
		for (; out < FLIGHT && sent < count + lost; sent++)
			out += ask(fd, from + sent);
		if (poll(&p, 1, 1000) == 0) {
			lost += out;
			out = 0;
			continue;
		}
		if (recv(fd, msg, sizeof(msg), 0) < DNS_HEADER)
			continue;
		out -= out > 0;
		if ((msg[3] & 15) == DNS_NOERROR && msg[7] == 1)
			got++;
		else
			lost++;
	}
	return lost;
}

int main(int argc, char **argv)
{
	unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 100000;
	struct sockaddr_in up_addr, tcp_addr, addr_;
	int up = bound(SOCK_DGRAM, &up_addr), udp = bound(SOCK_DGRAM, &addr_);
	int tcp = bound(SOCK_STREAM, &tcp_addr), fd;
	unsigned warm = count / 10, half = count / 2, lost;
	pid_t up_pid, pid;
	double cpu, start;
	long rss, rss_half;

	if (up < 0 || udp < 0 || tcp < 0 || listen(tcp, 1) < 0)
		return 1;
	up_pid = child();
	if (up_pid == 0)
		serve_upstream(up);
	pid = child();
	if (pid == 0)
		serve(udp, tcp, &up_addr);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (connect(fd, (struct sockaddr *)&addr_, sizeof(addr_)) < 0)
		return 1;
	lost = run(fd, 0, warm);
	rss = rss_kb(pid);
	cpu = cpu_s(pid);
	start = (double)clock_ms();
	lost += run(fd, 2 * count, half - warm);
	rss_half = rss_kb(pid);
	lost += run(fd, 4 * count, count - half);
	cpu = cpu_s(pid) - cpu;
	start = ((double)clock_ms() - start) / 1000;
	printf("{\"queries\":%u,\"lost\":%u,\"per_cpu_s\":%.0f,\"per_s\":%.0f,"
	       "\"rss_kb\":%ld,\"rss_half_kb\":%ld,\"rss_end_kb\":%ld}\n",
	       count, lost, (count - warm) / cpu, (count - warm) / start, rss,
	       rss_half, rss_kb(pid));
	kill(pid, SIGKILL);
	kill(up_pid, SIGKILL);
	while (wait(NULL) > 0)
		;
	return 0;
}
