/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "img/export_filter.h"
#include "img/export_oci.h"
#include "img/sha256.h"

#define LAYERS_MAX 128
#define COPY_SIZE  (1024 * 1024)

#define MEDIA "application/vnd.oci.image."

struct one {
	struct digest plain, packed;
	uint64_t bytes;
};

struct export_oci {
	int out, spool;
	enum export_compress compress;
	struct tar_writer w;
	struct one layers[LAYERS_MAX];
	size_t n;
};

int export_compress_parse(const char *s, enum export_compress *ret,
			  struct err *e)
{
	static const char *const names[] = {"none", "gzip", "zstd"};

	for (size_t i = 0; i < array_len(names); i++)
		if (!strcmp(s, names[i])) {
			*ret = (enum export_compress)i;
			return 0;
		}
	return err_set(e, -EINVAL, "bad_value",
		       "'compress' is none, gzip or zstd, not '%.32s'", s);
}

static int on_out(void *arg, const void *data, size_t len, struct err *e)
{
	const struct export_oci *o = arg;

	return fd_write_all(o->out, data, len, e);
}

int export_oci_open(int out, int spool, enum export_compress compress,
		    struct export_oci **ret, struct err *e)
{
	struct export_oci *o = calloc(1, sizeof(*o));

	if (!o)
		return err_sys(e, ENOMEM, "export");
	o->out = out;
	o->spool = spool;
	o->compress = compress;
	o->w.sink = on_out;
	o->w.arg = o;
	*ret = o;
	return 0;
}

void export_oci_free(struct export_oci *o)
{
	if (!o)
		return;
	tar_writer_done(&o->w);
	free(o);
}

/* --- files of the archive ------------------------------------------------ */

static int put_head(struct export_oci *o, const char *path, uint64_t size,
		    struct err *e)
{
	struct tar_entry en = {.type = TAR_FILE,
			       .path = path,
			       .link = "",
			       .size = size,
			       .mode = 0644};

	return tar_write_entry(&o->w, &en, e);
}

static void blob_path(const struct digest *d, char *path, size_t size)
{
	char hex[DIGEST_HEX + 1];

	snprintf(path, size, "blobs/sha256/%s", digest_hex(d, hex));
}

/* ${j} (taken over; NULL: out of memory) as file ${path}, or as a blob. */
static int put_json(struct export_oci *o, const char *path, json_t *j,
		    struct digest *ret, uint64_t *ret_bytes, struct err *e)
{
	auto_free char *text = NULL;
	char blob[128];
	size_t len;
	int r;

	if (j)
		text = json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS);
	json_decref(j);
	if (!text)
		return err_sys(e, ENOMEM, "export");
	len = strlen(text);
	if (ret) {
		if (sha256_of(text, len, ret) < 0)
			return err_sys(e, ENOMEM, "export");
		*ret_bytes = len;
		blob_path(ret, blob, sizeof(blob));
	}
	r = put_head(o, path ? path : blob, len, e);
	return r < 0 ? r : tar_write_data(&o->w, text, len, e);
}

static int put_spool(struct export_oci *o, int fd, const struct one *l,
		     struct err *e)
{
	auto_free char *data = malloc(COPY_SIZE);
	uint64_t off = 0;
	char path[128];
	int r;

