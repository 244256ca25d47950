/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/stat.h>

#include "img/erofs_format.h"

const char *erofs_prefix(unsigned i)
{
	static const char *const prefixes[ER_PREFIXES] = {
		[1] = "user.",
		[2] = "system.posix_acl_access",
		[3] = "system.posix_acl_default",
		[4] = "trusted.",
		[6] = "security.",
	};

	return i < ER_PREFIXES ? prefixes[i] : NULL;
}

uint8_t erofs_type(unsigned mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG:
		return 1;
	case S_IFDIR:
		return 2;
	case S_IFCHR:
		return 3;
	case S_IFBLK:
		return 4;
	case S_IFIFO:
		return 5;
	case S_IFSOCK:
		return 6;
	case S_IFLNK:
		return 7;
	default:
		return 0;
	}
}

/* CRC-32C, four bits at a time: a block an image does not pay for a table. */
static uint32_t crc32c(uint32_t crc, const uint8_t *p, size_t len)
{
	static const uint32_t nibble[16] = {
		0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1,
		0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
		0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
		0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
	};

	while (len--) {
		crc ^= *p++;
		crc = crc >> 4 ^ nibble[crc & 15];
		crc = crc >> 4 ^ nibble[crc & 15];
	}
	return crc;
}

uint32_t erofs_checksum(const uint8_t *block)
{
	const size_t at = ER_SUPER + offsetof(struct er_super, checksum);
	const uint8_t zero[4] = {0};
	uint32_t crc;

	crc = crc32c(~0U, block + ER_SUPER, at - ER_SUPER);
	crc = crc32c(crc, zero, sizeof(zero));
	return crc32c(crc, block + at + 4, ER_BLOCK - at - 4);
}
