/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_RESIDUE_SCAN_H
#define IMG_RESIDUE_SCAN_H

#include "img/blob.h"
#include "img/residue.h"

/*
 * What whoever grades would not want inside a layer.  Findings are guesses by
 * name, mode and content; each tells its rule:
 *
 *   the residue rules, pycache apart    a file, or a directory for all below
 *   setuid, setgid, capability          files that give rights when executed
 *   world-writable                      directories without the sticky bit
 *   device                              character and block devices
 *   answer                              solution*, answer*, *.orig, *.rej.. by
 *                                       name, but for /usr, /etc and /var
 *   secret                              keys and tokens in small text files
 *   git-history                         a repository with more than its HEAD:
 *                                       packs, loose objects
 */
#define SCAN_TEXT_MAX (256 * 1024) /* bytes of a file that is read */

/* ${detail}: what it is, "" where the rule says it all. */
typedef int scan_fn(void *arg, const char *rule, const char *path,
		    const char *detail, struct err *e);

/* Before each entry, whatever is found in it. */
typedef int scan_step_fn(void *arg, struct err *e);

/* scan_tree(t, reader, fn, step, arg, e): ends early with what ${fn} or ${step}
 * returned if that is not 0. */
int scan_tree(struct fstree *t, struct blob_reader *reader, scan_fn *fn,
	      scan_step_fn *step, void *arg, struct err *e);

/* scan_secret(data, len): what kind of secret is in it, or NULL. */
const char *scan_secret(const char *data, size_t len);

#endif
