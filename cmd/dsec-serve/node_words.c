/* SPDX-License-Identifier: Apache-2.0 */
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

/* The first that ${text} names, from where on. */
static const char *find_hidden(const struct keeper *k, const char *text,
			       const struct hidden **ret)
{
	const char *first = NULL, *at;

	for (size_t i = 0; i < array_len(k->hidden); i++) {
		at = strstr(text, k->hidden[i].path);
		if (!at || (first && at >= first))
			continue; /* the store may be in the library */
		first = at;
		*ret = &k->hidden[i];
	}
	return first;
}

static json_t *plain_text(const struct keeper *k, const char *text)
{
	const struct hidden *h;
	auto_buf struct buf b = {0};
	const char *at;

	while ((at = find_hidden(k, text, &h))) {
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

json_t *keeper_plain(const struct keeper *k, const json_t *rec)
{
	const char *text = json_str(error_of(rec), "message");
	const struct hidden *h;
	json_t *copy;

	if (!*text || !find_hidden(k, text, &h))
		return NULL;
	copy = json_deep_copy(rec);
	json_object_set_new(error_of(copy), "message", plain_text(k, text));
	return copy;
}
