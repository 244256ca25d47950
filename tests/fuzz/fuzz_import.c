/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tar of a stranger's, compressed in any way, imported: what comes of it can
 * be written as an image and read again.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "fuzz.h"
#include "img/erofs.h"
#include "img/import.h"
#include "img/source.h"
#include "mend.h"

#define BYTES_MAX (8 << 20)

static int limit(void *arg, uint64_t bytes, struct err *e)
{
	(void)arg;
	return bytes > BYTES_MAX ? err_set(e, -ECANCELED, "cancelled", "enough")
				 : 0;
}

static int file_of(const uint8_t *data, size_t size)
{
	int fd = memfd_create("input", MFD_CLOEXEC);

	assert(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	assert(lseek(fd, 0, SEEK_SET) == 0);
	return fd;
}

/* In memory where there is such a place: a blob is synced. */
static int directory(char *name, size_t size)
{
	int fd;

	snprintf(name, size, "/dev/shm/dsec-fuzz.XXXXXX");
	if (!mkdtemp(name)) {
		snprintf(name, size, "/tmp/dsec-fuzz.XXXXXX");
		assert(mkdtemp(name));
	}
	fd = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert(fd >= 0);
	return fd;
}

static void check_tree(struct fstree *t)
{
	auto_fstree struct fstree *again = NULL;
	auto_buf struct buf image = {0};
	struct err e = {0};

	assert(erofs_write(t, &image, &e) == 0);
	assert(erofs_read(image.data, image.len, &again, &e) == 0);
	assert(fstree_count(t) == fstree_count(again));
}

static void import(int fd, int dirfd, unsigned flags)
{
	auto_fstree struct fstree *t = fstree_new();
	auto_source struct source *s = NULL;
	auto_blob struct blob *b = NULL;
	struct import x = {.tree = t, .flags = flags, .progress = limit};
	struct fsdevice dev;
	struct err e = {0};
	int r;

	if (source_open(fd, 0, UINT64_MAX, SOURCE_HASH_OUT, &s, &e) < 0) {
		assert(e.code);
		return;
	}
	assert(t && blob_open(dirfd, NULL, t, &b, &e) == 0);
	x.blob = b;
	r = import_tar(&x, source_read, source_skip, s, &e);
	if (r == 0)
		r = source_end(s, &e);
	if (r < 0) {
		assert(e.code && e.msg[0]);
		return;
	}
	assert(blob_finish(b, t, NULL, NULL, 0, &dev, &e) == 0);
	check_tree(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_free uint8_t *copy = malloc(size + 1);
	char name[32];
	auto_close int fd = -1;
	auto_close int dirfd = -1;

	if (size == 0 || !copy)
		return 0;
	memcpy(copy, data, size);
	mend_checksums(copy, size);
	fd = file_of(copy, size);
	dirfd = directory(name, sizeof(name));
	import(fd, dirfd, size % 512 == 1 ? IMPORT_OCI : 0);
	assert(fd_remove_tree(AT_FDCWD, name, NULL) == 0);
	return 0;
}
