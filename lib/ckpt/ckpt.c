/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/ckpt_priv.h"
#include "box/profile_file.h"
#include "sys/userns.h"

#define FILES_MAX (64 << 20)

int ckpt_damaged(struct err *e, const char *fmt, ...)
{
	char msg[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	return err_set(e, -EBADMSG, "checkpoint_damaged", "%s", msg);
}

int ckpt_dir(const struct tree *t, const char *id, char *path, struct err *e)
{
	return tree_path(path, e, "%s/sb/%s/ckpt", t->lib, id);
}

int ckpt_snap_dir(const struct tree *t, const char *id, char *path,
		  struct err *e)
{
	return tree_path(path, e, "%s/snap/%s/ckpt", t->lib, id);
}

int ckpt_seal(const json_t *obj, char *sum, size_t size)
{
	auto_json json_t *copy = json_copy((json_t *)(uintptr_t)obj);
	auto_free char *text = NULL;

	if (!copy)
		return -ENOMEM;
	json_object_del(copy, "sum");
	text = json_dumps(copy, JSON_COMPACT | JSON_SORT_KEYS);
	if (!text)
		return -ENOMEM;
	snprintf(sum, size, "%016" PRIx64, profile_digest(text, strlen(text)));
	return 0;
}

static bool is_pages(const char *path)
{
	return strstr(path, "/pages-") != NULL;
}

int ckpt_sum(int dirfd, const char *path, struct ckpt_sum *ret, struct err *e)
{
	uint64_t h = 0xcbf29ce484222325u;
	auto_close int fd = -1;
	unsigned char buf[16384];
	struct stat st;
	ssize_t n;

	fd = openat(dirfd, path,
		    O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_sys(e, errno, "open '%s' of the checkpoint", path);
	if (!S_ISREG(st.st_mode))
		return ckpt_damaged(e, "'%s' is no file", path);
	ret->size = (uint64_t)st.st_size;
	ret->sum[0] = '\0';
	if (is_pages(path))
		return 0;
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		for (ssize_t i = 0; i < n; i++)
			h = (h ^ buf[i]) * 0x100000001b3u;
	if (n < 0)
		return err_sys(e, errno, "read '%s' of the checkpoint", path);
	snprintf(ret->sum, sizeof(ret->sum), "%016" PRIx64, h);
	return 0;
}

/* A name below the checkpoint: one or two plain words. */
static bool plain_name(const char *s)
{
	const char *slash = strchr(s, '/');

	return *s && *s != '/' && !strstr(s, "..") &&
	       (!slash || (slash[1] && !strchr(slash + 1, '/')));
}

/* "123 0011223344556677 img/core-1.img" */
static int verify_line(int dirfd, char *line, struct err *e)
{
	char *path = strrchr(line, ' '), *sum = strchr(line, ' '), *end;
	unsigned long long size = strtoull(line, &end, 10);
	struct ckpt_sum s;
	int r;

	if (!path || path == sum || end != sum || !plain_name(path + 1))
		return ckpt_damaged(e, "its list of files is torn");
	*path++ = '\0';
	sum++;
	r = ckpt_sum(dirfd, path, &s, e);
	if (r == -ENOENT)
		return ckpt_damaged(e, "'%s' is missing", path);
	if (r < 0)
		return r;
	if (s.size != size)
		return ckpt_damaged(e,
				    "'%s' has %" PRIu64 " bytes, not the %llu "
				    "it was made with",
				    path, s.size, size);
	if (strcmp(s.sum[0] ? s.sum : "-", sum) != 0)
		return ckpt_damaged(e, "'%s' was changed", path);
	return 0;
}

int ckpt_verify(int dirfd, const struct ckpt *c, struct err *e)
{
	const json_t *files = json_object_get(c->json, "files");
	auto_free char *text = NULL;
	char *save = NULL, *line;
	struct ckpt_sum s;
	int r;

	r = ckpt_sum(dirfd, CKPT_FILES, &s, e);
	if (r == -ENOENT || (r == 0 && strcmp(s.sum, json_str(files, "sum"))))
		return ckpt_damaged(e, "its list of files was changed");
	if (r == 0)
		r = fd_read_file(dirfd, CKPT_FILES, FILES_MAX, &text, NULL, e);
	for (line = r < 0 ? NULL : strtok_r(text, "\n", &save); r == 0 && line;
	     line = strtok_r(NULL, "\n", &save))
		r = verify_line(dirfd, line, e);
	return r;
}

static const char *word(const json_t *obj, const char *key)
{
	return json_string_value(json_object_get(obj, key));
}

static bool inner_path(const char *s)
{
	return s && s[0] == '/' && !strstr(s, "/../");
}

static int take_mounts(struct ckpt *c, const json_t *list, struct err *e)
{
	const char *source;
	struct ckpt_mount *m;
	size_t i;
	json_t *v;

	c->mounts = calloc(json_array_size(list) + 1, sizeof(*c->mounts));
	if (!c->mounts)
		return err_sys(e, ENOMEM, "manifest");
	json_array_foreach(list, i, v) {
		m = &c->mounts[c->nmounts++];
		m->key = word(v, "key");
		m->inside = word(v, "inside");
		m->source = source = word(v, "source");
		m->file = json_flag(v, "file");
		if (!m->key || !*m->key || strpbrk(m->key, ":]/") ||
		    !inner_path(m->inside) || (source && !inner_path(source)) ||
		    (!source && strcmp(m->key, CKPT_KEY_DEV) != 0 &&
		     strcmp(m->key, CKPT_KEY_PTS) != 0))
			return ckpt_damaged(e, "a mount of its manifest cannot "
					       "be");
	}
	return 0;
}

/* An id inside; root's where none is named. */
static bool take_id(const json_t *v, const char *key, unsigned *ret)
{
	const json_t *id = json_object_get(v, key);
	json_int_t n = json_integer_value(id);

	*ret = (unsigned)n;
	return !id || (json_is_integer(id) && n >= 0 && n < USERNS_IDS);
}

static int take_pipes(struct ckpt *c, const json_t *list, struct err *e)
{
	struct ckpt_pipe *p;
	size_t i;
	json_t *v;

	c->pipes = calloc(json_array_size(list) + 1, sizeof(*c->pipes));
	if (!c->pipes)
		return err_sys(e, ENOMEM, "manifest");
	json_array_foreach(list, i, v) {
		p = &c->pipes[c->npipes++];
		p->of = word(v, "of");
		p->pending = word(v, "pending");
		p->size = (unsigned)json_int(v, "size", 0);
		p->report = json_flag(v, "report");
		if (!p->of || strncmp(p->of, "pipe:[", 6) != 0 ||
		    !take_id(v, "uid", &p->uid) ||
		    !take_id(v, "gid", &p->gid) ||
		    (p->pending && (!plain_name(p->pending) ||
				    strncmp(p->pending, "pipe-", 5) != 0)))
			return ckpt_damaged(e, "a pipe of its manifest cannot "
					       "be");
	}
	return 0;
}

static int take_ttys(struct ckpt *c, const json_t *list, struct err *e)
{
	struct ckpt_tty *t;
	size_t i;
	json_t *v;

	c->ttys = calloc(json_array_size(list) + 1, sizeof(*c->ttys));
	if (!c->ttys)
		return err_sys(e, ENOMEM, "manifest");
	json_array_foreach(list, i, v) {
		t = &c->ttys[c->nttys++];
		t->of = word(v, "of");
		t->index = (unsigned)json_int(v, "index", 0);
		if (!t->of || strncmp(t->of, "tty[", 4) != 0 || t->index > 4096)
			return ckpt_damaged(e, "a terminal of its manifest "
					       "cannot be");
	}
	return 0;
}

static bool leaves_ok(const json_t *leaves)
{
	const char *pid, *leaf;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)leaves, pid, v) {
		leaf = json_string_value(v);
		if (!leaf || !*leaf || strlen(leaf) > 23 ||
		    strpbrk(leaf, "/.") || strtol(pid, NULL, 10) <= 0)
			return false;
	}
	return true;
}

