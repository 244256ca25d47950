/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "box/tree.h"
#include "control.h"

/* What a request names is on one of the nodes: an id says on which, of a name
 * all are asked. */

static const struct kind {
	const char *word, *program, *unknown;
} sandboxes = {"sandbox", "ps", "sandbox_unknown"},
  snapshots = {"snapshot", "fork", "snapshot_unknown"};

/* What has to be there already, or "". */
static const char *snapshot_of(const struct job *j)
{
	const char *program = j->call->program, *op = json_str(j->req, "op");
	bool fork = !strcmp(program, "fork");

	if (fork && (!*op || !strcmp(op, "fork")))
		return json_str(j->req, "from");
	return fork || !strcmp(program, "run") ? json_str(j->req, "snapshot")
					       : "";
}

/* *${ret_name} is "" where it names nothing. */
static const struct kind *kind_of(const struct job *j, const char **ret_name)
{
	*ret_name = json_str(j->req, "sandbox");
	if (**ret_name && strcmp(j->call->program, "run"))
		return &sandboxes;
	*ret_name = snapshot_of(j);
	return &snapshots;
}

static void no_node(struct job *j, const struct kind *k, const char *id)
{
	struct err e = {0};
	bool lost;

	if (nodes_unsure(j->c, &lost)) {
		job_unsure(j);
		return;
	}
	if (lost) {
		err_set(&e, -EHOSTDOWN, "node_lost",
			"no node that can be reached has made it");
		e.infra = true;
	} else {
		err_set(&e, -ENOENT, k->unknown, "no node has made '%.64s'",
			id);
	}
	job_gone(j, &e);
}

static void by_code(struct job *j, const struct kind *k, const char *id)
{
	struct member *m = member_by_code(j->c, id);

	if (m)
		job_to(j, m);
	else
		no_node(j, k, id);
}

static void look(struct job *j, const struct kind *k, const char *name,
		 struct member *only, void (*fn)(struct job *j))
{
	json_t *project = k == &snapshots ? json_object_get(j->req, "project")
					  : NULL;

	many_look(j,
		  json_pack("{s:s, s:s, s:s, s:O*}", "program", k->program,
			    "op", "inspect", k->word, name, "project", project),
		  only, fn);
}

/* Nobody has it; or who may have it could not be asked, or did not say. */
static void none_has(struct job *j, const struct kind *k, const char *name)
{
	struct err e = {0};

	if (j->failed || j->missing) {
		job_fail(j, &j->first);
		return;
	}
	err_set(&e, -ENOENT, k->unknown, "no node has a %s '%.64s'", k->word,
		name);
	job_fail(j, &e);
}

/* What was asked with a key, perhaps its removal, may have been done. */
static void on_key(struct job *j)
{
	const char *name;
	const struct kind *k = kind_of(j, &name);

	if (json_array_size(j->found) > 0)
		many_to(j);
	else
		none_has(j, k, name);
}

static bool look_for_key(struct job *j, const struct kind *k)
{
	const char *key = json_str(j->req, "key");

	if (!*key || k != &snapshots || j->failed || j->missing)
		return false;
	many_look(j,
		  json_pack("{s:s, s:s, s:s}", "program", "run", "op", "key",
			    "key", key),
		  NULL, on_key);
	return true;
}

static int64_t ended_ms(const json_t *one)
{
	const json_t *rec = json_object_get(one, "record");

	return strcmp(json_str(rec, "state"), "stopped") == 0
		       ? json_int(rec, "since_ms", 0)
		       : -1;
}

/* A name is that of those that live, else of the last that ended. */
static void forget_ended(struct job *j)
{
	json_t *live = json_array(), *last = NULL, *one;
	size_t i;

	json_array_foreach(j->found, i, one) {
		if (ended_ms(one) < 0)
			json_array_append(live, one);
		else if (!last || ended_ms(one) > ended_ms(last))
			last = one;
	}
	if (last && json_array_size(live) == 0)
		json_array_append(live, last);
	json_decref(j->found);
	j->found = live;
}

static void on_one(struct job *j)
{
	const char *name;
	const struct kind *k = kind_of(j, &name);
	struct err e = {0};
	size_t n;

	forget_ended(j);
	n = json_array_size(j->found);
	if (n == 1) {
		many_to(j);
	} else if (n == 0 && look_for_key(j, k)) {
		return;
	} else if (n == 0) {
		none_has(j, k, name);
	} else {
		err_set(&e, -EINVAL, "bad_value",
			"several nodes have a %s '%.64s': use its id", k->word,
			name);
		job_fail(j, &e);
	}
}

bool find_begin(struct job *j)
{
	const char *name;
	const struct kind *k = kind_of(j, &name);

	if (!*name)
		return false;
	if (tree_is_id(name))
		by_code(j, k, name);
	else
		look(j, k, name, NULL, on_one);
	return true;
}

/* Those that can use it; where none can, one will say why. */
static void keep_fitting(struct job *j)
{
	json_t *fit = json_array(), *one;
	size_t i;

	json_array_foreach(j->found, i, one)
		if (!json_object_get(json_object_get(one, "record"),
				     "incompatible"))
			json_array_append(fit, one);
	if (json_array_size(fit) == 0) {
		json_decref(fit);
		return;
	}
	json_decref(j->found);
	j->found = fit;
}

/* Of a node whose code nobody has told the placer knows nothing. */
static bool has_code(const struct job *j)
{
	const struct member *m;

	for (size_t i = 0; i < json_array_size(j->found); i++) {
		m = many_found(j, i);
		if (m && *m->code)
			return true;
	}
	return false;
}

static void on_some(struct job *j)
{
	if (json_array_size(j->found) == 0) {
		none_has(j, &snapshots, snapshot_of(j));
		return;
	}
	keep_fitting(j);
	if (has_code(j))
		run_again(j);
	else
		job_unsure(j);
}

bool find_among(struct job *j)
{
	const char *name = snapshot_of(j);
	struct member *m = NULL;

	if (!*name)
		return false;
	if (tree_is_id(name))
		m = member_by_code(j->c, name);
	if (tree_is_id(name) && !m)
		no_node(j, &snapshots, name);
	else
		look(j, &snapshots, name, m, on_some);
	return true;
}
