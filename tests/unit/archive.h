/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_ARCHIVE_H
#define TESTS_UNIT_ARCHIVE_H

/* Archives made by hand, and a directory of our own to extract them into. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "../tap.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "box/extract.h"

#define maybe __attribute__((unused)) static

/* --- archives ------------------------------------------------------------- */

struct in {
	struct buf b;
	size_t pos, step; /* at most so many bytes at once; 0: all */
};

maybe ssize_t from_buf(void *arg, void *data, size_t cap, struct err *e)
{
	struct in *in = arg;
	size_t n = in->b.len - in->pos;

	(void)e;
	if (in->step && n > in->step)
		n = in->step;
	if (n > cap)
		n = cap;
	if (n)
		memcpy(data, in->b.data + in->pos, n);
	in->pos += n;
	return (ssize_t)n;
}

maybe void put(struct buf *b, const void *data, size_t len)
{
	if (buf_add(b, data, len) < 0)
		abort();
}

maybe void pad(struct buf *b)
{
	static const char zeros[512];

	put(b, zeros, -b->len & 511);
}

struct raw {
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8];
	char type, link[100], magic[8], rest[247];
};

maybe void seal(struct raw *h)
{
	unsigned sum = 0;

	memset(h->sum, ' ', 8);
	for (size_t i = 0; i < 512; i++)
		sum += ((const unsigned char *)h)[i];
	snprintf(h->sum, 8, "%06o", sum);
}

maybe struct raw head(char type, const char *name, const char *link,
		      unsigned long long size)
{
	struct raw h;

	memset(&h, 0, sizeof(h));
	memcpy(h.name, name, strnlen(name, 100));
	memcpy(h.link, link, strnlen(link, 100));
	strcpy(h.mode, type == '5' ? "0000755" : "0000644");
	strcpy(h.uid, "0000000");
	strcpy(h.gid, "0000000");
	snprintf(h.size, 12, "%011llo", size & 077777777777ULL);
	strcpy(h.mtime, "00000001750");
	memcpy(h.magic,
	       "ustar\0"
	       "00",
	       8);
	h.type = type;
	return h;
}

maybe void entry(struct buf *b, char type, const char *name, const char *link,
		 const char *data)
{
	struct raw h = head(type, name, link, data ? strlen(data) : 0);

	seal(&h);
	put(b, &h, 512);
	if (data)
		put(b, data, strlen(data));
	pad(b);
}

maybe void pax(struct buf *b, const char *text, size_t len)
{
	struct raw h = head('x', "PaxHeader/x", "", len);

	seal(&h);
	put(b, &h, 512);
	put(b, text, len);
	pad(b);
}

#define PAX(b, text) pax(b, text, sizeof(text) - 1)

maybe void end(struct buf *b)
{
	static const char zeros[1024];

	put(b, zeros, sizeof(zeros));
}

/* --- extracting ----------------------------------------------------------- */

static struct buf told;

maybe void refused(void *arg, const char *path, const struct err *why)
{
	(void)arg;
	if (buf_addf(&told, "%s:%s\n", path, why->code) < 0)
		abort();
}

static int dir_fd = -1;
static char dir_name[] = "/tmp/dsec-extract.XXXXXX";

maybe void fresh(void)
{
	if (dir_fd >= 0) {
		close(dir_fd);
		fd_remove_tree(AT_FDCWD, dir_name, NULL);
	}
	strcpy(dir_name, "/tmp/dsec-extract.XXXXXX");
	if (!mkdtemp(dir_name))
		abort();
	dir_fd = open(dir_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir_fd < 0 || mkdirat(dir_fd, "d", 0755) < 0)
		abort();
	told.len = 0;
	if (told.data)
		told.data[0] = '\0';
}

static struct err last;

maybe int run_opts(struct in *in, struct extract x, struct extract_result *n)
{
	struct tar_reader rd;
	auto_close int fd = openat(dir_fd, "d", O_RDONLY | O_CLOEXEC);
	int r;

	memset(&last, 0, sizeof(last));
	x.dirfd = fd;
	x.refused = refused;
	if (tar_reader_init(&rd, from_buf, in, NULL) < 0)
		abort();
	r = extract_tree(&x, &rd, n, &last);
	tar_reader_done(&rd);
	return r;
}

maybe int run(struct in *in)
{
	struct extract_result n = {0};

	return run_opts(in, (struct extract){0}, &n);
}

maybe bool has(const char *path, const char *content)
{
	auto_free char *text = NULL;
	char full[256];

	snprintf(full, sizeof(full), "%s/%s", dir_name, path);
	return fd_read_file(AT_FDCWD, full, 1 << 20, &text, NULL, NULL) == 0 &&
	       !strcmp(text, content);
}

maybe int count(const char *path)
{
	char full[256];
	DIR *d;
	int n = -2;

	snprintf(full, sizeof(full), "%s/%s", dir_name, path);
	d = opendir(full);
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

maybe int finished(void)
{
	close(dir_fd);
	fd_remove_tree(AT_FDCWD, dir_name, NULL);
	buf_done(&told);
	return tap_done();
}

#endif
