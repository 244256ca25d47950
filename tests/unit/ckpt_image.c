/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "ckpt/ckpt_image.h"

/* How the engine begins such a file; the length follows. */
static const uint8_t head[12] = {
	0x19, 0x43, 0x56, 0x54, 0x06, 0x49, 0x47, 0x55,
};

/* A file as it writes it: two maps, each after its tag and length. */
static size_t make(uint8_t *to, uint32_t uid, uint32_t gid, uint32_t count)
{
	size_t n = sizeof(head);

	memcpy(to, head, n);
	for (int i = 0; i < 2; i++) {
		uint32_t v[3] = {0, i ? gid : uid, count};
		size_t at = n + 2;

		for (int k = 0; k < 3; k++) {
			to[at++] = (uint8_t)((k + 1) << 3);
			for (; v[k] >= 0x80; v[k] >>= 7)
				to[at++] = (uint8_t)(v[k] | 0x80);
			to[at++] = (uint8_t)v[k];
		}
		to[n] = i ? 0x12 : 0x0a;
		to[n + 1] = (uint8_t)(at - n - 2);
		n = at;
	}
	to[8] = (uint8_t)(n - 12);
	return n;
}

static int parse(const uint8_t *data, size_t len, uint32_t *base)
{
	struct err e = {0};
	int r = ckpt_image_parse_maps(data, len, base, &e);

	if (r < 0 && (r != -EBADMSG || strcmp(e.code, "engine") || !e.infra))
		return -EINVAL;
	return r;
}

static void test_parse(void)
{
	uint8_t data[128], more[128];
	uint32_t base = 7;
	size_t n = make(data, 9437184, 9437184, 65536);
	unsigned taken = 0;

	ok(parse(data, n, &base) == 0 && base == 9437184, "two equal maps");
	ok(make(more, 0, 0, 65536) && parse(more, 28, &base) < 0,
	   "a length that is not the file's");
	for (size_t cut = 0; cut < n; cut++) {
		memcpy(more, data, n);
		more[8] = (uint8_t)(cut < 12 ? 0 : cut - 12);
		taken += parse(more, cut, &base) != -EBADMSG;
	}
	ok(taken == 0, "none of its beginnings, whatever the length says");
	n = make(data, 9437184, 9437185, 65536);
	ok(parse(data, n, &base) == -EBADMSG, "gids that go elsewhere");
	n = make(data, 9437184, 9437184, 65535);
	ok(parse(data, n, &base) == -EBADMSG, "fewer ids");
	n = make(data, UINT32_MAX - 100, UINT32_MAX - 100, 65536);
	ok(parse(data, n, &base) == -EBADMSG, "a range that ends nowhere");
	n = make(data, 65536, 65536, 65536);
	data[7] ^= 1;
	ok(parse(data, n, &base) == -EBADMSG, "an image of another kind");
	data[7] ^= 1;
	data[n] = 0x0a;
	data[n + 1] = 0;
	data[8] += 2;
	ok(parse(data, n + 2, &base) == -EBADMSG, "a map that comes twice");
}

static int put(int dir, const char *name, const uint8_t *data, size_t len)
{
	auto_close int fd = openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC,
				   0600);

	return fd < 0 ? -errno : fd_write_all(fd, data, len, NULL);
}

static void test_rewrite(void)
{
	char path[] = "/tmp/ckpt-image-XXXXXX";
	auto_close int dir = -1;
	auto_free char *text = NULL;
	uint8_t data[128], want[128];
	struct err e = {0};
	size_t len = 0, n;

	dir = mkdtemp(path) ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
			    : -1;
	ok(dir >= 0 && ckpt_image_uid(dir, 65536, &e) == -EBADMSG &&
		   strstr(e.msg, "not in it"),
	   "a checkpoint without a user namespace");
	n = make(data, 9437184, 9437184, 65536);
	ok(!put(dir, "userns-14.img", data, n) &&
		   !put(dir, "userns-x", data, 3),
	   "one with it");
	ok(linkat(dir, "userns-14.img", dir, "kept", 0) == 0, "and a link");
	ok(ckpt_image_uid(dir, 1879048192, &e) == 0, "gets another range");
	n = make(want, 1879048192, 1879048192, 65536);
	ok(!fd_read_file(dir, "userns-14.img", 4096, &text, &len, &e) &&
		   len == n && !memcmp(text, want, n),
	   "as the engine would have written it");
	free(steal_ptr(text));
	ok(!fd_read_file(dir, "kept", 4096, &text, &len, &e) &&
		   !memcmp(text, data, len),
	   "the link has the old one");
	ok(ckpt_image_uid(dir, UINT32_MAX - 5, &e) == -EINVAL,
	   "no range at the end of all ids");
	ok(!put(dir, "userns-15.img", data, 28) &&
		   ckpt_image_uid(dir, 65536, &e) == -EBADMSG &&
		   strstr(e.msg, "not one"),
	   "two user namespaces are refused");
	fd_remove_tree(AT_FDCWD, path, NULL);
}

int main(void)
{
	test_parse();
	test_rewrite();
	return tap_done();
}
