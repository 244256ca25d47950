/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_MOUNT_PRIV_H
#define IMG_MOUNT_PRIV_H

#include "img/mount.h"

/* Below $DSEC_LIB. */
#define LAYER_DIRS "img/dir" /* unpacked: <hex>, and on their way LAYER_TMP */
#define LAYER_TMP  ".tmp."

/* layer_lock(n, d, wait, ret_fd, e): the right to mount or unmount ${d}, until
 * *${ret_fd} is closed; "busy" if ${wait} is false and somebody has it. */
int layer_lock(const struct layer_node *n, const struct digest *d, bool wait,
	       int *ret_fd, struct err *e);

#endif
