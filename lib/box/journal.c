/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/hash.h"
#include "box/journal.h"

struct entry {
	uint64_t hash; /* of the name */
	off_t off;
	uint32_t len;
	json_t *line; /* where the file could not take it */
};

struct journal {
	int dirfd, fd;
	const char *member;
	char *file;
	struct entry *v;
	size_t n, cap;
	off_t end;
};

static uint64_t hash_of(const char *s)
{
	return hash_fnv(s, strlen(s));
}

/* The name in a line, a string or an integer, as text in buf or its own. */
static const char *name_in(const struct journal *j, const json_t *line,
			   char buf[32])
{
	const json_t *v = json_object_get(line, j->member);

	if (!json_is_integer(v))
		return json_str(line, j->member);
	snprintf(buf, 32, "%lld", (long long)json_integer_value(v));
	return buf;
}

static int push(struct journal *j, const struct entry *en, struct err *e)
{
	size_t cap = j->cap ? j->cap * 2 : 16;
	struct entry *p;

	if (j->n == j->cap) {
		p = realloc(j->v, cap * sizeof(*p));
		if (!p)
			return err_sys(e, ENOMEM, "'%s'", j->file);
		j->v = p;
		j->cap = cap;
	}
	j->v[j->n++] = *en;
	return 0;
}

static int read_line(struct journal *j, const struct entry *en,
		     json_t **ret_line, struct err *e)
{
	auto_free char *text = NULL;
	ssize_t n;

	if (en->line) {
		*ret_line = json_incref(en->line);
		return 0;
	}
	text = malloc(en->len + 1);
	if (!text)
		return err_sys(e, ENOMEM, "'%s'", j->file);
	n = pread(j->fd, text, en->len, en->off);
	if (n != (ssize_t)en->len)
		return err_sys(e, n < 0 ? errno : EIO, "read '%s'", j->file);
	return json_parse(text, en->len, ret_line, e);
}

static int load_line(struct journal *j, const char *text, size_t len,
		     struct err *e)
{
	struct entry en = {.off = j->end, .len = (uint32_t)len};
	auto_json json_t *line = NULL;
	char num[32];

	j->end += (off_t)len + 1;
	if (json_parse(text, len, &line, NULL) < 0)
		return 0; /* damaged; the others are not */
	en.hash = hash_of(name_in(j, line, num));
	return push(j, &en, e);
}

/* The whole lines at the start of the buffer. */
static int load_lines(struct journal *j, struct buf *b, struct err *e)
{
	size_t used = 0;
	char *nl;
	int r = 0;

	while (r == 0 && used < b->len &&
	       (nl = memchr(b->data + used, '\n', b->len - used))) {
		r = load_line(j, b->data + used, (size_t)(nl - b->data) - used,
			      e);
		used = (size_t)(nl - b->data) + 1;
	}
	buf_drop(b, used);
	return r;
}

static int load(struct journal *j, struct err *e)
{
	auto_buf struct buf b = {0};
	ssize_t n = 1;
	int r = 0;

	while (r == 0 && n > 0) {
		if (b.len > JSON_LINE_MAX || buf_reserve(&b, 65536) < 0)
			return err_sys(e, ENOMEM, "'%s'", j->file);
		n = read(j->fd, b.data + b.len, 65536);
		if (n < 0)
			return err_sys(e, errno, "read '%s'", j->file);
		b.len += (size_t)n;
		r = load_lines(j, &b, e);
	}
	/* A last line without its newline never was. */
	if (r == 0 && b.len > 0 && ftruncate(j->fd, j->end) < 0)
		return err_sys(e, errno, "mend '%s'", j->file);
	return r;
}

int journal_open(int dirfd, const char *file, const char *member,
		 struct journal **ret, struct err *e)
{
	struct journal *j = calloc(1, sizeof(*j));
	int r;

	if (!j)
		return err_sys(e, ENOMEM, "'%s'", file);
	j->dirfd = dirfd;
	j->member = member;
	j->file = strdup(file);
	j->fd = openat(dirfd, file, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (!j->file)
		r = err_sys(e, ENOMEM, "'%s'", file);
	else if (j->fd >= 0)
		r = load(j, e);
	else
		r = errno == ENOENT ? 0 : err_sys(e, errno, "open '%s'", file);
	if (r < 0) {
		journal_free(j);
		return r;
	}
	*ret = j;
	return 0;
}

void journal_free(struct journal *j)
{
	if (!j)
		return;
	for (size_t i = 0; i < j->n; i++)
		json_decref(j->v[i].line);
	if (j->fd >= 0)
		fd_close(j->fd);
	free(j->v);
	free(j->file);
	free(j);
}

int journal_find(struct journal *j, const char *name, json_t **ret_line,
		 struct err *e)
{
	uint64_t hash = hash_of(name);
	char num[32];
	int r;

	for (size_t i = 0; i < j->n; i++) {
		json_t *line = NULL;

		if (j->v[i].hash != hash)
			continue;
		r = read_line(j, &j->v[i], &line, e);
		if (r < 0)
			return r;
		if (!strcmp(name_in(j, line, num), name)) {
			*ret_line = line;
			return 1;
		}
		json_decref(line);
	}
	return 0;
}

static int append(struct journal *j, struct entry *en, const char *text,
		  struct err *e)
{
	bool fresh = j->fd < 0;
	ssize_t n;

	if (fresh)
		j->fd = openat(j->dirfd, j->file,
			       O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (j->fd < 0)
		return err_sys(e, errno, "create '%s'", j->file);
	n = pwrite(j->fd, text, en->len + 1, j->end);
	if (n == (ssize_t)en->len + 1 && fdatasync(j->fd) == 0 &&
	    (!fresh || fsync(j->dirfd) == 0)) {
		j->end += n;
		return 0;
	}
	n = n < 0 || n == (ssize_t)en->len + 1 ? errno : ENOSPC;
	if (ftruncate(j->fd, j->end) < 0)
		return err_sys(e, errno, "mend '%s'", j->file);
	return err_sys(e, (int)n, "append to '%s'", j->file);
}

int journal_add(struct journal *j, const char *name, json_t *line,
		struct err *e)
{
	struct entry en = {.hash = hash_of(name), .off = j->end};
	auto_free char *text = NULL;
	size_t len;
	int r;

	if (!json_object_get(line, j->member) &&
	    json_object_set_new(line, j->member, json_string(name)) < 0)
		return err_sys(e, ENOMEM, "'%s'", j->file);
	text = json_dumps(line, JSON_COMPACT);
	if (!text)
		return err_sys(e, ENOMEM, "'%s'", j->file);
	len = strlen(text);
	if (len > JSON_LINE_MAX)
		return err_set(e, -EMSGSIZE, "too_large",
			       "a line of %zu bytes for '%s'", len, j->file);
	text[len] = '\n';
	en.len = (uint32_t)len;
	r = append(j, &en, text, e);
	if (r < 0)
		en.line = json_incref(line);
	if (push(j, &en, r < 0 ? NULL : e) < 0) {
		json_decref(en.line);
		return r < 0 ? r : -ENOMEM;
	}
	return r;
}
