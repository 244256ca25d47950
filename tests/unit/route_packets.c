/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets as a hostile sandbox might write them, with every capability over its
 * end of the link.  After each comes one that is allowed: when that one has
 * arrived, the other has not, or never will.
 */
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>

#include "netlab.h"

#define WORLD "198.51.100.10"
#define POLICY                                                                 \
	"{\"allow\":[{\"cidr\":\"198.51.100.10\",\"ports\":[5432]},"           \
	"{\"cidr\":\"198.51.100.10\",\"proto\":\"udp\",\"ports\":[5432]},"     \
	"{\"cidr\":\"198.51.100.10\",\"proto\":\"icmp\"}]}"

/* Names a packet wherever it shows up. */
struct tag {
	char magic[8];
	uint32_t n;
};

static uint32_t tags;
static struct lab lab;
static int capture_b;

struct frame {
	size_t len;
	uint8_t pad[2]; /* so that what follows the MAC header is aligned */
	uint8_t b[4094];
};

struct packet {
	const char *src, *dst; /* NULL: a's own, the world */
	uint8_t proto;	       /* of IP */
	uint16_t port;
	uint8_t flags; /* of TCP; type of ICMP */
	size_t more;   /* bytes after the tag */
	/* departures from what is proper */
	bool other_mac, vlan, route, b_mac;
	uint16_t ether; /* 0: IPv4 */
};

static uint32_t sum(uint32_t s, const void *data, size_t len)
{
	const uint8_t *p = data;

	for (size_t i = 0; i < len; i++)
		s += (uint32_t)p[i] << (i & 1 ? 0 : 8);
	return s;
}

static uint16_t fold(uint32_t s)
{
	while (s >> 16)
		s = (s & 0xffff) + (s >> 16);
	return htons((uint16_t)~s);
}

/* Header and payload of layer 4, with a checksum for these addresses. */
static size_t layer4(const struct packet *p, uint8_t *to, const uint8_t *src,
		     const uint8_t *dst, size_t w)
{
	const struct tag tag = {"dsec-tag", tags};
	size_t head = 0, len;
	uint32_t s;
	uint16_t *check = NULL;

	if (p->proto == IPPROTO_UDP) {
		struct udphdr *u = (void *)to;

		head = sizeof(*u);
		u->source = htons(4444);
		u->dest = htons(p->port);
		u->len = htons((uint16_t)(head + sizeof(tag) + p->more));
		check = &u->check;
	} else if (p->proto == IPPROTO_TCP) {
		struct tcphdr *t = (void *)to;

		head = sizeof(*t);
		t->source = htons(4444);
		t->dest = htons(p->port);
		t->seq = htonl(tags * 1000);
		t->doff = 5;
		((uint8_t *)t)[13] = p->flags;
		t->window = htons(1000);
		check = &t->check;
	} else if (p->proto == IPPROTO_ICMP) {
		head = 8;
		to[0] = p->flags;
		to[5] = 1; /* id */
		check = (uint16_t *)(void *)(to + 2);
	}
	memcpy(to + head, &tag, sizeof(tag));
	len = head + sizeof(tag) + p->more;
	if (check) {
		s = p->proto == IPPROTO_ICMP
			    ? 0
			    : sum(sum(p->proto + (uint32_t)len, src, w), dst,
				  w);
		*check = fold(sum(s, to, len));
	}
	return len;
}

static size_t layer2(const struct packet *p, uint8_t *to)
{
	uint8_t out[6] = {2, 0x64, 0, 0, 0, LAB_A}, in[6];
	const uint16_t ether = htons(p->ether ? p->ether : ETHERTYPE_IP);
	const uint16_t vlan[2] = {htons(ETHERTYPE_VLAN), htons(5)};
	size_t at = 12;

	transit_mac(LAB_A, in);
	if (p->other_mac)
		in[5] ^= 0x55;
	if (p->b_mac)
		transit_mac(LAB_B, in);
	memcpy(to, out, 6);
	memcpy(to + 6, in, 6);
	if (p->vlan) {
		memcpy(to + at, vlan, 4);
		at += 4;
	}
	memcpy(to + at, &ether, 2);
	return at + 2;
}

