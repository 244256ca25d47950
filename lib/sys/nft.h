/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_NFT_H
#define SYS_NFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct nlmsghdr;
struct nftnl_rule;

/*
 * Changes of one nft table, collected and then made by the kernel all at once
 * or not at all.  On libnftnl and libmnl, which have no static form: for
 * dynamic programs.  The building functions return nothing: what goes wrong
 * with them (memory) shows in nft_commit().
 */
struct nft_batch {
	struct buf b;
	uint8_t family; /* NFPROTO_INET, ... */
	const char *table;
	uint32_t seq, set_id;
	unsigned n; /* messages */
	bool clean; /* no padding of unknown content, for whoever compares */
	int r;	    /* the first failure */
	/* under construction */
	struct nftnl_rule *rule;
	struct nlmsghdr *msg;
	const char *set;
	uint16_t elem_type;
	uint32_t list_id;
	size_t list, elem; /* offsets of nests */
};

#define auto_nft __attribute__((cleanup(nft_done)))

void nft_init(struct nft_batch *t, uint8_t family, const char *table);
void nft_done(struct nft_batch *t);

/*
 * nft_commit(t, fd, e):
 * Send it on the netfilter socket ${fd}, read the kernel's word, empty the
 * batch.  Nothing in it: nothing happens.  -EBUSY, -ENOENT, -EEXIST and so on
 * are the kernel's for the first message it refuses, and then all is as it was.
 */
int nft_commit(struct nft_batch *t, int fd, struct err *e);

/* nft_dump(fd, family, type, table, set, fn, arg): every answer to a listing
 * (NFT_MSG_GET...) goes to ${fn}; ${set} NULL for all that are not elements.
 * -errno, as of the kernel or ${fn}. */
int nft_dump(int fd, uint8_t family, uint16_t type, const char *table,
	     const char *set, int (*fn)(const struct nlmsghdr *h, void *arg),
	     void *arg);

/*
 * nft_talk(fd, h, fn, arg): any one netfilter request that wants an ACK or a
 * dump; answers go to ${fn} (may be NULL).
 */
int nft_talk(int fd, struct nlmsghdr *h,
	     int (*fn)(const struct nlmsghdr *h, void *arg), void *arg);

void nft_table_add(struct nft_batch *t);
void nft_table_del(struct nft_batch *t); /* must exist */

/* A base chain has a type ("filter", "nat"); policy NF_DROP or NF_ACCEPT. */
struct nft_chain {
	const char *name, *type;
	unsigned hook;
	int prio;
	unsigned policy;
};

void nft_chain_add(struct nft_batch *t, const struct nft_chain *c);
/* nft_chain_del(t, name): with its rules; nothing may lead to it. */
void nft_chain_del(struct nft_batch *t, const char *name);
/* nft_chain_flush(t, name): no rules any more. */
void nft_chain_flush(struct nft_batch *t, const char *name);

/* Types of keys and data as nft(8) numbers them. */
enum nft_type {
	NFT_T_VERDICT = 1,
	NFT_T_ADDR4 = 7,
	NFT_T_ADDR6 = 8,
	NFT_T_ETHER = 9,
	NFT_T_PROTO = 12,
	NFT_T_PORT = 13,
	NFT_T_MARK = 19,
	NFT_T_ICMP6 = 29,
	NFT_T_IFNAME = 41,
};

#define NFT_FIELDS 4

struct nft_set {
	const char *name;
	uint32_t flags;		 /* NFT_SET_*; MAP and CONCAT are added */
	uint8_t key[NFT_FIELDS]; /* nft_type, 0 ends */
	uint8_t data;		 /* nft_type of a map; 0: a set */
	uint32_t object;	 /* NFT_OBJECT_* of a map of objects */
	uint32_t size;		 /* 0: grows */
	/* What each element carries that says nothing else, and its bits. */
	enum { NFT_E_NONE, NFT_E_COUNTER, NFT_E_COUNT, NFT_E_RATE } stateful;
	uint64_t value; /* COUNT: at most; RATE: a second */
	uint32_t burst;
	bool invert; /* RATE: matches when over */
};

