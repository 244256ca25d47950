/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "img/import_priv.h"
#include "img/oci.h"

static int bad(struct err *e, const char *what)
{
	return err_set(e, -EBADMSG, "bad_archive", "%s", what);
}

void oci_image_done(struct oci_image *img)
{
	json_decref(img->config);
	for (size_t i = 0; i < img->nlayers; i++)
		free(img->layers[i].name);
	memset(img, 0, sizeof(*img));
}

/* --- the manifest ------------------------------------------------------------
 */

/* A layer of an OCI manifest: a blob by its digest. */
static int layer_of_descriptor(const json_t *d, struct oci_layer *ret,
			       struct err *e)
{
	static const char *const types[] = {
		"application/vnd.oci.image.layer.",
		"application/vnd.docker.image.rootfs.",
	};
	const char *type = json_str(d, "mediaType");
	char name[OCI_BLOB_NAME], text[IMPORT_NAME_SIZE];
	int64_t size = json_int(d, "size", -1);
	bool known = !*type;

	for (size_t i = 0; i < array_len(types); i++)
		known = known || !strncmp(type, types[i], strlen(types[i]));
	if (!known || strstr(type, "+encrypted"))
		return err_set(e, -EOPNOTSUPP, "unsupported",
			       "layers of the type '%s'",
			       import_name(type, text));
	if (!oci_digest(d, &ret->blob))
		return bad(e, "a layer without a SHA-256 digest");
	if (size < 0)
		return bad(e, "a layer without size");
	ret->has_blob = true;
	ret->blob_bytes = (uint64_t)size;
	ret->name = strdup(oci_blob_name(&ret->blob, name));
	return ret->name ? 0 : err_sys(e, ENOMEM, "image");
}

static int add_layer(struct oci_image *img, const json_t *layer, struct err *e)
{
	struct oci_layer *l = &img->layers[img->nlayers];
	const char *name = json_string_value(layer);
	int r;

	if (img->nlayers == OCI_LAYERS_MAX)
		return err_set(e, -EOPNOTSUPP, "unsupported",
			       "an image of more than %d layers",
			       OCI_LAYERS_MAX);
	if (img->form == OCI_DOCKER && name) {
		l->name = strdup(name);
		if (!l->name)
			return err_sys(e, ENOMEM, "image");
	} else if (img->form == OCI_LAYOUT && json_is_object(layer)) {
		r = layer_of_descriptor(layer, l, e);
		if (r < 0)
			return r;
	} else {
		return bad(e, "the manifest's list of layers is malformed");
	}
	img->nlayers++;
	return 0;
}

static int add_layers(struct oci_image *img, const json_t *list, struct err *e)
{
	const json_t *layer;
	size_t i;
	int r;

	if (!json_is_array(list))
		return bad(e, "the manifest has no list of layers");
	json_array_foreach(list, i, layer) {
		r = add_layer(img, layer, e);
		if (r < 0)
			return r;
	}
	return 0;
}

/* --- the configuration -------------------------------------------------------
 */

static int read_config(struct oci_files *f, struct oci_image *img,
		       const char *name, bool named_by_digest, struct err *e)
{
	struct oci_part part = {.fd = -1};
	struct source *s = NULL;
	int r;

	r = oci_files_json(f, name, named_by_digest ? &img->digest : NULL,
			   &img->config, e);
	if (r < 0 || named_by_digest)
		return r;
	/* Its digest is the image's id, whatever the file is called. */
	r = oci_files_find(f, name, &part, e);
	if (r < 0)
		return r;
	r = source_open(part.fd, part.off, part.len,
			SOURCE_RAW | SOURCE_HASH_RAW, &s, e);
	if (r == 0)
		r = source_end(s, e);
	if (r == 0)
		source_digest_raw(s, &img->digest);
	source_free(s);
	fd_close(part.fd);
	return r;
}