static void build4(const struct packet *p, struct frame *f)
{
	/* Loose source route by way of the node. */
	static const uint8_t route[8] = {131, 7, 4, 203, 0, 113, 1, 0};
	struct iphdr *ip;
	size_t at, head = sizeof(*ip) + (p->route ? sizeof(route) : 0), len;

	memset(f, 0, sizeof(*f));
	at = layer2(p, f->b);
	ip = (void *)(f->b + at);
	ip->version = 4;
	ip->ihl = (unsigned)head / 4 & 15;
	ip->ttl = 64;
	ip->id = htons((uint16_t)tags);
	ip->protocol = p->proto;
	lab_bytes(p->src ? p->src : "100.96.0.8", (void *)&ip->saddr);
	lab_bytes(p->dst ? p->dst : WORLD, (void *)&ip->daddr);
	if (p->route)
		memcpy(ip + 1, route, sizeof(route));
	len = layer4(p, f->b + at + head, (void *)&ip->saddr,
		     (void *)&ip->daddr, 4);
	ip->tot_len = htons((uint16_t)(head + len));
	ip->check = fold(sum(0, ip, head));
	f->len = at + head + len;
}

static void build6(const struct packet *p, struct frame *f)
{
	struct ip6_hdr *ip;
	size_t at, len;

	memset(f, 0, sizeof(*f));
	at = layer2(p, f->b);
	ip = (void *)(f->b + at);
	ip->ip6_vfc = 0x60;
	ip->ip6_nxt = p->proto;
	ip->ip6_hlim = 64;
	lab_bytes(p->src ? p->src : "2001:db8::8", (void *)&ip->ip6_src);
	lab_bytes(p->dst, (void *)&ip->ip6_dst);
	len = layer4(p, (uint8_t *)(ip + 1), (void *)&ip->ip6_src,
		     (void *)&ip->ip6_dst, 16);
	ip->ip6_plen = htons((uint16_t)len);
	f->len = at + sizeof(*ip) + len;
}

static void send_frame(const struct frame *f)
{
	if (send(lab.packets, f->b, f->len, 0) != (ssize_t)f->len)
		printf("# send: %s\n", strerror(errno));
}

/* Part of an IPv4 frame: its payload's bytes from ${from} to ${to}. */
static void send_part(const struct frame *f, size_t from, size_t to, bool last)
{
	struct frame part = {.len = 34 + to - from};
	struct iphdr *ip = (void *)(part.b + 14);

	memcpy(part.b, f->b, 34);
	memcpy(part.b + 34, f->b + 34 + from, to - from);
	ip->frag_off = htons((uint16_t)(from / 8 | (last ? 0 : IP_MF)));
	ip->tot_len = htons((uint16_t)(20 + to - from));
	ip->check = 0;
	ip->check = fold(sum(0, ip, 20));
	send_frame(&part);
}

/* Does the tag come out of ${fd}?  Reads until ${until} has or time is over. */
static bool seen(int fd, uint32_t n, uint32_t until, int ms)
{
	struct tag want = {"dsec-tag", n}, end = {"dsec-tag", until};
	static uint8_t buf[70000];
	bool found = false;
	ssize_t len;

	while (lab_wait(fd, POLLIN, ms)) {
		len = recv(fd, buf, sizeof(buf), 0);
		if (len > 0 && memmem(buf, (size_t)len, &want, sizeof(want)))
			found = true;
		if (len > 0 && memmem(buf, (size_t)len, &end, sizeof(end)))
			return found;
	}
	if (until)
		printf("# the allowed packet did not arrive\n");
	return until ? true : found;
}

static void sentinel(void)
{
	const struct packet p = {.proto = IPPROTO_UDP, .port = 5432};
	struct frame f;

	tags++;
	build4(&p, &f);
	send_frame(&f);
}

/* Whether what was sent with the current tag arrived anywhere. */
static bool arrived(void)
{
	const uint32_t n = tags;
	bool world;

	sentinel();
	world = seen(lab.capture, n, tags, 3000);
	return seen(capture_b, n, 0, 0) || world;
}

static char why[16];

static void note(void *arg, const struct route_denied *d)
{
	(void)arg;
	if (d->slot == LAB_A)
		memcpy(why, d->why, sizeof(why));
}

