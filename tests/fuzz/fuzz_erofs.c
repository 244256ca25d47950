/* SPDX-License-Identifier: Apache-2.0 */
/* An image of a stranger's; what is read is written again the same, and laid
 * over itself it stays in order.  The checksum is made right first, or nothing
 * else would be reached. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "img/erofs.h"
#include "img/erofs_format.h"

static char *sealed(const uint8_t *data, size_t size)
{
	char *copy = malloc(size);
	struct er_super s;

	assert(copy);
	memcpy(copy, data, size);
	if (size < ER_BLOCK)
		return copy;
	memcpy(&s, copy + ER_SUPER, sizeof(s));
	s.checksum = htole32(erofs_checksum((uint8_t *)copy));
	memcpy(copy + ER_SUPER, &s, sizeof(s));
	return copy;
}

static void check_again(struct fstree *t, size_t size)
{
	auto_fstree struct fstree *u = NULL;
	auto_buf struct buf image = {0};
	struct err e = {0};

	assert(erofs_write(t, &image, &e) == 0);
	assert(image.len == size);
	assert(erofs_read(image.data, image.len, &u, &e) == 0);
	assert(fstree_count(t) == fstree_count(u));
	assert(fstree_merge(t, u, true, &e) == 0);
	image.len = 0;
	if (erofs_write(t, &image, &e) == 0) {
		auto_fstree struct fstree *v = NULL;

		assert(erofs_read(image.data, image.len, &v, &e) == 0);
		assert(fstree_count(t) == fstree_count(v));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_fstree struct fstree *t = NULL;
	auto_free char *copy = NULL;
	struct err e = {0};

	if (size == 0)
		return 0;
	copy = sealed(data, size);
	if (erofs_read(copy, size, &t, &e) == 0)
		check_again(t, size);
	else
		assert(e.code);
	return 0;
}
