/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/proc.h"
#include "life/uses.h"
#include "doctor.h"
#include "img/mount.h"

#define UNMOUNT_MS 60000

/* Layers that are there, and which of them somebody needs. */
struct seen {
	json_t *list;
	struct digest *used;
	size_t nused;
};

static int note_used(void *arg, const char *type, const char *id,
		     const char *name, const struct digest *layers, size_t n,
		     struct err *e)
{
	struct seen *s = arg;
	struct digest *p;

	(void)type;
	(void)id;
	(void)name;
	p = realloc(s->used, (s->nused + n) * sizeof(*p));
	if (!p)
		return err_sys(e, ENOMEM, "layers");
	s->used = p;
	for (size_t i = 0; i < n; i++)
		s->used[s->nused++] = layers[i];
	return 0;
}

static int note_layer(void *arg, const struct digest *digest,
		      enum image_way way, struct err *e)
{
	struct seen *s = arg;
	char text[DIGEST_HEX + 8] = "sha256:";
	bool used = false;
	json_t *rec;

	for (size_t i = 0; i < s->nused; i++)
		used |= digest_eq(&s->used[i], digest);
	digest_hex(digest, text + strlen(text));
	/* A loop device looks like a file from here. */
	rec = json_pack("{s:s, s:s, s:b}", "digest", text, "way",
			way == IMAGE_DIRECTORY ? "directory" : "mount", "used",
			used);
	return json_array_append_new(s->list, rec) < 0
		       ? err_sys(e, ENOMEM, "layers")
		       : 0;
}

static int layer_list(const struct doctor *d, json_t **ret_list, struct err *e)
{
	const struct layer_node n = {.run = d->tree.run, .lib = d->tree.lib};
	struct seen s = {.list = json_array()};
	int r;

	if (!s.list)
		return err_sys(e, ENOMEM, "layers");
	r = uses_layers(&d->tree, note_used, &s, e);
	if (r == 0)
		r = layer_each(&n, note_layer, &s, e);
	free(s.used);
	if (r < 0)
		json_decref(s.list);
	else
		*ret_list = s.list;
	return r;
}

static size_t unused(const json_t *list)
{
	size_t i, n = 0;
	json_t *v;

	json_array_foreach(list, i, v)
		n += !json_flag(v, "used");
	return n;
}

/* One that no sandbox uses waits for the next that does: it is no leak. */
void check_layer_mounts(struct doctor *d)
{
	struct err e = {0};
	json_t *list = NULL;

	if (layer_list(d, &list, &e) < 0) {
		d_finding(d, "mounts", SEV_WARNING, NULL, "%s", e.msg);
		return;
	}
	d_value(d, "layers", (int64_t)json_array_size(list));
	d_value(d, "layers_unused", (int64_t)unused(list));
	json_decref(d->mounts);
	d->mounts = list;
}

int fix_layer_mounts(struct doctor *d, struct err *e)
{
	char program[PATH_MAX];
	const char *const argv[] = {program, "unmount", "--all", NULL};
	auto_json json_t *list = NULL;
	int r;

	r = layer_list(d, &list, e);
	if (r < 0 || unused(list) == 0)
		return r;
	r = proc_program("dsec-img", program, sizeof(program), e);
	if (r == 0)
		r = proc_run(argv, -1, -1, UNMOUNT_MS, e);
	if (r > 0)
		return err_set(e, -EIO, "io",
			       "%s unmount --all ended with status %d", program,
			       r);
	if (r == 0)
		d_fixed(d, "unmounted %zu layers that no sandbox uses",
			unused(list));
	return r;
}