/* A refused packet is counted and told with a reason, once. */
static void refused(uint64_t before, const char *reason, const char *what)
{
	is_int((long long)(lab_denied(&lab, LAB_A) - before), reason ? 1 : 0,
	       what);
	why[0] = '\0';
	(void)route_log(lab.r, note, NULL, NULL);
	is_str(why, reason ? reason : "", "  the reason");
}

static void start(const char *policy)
{
	lab_helper(true);
	(void)route_del(lab.r, LAB_A, NULL);
	lab_helper(false);
	is_int(lab_put(&lab, LAB_A, policy), 1, policy);
	(void)seen(lab.capture, 0, 0, 0); /* what others left in it */
	(void)seen(capture_b, 0, 0, 0);
	(void)route_log(lab.r, note, NULL, NULL);
}

struct probe {
	const char *what;
	struct packet p;
	const char *why; /* NULL: it arrives; "": dropped before the rules */
};

static void probe(const struct probe *x)
{
	const uint64_t before = lab_denied(&lab, LAB_A);
	struct frame f;
	bool there;

	tags++;
	if (x->p.ether == ETHERTYPE_IPV6)
		build6(&x->p, &f);
	else
		build4(&x->p, &f);
	send_frame(&f);
	there = arrived();
	ok(there == !x->why, "%s %s", x->what,
	   x->why ? "is stopped" : "passes");
	if (x->why)
		refused(before, *x->why ? x->why : NULL, "  counted");
}

/* clang-format off */
static const struct probe plain[] = {
	{"UDP to the allowed port", {.proto = IPPROTO_UDP, .port = 5432}, NULL},
	{"TCP to the allowed port", {.proto = IPPROTO_TCP, .port = 5432,
	 .flags = TH_SYN}, NULL},
	{"an echo request", {.proto = IPPROTO_ICMP, .flags = ICMP_ECHO}, NULL},
	{"TCP to another port", {.proto = IPPROTO_TCP, .port = 22,
	 .flags = TH_SYN}, "policy"},
	{"UDP to another port", {.proto = IPPROTO_UDP, .port = 123}, "policy"},
	{"UDP to another address", {.proto = IPPROTO_UDP, .port = 5432,
	 .dst = "198.51.100.11"}, "policy"},
	{"an echo request to another address", {.proto = IPPROTO_ICMP,
	 .flags = ICMP_ECHO, .dst = "198.51.100.11"}, "policy"},
	{"a timestamp request", {.proto = IPPROTO_ICMP,
	 .flags = ICMP_TIMESTAMP}, "policy"},
	{"an ICMP redirect", {.proto = IPPROTO_ICMP, .flags = ICMP_REDIRECT},
	 "stray"},
	{"an echo reply that nobody asked for", {.proto = IPPROTO_ICMP,
	 .flags = ICMP_ECHOREPLY}, "stray"},
	{"the neighbour's address", {.proto = IPPROTO_UDP, .port = 5432,
	 .src = "100.96.0.9"}, "spoof"},
	{"the neighbour's address and MAC", {.proto = IPPROTO_UDP,
	 .port = 5432, .src = "100.96.0.9", .b_mac = true}, "spoof"},
	{"a foreign address", {.proto = IPPROTO_UDP, .port = 5432,
	 .src = "203.0.113.10"}, "spoof"},
	{"the stable address", {.proto = IPPROTO_UDP, .port = 5432,
	 .src = "198.18.0.2"}, "spoof"},
	{"the gateway's address", {.proto = IPPROTO_UDP, .port = 5432,
	 .src = "198.18.0.1"}, "spoof"},
	{"no address", {.proto = IPPROTO_UDP, .port = 67, .src = "0.0.0.0",
	 .dst = "255.255.255.255"}, "spoof"},
	{"another MAC", {.proto = IPPROTO_UDP, .port = 5432,
	 .other_mac = true}, "spoof"},
	{"GRE", {.proto = 47}, "proto"},
	{"SCTP", {.proto = 132}, "proto"},
	{"IPIP", {.proto = 4}, "proto"},
	{"IPv6 in IPv4", {.proto = 41}, "proto"},
	{"ESP", {.proto = 50}, "proto"},
	{"UDP-Lite", {.proto = 136}, "proto"},
	{"IGMP", {.proto = 2}, "proto"},
	{"a stray ACK", {.proto = IPPROTO_TCP, .port = 5432,
	 .flags = TH_ACK}, "stray"},
	{"a stray RST", {.proto = IPPROTO_TCP, .port = 5432,
	 .flags = TH_RST}, "stray"},
	{"SYN and FIN", {.proto = IPPROTO_TCP, .port = 5432,
	 .flags = TH_SYN | TH_FIN}, "stray"},
	{"no flags", {.proto = IPPROTO_TCP, .port = 5432}, "stray"},
	{"a VLAN tag", {.proto = IPPROTO_UDP, .port = 5432, .vlan = true}, ""},
	{"a source route", {.proto = IPPROTO_UDP, .port = 5432,
	 .route = true}, "option"},
	{"IPv6", {.proto = IPPROTO_UDP, .port = 5432, .dst = "2001:db8:1::10",
	 .ether = ETHERTYPE_IPV6}, "spoof"},
	{"IPv6 from a link-local address", {.proto = IPPROTO_UDP,
	 .port = 5432, .src = "fe80::1", .dst = "2001:db8:1::10",
	 .ether = ETHERTYPE_IPV6}, "spoof"},
	{"a mapped address", {.proto = IPPROTO_UDP, .port = 5432,
	 .dst = "::ffff:198.51.100.10", .ether = ETHERTYPE_IPV6}, "spoof"},
	{"NAT64", {.proto = IPPROTO_UDP, .port = 5432,
	 .dst = "64:ff9b::198.51.100.10", .ether = ETHERTYPE_IPV6}, "spoof"},
	{"ARP", {.ether = ETHERTYPE_ARP}, ""},
};

