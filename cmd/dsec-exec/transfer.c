/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/sig.h"
#include "box/extract.h"
#include "box/pack.h"
#include "transfer.h"
#include "wire/record.h"

#define TOLD_MAX       1000
#define TOLD_BYTES_MAX (400 * 1024)
#define SHOW_AFTER_MS  1000
#define SHOW_EACH_MS   500

void transfer_done(struct transfer *t)
{
	json_decref(t->refused);
	t->refused = NULL;
}

static void progress(void *arg, uint64_t bytes)
{
	struct transfer *t = arg;
	uint64_t now;

	if (t->quiet)
		return;
	now = clock_ms();
	if (now - t->began_ms < SHOW_AFTER_MS ||
	    now - t->shown_ms < SHOW_EACH_MS)
		return;
	t->shown_ms = now;
	dprintf(STDERR_FILENO, "\r%llu MiB ",
		(unsigned long long)(bytes >> 20));
}

static void progress_end(struct transfer *t)
{
	if (t->shown_ms)
		dprintf(STDERR_FILENO, "\r\033[K");
	t->shown_ms = 0;
}

static int start(struct transfer *t, struct remote *rm, json_t *args,
		 struct err *e)
{
	int r = remote_start(rm, t->c, args, e);

	t->quiet = t->quiet || !isatty(STDERR_FILENO);
	t->began_ms = clock_ms();
	rm->progress = progress;
	rm->arg = t;
	return r;
}

static void tell(struct transfer *t, json_t *entry)
{
	if (!t->refused)
		t->refused = json_array();
	if (!entry || json_array_size(t->refused) >= TOLD_MAX ||
	    t->told_bytes > TOLD_BYTES_MAX)
		json_decref(entry);
	else
		json_array_append_new(t->refused, entry);
}

static void refused(void *arg, const char *path, const struct err *why)
{
	struct transfer *t = arg;
	json_t *entry;

	t->refused_count++;
	/* In a record a byte takes six at most. */
	t->told_bytes += strnlen(path, TOLD_BYTES_MAX) * 6 + ERR_MSG_MAX;
	entry = t->told_bytes > TOLD_BYTES_MAX
			? NULL
			: json_pack("{s:s, s:s*}", "code", why->code, "message",
				    why->msg);
	if (entry && json_set_bytes(entry, "path", path, strlen(path)) < 0)
		json_decref(steal_ptr(entry));
	tell(t, entry);
}

/* What the helper lists: strings of three keys, or nothing. */
static void heard_refused(struct transfer *t, const json_t *result)
{
	static const char *const keys[] = {"path", "path_b64", "code",
					   "message"};
	const json_t *list = json_object_get(result, "refused"), *item;
	int64_t n = json_int(result, "refused_count", 0);
	size_t i;

	if (n > 0 && n < INT32_MAX)
		t->refused_count += (uint64_t)n;
	json_array_foreach(list, i, item) {
		json_t *entry = json_object();

		for (size_t k = 0; entry && k < array_len(keys); k++) {
			json_t *v = json_object_get(item, keys[k]);

			if (!json_is_string(v))
				continue;
			t->told_bytes += json_string_length(v) * 6;
			json_object_set(entry, keys[k], v);
		}
		tell(t, entry);
	}
}

static void heard_counts(struct transfer *t, const json_t *result)
{
	int64_t entries = json_int(result, "entries", 0);
	int64_t bytes = json_int(result, "bytes", 0);

	t->entries = entries > 0 ? (uint64_t)entries : 0;
	t->bytes = bytes > 0 ? (uint64_t)bytes : 0;
}

static int some_refused(const struct transfer *t, struct err *e)
{
	if (t->refused_count == 0)
		return 0;
	return err_set(e, -EREMOTEIO, "refused_entries",
		       "%llu of the entries were refused or left out",
		       (unsigned long long)t->refused_count);
}

/* The helper's end, after our own part went as ${r} and ${e} say. */
static int finish(struct transfer *t, struct remote *rm, int r, bool counts,
		  struct err *e)
{
	auto_json json_t *result = NULL;
	struct err theirs = {0};
	int rc;

