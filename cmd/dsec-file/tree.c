/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/extract.h"
#include "box/pack.h"
#include "ops.h"

#define REFUSED_TOLD_MAX  1000
#define REFUSED_BYTES_MAX (256 * 1024)

/* Paths that could not be packed or extracted are told in the result. */
static void refused_add(void *arg, const char *path, const struct err *why)
{
	struct call *c = arg;
	json_t *list = json_object_get(c->res, "refused"), *entry;

	if (!list) {
		list = json_array();
		if (json_object_set_new(c->res, "refused", list) < 0)
			return;
	}
	/* Told up to a bound; counted all. */
	c->limit += (int64_t)strlen(path) * 2 + 200;
	if (json_array_size(list) >= REFUSED_TOLD_MAX ||
	    c->limit > REFUSED_BYTES_MAX)
		return;
	entry = json_pack("{s:s, s:s}", "code", why->code, "message", why->msg);
	if (!entry)
		entry = json_pack("{s:s}", "code", why->code);
	if (entry && json_set_bytes(entry, "path", path, strlen(path)) == 0)
		json_array_append_new(list, entry);
	else
		json_decref(entry);
}

static int set_counts(struct call *c, uint64_t entries, uint64_t bytes,
		      uint64_t refused, struct err *e)
{
	json_t *n = json_pack("{s:I, s:I, s:I}", "entries", (json_int_t)entries,
			      "bytes", (json_int_t)bytes, "refused_count",
			      (json_int_t)refused);
	int r = n ? json_object_update(c->res, n) : -1;

	json_decref(n);
	return r < 0 ? err_sys(e, ENOMEM, "result") : 0;
}

static int some_refused(uint64_t n, const char *what, struct err *e)
{
	if (n == 0)
		return 0;
	return err_set(e, -EREMOTEIO, "refused_entries", "%llu %s %s",
		       (unsigned long long)n,
		       n == 1 ? "entry was" : "entries were", what);
}

int op_tar_out(struct call *c, struct err *e)
{
	int fd = STDOUT_FILENO;
	struct tar_writer w = {.sink = pack_fd_sink, .arg = &fd};
	struct pack p = {
		.dirfd = AT_FDCWD,
		.path = c->path,
		.name = c->name ? c->name : ".",
		.left_out = refused_add,
		.arg = c,
	};
	struct pack_result n = {0};
	int r;

	r = pack_tree(&p, &w, &n, e);
	tar_writer_done(&w);
	if (set_counts(c, n.entries, n.bytes, n.left_out, r < 0 ? NULL : e) < 0)
		return -ENOMEM;
	return r < 0 ? r : some_refused(n.left_out, "left out", e);
}

static int open_dest(const struct call *c, struct err *e)
{
	int fd, r = 0;

	if (c->parents)
		r = fd_mkdir_p(c->path, 0755, e);
	if (r < 0)
		return r;
	fd = open(c->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? err_sys(e, errno, "'%s'", c->path) : fd;
}

int op_tar_in(struct call *c, struct err *e)
{
	int in = STDIN_FILENO, r;
	auto_close int fd = open_dest(c, e);
	struct extract x = {
		.dirfd = fd,
		.flags = EXTRACT_FIFOS |
			 (c->owner ? EXTRACT_OWNER | EXTRACT_SETID : 0),
		.top = c->name,
		.refused = refused_add,
		.arg = c,
	};
	struct extract_result n = {0};
	struct tar_reader rd;

	if (fd < 0)
		return fd;
	r = tar_reader_init(&rd, extract_fd_source, &in, e);
	if (r < 0)
		return r;
	r = extract_tree(&x, &rd, &n, e);
	tar_reader_done(&rd);
	if (set_counts(c, n.entries, n.bytes, n.refused, r < 0 ? NULL : e) < 0)
		return -ENOMEM;
	return r < 0 ? r : some_refused(n.refused, "refused", e);
}