/* "<hex>.json" or "blobs/sha256/<hex>" say what the bytes must be. */
static bool digest_of_name(const char *name, struct digest *ret)
{
	const char *slash = strrchr(name, '/');
	char hex[DIGEST_HEX + 1];
	size_t n;

	name = slash ? slash + 1 : name;
	n = strcspn(name, ".");
	if (n != DIGEST_HEX || (name[n] && strcmp(name + n, ".json")))
		return false;
	memcpy(hex, name, n);
	hex[n] = '\0';
	return digest_parse(hex, ret) == 0;
}

static int open_config(struct oci_files *f, struct oci_image *img,
		       const json_t *manifest, struct err *e)
{
	const json_t *d = json_object_get(manifest, "config");
	char name[OCI_BLOB_NAME];

	if (img->form == OCI_DOCKER) {
		const char *file = json_str(manifest, "Config");

		if (!*file)
			return bad(e, "manifest.json names no configuration");
		return read_config(f, img, file,
				   digest_of_name(file, &img->digest), e);
	}
	if (!oci_digest(d, &img->digest))
		return bad(e, "a configuration without a SHA-256 digest");
	return read_config(f, img, oci_blob_name(&img->digest, name), true, e);
}

static int take_diff_ids(struct oci_image *img, struct err *e)
{
	const json_t *fs = json_object_get(img->config, "rootfs");
	const json_t *ids = json_object_get(fs, "diff_ids");

	if (!json_is_array(ids))
		return bad(e, "the configuration has no list of diff_ids");
	if (json_array_size(ids) != img->nlayers)
		return bad(e, "manifest and configuration disagree about the "
			      "number of layers");
	for (size_t i = 0; i < img->nlayers; i++) {
		const char *s = json_string_value(json_array_get(ids, i));

		if (!s || strncmp(s, "sha256:", 7) ||
		    digest_parse(s, &img->layers[i].diff_id) < 0)
			return bad(e, "a diff_id that is no SHA-256 digest");
	}
	return 0;
}

/* An index may have said nothing: here it is written. */
static int check_platform(const struct oci_image *img, const char *platform,
			  struct err *e)
{
	const char *os = json_str(img->config, "os");
	const char *arch = json_str(img->config, "architecture");
	char os_text[IMPORT_NAME_SIZE], arch_text[IMPORT_NAME_SIZE];

	if (oci_platform_is(platform, os, arch))
		return 0;
	return err_set(e, -ENOENT, "image_unknown",
		       "the image is for %.60s/%.60s%s",
		       import_name(os, os_text), import_name(arch, arch_text),
		       platform ? "" : ": say --platform if it is wanted");
}

int oci_image_open(struct oci_files *f, const char *ref, const char *platform,
		   struct oci_image *ret, struct err *e)
{
	auto_json json_t *manifest = NULL;
	struct oci_image img = {.form = oci_files_form(f)};
	int r;

	if (img.form == OCI_NONE)
		return bad(e, "no image: it has neither manifest.json nor "
			      "index.json");
	r = oci_choose(f, ref, platform, &manifest, e);
	if (r == 0)
		r = add_layers(&img,
			       json_object_get(manifest, img.form == OCI_DOCKER
								 ? "Layers"
								 : "layers"),
			       e);
	if (r == 0)
		r = open_config(f, &img, manifest, e);
	if (r == 0)
		r = check_platform(&img, platform, e);
	if (r == 0)
		r = take_diff_ids(&img, e);
	if (r < 0) {
		oci_image_done(&img);
		return r;
	}
	*ret = img;
	return 0;
}

/* --- for a layer's manifest --------------------------------------------------
 */

static int put(json_t *obj, const char *key, json_t *value, struct err *e)
{
	if (json_object_set_new(obj, key, value) == 0)
		return 0;
	return err_sys(e, ENOMEM, "configuration");
}

/* "K=V", the last of a name counts; one without '=' is no variable. */
static int config_env(const json_t *config, json_t *ret, struct err *e)
{
	const json_t *list = json_object_get(config, "Env"), *item;
	auto_json json_t *env = json_object();
	size_t i;

	json_array_foreach(list, i, item) {
		const char *s = json_string_value(item);
		const char *eq = s ? strchr(s, '=') : NULL;
		auto_free char *key = NULL;

		if (!eq || eq == s)
			continue;
		key = strndup(s, (size_t)(eq - s));
		if (!key || put(env, key, json_string(eq + 1), NULL) < 0)
			return err_sys(e, ENOMEM, "configuration");
	}
	if (json_object_size(env) == 0)
		return 0;
	return put(ret, "env", json_incref(env), e);
}

