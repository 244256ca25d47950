/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of routed sandboxes, measured in namespaces of its own.
 *
 *   net_rules apply DIR   100 sandboxes, then one with a policy of its own;
 *                         the listings before and after, in DIR
 *   net_rules many N      sandboxes one by one, and changes among N
 *   net_rules packet      the cost of a packet: no rules, ours, one table per
 *                         sandbox at 100
 *
 * A line of JSON on stdout.
 */
#include <sched.h>
#include <time.h>

#include "../unit/netlab.h"

#define POLICIES 20

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static double quantile(double *v, size_t n, double q)
{
	qsort(v, n, sizeof(*v), by_value);
	return v[(size_t)((double)(n - 1) * q)];
}

static void die(const char *what, const struct err *e)
{
	fprintf(stderr, "net_rules: %s: %s\n", what, e ? e->msg : "");
	exit(1);
}

/* Eight ranges and a name; no two are alike. */
static struct netpol *policy(unsigned i)
{
	char text[2048];
	size_t at = 0;

	at += (size_t)snprintf(text, sizeof(text), "{\"allow\":[");
	for (unsigned k = 0; k < 8; k++)
		at += (size_t)snprintf(text + at, sizeof(text) - at,
				       "{\"cidr\":\"198.51.%u.%u/%u\","
				       "\"ports\":[%u,\"8000-%u\"]},",
				       i % 256, k * 16, 28 + k % 4, 5000 + k,
				       8001 + i);
	snprintf(text + at, sizeof(text) - at,
		 "{\"cidr\":\"198.51.100.10\",\"proto\":\"udp\",\"ports\":[9]},"
		 "{\"domain\":\"*.p%u.test\"}]}",
		 i);
	return lab_policy(text);
}

static void put(struct lab *l, uint32_t slot, const struct netpol *p)
{
	struct route_sandbox sb = {.slot = slot};
	struct err e = {0};

	transit_mac(slot, sb.mac);
	if (transit_address(LAB_POOL, 16, slot, &sb.address, &e) < 0 ||
	    route_put(l->r, &sb, p, NULL, NULL, &e) != 1)
		die("put", &e);
}

static void start(struct lab *l)
{
	struct err e = {0};

	*l = (struct lab){.dir = "/tmp/dsec-bench-XXXXXX"};
	if (unshare(CLONE_NEWNET) < 0 || !mkdtemp(l->dir))
		die("namespace", NULL);
	l->transit = transit_make(l->dir, LAB_HELPER, LAB_HELPER, &e);
	if (l->transit < 0 || transit_socks_make(l->transit, &l->socks, &e) < 0)
		die("transit", &e);
	if (lab_open(l) < 0)
		die("rules", NULL);
	l->deny = netdeny_new();
	if (route_deny(l->r, l->deny, &e) < 0)
		die("rules", &e);
}

static void end(struct lab *l)
{
	route_free(l->r);
	netdeny_free(l->deny);
	transit_socks_done(&l->socks);
	fd_close(l->transit);
	if (transit_drop(l->dir, NULL) < 0 ||
	    fd_remove_tree(AT_FDCWD, l->dir, NULL) < 0)
		die("clean", NULL);
}

static void in_transit(struct lab *l, const char *command)
{
	auto_netns int back = -1;

	if (netns_enter(l->transit, &back, NULL) < 0 || system(command) != 0)
		die(command, NULL);
}

static void apply(const char *dir)
{
	struct netpol *p[POLICIES], *own = policy(77);
	struct lab l;
	double t[31];
	char cmd[512];

	start(&l);
	for (unsigned i = 0; i < POLICIES; i++)
		p[i] = policy(i);
	for (unsigned i = 0; i < 100; i++)
		put(&l, i, p[i % POLICIES]);
	snprintf(cmd, sizeof(cmd), "nft list table inet dsec >%s/before", dir);
	in_transit(&l, cmd);
	for (size_t i = 0; i < array_len(t); i++) {
		if (i && route_del(l.r, 100, NULL) < 0)
			die("del", NULL);
		t[i] = now_us();
		put(&l, 100, own);
		t[i] = now_us() - t[i];
	}
	snprintf(cmd, sizeof(cmd), "nft list table inet dsec >%s/after", dir);
	in_transit(&l, cmd);
	printf("{\"name\":\"apply\",\"p50_ms\":%.4f}\n",
	       quantile(t, array_len(t), 0.5) / 1e3);
	end(&l);
	for (unsigned i = 0; i < POLICIES; i++)
		netpol_free(p[i]);
	netpol_free(own);
}

