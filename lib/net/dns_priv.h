/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_DNS_PRIV_H
#define NET_DNS_PRIV_H

#include "net/dns.h"

#define DNS_IN 1 /* the class */

struct dns_msg {
	const uint8_t *data;
	size_t len;
};

#endif