static bool all_strings(const json_t *list)
{
	const json_t *item;
	size_t i;

	json_array_foreach(list, i, item)
		if (!json_is_string(item))
			return false;
	return json_is_array(list) && json_array_size(list) > 0;
}

static int config_words(const json_t *config, const char *from, json_t *ret,
			const char *to, struct err *e)
{
	json_t *list = json_object_get(config, from);

	if (!list || json_is_null(list) || json_array_size(list) == 0)
		return 0;
	if (!all_strings(list))
		return err_set(e, -EBADMSG, "bad_archive",
			       "the configuration's %s is no list of words",
			       from);
	return put(ret, to, json_incref(list), e);
}

static int config_labels(const json_t *config, json_t *ret, struct err *e)
{
	json_t *labels = json_object_get(config, "Labels"), *value;
	const char *key;

	if (json_object_size(labels) == 0)
		return 0;
	json_object_foreach(labels, key, value)
		if (!json_is_string(value))
			return bad(e, "a label that is no text");
	return put(ret, "labels", json_incref(labels), e);
}

static int config_text(const json_t *config, const char *from, json_t *ret,
		       const char *to, struct err *e)
{
	const char *s = json_str(config, from);

	return *s ? put(ret, to, json_string(s), e) : 0;
}

int oci_config(const struct oci_image *img, json_t **ret, struct err *e)
{
	const json_t *config = json_object_get(img->config, "config");
	auto_json json_t *obj = json_object();
	int r;

	if (!obj)
		return err_sys(e, ENOMEM, "configuration");
	r = config_env(config, obj, e);
	if (r == 0)
		r = config_text(config, "User", obj, "user", e);
	if (r == 0)
		r = config_text(config, "WorkingDir", obj, "workdir", e);
	if (r == 0)
		r = config_words(config, "Entrypoint", obj, "entrypoint", e);
	if (r == 0)
		r = config_words(config, "Cmd", obj, "cmd", e);
	if (r == 0)
		r = config_labels(config, obj, e);
	if (r == 0)
		r = config_text(img->config, "architecture", obj, "arch", e);
	if (r == 0)
		*ret = json_incref(obj);
	return r;
}

/* --- layers ------------------------------------------------------------------
 */

int oci_layer_open(struct oci_files *f, const struct oci_layer *layer,
		   struct oci_part *ret_part, struct source **ret,
		   struct err *e)
{
	struct oci_part part = {.fd = -1};
	unsigned flags = SOURCE_HASH_OUT;
	int r;

	r = oci_files_find(f, layer->name, &part, e);
	if (r < 0)
		return r;
	/* The same bytes need not be looked at twice. */
	if (layer->has_blob && !digest_eq(&layer->blob, &layer->diff_id))
		flags |= SOURCE_HASH_RAW;
	if (layer->has_blob && part.len != layer->blob_bytes)
		r = bad(e, "a layer's size is not what its manifest says");
	else
		r = source_open(part.fd, part.off, part.len, flags, ret, e);
	if (r < 0)
		fd_close(part.fd);
	else
		*ret_part = part;
	return r;
}

int oci_layer_end(const struct oci_layer *layer, struct source *s,
		  struct err *e)
{
	struct digest got;
	int r;

	r = source_end(s, e);
	if (r < 0)
		return r;
	if (layer->has_blob && !digest_eq(&layer->blob, &layer->diff_id)) {
		source_digest_raw(s, &got);
		if (!digest_eq(&got, &layer->blob))
			return bad(e, "a layer's bytes are not what its "
				      "digest says");
	}
	source_digest_out(s, &got);
	if (!digest_eq(&got, &layer->diff_id))
		return bad(e, "a layer's content is not what its diff_id says");
	return 0;
}
