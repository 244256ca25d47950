/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "serve_worker.h"

static size_t hash_of(const char *id)
{
	uint32_t h = 2166136261u;

	for (; *id; id++)
		h = (h ^ (unsigned char)*id) * 16777619u;
	return h % SBOX_BUCKETS;
}

struct sbox *sbox_find(struct worker *w, const char *id)
{
	struct sbox *b = w->by_id[hash_of(id)];

	while (b && strcmp(b->id, id))
		b = b->next;
	return b;
}

struct sbox *sbox_of_address(struct worker *w, struct in_addr addr)
{
	uint32_t host = ntohl(addr.s_addr);
	struct sbox *b = w->by_address[host % SBOX_BUCKETS];

	while (b && b->route.address != host)
		b = b->next_address;
	return b;
}

struct sbox *sbox_of_slot(struct worker *w, uint32_t slot)
{
	struct sbox *b = w->by_slot[slot % SBOX_BUCKETS];

	while (b && b->route.slot != slot)
		b = b->next_slot;
	return b;
}

static void drop_port(struct sbox *b, size_t i)
{
	proxy_port_free(b->ports[i].serves);
	fd_close(b->ports[i].fd);
	b->ports[i] = b->ports[--b->nports];
}

static void drop_dns(struct sbox *b)
{
	forwarder_port_free(b->dns);
	b->dns = NULL;
	if (b->udp53 >= 0)
		fd_close(b->udp53);
	if (b->tcp53 >= 0)
		fd_close(b->tcp53);
	b->udp53 = b->tcp53 = -1;
}

/* The lists that it is in. */
static void link_in(struct sbox *b)
{
	struct worker *w = b->worker;
	struct sbox **at = &w->by_id[hash_of(b->id)];

	b->next = *at;
	*at = b;
	if (b->strength != NETPOL_ROUTED)
		return;
	at = &w->by_address[b->route.address % SBOX_BUCKETS];
	b->next_address = *at;
	*at = b;
	at = &w->by_slot[b->route.slot % SBOX_BUCKETS];
	b->next_slot = *at;
	*at = b;
}

static void link_out(struct sbox *b)
{
	struct worker *w = b->worker;
	struct sbox **at = &w->by_id[hash_of(b->id)];

	while (*at != b)
		at = &(*at)->next;
	*at = b->next;
	if (b->strength != NETPOL_ROUTED)
		return;
	at = &w->by_address[b->route.address % SBOX_BUCKETS];
	while (*at != b)
		at = &(*at)->next_address;
	*at = b->next_address;
	at = &w->by_slot[b->route.slot % SBOX_BUCKETS];
	while (*at != b)
		at = &(*at)->next_slot;
	*at = b->next_slot;
}

void sbox_free(struct sbox *b)
{
	struct worker *w = b->worker;
	struct err e = {0};

	if (b->strength == NETPOL_ROUTED && w->route &&
	    route_del(w->route, b->route.slot, &e) < 0)
		note("sandbox %s: %s", b->id, e.msg);
	link_out(b);
	while (b->nports > 0)
		drop_port(b, 0);
	drop_dns(b);
	proxy_client_free(b->client);
	forwarder_free(b->forwarder);
	fakename_free(b->names);
	denied_free(b->denied);
	netpol_free(b->policy);
	free(b->id);
	free(b);
}

/* --- policies ------------------------------------------------------------ */

/* Sandboxes that have the same one share it. */
static int load_policy(struct worker *w, const json_t *req, struct netpol **ret,
		       struct err *e)
{
	auto_netpol struct netpol *p = NULL;
	int r = netpol_load(json_object_get(req, "policy"), &p, e);

	if (r < 0)
		return err_wrap(e, r, "policy of '%s'",
				json_str(req, "sandbox"));
	if (strcmp(netpol_hash(p), json_str(req, "hash")))
		return err_set(e, -EINVAL, "bad_value",
			       "the hash is not the policy's");
	for (size_t i = 0; i < SBOX_BUCKETS; i++)
		for (struct sbox *b = w->by_id[i]; b; b = b->next)
			if (b->policy &&
			    !strcmp(netpol_hash(b->policy), netpol_hash(p))) {
				*ret = netpol_ref(b->policy);
				return 0;
			}
	*ret = steal_ptr(p);
	return 0;
}

static bool listens_on(const struct sbox *b, uint16_t port)
{
	for (size_t i = 0; i < b->nports; i++)
		if (b->ports[i].port == port)
			return true;
	return false;
}

/* Can it be carried by what the sandbox has? */
static bool is_among(uint16_t port, const uint16_t *ports, int n)
{
	for (int i = 0; i < n; i++)
		if (ports[i] == port)
			return true;
	return false;
}