/* What no policy opens: this one allows everything. */
static const struct probe always[] = {
	{"anything", {.proto = IPPROTO_TCP, .port = 1, .flags = TH_SYN,
	 .dst = "198.51.100.11"}, NULL},
	{"the metadata service", {.proto = IPPROTO_TCP, .port = 80,
	 .flags = TH_SYN, .dst = "169.254.169.254"}, "private"},
	{"10/8", {.proto = IPPROTO_UDP, .port = 9, .dst = "10.0.0.1"},
	 "private"},
	{"172.16/12", {.proto = IPPROTO_UDP, .port = 9, .dst = "172.31.0.1"},
	 "private"},
	{"192.168/16", {.proto = IPPROTO_UDP, .port = 9,
	 .dst = "192.168.1.1"}, "private"},
	{"100.64/10", {.proto = IPPROTO_UDP, .port = 9, .dst = "100.64.0.1"},
	 "private"},
	{"127/8", {.proto = IPPROTO_UDP, .port = 9, .dst = "127.0.0.1"},
	 "private"},
	{"0/8", {.proto = IPPROTO_UDP, .port = 9, .dst = "0.0.0.1"},
	 "private"},
	{"multicast", {.proto = IPPROTO_UDP, .port = 9, .dst = "224.0.0.1"},
	 "private"},
	{"240/4", {.proto = IPPROTO_UDP, .port = 9, .dst = "240.0.0.1"},
	 "private"},
	{"broadcast", {.proto = IPPROTO_UDP, .port = 9,
	 .dst = "255.255.255.255"}, "private"},
	{"198.18/15", {.proto = IPPROTO_UDP, .port = 9, .dst = "198.19.0.1"},
	 "private"},
	{"the node", {.proto = IPPROTO_TCP, .port = 22, .flags = TH_SYN,
	 .dst = "203.0.113.1"}, "private"},
	{"the node's end of the uplink", {.proto = IPPROTO_TCP, .port = 22,
	 .flags = TH_SYN, .dst = "100.127.255.1"}, "private"},
	{"the transit's end of the uplink", {.proto = IPPROTO_TCP, .port = 22,
	 .flags = TH_SYN, .dst = "100.127.255.2"}, "input"},
	{"a port of the gateway", {.proto = IPPROTO_TCP, .port = 22,
	 .flags = TH_SYN, .dst = "198.18.0.1"}, "input"},
	{"the proxy's own port", {.proto = IPPROTO_TCP, .port = 443,
	 .flags = TH_SYN, .dst = "198.18.0.1"}, "input"},
	{"an echo request to the gateway", {.proto = IPPROTO_ICMP,
	 .flags = ICMP_ECHO, .dst = "198.18.0.1"}, "input"},
	{"the neighbour", {.proto = IPPROTO_UDP, .port = 5432,
	 .dst = "100.96.0.9"}, "neighbour"},
	{"the neighbour's ping", {.proto = IPPROTO_ICMP, .flags = ICMP_ECHO,
	 .dst = "100.96.0.9"}, "neighbour"},
	{"itself", {.proto = IPPROTO_UDP, .port = 5432, .dst = "100.96.0.8"},
	 "neighbour"},
	{"the pool where nobody is", {.proto = IPPROTO_UDP, .port = 5432,
	 .dst = "100.96.200.1"}, "private"},
};
/* clang-format on */

