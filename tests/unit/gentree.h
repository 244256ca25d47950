/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GENTREE_H
#define TESTS_GENTREE_H

#include <assert.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/buf.h"
#include "img/fstree.h"

/*
 * Trees made from a seed, with every kind of file, odd names and attributes,
 * data in blobs whose bytes are a function of their place, and texts that tell
 * all of a tree.
 */
#define GEN_DEVICES 3
#define GEN_BLOCKS  600U /* of each device */

struct gen {
	unsigned seed;
	unsigned entries;
	bool layer; /* whiteouts and opaque directories too */
	bool plain; /* no implied directories, no links to directories */
};

static inline unsigned gen_rand(struct gen *g, unsigned below)
{
	g->seed = g->seed * 1103515245 + 12345;
	return (g->seed >> 8) % below;
}

static inline unsigned char gen_byte(unsigned device, uint64_t off)
{
	uint64_t x = (off / FS_BLOCK + 1) * (device + 7) + off * (off / 4096);

	return (unsigned char)(x ^ x >> 8 ^ off);
}

static inline struct fsdevice gen_device(unsigned i)
{
	struct fsdevice d = {.blocks = GEN_BLOCKS};

	memset(d.root.b, (int)(0xa0 + i), sizeof(d.root.b));
	return d;
}

static inline void gen_name(struct gen *g, char *name)
{
	static const char *const odd[] = {
		"-",	    ".-",    "..x", "...", " ",	  "\xff\xfe", "a\nb",
		"\xc3\xa4", ".wh.x", "!",   "x.",  "..-", "\\",	      "\"'$",
	};
	unsigned len;

	switch (gen_rand(g, 12)) {
	case 0:
		strcpy(name, odd[gen_rand(g, array_len(odd))]);
		return;
	case 1:
		len = 1 + gen_rand(g, 255);
		memset(name, 'a' + (int)gen_rand(g, 26), len);
		name[len] = '\0';
		return;
	default:
		sprintf(name, "%c%u", 'a' + (int)gen_rand(g, 3),
			gen_rand(g, 12));
		return;
	}
}

static inline void gen_acl(struct gen *g, struct fstree *t, struct fsnode *n,
			   const char *name)
{
	struct {
		uint32_t version;
		struct {
			uint16_t tag, perm;
			uint32_t id;
		} e[5];
	} acl = {
		.version = htole32(2),
		.e = {{htole16(1), htole16(7), ~0U},
		      {htole16(2), htole16(5), htole32(gen_rand(g, 70000))},
		      {htole16(4), htole16(5), ~0U},
		      {htole16(16), htole16(7), ~0U},
		      {htole16(32), htole16(5), ~0U}},
	};

	fsnode_set_xattr(t, n, name, &acl, sizeof(acl));
}

static inline void gen_xattrs(struct gen *g, struct fstree *t, struct fsnode *n)
{
	static const unsigned char cap[20] = {1, 0, 0, 2, 0, 4};
	char name[80], value[3000];
	unsigned count = gen_rand(g, 4);

	if (S_ISREG(n->mode) && gen_rand(g, 8) == 0)
		fsnode_set_xattr(t, n, "security.capability", cap, sizeof(cap));
	if (!S_ISLNK(n->mode) && gen_rand(g, 8) == 0)
		gen_acl(g, t, n, "system.posix_acl_access");
	if (S_ISDIR(n->mode) && gen_rand(g, 8) == 0)
		gen_acl(g, t, n, "system.posix_acl_default");
	if (gen_rand(g, 4))
		return;
	memset(value, 'v', sizeof(value));
	for (unsigned i = 0; i < count; i++) {
		bool file = S_ISREG(n->mode) || S_ISDIR(n->mode);

		sprintf(name, "%s.n%u.%0*u",
			file && gen_rand(g, 2) ? "user" : "trusted",
			gen_rand(g, 9), 1 + (int)gen_rand(g, 40), i);
		fsnode_set_xattr(t, n, name, value,
				 gen_rand(g, gen_rand(g, 8) ? 40 : 3000));
	}
}

static inline void gen_data(struct gen *g, struct fstree *t, struct fsnode *n)
{
	for (uint64_t off = 0; off < n->size; off += FS_CHUNK) {
		uint64_t left = n->size - off;
		uint32_t blocks = (uint32_t)((left < FS_CHUNK ? left
							      : FS_CHUNK) +
					     FS_BLOCK - 1) /
				  FS_BLOCK;
		struct fschunk c = {.block = FS_HOLE};

		if (gen_rand(g, 6)) {
			c.device = (uint16_t)(1 + gen_rand(g, GEN_DEVICES));
			c.block = gen_rand(g, GEN_BLOCKS + 1 - blocks);
		}
		fsnode_add_chunk(t, n, &c);
	}
}

