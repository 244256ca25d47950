/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <libnftnl/chain.h>
#include <libnftnl/common.h>
#include <libnftnl/rule.h>
#include <libnftnl/table.h>
#include <string.h>
#include <sys/socket.h>

#include "sys/nft_priv.h"

#define REPLY_SIZE 65536

void nft_init(struct nft_batch *t, uint8_t family, const char *table)
{
	*t = (struct nft_batch){.family = family, .table = table};
}

void nft_done(struct nft_batch *t)
{
	if (t->rule)
		nftnl_rule_free(t->rule);
	t->rule = NULL;
	buf_done(&t->b);
}

static struct nlmsghdr *header(struct nft_batch *t, uint16_t type,
			       uint16_t flags, uint8_t family, uint16_t res)
{
	struct nlmsghdr *h;
	struct nfgenmsg *g;

	if (!t->r)
		t->r = buf_reserve(&t->b, NFT_MSG_MAX);
	if (t->r)
		return NULL;
	memset(t->b.data + t->b.len, 0,
	       t->clean ? NFT_MSG_MAX : sizeof(*h) + sizeof(*g));
	h = mnl_nlmsg_put_header(t->b.data + t->b.len);
	h->nlmsg_type = type;
	h->nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags);
	h->nlmsg_seq = t->seq++;
	g = mnl_nlmsg_put_extra_header(h, sizeof(*g));
	g->nfgen_family = family;
	g->version = NFNETLINK_V0;
	g->res_id = htons(res);
	return h;
}

static void finish(struct nft_batch *t, const struct nlmsghdr *h)
{
	if (!h || t->r)
		return;
	t->b.len += MNL_ALIGN(h->nlmsg_len);
}

struct nlmsghdr *nft_start(struct nft_batch *t, uint16_t type, uint16_t flags)
{
	if (!t->n)
		finish(t, header(t, NFNL_MSG_BATCH_BEGIN, 0, AF_UNSPEC,
				 NFNL_SUBSYS_NFTABLES));
	t->n++;
	t->msg = header(t, (uint16_t)(NFNL_SUBSYS_NFTABLES << 8 | type), flags,
			t->family, 0);
	return t->msg;
}

void nft_end(struct nft_batch *t)
{
	finish(t, t->msg);
	t->msg = NULL;
}

/* The last message of all asks for the ACK. */
static void ask_ack(struct nft_batch *t)
{
	struct nlmsghdr *h = (void *)t->b.data;
	size_t at = 0, next;

	for (;;) {
		next = at + MNL_ALIGN(h->nlmsg_len);
		if (next >= t->b.len)
			break;
		at = next;
		h = (void *)(t->b.data + at);
	}
	h->nlmsg_flags |= NLM_F_ACK;
}

static const char *what_of(uint16_t type)
{
	switch (type & 0xff) {
	case NFT_MSG_NEWTABLE:
	case NFT_MSG_DELTABLE:
		return "table";
	case NFT_MSG_NEWCHAIN:
	case NFT_MSG_DELCHAIN:
		return "chain";
	case NFT_MSG_NEWRULE:
		return "rule";
	case NFT_MSG_NEWSET:
		return "set";
	case NFT_MSG_NEWSETELEM:
	case NFT_MSG_DELSETELEM:
		return "element";
	default:
		return "change";
	}
}

/* The answers are there when sendmsg() returns.  The first refusal counts. */
static int read_acks(const struct nft_batch *t, int fd, uint32_t last,
		     struct err *e)
{
	char reply[8192] __attribute__((aligned(8)));
	const struct nlmsgerr *er;
	const struct nlmsghdr *h;
	bool acked = false;
	int r = 0, n;

	for (;;) {
		ssize_t got = recv(fd, reply, sizeof(reply), MSG_DONTWAIT);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN)
			break;
		if (got < 0)
			return err_sys(e, errno, "answer of nftables");
		n = (int)got;
		for (h = (const void *)reply; mnl_nlmsg_ok(h, n);
		     h = mnl_nlmsg_next(h, &n)) {
			if (h->nlmsg_type != NLMSG_ERROR)
				continue;
			er = mnl_nlmsg_get_payload(h);
			if (er->error && !r)
				r = err_sys(e, -er->error,
					    "nftables refuses a "
					    "%s",
					    what_of(er->msg.nlmsg_type));
			if (h->nlmsg_seq == last)
				acked = true;
		}
	}
	(void)t;
	if (!r && !acked)
		r = err_sys(e, EPROTO, "nftables did not answer");
	return r;
}

/* What an earlier request left behind would be taken for an answer. */
static void drain(int fd)
{
	char c;

	while (recv(fd, &c, 1, MSG_DONTWAIT) >= 0 || errno == ENOBUFS ||
	       errno == EINTR)
		;
}

