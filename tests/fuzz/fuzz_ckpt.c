/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a checkpoint, by the first byte: 'u' the maps of its user
 * namespace, 'l' the engine's log.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "ckpt/ckpt_image.h"
#include "fuzz.h"
#include "sys/engine.h"

static void maps(const uint8_t *data, size_t size)
{
	uint32_t base = 1;
	struct err e = {0};
	int r = ckpt_image_parse_maps(data, size, &base, &e);

	assert(r == 0 || (r == -EBADMSG && e.code && base == 1));
	assert(r < 0 || base <= UINT32_MAX - 65536);
}

static void words(const uint8_t *data, size_t size)
{
	auto_free char *text = strndup((const char *)data, size);
	char out[100];

	if (!text)
		return;
	engine_words_of(text, out, sizeof(out));
	assert(strlen(out) < sizeof(out));
	for (const char *c = out; *c; c++)
		assert(*c >= ' ' && *c <= '~');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	if (data[0] == 'u')
		maps(data + 1, size - 1);
	if (data[0] == 'l')
		words(data + 1, size - 1);
	return 0;
}
