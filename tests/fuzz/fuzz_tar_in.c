/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tar stream from a stranger: read alone, then extracted into a directory of
 * our own beside which nothing may appear.
 */
#include <assert.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/walk.h"
#include "box/extract.h"
#include "fuzz.h"
#include "mend.h"

#define BYTES_MAX (1 << 20)

struct input {
	const uint8_t *data;
	size_t len, pos, step;
};

static ssize_t source(void *arg, void *data, size_t cap, struct err *e)
{
	struct input *in = arg;
	size_t n = in->len - in->pos;

	(void)e;
	if (n > in->step)
		n = in->step;
	if (n > cap)
		n = cap;
	memcpy(data, in->data + in->pos, n);
	in->pos += n;
	return (ssize_t)n;
}

static void check_entry(const struct tar_entry *en)
{
	uint64_t end = 0;

	assert(en->path && en->link);
	assert(en->nxattrs <= TAR_XATTRS_MAX && en->mode <= 07777);
	for (size_t i = 0; i < en->nxattrs; i++)
		assert(en->xattrs[i].name[0] && en->xattrs[i].value);
	for (size_t i = 0; !en->bad && en->sparse && i < en->nruns; i++) {
		assert(en->runs[i].off >= end);
		end = en->runs[i].off + en->runs[i].len;
		assert(end >= en->runs[i].off && end <= en->size);
	}
}

static void read_all(struct input in)
{
	const struct tar_entry *en;
	struct tar_reader rd;
	const void *data;
	struct err e = {0};
	uint64_t off;
	size_t len;
	int r;

	if (tar_reader_init(&rd, source, &in, &e) < 0)
		return;
	while ((r = tar_next(&rd, &en, &e)) > 0) {
		check_entry(en);
		while (tar_data(&rd, &data, &len, &off, &e) > 0)
			assert(len > 0 && off + len <= en->size);
	}
	assert(r == 0 || e.code);
	tar_reader_done(&rd);
}

static int entries(const char *path)
{
	DIR *d = opendir(path);
	int n = -2;

	assert(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Attributes that say more than data does are never set. */
static void check_extracted(const char *dir)
{
	char names[4096];
	struct walk_item it;
	struct walk *w;
	struct err e;

	assert(walk_open(AT_FDCWD, dir, 0, &w, &e) == 0);
	while (walk_next(w, &it, &e) > 0) {
		char path[PATH_MAX];
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", it.dirfd,
			 it.name);
		n = llistxattr(path, names, sizeof(names));
		for (ssize_t i = 0; i < n; i += (ssize_t)strlen(names + i) + 1)
			assert(!strncmp(names + i, "user.", 5));
	}
	walk_free(w);
}

static void extract_all(struct input in)
{
	char dir[] = "/tmp/dsec-fuzz.XXXXXX";
	struct extract_result n = {0};
	struct tar_reader rd;
	struct err e = {0};
	auto_close int top = -1;
	auto_close int fd = -1;

	if (!mkdtemp(dir))
		return;
	top = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert(top >= 0 && mkdirat(top, "d", 0700) == 0);
	fd = openat(top, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0 && tar_reader_init(&rd, source, &in, &e) == 0) {
		struct extract x = {.dirfd = fd,
				    .max_bytes = BYTES_MAX,
				    .max_entries = 64};

		extract_tree(&x, &rd, &n, &e);
		assert(n.entries <= 64);
		tar_reader_done(&rd);
		check_extracted(dir);
	}
	assert(entries(dir) == 1);
	assert(fd_remove_tree(AT_FDCWD, dir, &e) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_free uint8_t *copy = malloc(size + 1);
	struct input in = {.data = copy, .len = size};

	if (size == 0 || !copy)
		return 0;
	memcpy(copy, data, size);
	mend_checksums(copy, size);
	/* The last byte says how the input is cut into pieces. */
	in.step = data[size - 1] ? (size_t)data[size - 1] * 16 : SIZE_MAX;
	read_all(in);
	extract_all(in);
	return 0;
}
