/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/key.h"
#include "wire/record.h"

static uint64_t hash_of(const char *key)
{
	uint64_t h = 0xcbf29ce484222325;

	for (const char *p = key; *p; p++)
		h = (h ^ (unsigned char)*p) * 0x100000001b3;
	return h;
}

/* The file of a key is named by its hash and says which key it is. */
static int open_key(const struct tree *t, const char *key, bool wait,
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
	/* Held while the first request is worked on: the second waits. */
	if (flock(fd, LOCK_EX | (wait ? 0 : LOCK_NB)) < 0) {
		r = err_sys(e, errno, "lock '%s'", path);
		fd_close(fd);
		return r;
	}
	return fd;
}

/* What makes two requests the same: all but their ids. */
static json_t *essence(const json_t *req)
{
	json_t *copy = json_copy((json_t *)(uintptr_t)req);

	json_object_del(copy, "id");
	json_object_del(copy, "in");
	json_object_del(copy, "deadline_ms");
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

static int read_first(const struct key *k, const json_t *req, json_t **ret_rec,
		      struct err *e)
{
	auto_json json_t *file = NULL;
	auto_free char *text = NULL;
	size_t len;
	int r;

	r = fd_read_all(k->lock, JSON_LINE_MAX, &text, &len, e);
	if (r < 0)
		return r;
	/* Empty: the first.  Torn: the first one died while writing.  Another
	 * key: two have the same hash, and the older one is forgotten. */
	if (len == 0 || json_parse(text, len, &file, NULL) < 0 ||
	    strcmp(json_str(file, "key"), json_str(req, "key")))
		return 0;
	if (!json_equal(json_object_get(file, "request"), k->request))
		return err_set(e, -EEXIST, "key_conflict",
			       "key '%s' was used for a different request",
			       json_str(req, "key"));
	*ret_rec = repeated(file, req);
	return *ret_rec ? 1 : err_sys(e, ENOMEM, "record");
}

int key_begin(struct key *k, const struct tree *t, const json_t *req, bool wait,
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
	k->lock = open_key(t, key, wait, e);
	r = k->lock < 0 ? k->lock : read_first(k, req, ret_rec, e);
	if (r != 0)
		key_done(k);
	return r;
}

bool key_known(const struct tree *t, const char *key)
{
	auto_json json_t *file = NULL;
	auto_free char *text = NULL;
	auto_close int fd = -1;
	char path[PATH_MAX];
	size_t len;

	if (tree_path(path, NULL, "%s/key/%016llx", t->run,
		      (unsigned long long)hash_of(key)) < 0)
		return false;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return false;
	/* Whose lock it is cannot be told: it may be that one. */
	if (flock(fd, LOCK_SH | LOCK_NB) < 0)
		return true;
	return fd_read_all(fd, JSON_LINE_MAX, &text, &len, NULL) == 0 &&
	       len > 0 && json_parse(text, len, &file, NULL) == 0 &&
	       !strcmp(json_str(file, "key"), key);
}

int key_end(const struct key *k, const json_t *rec, struct err *e)
{
	auto_json json_t *file = NULL;
	auto_free char *text = NULL;
	int r;

	if (k->lock < 0)
		return 0;
	if (ftruncate(k->lock, 0) < 0 || lseek(k->lock, 0, SEEK_SET) < 0)
		return err_sys(e, errno, "keep the key");
	if (!rec)
		return 0;
	r = json_pack_or(&file, e, "{s:O, s:O, s:O}", "key",
			 json_object_get(k->request, "key"), "request",
			 k->request, "record", rec);
	if (r < 0)
		return r;
	text = json_dumps(file, JSON_COMPACT);
	return text ? fd_write_all(k->lock, text, strlen(text), e)
		    : err_sys(e, ENOMEM, "keep the key");
}

void key_done(struct key *k)
{
	if (k->lock >= 0)
		fd_close(steal_fd(&k->lock));
	json_decref(k->request);
	k->request = NULL;
}