static double put_some(struct lab *l, struct netpol **p, unsigned from,
		       unsigned n)
{
	const double t = now_us();

	for (unsigned i = from; i < from + n; i++)
		put(l, i, p[i % POLICIES]);
	return (now_us() - t) / n;
}

static void many(unsigned n)
{
	struct netpol *p[POLICIES];
	double t[301], first, later[9];
	struct lab l;

	start(&l);
	for (unsigned i = 0; i < POLICIES; i++)
		p[i] = policy(i);
	/* The policies are there; now sandboxes alone. */
	put_some(&l, p, 0, POLICIES);
	first = put_some(&l, p, POLICIES, 100);
	put_some(&l, p, POLICIES + 100, n - 100);
	for (size_t i = 0; i < array_len(later); i++)
		later[i] = put_some(&l, p, POLICIES + n + (unsigned)i * 20, 20);
	for (size_t i = 0; i < array_len(t); i++) {
		t[i] = now_us();
		put(&l, 1234 % n, p[(14 + i + 1) % POLICIES]);
		t[i] = now_us() - t[i];
	}
	printf("{\"name\":\"many\",\"first_ms\":%.4f,\"later_ms\":%.4f,"
	       "\"switch_p50_ms\":%.4f,\"switch_p90_ms\":%.4f}\n",
	       first / 1e3, quantile(later, array_len(later), 0.5) / 1e3,
	       quantile(t, array_len(t), 0.5) / 1e3,
	       quantile(t, array_len(t), 0.9) / 1e3);
	end(&l);
	for (unsigned i = 0; i < POLICIES; i++)
		netpol_free(p[i]);
}

/* --- packets ------------------------------------------------------------- */

static void upstream(struct lab *l)
{
	const struct rtnl_veth v = {.name = TRANSIT_UPLINK,
				    .peer = "eth0",
				    .peer_netns = l->world};
	struct rtnl_route pool = {.family = AF_INET,
				  .prefix = 16,
				  .has_gateway = true};
	auto_rtnl struct rtnl in = {.fd = -1};
	auto_rtnl struct rtnl up = {.fd = -1};

	if (rtnl_open(l->transit, &in, NULL) < 0 ||
	    rtnl_open(l->world, &up, NULL) < 0 ||
	    rtnl_veth_add(&in, &v, NULL) < 0)
		die("upstream", NULL);
	lab_addr(&in, TRANSIT_UPLINK, "100.127.255.2", 30);
	lab_addr(&up, "eth0", "100.127.255.1", 30);
	lab_addr(&up, "lo", "198.51.100.10", 32);
	lab_default(&in, TRANSIT_UPLINK, "100.127.255.1");
	pool.index = rtnl_index(&up, "eth0", NULL);
	lab_bytes("100.96.0.0", pool.dst);
	lab_bytes("100.127.255.2", pool.gateway);
	if (rtnl_route_add(&up, &pool, NULL) < 0)
		die("upstream", NULL);
	(void)rtnl_index(&in, TRANSIT_UPLINK, NULL);
}

static void table_each(struct lab *l, FILE *f)
{
	(void)l;
	for (unsigned i = 0; i < 100; i++)
		fprintf(f,
			"table ip sb%u {\n"
			"set allow { type ipv4_addr . inet_service; "
			"elements = { 198.51.100.10 . 9, 198.51.100.11 . 53 } "
			"}\nchain f { type filter hook forward priority 0; "
			"policy accept;\nct state established,related accept\n"
			"iifname \"ds%u\" ip daddr . udp dport @allow accept\n"
			"iifname \"ds%u\" drop\n}\n}\n",
			i, i, i);
}