	progress_end(t);
	if (r < 0 && r != -EPIPE && r != -EBADMSG)
		return r;
	rc = remote_end(rm, &result, &theirs);
	heard_refused(t, result);
	if (counts)
		heard_counts(t, result);
	/* Refused entries are summed up below.  An end of its own making cuts
	 * our stream, so that its reason is the better one. */
	if (rc < 0 &&
	    (!theirs.code || strcmp(theirs.code, "refused_entries"))) {
		*e = theirs;
		return rc;
	}
	return r < 0 ? r : some_refused(t, e);
}

/* "a/b/" is b in a; where only directories can be named there is no name. */
static int split(const char *path, char *dir, char *name, struct err *e)
{
	size_t len = strlen(path), at;

	if (len >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "path");
	while (len > 1 && path[len - 1] == '/')
		len--;
	for (at = len; at > 0 && path[at - 1] != '/'; at--)
		;
	if (len - at > NAME_MAX)
		return err_sys(e, ENAMETOOLONG, "'%s'", path);
	memcpy(name, path + at, len - at);
	name[len - at] = '\0';
	while (at > 1 && path[at - 1] == '/')
		at--;
	memcpy(dir, path, at);
	dir[at] = '\0';
	if (at == 0)
		memcpy(dir, ".", sizeof("."));
	if (!*name || !strcmp(name, "/") || !strcmp(name, ".") ||
	    !strcmp(name, ".."))
		*name = '\0';
	return 0;
}

/* With a key, a copy of another source is another request. */
static json_t *tar_in_args(const struct transfer *t, const char *from,
			   const char *dir, const char *name)
{
	json_t *args = json_pack("[s, s]", "tar-in", "parents=1");

	if (args && remote_path(args, "path", dir) == 0 &&
	    (!name || !*name || remote_path(args, "name", name) == 0) &&
	    (!t->c->key || remote_path(args, "tag", from) == 0))
		return args;
	json_decref(args);
	return NULL;
}

int transfer_in(struct transfer *t, const char *from, const char *to,
		struct err *e)
{
	char dir[PATH_MAX], name[NAME_MAX + 1];
	struct remote rm = {0};
	struct tar_writer w = {.sink = remote_write, .arg = &rm};
	struct pack p = {.dirfd = AT_FDCWD,
			 .path = from,
			 .left_out = refused,
			 .arg = t};
	struct pack_result n = {0};
	int r;

	/* Look before anything is started or made inside. */
	if (faccessat(AT_FDCWD, from, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, errno, "'%s'", from);
	r = split(to, dir, name, e);
	if (r < 0)
		return r;
	p.name = *name ? name : ".";
	r = start(t, &rm, tar_in_args(t, from, *name ? dir : to, name), e);
	if (r == 0) {
		r = pack_tree(&p, &w, &n, e);
		tar_writer_done(&w);
		r = finish(t, &rm, r, true, e);
	}
	remote_done(&rm);
	return r;
}

int transfer_tar_in(struct transfer *t, int fd, const char *to, struct err *e)
{
	struct remote rm = {0};
	char data[64 * 1024];
	ssize_t n = 0;
	int r;

	r = start(t, &rm, tar_in_args(t, NULL, to, NULL), e);
	while (r == 0) {
		n = extract_fd_source(&fd, data, sizeof(data), e);
		if (n <= 0)
			break;
		r = remote_write(&rm, data, (size_t)n, e);
	}
	if (n < 0)
		r = (int)n;
	else if (rm.started)
		r = finish(t, &rm, r, true, e);
	remote_done(&rm);
	return r;
}

static json_t *tar_out_args(const char *path, const char *name)
{
	json_t *args = json_pack("[s]", "tar-out");

	if (args && remote_path(args, "path", path) == 0 &&
	    remote_path(args, "name", name) == 0)
		return args;
	json_decref(args);
	return NULL;
}

/*
 * From here on a signal is waited for where the stream is.  Before, there was
 * nothing to clean up, and it just ends us.
 */
static int watch_signals(struct remote *rm, int *ret_fd, struct err *e)
{
	static const int stops[] = {SIGINT, SIGTERM, SIGHUP};

	*ret_fd = sig_block(stops, array_len(stops), e);
	rm->stop_fd = *ret_fd;
	return *ret_fd < 0 ? *ret_fd : 0;
}

static int receive(struct transfer *t, struct remote *rm, int dirfd,
		   const char *top, struct err *e)
{
	struct extract x = {
		.dirfd = dirfd,
		.top = top,
		.max_entries = TRANSFER_ENTRIES_MAX,
		.max_bytes = TRANSFER_BYTES_MAX,
		.refused = refused,
		.arg = t,
	};
	struct extract_result n = {0};
	struct tar_reader rd;
	int r;

	r = tar_reader_init(&rd, remote_read, rm, e);
	if (r < 0)
		return r;
	r = extract_tree(&x, &rd, &n, e);
	tar_reader_done(&rd);
	t->entries = n.entries;
	t->bytes = n.bytes;
	return r;
}

int transfer_out(struct transfer *t, const char *from, const char *to,
		 struct err *e)
{
	char dir[PATH_MAX], name[NAME_MAX + 1];
	auto_close int fd = -1;
	auto_close int stop = -1;
	struct remote rm = {0};
	const char *type;
	int r;

