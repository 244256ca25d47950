/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_NET_PRIV_H
#define BOX_NET_PRIV_H

#include "box/net.h"

#define NET_FILE	 "net.json" /* of sb/<id> in the run directory */
#define NET_POLICIES_MAX 64
#define NET_HAS		 (-2) /* instead of a socket: the helper has it */

#endif
