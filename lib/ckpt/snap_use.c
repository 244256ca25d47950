/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "ckpt/ckpt.h"
#include "ckpt/engine.h"
#include "ckpt/snap.h"
#include "img/image.h"

static int check_layers(const struct tree *t, const json_t *spec, struct err *e)
{
	const struct image_where w = {t->run, t->lib, t->config};
	int r = image_check(&w, spec, e);

	if (r < 0 && e && !strcmp(e->code, "image_unknown"))
		e->code = "incompatible";
	return r;
}

int snap_fits(const struct tree *t, const struct ckpt *c, struct err *e)
{
	struct engine engine;
	int r;

	/* What cannot be otherwise tells more than an engine that is not
	 * there. */
	r = check_layers(t, c->spec, e);
	if (r < 0 || !c->processes)
		return r;
	r = engine_get(t, &engine, e);
	return r < 0 ? r : ckpt_fits(c, engine.version, e);
}

int snap_source_open(const struct tree *t, const char *project,
		     const char *word, bool fs_only, struct snap_source *ret,
		     struct err *e)
{
	struct snap_source s = SNAP_SOURCE_INIT;
	auto_ckpt struct ckpt c = {0};
	auto_close int dir = -1;
	int r;

	r = snap_open(t, project, word, SNAP_USE, &s.snap, e);
	if (r < 0)
		return r;
	dir = openat(s.snap.dir, "ckpt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = dir < 0 ? err_sys(e, errno, "open its checkpoint")
		    : ckpt_read(dir, &c, e);
	if (r == 0 && fs_only)
		c.processes = false;
	if (r == 0)
		r = snap_fits(t, &c, e);
	if (r == 0) {
		s.memory = c.processes;
		s.spec = json_deep_copy(c.spec);
		if (!s.spec)
			r = err_sys(e, ENOMEM, "spec");
	}
	if (r < 0) {
		snap_source_done(&s);
		return err_wrap(e, r, "snapshot '%s'", word);
	}
	*ret = s;
	return 0;
}

void snap_source_done(struct snap_source *s)
{
	snap_close(&s->snap);
	json_decref(s->spec);
	s->spec = NULL;
}
