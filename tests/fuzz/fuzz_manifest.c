/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a store says of its images, by the first byte: 'm' a manifest, 'i' the
 * index of a blob (with the root it would have), 'n' a name.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "fuzz.h"
#include "img/blob.h"
#include "img/manifest.h"
#include "img/name.h"
#include "img/sha256.h"

static void layer(const json_t *obj)
{
	auto_layer struct layer l = {.kind = LAYER_BASE};
	auto_layer struct layer l2 = {.kind = LAYER_BASE};
	auto_json json_t *out = NULL;
	auto_json json_t *out2 = NULL;
	struct err e = {0};

	if (layer_parse(obj, &l, &e) < 0) {
		assert(e.code);
		return;
	}
	assert(l.ndevices <= FS_DEVICES_MAX && l.meta_bytes > 0);
	for (size_t i = 0; i < l.ndevices; i++)
		assert(l.devices[i].blocks > 0);
	/* what is taken can be written, and is the same then */
	assert(layer_json(&l, &out, &e) == 0);
	assert(layer_parse(out, &l2, &e) == 0);
	assert(layer_json(&l2, &out2, &e) == 0);
	assert(json_equal(out, out2));
}

static void env(const json_t *obj)
{
	auto_env struct env v = {.nlayers = 0};
	auto_env struct env v2 = {.nlayers = 0};
	auto_json json_t *out = NULL;
	auto_json json_t *both = NULL;
	struct err e = {0};

	if (env_parse(obj, &v, &e) < 0) {
		assert(e.code);
		return;
	}
	assert(v.nlayers > 0 && v.nlayers <= ENV_LAYERS_MAX);
	assert(env_json(&v, &out, &e) == 0);
	assert(env_parse(out, &v2, &e) == 0);
	assert(config_join(v.config, v2.config, &both, &e) == 0);
	assert(json_equal(both, v.config));
}

static void manifest(const uint8_t *data, size_t size)
{
	auto_json json_t *obj = NULL;
	struct err e = {0};

	if (json_parse((const char *)data, size, &obj, &e) < 0)
		return;
	layer(obj);
	env(obj);
}

static void idx(const uint8_t *data, size_t size)
{
	auto_close int fd = memfd_create("idx", MFD_CLOEXEC);
	auto_close int none = memfd_create("none", MFD_CLOEXEC);
	struct blob_dict *dict = blob_dict_new();
	struct fsdevice dev = {.blocks = 0};
	struct err e = {0};
	int r, r2;

	if (fd < 0 || none < 0 || !dict ||
	    fd_write_all(fd, data, size, NULL) < 0 ||
	    sha256_of(data, size, &dev.root) < 0)
		abort();
	r = blob_dict_add(dict, fd, &dev.root, &e);
	assert(r == 0 || e.code);
	/* the data of nobody: good only for the index of nothing */
	r2 = blob_verify(none, fd, &dev.root, &e);
	assert(r2 == 0 || (r2 == -EBADMSG && e.code));
	assert(r == 0 || r2 < 0);
	blob_dict_free(dict);
}

static void name(const uint8_t *data, size_t size)
{
	char buf[IMG_NAME_MAX + 1], again[IMG_NAME_MAX + 1];
	auto_free char *s = strndup((const char *)data, size);
	struct img_name n, n2;
	struct err e = {0};

	if (!s || img_name_parse(s, &n, &e) < 0) {
		assert(!s || e.code);
		return;
	}
	assert(!strstr(img_name_str(&n, buf), ".."));
	assert(img_name_parse(buf, &n2, &e) == 0);
	assert(!strcmp(img_name_str(&n2, again), buf));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	switch (data[0]) {
	case 'm':
		manifest(data + 1, size - 1);
		break;
	case 'i':
		idx(data + 1, size - 1);
		break;
	case 'n':
		name(data + 1, size - 1);
		break;
	default:
		break;
	}
	return 0;
}
