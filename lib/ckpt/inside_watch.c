/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/walk.h"
#include "ckpt/inside_priv.h"

#ifndef AT_HANDLE_FID
#define AT_HANDLE_FID 0x200
#endif

#define HANDLE_MAX 128

/* As fdinfo has it: "inotify wd:1 ino:17 sdev:35 mask:fff ignored_mask:0
 * fhandle-bytes:18 fhandle-type:f8 f_handle:00fb.." */
struct watch {
	unsigned long ino;
	unsigned sdev, bytes, type;
	char hex[2 * HANDLE_MAX + 1];
};

static bool parse(const char *line, struct watch *w)
{
	return sscanf(line,
		      "inotify wd:%*x ino:%lx sdev:%x mask:%*x "
		      "ignored_mask:%*x fhandle-bytes:%x fhandle-type:%x "
		      "f_handle:%256[0-9a-f]",
		      &w->ino, &w->sdev, &w->bytes, &w->type, w->hex) == 5 &&
	       strlen(w->hex) == 2 * (size_t)w->bytes;
}

/* Watched but not found yet is its inode, found is its path. */
static int add(struct survey *s, const struct watch *w, struct err *e)
{
	char key[2 * HANDLE_MAX + 16];

	snprintf(key, sizeof(key), "%u %s", w->type, w->hex);
	if (json_object_get(s->in->watches, key))
		return 0;
	return json_object_set_new(s->in->watches, key,
				   json_integer((json_int_t)w->ino)) < 0
		       ? err_sys(e, ENOMEM, "survey")
		       : 0;
}

/* Handles that tell files apart and open none: those of /proc, of terminals.
 * An old kernel has none for them.  XFS has the same ones and opens them; it is
 * on a device. */
#define FID_ONLY 0x80

static bool is_nameless(const char *line, const struct watch *w)
{
	return !strncmp(line, "inotify wd:", 11) &&
	       (!w || ((w->type & ~3U) == FID_ONLY && w->sdev >> 20 == 0));
}

int inside_add_watches(struct survey *s, const char *text, struct err *e)
{
	unsigned root = s->root_major << 20 | s->root_minor;
	bool known;
	struct watch w;
	int r = 0;

	for (const char *line = text; r == 0 && line;
	     line = strchr(line, '\n')) {
		line += *line == '\n';
		known = parse(line, &w);
		if (is_nameless(line, known ? &w : NULL))
			return inside_refuse(s, e,
					     "watches by inotify what cannot "
					     "be found again, such as a file "
					     "of /proc or a terminal");
		/* Other file systems open their handles. */
		if (known && w.sdev == root)
			r = add(s, &w, e);
	}
	return r;
}

/* The key of what is there by that name (""; the descriptor itself), or false:
 * it cannot be told. */
static bool key_of(int dirfd, const char *name, char *key, size_t size)
{
	_Alignas(struct file_handle) unsigned char
		buf[sizeof(struct file_handle) + HANDLE_MAX];
	struct file_handle *h = (struct file_handle *)(void *)buf;
	const unsigned char *data = buf + sizeof(*h);
	size_t at;
	int id;

	h->handle_bytes = HANDLE_MAX;
	if (name_to_handle_at(dirfd, name, h, &id,
			      AT_HANDLE_FID | AT_EMPTY_PATH) < 0)
		return false;
	at = (size_t)snprintf(key, size, "%d ", h->handle_type);
	for (unsigned i = 0; i < h->handle_bytes && at + 3 < size; i++)
		at += (size_t)snprintf(key + at, size - at, "%02x", data[i]);
	return true;
}

static bool is_still(struct survey *s, const char *path, const char *key)
{
	auto_close int fd = inside_open(s, *path ? path : ".",
					O_PATH | O_NOFOLLOW);
	char now[2 * HANDLE_MAX + 16];

	return fd >= 0 && key_of(fd, "", now, sizeof(now)) && !strcmp(now, key);
}

/* Paths that were found before and are it still. */
static unsigned recall(struct survey *s)
{
	const char *key, *path;
	unsigned missing = 0;
	void *tmp;
	json_t *v, *old;

	json_object_foreach_safe(s->in->watches, tmp, key, v) {
		old = json_object_get(s->ask->known, key);
		path = json_string_value(old);
		if (path && is_still(s, path, key))
			(void)json_object_set(s->in->watches, key, old);
		else
			missing++;
	}
	return missing;
}

/* Inodes that are looked for, as a set. */
static json_t *wanted(const struct survey *s)
{
	json_t *set = json_object(), *v;
	char ino[24];
	const char *key;

	json_object_foreach(s->in->watches, key, v) {
		if (!json_is_integer(v))
			continue;
		snprintf(ino, sizeof(ino), "%" JSON_INTEGER_FORMAT,
			 json_integer_value(v));
		(void)json_object_set_new(set, ino, json_true());
	}
	return set;
}

/* 1: it is one that was looked for. */
static int match(struct survey *s, const json_t *set,
		 const struct walk_item *it, struct err *e)
{
	char ino[24], key[2 * HANDLE_MAX + 16];
	const json_t *v;

	snprintf(ino, sizeof(ino), "%" JSON_INTEGER_FORMAT,
		 (json_int_t)it->st.st_ino);
	if (!json_object_get(set, ino))
		return 0;
	if (!key_of(it->dirfd, it->name, key, sizeof(key)))
		return 0;
	v = json_object_get(s->in->watches, key);
	if (!json_is_integer(v) || strchr(it->path, '\n'))
		return 0;
	return json_object_set_new(s->in->watches, key, json_string(it->path)) <
			       0
		       ? err_sys(e, ENOMEM, "survey")
		       : 1;
}

static int search(struct survey *s, int root, unsigned missing, struct err *e)
{
	auto_json json_t *set = wanted(s);
	auto_walk struct walk *w = NULL;
	struct walk_item it;
	int r;

	r = walk_open(root, ".", WALK_ONE_DEV, &w, e);
	while (r == 0 && missing > 0 && (r = walk_next(w, &it, e)) == 1) {
		r = it.errnum ? 0 : match(s, set, &it, e);
		if (r == 1)
			missing--;
		r = r < 0 ? r : 0;
	}
	if (r < 0)
		return r;
	return missing > 0 ? err_set(e, -EBUSY, "not_checkpointable",
				     "a file or directory that is watched by "
				     "inotify has no name any more")
			   : 0;
}

int inside_find_watches(struct survey *s, struct err *e)
{
	auto_close int root = -1;
	unsigned missing;

	if (json_object_size(s->in->watches) == 0)
		return 0;
	root = inside_open(s, "/", O_PATH | O_DIRECTORY);
	if (root < 0)
		return err_sys(e, -root, "open the sandbox's root");
	missing = recall(s);
	return missing > 0 ? search(s, root, missing, e) : 0;
}

int inside_watches(const struct inside *in, int dirfd, const char *name,
		   struct err *e)
{
	struct buf b = {0};
	const char *key, *path;
	json_t *v;
	int r = 0;

	json_object_foreach(in->watches, key, v) {
		path = json_string_value(v);
		if (path &&
		    buf_addf(&b, "%s %s\n", key, *path ? path : ".") < 0)
			r = err_sys(e, ENOMEM, "survey");
	}
	if (r == 0)
		r = fd_replace(dirfd, name, b.data, b.len, 0, e);
	buf_done(&b);
	return r;
}
