/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_SNAP_PRIV_H
#define CKPT_SNAP_PRIV_H

#include "ckpt/snap.h"

/* $DSEC_LIB/snap, with its lock. */
struct snap_reg {
	int dir;
};

#define auto_reg __attribute__((cleanup(snap_reg_close)))

/* snap_reg_open(t, make, ret, e): -ENOENT where there is none and ${make} is
 * not set.  It waits for the lock. */
int snap_reg_open(const struct tree *t, bool make, struct snap_reg *ret,
		  struct err *e);
void snap_reg_close(struct snap_reg *reg);

/* "root/rl/flask-warm" to "name/root/rl/@flask-warm". */
int snap_link_path(const char *name, char *path, struct err *e);

/* snap_link_read(dir, name, id): whose it is, into id[BOX_ID_LEN + 1]; 0 or
 * -ENOENT.  ${dir} is that of the registry. */
int snap_link_read(int dir, const char *name, char *id);

/* snap_name_of(dir, id, name): the name that is its own now, into
 * name[SNAP_PATH_MAX + 1]; "" without one.  -errno where that is not known. */
int snap_name_of(int dir, const char *id, char *name, struct err *e);

#endif
