/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_EROFS_FORMAT_H
#define IMG_EROFS_FORMAT_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * What EROFS looks like on disk, as far as we write it; all numbers are little
 * endian.  An image is
 *
 *   0      nothing
 *   1024   super block, device slots from 1152, zeros to the next block
 *   ..     inodes, at multiples of 32 from the image's start (their number,
 *          nid): the root, then breadth first, the names of each directory in
 *          order.  An inode is followed by its attributes and then by its
 *          chunk indexes, or by the tail of its directory or its link where
 *          all of it fits in one block; zeros to the next place that fits
 *   ..     whole blocks of directories and links, in the order of inodes
 *
 * and the devices' blocks are numbered on behind its own.
 */
#define ER_SUPER	1024
#define ER_DEVICES	(ER_SUPER + sizeof(struct er_super))
#define ER_MAGIC	0xE0F5E1E2U
#define ER_BITS		12
#define ER_BLOCK	4096U
#define ER_CHECKSUM	1U /* compatible features */
#define ER_CHUNKED	4U /* incompatible ones */
#define ER_DEVICE_TABLE 8U
#define ER_SLOT		32U

struct er_super {
	uint32_t magic;
	uint32_t checksum; /* of this block from here to its end */
	uint32_t compat;
	uint8_t block_bits, ext_slots;
	uint16_t root_nid;
	uint64_t inodes;
	uint64_t build_time;
	uint32_t build_time_ns;
	uint32_t blocks;
	uint32_t meta_block; /* nids count from here */
	uint32_t xattr_block;
	uint8_t uuid[16], volume[16];
	uint32_t incompat;
	uint16_t algorithms;
	uint16_t ndevices;
	uint16_t devices_slot; /* offset of the table / its slots' size */
	uint8_t dir_block_bits, nprefixes;
	uint32_t prefixes;
	uint64_t packed_nid;
	uint8_t reserved[24];
} __attribute__((packed));

struct er_device {
	char tag[64]; /* the blob's root in hex */
	uint32_t blocks;
	uint32_t mapped; /* its first block's number among all */
	uint8_t reserved[56];
};

/* Layouts, in bits 1.. of er_inode.format; bit 0: 64 bytes long. */
enum er_layout {
	ER_PLAIN = 0,  /* blocks from er_inode.u */
	ER_INLINE = 2, /* the same, but the last part follows the inode */
	ER_CHUNKS = 4, /* an er_chunk each */
};
#define ER_FORMAT(layout) ((uint16_t)((layout) << 1 | 1))

/* er_inode.u of ER_CHUNKS: log2 of blocks a chunk, and indexes of 8 bytes. */
#define ER_CHUNK_FORMAT(bits) (((bits)-ER_BITS) | 0x20U)

struct er_inode {
	uint16_t format;
	uint16_t xattrs; /* (bytes - 12) / 4 + 1; 0: none */
	uint16_t mode;
	uint16_t reserved;
	uint64_t size;
	uint32_t u; /* first block, device number or chunk format */
	uint32_t ino;
	uint32_t uid, gid;
	uint64_t mtime;
	uint32_t mtime_ns;
	uint32_t nlink;
	uint8_t reserved2[16];
};

struct er_xattrs {
	uint32_t filter;
	uint8_t shared;
	uint8_t reserved[7];
};

/* The name without its prefix and the value follow, padded to 4. */
struct er_xattr {
	uint8_t name_len, prefix;
	uint16_t value_len;
};

struct er_chunk {
	uint16_t advise;
	uint16_t device;
	uint32_t block; /* all ones: a hole */
};

/* In each block of a directory first all of these, then all the names. */
struct er_dirent {
	uint64_t nid;
	uint16_t name_off; /* in the block */
	uint8_t type, reserved;
} __attribute__((packed));

_Static_assert(sizeof(struct er_super) == 128, "layout");
_Static_assert(sizeof(struct er_device) == 128, "layout");
_Static_assert(sizeof(struct er_inode) == 64, "layout");
_Static_assert(sizeof(struct er_xattrs) == 12, "layout");
_Static_assert(sizeof(struct er_dirent) == 12, "layout");

/* The prefixes of attributes' names, by number; NULL: not one of ours. */
#define ER_PREFIXES 7
const char *erofs_prefix(unsigned i);

/* erofs_type(mode): how a directory tells what an inode is. */
uint8_t erofs_type(unsigned mode);

/* erofs_checksum(block): of the super block at ${block} + ER_SUPER. */
uint32_t erofs_checksum(const uint8_t *block);

/*
 * erofs_compare(t, data, len, ret_at, e):
 * 1: ${data} is what erofs_write() makes of ${t}; 0: it is not, from byte
 * *${ret_at} on; or the errors of erofs_write().
 */
struct fstree;
struct err;
int erofs_compare(struct fstree *t, const void *data, size_t len,
		  uint64_t *ret_at, struct err *e);

static inline size_t er_align(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

#endif
