/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "ckpt/ckpt_image.h"
#include "sys/userns.h"

/* An image: two magic numbers, then messages, each after its length.  All
 * numbers are little-endian; so are the machines we run on. */
#define MAGIC_COMMON 0x54564319U
#define MAGIC_USERNS 0x55474906U
#define HEAD_SIZE    12U
#define IMAGE_MAX    4096U /* two maps take 40 bytes */

/* Fields of the messages. */
enum maps_field { MAPS_UID = 1, MAPS_GID };
enum extent_field { EXTENT_FIRST = 1, EXTENT_LOWER, EXTENT_COUNT };
#define EXTENT_SEEN                                                            \
	(1U << EXTENT_FIRST | 1U << EXTENT_LOWER | 1U << EXTENT_COUNT)

enum wire_type { WIRE_VARINT = 0, WIRE_BYTES = 2 };

struct reader {
	const uint8_t *at, *end;
};

struct extent {
	uint32_t first, lower, count;
};

static int bad(struct err *e, const char *what)
{
	err_set(e, -EBADMSG, "engine",
		"the user namespace of the checkpoint %s", what);
	if (e)
		e->infra = true;
	return -EBADMSG;
}

/* Less than 2^32 is all that these messages hold. */
static bool read_varint(struct reader *r, uint32_t *ret)
{
	uint64_t v = 0;

	for (unsigned shift = 0; r->at < r->end && shift < 35; shift += 7) {
		v |= (uint64_t)(*r->at & 0x7f) << shift;
		if (!(*r->at++ & 0x80)) {
			*ret = (uint32_t)v;
			return v <= UINT32_MAX;
		}
	}
	return false;
}

/* A field of bytes becomes a reader of its own. */
static bool read_bytes(struct reader *r, struct reader *ret)
{
	uint32_t len;

	if (!read_varint(r, &len) || len > (size_t)(r->end - r->at))
		return false;
	*ret = (struct reader){.at = r->at, .end = r->at + len};
	r->at += len;
	return true;
}

static bool read_extent(struct reader r, struct extent *ret)
{
	uint32_t tag, v, seen = 0;
	struct extent x = {0};

	while (r.at < r.end) {
		if (!read_varint(&r, &tag) || (tag & 7) != WIRE_VARINT ||
		    !read_varint(&r, &v))
			return false;
		tag >>= 3;
		if (tag < EXTENT_FIRST || tag > EXTENT_COUNT ||
		    seen & 1U << tag)
			return false;
		seen |= 1U << tag;
		if (tag == EXTENT_FIRST)
			x.first = v;
		else if (tag == EXTENT_LOWER)
			x.lower = v;
		else
			x.count = v;
	}
	*ret = x;
	return seen == EXTENT_SEEN;
}

/* One extent in each map: bit MAPS_* of ${seen} says which came. */
static bool read_maps(struct reader r, struct extent *maps)
{
	uint32_t tag, seen = 0;
	struct reader sub;

	while (r.at < r.end) {
		if (!read_varint(&r, &tag) || (tag & 7) != WIRE_BYTES ||
		    !read_bytes(&r, &sub))
			return false;
		tag >>= 3;
		if ((tag != MAPS_UID && tag != MAPS_GID) || seen & 1U << tag ||
		    !read_extent(sub, &maps[tag - MAPS_UID]))
			return false;
		seen |= 1U << tag;
	}
	return seen == (1U << MAPS_UID | 1U << MAPS_GID);
}

int ckpt_image_parse_maps(const void *data, size_t len, uint32_t *ret_base,
			  struct err *e)
{
	struct extent maps[2];
	uint32_t head[3];
	struct reader r;

