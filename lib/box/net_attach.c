/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/net.h"
#include "box/net_priv.h"
#include "box/spec.h"
#include "net/conf.h"
#include "net/helper.h"
#include "net/transit.h"
#include "sys/netns.h"
#include "sys/rtnl.h"

#define BACKLOG	 512
#define DNS_PORT 53
#define LO	 1 /* the first interface of every namespace */
#define FILE_MAX 24

/* So many links whose namespaces live on may be lying about, at most. */
#define SWEEP_EVERY 64
#define SWEEP_SPARE 16

/* Every port of the policy in force and of those it may be switched to. */
static int ports_of(struct net *n, struct err *e)
{
	const json_t *phases = json_object_get(n->spec, "policies");
	struct netpol *p[NET_POLICIES_MAX];
	size_t np = 0;
	const char *key;
	json_t *v;
	int r;

	r = netpol_load(json_object_get(json_object_get(n->spec, "policy"),
					"compiled"),
			&p[np], e);
	if (r == 0) {
		n->mbit = netpol_limits(p[0])->bandwidth_mbit;
		np++;
	}
	json_object_foreach((json_t *)(uintptr_t)phases, key, v) {
		if (r < 0 || np == NET_POLICIES_MAX)
			break;
		r = netpol_load(json_object_get(v, "compiled"), &p[np], e);
		np += r == 0;
	}
	if (r == 0 && n->strength == NETPOL_NAMES) {
		r = netpol_listen((const struct netpol *const *)p, np, n->port);
		n->nports = r < 0 ? 0 : (size_t)r;
		if (r < 0)
			err_set(e, r, "unsupported",
				"its policies have over %d ports",
				NETPOL_LISTEN_MAX);
	}
	while (np > 0)
		netpol_free(p[--np]);
	return r < 0 ? err_wrap(e, r, "network policy") : 0;
}

bool net_has_port(const json_t *spec, uint16_t port)
{
	struct net n = {.spec = spec, .strength = net_strength(spec)};

	if (n.strength != NETPOL_NAMES || ports_of(&n, NULL) < 0)
		return false;
	for (size_t i = 0; i < n.nports; i++)
		if (n.port[i] == port)
			return true;
	return false;
}

static int open_file(const struct net *n, const char *name, int flags, int *ret,
		     struct err *e)
{
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb/%s/%s", n->tree->lib, n->id, name);
	if (r < 0)
		return r;
	*ret = open(path, flags | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
		    0600);
	return *ret < 0 ? err_sys(e, errno, "open '%s'", path) : 0;
}

static int no_uplink(struct err *e)
{
	return err_set(e, -ENETUNREACH, "configuration",
		       "the policy needs a link to outside, and this node has "
		       "none for sandboxes: dsec-net --uplink up");
}

static int check_uplink(struct net *n, struct err *e)
{
	auto_rtnl struct rtnl nl = {.fd = -1};
	int r;

	r = rtnl_open(n->transit, &nl, e);
	if (r < 0)
		return r;
	n->transit_cookie = netns_cookie(nl.fd);
	r = rtnl_index(&nl, TRANSIT_UPLINK, NULL);
	return r < 0 ? no_uplink(e) : 0;
}

static int begin_routed(struct net *n, struct err *e)
{
	auto_netconf struct netconf conf = {0};
	uint8_t mac[6];
	struct in_addr a;
	uint32_t pool;
	int r;

	n->slot = (uint32_t)json_int(n->spec, "slot", 0);
	r = netconf_load(n->tree->config, &conf, e);
	if (r < 0)
		return r;
	memcpy(&pool, conf.pool.addr.b, sizeof(pool));
	r = transit_address(ntohl(pool), conf.pool.bits, n->slot, &n->address,
			    e);
	if (r < 0)
		return r;
	a.s_addr = htonl(n->address);
	inet_ntop(AF_INET, &a, n->address_text, sizeof(n->address_text));
	transit_name(n->slot, n->iface);
	transit_mac(n->slot, mac);
	snprintf(n->mac_text, sizeof(n->mac_text),
		 "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2],
		 mac[3], mac[4], mac[5]);
	n->transit = transit_open(n->tree->run, e);
	if (n->transit == -ENOENT)
		return no_uplink(e);
	if (n->transit < 0)
		return n->transit;
	/* Slots come in turn: every so often somebody tidies up. */
	if (!n->keep && n->slot % SWEEP_EVERY == 0)
		net_sweep(n->tree, n->transit, SWEEP_SPARE);
	return check_uplink(n, e);
}