static void fragments(void)
{
	struct packet p = {.proto = IPPROTO_UDP, .port = 5432, .more = 2000};
	uint64_t before = lab_denied(&lab, LAB_A);
	struct frame f;

	tags++;
	build4(&p, &f);
	send_part(&f, 0, 1000, false);
	send_part(&f, 1000, f.len - 34, true);
	ok(arrived(), "fragments of an allowed datagram pass");
	is_int((long long)(lab_denied(&lab, LAB_A) - before), 0, "  both");

	tags++;
	build4(&p, &f);
	send_part(&f, 1000, f.len - 34, true);
	send_part(&f, 0, 1000, false);
	ok(arrived(), "in any order");

	p.port = 22;
	tags++;
	build4(&p, &f);
	send_part(&f, 0, 1000, false);
	send_part(&f, 1000, f.len - 34, true);
	ok(!arrived(), "fragments of another are stopped");
	refused(before, "policy", "  counted as one");

	tags++;
	p.port = 5432;
	p.more = 200;
	build4(&p, &f);
	send_part(&f, 0, 8, false); /* the ports alone */
	send_part(&f, 8, f.len - 34, true);
	ok(arrived(), "a tiny first fragment is put together");

	tags++;
	p.more = 20;
	build4(&p, &f);
	send_part(&f, 8, f.len - 34, true);
	ok(!arrived(), "a fragment alone is stopped");

	/* Allowed at first, then over it: another port. */
	tags++;
	build4(&p, &f);
	send_part(&f, 0, 24, false);
	p.port = 22;
	build4(&p, &f);
	send_part(&f, 0, 16, false);
	send_part(&f, 16, f.len - 34, true);
	ok(!arrived(), "fragments that overlap are stopped");

	/* In the name of the neighbour, for its datagrams. */
	before = lab_denied(&lab, LAB_A);
	tags++;
	p.src = "100.96.0.9";
	p.port = 5432;
	build4(&p, &f);
	send_part(&f, 8, f.len - 34, true);
	ok(!arrived(), "a fragment in another's name is stopped");
	refused(before, "spoof", "  before it is kept");
}

/* An ICMP error of a's about a flow of b's. */
static void meddling(void)
{
	const struct sockaddr_in to = lab_to(WORLD, 5432);
	struct packet p = {.proto = IPPROTO_ICMP,
			   .flags = ICMP_DEST_UNREACH,
			   .more = 60};
	struct packet about = {.proto = IPPROTO_UDP,
			       .src = WORLD,
			       .dst = "100.96.0.9",
			       .port = 5555};
	struct sockaddr_in own = lab_to("0.0.0.0", 5555), from;
	socklen_t len = sizeof(from);
	int srv = lab_server(&lab, SOCK_DGRAM, WORLD, 5432);
	int cli = netns_socket(lab.b, AF_INET, SOCK_DGRAM, 0, NULL);
	struct frame f, inner;
	uint8_t *icmp;
	char c = 'x';

	ok(!bind(cli, (void *)&own, sizeof(own)) &&
		   !connect(cli, (const void *)&to, sizeof(to)) &&
		   send(cli, &c, 1, 0) == 1 && lab_wait(srv, POLLIN, 3000) &&
		   recvfrom(srv, &c, 1, 0, (void *)&from, &len) == 1 &&
		   sendto(srv, &c, 1, 0, (void *)&from, len) == 1 &&
		   lab_wait(cli, POLLIN, 3000) && recv(cli, &c, 1, 0) == 1,
	   "a flow of the neighbour's");
	tags++;
	build4(&about, &inner);
	build4(&p, &f);
	icmp = f.b + 34;
	icmp[1] = ICMP_PORT_UNREACH;
	icmp[5] = 0;
	/* Header and ports of what it is about, then the tag. */
	memmove(icmp + 8 + 28, icmp + 8, sizeof(struct tag));
	memcpy(icmp + 8, inner.b + 14, 28);
	((uint16_t *)(void *)(icmp + 8 + 20))[0] = htons(5432);
	memset(icmp + 2, 0, 2);
	*(uint16_t *)(void *)(icmp + 2) = fold(sum(0, icmp, f.len - 34));
	send_frame(&f);
	ok(!arrived(), "an error about it by another is stopped");
	ok(send(cli, &c, 1, 0) == 1 && lab_wait(srv, POLLIN, 3000),
	   "it goes on");
	fd_close(srv);
	fd_close(cli);
}

