/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From names to layers: what tags and manifests of the store say.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "img/host.h"
#include "img/image_priv.h"
#include "img/mount.h"

#define PRUNE_GRACE_S 86400

static int bad_config(struct err *e, const char *path, const char *key)
{
	return err_set(e, -EINVAL, "configuration",
		       "'%s': '%s' is unknown or has a value it cannot have",
		       path, key);
}

static int take_config(struct image_config *c, const char *key, json_t *v)
{
	const char *s = json_string_value(v);
	json_int_t n = json_integer_value(v);

	if (!strcmp(key, "store") && s && s[0] == '/')
		return snprintf(c->store, sizeof(c->store), "%s", s) < PATH_MAX
			       ? 0
			       : -ENAMETOOLONG;
	if (!strcmp(key, "mount") && s)
		return image_way_parse(s, &c->way);
	if (!strcmp(key, "prune_grace_s") && json_is_integer(v) && n >= 0 &&
	    n <= INT32_MAX) {
		c->prune_grace_s = (unsigned)n;
		return 0;
	}
	return -EINVAL;
}

int image_config_load(const char *config_dir, const char *lib,
		      struct image_config *ret, struct err *e)
{
	struct image_config c = {.prune_grace_s = PRUNE_GRACE_S};
	auto_json json_t *obj = NULL;
	char path[PATH_MAX];
	const char *key;
	json_t *v;
	int r;

	if (snprintf(c.store, sizeof(c.store), "%s/img/store", lib) >=
		    PATH_MAX ||
	    snprintf(path, sizeof(path), "%s/images.json", config_dir) >=
		    PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "path");
	r = json_read_file(AT_FDCWD, path, &obj, e);
	if (r == -EBADMSG || r == -EFBIG)
		return err_set(e, r, "configuration",
			       "'%s' is not a JSON object", path);
	if (r < 0 && r != -ENOENT)
		return r;
	json_object_foreach(obj, key, v) {
		if (take_config(&c, key, v) < 0)
			return bad_config(e, path, key);
	}
	*ret = c;
	return 0;
}

/* The file of a name as it is now, before it is read: a tag that changes in
 * between is noticed the next time. */
static int note_tag(const struct store *s, const struct img_name *name,
		    struct image *img, struct err *e)
{
	char path[PATH_MAX];
	struct image_tag *p;
	struct stat st = {0};

	if (name->by_digest)
		return 0;
	if (snprintf(path, sizeof(path), "%s/tag/%s/%s/%s.json", s->path,
		     name->project, name->name, name->version) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "%s", s->path);
	p = realloc(img->tags, (img->ntags + 1) * sizeof(*p));
	if (!p)
		return err_sys(e, ENOMEM, "image");
	img->tags = p;
	p += img->ntags;
	(void)stat(path, &st);
	*p = (struct image_tag){
		.path = strdup(path),
		.mtime = st.st_mtim,
		.ino = st.st_ino,
	};
	if (!p->path)
		return err_sys(e, ENOMEM, "image");
	img->ntags++;
	return 0;
}

static int join(struct image *img, const json_t *upper, struct err *e)
{
	json_t *all = NULL;
	int r;

	if (!upper)
		return 0;
	r = config_join(img->config, upper, &all, e);
	if (r < 0)
		return r;
	json_decref(img->config);
	img->config = all;
	return 0;
}

/* One that was there already moves up. */
static void drop_layer(struct image *img, const struct digest *d)
{
	for (size_t i = 0; i < img->nlayers; i++) {
		if (!img->layers[i].stored ||
		    !digest_eq(&img->layers[i].digest, d))
			continue;
		free(img->layers[i].path);
		img->nlayers--;
		memmove(&img->layers[i], &img->layers[i + 1],
			(img->nlayers - i) * sizeof(img->layers[0]));
		return;
	}
}

static int add_layer(const struct store *s, const struct digest *d,
		     const json_t *manifest, struct image *img, struct err *e)
{
	auto_layer struct layer layer = {.ndevices = 0};
	struct image_layer *p;
	size_t stored = 0;
	int r;

	r = manifest ? layer_parse(manifest, &layer, e)
		     : store_layer(s, d, &layer, e);
	if (r == 0)
		r = join(img, layer.config, e);
	if (r < 0)
		return r;
	drop_layer(img, d);
	for (size_t i = 0; i < img->nlayers; i++)
		stored += img->layers[i].stored;
	if (stored >= ENV_LAYERS_MAX)
		return err_set(e, -E2BIG, "bad_value",
			       "over %d layers: merge some of them",
			       ENV_LAYERS_MAX);
	p = realloc(img->layers, (img->nlayers + 1) * sizeof(*p));
	if (!p)
		return err_sys(e, ENOMEM, "layers");
	img->layers = p;
	p[img->nlayers++] = (struct image_layer){.digest = *d, .stored = true};
	return 0;
}

