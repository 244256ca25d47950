/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_ENGINE_PRIV_H
#define BOX_ENGINE_PRIV_H

#include "base/err.h"
#include "box/engine.h"

/*
 * engine_try(t, en, e):
 * Dump a process in namespaces like a sandbox's, and make it again.  Takes
 * ENGINE_TRY_MS at most, leaves nothing behind.
 */
#define ENGINE_TRY_MS 40000
int engine_try(const struct tree *t, const struct engine *en, struct err *e);

#endif
