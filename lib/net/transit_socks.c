/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "net/transit_priv.h"
#include "sys/netns.h"

/* A policy with every rule there can be is one message of this order. */
#define NFT_BUFFER (4 << 20)

/* As root: the helper may not have more than the node's default. */
static int netfilter(int netns, struct err *e)
{
	auto_close int fd = netns_socket(netns, AF_NETLINK, SOCK_RAW,
					 NETLINK_NETFILTER, e);
	const int size = NFT_BUFFER;
	struct sockaddr_nl any = {.nl_family = AF_NETLINK};

	if (fd < 0)
		return fd;
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) <
		    0 ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) < 0)
		return err_sys(e, errno, "buffers of a netlink socket");
	if (bind(fd, (const void *)&any, sizeof(any)) < 0)
		return err_sys(e, errno, "bind a netlink socket");
	return steal_fd(&fd);
}

int transit_socks_make(int netns, struct transit_socks *ret, struct err *e)
{
	const uint32_t at = htonl(TRANSIT_GATEWAY);
	struct transit_socks s = {-1, -1, -1, -1, -1, -1};
	int r;

	r = s.nft = netfilter(netns, e);
	if (r >= 0)
		r = s.log = netfilter(netns, e);
	if (r >= 0)
		r = s.dns_udp = netns_bind(netns, SOCK_DGRAM, at,
					   TRANSIT_PORT_DNS, e);
	if (r >= 0)
		r = s.dns_tcp = netns_bind(netns, SOCK_STREAM, at,
					   TRANSIT_PORT_DNS, e);
	if (r >= 0)
		r = s.sni = netns_bind(netns, SOCK_STREAM, at, TRANSIT_PORT_SNI,
				       e);
	if (r >= 0)
		r = s.broker = netns_bind(netns, SOCK_STREAM, at,
					  TRANSIT_PORT_BROKER, e);
	if (r < 0) {
		transit_socks_done(&s);
		return r;
	}
	*ret = s;
	return 0;
}

void transit_socks_done(struct transit_socks *s)
{
	int *const all[TRANSIT_SOCKS] = {&s->nft,     &s->log, &s->dns_udp,
					 &s->dns_tcp, &s->sni, &s->broker};

	for (size_t i = 0; i < array_len(all); i++)
		if (*all[i] >= 0)
			fd_close(steal_fd(all[i]));
}