static inline void gen_attr(struct gen *g, struct fsnode *a, char *link)
{
	static const mode_t types[] = {S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK};
	unsigned kind = gen_rand(g, 100);

	a->mode = gen_rand(g, 07777 + 1);
	a->uid = gen_rand(g, 3) ? gen_rand(g, 3) : gen_rand(g, 1U << 24) * 250;
	a->gid = gen_rand(g, 3) ? 0 : gen_rand(g, 65536);
	a->mtime.tv_sec = (time_t)gen_rand(g, 1U << 24) * 300 - 1000000000;
	a->mtime.tv_nsec = gen_rand(g, 2) ? gen_rand(g, 1000000000) : 0;
	if (kind < 30) {
		a->mode |= S_IFDIR;
	} else if (kind < 40) {
		unsigned len = gen_rand(g, 8) ? 1 + gen_rand(g, 60)
					      : 3900 + gen_rand(g, 196);

		a->mode |= S_IFLNK;
		a->link = link;
		memset(link, 'l', len);
		link[len] = '\0';
		if (!g->plain && gen_rand(g, 2))
			gen_name(g, link);
	} else if (kind < 48) {
		a->mode |= types[gen_rand(g, 4)];
		a->rdev = makedev(1 + gen_rand(g, 4000), gen_rand(g, 1U << 20));
	} else if (g->layer && kind < 55) {
		a->mode = S_IFCHR;
		*a = (struct fsnode){.mode = S_IFCHR};
	} else {
		a->mode |= S_IFREG;
		a->size = gen_rand(g, 20) ? gen_rand(g, 20000)
					  : gen_rand(g, 3U << 20);
		if (gen_rand(g, 8) == 0)
			a->size = gen_rand(g, 2) * FS_CHUNK;
	}
}

/* A path below one of the ${n} directories there are. */
static inline void gen_path(struct gen *g, char (*dirs)[1024], unsigned n,
			    char *path)
{
	const char *dir = dirs[gen_rand(g, n)];
	char name[512];

	gen_name(g, name);
	sprintf(path, "%s%s%s", dir, *dir ? "/" : "", name);
	if (!g->plain && gen_rand(g, 10) == 0) {
		gen_name(g, name);
		sprintf(path + strlen(path), "/%s", name);
	}
}

static inline struct fstree *gen_tree(struct gen *g)
{
	enum { DIRS = 128 };
	static char dirs[DIRS][1024];
	struct fstree *t = fstree_new();
	unsigned ndirs = 1;
	char path[2048], link[4200];

	for (unsigned i = 0; i < GEN_DEVICES; i++) {
		struct fsdevice d = gen_device(i);
		uint16_t index;

		fstree_device(t, &d, &index, NULL);
	}
	dirs[0][0] = '\0';
	for (unsigned i = 0; i < g->entries; i++) {
		struct fsnode a = {0}, *n;

		gen_path(g, dirs, ndirs, path);
		if (gen_rand(g, 20) == 0) {
			n = fstree_find(t, dirs[gen_rand(g, ndirs)]);
			n = n && fsdir_count(n)
				    ? fsdir_at(n,
					       gen_rand(g,
							(unsigned)fsdir_count(
								n)))
					      ->node
				    : NULL;
			if (n && !fsnode_is_whiteout(n))
				fstree_link(t, path, n, NULL);
			continue;
		}
		gen_attr(g, &a, link);
		if (fstree_put(t, path, &a, &n, NULL) < 0)
			continue;
		if (S_ISREG(n->mode))
			gen_data(g, t, n);
		if (!fsnode_is_whiteout(n))
			gen_xattrs(g, t, n);
		if (!S_ISDIR(n->mode))
			continue;
		if (g->layer && gen_rand(g, 6) == 0)
			fsnode_set_xattr(t, n, FS_OPAQUE, "y", 1);
		if (ndirs < DIRS && strlen(path) < 600)
			strcpy(dirs[ndirs++], path);
	}
	return t;
}

/* --- telling a tree ------------------------------------------------------- */

enum tell {
	TELL_NLINK = 1,
	TELL_PLACES = 2, /* chunks, implied: what only a tree has */
	TELL_XATTRS = 4,
	TELL_OVERLAY = 8, /* trusted.overlay.*, too */
	TELL_CONTENT = 16,
};

static inline void tell_name(struct buf *b, const char *path)
{
	for (const unsigned char *p = (const unsigned char *)path; *p; p++) {
		if (*p <= ' ' || *p >= 127 || *p == '\\')
			(void)!buf_addf(b, "\\%03o", *p);
		else
			(void)!buf_add(b, p, 1);
	}
}

static inline void tell_xattr(struct buf *b, const char *name,
			      const void *value, size_t len, unsigned what)
{
	uint32_t h = 2166136261U;

	if (!(what & TELL_XATTRS) ||
	    (!(what & TELL_OVERLAY) && !strncmp(name, "trusted.overlay.", 16)))
		return;
	for (size_t i = 0; i < len; i++)
		h = (h ^ ((const unsigned char *)value)[i]) * 16777619U;
	(void)!buf_addf(b, " %s=%zu:%08x", name, len, h);
}

