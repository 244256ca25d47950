/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "img/residue_scan.h"

struct scan {
	struct blob_reader *reader;
	scan_fn *fn;
	scan_step_fn *step;
	void *arg;
	residue_set rules;
	struct buf below; /* residue that was told: what is below is not */
	char *data;	  /* SCAN_TEXT_MAX bytes */
};

/* --- content ------------------------------------------------------------- */

enum alphabet { UPPER_DIGIT, ALNUM, ALNUM_DASH };

/* clang-format off */
static const struct token {
	const char *what, *prefix;
	enum alphabet of;
	unsigned least; /* such characters after the prefix */
} tokens[] = {
	{"AWS access key", "AKIA", UPPER_DIGIT, 16},
	{"AWS access key", "ASIA", UPPER_DIGIT, 16},
	{"GitHub token", "ghp_", ALNUM, 36},
	{"GitHub token", "gho_", ALNUM, 36},
	{"GitHub token", "ghu_", ALNUM, 36},
	{"GitHub token", "ghs_", ALNUM, 36},
	{"GitHub token", "ghr_", ALNUM, 36},
	{"GitHub token", "github_pat_", ALNUM_DASH, 22},
	{"GitLab token", "glpat-", ALNUM_DASH, 20},
	{"Slack token", "xoxb-", ALNUM_DASH, 20},
	{"Slack token", "xoxp-", ALNUM_DASH, 20},
	{"Google API key", "AIza", ALNUM_DASH, 35},
	{"npm token", "npm_", ALNUM, 36},
	{"PyPI token", "pypi-AgEIcHlwaS5vcmc", ALNUM_DASH, 20},
	{"Hugging Face token", "hf_", ALNUM, 34},
	{"API key", "sk-ant-", ALNUM_DASH, 20},
	{"API key", "sk-proj-", ALNUM_DASH, 20},
};
/* clang-format on */

static bool of(enum alphabet a, unsigned char c)
{
	if (c >= 'A' && c <= 'Z')
		return true;
	if (c >= '0' && c <= '9')
		return true;
	if (a == UPPER_DIGIT)
		return false;
	return (c >= 'a' && c <= 'z') ||
	       (a == ALNUM_DASH && (c == '-' || c == '_'));
}

static bool has_token(const char *data, size_t len, const struct token *t)
{
	size_t plen = strlen(t->prefix);
	const char *end = data + len;

	for (const char *p = data;
	     (p = memmem(p, (size_t)(end - p), t->prefix, plen)); p++) {
		const char *q = p + plen;
		unsigned n = 0;

		if (p > data && of(ALNUM, (unsigned char)p[-1]))
			continue;
		while (n < t->least && q < end && of(t->of, (unsigned char)*q))
			n++, q++;
		if (n == t->least)
			return true;
	}
	return false;
}

const char *scan_secret(const char *data, size_t len)
{
	if (residue_is_key(data, len))
		return "private key";
	for (size_t i = 0; i < array_len(tokens); i++)
		if (has_token(data, len, &tokens[i]))
			return tokens[i].what;
	return NULL;
}

/* The file's first bytes, ${cap} at most; fewer is no failure. */
static ssize_t head(struct scan *s, const char *path, const struct fsnode *n,
		    size_t cap, struct err *e)
{
	size_t len = n->size < cap ? (size_t)n->size : cap;
	ssize_t got = blob_reader_read(s->reader, n, 0, s->data, len, e);

	return got < 0 ? err_wrap(e, (int)got, "'%.200s'", path) : got;
}

static int secrets(struct scan *s, const char *path, const struct fsnode *n,
		   struct err *e)
{
	const char *what;
	ssize_t len;

	if (!S_ISREG(n->mode) || n->size == 0 || n->size > SCAN_TEXT_MAX)
		return 0;
	len = head(s, path, n, SCAN_TEXT_MAX, e);
	if (len < 0)
		return (int)len;
	if (memchr(s->data, '\0', len < 8192 ? (size_t)len : 8192))
		return 0;
	what = scan_secret(s->data, (size_t)len);
	return what ? s->fn(s->arg, "secret", path, what, e) : 0;
}

/* --- names and modes ----------------------------------------------------- */

static bool in_system(const char *path)
{
	static const char *const dirs[] = {"usr/", "etc/", "var/", "lib/"};

	for (size_t i = 0; i < array_len(dirs); i++)
		if (!strncmp(path, dirs[i], strlen(dirs[i])))
			return true;
	return false;
}

static int answers(struct scan *s, const char *path, const struct fsnode *n,
		   struct err *e)
{
	static const char *const patterns[] = {
		"solution*", "*_solution*",	"*.orig", "*.rej",
		"answer*",   "expected_patch*", "gold_*", "golden_patch*",
	};
	const char *slash = strrchr(path, '/');
	const char *base = slash ? slash + 1 : path;

	if (in_system(path) || S_ISCHR(n->mode))
		return 0;
	for (size_t i = 0; i < array_len(patterns); i++)
		if (fnmatch(patterns[i], base, FNM_CASEFOLD) == 0)
			return s->fn(s->arg, "answer", path, patterns[i], e);
	return 0;
}

static int tell_mode(struct scan *s, const char *rule, const char *path,
		     const struct fsnode *n, struct err *e)
{
	char text[32];

	snprintf(text, sizeof(text), "%04o %u:%u", n->mode & 07777, n->uid,
		 n->gid);
	return s->fn(s->arg, rule, path, text, e);
}