	if (len < HEAD_SIZE || len > IMAGE_MAX)
		return bad(e, "has a file of the wrong size");
	memcpy(head, data, sizeof(head));
	if (head[0] != MAGIC_COMMON || head[1] != MAGIC_USERNS)
		return bad(e, "has a file of another kind");
	r.at = (const uint8_t *)data + HEAD_SIZE;
	r.end = (const uint8_t *)data + len;
	if (head[2] != len - HEAD_SIZE || !read_maps(r, maps))
		return bad(e, "has a malformed file");
	if (memcmp(&maps[0], &maps[1], sizeof(maps[0])) || maps[0].first ||
	    maps[0].count != USERNS_IDS ||
	    maps[0].lower > UINT32_MAX - USERNS_IDS)
		return bad(e, "maps other ids than a sandbox's");
	*ret_base = maps[0].lower;
	return 0;
}

static uint8_t *put_varint(uint8_t *at, uint32_t v)
{
	for (; v >= 0x80; v >>= 7)
		*at++ = (uint8_t)(v | 0x80);
	*at++ = (uint8_t)v;
	return at;
}

static uint8_t *put_extent(uint8_t *at, enum maps_field field, uint32_t base)
{
	uint8_t body[32], *to = body;

	*to++ = EXTENT_FIRST << 3 | WIRE_VARINT;
	to = put_varint(to, 0);
	*to++ = EXTENT_LOWER << 3 | WIRE_VARINT;
	to = put_varint(to, base);
	*to++ = EXTENT_COUNT << 3 | WIRE_VARINT;
	to = put_varint(to, USERNS_IDS);
	*at++ = (uint8_t)(field << 3 | WIRE_BYTES);
	*at++ = (uint8_t)(to - body);
	memcpy(at, body, (size_t)(to - body));
	return at + (to - body);
}

static size_t make_image(uint8_t *image, uint32_t base)
{
	uint32_t head[3] = {MAGIC_COMMON, MAGIC_USERNS, 0};
	uint8_t *at = image + HEAD_SIZE;

	at = put_extent(at, MAPS_UID, base);
	at = put_extent(at, MAPS_GID, base);
	head[2] = (uint32_t)(at - image) - HEAD_SIZE;
	memcpy(image, head, sizeof(head));
	return (size_t)(at - image);
}

/* "userns-14.img": the number is the engine's. */
static bool is_maps(const char *name)
{
	static const char prefix[] = "userns-", suffix[] = ".img";
	size_t len = sizeof(prefix) - 1, digits;

	if (strncmp(name, prefix, len))
		return false;
	digits = strspn(name + len, "0123456789");
	return digits && !strcmp(name + len + digits, suffix);
}

/* The one user namespace: an inner one cannot be checkpointed. */
static int find_maps(int imgdir, char *name, size_t size, struct err *e)
{
	auto_dir DIR *dir = NULL;
	struct dirent *d;
	unsigned n = 0;
	int fd;

	fd = openat(imgdir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open the checkpoint");
	dir = fdopendir(fd);
	if (!dir) {
		int err = errno;

		fd_close(fd);
		return err_sys(e, err, "open the checkpoint");
	}
	for (errno = 0; (d = readdir(dir)); errno = 0) {
		if (!is_maps(d->d_name))
			continue;
		n++;
		snprintf(name, size, "%s", d->d_name);
	}
	if (errno)
		return err_sys(e, errno, "read the checkpoint");
	if (n != 1)
		return bad(e, n ? "is not one" : "is not in it");
	return 0;
}

int ckpt_image_uid(int imgdir, uid_t uid_base, struct err *e)
{
	auto_free char *old = NULL;
	uint8_t image[96];
	char name[NAME_MAX + 1];
	uint32_t base;
	size_t len;
	int r;

	if (uid_base > UINT32_MAX - USERNS_IDS)
		return err_set(e, -EINVAL, "internal", "no uid range at %u",
			       (unsigned)uid_base);
	r = find_maps(imgdir, name, sizeof(name), e);
	if (r < 0)
		return r;
	r = fd_read_file(imgdir, name, IMAGE_MAX, &old, &len, e);
	if (r < 0)
		return err_wrap(e, r, "%s of the checkpoint", name);
	r = ckpt_image_parse_maps(old, len, &base, e);
	if (r < 0 || base == uid_base)
		return r;
	len = make_image(image, uid_base);
	return fd_replace(imgdir, name, image, len, 0, e);
}