static void init(struct net *n)
{
	*n = (struct net){
		.tree = n->tree,
		.id = n->id,
		.spec = n->spec,
		.follow = n->follow,
		.strength = net_strength(n->spec),
		.udp53 = -1,
		.tcp53 = -1,
		.denied = -1,
		.names = -1,
		.transit = -1,
		.lock = -1,
		.follow_lock = -1,
	};
	for (size_t i = 0; i < NETPOL_LISTEN_MAX; i++)
		n->tcp[i] = -1;
}

static int reach_helper(struct net *n, struct err *e)
{
	int r = helper_open(n->tree->run, 0, &n->helper, e);

	if (r != -ECONNREFUSED)
		return r;
	r = helper_open(n->tree->run, HELPER_START, &n->helper, e);
	n->started |= r == 0;
	return r;
}

/* --- the request ---------------------------------------------------------- */

/* ${ports} and ${tcp} have room for all that it may name. */
static void describe(const struct net *n, struct helper_attach *a,
		     uint16_t *ports, int *tcp)
{
	const json_t *policy = json_object_get(n->spec, "policy");

	*a = (struct helper_attach){
		.sandbox = n->id,
		.strength = n->strength,
		.policy = json_object_get(policy, "compiled"),
		.hash = json_str(policy, "hash"),
		.denied = n->denied,
		.names = n->names,
		.udp53 = n->udp53,
		.tcp53 = n->tcp53,
		.ports = ports,
		.tcp = tcp,
		.netns = n->netns,
		.fresh = !n->keep,
	};
	for (size_t i = 0; i < n->nports; i++)
		if (n->tcp[i] >= 0) {
			ports[a->nports] = n->port[i];
			tcp[a->nports++] = n->tcp[i];
		}
	if (n->strength == NETPOL_ROUTED) {
		a->address = n->address_text;
		a->iface = n->iface;
		a->mac = n->mac_text;
		a->transit = n->transit_cookie;
	}
}

static int send_all(struct net *n, struct err *e)
{
	uint16_t ports[NETPOL_LISTEN_MAX];
	int tcp[NETPOL_LISTEN_MAX];
	struct helper_attach a;

	describe(n, &a, ports, tcp);
	return helper_send_attach(n->helper, &a, e);
}

/* The request for sockets that there will be. */
static int write_request(struct net *n, struct err *e)
{
	struct net will = *n;
	uint16_t ports[NETPOL_LISTEN_MAX];
	int tcp[NETPOL_LISTEN_MAX];
	struct helper_attach a;

	will.udp53 = will.tcp53 = 0;
	for (size_t i = 0; i < n->nports; i++)
		will.tcp[i] = 0;
	describe(&will, &a, ports, tcp);
	return helper_write_attach(n->helper, &a, e);
}

/* As net_inside(): by the child, within its namespace. */
static int post_request(struct net *n)
{
	int fds[HELPER_FDS_MAX] = {n->udp53, n->tcp53, n->denied, n->names};
	struct stat st;

	if (stat("/proc/self/ns/net", &st) < 0)
		return -errno;
	n->netns = st.st_ino;
	memcpy(fds + 4, n->tcp, n->nports * sizeof(int));
	return helper_post_attach(n->helper, n->netns, fds, 4 + n->nports);
}

/* --- the policy of another ----------------------------------------------- */

/* What a change of policy writes: 1 if ${to} had another. */
static int take_policy(json_t *to, const json_t *from, struct err *e)
{
	static const char *const keys[] = {"network_rules", "phase", "policy"};
	int changed = 0, r = 0;
	json_t *v;

	for (size_t i = 0; i < array_len(keys); i++) {
		v = json_object_get(from, keys[i]);
		if (v ? json_equal(v, json_object_get(to, keys[i]))
		      : !json_object_get(to, keys[i]))
			continue;
		changed = 1;
		r |= v ? json_object_set(to, keys[i], v)
		       : json_object_del(to, keys[i]);
	}
	return r < 0 ? err_sys(e, ENOMEM, "policy") : changed;
}

