/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/tree.h"

#define NODE_LEN 4

static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz234567";

static int from_env(const char *var, const char *dflt, const char **ret,
		    struct err *e)
{
	const char *v = getenv(var);

	if (!v || !*v)
		v = dflt;
	if (v[0] != '/' || v[strlen(v) - 1] == '/' || strlen(v) > 1024)
		return err_set(e, -EINVAL, "configuration",
			       "%s='%s' is not an absolute path without a "
			       "slash at its end",
			       var, v);
	*ret = v;
	return 0;
}

int tree_init(struct tree *t, struct err *e)
{
	const char *cgroup = getenv("DSEC_CGROUP");
	int r;

	r = from_env("DSEC_RUN", "/run/dsec", &t->run, e);
	if (r == 0)
		r = from_env("DSEC_LIB", "/var/lib/dsec", &t->lib, e);
	if (r == 0)
		r = from_env("DSEC_CONFIG", "/etc/dsec", &t->config, e);
	if (r < 0)
		return r;
	t->cgroup = cgroup && *cgroup ? cgroup : "dsec";
	if (strchr(t->cgroup, '.') || t->cgroup[0] == '/' ||
	    strlen(t->cgroup) > 128)
		return err_set(
			e, -EINVAL, "configuration",
			"DSEC_CGROUP='%s' is not a relative path without "
			"dots",
			t->cgroup);
	return 0;
}

int tree_path(char *buf, struct err *e, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(buf, PATH_MAX, fmt, ap);
	va_end(ap);
	if (n < 0 || n >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "path");
	return 0;
}

int tree_not_root(struct err *e)
{
	return err_set(e, -EPERM, "not_root",
		       "the sandboxes of this node are root's: sudo does it, "
		       "or ask its daemon: dsec --server HOST:PORT");
}

int tree_allowed(const struct tree *t, struct err *e)
{
	return geteuid() != 0 &&
			       faccessat(AT_FDCWD, t->run, X_OK, AT_EACCESS) <
				       0 &&
			       errno == EACCES
		       ? tree_not_root(e)
		       : 0;
}

int tree_make(const struct tree *t, struct err *e)
{
	static const char *const run[] = {"",	   "/sb",  "/name",
					  "/task", "/uid", "/mnt"};
	static const char *const lib[] = {"", "/sb", "/dead"};
	char path[PATH_MAX];
	int r;

	/* The last one made is the sign that all are there. */
	r = tree_path(path, e, "%s/dead", t->lib);
	if (r < 0)
		return r;
	if (access(path, F_OK) == 0) {
		r = tree_path(path, e, "%s/mnt", t->run);
		if (r < 0 || access(path, F_OK) == 0)
			return r;
	}
	for (size_t i = 0; i < array_len(run); i++) {
		r = tree_path(path, e, "%s%s", t->run, run[i]);
		if (r == 0)
			r = fd_mkdir_p(path, 0700, e);
		if (r < 0)
			return r == -EACCES ? tree_not_root(e) : r;
	}
	for (size_t i = 0; i < array_len(lib); i++) {
		r = tree_path(path, e, "%s%s", t->lib, lib[i]);
		if (r == 0)
			r = fd_mkdir_p(path, 0700, e);
		if (r < 0)
			return r;
	}
	return 0;
}

int tree_is_id(const char *s)
{
	return strlen(s) == BOX_ID_LEN && s[strspn(s, alphabet)] == '\0';
}

static int random_letters(char *out, size_t n, struct err *e)
{
	unsigned char raw[BOX_ID_LEN];

	if (getrandom(raw, n, 0) != (ssize_t)n)
		return err_sys(e, EIO, "random bytes");
	for (size_t i = 0; i < n; i++)
		out[i] = alphabet[raw[i] & 31];
	return 0;
}