	r = split(to, dir, name, e);
	if (r < 0)
		return r;
	fd = open(*name ? dir : to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "'%s'", *name ? dir : to);
	/* "Not found" before a stream that never starts. */
	r = transfer_stat(t, from, false, &type, e);
	if (r < 0)
		return r;
	r = start(t, &rm, tar_out_args(from, *name ? name : "."), e);
	if (r == 0 && t->tidy)
		r = watch_signals(&rm, &stop, e);
	if (r == 0) {
		r = receive(t, &rm, fd, *name ? name : NULL, e);
		r = finish(t, &rm, r, false, e);
	}
	remote_done(&rm);
	return r;
}

int transfer_tar_out(struct transfer *t, const char *from, const char *name,
		     int fd, struct err *e)
{
	struct remote rm = {0};
	char data[64 * 1024];
	ssize_t n;
	int r;

	r = start(t, &rm, tar_out_args(from, name), e);
	while (r == 0 && (n = remote_read(&rm, data, sizeof(data), e)) != 0)
		r = n < 0 ? (int)n : fd_write_all(fd, data, (size_t)n, e);
	if (rm.started)
		r = finish(t, &rm, r, true, e);
	remote_done(&rm);
	return r;
}

int transfer_stat(struct transfer *t, const char *path, bool follow,
		  const char **ret_type, struct err *e)
{
	static const char *const types[] = {"file", "directory", "symlink",
					    "fifo", "socket",	 "char",
					    "block"};
	auto_json json_t *result = NULL;
	struct remote rm = {0};
	json_t *args = json_pack("[s, s]", "stat",
				 follow ? "follow=1" : "follow=0");
	int r;

	if (args && remote_path(args, "path", path) < 0)
		json_decref(steal_ptr(args));
	r = remote_start(&rm, t->c, args, e);
	if (r == 0)
		r = remote_end(&rm, &result, e);
	remote_done(&rm);
	if (r < 0)
		return r;
	for (size_t i = 0; i < array_len(types); i++) {
		if (strcmp(types[i], json_str(result, "type")))
			continue;
		*ret_type = types[i];
		return 0;
	}
	return err_set(e, -EBADMSG, "internal",
		       "the file helper answered no type");
}

int transfer_report(const struct transfer *t, json_t *rec)
{
	if (json_object_set_new(rec, "entries",
				json_integer((json_int_t)t->entries)) < 0 ||
	    json_object_set_new(rec, "bytes",
				json_integer((json_int_t)t->bytes)) < 0)
		return -ENOMEM;
	if (t->refused_count == 0)
		return 0;
	if (json_object_set_new(rec, "refused_count",
				json_integer((json_int_t)t->refused_count)) < 0)
		return -ENOMEM;
	return json_object_set(rec, "refused", t->refused) < 0 ? -ENOMEM : 0;
}