void nft_set_add(struct nft_batch *t, const struct nft_set *s);
/* nft_set_anonymous(t, s): for a rule that comes next; its id. */
uint32_t nft_set_anonymous(struct nft_batch *t, const struct nft_set *s);
void nft_set_flush(struct nft_batch *t, const char *name);

/* nft_field(key, at, data, len): put a field of a key at its place, padded;
 * returns where the next goes.  Keys are at most NFT_KEY_MAX. */
#define NFT_KEY_MAX 64
size_t nft_field(uint8_t *key, size_t at, const void *data, size_t len);
size_t nft_field_name(uint8_t *key, size_t at, const char *ifname);

/*
 * Elements: nft_elems(t, set, add), then for each nft_elem() and, as wanted,
 * what belongs to it; at last nft_elems_end().
 */
void nft_elems(struct nft_batch *t, const char *set, uint32_t anonymous_id,
	       bool add);
void nft_elem(struct nft_batch *t, const void *key, size_t len);
void nft_elem_end_key(struct nft_batch *t, const void *key, size_t len);
void nft_elem_interval_end(struct nft_batch *t); /* the first not in it */
void nft_elem_data(struct nft_batch *t, const void *data, size_t len);
void nft_elem_verdict(struct nft_batch *t, int verdict, const char *chain);
void nft_elem_object(struct nft_batch *t, const char *name);
void nft_elem_timeout(struct nft_batch *t, uint64_t ms);
void nft_elem_comment(struct nft_batch *t, const char *text); /* cut at 127 */
/* nft_elem_stateful(t, s): with the values of ${s} in place of the set's. */
void nft_elem_stateful(struct nft_batch *t, const struct nft_set *s);
void nft_elems_end(struct nft_batch *t);

void nft_quota_add(struct nft_batch *t, const char *name, uint64_t bytes);
void nft_quota_del(struct nft_batch *t, const char *name);

/* A rule: nft_rule(), what it looks at and does in order, nft_rule_end(). */
void nft_rule(struct nft_batch *t, const char *chain);
void nft_rule_end(struct nft_batch *t);

/* Registers: 1 to 4 of 16 bytes, or 8 to 23 of 4. */
void nft_meta(struct nft_batch *t, uint32_t key, uint32_t reg);
void nft_meta_set(struct nft_batch *t, uint32_t key, uint32_t reg);
void nft_ct(struct nft_batch *t, uint32_t key, int direction, uint32_t reg);
void nft_ct_set(struct nft_batch *t, uint32_t key, uint32_t reg);
void nft_payload(struct nft_batch *t, uint32_t base, uint32_t offset,
		 uint32_t len, uint32_t reg);
void nft_bits(struct nft_batch *t, uint32_t reg, const void *mask, size_t len);
void nft_cmp(struct nft_batch *t, uint32_t op, uint32_t reg, const void *data,
	     size_t len);
void nft_cmp8(struct nft_batch *t, uint32_t op, uint32_t reg, uint8_t value);
void nft_cmp16(struct nft_batch *t, uint32_t op, uint32_t reg, uint16_t be);
void nft_cmp32(struct nft_batch *t, uint32_t op, uint32_t reg, uint32_t value);
/* ${dreg} 0: none (or a verdict, of a verdict map with ${map}). */
void nft_lookup(struct nft_batch *t, const char *set, uint32_t id, uint32_t reg,
		uint32_t dreg, bool map, bool invert);
void nft_objects(struct nft_batch *t, const char *map, uint32_t reg);
void nft_load(struct nft_batch *t, uint32_t reg, const void *data, size_t len);
void nft_verdict(struct nft_batch *t, int verdict, const char *chain);
void nft_dnat4(struct nft_batch *t, uint32_t reg_addr, uint32_t reg_port);
void nft_masquerade(struct nft_batch *t);
void nft_reject(struct nft_batch *t, uint32_t type, uint8_t code);
void nft_log(struct nft_batch *t, uint16_t group, const char *prefix,
	     uint32_t bytes);

#endif