/* Whoever links the file first names the node. */
static int make_node_code(const struct tree *t, char *code, struct err *e)
{
	char path[PATH_MAX], tmp[PATH_MAX];
	auto_close int fd = -1;
	int r;

	r = random_letters(code, NODE_LEN, e);
	if (r == 0)
		r = tree_path(path, e, "%s/node", t->lib);
	if (r == 0)
		r = tree_path(tmp, e, "%s/.node.%d", t->lib, (int)getpid());
	if (r < 0)
		return r;
	fd = open(tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_sys(e, errno, "create '%s'", tmp);
	r = fd_write_all(fd, code, NODE_LEN, e);
	/* A crash must not leave the name without the code. */
	if (r == 0 && fsync(fd) < 0)
		r = err_sys(e, errno, "sync '%s'", tmp);
	if (r == 0 && link(tmp, path) < 0 && errno != EEXIST)
		r = err_sys(e, errno, "name the node in '%s'", path);
	unlink(tmp);
	return r;
}

static int node_code(const struct tree *t, char *code, struct err *e)
{
	auto_close int fd = -1;
	char path[PATH_MAX];
	ssize_t n;
	int r;

	r = tree_path(path, e, "%s/node", t->lib);
	if (r < 0)
		return r;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT) {
		r = make_node_code(t, code, e);
		if (r < 0)
			return r;
		fd = open(path, O_RDONLY | O_CLOEXEC);
	}
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	n = read(fd, code, NODE_LEN);
	if (n < 0)
		return err_sys(e, errno, "read '%s'", path);
	return n == NODE_LEN ? 0
			     : err_set(e, -EIO, "configuration",
				       "'%s' is torn: remove it", path);
}

int tree_new_id(const struct tree *t, char *id, struct err *e)
{
	int r;

	r = node_code(t, id, e);
	if (r == 0)
		r = random_letters(id + NODE_LEN, BOX_ID_LEN - NODE_LEN, e);
	if (r < 0)
		return r;
	id[BOX_ID_LEN] = '\0';
	return tree_is_id(id) ? 0
			      : err_set(e, -EIO, "configuration",
					"'%s/node' is torn: remove it", t->lib);
}

int tree_node(const struct tree *t, char *name, struct err *e)
{
	static const char chars[] = "abcdefghijklmnopqrstuvwxyz"
				    "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	char host[65] = "", code[NODE_LEN + 1] = "";
	int r;

	r = node_code(t, code, e);
	if (r < 0)
		return r;
	if (gethostname(host, sizeof(host) - 1) < 0)
		host[0] = '\0';
	host[strspn(host, chars)] = '\0';
	snprintf(name, TREE_NODE_LEN + 1, "%s-%s", code, host);
	return 0;
}

int tree_find(const struct tree *t, const char *word, char *id, struct err *e)
{
	char path[PATH_MAX];
	ssize_t n;
	int r;

	if (tree_is_id(word)) {
		memcpy(id, word, BOX_ID_LEN + 1);
		return 0;
	}
	if (!*word || strchr(word, '/') || word[0] == '.')
		return err_set(e, -ENOENT, "sandbox_unknown",
			       "'%s' is neither an id nor a name", word);
	r = tree_path(path, e, "%s/name/%s", t->run, word);
	if (r < 0)
		return r;
	n = readlink(path, id, BOX_ID_LEN + 1);
	if (n < 0 && (errno == EACCES || errno == EPERM))
		return err_sys(e, errno, "look up '%s'", path);
	if (n != BOX_ID_LEN)
		return err_set(e, -ENOENT, "sandbox_unknown",
			       "no sandbox has the name '%s'", word);
	id[BOX_ID_LEN] = '\0';
	return tree_is_id(id) ? 0
			      : err_set(e, -ENOENT, "sandbox_unknown",
					"no sandbox has the name '%s'", word);
}

int tree_each(const char *top, tree_fn *fn, void *arg, struct err *e)
{
	auto_dir DIR *d = NULL;
	const struct dirent *de;
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb", top);
	if (r < 0)
		return r;
	d = opendir(path);
	if (!d)
		return errno == ENOENT ? 0
				       : err_sys(e, errno, "open '%s'", path);
	while (r == 0 && (de = readdir(d)))
		if (tree_is_id(de->d_name))
			r = fn(arg, de->d_name, e);
	return r;
}
