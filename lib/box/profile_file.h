/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_PROFILE_FILE_H
#define BOX_PROFILE_FILE_H

#include <linux/audit.h>
#include <stddef.h>
#include <stdint.h>

/*
 * libexec/dsec/NAME.bpf: this header, then the instructions of each filter.
 * Numbers are of the machine that made it, which is the one that reads it.
 */
#define PROFILE_MAGIC	"dsec.bpf"
#define PROFILE_VERSION 1

enum profile_flags {
	PROFILE_NESTED = 1 << 0,
	PROFILE_SEALED = 1 << 1,
	PROFILE_CHECKPOINTABLE = 1 << 2,
	PROFILE_FLAGS = (1 << 3) - 1,
};

struct profile_file {
	char magic[8];
	uint32_t version;
	uint32_t arch; /* AUDIT_ARCH_* */
	uint32_t flags;
	uint32_t nfilters;
	uint64_t caps;
	char name[32];	  /* without ".bpf", padded with NUL */
	uint32_t lens[2]; /* in instructions; 0 past nfilters */
	uint64_t digest;  /* profile_digest() of it all, this being 0 */
};

/* Most that a file may be: it is read in one go. */
#define PROFILE_FILE_MAX 16384

#if defined(__x86_64__)
#define PROFILE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define PROFILE_ARCH AUDIT_ARCH_AARCH64
#endif

/*
 * profile_digest(data, len):
 * FNV-1a in 64 bits.  It finds damage, not malice: who can write the file can
 * replace the programs beside it.
 */
static inline uint64_t profile_digest(const void *data, size_t len)
{
	const unsigned char *p = data;
	uint64_t h = 0xcbf29ce484222325u;

	for (size_t i = 0; i < len; i++)
		h = (h ^ p[i]) * 0x100000001b3u;
	return h;
}

#endif