static inline void tell_stat(struct buf *b, const struct stat *st,
			     unsigned long group, unsigned what)
{
	(void)!buf_addf(b, " %06o %u:%u %lld.%09ld", st->st_mode, st->st_uid,
			st->st_gid, (long long)st->st_mtim.tv_sec,
			st->st_mtim.tv_nsec);
	if (S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode))
		(void)!buf_addf(b, " %u,%u", major(st->st_rdev),
				minor(st->st_rdev));
	if (S_ISREG(st->st_mode) || S_ISLNK(st->st_mode))
		(void)!buf_addf(b, " %lld", (long long)st->st_size);
	if (!S_ISDIR(st->st_mode))
		(void)!buf_addf(b, " #%lu", group);
	if (what & TELL_NLINK)
		(void)!buf_addf(b, " n%lu", (unsigned long)st->st_nlink);
}

static inline uint64_t content_step(uint64_t h, const unsigned char *p,
				    size_t len)
{
	for (size_t i = 0; i < len; i++)
		h = (h ^ p[i]) * 1099511628211U;
	return h;
}

static inline uint64_t node_content(const struct fstree *t,
				    const struct fsnode *n)
{
	static unsigned char data[FS_CHUNK];
	uint64_t h = 14695981039346656037U, left = n->size;

	for (size_t i = 0; i < n->nchunks; i++) {
		const struct fschunk *c = &n->chunks[i];
		size_t len = left < FS_CHUNK ? left : FS_CHUNK;
		/* The device's own number, whatever its index here. */
		unsigned dev = c->block == FS_HOLE
				       ? 0
				       : fstree_device_at((struct fstree *)t,
							  c->device)
							 ->root.b[0] -
						 0xa0U;

		for (size_t k = 0; k < len; k++)
			data[k] = c->block == FS_HOLE
					  ? 0
					  : gen_byte(dev,
						     (uint64_t)c->block *
								     FS_BLOCK +
							     k);
		h = content_step(h, data, len);
		left -= len;
	}
	return h;
}

struct telling {
	struct buf *b;
	struct fstree *t;
	unsigned what;
	unsigned long lines;
};

static inline int tell_one(void *arg, const char *path, struct fsnode *n,
			   struct err *e)
{
	struct telling *x = arg;
	struct stat st = {
		.st_mode = n->mode,
		.st_uid = n->uid,
		.st_gid = n->gid,
		.st_rdev = n->rdev,
		.st_size = (off_t)n->size,
		.st_nlink = n->nlink,
		.st_mtim = n->mtime,
	};

	(void)e;
	x->lines++;
	if (n->mark == 0)
		n->mark = x->lines;
	tell_name(x->b, path);
	tell_stat(x->b, &st, n->mark, x->what);
	if (n->link)
		(void)!buf_addf(x->b, " -> %s", n->link);
	for (size_t i = 0; i < n->nxattrs; i++)
		tell_xattr(x->b, n->xattrs[i].name, n->xattrs[i].value,
			   n->xattrs[i].len, x->what);
	if (x->what & TELL_PLACES) {
		(void)!buf_addf(x->b, n->implied ? " implied" : "");
		for (size_t i = 0; i < n->nchunks; i++)
			(void)!buf_addf(x->b, " %u@%u", n->chunks[i].block,
					n->chunks[i].device);
	}
	if ((x->what & TELL_CONTENT) && S_ISREG(n->mode))
		(void)!buf_addf(x->b, " =%016llx",
				(unsigned long long)node_content(x->t, n));
	(void)!buf_add(x->b, "\n", 1);
	return 0;
}

static inline int clear_mark(void *arg, const char *path, struct fsnode *n,
			     struct err *e)
{
	(void)arg;
	(void)path;
	(void)e;
	n->mark = 0;
	return 0;
}

static inline void tell_tree(struct fstree *t, unsigned what, struct buf *b)
{
	struct telling x = {.b = b, .t = t, .what = what};

	fstree_walk(t, clear_mark, NULL, NULL);
	fstree_walk(t, tell_one, &x, NULL);
}

/* The first line of the two texts that differs, as comments. */
static inline bool same_text(const char *got, const char *want)
{
	size_t at = 0, line = 0;

	if (!got)
		got = "";
	if (!want)
		want = "";
	if (!strcmp(got, want))
		return true;
	while (got[at] && got[at] == want[at]) {
		if (got[at++] == '\n')
			line = at;
	}
	printf("# got:  %.300s\n", strtok(strdup(got + line), "\n"));
	printf("# want: %.300s\n", strtok(strdup(want + line), "\n"));
	return false;
}

#endif
