/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/recorder.h"
#include "life/output.h"

#define INLINE_KB 64
/* As base64, or with every byte escaped, it still fits a record. */
#define OUTPUT_MAX (128 * 1024)

static const struct {
	const char *name, *coded;
} streams[] = {{"stdout", "stdout_b64"}, {"stderr", "stderr_b64"}};

int output_dir(const struct tree *tree, const char *id, const char *exec,
	       struct err *e)
{
	size_t n = strspn(exec, "abcdefghijklmnopqrstuvwxyz0123456789-");
	char path[PATH_MAX];
	int r, fd;

	if (n == 0 || n > 64 || exec[n] != '\0')
		return err_set(e, -ENOENT, "exec_unknown", "no command '%.64s'",
			       exec);
	r = tree_path(path, e, "%s/sb/%s/out", tree->lib, id);
	if (r < 0)
		return r;
	/* On a pool it is a link of ours. */
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? err_sys(e, errno, "open '%s'", path) : fd;
}

/* --- as files ------------------------------------------------------------ */

/* A part of a file; what the file does not have of it counts as lost. */
static int add_part(const struct output_stream *s, const char *suffix,
		    const struct output_part *want, struct output_parts *ret,
		    struct err *e)
{
	auto_close int fd = -1;
	struct stat st = {0};
	char name[96];
	uint64_t has;

	if (want->len == 0)
		return 0;
	snprintf(name, sizeof(name), "%s.%s%s", s->exec, s->stream, suffix);
	fd = openat(s->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if ((fd < 0 && errno != ENOENT) || (fd >= 0 && fstat(fd, &st) < 0))
		return err_sys(e, errno, "open '%s'", name);
	has = (uint64_t)st.st_size > want->at ? (uint64_t)st.st_size - want->at
					      : 0;
	if (has > want->len)
		has = want->len;
	ret->lost += want->len - has;
	if (has > 0)
		ret->part[ret->n++] = (struct output_part){steal_fd(&fd),
							   want->at, has};
	return 0;
}

/* The tail is a ring: what is wanted of it may be in two parts. */
static int add_tail(const struct output_stream *s, uint64_t from,
		    uint64_t total, struct output_parts *ret, struct err *e)
{
	const uint64_t head = RECORDER_HEAD, ring = RECORDER_TAIL;
	struct output_part one, two;
	uint64_t kept;
	int r;

	kept = total > head + ring ? total - ring : head;
	if (from < kept) {
		ret->lost += kept - from;
		from = kept;
	}
	if (from >= total)
		return 0;
	one = (struct output_part){-1, (from - head) % ring, total - from};
	if (one.len > ring - one.at)
		one.len = ring - one.at;
	two = (struct output_part){-1, 0, total - from - one.len};
	r = add_part(s, ".tail", &one, ret, e);
	return r < 0 ? r : add_part(s, ".tail", &two, ret, e);
}

int output_parts(const struct output_stream *s, uint64_t from, uint64_t total,
		 struct output_parts *ret, struct err *e)
{
	const uint64_t head = total < RECORDER_HEAD ? total : RECORDER_HEAD;
	struct output_part first = {-1, from, from < head ? head - from : 0};
	int r;

	*ret = (struct output_parts){0};
	r = add_part(s, "", &first, ret, e);
	if (r == 0 && total > RECORDER_HEAD)
		r = add_tail(s, from < RECORDER_HEAD ? RECORDER_HEAD : from,
			     total, ret, e);
	if (r < 0)
		output_parts_done(ret);
	return r;
}

void output_parts_done(struct output_parts *p)
{
	for (unsigned i = 0; i < p->n; i++)
		if (p->part[i].fd >= 0)
			fd_close(p->part[i].fd);
	p->n = 0;
}

/* --- as text of a record ------------------------------------------------- */

/* How much of the end is a character that was cut in two. */
static size_t cut_tail(const char *buf, size_t len)
{
	for (size_t back = 1; back <= 3 && back <= len; back++) {
		unsigned char c = (unsigned char)buf[len - back];
		size_t want = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;

		if ((c & 0xc0) == 0x80)
			continue;
		return c >= 0xc0 && want > back ? back : 0;
	}
	return 0;
}

struct piece {
	const struct tree *tree;
	const char *id, *exec, *stream;
	uint64_t total, offset;
	size_t max;
};

/* Read ${p} into a new buffer: how much, and from where. */
static ssize_t read_piece(const struct piece *p, char **ret_buf,
			  uint64_t *ret_offset, struct err *e)
{
	auto_close int dir = -1;
	auto_free char *buf = NULL;
	char name[96];
	ssize_t n;

	*ret_offset = p->offset;
	if (p->total <= p->offset || p->max == 0) {
		*ret_buf = calloc(1, 1);
		return *ret_buf ? 0 : err_sys(e, ENOMEM, "output");
	}
	dir = output_dir(p->tree, p->id, p->exec, e);
	if (dir < 0)
		return dir;
	buf = malloc(p->max);
	if (!buf)
		return err_sys(e, ENOMEM, "output");
	snprintf(name, sizeof(name), "%s.%s", p->exec, p->stream);
	n = recorder_read(dir, name, p->total, p->offset, buf, p->max,
			  ret_offset, e);
	if (n == -ENOENT)
		n = 0; /* nothing could be recorded */
	if (n >= 0)
		*ret_buf = steal_ptr(buf);
	return n;
}

static int add_stream(const struct piece *p, json_t *rec, bool *ret_cut,
		      struct err *e)
{
	auto_free char *buf = NULL;
	uint64_t from = 0;
	ssize_t n;