	if (!data)
		return err_sys(e, ENOMEM, "export");
	blob_path(&l->packed, path, sizeof(path));
	r = put_head(o, path, l->bytes, e);
	while (r == 0 && off < l->bytes) {
		uint64_t left = l->bytes - off;
		ssize_t n = pread(fd, data,
				  left < COPY_SIZE ? (size_t)left : COPY_SIZE,
				  (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return err_sys(e, n < 0 ? errno : EIO,
				       "read what was written");
		r = tar_write_data(&o->w, data, (size_t)n, e);
		off += (uint64_t)n;
	}
	return r;
}

/* --- layers -------------------------------------------------------------- */

static int nameless(int dirfd, struct err *e)
{
	char name[64];
	int fd;

	fd = openat(dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
		return fd < 0 ? err_sys(e, errno, "temporary file") : fd;
	snprintf(name, sizeof(name), ".export.%d", (int)getpid());
	fd = openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_sys(e, errno, "temporary file");
	unlinkat(dirfd, name, 0);
	return fd;
}

static int write_layer(const struct export_oci *o, const struct export_tar *x,
		       int fd, struct one *l, struct err *e)
{
	struct export_filter *f = NULL;
	struct tar_writer w = {.sink = export_filter_write};
	int r;

	r = export_filter_open(fd, o->compress, &f, e);
	if (r < 0)
		return r;
	w.arg = f;
	r = export_tar(x, &w, e);
	if (r == 0)
		r = export_filter_end(f, &l->plain, &l->packed, &l->bytes, e);
	tar_writer_done(&w);
	export_filter_free(f);
	return r;
}

int export_oci_layer(struct export_oci *o, const struct export_tar *x,
		     struct err *e)
{
	struct one *l = &o->layers[o->n];
	auto_close int fd = -1;
	int r;

	if (o->n == LAYERS_MAX)
		return err_set(e, -E2BIG, "too_large", "over %d layers",
			       LAYERS_MAX);
	fd = nameless(o->spool, e);
	if (fd < 0)
		return fd;
	r = write_layer(o, x, fd, l, e);
	if (r < 0)
		return r;
	for (size_t i = 0; i < o->n; i++)
		if (digest_eq(&o->layers[i].packed, &l->packed))
			return o->n++, 0;
	o->n++;
	return put_spool(o, fd, l, e);
}

/* --- what describes them ------------------------------------------------- */

static json_t *digest_json(const struct digest *d)
{
	char hex[DIGEST_HEX + 1];

	return json_sprintf("sha256:%s", digest_hex(d, hex));
}

static json_t *descriptor(const char *type, const struct digest *d,
			  uint64_t bytes)
{
	return json_pack("{s:s, s:o, s:I}", "mediaType", type, "digest",
			 digest_json(d), "size", (json_int_t)bytes);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* "K=V" in the order of names: an object has none of its own. */
static json_t *env_list(const json_t *env)
{
	const char **keys = calloc(json_object_size(env) + 1, sizeof(*keys));
	json_t *list = keys ? json_array() : NULL, *v;
	const char *key;
	size_t n = 0;

	json_object_foreach((json_t *)(uintptr_t)env, key, v)
		if (keys && json_is_string(v))
			keys[n++] = key;
	if (keys)
		qsort(keys, n, sizeof(*keys), by_name);
	for (size_t i = 0; i < n; i++)
		json_array_append_new(list,
				      json_sprintf("%s=%s", keys[i],
						   json_str(env, keys[i])));
	free(keys);
	return list;
}

static json_t *run_config(const json_t *config)
{
	static const char *const keys[][2] = {
		{"user", "User"},     {"workdir", "WorkingDir"},
		{"cmd", "Cmd"},	      {"entrypoint", "Entrypoint"},
		{"labels", "Labels"},
	};
	json_t *out = json_object(), *v;

	v = json_object_get(config, "env");
	if (json_object_size(v) > 0)
		json_object_set_new(out, "Env", env_list(v));
	for (size_t i = 0; i < array_len(keys); i++) {
		v = json_object_get(config, keys[i][0]);
		if (v)
			json_object_set(out, keys[i][1], v);
	}
	return out;
}

static const char *this_arch(void)
{
#if defined(__aarch64__)
	return "arm64";
#else
	return "amd64";
#endif
}

static json_t *config_json(const struct export_oci *o, const json_t *config)
{
	const char *arch = json_str(config, "arch");
	json_t *ids = json_array(), *history = json_array();

	for (size_t i = 0; i < o->n; i++) {
		json_array_append_new(ids, digest_json(&o->layers[i].plain));
		json_array_append_new(history, json_pack("{s:s}", "created_by",
							 "dsec-img export"));
	}
	return json_pack("{s:s, s:s, s:s, s:o, s:{s:s, s:o}, s:o}", "created",
			 "1970-01-01T00:00:00Z", "architecture",
			 *arch ? arch : this_arch(), "os", "linux", "config",
			 run_config(config), "rootfs", "type", "layers",
			 "diff_ids", ids, "history", history);
}

static json_t *manifest_json(const struct export_oci *o,
			     const struct digest *config, uint64_t bytes)
{
	static const char *const types[] = {
		[EXPORT_PLAIN] = MEDIA "layer.v1.tar",
		[EXPORT_GZIP] = MEDIA "layer.v1.tar+gzip",
		[EXPORT_ZSTD] = MEDIA "layer.v1.tar+zstd",
	};
	json_t *layers = json_array();

	for (size_t i = 0; i < o->n; i++)
		json_array_append_new(layers, descriptor(types[o->compress],
							 &o->layers[i].packed,
							 o->layers[i].bytes));
	return json_pack("{s:i, s:s, s:o, s:o}", "schemaVersion", 2,
			 "mediaType", MEDIA "manifest.v1+json", "config",
			 descriptor(MEDIA "config.v1+json", config, bytes),
			 "layers", layers);
}

static json_t *index_json(const struct digest *manifest, uint64_t bytes,
			  const char *name)
{
	json_t *d = descriptor(MEDIA "manifest.v1+json", manifest, bytes);

	if (d && name)
		json_object_set_new(
			d, "annotations",
			json_pack("{s:s}", "org.opencontainers.image.ref.name",
				  name));
	return json_pack("{s:i, s:s, s:[o]}", "schemaVersion", 2, "mediaType",
			 MEDIA "index.v1+json", "manifests", d);
}

static json_t *docker_json(const struct export_oci *o,
			   const struct digest *config, const char *name)
{
	json_t *layers = json_array(), *tags = json_array();
	char path[128];

	for (size_t i = 0; i < o->n; i++) {
		blob_path(&o->layers[i].packed, path, sizeof(path));
		json_array_append_new(layers, json_string(path));
	}
	if (name)
		json_array_append_new(tags, json_string(name));
	blob_path(config, path, sizeof(path));
	return json_pack("[{s:s, s:o, s:o}]", "Config", path, "RepoTags", tags,
			 "Layers", layers);
}

int export_oci_end(struct export_oci *o, const json_t *config, const char *name,
		   struct digest *ret_manifest, struct err *e)
{
	struct digest cfg = {0};
	uint64_t bytes = 0;
	int r;

	r = put_json(o, NULL, config_json(o, config), &cfg, &bytes, e);
	if (r == 0)
		r = put_json(o, NULL, manifest_json(o, &cfg, bytes),
			     ret_manifest, &bytes, e);
	if (r == 0)
		r = put_json(o, "index.json",
			     index_json(ret_manifest, bytes, name), NULL, NULL,
			     e);
	if (r == 0)
		r = put_json(o, "oci-layout",
			     json_pack("{s:s}", "imageLayoutVersion", "1.0.0"),
			     NULL, NULL, e);
	if (r == 0)
		r = put_json(o, "manifest.json", docker_json(o, &cfg, name),
			     NULL, NULL, e);
	return r < 0 ? r : tar_write_end(&o->w, e);
}
