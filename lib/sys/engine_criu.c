/* SPDX-License-Identifier: Apache-2.0 */
/* What CRIU is asked, and in which words. */
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "sys/engine.h"

#define VERSION_LEAST 402 /* 4.2 */
/* The options that are always there, with room. */
#define WORDS_MAX 48

/* "Version: 4.2.1\nGitID: ...": digits and dots only are taken. */
static int parse_version(const char *text, char *version, size_t size)
{
	static const char word[] = "Version: ";
	const char *at = strstr(text, word);
	unsigned major, minor;
	size_t n;

	if (!at || (at != text && at[-1] != '\n'))
		return -EBADMSG;
	at += sizeof(word) - 1;
	n = strspn(at, "0123456789.");
	if (n == 0 || n >= size || sscanf(at, "%4u.%4u", &major, &minor) < 1)
		return -EBADMSG;
	if (!memchr(at, '.', n))
		minor = 0;
	memcpy(version, at, n);
	version[n] = '\0';
	return major * 100 + minor >= VERSION_LEAST ? 0 : -ENOTSUP;
}

/* A list that is being made; the first failure is kept. */
struct words {
	struct engine_args a;
	size_t max;
	bool failed;
};

__attribute__((format(printf, 2, 3))) static void add(struct words *w,
						      const char *fmt, ...)
{
	char *s = NULL;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&s, fmt, ap) < 0)
		s = NULL;
	va_end(ap);
	if (!s || w->a.n + 1 >= w->max) {
		free(s);
		w->failed = true;
		return;
	}
	w->a.v[w->a.n++] = s;
}

static void add_option(struct words *w, const char *option, const char *value)
{
	add(w, "%s", option);
	add(w, "%s", value);
}

static int begin(struct words *w, const char *verb, size_t ngiven)
{
	memset(w, 0, sizeof(*w));
	w->max = WORDS_MAX + 2 * ngiven;
	w->a.v = calloc(w->max, sizeof(*w->a.v));
	w->a.keep = calloc(ngiven + 1, sizeof(*w->a.keep));
	w->failed = !w->a.v || !w->a.keep;
	if (!w->failed)
		add(w, "%s", verb);
	return w->failed ? -ENOMEM : 0;
}

static int end(struct words *w, struct engine_args *ret)
{
	if (w->failed) {
		engine_args_done(&w->a);
		return -ENOMEM;
	}
	*ret = w->a;
	return 0;
}

void engine_args_done(struct engine_args *a)
{
	for (size_t i = 0; i < a->n; i++)
		free((void *)(uintptr_t)a->v[i]);
	free(a->v);
	free(a->keep);
	memset(a, 0, sizeof(*a));
}

/* Both ways: the network is made empty and set up by the hook, cgroups are
 * those it is started in, connections and locks are kept. */
static void add_common(struct words *w)
{
	static const char *const words[] = {
		"--empty-ns",
		"net",
		"--network-lock",
		"skip",
		"--tcp-established",
		"--file-locks",
		"--manage-cgroups=ignore",
	};

	for (size_t i = 0; i < array_len(words); i++)
		add(w, "%s", words[i]);
}

static int dump(const struct engine_dump *d, struct engine_args *ret)
{
	struct words w;

	if (begin(&w, "dump", d->ngiven) < 0)
		return end(&w, ret);
	add(&w, "-t");
	add(&w, "%d", (int)d->init);
	add_option(&w, "-D", d->images);
	add_option(&w, "-W", d->work);
	add_option(&w, "-o", d->log);
	add(&w, "-v2");
	add(&w, "--leave-running");
	add_common(&w);
	/* A connection that nobody has accepted yet; deleted files. */
	add(&w, "--skip-in-flight");
	add_option(&w, "--ghost-limit", "1G");
	if (d->freezer)
		add_option(&w, "--freeze-cgroup", d->freezer);
	if (d->hook)
		add_option(&w, "--action-script", d->hook);
	for (size_t i = 0; i < d->ngiven; i++) {
		const struct engine_given *g = &d->given[i];

		if (g->kind == ENGINE_PIPE)
			continue; /* an end of it outside is no matter here */
		add(&w, "--external");
		if (g->kind == ENGINE_MOUNT)
			add(&w, "mnt[%s]:%s", g->at, g->of);
		else
			add(&w, "%s", g->of);
	}
	return end(&w, ret);
}

static int restore(const struct engine_restore *r, struct engine_args *ret)
{
	struct words w;

	if (begin(&w, "restore", r->ngiven) < 0)
		return end(&w, ret);
	add_option(&w, "-D", r->images);
	add_option(&w, "-W", r->work);
	add_option(&w, "-o", r->log);
	add(&w, r->verbose ? "-v4" : "-v2");
	add_option(&w, "--root", r->root);
	add_option(&w, "--pidfile", r->pid_file);
	add(&w, "--restore-detached");
	add(&w, "--restore-sibling");
	add_common(&w);
	if (r->hook)
		add_option(&w, "--action-script", r->hook);
	for (size_t i = 0; i < r->ngiven; i++) {
		const struct engine_given *g = &r->given[i];

		if (g->kind == ENGINE_MOUNT) {
			add(&w, "--external");
			add(&w, "mnt[%s]:%s", g->of, g->at);
			continue;
		}
		add(&w, "--inherit-fd");
		add(&w, "fd[%d]:%s", g->fd, g->of);
		w.a.keep[w.a.nkeep++] = g->fd;
	}
	return end(&w, ret);
}

const struct engine_ops engine_criu = {
	.name = "criu",
	.parse_version = parse_version,
	.dump = dump,
	.restore = restore,
};
