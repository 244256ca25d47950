/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_ENGINE_H
#define CKPT_ENGINE_H

#include "base/err.h"
#include "box/tree.h"
#include "sys/engine.h"

/*
 * Which checkpoint engine this node has, and whether it works here: it has
 * dumped a process in namespaces of its own and made it again, within a time
 * limit.  A version says little: there are ones that pass their own check and
 * then hang.  What came out is kept in $DSEC_RUN/engine.json, for that very
 * file, kernel and boot.
 */

/* What takes longer than this has come to a stop. */
#define ENGINE_TIMEOUT_MAX (10 * 60 * 1000)

/*
 * engine_find(t, ret, e):
 * The program of $DSEC_CONFIG/engine.json {"criu":"/PATH","timeout_ms":N}, each
 * of which may be missing, else /usr/lib/dsec/engine/usr/sbin/criu (make deps),
 * else criu by PATH; opened, not run.  "unsupported" when there is none,
 * "configuration" where engine.json is wrong.
 */
int engine_find(const struct tree *t, struct engine *ret, struct err *e);

/*
 * engine_get(t, ret, e):
 * engine_find(), and it was tried on this node with success: from the record
 * of an earlier try, else by trying now (a second or two, once per boot).
 * "unsupported", with the reason, where it does not work.  A failed try is
 * believed for a minute only: a busy node may have been the reason.
 */
int engine_get(const struct tree *t, struct engine *ret, struct err *e);

/* engine_probe(t, ret, e): the same, and tries it now in any case. */
int engine_probe(const struct tree *t, struct engine *ret, struct err *e);

/*
 * engine_run_dir(t, buf, e): for struct engine_run: the directory that an
 * engine sees as /run, made where it was not there, into buf[PATH_MAX].
 */
int engine_run_dir(const struct tree *t, char *buf, struct err *e);

#endif
