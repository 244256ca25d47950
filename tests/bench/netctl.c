/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network helper's client for tests and benchmarks, without a sandbox: any
 * process with a network namespace of its own stands for one.
 *
 *   netctl attach ID PID DIR RULES   sockets in PID's namespace for what RULES
 *                                    need; files in DIR
 *   netctl again ID PID DIR RULES    the same, but no new sockets
 *   netctl routed ID PID SLOT DIR RULES
 *                                    with a link to the transit namespace
 *   netctl policy ID RULES           how many connections were cut, and when
 *   netctl detach|ports|stats ID
 *   netctl stats|list|ping
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "net/helper.h"
#include "net/transit.h"
#include "sys/netns.h"

static int compile(const char *text, struct netpol **ret, struct err *e)
{
	auto_json json_t *rules = NULL;
	int r = json_parse(text, strlen(text), &rules, e);

	return r < 0 ? r : netpol_compile(rules, NULL, ret, e);
}

static int file_in(const char *dir, const char *name, struct err *e)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	return fd < 0 ? err_set(e, -EIO, "io", "open '%s'", path) : fd;
}

static int sockets(const struct netpol *p, pid_t pid, struct helper_attach *a,
		   uint16_t *ports, int *tcp, struct err *e)
{
	auto_close int ns = netns_of(pid, e);
	int n, r;

	if (ns < 0)
		return ns;
	n = netpol_listen((const struct netpol *const *)&p, 1, ports);
	if (n < 0)
		return err_set(e, n, "bad_value", "too many ports");
	r = a->udp53 = netns_bind(ns, SOCK_DGRAM, INADDR_ANY, 53, e);
	if (r >= 0)
		r = a->tcp53 = netns_bind(ns, SOCK_STREAM, INADDR_ANY, 53, e);
	for (int i = 0; i < n && r >= 0; i++)
		r = tcp[i] = netns_bind(ns, SOCK_STREAM, INADDR_ANY, ports[i],
					e);
	a->nports = (size_t)n;
	return r < 0 ? r : 0;
}

static int attach(struct helper *h, char **argv, bool again, struct err *e)
{
	uint16_t ports[NETPOL_LISTEN_MAX];
	int tcp[NETPOL_LISTEN_MAX];
	auto_netpol struct netpol *p = NULL;
	struct helper_attach a = {
		.sandbox = argv[0],
		.strength = NETPOL_NAMES,
		.denied = -1,
		.names = -1,
		.udp53 = -1,
		.tcp53 = -1,
		.ports = ports,
		.tcp = tcp,
	};
	int r = compile(argv[3], &p, e);

	if (r == 0)
		r = a.denied = file_in(argv[2], "denied.jsonl", e);
	if (r >= 0)
		r = a.names = file_in(argv[2], "names", e);
	if (r >= 0 && !again)
		r = sockets(p, atoi(argv[1]), &a, ports, tcp, e);
	if (r < 0)
		return r;
	a.policy = netpol_json(p);
	a.hash = netpol_hash(p);
	return helper_attach(h, &a, e);
}

static int link_of(pid_t pid, uint32_t slot, struct helper *h, char *address,
		   struct err *e)
{
	struct transit_link link = {.slot = slot};
	auto_close int transit = -1, inside = -1;
	struct in_addr in;
	int r;

	r = transit_address(0x64600000, 16, slot, &link.address, e);
	if (r < 0)
		return r;
	transit = transit_open(getenv("DSEC_RUN"), e);
	if (transit < 0)
		return transit;
	inside = netns_of(pid, e);
	if (inside < 0)
		return inside;
	r = helper_transit(h, transit, e);
	if (r == 0)
		r = transit_attach(transit, inside, &link, e);
	in.s_addr = htonl(link.address);
	inet_ntop(AF_INET, &in, address, INET_ADDRSTRLEN);
	return r;
}

static int routed(struct helper *h, char **argv, struct err *e)
{
	uint32_t slot = (uint32_t)atoi(argv[2]);
	char address[INET_ADDRSTRLEN], iface[16], mac[18];
	auto_netpol struct netpol *p = NULL;
	struct helper_attach a = {
		.sandbox = argv[0],
		.strength = NETPOL_ROUTED,
		.denied = -1,
		.names = -1,
		.udp53 = -1,
		.tcp53 = -1,
		.address = address,
		.iface = iface,
		.mac = mac,
	};
	uint8_t m[6];
	int r = compile(argv[4], &p, e);

	if (r == 0)
		r = link_of(atoi(argv[1]), slot, h, address, e);
	if (r == 0)
		r = a.denied = file_in(argv[3], "denied.jsonl", e);
	if (r >= 0)
		r = a.names = file_in(argv[3], "names", e);
	if (r < 0)
		return r;
	transit_name(slot, iface);
	transit_mac(slot, m);
	snprintf(mac, sizeof(mac), "%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1],
		 m[2], m[3], m[4], m[5]);
	a.policy = netpol_json(p);
	a.hash = netpol_hash(p);
	return helper_attach(h, &a, e);
}

static int policy(struct helper *h, char **argv, struct err *e)
{
	auto_netpol struct netpol *p = NULL;
	unsigned cut;
	int r = compile(argv[1], &p, e);

	if (r == 0)
		r = helper_policy(h, argv[0], netpol_json(p), netpol_hash(p),
				  &cut, e);
	if (r == 0)
		printf("%u %llu\n", cut, (unsigned long long)clock_ms());
	return r;
}

static int ports(struct helper *h, const char *id, struct err *e)
{
	uint16_t list[HELPER_PORTS_MAX];
	size_t n;
	int r = helper_ports(h, id, list, &n, e);

	for (size_t i = 0; r == 0 && i < n; i++)
		printf("%u%s", list[i], i + 1 < n ? " " : "\n");
	return r;
}

static int print(int r, json_t *const *j)
{
	if (r < 0)
		return r;
	json_dumpf(*j, stdout, JSON_COMPACT | JSON_SORT_KEYS);
	putchar('\n');
	return 0;
}

static int run(struct helper *h, int argc, char **argv, struct err *e)
{
	const char *op = argv[1], *id = argc > 2 ? argv[2] : NULL;
	auto_json json_t *j = NULL;

	if (!strcmp(op, "attach") && argc == 6)
		return attach(h, argv + 2, false, e);
	if (!strcmp(op, "again") && argc == 6)
		return attach(h, argv + 2, true, e);
	if (!strcmp(op, "routed") && argc == 7)
		return routed(h, argv + 2, e);
	if (!strcmp(op, "policy") && argc == 4)
		return policy(h, argv + 2, e);
	if (!strcmp(op, "detach") && id)
		return helper_detach(h, id, e);
	if (!strcmp(op, "ports") && id)
		return ports(h, id, e);
	if (!strcmp(op, "stats"))
		return print(helper_stats(h, id, &j, e), &j);
	if (!strcmp(op, "list"))
		return print(helper_list(h, &j, e), &j);
	if (!strcmp(op, "ping"))
		return helper_ping(h, e);
	return err_set(e, -EINVAL, "usage", "netctl: see its source");
}

int main(int argc, char **argv)
{
	const char *dir = getenv("DSEC_RUN");
	auto_helper struct helper *h = NULL;
	struct err e = {0};
	int r;

	if (argc < 2 || !dir)
		return 64;
	r = helper_open(dir, 0, &h, &e);
	if (r == 0)
		r = run(h, argc, argv, &e);
	if (r < 0)
		fprintf(stderr, "%s: %s\n", e.code, e.msg);
	return r < 0;
}
