/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_ENGINE_PRIV_H
#define CKPT_ENGINE_PRIV_H

#include "base/err.h"
#include "ckpt/engine.h"

/*
 * engine_try(t, en, timeout_ms, e):
 * Dump a process in namespaces like a sandbox's, and make it again, each within
 * ${timeout_ms}.  Leaves nothing behind.
 */
#define ENGINE_TRY_MS 15000
int engine_try(const struct tree *t, const struct engine *en,
	       unsigned timeout_ms, struct err *e);

#endif
