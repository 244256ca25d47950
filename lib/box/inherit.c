/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "box/inherit.h"

/* Of a spec.json: what is one sandbox's own, or was of its first command. */
static const char *const own[] = {
	"v",	     "sandbox",		"generation", "created_ms",
	"slot",	     "uid_base",	"name",	      "command",
	"tty",	     "parent",		"made_from",  "publish",
	"published", "network_address",
};

/* What a request may say of a sandbox made from a snapshot. */
static const char *const free_fields[] = {
	"name",		"hostname",   "task", "labels", "ttl_running_stop",
	"ttl_absolute", "ttl_paused",
};

/* Of a request, and nothing that the sandbox is. */
static const char *const request[] = {
	"id",	"in",	   "key",  "deadline_ms", "cancel",  "snapshot",
	"wait", "sandbox", "from", "count",	  "replace", "fs_only",
	"op",	"command", "tty",  "project",
};

static bool is_one_of(const char *key, const char *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(key, list[i]))
			return true;
	return false;
}

int inherit_check(const json_t *over, struct err *e)
{
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)over, key, v) {
		if (is_one_of(key, free_fields, array_len(free_fields)) ||
		    is_one_of(key, request, array_len(request)))
			continue;
		return err_set(e, -EINVAL, "bad_value",
			       "'%.64s' is the snapshot's: what is made from "
			       "it cannot have another",
			       key);
	}
	return 0;
}

static int add_labels(json_t *spec, const json_t *more, struct err *e)
{
	json_t *labels = json_object_get(spec, "labels");

	if (!labels) {
		labels = json_object();
		if (json_object_set_new(spec, "labels", labels) < 0)
			return err_sys(e, ENOMEM, "labels");
	}
	return json_object_update(labels, (json_t *)(uintptr_t)more) < 0
		       ? err_sys(e, ENOMEM, "labels")
		       : 0;
}

int inherit_spec(const json_t *source, const json_t *over, json_t **ret_spec,
		 struct err *e)
{
	auto_json json_t *spec = json_deep_copy(source);
	json_t *v;
	int r;

	r = inherit_check(over, e);
	if (r < 0)
		return r;
	if (!json_is_object(spec))
		return err_sys(e, ENOMEM, "spec");
	for (size_t i = 0; i < array_len(own); i++)
		json_object_del(spec, own[i]);
	for (size_t i = 0; i < array_len(free_fields); i++) {
		v = json_object_get(over, free_fields[i]);
		if (!v)
			continue;
		if (!strcmp(free_fields[i], "labels"))
			r = add_labels(spec, v, e);
		else if (json_object_set(spec, free_fields[i], v) < 0)
			r = err_sys(e, ENOMEM, "spec");
		if (r < 0)
			return r;
	}
	*ret_spec = steal_ptr(spec);
	return 0;
}