/* 1: ${n}->spec has another policy than before. */
static int read_policy(struct net *n, struct err *e)
{
	auto_json json_t *source = NULL, *own = NULL;
	int r;

	r = spec_read(n->tree, n->follow, &source, e);
	if (r == -ENOENT) /* it is gone, and nobody changes its policy */
		return 0;
	if (r < 0)
		return r;
	own = json_copy((json_t *)(uintptr_t)n->spec);
	if (!own)
		return err_sys(e, ENOMEM, "policy");
	r = take_policy(own, source, e);
	if (r <= 0)
		return r;
	r = spec_write(n->tree, n->id, own, e);
	if (r < 0)
		return r;
	json_decref(n->own);
	n->spec = n->own = steal_ptr(own);
	return 1;
}

static int begin(struct net *n, struct err *e)
{
	int r;

	if (n->strength == NETPOL_NONE)
		return 0;
	r = n->follow ? read_policy(n, e) : 0;
	if (r >= 0)
		r = ports_of(n, e);
	if (r == 0)
		r = reach_helper(n, e);
	if (r == 0 && n->strength == NETPOL_ROUTED)
		r = begin_routed(n, e);
	if (r == 0)
		r = open_file(n, "denied.jsonl", O_WRONLY, &n->denied, e);
	if (r == 0)
		r = open_file(n, "names", O_RDWR, &n->names, e);
	return r;
}

int net_begin(struct net *n, struct err *e)
{
	int r;

	init(n);
	r = begin(n, e);
	/* Where nothing will be known later that is not known now. */
	if (r == 0 && n->strength == NETPOL_NAMES && !n->follow) {
		r = net_lock(n->tree, n->id, &n->lock, e);
		if (r == 0)
			r = write_request(n, e);
		n->early = r == 0;
	}
	return r < 0 ? err_wrap(e, r, "the sandbox's network") : 0;
}

/* --- inside -------------------------------------------------------------- */

static int fail(struct net *n, const char *what, int r)
{
	n->what = what;
	return r;
}

static int bound(int type, uint32_t addr, unsigned port)
{
	const struct sockaddr_in a = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(addr),
		.sin_port = htons((uint16_t)port),
	};
	int fd, on = 1, err;

	fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (type == SOCK_STREAM)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, (const struct sockaddr *)&a, sizeof(a)) < 0 ||
	    (type == SOCK_STREAM && listen(fd, BACKLOG) < 0)) {
		err = errno;
		close(fd);
		return -err;
	}
	return fd;
}

/* Every address that a name can have is the sandbox's own; it speaks from the
 * one it keeps. */
int net_addresses(enum netpol_strength strength)
{
	auto_rtnl struct rtnl nl = {.fd = -1};
	struct rtnl_addr a = {
		.family = AF_INET,
		.addr = {198, 18, 0, 2},
		.prefix = 32,
		.index = LO,
		.host = true,
	};
	struct rtnl_route all = {
		.family = AF_INET,
		.kind = RTNL_LOCAL,
		.dst = {198, 18, 0, 0},
		.prefix = 15,
		.index = LO,
		.has_src = true,
		.src = {198, 18, 0, 2},
	};
	int r;

	r = rtnl_open(-1, &nl, NULL);
	if (r == 0)
		r = rtnl_addr_add(&nl, &a, NULL);
	if (r == 0 && strength == NETPOL_NAMES)
		r = rtnl_route_add(&nl, &all, NULL);
	return r;
}

static int listen_on(struct net *n, size_t i)
{
	int fd;

	if (n->tcp[i] != -1)
		return 0;
	fd = bound(SOCK_STREAM, INADDR_ANY, n->port[i]);
	if (fd == -EADDRINUSE && n->keep)
		return 0;
	n->tcp[i] = fd < 0 ? -1 : fd;
	return fd < 0 ? fail(n, "listen on a port of the policy", fd) : 0;
}

int net_inside(struct net *n)
{
	int r;

	/* transit_attach() sees to the rest. */
	if (n->strength != NETPOL_NAMES)
		return 0;
	r = net_addresses(n->strength);
	if (r < 0)
		return fail(n, "set addresses for the network", r);
	if (n->udp53 == -1)
		n->udp53 = bound(SOCK_DGRAM, TRANSIT_GATEWAY, 53);
	if (n->tcp53 == -1)
		n->tcp53 = bound(SOCK_STREAM, TRANSIT_GATEWAY, 53);
	if (n->udp53 < 0 || n->tcp53 < 0) {
		r = n->udp53 < 0 ? n->udp53 : n->tcp53;
		if (r != -EADDRINUSE || !n->keep)
			return fail(n, "listen for DNS", r);
	}
	r = 0;
	for (size_t i = 0; r == 0 && i < n->nports; i++)
		r = listen_on(n, i);
	/* The helper works while the rest is made; a failure is seen to by
	 * net_send(). */
	if (r == 0 && n->early)
		n->posted = post_request(n) == 0;
	return r;
}

