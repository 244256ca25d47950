/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "net/resolver_priv.h"

#define TTL_MIN_S  5 /* nobody asks more often, whatever upstream says */
#define TTL_MAX_S  3600
#define TTL_NONE_S 10 /* of what is not there */

struct cache_entry {
	struct cache_entry *chain;
	struct cache_entry *newer, *older;
	uint64_t until_ms;
	uint32_t hash;
	uint16_t n;
	uint8_t status;
	sa_family_t family;
	char data[]; /* addresses, the name with its NUL */
};

static size_t addr_len(sa_family_t family)
{
	return family == AF_INET ? sizeof(struct in_addr)
				 : sizeof(struct in6_addr);
}

static const char *name_of(const struct cache_entry *en)
{
	return en->data + en->n * addr_len(en->family);
}

static struct cache_entry **bucket(struct cache *c, uint32_t hash)
{
	return &c->buckets[hash & (RESOLVER_BUCKETS - 1)];
}

static struct cache_entry *find(struct cache *c, const struct cache_key *key)
{
	struct cache_entry *en = *bucket(c, key->hash);

	while (en && (en->hash != key->hash || en->family != key->family ||
		      strcmp(name_of(en), key->name) != 0))
		en = en->chain;
	return en;
}

static void unlink_use(struct cache *c, struct cache_entry *en)
{
	*(en->newer ? &en->newer->older : &c->newest) = en->older;
	*(en->older ? &en->older->newer : &c->oldest) = en->newer;
}

static void link_use(struct cache *c, struct cache_entry *en)
{
	en->newer = NULL;
	en->older = c->newest;
	*(c->newest ? &c->newest->newer : &c->oldest) = en;
	c->newest = en;
}

static void drop(struct cache *c, struct cache_entry *en)
{
	struct cache_entry **p = bucket(c, en->hash);

	while (*p != en)
		p = &(*p)->chain;
	*p = en->chain;
	unlink_use(c, en);
	c->n--;
	free(en);
}

bool cache_get(struct cache *c, const struct cache_key *key, uint64_t now_ms,
	       struct resolver_result *ret)
{
	struct cache_entry *en = find(c, key);

	if (!en)
		return false;
	if (en->until_ms <= now_ms) {
		drop(c, en);
		return false;
	}
	unlink_use(c, en);
	link_use(c, en);
	ret->status = (enum resolver_status)en->status;
	ret->left_s = (uint32_t)((en->until_ms - now_ms + 999) / 1000);
	ret->addrs.family = en->family;
	ret->addrs.n = en->n;
	ret->addrs.ttl = ret->left_s;
	memcpy(&ret->addrs.v6, en->data, en->n * addr_len(en->family));
	return true;
}

static uint32_t keep_s(const struct resolver_result *res)
{
	if (res->status != RESOLVER_OK)
		return TTL_NONE_S;
	if (res->addrs.ttl < TTL_MIN_S)
		return TTL_MIN_S;
	return res->addrs.ttl > TTL_MAX_S ? TTL_MAX_S : res->addrs.ttl;
}

void cache_put(struct cache *c, const struct cache_key *key,
	       const struct resolver_result *res, uint64_t now_ms)
{
	size_t bytes = res->addrs.n * addr_len(key->family);
	size_t len = strlen(key->name) + 1;
	struct cache_entry *en = find(c, key);

	if (en)
		drop(c, en);
	else if (c->n == RESOLVER_CACHE)
		drop(c, c->oldest);
	en = malloc(sizeof(*en) + bytes + len);
	if (!en)
		return;
	en->until_ms = now_ms + keep_s(res) * UINT64_C(1000);
	en->hash = key->hash;
	en->n = res->addrs.n;
	en->status = (uint8_t)res->status;
	en->family = key->family;
	memcpy(en->data, &res->addrs.v6, bytes);
	memcpy(en->data + bytes, key->name, len);
	en->chain = *bucket(c, key->hash);
	*bucket(c, key->hash) = en;
	link_use(c, en);
	c->n++;
}

void cache_done(struct cache *c)
{
	while (c->oldest)
		drop(c, c->oldest);
}