/* Large datagrams, which are fragments on the way, in both directions. */
static void large(void)
{
	static const size_t sizes[] = {1400, 1500, 8000, 65507};
	static char out[65536], in[65536];
	const struct sockaddr_in to = lab_to(WORLD, 5432);
	int srv = lab_server(&lab, SOCK_DGRAM, WORLD, 5432);
	int cli = netns_socket(lab.a, AF_INET, SOCK_DGRAM, 0, NULL);
	struct sockaddr_in from;
	socklen_t len;
	bool back;

	memset(out, 'x', sizeof(out));
	ok(!connect(cli, (const void *)&to, sizeof(to)), "a client");
	for (size_t i = 0; i < array_len(sizes); i++) {
		len = sizeof(from);
		back = send(cli, out, sizes[i], 0) == (ssize_t)sizes[i] &&
		       lab_wait(srv, POLLIN, 3000) &&
		       recvfrom(srv, in, sizeof(in), 0, (void *)&from, &len) ==
			       (ssize_t)sizes[i] &&
		       sendto(srv, in, sizes[i], 0, (void *)&from, len) ==
			       (ssize_t)sizes[i] &&
		       lab_wait(cli, POLLIN, 3000) &&
		       recv(cli, in, sizeof(in), 0) == (ssize_t)sizes[i];
		ok(back, "%zu bytes echoed", sizes[i]);
	}
	fd_close(srv);
	fd_close(cli);
}

/* From outside: to a sandbox, as a sandbox, as the gateway. */
static void outside(void)
{
	const struct sockaddr_in to = lab_to("100.96.0.8", 5432);
	auto_rtnl struct rtnl nl = {.fd = -1};
	struct rtnl_route pool = {.family = AF_INET,
				  .prefix = 16,
				  .has_gateway = true};
	int fd = netns_socket(lab.world, AF_INET, SOCK_DGRAM, 0, NULL);
	struct tag tag = {"dsec-tag", ++tags};

	if (rtnl_open(lab.world, &nl, NULL) < 0)
		abort();
	pool.index = rtnl_index(&nl, "lan0", NULL);
	lab_bytes("100.96.0.0", pool.dst);
	lab_bytes("203.0.113.1", pool.gateway);
	is_int(rtnl_route_add(&nl, &pool, NULL), 0, "a route to the pool");
	ok(sendto(fd, &tag, sizeof(tag), 0, (const void *)&to, sizeof(to)) ==
		   sizeof(tag),
	   "a datagram that nobody asked for");
	ok(!seen(lab.capture_a, tags, 0, 200), "does not get in");
	fd_close(fd);
}

int main(void)
{
	if (!lab_new(&lab))
		return tap_done();
	capture_b = lab_packets(lab.b, "eth0", true);
	lab_put(&lab, LAB_B, "{\"default\":\"allow\"}");
	start(POLICY);
	for (size_t i = 0; i < array_len(plain); i++)
		probe(&plain[i]);
	start(POLICY);
	fragments();
	meddling();
	large();
	outside();
	start("{\"default\":\"allow\"}");
	for (size_t i = 0; i < array_len(always); i++)
		probe(&always[i]);
	fd_close(capture_b);
	lab_done(&lab);
	return tap_done();
}
