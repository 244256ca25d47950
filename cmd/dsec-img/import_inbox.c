/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "import.h"

/*
 * What a runner packed.  It may write nothing else of the store, and what it
 * wrote is read as a stranger's: the archive is imported anew, the name it
 * would like is told and not set.
 */

/* What tree_node() makes, before a slash: host names may have capitals. */
static bool is_node(const char *s, size_t n)
{
	static const char chars[] = "abcdefghijklmnopqrstuvwxyz"
				    "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

	return n > 0 && n <= TREE_NODE_LEN && !strchr("._-", *s) &&
	       strspn(s, chars) == n;
}

static int bad(struct err *e, const char *what)
{
	return err_set(e, -EBADMSG, "bad_archive", "%s", what);
}

static int open_part(const struct import_req *q, const char *what,
		     const char *suffix, struct err *e)
{
	char path[320];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "inbox/%s.%s", what, suffix);
	fd = fd_openat2(q->store->fd, path, O_RDONLY | O_NONBLOCK | O_NOCTTY,
			RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
	if (fd < 0)
		return err_sys(e, -fd, "'%s' of the store", path);
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		return fd;
	fd_close(fd);
	return bad(e, "what is in the inbox is no file");
}

static int read_record(const struct import_req *q, const char *what,
		       json_t **ret, struct err *e)
{
	auto_close int fd = open_part(q, what, "json", e);
	auto_free char *text = NULL;
	size_t len = 0;
	int r;

	if (fd < 0)
		return fd;
	r = fd_read_all(fd, MANIFEST_MAX, &text, &len, e);
	if (r == 0)
		r = json_parse(text, len, ret, e);
	if (r == 0 && json_int(*ret, "v", 0) != 1)
		r = bad(e, "a record of another version");
	return r;
}

static int take_parents(struct import_req *q, const json_t *rec, struct err *e)
{
	const json_t *list = json_object_get(rec, "parents"), *item;
	size_t i;

	if (json_array_size(list) > LAYER_PARENTS_MAX)
		return bad(e, "too many parents");
	json_array_foreach(list, i, item) {
		struct digest *d = &q->layer.parents[i];
		auto_layer struct layer l = {0};
		const char *s = json_string_value(item);
		int r;

		if (!s || digest_parse(s, d) < 0)
			return bad(e, "a parent that is no digest");
		r = store_layer(q->store, d, &l, e);
		if (r < 0)
			return err_wrap(e, r, "a layer it was packed on");
		q->layer.nparents++;
	}
	return 0;
}

static int take_record(struct import_req *q, const json_t *rec, struct err *e)
{
	const json_t *own = json_object_get(rec, "config");
	json_t *joined = NULL;
	int r = 0;

	if (!*json_str(q->req, "kind"))
		r = layer_kind_parse(json_str(rec, "kind"), &q->layer.kind, e);
	if (r < 0)
		return bad(e, "a kind of layer there is not");
	if (json_is_object(own)) {
		r = config_join(own, q->layer.config, &joined, e);
		if (r < 0)
			return r;
		json_decref(q->layer.config);
		q->layer.config = joined;
	}
	r = take_parents(q, rec, e);
	return r < 0 ? r
		     : import_req_source(q, "sandbox", NULL,
					 json_str(json_object_get(rec,
								  "source"),
						  "name"),
					 e);
}

static int import_archive(struct import_req *q, int fd, const json_t *rec,
			  struct digest *ret, struct err *e)
{
	const json_t *tar = json_object_get(rec, "tar");
	auto_source struct source *s = NULL;
	struct digest want, got;
	int r;

	if (digest_parse(json_str(tar, "digest"), &want) < 0)
		return bad(e, "a record without the archive's digest");
	/* First, for the layer is published by what reads it. */
	r = sha256_fd(fd, &got, e);
	if (r < 0)
		return r;
	if (!digest_eq(&got, &want))
		return bad(e, "the archive is not what its record says");
	r = source_open(fd, 0, UINT64_MAX, SOURCE_RAW, &s, e);
	return r < 0 ? r
		     : importing_tar(&q->m, s, IMPORT_OCI, &q->layer, ret, e);
}

int import_inbox(struct import_req *q, const char *what, json_t *answer,
		 struct err *e)
{
	const char *slash = strchr(what, '/');
	auto_json json_t *rec = NULL;
	auto_close int fd = -1;
	struct digest digest;
	const char *as;
	int r;

	if (!slash || !is_node(what, (size_t)(slash - what)) ||
	    !img_segment_ok(slash + 1, strlen(slash + 1)))
		return err_set(e, -EINVAL, "bad_value",
			       "inbox:NODE/NAME is expected");
	r = read_record(q, what, &rec, e);
	if (r == 0)
		r = take_record(q, rec, e);
	if (r < 0)
		return r;
	fd = open_part(q, what, "tar", e);
	if (fd < 0)
		return fd;
	r = import_archive(q, fd, rec, &digest, e);
	if (r < 0)
		return r;
	as = json_str(rec, "as");
	if (*as && json_object_set_new(answer, "proposed", json_string(as)) < 0)
		return err_sys(e, ENOMEM, "answer");
	return import_req_end(q, &digest, answer, e);
}
