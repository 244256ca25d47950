/* SPDX-License-Identifier: Apache-2.0 */
/* The transit namespace and a sandbox's link to it, in scratch namespaces. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "net/transit.h"
#include "sys/netns.h"
#include "sys/rtnl.h"

#define HELPER 64999
#define POOL   0x64600000u /* 100.96.0.0 */

static char dir[] = "/tmp/dsec-transit-XXXXXX";

/* A network namespace that a descriptor keeps. */
static int scratch(void)
{
	auto_netns int back = -1;
	auto_close int self = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

	if (self < 0 || netns_enter(self, &back, NULL) < 0)
		return -1;
	if (unshare(CLONE_NEWNET) < 0)
		return -1;
	return open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

static void addresses(void)
{
	uint32_t a = 0;

	is_int(transit_address(POOL, 16, 0, &a, NULL), 0, "first slot");
	is_int(a, POOL + 1, "its address");
	is_int(transit_address(POOL, 16, 65533, &a, NULL), 0, "last slot");
	is_int(a, POOL + 65534, "its address");
	is_int(transit_address(POOL, 24, 28672, &a, NULL), 0, "a small pool");
	is_int(a, POOL + 1 + 28672 % 254, "where slots begin high");
	is_int(transit_address(POOL, 32, 0, &a, NULL), -ERANGE, "no pool");
}

static void life(void)
{
	struct err e = {.r = 0};
	auto_close int a = -1;
	auto_close int b = -1;

	is_int(transit_open(dir, &e), -ENOENT, "there is none at first");
	a = transit_make(dir, HELPER, HELPER, &e);
	ok(a >= 0, "made (%s)", e.msg);
	b = transit_make(dir, HELPER, HELPER, &e);
	ok(b >= 0, "made again is the same (%s)", e.msg);
	if (a >= 0 && b >= 0) {
		struct stat x, y;

		ok(!fstat(a, &x) && !fstat(b, &y) && x.st_ino == y.st_ino,
		   "one namespace");
	}
	is_int(transit_make(dir, HELPER + 1, HELPER, &e), -EPERM,
	       "another owner is refused");
}

/* A server in the transit at the gateway's address, a client in the sandbox. */
static void speak(int netns, int inside)
{
	auto_close int srv = netns_bind(netns, SOCK_DGRAM,
					htonl(TRANSIT_GATEWAY), 53, NULL);
	auto_close int cli = netns_socket(inside, AF_INET, SOCK_DGRAM, 0, NULL);
	const struct timeval second = {2, 0};
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_addr.s_addr = htonl(TRANSIT_GATEWAY),
				 .sin_port = htons(53)},
			   from = {.sin_family = 0};
	socklen_t len = sizeof(from);
	char c = 'x';

	ok(srv >= 0 && cli >= 0, "sockets inside");
	ok(sendto(cli, &c, 1, 0, (void *)&to, sizeof(to)) == 1, "sent");
	setsockopt(srv, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
	fcntl(srv, F_SETFL, 0);
	ok(recvfrom(srv, &c, 1, 0, (void *)&from, &len) == 1, "arrived");
	is_int(ntohl(from.sin_addr.s_addr), POOL + 8, "from its address");
}

static bool none_held(void *arg, uint32_t slot)
{
	(void)arg;
	(void)slot;
	return false;
}

static bool is_slot(void *arg, uint32_t slot)
{
	return slot == (uintptr_t)arg;
}

static void links(void)
{
	auto_close int netns = transit_open(dir, NULL);
	auto_close int one = scratch();
	auto_close int two = scratch();
	struct transit_link l = {.slot = 7, .address = POOL + 8};
	struct err e = {.r = 0};
	uint32_t slots[4];

	ok(one >= 0 && two >= 0 && one != two, "two sandboxes");
	is_int(transit_attach(netns, one, &l, &e), 0, "attach");
	if (e.r)
		printf("# %s\n", e.msg);
	is_int(transit_slots(netns, slots, 4, &e), 1, "one link");
	is_int(slots[0], 7, "its slot");
	speak(netns, one);
	is_int(transit_attach(netns, one, &l, &e), 0, "attach again");
	speak(netns, one);
	is_int(transit_limit(netns, one, 7, 100, &e), 0, "limit");
	is_int(transit_limit(netns, one, 7, 200, &e), 0, "other limit");
	is_int(transit_limit(netns, one, 7, 0, &e), 0, "no limit");
	is_int(transit_limit(netns, one, 7, 0, &e), 0, "no limit again");
	is_int(transit_attach(netns, two, &l, &e), 0,
	       "the slot's next sandbox");
	is_int(transit_slots(netns, slots, 4, &e), 1, "still one link");
	is_int(transit_poke(netns, two, &e), 0, "nobody to poke");
	l.slot = 8;
	is_int(transit_attach(netns, one, &l, &e), -EEXIST,
	       "the address of another");
	is_int(transit_slots(netns, slots, 4, &e), 1, "leaves nothing");
	is_int(transit_sweep(netns, 1, none_held, NULL, &e), 0,
	       "one that nobody holds may stay");
	is_int(transit_sweep(netns, 0, is_slot, (void *)(uintptr_t)7, &e), 0,
	       "one that somebody holds does");
	is_int(transit_sweep(netns, 0, is_slot, (void *)(uintptr_t)8, &e), 1,
	       "one that nobody holds goes");
	is_int(transit_slots(netns, slots, 4, &e), 0, "no link");
	is_int(transit_sweep(netns, 0, none_held, NULL, &e), 0, "nor now");
}

/* A namespace that ends takes its link along, and one that lives on does not
 * keep the slot from the next. */
static void ends(void)
{
	auto_close int netns = transit_open(dir, NULL);
	auto_close int old = scratch();
	auto_close int next = scratch();
	struct transit_link l = {.slot = 9, .address = POOL + 10};
	struct err e = {.r = 0};
	uint32_t slots[4];
	int n = 1;

	is_int(transit_attach(netns, old, &l, &e), 0, "attach");
	is_int(transit_attach(netns, next, &l, &e), 0,
	       "another on its slot while its namespace is there");
	is_int(transit_slots(netns, slots, 4, &e), 1, "has the only link");
	fd_close(steal_fd(&old));
	usleep(200000);
	is_int(transit_slots(netns, slots, 4, &e), 1,
	       "and keeps it when that ends");
	fd_close(steal_fd(&next));
	for (int i = 0; i < 600 && n > 0; i++) {
		usleep(50000);
		n = transit_slots(netns, slots, 4, &e);
	}
	is_int(n, 0, "until it ends itself");
}

static void sockets(void)
{
	auto_close int netns = transit_open(dir, NULL);
	struct transit_socks s = {-1, -1, -1, -1, -1, -1}, t;
	struct err e = {.r = 0};

	is_int(transit_socks_make(netns, &s, &e), 0, "sockets of the helper");
	ok(s.nft >= 0 && s.log >= 0 && s.dns_udp >= 0 && s.dns_tcp >= 0 &&
		   s.sni >= 0 && s.broker >= 0,
	   "all of them");
	is_int(transit_socks_make(netns, &t, &e), -EADDRINUSE, "only once");
	transit_socks_done(&s);
	transit_socks_done(&s);
}

static void end(void)
{
	struct err e = {.r = 0};
	auto_free char *path = transit_path(dir);

	is_int(transit_drop(dir, &e), 0, "drop");
	is_int(transit_drop(dir, &e), 0, "drop again");
	ok(access(path, F_OK) < 0, "nothing is left");
	is_int(transit_open(dir, &e), -ENOENT, "there is none any more");
}

int main(void)
{
	addresses();
	if (geteuid() || !mkdtemp(dir)) {
		skip("transit", "needs root");
		return tap_done();
	}
	life();
	links();
	ends();
	sockets();
	end();
	ok(!fd_remove_tree(AT_FDCWD, dir, NULL), "clean");
	return tap_done();
}
