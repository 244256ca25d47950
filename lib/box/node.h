/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_NODE_H
#define BOX_NODE_H

#include "box/tree.h"

/* Inside a sandbox's /dev: its pid 1, and a directory to hide others with. */
#define NODE_INIT  "/dev/dsec-init"
#define NODE_EMPTY "dev/.empty"

/*
 * node_dev(t, path, e):
 * The template of /dev into path[PATH_MAX]: a small read-only tmpfs mounted
 * under $DSEC_RUN/mnt, made once per node, that every sandbox binds.  It also
 * holds dsec-init, for everybody to read: the memory of a program that its own
 * user namespace may not read belongs to the host's, and then the checkpoint
 * engine, which looks at pid 1 from inside, could not.  What keeps pid 1 from
 * being traced is PROFILE_INIT_CAP.
 */
int node_dev(const struct tree *t, char *path, struct err *e);

/*
 * node_dev_with(t, init, path, e): the template whose dsec-init is the file
 * ${init}: the node's own where the two are the same, else one made for it.
 */
int node_dev_with(const struct tree *t, const char *init, char *path,
		  struct err *e);

#endif