	n = read_piece(p, &buf, &from, e);
	if (n < 0)
		return (int)n;
	if (from != p->offset)
		n = 0;
	if ((uint64_t)n < p->total) {
		*ret_cut = true;
		n -= (ssize_t)cut_tail(buf, (size_t)n);
	}
	return json_set_bytes(rec, p->stream, buf, (size_t)n) < 0
		       ? err_sys(e, ENOMEM, "output")
		       : 0;
}

static uint64_t bytes_of(const json_t *rec, const char *stream)
{
	char key[32];
	int64_t n;

	snprintf(key, sizeof(key), "%s_bytes", stream);
	n = json_int(rec, key, 0);
	return n > 0 ? (uint64_t)n : 0;
}

/* Both streams, at most ${max} bytes of each. */
static int add_streams(const struct tree *tree, const char *id, json_t *rec,
		       size_t max, struct err *e)
{
	bool cut = false;
	int r = 0;

	for (size_t i = 0; i < array_len(streams) && r == 0; i++) {
		struct piece p = {.tree = tree,
				  .id = id,
				  .exec = json_str(rec, "exec"),
				  .stream = streams[i].name,
				  .total = bytes_of(rec, streams[i].name),
				  .max = max};

		json_object_del(rec, streams[i].name);
		json_object_del(rec, streams[i].coded);
		r = add_stream(&p, rec, &cut, e);
	}
	if (r == 0 && cut)
		json_object_set_new(rec, "truncated", json_true());
	return r;
}

int output_add(const struct tree *tree, const char *id, const json_t *req,
	       json_t *rec, struct err *e)
{
	size_t max = (size_t)json_int(req, "inline_kb", INLINE_KB) * 1024;
	int r;

	/* Escaped, a byte takes up to six. */
	while ((r = add_streams(tree, id, rec, max, e)) == 0) {
		if (max < 64 * 1024 ||
		    json_dumpb(rec, NULL, 0, JSON_COMPACT) < JSON_LINE_MAX)
			break;
		max /= 2;
	}
	return r;
}

/* What the supervisor says of it, else what the files say. */
static json_t *find_exec(json_t *execs, const char *exec)
{
	json_t *one;
	size_t i;

	json_array_foreach(execs, i, one)
		if (!strcmp(json_str(one, "exec"), exec))
			return json_incref(one);
	return NULL;
}

static int look_up(const struct tree *tree, const char *id, const char *exec,
		   json_t *execs, json_t **ret, struct err *e)
{
	auto_close int dir = -1;
	char name[96];
	int r;

	*ret = find_exec(execs, exec);
	if (*ret)
		return 0;
	dir = output_dir(tree, id, exec, e);
	if (dir < 0)
		return dir;
	snprintf(name, sizeof(name), "%s.json", exec);
	r = json_read_file(dir, name, ret, e);
	return r == -ENOENT ? err_set(e, r, "exec_unknown",
				      "no command '%s' in sandbox %s", exec, id)
			    : r;
}

int output_read(const struct tree *tree, const char *id, const json_t *req,
		json_t *rec, struct err *e)
{
	auto_json json_t *one = NULL;
	auto_free char *buf = NULL;
	int64_t limit = json_int(req, "limit", OUTPUT_MAX);
	struct piece p = {.tree = tree,
			  .id = id,
			  .exec = json_str(req, "exec"),
			  .stream = "stdout"};
	uint64_t from, next;
	size_t cut;
	ssize_t n;
	bool ended;
	int r;

	if (*json_str(req, "stream"))
		p.stream = json_str(req, "stream");
	r = look_up(tree, id, p.exec, json_object_get(rec, "execs"), &one, e);
	json_object_del(rec, "execs");
	if (r < 0)
		return r;
	p.total = bytes_of(one, p.stream);
	p.offset = (uint64_t)json_int(req, "offset", 0);
	p.max = limit > OUTPUT_MAX ? OUTPUT_MAX : (size_t)limit;
	n = read_piece(&p, &buf, &from, e);
	if (n < 0)
		return (int)n;
	/* The rest of a character may be still to come. */
	ended = json_object_get(one, "outcome");
	next = from + (uint64_t)n;
	cut = next < p.total || !ended ? cut_tail(buf, (size_t)n) : 0;
	if ((size_t)n > cut) {
		n -= (ssize_t)cut;
		next -= cut;
	}
	if (json_set_bytes(rec, "data", buf, (size_t)n) < 0)
		return err_sys(e, ENOMEM, "output");
	json_object_set_new(rec, "exec", json_string(p.exec));
	json_object_set_new(rec, "stream", json_string(p.stream));
	json_object_set_new(rec, "offset", json_integer((json_int_t)from));
	json_object_set_new(rec, "next", json_integer((json_int_t)next));
	json_object_set_new(rec, "bytes", json_integer((json_int_t)p.total));
	json_object_set_new(rec, "ended", json_boolean(ended));
	return 0;
}