/*
 * Those of ${was}, the policy before, need no listener: where the sandbox has
 * taken such a port while nobody held it, it is not served, and may not stand
 * in the way of a stricter policy.
 */
static int check_policy(const struct sbox *b, const struct netpol *p,
			const struct netpol *was, struct err *e)
{
	uint16_t ports[NETPOL_LISTEN_MAX], before[NETPOL_LISTEN_MAX];
	enum netpol_strength needs = netpol_strength(&p, 1);
	int n, had;

	if (needs > b->strength)
		return err_set(e, -EOPNOTSUPP, "unsupported",
			       "the policy needs a sandbox of strength '%s', "
			       "this one has '%s'",
			       netpol_strength_word(needs),
			       netpol_strength_word(b->strength));
	if (b->strength != NETPOL_NAMES)
		return 0;
	n = netpol_listen(&p, 1, ports);
	had = netpol_listen(&was, 1, before);
	for (int i = 0; i < n; i++)
		if (!listens_on(b, ports[i]) &&
		    !is_among(ports[i], before, had))
			return err_set(e, -EOPNOTSUPP, "unsupported",
				       "nobody listens on port %u inside",
				       ports[i]);
	return n < 0 ? err_set(e, n, "unsupported", "too many ports") : 0;
}

static bool keep_learned(void *arg, const struct route_learned *l,
			 const char *name)
{
	struct netpol_range ports[NETPOL_NAME_RANGES_MAX];
	const struct netpol *p = arg;
	size_t n = name ? netpol_name_ports(p, name, l->proto, ports) : 0;

	/* Every port between, not only the ends. */
	for (size_t i = 0; i < n; i++)
		if (ports[i].lo <= l->lo && l->hi <= ports[i].hi)
			return !netpol_denies_addr(p, &l->addr, l->proto, l->lo,
						   NULL);
	return false;
}

/* In force from when this returns, in the kernel first, which may refuse. */
static int enforce(struct sbox *b, struct netpol *p, unsigned *ret_cut,
		   struct err *e)
{
	struct netpol *was = b->policy;
	int r;

	if (b->strength == NETPOL_ROUTED) {
		if (!b->worker->route)
			return err_set(e, -EOPNOTSUPP, "configuration",
				       "the helper has no transit namespace");
		r = route_put(b->worker->route, &b->route, p, keep_learned, p,
			      e);
		if (r < 0)
			return r;
	}
	b->policy = netpol_ref(p);
	forwarder_rate(b->forwarder, netpol_limits(p)->dns_per_s);
	*ret_cut = proxy_client_policy(b->client, p);
	netpol_free(was);
	return 0;
}

int sbox_policy(struct worker *w, const json_t *req, unsigned *ret_cut,
		struct err *e)
{
	struct sbox *b = sbox_find(w, json_str(req, "sandbox"));
	auto_netpol struct netpol *p = NULL;
	int r;

	if (!b)
		return err_set(e, -ENOENT, "sandbox_unknown",
			       "the network helper does not know '%s'",
			       json_str(req, "sandbox"));
	r = load_policy(w, req, &p, e);
	if (r == 0)
		r = check_policy(b, p, b->policy, e);
	return r < 0 ? r : enforce(b, p, ret_cut, e);
}

/* --- attach -------------------------------------------------------------- */

static struct forwarder *find_own(void *arg, const struct sockaddr *peer)
{
	struct sbox *b = arg;

	(void)peer;
	return b->forwarder;
}

static int serve_dns(struct sbox *b, struct chan_msg *m, struct err *e)
{
	int udp = chan_take(m, "udp53"), tcp = chan_take(m, "tcp53");

	if (udp < 0 && tcp < 0)
		return 0;
	if (udp < 0 || tcp < 0) {
		fd_close(udp < 0 ? tcp : udp);
		return err_set(e, -EINVAL, "bad_value",
			       "udp53 and tcp53 come together");
	}
	drop_dns(b);
	b->udp53 = udp;
	b->tcp53 = tcp;
	return forwarder_port_new(b->worker->loop, udp, tcp, find_own, b,
				  &b->dns, e);
}

static int serve_port(struct sbox *b, uint16_t port, int *fd, struct err *e)
{
	struct sbox_port *at;
	size_t i;
	int r;

	for (i = 0; i < b->nports && b->ports[i].port != port; i++)
		;
	if (i < b->nports)
		drop_port(b, i);
	if (b->nports == NETPOL_LISTEN_MAX)
		return err_set(e, -E2BIG, "bad_value", "too many ports");
	at = &b->ports[b->nports];
	r = proxy_listen(b->client, *fd, port, &at->serves, e);
	if (r < 0)
		return r;
	at->port = port;
	at->fd = steal_fd(fd);
	b->nports++;
	return 0;
}

