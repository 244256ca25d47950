/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIRE_TAR_PRIV_H
#define WIRE_TAR_PRIV_H

#include "wire/tar.h"

#define TAR_BLOCK_SIZE 512

/* A header block of ustar; GNU's own fields lie over the prefix. */
struct tar_header {
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12];
	char checksum[8], type, linkname[100], magic[8];
	char uname[32], gname[32], devmajor[8], devminor[8], prefix[155];
	char unused[12];
};
_Static_assert(sizeof(struct tar_header) == TAR_BLOCK_SIZE, "ustar");

/* tar_sum(block): what the checksum of a header should be. */
static inline unsigned tar_sum(const void *block)
{
	const unsigned char *p = block;
	unsigned sum = 8 * ' ';

	for (unsigned i = 0; i < TAR_BLOCK_SIZE; i++)
		sum += i >= 148 && i < 156 ? 0 : p[i];
	return sum;
}

static inline unsigned tar_padding(uint64_t len)
{
	return (unsigned)(-len & (TAR_BLOCK_SIZE - 1));
}

/* What a pax header says about an entry beyond what an entry holds. */
struct tar_pax {
	uint64_t size, real_size;
	bool has_size, has_real_size, has_path, has_link, has_mtime;
	bool has_uid, has_gid, sparse_name;
	int major; /* of the sparse form; -1: none */
	bool map_in_header;
	bool has_devmajor, has_devminor;
	int64_t uid, gid, devmajor, devminor;
	struct timespec mtime;
	const char *bad;
};

/*
 * tar_pax_parse(r, text, len, local, p, e):
 * Apply the records of ${text} to ${p}, and names, xattrs and runs to ${r}.
 * xattrs point into ${text}; they are taken from a ${local} header alone.
 */
int tar_pax_parse(struct tar_reader *r, char *text, size_t len, bool local,
		  struct tar_pax *p, struct err *e);

/* tar_digits(s, len, ret): a whole decimal number of ${len} bytes, or false. */
bool tar_digits(const char *s, size_t len, uint64_t *ret);

/* tar_add_run(r, off, len): false when out of room or memory. */
bool tar_add_run(struct tar_reader *r, uint64_t off, uint64_t len);

#endif
