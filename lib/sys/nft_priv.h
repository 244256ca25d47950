/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_NFT_PRIV_H
#define SYS_NFT_PRIV_H

#include <libmnl/libmnl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>

#include "sys/nft.h"

/* The most that one message takes: a rule, or a list of elements. */
#define NFT_MSG_MAX (96 << 10)

/* nft_start(t, type, flags): a message with room for NFT_MSG_MAX, to be filled
 * and ended; NULL without memory. */
struct nlmsghdr *nft_start(struct nft_batch *t, uint16_t type, uint16_t flags);
void nft_end(struct nft_batch *t);

void nft_stateful_put(struct nft_batch *t, const struct nft_set *s);

#endif