static int enter_and_make(struct net *n, pid_t pid, struct err *e)
{
	auto_close int inside = -1;
	auto_netns int back = -1;
	int r;

	inside = netns_of(pid, e);
	if (inside < 0)
		return inside;
	r = netns_enter(inside, &back, e);
	if (r < 0)
		return r;
	r = net_inside(n);
	return r < 0 ? err_sys(e, -r, "%s", n->what) : 0;
}

/* --- to the helper ------------------------------------------------------- */

/* Whoever takes it away, whatever of it there was time to make, reads this. */
static int write_down(struct net *n, pid_t pid, struct err *e)
{
	auto_json json_t *j = NULL;
	auto_close int dir = -1;
	char path[PATH_MAX];
	struct stat st;
	int r;

	snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)pid);
	if (stat(path, &st) < 0)
		return err_sys(e, errno, "the network namespace of pid %d",
			       (int)pid);
	n->netns = st.st_ino;
	r = json_pack_or(&j, e, "{s:s, s:I, s:I, s:I}", "strength",
			 netpol_strength_word(n->strength), "slot",
			 (json_int_t)n->slot, "pid", (json_int_t)pid, "netns",
			 (json_int_t)st.st_ino);
	if (r == 0 && n->strength == NETPOL_ROUTED &&
	    json_object_set_new(j, "address", json_string(n->address_text)) < 0)
		r = err_sys(e, ENOMEM, "network");
	if (r == 0)
		r = tree_path(path, e, "%s/sb/%s", n->tree->run, n->id);
	if (r < 0)
		return r;
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", path);
	return json_write_file(dir, NET_FILE, j, 0, e);
}

static int make_link(const struct net *n, pid_t pid, struct err *e)
{
	const struct transit_link link = {
		.slot = n->slot,
		.address = n->address,
		.mbit = n->mbit,
	};
	auto_close int inside = -1;
	int r;

	inside = netns_of(pid, e);
	if (inside < 0)
		return inside;
	r = transit_attach(n->transit, inside, &link, e);
	if (r != -EEXIST)
		return r;
	/* In a small pool, the address of one that has ended. */
	net_sweep(n->tree, n->transit, 0);
	return transit_attach(n->transit, inside, &link, e);
}

/* Sockets for ports that were not among them; those of the others go. */
static int renew_ports(struct net *n, pid_t pid, struct err *e)
{
	const struct net was = *n;
	int r;

	n->nports = 0;
	for (size_t i = 0; i < was.nports; i++)
		n->tcp[i] = -1;
	r = ports_of(n, e);
	for (size_t i = 0; i < was.nports; i++) {
		size_t k = 0;

		while (k < n->nports && n->port[k] != was.port[i])
			k++;
		if (k < n->nports)
			n->tcp[k] = was.tcp[i];
		else if (was.tcp[i] >= 0)
			fd_close(was.tcp[i]);
	}
	return r < 0 || n->strength != NETPOL_NAMES ? r
						    : enter_and_make(n, pid, e);
}

/* From here to the end ${n}->follow keeps the policy that it has. */
static int hold_policy(struct net *n, pid_t pid, struct err *e)
{
	int r;

	r = net_lock_shared(n->tree, n->follow, &n->follow_lock, e);
	if (r < 0 && r != -ENOENT)
		return r;
	r = read_policy(n, e);
	return r <= 0 ? r : renew_ports(n, pid, e);
}

/* It may have died since we found it there; what it was sent is still ours. */
static int send_again(struct net *n, struct err *e)
{
	int r;

	helper_free(steal_ptr(n->helper));
	r = reach_helper(n, e);
	return r < 0 ? r : send_all(n, e);
}

int net_send(struct net *n, pid_t pid, struct err *e)
{
	int r;

	if (n->strength == NETPOL_NONE)
		return 0;
	/* Until it is done it is nobody else's to mend. */
	r = n->keep || n->early ? 0 : net_lock(n->tree, n->id, &n->lock, e);
	if (r == 0 && n->follow)
		r = hold_policy(n, pid, e);
	if (r == 0)
		r = write_down(n, pid, e);
	if (r == 0 && n->strength == NETPOL_ROUTED)
		r = make_link(n, pid, e);
	if (r == 0 && n->early && !n->posted)
		r = send_again(n, e);
	else if (r == 0 && !n->early)
		r = send_all(n, e);
	return r < 0 ? err_wrap(e, r, "the sandbox's network") : 0;
}

