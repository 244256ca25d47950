/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "img/image.h"
#include "node_keeper.h"

/* What is told to who asks from afar. */

/* The client knows his key, not what it is here. */
json_t *errand_own_words(const struct errand *c, const json_t *rec)
{
	const json_t *asked = json_object_get(c->line, "req");
	const char *key = json_str(asked, "key");
	json_t *own, *error;

	if (!*key || strcmp(json_str(json_object_get(rec, "error"), "code"),
			    "key_conflict"))
		return NULL;
	own = json_deep_copy(rec);
	error = json_object_get(own, "error");
	json_object_set_new(error, "message",
			    json_sprintf("key '%s' was used for a different "
					 "request",
					 key));
	return own;
}

/* --- where things are is the node's affair -------------------------------- */

void keeper_hide(struct keeper *k)
{
	struct image_config images;
	const struct hidden all[] = {
		{k->store, "STORE"},
		{k->tree.run, "$DSEC_RUN"},
		{k->tree.lib, "$DSEC_LIB"},
		{k->tree.config, "$DSEC_CONFIG"},
	};

	/* One that does not read is told by those who need it. */
	if (image_config_load(k->tree.config, k->tree.lib, &images, NULL) == 0)
		memcpy(k->store, images.store, sizeof(k->store));
	else
		snprintf(k->store, sizeof(k->store), "%s/img/store",
			 k->tree.lib);
	memcpy(k->hidden, all, sizeof(all));
}

static bool is_of_name(char c)
{
	return isalnum((unsigned char)c) || (c && strchr("._-", c));
}

/* Where ${text}, or what is behind ${from} in it, has ${path}, and not only
 * letters of another. */
static const char *find_path(const char *text, const char *from,
			     const char *path)
{
	size_t len = strlen(path);
	const char *at = from;

	while ((at = strstr(at, path))) {
		if (!is_of_name(at[len]) &&
		    (at == text || (!is_of_name(at[-1]) && at[-1] != '/')))
			return at;
		at++;
	}
	return NULL;
}

/* Does one of the words of ${req} have ${path}, and no more of it? */
static bool is_said(const json_t *req, const char *path)
{
	const char *text = json_string_value(req), *at = text, *key;
	size_t len = strlen(path), i;
	json_t *v;

	while (at && (at = find_path(text, at, path))) {
		if (at[len] != '/')
			return true;
		at++;
	}
	json_object_foreach((json_t *)(uintptr_t)req, key, v)
		if (is_said(v, path))
			return true;
	json_array_foreach(req, i, v)
		if (is_said(v, path))
			return true;
	return false;
}

/* What acts inside a sandbox tells of paths there, those that it was asked
 * about. */
static bool is_own(const struct errand *c, const char *at)
{
	char path[PATH_MAX];
	size_t len = 0;

	if (!c || (strcmp(c->program, "exec") && strcmp(c->program, "file")))
		return false;
	while (is_of_name(at[len]) || at[len] == '/')
		len++;
	if (len >= sizeof(path))
		return false;
	snprintf(path, sizeof(path), "%.*s", (int)len, at);
	return is_said(c->req, path);
}

struct plain {
	const struct keeper *keeper;
	const struct errand *errand; /* or NULL */
	const char *text;
};

/* The first that is to be hidden, from where on. */
static const char *find_hidden(const struct plain *p, const char *from,
			       const struct hidden **ret)
{
	const struct keeper *k = p->keeper;
	const char *first = NULL, *at;

	for (size_t i = 0; i < array_len(k->hidden); i++) {
		at = from;
		while ((at = find_path(p->text, at, k->hidden[i].path)) &&
		       is_own(p->errand, at))
			at++;
		if (!at || (first && at >= first))
			continue; /* the store may be in the library */
		first = at;
		*ret = &k->hidden[i];
	}
	return first;
}

static json_t *plain_text(const struct plain *p)
{
	const char *text = p->text, *at;
	auto_buf struct buf b = {0};
	const struct hidden *h;

	while ((at = find_hidden(p, text, &h))) {
		if (buf_add(&b, text, (size_t)(at - text)) < 0 ||
		    buf_add(&b, h->word, strlen(h->word)) < 0)
			return NULL;
		text = at + strlen(h->path);
	}
	return buf_add(&b, text, strlen(text)) < 0 ? NULL : json_string(b.data);
}

/* Of a record, or of one of several that an event tells. */
static json_t *error_of(const json_t *rec)
{
	json_t *error = json_object_get(rec, "error");

	return error ? error
		     : json_object_get(json_object_get(rec, "record"), "error");
}

json_t *keeper_plain(struct channel *ch, int64_t n, const json_t *rec)
{
	struct plain p = {.keeper = ch->keeper,
			  .text = json_str(error_of(rec), "message")};
	const struct hidden *h;
	json_t *copy;

	if (!*p.text)
		return NULL;
	p.errand = errand_find(ch, n);
	if (!find_hidden(&p, p.text, &h))
		return NULL;
	copy = json_deep_copy(rec);
	json_object_set_new(error_of(copy), "message", plain_text(&p));
	return copy;
}