static int serve_ports(struct sbox *b, struct chan_msg *m, struct err *e)
{
	const json_t *names = json_object_get(m->obj, "fds");
	int r = 0;

	for (size_t i = 0; r == 0 && i < m->nfds; i++) {
		const char *name = json_string_value(json_array_get(names, i));
		unsigned port;
		char end;

		if (m->fds[i] < 0)
			continue;
		if (sscanf(name, "tcp%5u%c", &port, &end) != 1 || port == 0 ||
		    port > 65535)
			return err_set(e, -EINVAL, "bad_value",
				       "descriptor '%s'", name);
		r = serve_port(b, (uint16_t)port, &m->fds[i], e);
	}
	return r;
}

static int parse_routed(const json_t *req, struct route_sandbox *ret,
			struct err *e)
{
	unsigned char *mac = ret->mac;
	struct netaddr addr;
	char end;

	if (sscanf(json_str(req, "iface"), "ds%5u%c", &ret->slot, &end) != 1)
		return err_set(e, -EINVAL, "bad_value", "'iface'");
	if (netaddr_parse(json_str(req, "address"), &addr) < 0 || addr.v6)
		return err_set(e, -EINVAL, "bad_value", "'address'");
	if (sscanf(json_str(req, "mac"),
		   "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx%c", &mac[0], &mac[1],
		   &mac[2], &mac[3], &mac[4], &mac[5], &end) != 6)
		return err_set(e, -EINVAL, "bad_value", "'mac'");
	ret->address = (uint32_t)addr.b[0] << 24 | (uint32_t)addr.b[1] << 16 |
		       (uint32_t)addr.b[2] << 8 | addr.b[3];
	return 0;
}

static int fill(struct sbox *b, struct chan_msg *m, struct netpol *p,
		struct err *e)
{
	struct worker *w = b->worker;
	struct forwarder_conf conf = {
		.loop = w->loop,
		.resolver = w->resolver,
		.ops = &sbox_dns_ops,
		.arg = b,
		.fake = b->strength == NETPOL_NAMES,
		.per_s = netpol_limits(p)->dns_per_s,
	};
	struct total *counted;
	int fd = chan_take(m, "names"), r;

	r = fakename_new(fd, &b->names, e);
	if (r < 0 && fd >= 0)
		fd_close(fd);
	if (r < 0)
		return r;
	fd = chan_take(m, "log");
	r = denied_new(w->loop, fd, &b->denied, e);
	if (r < 0 && fd >= 0)
		fd_close(fd);
	if (r < 0)
		return r;
	conf.names = b->names;
	r = forwarder_new(&conf, &b->forwarder, e);
	if (r == 0)
		r = proxy_client_new(w->proxy, b->id, p, b->names, b->denied,
				     &b->client, e);
	if (r < 0)
		return r;
	counted = totals_get(w->totals, b->id);
	if (counted) {
		proxy_client_count(b->client, &counted->proxy);
		forwarder_count(b->forwarder, &counted->dns);
		denied_total(b->denied, &counted->denied);
	}
	return 0;
}

static int sbox_new(struct chan_msg *m, const struct sbox *like,
		    struct netpol *p, struct sbox **ret, struct err *e)
{
	struct sbox *b = malloc(sizeof(*b));
	int r;

	if (!b)
		return err_sys(e, ENOMEM, "sandbox");
	*b = *like;
	b->id = strdup(json_str(m->obj, "sandbox"));
	if (!b->id) {
		free(b);
		return err_sys(e, ENOMEM, "sandbox");
	}
	link_in(b);
	r = fill(b, m, p, e);
	if (r < 0)
		sbox_free(b);
	else
		*ret = b;
	return r;
}

static int any_socket(const struct sbox *b)
{
	return b->udp53 >= 0 ? b->udp53 : b->nports > 0 ? b->ports[0].fd : -1;
}

/* Is what we know the same network, or one of an earlier life? */
static bool is_same(const struct sbox *b, const struct sbox *like,
		    const struct chan_msg *m)
{
	const json_t *names = json_object_get(m->obj, "fds");
	int has = any_socket(b);

	if (b->strength != like->strength ||
	    b->route.slot != like->route.slot ||
	    b->route.address != like->route.address ||
	    memcmp(b->route.mac, like->route.mac, sizeof(b->route.mac)))
		return false;
	for (size_t i = 0; has >= 0 && i < m->nfds; i++) {
		const char *name = json_string_value(json_array_get(names, i));

		if (strncmp(name, "udp", 3) == 0 ||
		    strncmp(name, "tcp", 3) == 0)
			return same_netns(has, m->fds[i]);
	}
	return true;
}