static int once_more(struct net *n, struct err *e)
{
	int r = send_again(n, e);

	return r < 0 ? r : helper_answer(n->helper, NULL, e);
}

static int give_transit(struct net *n, struct err *e)
{
	int r = helper_transit(n->helper, n->transit, e);

	if (r == 0)
		r = send_all(n, e);
	return r < 0 ? r : helper_answer(n->helper, NULL, e);
}

int net_finish(struct net *n, struct err *e)
{
	int r;

	if (n->strength == NETPOL_NONE)
		return 0;
	r = helper_answer(n->helper, NULL, e);
	if (r == -EPIPE || r == -ECONNRESET)
		r = once_more(n, e);
	if (r == -ESTALE)
		r = give_transit(n, e);
	return r < 0 ? err_wrap(e, r, "the sandbox's network") : 0;
}

void net_done(struct net *n)
{
	int *fds[] = {&n->udp53,   &n->tcp53, &n->denied,     &n->names,
		      &n->transit, &n->lock,  &n->follow_lock};

	if (n->strength == NETPOL_NONE)
		return;
	for (size_t i = 0; i < array_len(fds); i++)
		if (*fds[i] >= 0)
			fd_close(steal_fd(fds[i]));
	for (size_t i = 0; i < n->nports; i++)
		if (n->tcp[i] >= 0)
			fd_close(steal_fd(&n->tcp[i]));
	helper_free(steal_ptr(n->helper));
	json_decref(steal_ptr(n->own));
	/* Not before: it takes everybody's lock. */
	if (n->started && !n->keep)
		(void)net_mend(n->tree, NULL, NULL);
}

/* --- for one that lives -------------------------------------------------- */

static bool is_among(uint16_t port, const uint16_t *ports, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (ports[i] == port)
			return true;
	return false;
}

/* Not those that the helper has. */
static int leave_out(struct net *n, struct err *e)
{
	uint16_t has[HELPER_PORTS_MAX];
	size_t nhas = 0;
	int r;

	r = helper_ports(n->helper, n->id, has, &nhas, e);
	if (r == -ENOENT)
		return 0;
	for (size_t i = 0; r == 0 && i < n->nports; i++)
		if (is_among(n->port[i], has, nhas))
			n->tcp[i] = NET_HAS;
	return r;
}

int net_unserved(struct helper *h, const char *id, const json_t *spec,
		 uint16_t *ret, size_t *ret_n, struct err *e)
{
	struct net n = {
		.id = id,
		.spec = spec,
		.strength = net_strength(spec),
		.helper = h,
	};
	uint16_t has[HELPER_PORTS_MAX];
	size_t nhas = 0;
	int r;

	*ret_n = 0;
	if (n.strength != NETPOL_NAMES)
		return 0;
	r = ports_of(&n, e);
	if (r == 0)
		r = helper_ports(h, id, has, &nhas, e);
	if (r < 0)
		return r;
	if (!is_among(DNS_PORT, has, nhas))
		ret[(*ret_n)++] = DNS_PORT;
	for (size_t i = 0; i < n.nports; i++)
		if (!is_among(n.port[i], has, nhas))
			ret[(*ret_n)++] = n.port[i];
	return 0;
}

static int put(struct net *n, pid_t pid, struct err *e)
{
	int r = begin(n, e);

	if (r < 0)
		err_wrap(e, r, "the sandbox's network");
	if (r == 0 && n->keep && n->strength != NETPOL_NONE)
		r = leave_out(n, e);
	if (r == 0 && n->strength == NETPOL_NAMES)
		r = enter_and_make(n, pid, e);
	if (r == 0)
		r = net_send(n, pid, e);
	if (r == 0)
		r = net_finish(n, e);
	net_done(n);
	return r;
}

int net_attach(const struct tree *t, const char *id, pid_t pid,
	       const json_t *spec, struct err *e)
{
	struct net n = {.tree = t, .id = id, .spec = spec};

	init(&n);
	n.keep = true;
	return put(&n, pid, e);
}

int net_put(struct net *n, pid_t pid, struct err *e)
{
	init(n);
	return put(n, pid, e);
}