static int rights(struct scan *s, const char *path, const struct fsnode *n,
		  struct err *e)
{
	bool file = S_ISREG(n->mode), exec = n->mode & 0111;
	char text[32];
	int r = 0;

	if (file && (n->mode & S_ISUID))
		r = tell_mode(s, "setuid", path, n, e);
	if (r == 0 && file && exec && (n->mode & S_ISGID))
		r = tell_mode(s, "setgid", path, n, e);
	if (r == 0 && S_ISDIR(n->mode) && (n->mode & 01002) == 0002)
		r = tell_mode(s, "world-writable", path, n, e);
	if (r == 0 && fsnode_xattr(n, "security.capability"))
		r = s->fn(s->arg, "capability", path, "", e);
	if (r == 0 && (S_ISBLK(n->mode) ||
		       (S_ISCHR(n->mode) && !fsnode_is_whiteout(n)))) {
		snprintf(text, sizeof(text), "%s %u:%u",
			 S_ISCHR(n->mode) ? "char" : "block", major(n->rdev),
			 minor(n->rdev));
		r = s->fn(s->arg, "device", path, text, e);
	}
	return r;
}

/* --- residue ------------------------------------------------------------- */

static bool is_below(const struct scan *s, const char *path)
{
	return s->below.len > 0 &&
	       !strncmp(path, s->below.data, s->below.len) &&
	       path[s->below.len] == '/';
}

static int residue(struct scan *s, const char *path, struct fsnode *n,
		   struct err *e)
{
	struct residue_hit hit;
	char text[64] = "";
	ssize_t len;

	if (is_below(s, path))
		return 0;
	switch (residue_match(s->rules, path, n->mode, &hit)) {
	case RESIDUE_NONE:
		return 0;
	case RESIDUE_LOOK:
		len = head(s, path, n, RESIDUE_HEAD, e);
		if (len < 0)
			return (int)len;
		if (!residue_look(&hit, s->data, (size_t)len))
			return 0;
		break;
	default:
		break;
	}
	if (S_ISDIR(n->mode)) {
		size_t count = fsdir_count(n);

		if (hit.part == RESIDUE_BELOW && count == 0)
			return 0;
		snprintf(text, sizeof(text), "%zu entries", count);
		s->below.len = 0;
		if (buf_add(&s->below, path, strlen(path)) < 0)
			return err_sys(e, ENOMEM, "lint");
	}
	return s->fn(s->arg, hit.rule, path, text, e);
}

/* --- repositories -------------------------------------------------------- */

static struct fsnode *child(struct fsnode *dir, const char *name)
{
	struct fsnode *n = fsdir_get(dir, name, strlen(name));

	return n && S_ISDIR(n->mode) ? n : NULL;
}

static size_t count_packs(struct fsnode *objects)
{
	struct fsnode *dir = child(objects, "pack");
	size_t n = dir ? fsdir_count(dir) : 0, packs = 0;

	for (size_t i = 0; i < n; i++) {
		const char *dot = strrchr(fsdir_at(dir, i)->name, '.');

		packs += dot && !strcmp(dot, ".pack");
	}
	return packs;
}

static size_t count_loose(struct fsnode *objects)
{
	size_t n = fsdir_count(objects), loose = 0;

	for (size_t i = 0; i < n; i++) {
		const struct fsdirent *de = fsdir_at(objects, i);

		if (strlen(de->name) == 2 && S_ISDIR(de->node->mode))
			loose += fsdir_count(de->node);
	}
	return loose;
}

static int repository(struct scan *s, const char *path, struct fsnode *n,
		      struct err *e)
{
	struct fsnode *objects = S_ISDIR(n->mode) ? child(n, "objects") : NULL;
	char text[96];
	size_t packs, loose;

	if (!objects || !fsdir_get(n, "HEAD", 4))
		return 0;
	packs = count_packs(objects);
	loose = count_loose(objects);
	if (packs + loose == 0)
		return 0;
	snprintf(text, sizeof(text), "%zu packs, %zu loose objects%s", packs,
		 loose, fsdir_get(n, "shallow", 7) ? ", shallow" : "");
	return s->fn(s->arg, "git-history", path, text, e);
}

/* ------------------------------------------------------------------------- */

static int one(void *arg, const char *path, struct fsnode *n, struct err *e)
{
	struct scan *s = arg;
	int r;

	r = s->step(s->arg, e);
	if (r == 0)
		r = residue(s, path, n, e);
	if (r == 0)
		r = rights(s, path, n, e);
	if (r == 0)
		r = answers(s, path, n, e);
	if (r == 0)
		r = repository(s, path, n, e);
	return r != 0 ? r : secrets(s, path, n, e);
}

int scan_tree(struct fstree *t, struct blob_reader *reader, scan_fn *fn,
	      scan_step_fn *step, void *arg, struct err *e)
{
	struct scan s = {.reader = reader,
			 .fn = fn,
			 .step = step,
			 .arg = arg,
			 .rules = residue_default()};
	int r;

	r = residue_switch(&s.rules, "git", true, e);
	s.data = malloc(SCAN_TEXT_MAX);
	if (!s.data)
		r = err_sys(e, ENOMEM, "lint");
	if (r == 0)
		r = fstree_walk(t, one, &s, e);
	free(s.data);
	buf_done(&s.below);
	return r;
}
