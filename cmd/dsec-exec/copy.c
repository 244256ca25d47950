/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "transfer.h"
#include "wire/exit.h"

/*
 * The names of dsec-exec --cp follow those of docker cp: a copy into a
 * directory keeps its name, "DIR/." means what is in it, and a copy to a name
 * that does not exist gets that name.
 */

struct place {
	char *sandbox;	  /* NULL: of the host */
	const char *path; /* borrowed */
};

/* "x:/p" is in a sandbox; "./x:y", "/x:y" and "-" are of the host. */
static int parse(const char *word, struct place *ret, struct err *e)
{
	const char *colon = strchr(word, ':'), *slash = strchr(word, '/');

	ret->path = word;
	ret->sandbox = NULL;
	if (!colon || colon == word || (slash && slash < colon))
		return 0;
	ret->path = colon + 1;
	if (!*ret->path)
		return err_set(e, -EINVAL, "usage", "'%s': no path", word);
	ret->sandbox = strndup(word, (size_t)(colon - word));
	return ret->sandbox ? 0 : err_sys(e, ENOMEM, "copy");
}

/* "a/b/" has the name "b"; "a/.", "." and "/" have none: their content is. */
static char *name_of(const char *path)
{
	size_t len = strlen(path), at;
	const char *p = path;

	while (len > 0 && path[len - 1] == '/')
		len--;
	for (at = len; at > 0 && path[at - 1] != '/'; at--)
		;
	p += at;
	len -= at;
	if (len == 0 || !strncmp(p, ".", len) || !strncmp(p, "..", len))
		len = 0;
	return strndup(p, len);
}

static bool ends_in_slash(const char *path)
{
	size_t n = strlen(path);

	return n > 0 && path[n - 1] == '/';
}

/*
 * What the copy of ${from} will be called: ${to}, or ${to}/NAME if ${to} is a
 * directory, or is meant to be one.
 */
static int final_name(const char *from, bool from_dir, const char *to,
		      const char *to_type, char **ret, struct err *e)
{
	bool into = to_type && !strcmp(to_type, "directory");
	auto_free char *name = name_of(from);
	char *text;

	if (!name)
		return err_sys(e, ENOMEM, "copy");
	if (to_type && !into && (from_dir || ends_in_slash(to)))
		return err_set(e, -ENOTDIR, "not_directory",
			       "'%s' is there and is no directory", to);
	if (!to_type && ends_in_slash(to) && !from_dir)
		into = true;
	if (!into || !*name)
		text = strdup(to);
	else if (asprintf(&text, "%s/%s", to, name) < 0)
		text = NULL;
	if (!text)
		return err_sys(e, ENOMEM, "copy");
	*ret = text;
	return 0;
}

static int host_type(const char *path, bool follow, const char **ret,
		     struct err *e)
{
	struct stat st;

	*ret = NULL;
	if ((follow ? stat(path, &st) : lstat(path, &st)) < 0)
		return errno == ENOENT ? 0 : err_sys(e, errno, "'%s'", path);
	*ret = S_ISDIR(st.st_mode) ? "directory" : "file";
	return 0;
}

static int inside_type(struct transfer *t, const char *path, const char **ret,
		       struct err *e)
{
	int r = transfer_stat(t, path, true, ret, e);

	if (r < 0 && e->code && !strcmp(e->code, "not_found")) {
		*ret = NULL;
		return 0;
	}
	return r;
}

static int copy_in(struct transfer *t, const char *from, const char *to,
		   struct err *e)
{
	const char *from_type, *to_type;
	auto_free char *name = NULL;
	int r;

	if (!strcmp(from, "-"))
		return transfer_tar_in(t, STDIN_FILENO, to, e);
	r = host_type(from, ends_in_slash(from), &from_type, e);
	if (r == 0 && !from_type)
		r = err_sys(e, ENOENT, "'%s'", from);
	if (r == 0)
		r = inside_type(t, to, &to_type, e);
	if (r == 0)
		r = final_name(from, !strcmp(from_type, "directory"), to,
			       to_type, &name, e);
	return r < 0 ? r : transfer_in(t, from, name, e);
}

static int copy_out(struct transfer *t, const char *from, const char *to,
		    struct err *e)
{
	const char *from_type, *to_type;
	auto_free char *name = NULL;
	int r;

	if (!strcmp(to, "-")) {
		name = name_of(from);
		if (!name)
			return err_sys(e, ENOMEM, "copy");
		return transfer_tar_out(t, from, *name ? name : ".",
					STDOUT_FILENO, e);
	}
	r = transfer_stat(t, from, ends_in_slash(from), &from_type, e);
	if (r == 0)
		r = host_type(to, true, &to_type, e);
	if (r == 0)
		r = final_name(from, !strcmp(from_type, "directory"), to,
			       to_type, &name, e);
	return r < 0 ? r : transfer_out(t, from, name, e);
}

static void tell_refused(const struct transfer *t)
{
	const json_t *item;
	size_t i;

	json_array_foreach(t->refused, i, item) {
		const char *path = json_str(item, "path");

		log_error("refused: %s%s: %s",
			  *path ? path : json_str(item, "path_b64"),
			  *path ? "" : " (base64)", json_str(item, "message"));
	}
}

static int copy(const struct tree *tree, const struct place *from,
		const struct place *to, struct err *e)
{
	const char *sandbox = from->sandbox ? from->sandbox : to->sandbox;
	struct file_call c = {.tree = tree, .events = -1};
	auto_json json_t *req = json_object();
	struct transfer t = {.c = &c, .tidy = true};
	int r;

	if (!req)
		return err_sys(e, ENOMEM, "copy");
	c.req = req;
	r = ctl_open(tree, sandbox, 0, &c.ctl, e);
	if (r < 0)
		return r;
	r = from->sandbox ? copy_out(&t, from->path, to->path, e)
			  : copy_in(&t, from->path, to->path, e);
	tell_refused(&t);
	transfer_done(&t);
	ctl_free(c.ctl);
	return r;
}

int copy_main(const struct tree *tree, const char *from, const char *to,
	      struct err *e)
{
	struct place a = {0}, b = {0};
	int r;

	r = parse(from, &a, e);
	if (r == 0)
		r = parse(to, &b, e);
	if (r == 0 && !a.sandbox == !b.sandbox)
		r = err_set(e, -EINVAL, "usage",
			    "--cp FROM TO: one of them must be SANDBOX:/PATH");
	if (r == 0)
		r = copy(tree, &a, &b, e);
	free(a.sandbox);
	free(b.sandbox);
	return r < 0 ? r : EXIT_OK;
}