static int add_env(const struct store *s, const json_t *manifest,
		   struct image *img, struct err *e)
{
	struct env env = {.nlayers = 0};
	int r;

	r = env_parse(manifest, &env, e);
	for (size_t i = 0; r == 0 && i < env.nlayers; i++)
		r = add_layer(s, &env.layers[i], NULL, img, e);
	if (r == 0)
		r = join(img, env.config, e);
	env_done(&env);
	return r;
}

static int add_name(const struct store *s, const char *text, struct image *img,
		    struct err *e)
{
	auto_json json_t *manifest = NULL;
	struct img_name name;
	struct digest digest;
	int r;

	if (!strcmp(text, "host"))
		return err_set(e, -EINVAL, "bad_value",
			       "'host' is an image, and no layer");
	r = img_name_parse(text, &name, e);
	if (r < 0)
		return r;
	r = note_tag(s, &name, img, e);
	if (r == 0)
		r = store_resolve(s, &name, &digest, e);
	if (r == -ENOENT)
		return r; /* of that name, which it says */
	if (r == 0)
		r = store_manifest(s, &digest, &manifest, e);
	if (r == 0)
		r = manifest_is_env(manifest)
			    ? add_env(s, manifest, img, e)
			    : add_layer(s, &digest, manifest, img, e);
	return r < 0 ? err_wrap(e, r, "image '%s'", text) : 0;
}

static int list_digests(struct image *img, struct err *e)
{
	char hex[DIGEST_HEX + 1];

	img->digests = json_array();
	if (!img->digests)
		return err_sys(e, ENOMEM, "image");
	for (size_t i = 0; i < img->nlayers; i++) {
		const struct image_layer *l = &img->layers[i];

		if (l->stored &&
		    json_array_append_new(img->digests,
					  json_string(digest_hex(&l->digest,
								 hex))) < 0)
			return err_sys(e, ENOMEM, "image");
	}
	return 0;
}

int image_add_stored(const struct image_where *where, const char *name,
		     const json_t *layers, struct image *img, struct err *e)
{
	auto_store struct store s = STORE_INIT;
	struct image_config config;
	char path[PATH_MAX];
	json_t *v;
	size_t i;
	int r;

	r = image_config_load(where->config, where->lib, &config, e);
	if (r == 0)
		r = store_open(config.store, &s, e);
	if (r < 0)
		return r;
	img->way = config.way;
	if (!img->config)
		img->config = json_object();
	if (!img->config)
		return err_sys(e, ENOMEM, "image");
	if (name)
		r = add_name(&s, name, img, e);
	json_array_foreach(layers, i, v) {
		if (r == 0)
			r = add_name(&s, json_string_value(v), img, e);
	}
	/* Names of hosts are the platform's, whatever the image has there. */
	if (r == 0 && name)
		r = host_etc(where->lib, path, sizeof(path), e);
	if (r == 0 && name)
		r = image_add_dir(img, path, e);
	return r < 0 ? r : list_digests(img, e);
}

/* Where ${l} is now; false: nowhere. */
static bool locate(const struct layer_node *n, enum image_way way,
		   struct image_layer *l, struct err *e, int *r)
{
	enum image_way is = layer_ready(n, &l->digest, way);
	bool mounted = is == IMAGE_FILE;
	char path[PATH_MAX];

	if (is == IMAGE_AUTO)
		return false;
	if (l->path && l->mounted == mounted)
		return true;
	*r = mounted ? layer_mount_path(n->run, &l->digest, path, e)
		     : layer_dir_path(n->lib, &l->digest, path, e);
	if (*r < 0)
		return true;
	free(l->path);
	l->path = strdup(path);
	l->mounted = mounted;
	if (!l->path)
		*r = err_sys(e, ENOMEM, "layers");
	return true;
}

int image_missing(struct image *img, const struct image_where *where,
		  const struct digest **ret, struct err *e)
{
	const struct layer_node n = {.run = where->run, .lib = where->lib};
	int r = 0;

	*ret = NULL;
	for (size_t i = 0; r == 0 && i < img->nlayers; i++) {
		struct image_layer *l = &img->layers[i];

		if (l->stored && !locate(&n, img->way, l, e, &r)) {
			*ret = &l->digest;
			return 0;
		}
	}
	return r;
}