enum rules { NONE, OURS, EACH };

static void load(struct lab *l, struct netpol *p, enum rules which)
{
	char path[64], cmd[128];
	struct err e = {0};
	FILE *f;

	in_transit(l, "nft flush ruleset");
	route_free(l->r);
	l->r = NULL;
	if (which == OURS) {
		if (lab_open(l) < 0 || route_deny(l->r, l->deny, &e) < 0)
			die("rules", &e);
		for (unsigned i = 0; i < 100; i++)
			put(l, i, p);
	}
	if (which != EACH)
		return;
	snprintf(path, sizeof(path), "%s/each", l->dir);
	f = fopen(path, "we");
	if (!f)
		die(path, NULL);
	table_each(l, f);
	fclose(f);
	snprintf(cmd, sizeof(cmd), "nft -f %s", path);
	in_transit(l, cmd);
}

/* One way, 64 bytes; the sender is the receiver too, on one processor. */
static double packet_us(struct lab *l, int blocks)
{
	const struct sockaddr_in to = lab_to("198.51.100.10", 9);
	struct sockaddr_in from;
	socklen_t len = sizeof(from);
	int srv = lab_server(l, SOCK_DGRAM, "198.51.100.10", 9);
	int cli = netns_socket(l->a, AF_INET, SOCK_DGRAM, 0, NULL);
	char buf[64] = "";
	double t[64], q;

	fcntl(srv, F_SETFL, 0);
	if (connect(cli, (const void *)&to, sizeof(to)) < 0 ||
	    send(cli, buf, sizeof(buf), 0) < 0 ||
	    !lab_wait(srv, POLLIN, 3000) ||
	    recvfrom(srv, buf, sizeof(buf), 0, (void *)&from, &len) < 0 ||
	    sendto(srv, buf, 1, 0, (void *)&from, len) != 1 ||
	    !lab_wait(cli, POLLIN, 3000) || recv(cli, buf, 1, 0) != 1)
		die("no packet passes", NULL);
	for (int b = 0; b < blocks; b++) {
		t[b] = now_us();
		for (int i = 0; i < 1000; i++)
			if (send(cli, buf, sizeof(buf), 0) < 0 ||
			    recv(srv, buf, sizeof(buf), 0) < 0)
				die("packet", NULL);
		t[b] = (now_us() - t[b]) / 1000;
	}
	fd_close(srv);
	fd_close(cli);
	q = quantile(t, (size_t)blocks, 0.25);
	return q;
}

static void packet(void)
{
	struct netpol *p = policy(1);
	double t[3][5];
	struct lab l;
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(0, &one);
	(void)sched_setaffinity(0, sizeof(one), &one);
	start(&l);
	l.a = lab_space();
	l.world = lab_space();
	upstream(&l);
	if (lab_attach(&l, l.a, LAB_A) < 0)
		die("attach", NULL);
	for (int round = 0; round < 5; round++)
		for (int which = NONE; which <= EACH; which++) {
			load(&l, p, (enum rules)which);
			t[which][round] = packet_us(&l, 20);
		}
	printf("{\"name\":\"packet\",\"none_us\":%.3f,\"ours_us\":%.3f,"
	       "\"each_us\":%.3f}\n",
	       quantile(t[NONE], 5, 0.5), quantile(t[OURS], 5, 0.5),
	       quantile(t[EACH], 5, 0.5));
	fd_close(l.a);
	fd_close(l.world);
	end(&l);
	netpol_free(p);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "apply"))
		apply(argv[2]);
	else if (argc == 3 && !strcmp(argv[1], "many"))
		many((unsigned)atoi(argv[2]));
	else if (argc == 2 && !strcmp(argv[1], "packet"))
		packet();
	else
		return 64;
	return 0;
}
