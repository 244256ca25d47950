/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/sig.h"
#include "box/key.h"
#include "wire/record.h"

#define RETRY_MS 20

static uint64_t hash_of(const char *key)
{
	uint64_t h = 0xcbf29ce484222325;

	for (const char *p = key; *p; p++)
		h = (h ^ (unsigned char)*p) * 0x100000001b3;
	return h;
}

/* Held while the first request is worked on: the second waits, and hears what
 * tells it to end, as it would not in a flock() that waits. */
static int lock_key(int fd, const char *path, int stop, struct err *e)
{
	while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK || stop == KEY_NO_WAIT)
			return err_sys(e, errno, "lock '%s'", path);
		if (sig_came(stop, RETRY_MS))
			return err_set(e, -ECANCELED, "cancelled",
				       "it was ended while it waited for the "
				       "first request with its key");
	}
	return 0;
}

/* The file of a key is named by its hash and says which key it is. */
static int open_key(const struct tree *t, const char *key, int stop,
		    struct err *e)
{
	uint64_t h = hash_of(key);
	char path[PATH_MAX];
	int fd, r;

	r = tree_path(path, e, "%s/key", t->run);
	if (r == 0)
		r = fd_mkdir_p(path, 0700, e);
	if (r == 0)
		r = tree_path(path, e, "%s/key/%016llx", t->run,
			      (unsigned long long)h);
	if (r < 0)
		return r;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	r = lock_key(fd, path, stop, e);
	if (r == 0)
		return fd;
	fd_close(fd);
	return r;
}

/* What makes two requests the same: all but their ids. */
static json_t *essence(const json_t *req)
{
	json_t *copy = json_copy((json_t *)(uintptr_t)req);

	json_object_del(copy, "id");
	json_object_del(copy, "in");
	json_object_del(copy, "deadline_ms");
	json_object_del(copy, "attempt");
	return copy;
}

static json_t *repeated(const json_t *file, const json_t *req)
{
	json_t *rec = json_deep_copy(json_object_get(file, "record"));
	json_t *id = json_object_get(req, "id");

	if (rec && json_object_set_new(rec, "repeated", json_true()) == 0 &&
	    (!id || json_object_set(rec, "id", id) == 0))
		return rec;
	json_decref(rec);
	return NULL;
}

/* What a file says: an object, its first ${*ret_first} bytes, and a second line
 * that adds what came of it.  A torn line is none: whoever wrote it died. */
static int read_file(int fd, json_t **ret, size_t *ret_first, struct err *e)
{
	auto_json json_t *more = NULL;
	auto_free char *text = NULL;
	size_t len, first;
	char *nl;
	int r;

	r = fd_read_all(fd, 2 * (JSON_LINE_MAX + 1), &text, &len, e);
	if (r < 0)
		return r;
	nl = memchr(text, '\n', len);
	first = nl ? (size_t)(nl - text) : len;
	if (first == 0 || json_parse(text, first, ret, NULL) < 0)
		return -ENOENT;
	*ret_first = first;
	if (nl && json_parse(nl + 1, len - first - 1, &more, NULL) == 0 &&
	    json_object_update_missing(*ret, more) < 0)
		return err_sys(e, ENOMEM, "key");
	return 0;
}

/* Nothing is done for it yet, and may be by one attempt alone. */
static int check_fence(struct key *k, const json_t *file, const json_t *req,
		       struct err *e)
{
	const char *only = json_str(file, "only");

	if (strcmp(only, json_str(req, "attempt")))
		return err_set(e, -ECANCELED, "cancelled",
			       "key '%s' was asked for again since",
			       json_str(req, "key"));
	k->only = strdup(only);
	return k->only ? 0 : err_sys(e, ENOMEM, "key");
}

static int read_first(struct key *k, const json_t *req, json_t **ret_rec,
		      struct err *e)
{
	auto_json json_t *file = NULL;
	size_t first;
	int r = read_file(k->lock, &file, &first, e);

	if (r < 0 && r != -ENOENT)
		return r;
	/* Nothing: the first.  Another key: two have the same hash, and the
	 * older one is forgotten. */
	if (r < 0 || strcmp(json_str(file, "key"), json_str(req, "key")))
		return 0;
	if (json_object_get(file, "only"))
		return check_fence(k, file, req, e);
	if (!json_equal(json_object_get(file, "request"), k->request))
		return err_set(e, -EEXIST, "key_conflict",
			       "key '%s' was used for a different request",
			       json_str(req, "key"));
	if (!json_object_get(file, "record")) {
		snprintf(k->made, sizeof(k->made), "%s",
			 json_str(file, "making"));
		/* A record is put behind it: what is torn there goes. */
		return ftruncate(k->lock, (off_t)first) < 0
			       ? err_sys(e, errno, "keep the key")
			       : 0;
	}
	*ret_rec = repeated(file, req);
	return *ret_rec ? 1 : err_sys(e, ENOMEM, "record");
}