static int take_process_facts(struct ckpt *c, struct err *e)
{
	const json_t *ext = json_object_get(c->json, "externals");
	int r;

	c->leaves = json_object_get(c->json, "leaves");
	c->stopped = json_object_get(c->json, "stopped");
	if (!json_is_object(c->leaves) || !json_is_array(c->stopped) ||
	    !json_is_object(ext) || !leaves_ok(c->leaves))
		return ckpt_damaged(e, "its manifest says nothing usable of "
				       "the processes");
	r = take_mounts(c, json_object_get(ext, "mounts"), e);
	if (r == 0)
		r = take_pipes(c, json_object_get(ext, "pipes"), e);
	if (r == 0)
		r = take_ttys(c, json_object_get(ext, "ttys"), e);
	return r;
}

static int take(struct ckpt *c, struct err *e)
{
	const char *engine = word(c->json, "engine");
	char sum[17];

	if (json_int(c->json, "v", 0) != CKPT_VERSION)
		return ckpt_damaged(e,
				    "its manifest is of version "
				    "%" JSON_INTEGER_FORMAT ", not %d",
				    (json_int_t)json_int(c->json, "v", 0),
				    CKPT_VERSION);
	if (ckpt_seal(c->json, sum, sizeof(sum)) < 0)
		return err_sys(e, ENOMEM, "manifest");
	if (strcmp(sum, json_str(c->json, "sum")) != 0)
		return ckpt_damaged(e, "its manifest was changed");
	c->sandbox = json_str(c->json, "sandbox");
	c->spec = json_object_get(c->json, "spec");
	c->layer = json_str(c->json, "layer");
	c->made_ms = json_int(c->json, "made_ms", 0);
	c->bytes = json_int(c->json, "bytes", 0);
	c->state_v = json_int(c->json, "state_v", 0);
	c->nprocesses = (unsigned)json_int(c->json, "processes", 0);
	if (!tree_is_id(c->sandbox) || !json_is_object(c->spec) || !engine ||
	    !json_is_object(json_object_get(c->json, "files")))
		return ckpt_damaged(e, "its manifest lacks what it must have");
	c->processes = strcmp(engine, "none") != 0;
	return c->processes ? take_process_facts(c, e) : 0;
}

int ckpt_read(int dirfd, struct ckpt *ret, struct err *e)
{
	struct ckpt c = {0};
	int r;

	r = json_read_file(dirfd, CKPT_MANIFEST, &c.json, e);
	if (r == -ENOENT)
		return ckpt_damaged(e, "it has no manifest");
	if (r == -EBADMSG || r == -EMSGSIZE || r == -EFBIG)
		return ckpt_damaged(e, "its manifest is torn");
	if (r < 0)
		return r;
	r = take(&c, e);
	if (r < 0) {
		ckpt_done(&c);
		return r;
	}
	*ret = c;
	return 0;
}

void ckpt_done(struct ckpt *c)
{
	json_decref(c->json);
	free(c->mounts);
	free(c->pipes);
	free(c->ttys);
	memset(c, 0, sizeof(*c));
}