/* A slot is one sandbox's at a time: whoever had it has ended, even if nobody
 * could say so, and leaves no rules to the next; nor does one that we have
 * never heard of, of whom the kernel still has them (${all}: they are not its
 * own). */
static int evict(struct worker *w, uint32_t slot, bool all, struct err *e)
{
	struct sbox *b = sbox_of_slot(w, slot);
	char id[HELPER_ID_MAX + 1];

	if (b) {
		snprintf(id, sizeof(id), "%s", b->id);
		sbox_free(b);
		totals_drop(w->totals, id);
	}
	return all && w->route ? route_del(w->route, slot, e) : 0;
}

int sbox_attach(struct worker *w, struct chan_msg *m, struct err *e)
{
	struct sbox like = {.worker = w, .udp53 = -1, .tcp53 = -1};
	struct sbox *b = sbox_find(w, json_str(m->obj, "sandbox"));
	auto_netpol struct netpol *p = NULL, *was = NULL;
	unsigned cut;
	bool fresh;
	int r;

	r = netpol_strength_of(json_str(m->obj, "strength"));
	if (r <= NETPOL_NONE)
		return err_set(e, -EINVAL, "bad_value", "'strength'");
	like.strength = (enum netpol_strength)r;
	r = load_policy(w, m->obj, &p, e);
	if (r == 0 && like.strength == NETPOL_ROUTED)
		r = parse_routed(m->obj, &like.route, e);
	if (r < 0)
		return r;
	fresh = json_is_true(json_object_get(m->obj, "fresh"));
	if (b && (fresh || !is_same(b, &like, m))) {
		sbox_free(b);
		b = NULL;
	}
	if (!b && like.strength == NETPOL_ROUTED)
		r = evict(w, like.route.slot, fresh, e);
	if (r < 0)
		return r;
	fresh = !b;
	was = netpol_ref(fresh ? p : b->policy);
	if (fresh)
		r = sbox_new(m, &like, p, &b, e);
	if (r == 0)
		r = enforce(b, p, &cut, e);
	if (r == 0)
		r = serve_dns(b, m, e);
	if (r == 0) {
		/* Files of one that is known are open already. */
		int fd = chan_take(m, "names");

		if (fd >= 0)
			fd_close(fd);
		fd = chan_take(m, "log");
		if (fd >= 0)
			denied_file(b->denied, fd);
		r = serve_ports(b, m, e);
	}
	if (r == 0)
		r = check_policy(b, p, was, e);
	if (r == 0)
		b->netns = json_int(m->obj, "netns", 0);
	if (r < 0 && fresh && b)
		sbox_free(b);
	return r;
}

int sbox_sweep(struct worker *w, struct err *e)
{
	auto_free uint32_t *slots = calloc(TRANSIT_SLOTS, sizeof(*slots));
	size_t n = 0;
	int r;

	if (!w->route)
		return 0;
	if (!slots)
		return err_sys(e, ENOMEM, "slots");
	for (size_t i = 0; i < SBOX_BUCKETS; i++)
		for (struct sbox *b = w->by_slot[i]; b; b = b->next_slot)
			if (n < TRANSIT_SLOTS)
				slots[n++] = b->route.slot;
	r = route_sweep(w->route, slots, n, e);
	if (r > 0)
		note("rules of %d sandboxes that have ended are gone", r);
	return r < 0 ? r : 0;
}

int sbox_stats(const struct sbox *b, const struct route_stats *route,
	       json_t **ret, struct err *e)
{
	struct forwarder_stats dns;
	uint64_t denied = denied_count(b->denied);
	struct proxy_stats s;

	forwarder_stats(b->forwarder, &dns);
	proxy_client_stats(b->client, &s);
	s.sent += route->tx_bytes;
	s.received += route->rx_bytes;
	denied += route->denied;
	return json_pack_or(ret, e, "{ss ss si sI sI sI sI sI sI sI sI sI}",
			    "strength", netpol_strength_word(b->strength),
			    "hash", netpol_hash(b->policy), "connections",
			    (int)s.connections, "accepted",
			    (json_int_t)s.accepted, "refused",
			    (json_int_t)s.refused, "cut", (json_int_t)s.cut,
			    "sent_bytes", (json_int_t)s.sent, "received_bytes",
			    (json_int_t)s.received, "dns",
			    (json_int_t)dns.queries, "dns_denied",
			    (json_int_t)dns.denied, "denied",
			    (json_int_t)denied, "names",
			    (json_int_t)fakename_count(b->names));
}