int key_begin(struct key *k, const struct tree *t, const json_t *req, int stop,
	      json_t **ret_rec, struct err *e)
{
	const char *key = json_str(req, "key");
	int r;

	*k = (struct key){.lock = -1};
	if (!*key)
		return 0;
	k->request = essence(req);
	if (!k->request)
		return err_sys(e, ENOMEM, "key");
	k->lock = open_key(t, key, stop, e);
	r = k->lock < 0 ? k->lock : read_first(k, req, ret_rec, e);
	if (r != 0)
		key_done(k);
	return r;
}

static int write_file(int fd, const json_t *file, struct err *e)
{
	auto_free char *text = json_dumps(file, JSON_COMPACT);

	if (ftruncate(fd, 0) < 0 || lseek(fd, 0, SEEK_SET) < 0)
		return err_sys(e, errno, "keep the key");
	return text ? fd_write_all(fd, text, strlen(text), e)
		    : err_sys(e, ENOMEM, "keep the key");
}

static int write_fence(int fd, const char *key, const char *only, struct err *e)
{
	auto_json json_t *file = NULL;
	int r = json_pack_or(&file, e, "{s:s, s:s}", "key", key, "only", only);

	return r < 0 ? r : write_file(fd, file, e);
}

static bool is_done(int fd, const char *key)
{
	auto_json json_t *file = NULL;
	size_t first;

	return read_file(fd, &file, &first, NULL) == 0 &&
	       !strcmp(json_str(file, "key"), key) &&
	       !json_object_get(file, "only");
}

bool key_known(const struct tree *t, const char *key)
{
	auto_close int fd = -1;
	char path[PATH_MAX];

	if (tree_path(path, NULL, "%s/key/%016llx", t->run,
		      (unsigned long long)hash_of(key)) < 0)
		return false;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return false;
	/* Whose lock it is cannot be told: it may be that one. */
	return flock(fd, LOCK_SH | LOCK_NB) < 0 || is_done(fd, key);
}

int key_fence(const struct tree *t, const char *key, const char *attempt,
	      bool *ret_known, struct err *e)
{
	auto_close int fd = open_key(t, key, KEY_NO_WAIT, e);

	/* Whose lock it is cannot be told: it may be that one. */
	if (fd < 0 && fd != -EWOULDBLOCK)
		return fd;
	*ret_known = fd < 0 || is_done(fd, key);
	return *ret_known ? 0 : write_fence(fd, key, attempt, e);
}

int key_making(struct key *k, const char *id, struct err *e)
{
	auto_json json_t *file = NULL;
	int r;

	r = json_pack_or(&file, e, "{s:O, s:O, s:s}", "key",
			 json_object_get(k->request, "key"), "request",
			 k->request, "making", id);
	if (r == 0)
		r = write_file(k->lock, file, e);
	if (r == 0)
		snprintf(k->made, sizeof(k->made), "%s", id);
	return r;
}

/* Behind what is there, which holds until all of it is. */
static int add_record(const struct key *k, const json_t *rec, struct err *e)
{
	auto_json json_t *more = NULL;
	auto_free char *text = NULL;
	int r = json_pack_or(&more, e, "{s:O}", "record", rec);

	if (r < 0)
		return r;
	text = json_dumps(more, JSON_COMPACT);
	if (!text)
		return err_sys(e, ENOMEM, "keep the key");
	if (lseek(k->lock, 0, SEEK_END) < 0)
		return err_sys(e, errno, "keep the key");
	r = fd_write_all(k->lock, "\n", 1, e);
	return r < 0 ? r : fd_write_all(k->lock, text, strlen(text), e);
}

int key_end(const struct key *k, const json_t *rec, struct err *e)
{
	auto_json json_t *file = NULL;
	int r;

	if (k->lock < 0)
		return 0;
	if (!rec && k->only)
		return write_fence(k->lock, json_str(k->request, "key"),
				   k->only, e);
	if (!rec)
		return ftruncate(k->lock, 0) < 0
			       ? err_sys(e, errno, "keep the key")
			       : 0;
	if (*k->made)
		return add_record(k, rec, e);
	r = json_pack_or(&file, e, "{s:O, s:O, s:O}", "key",
			 json_object_get(k->request, "key"), "request",
			 k->request, "record", rec);
	return r < 0 ? r : write_file(k->lock, file, e);
}

void key_done(struct key *k)
{
	if (k->lock >= 0)
		fd_close(steal_fd(&k->lock));
	json_decref(k->request);
	k->request = NULL;
	free(k->only);
	k->only = NULL;
}