int nft_commit(struct nft_batch *t, int fd, struct err *e)
{
	const struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	uint32_t last = 0;
	int r = t->r;

	if (!r && t->n) {
		ask_ack(t);
		last = t->seq - 1;
		finish(t, header(t, NFNL_MSG_BATCH_END, 0, AF_UNSPEC,
				 NFNL_SUBSYS_NFTABLES));
		r = t->r;
	}
	if (r)
		r = err_sys(e, -r, "collect changes of nftables");
	else if (t->n) {
		drain(fd);
		if (sendto(fd, t->b.data, t->b.len, 0, (const void *)&kernel,
			   sizeof(kernel)) < 0)
			r = err_sys(e, errno, "send changes to nftables");
		else
			r = read_acks(t, fd, last, e);
	}
	t->b.len = 0;
	t->n = 0;
	t->r = 0;
	return r;
}

int nft_talk(int fd, struct nlmsghdr *h,
	     int (*fn)(const struct nlmsghdr *h, void *arg), void *arg)
{
	const struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	auto_free char *reply = malloc(REPLY_SIZE);
	ssize_t n;
	int r;

	if (!reply)
		return -ENOMEM;
	drain(fd);
	h->nlmsg_seq = 1;
	if (sendto(fd, h, h->nlmsg_len, 0, (const void *)&kernel,
		   sizeof(kernel)) < 0)
		return -errno;
	for (;;) {
		n = recv(fd, reply, REPLY_SIZE, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		errno = 0;
		r = mnl_cb_run(reply, (size_t)n, 1, 0, fn, arg);
		if (r < 0)
			return errno ? -errno : -EPROTO;
		if (r == MNL_CB_STOP)
			return 0;
	}
}

int nft_dump(int fd, uint8_t family, uint16_t type, const char *table,
	     const char *set, int (*fn)(const struct nlmsghdr *h, void *arg),
	     void *arg)
{
	char room[512] __attribute__((aligned(8)));
	struct nlmsghdr *h = nftnl_nlmsg_build_hdr(room, type, family,
						   NLM_F_DUMP, 1);

	/* NFTA_*_TABLE and NFTA_SET_ELEM_LIST_SET are 1 and 2 everywhere. */
	mnl_attr_put_strz(h, 1, table);
	if (set)
		mnl_attr_put_strz(h, 2, set);
	return nft_talk(fd, h, fn, arg);
}

static void table_msg(struct nft_batch *t, uint16_t type, uint16_t flags)
{
	struct nlmsghdr *h = nft_start(t, type, flags);

	if (!h)
		return;
	mnl_attr_put_strz(h, NFTA_TABLE_NAME, t->table);
	nft_end(t);
}

void nft_table_add(struct nft_batch *t)
{
	table_msg(t, NFT_MSG_NEWTABLE, NLM_F_CREATE);
}

void nft_table_del(struct nft_batch *t)
{
	table_msg(t, NFT_MSG_DELTABLE, 0);
}

void nft_chain_add(struct nft_batch *t, const struct nft_chain *c)
{
	struct nlmsghdr *h = nft_start(t, NFT_MSG_NEWCHAIN, NLM_F_CREATE);
	struct nftnl_chain *n = h ? nftnl_chain_alloc() : NULL;

	if (!n) {
		t->r = -ENOMEM;
		return;
	}
	nftnl_chain_set_str(n, NFTNL_CHAIN_TABLE, t->table);
	nftnl_chain_set_str(n, NFTNL_CHAIN_NAME, c->name);
	if (c->type) {
		nftnl_chain_set_str(n, NFTNL_CHAIN_TYPE, c->type);
		nftnl_chain_set_u32(n, NFTNL_CHAIN_HOOKNUM, c->hook);
		nftnl_chain_set_s32(n, NFTNL_CHAIN_PRIO, c->prio);
		nftnl_chain_set_u32(n, NFTNL_CHAIN_POLICY, c->policy);
	}
	nftnl_chain_nlmsg_build_payload(h, n);
	nftnl_chain_free(n);
	nft_end(t);
}

void nft_chain_del(struct nft_batch *t, const char *name)
{
	struct nlmsghdr *h = nft_start(t, NFT_MSG_DELCHAIN, 0);

	if (!h)
		return;
	mnl_attr_put_strz(h, NFTA_CHAIN_TABLE, t->table);
	mnl_attr_put_strz(h, NFTA_CHAIN_NAME, name);
	nft_end(t);
}

void nft_chain_flush(struct nft_batch *t, const char *name)
{
	struct nlmsghdr *h = nft_start(t, NFT_MSG_DELRULE, 0);

	if (!h)
		return;
	mnl_attr_put_strz(h, NFTA_RULE_TABLE, t->table);
	mnl_attr_put_strz(h, NFTA_RULE_CHAIN, name);
	nft_end(t);
}
