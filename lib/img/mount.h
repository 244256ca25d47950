/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_MOUNT_H
#define IMG_MOUNT_H

#include "img/image.h"
#include "img/store.h"

/*
 * Layers on a node: each is mounted once, at $DSEC_RUN/mnt/<manifest's hex>, or
 * lies unpacked at $DSEC_LIB/img/dir/<hex>, for all sandboxes that use it.  It
 * stays until somebody sees to it that no claim names it and takes it away.
 *
 * Who may do what when: a launch claims first and then looks whether its layers
 * are there (layer_ready()); whoever takes one away looks at the claims and
 * does it under the lock of the ledger (claim_hold()).  So a layer that is
 * claimed and there stays there.
 *
 * Mounts are made in the mount namespace of the caller.  A dsec-run in one of
 * its own therefore sees its own mounts of layers, which share no page cache
 * with those of other namespaces; claims and leases are the node's.
 */

/* Where a node has them; borrowed.  holder: whose leases they are. */
struct layer_node {
	const char *run, *lib, *holder;
};

/* --- mounted.c: no store needed ----------------------------------------- */

/* layer_mount_path(n, d, buf, e), layer_dir_path(): into buf[PATH_MAX]. */
int layer_mount_path(const char *run, const struct digest *d, char *buf,
		     struct err *e);
int layer_dir_path(const char *lib, const struct digest *d, char *buf,
		   struct err *e);

/*
 * layer_ready(n, d, way): is it there in a form that ${way} takes?  IMAGE_FILE:
 * mounted (from a file or a loop device), IMAGE_DIRECTORY: unpacked,
 * IMAGE_AUTO: no.  One statfs for a mount, one access more for a directory.
 */
enum image_way layer_ready(const struct layer_node *n, const struct digest *d,
			   enum image_way way);

/* Is it, being mounted, a mount of loop devices? */
bool layer_on_loop(const struct layer_node *n, const struct digest *d);

/* layer_each(n, fn, arg, e): every layer that is mounted or unpacked; ends
 * early with what ${fn} returned if that is not 0. */
typedef int layer_each_fn(void *arg, const struct digest *d, enum image_way way,
			  struct err *e);
int layer_each(const struct layer_node *n, layer_each_fn *fn, void *arg,
	       struct err *e);

/*
 * layer_unmount(n, d, e):
 * Unmount it, or take its directory out of use (layer_sweep() removes that);
 * absent is fine.  The caller holds the ledger's lock and knows that no claim
 * names ${d}.  "busy": it is being mounted just now.
 */
int layer_unmount(const struct layer_node *n, const struct digest *d,
		  struct err *e);

/* layer_sweep(n, e): remove what unpacking that was cut short and
 * layer_unmount() left; needs no lock and may take its time. */
int layer_sweep(const struct layer_node *n, struct err *e);

/* --- mount.c ------------------------------------------------------------ */

/*
 * layer_mount(n, s, d, way, ret_way, e):
 * Have the layer ${d} of ${s} there: nothing to do if it is, else its metadata
 * is checked (store_tree()), a lease taken where the store is ours to write,
 * and it is mounted or unpacked by ${way}; with IMAGE_AUTO by the first that
 * works. How into *${ret_way}.  Killed anywhere on the way, it leaves at most
 * an empty directory, a lease or a hidden half directory, which the next one
 * mends.
 */
int layer_mount(const struct layer_node *n, const struct store *s,
		const struct digest *d, enum image_way way,
		enum image_way *ret_way, struct err *e);

/* layer_lease_drop(n, s, d, e): after layer_unmount(), where there is one. */
int layer_lease_drop(const struct layer_node *n, const struct store *s,
		     const struct digest *d, struct err *e);

/*
 * layer_leases_tidy(n, s, used, nused, e): drop leases of this node for layers
 * that are not here: of a mount that was killed, of one that a reboot ended.
 * Not those of ${used}, which claims name: they may be mounted in another
 * namespace.
 */
int layer_leases_tidy(const struct layer_node *n, const struct store *s,
		      const struct digest *used, size_t nused, struct err *e);

#endif
