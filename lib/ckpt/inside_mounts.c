/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/ckpt.h"
#include "ckpt/inside_priv.h"

/*
 * Which mounts a sandbox has is ours to know: nobody inside may make one.  So
 * what is none of these is refused.
 */
struct mount_line {
	uint64_t id;
	char dev[32], point[PATH_MAX], type[32];
};

/* "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw" */
static bool parse(const char *line, struct mount_line *m)
{
	const char *dash = strstr(line, " - ");

	return dash &&
	       sscanf(line, "%" SCNu64 " %*u %31s %*s %4095s", &m->id, m->dev,
		      m->point) == 3 &&
	       sscanf(dash, " - %31s", m->type) == 1;
}

/* mountinfo writes blanks and such as \ooo. */
static void unescape(char *s)
{
	char *out = s;

	for (; *s; s++)
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' &&
		    s[2] <= '7' && s[3] >= '0' && s[3] <= '7') {
			*out++ = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 +
					(s[3] - '0'));
			s += 3;
		} else {
			*out++ = *s;
		}
	*out = '\0';
}

static int add_id(struct survey *s, uint64_t id, struct err *e)
{
	uint64_t *more;

	if (s->nmounts % 64 == 0) {
		more = realloc(s->mounts, (s->nmounts + 64) * sizeof(*more));
		if (!more)
			return err_sys(e, ENOMEM, "survey");
		s->mounts = more;
	}
	s->mounts[s->nmounts++] = id;
	return 0;
}

/* The rest of ${path} below ${dir}: "" for itself; NULL: it is not. */
static const char *below(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	if (strncmp(path, dir, n) != 0 || (path[n] && path[n] != '/'))
		return NULL;
	return path + n;
}

static int external(struct survey *s, const char *key, const char *inside,
		    const char *source, struct err *e)
{
	json_t *list = json_object_get(s->in->externals, "mounts");
	json_t *m = json_pack("{s:s, s:s, s:s*}", "key", key, "inside", inside,
			      "source", source);
	struct stat st;

	if (m && source && stat(source, &st) == 0 && !S_ISDIR(st.st_mode))
		json_object_set_new(m, "file", json_true());
	return !m || json_array_append_new(list, m) < 0
		       ? err_sys(e, ENOMEM, "survey")
		       : 0;
}

/* A directory that the request asked for, or one mounted below it. */
static int asked_for(struct survey *s, const char *point, struct err *e)
{
	json_t *list = json_object_get(s->ask->spec, "mounts"), *m;
	const char *rest, *best_rest = NULL;
	char source[PATH_MAX], key[16];
	json_t *best = NULL;
	size_t i;
	int n;

	json_array_foreach(list, i, m) {
		rest = below(point, json_str(m, "target"));
		if (rest && (!best_rest || strlen(rest) < strlen(best_rest))) {
			best = m;
			best_rest = rest;
		}
	}
	if (!best)
		return 0;
	n = snprintf(source, sizeof(source), "%s%s", json_str(best, "source"),
		     best_rest);
	if (n < 0 || n >= (int)sizeof(source))
		return err_sys(e, ENAMETOOLONG, "mounts");
	snprintf(key, sizeof(key), "m%zu",
		 json_array_size(json_object_get(s->in->externals, "mounts")));
	n = external(s, key, point, source, e);
	return n < 0 ? n : 1;
}

static bool our_own(const struct mount_line *m, const char *dev)
{
	if (!strcmp(m->point, "/"))
		return true;
	if (!strcmp(m->type, "proc"))
		return below(m->point, "/proc") != NULL;
	if (!strcmp(m->type, "tmpfs") && !strcmp(m->point, "/dev/shm"))
		return true;
	if (!strcmp(m->type, "devpts") && !strcmp(m->point, "/dev/pts"))
		return true;
	/* What hides files of /proc is bound from the template of /dev. */
	return *dev && !strcmp(m->dev, dev) && below(m->point, "/proc");
}

static int take(struct survey *s, const struct mount_line *m, const char *dev,
		struct err *e)
{
	char plain[128];
	int r;

	r = add_id(s, m->id, e);
	if (r < 0)
		return r;
	if (!strcmp(m->point, "/"))
		sscanf(m->dev, "%u:%u", &s->root_major, &s->root_minor);
	if (!strcmp(m->point, "/dev") && !strcmp(m->dev, dev))
		return external(s, CKPT_KEY_DEV, "/dev", NULL, e);
	if (our_own(m, dev))
		return 0;
	r = asked_for(s, m->point, e);
	if (r != 0)
		return r < 0 ? r : 0;
	inside_plain(plain, sizeof(plain), m->point, strlen(m->point));
	return inside_refuse(s, e, "there is a mount on '%s' that is not ours",
			     plain);
}

static int by_id(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* What /proc is masked with comes before /dev in the list. */
static void find_dev(const char *text, char *dev, size_t size)
{
	struct mount_line m;

	dev[0] = '\0';
	for (; text; text = strchr(text, '\n')) {
		text += *text == '\n';
		if (parse(text, &m) && !strcmp(m.point, "/dev")) {
			snprintf(dev, size, "%s", m.dev);
			return;
		}
	}
}

int inside_mounts(struct survey *s, struct err *e)
{
	auto_free char *text = NULL;
	char dev[32], *save = NULL;
	struct mount_line m;
	int r;

	if (json_object_set_new(s->in->externals, "mounts", json_array()) < 0)
		return err_sys(e, ENOMEM, "survey");
	r = fd_read_file(s->at_dir, "mountinfo", 4 << 20, &text, NULL, e);
	if (r < 0)
		return r;
	find_dev(text, dev, sizeof(dev));
	for (char *line = strtok_r(text, "\n", &save); r == 0 && line;
	     line = strtok_r(NULL, "\n", &save)) {
		if (!parse(line, &m))
			return err_set(e, -EBADMSG, "internal",
				       "a line of mountinfo");
		unescape(m.point);
		r = take(s, &m, dev, e);
	}
	if (r == 0)
		qsort(s->mounts, s->nmounts, sizeof(*s->mounts), by_id);
	return r;
}

bool inside_has_mount(const struct survey *s, uint64_t id)
{
	return bsearch(&id, s->mounts, s->nmounts, sizeof(id), by_id) != NULL;
}
