/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "serve/auth.h"

#define CLIENTS_MAX 10000
#define PROJECT_MAX 256
#define ROOT	    "root"

struct binding {
	struct auth_who who;
	char *name, *project;		  /* who's */
	char digest[HASH_SHA256_HEX + 1]; /* "": by uri */
};

struct auth {
	struct binding *bindings;
	size_t n;
};

static const struct {
	const char *word;
	enum auth_op op;
} words[] = {
	{"run", AUTH_RUN},	 {"exec", AUTH_EXEC},
	{"file", AUTH_FILE},	 {"connect", AUTH_CONNECT},
	{"pause", AUTH_PAUSE},	 {"fork", AUTH_FORK},
	{"net", AUTH_NET},	 {"ps", AUTH_PS},
	{"img", AUTH_IMG},	 {"img-write", AUTH_IMG_WRITE},
	{"report", AUTH_REPORT}, {"drain", AUTH_DRAIN},
};

const char *auth_word(enum auth_op op)
{
	for (size_t i = 0; i < array_len(words); i++)
		if (words[i].op == op)
			return words[i].word;
	return "none";
}

enum auth_op auth_op_of(const char *word)
{
	for (size_t i = 0; i < array_len(words); i++)
		if (!strcmp(words[i].word, word))
			return words[i].op;
	return 0;
}

/* --- bindings ------------------------------------------------------------ */

bool auth_project_ok(const char *project)
{
	static const char first[] = "abcdefghijklmnopqrstuvwxyz"
				    "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
	size_t n = strlen(project), len;

	if (n > PROJECT_MAX || !auth_within(project, ROOT))
		return false;
	for (const char *p = project;; p += len + 1) {
		len = strcspn(p, "/");
		if (len == 0 || !strchr(first, *p) ||
		    strspn(p, "abcdefghijklmnopqrstuvwxyz"
			      "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") < len)
			return false;
		if (!p[len])
			return true;
	}
}

bool auth_within(const char *project, const char *subtree)
{
	size_t n = strlen(subtree);

	return !strncmp(project, subtree, n) &&
	       (project[n] == '\0' || project[n] == '/');
}

static int bad(size_t i, const char *what, struct err *e)
{
	return err_set(e, -EINVAL, "configuration", "clients[%zu]: %s", i,
		       what);
}

static int take_ops(const json_t *list, size_t i, unsigned *ret, struct err *e)
{
	unsigned ops = 0, one;
	const char *word;
	json_t *v;
	size_t n;

	if (!json_is_array(list) || json_array_size(list) == 0)
		return bad(i, "'operations' is not a list of words", e);
	json_array_foreach(list, n, v) {
		word = json_string_value(v);
		one = !word		     ? 0
		      : !strcmp(word, "all") ? AUTH_ALL
					     : (unsigned)auth_op_of(word);
		if (!one)
			return err_set(e, -EINVAL, "configuration",
				       "clients[%zu]: operation '%.32s' is "
				       "none",
				       i, word ? word : "");
		ops |= one;
	}
	*ret = ops;
	return 0;
}

static bool is_digest(const char *hex)
{
	return strlen(hex) == HASH_SHA256_HEX &&
	       strspn(hex, "0123456789abcdef") == HASH_SHA256_HEX;
}

static int take_name(struct binding *b, const json_t *o, size_t i,
		     struct err *e)
{
	const char *uri = json_str(o, "uri");
	const char *digest = json_str(o, "token_sha256");
	char name[32];

	if (!*uri == !*digest)
		return bad(i, "needs one of 'uri' and 'token_sha256'", e);
	if (*uri) {
		if (strncmp(uri, "dsec://client/", 14) || !uri[14] ||
		    strlen(uri) > 256)
			return bad(i, "'uri' is not dsec://client/NAME", e);
		b->name = strdup(uri);
	} else {
		if (!is_digest(digest))
			return bad(i, "'token_sha256' is not 64 hex digits", e);
		memcpy(b->digest, digest, sizeof(b->digest));
		snprintf(name, sizeof(name), "token:%.12s", digest);
		b->name = strdup(name);
	}
	return b->name ? 0 : err_sys(e, ENOMEM, "bindings");
}

static int take_binding(struct binding *b, const json_t *o, size_t i,
			struct err *e)
{
	static const char *const keys[] = {"uri", "token_sha256", "project",
					   "operations", "comment"};
	const char *project = json_str(o, "project"), *key;
	int r;

	if (!json_is_object(o))
		return bad(i, "is not an object", e);
	key = json_unknown(o, keys, array_len(keys));
	if (key)
		return err_set(e, -EINVAL, "configuration",
			       "clients[%zu]: unknown key '%.64s'", i, key);
	if (!auth_project_ok(project))
		return bad(i, "'project' is not a path that begins with root",
			   e);
	r = take_name(b, o, i, e);
	if (r == 0)
		r = take_ops(json_object_get(o, "operations"), i, &b->who.ops,
			     e);
	if (r < 0)
		return r;
	b->project = strdup(project);
	if (!b->project)
		return err_sys(e, ENOMEM, "bindings");
	b->who.uri = b->name;
	b->who.project = b->project;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct binding *)a)->name,
		      ((const struct binding *)b)->name);
}

/* Two for one name would leave it open which of them holds. */
static int check_twice(const struct auth *a, struct err *e)
{
	for (size_t i = 1; i < a->n; i++)
		if (!strcmp(a->bindings[i - 1].name, a->bindings[i].name))
			return err_set(e, -EINVAL, "configuration",
				       "clients: '%.128s' is there twice",
				       a->bindings[i].name);
	return 0;
}

int auth_new(const json_t *clients, struct auth **ret, struct err *e)
{
	size_t n = json_array_size(clients), i;
	struct auth *a;
	json_t *o;
	int r = 0;

	if (clients && (!json_is_array(clients) || n > CLIENTS_MAX))
		return err_set(e, -EINVAL, "configuration",
			       "'clients' is not a list of at most %d",
			       CLIENTS_MAX);
	a = calloc(1, sizeof(*a));
	if (a)
		a->bindings = calloc(n + 1, sizeof(*a->bindings));
	if (!a || !a->bindings) {
		free(a);
		return err_sys(e, ENOMEM, "bindings");
	}
	json_array_foreach(clients, i, o) {
		a->n = i + 1;
		r = take_binding(&a->bindings[i], o, i, e);
		if (r < 0)
			break;
	}
	if (r == 0) {
		qsort(a->bindings, a->n, sizeof(*a->bindings), by_name);
		r = check_twice(a, e);
	}
	if (r < 0)
		auth_free(a);
	else
		*ret = a;
	return r;
}

void auth_free(struct auth *a)
{
	if (!a)
		return;
	for (size_t i = 0; i < a->n; i++) {
		free(a->bindings[i].name);
		free(a->bindings[i].project);
	}
	free(a->bindings);
	free(a);
}

const struct auth_who *auth_find(const struct auth *a, const char *name)
{
	struct binding key = {.name = (char *)(uintptr_t)name};
	const struct binding *b;

	b = bsearch(&key, a->bindings, a->n, sizeof(*a->bindings), by_name);
	return b ? &b->who : NULL;
}

static bool is_client(const char *uri)
{
	return !strncmp(uri, "dsec://client/", 14);
}

const struct auth_who *auth_by_uri(const struct auth *a, const char *uri)
{
	return is_client(uri) ? auth_find(a, uri) : NULL;
}

/* In a time that says nothing about how much of a digest agreed. */
static bool same_digest(const char *a, const char *b)
{
	unsigned char diff = 0;

	for (size_t i = 0; i < HASH_SHA256_HEX; i++)
		diff |= (unsigned char)(a[i] ^ b[i]);
	return diff == 0;
}

const struct auth_who *auth_by_digest(const struct auth *a, const char *hex)
{
	const struct auth_who *found = NULL;

	if (!is_digest(hex))
		return NULL;
	for (size_t i = 0; i < a->n; i++)
		if (*a->bindings[i].digest &&
		    same_digest(a->bindings[i].digest, hex))
			found = &a->bindings[i].who;
	return found;
}

const struct auth_who *auth_of(const struct auth *a, const char *uri,
			       const char *sha256)
{
	const struct auth_who *who = auth_by_uri(a, uri);

	return who || !is_client(uri) ? who : auth_by_digest(a, sha256);
}

/* --- what a request needs ------------------------------------------------ */

/* "" is where "op" is left out, "*" any: the program knows its own. */
static const struct need {
	const char *program, *ops;
	enum auth_op needs;
} needs[] = {
	{"run", "*", AUTH_RUN},
	{"exec",
	 " exec attach wait output signal input resize list-execs session "
	 "close-session ",
	 AUTH_EXEC},
	{"exec", " read write list stat mkdir move remove watch put get ",
	 AUTH_FILE},
	{"file", " read write list stat mkdir move remove watch put get ",
	 AUTH_FILE},
	{"exec", " connect ", AUTH_CONNECT},
	{"pause", "*", AUTH_PAUSE},
	{"fork", "*", AUTH_FORK},
	{"net", "*", AUTH_NET},
	{"ps", "*", AUTH_PS},
	{"img", " ls inspect du lint diff verify ", AUTH_IMG},
	{"img", " pull pack tag rm env mount unmount prune ", AUTH_IMG_WRITE},
	{"admit", " report ", AUTH_REPORT},
	{"report", "*", AUTH_REPORT},
	{"nodes", "*", AUTH_REPORT},
	{"drain", "*", AUTH_DRAIN},
	{"task", "*", AUTH_PAUSE},
	{"hello", "*", AUTH_NONE},
	{"ping", "*", AUTH_NONE},
};

static bool has_op(const char *list, const char *op)
{
	char padded[40];
	int n = snprintf(padded, sizeof(padded), " %s ", op);

	return !strcmp(list, "*") || (n < (int)sizeof(padded) &&
				      !strchr(op, ' ') && strstr(list, padded));
}

int auth_needs(const json_t *req, enum auth_op *ret, struct err *e)
{
	const char *program = json_str(req, "program");
	const char *op = json_str(req, "op");
	bool known = false;

	if (!*op && !strcmp(program, "exec"))
		op = "exec";
	for (size_t i = 0; i < array_len(needs); i++) {
		if (strcmp(needs[i].program, program))
			continue;
		known = true;
		if (!has_op(needs[i].ops, op))
			continue;
		*ret = needs[i].needs;
		return 0;
	}
	if (known)
		return err_set(e, -EBADMSG, "bad_value",
			       "'op' of %.16s is '%.32s': not one that can be "
			       "asked for from afar",
			       program, op);
	if (!*program)
		return err_set(e, -EBADMSG, "missing_field",
			       "'program' is missing");
	return err_set(e, -EOPNOTSUPP, "unsupported", "no program '%.32s'",
		       program);
}

/* --- within -------------------------------------------------------------- */

/* What names a file of the node, whoever asks. */
static const struct {
	const char *program, *key;
} local[] = {
	{"exec", "source"},  {"exec", "target"}, {"file", "source"},
	{"file", "target"},  {"img", "store"},	 {"img", "authfile"},
	{"img", "insecure"}, {"img", "target"},	 {"run", "rm"},
};

static int no(const char *key, struct err *e)
{
	return err_set(e, -EACCES, "permission",
		       "'%s' is outside of what this identity may touch", key);
}

static int refuse_local(const json_t *req, const char *program, struct err *e)
{
	for (size_t i = 0; i < array_len(local); i++) {
		const json_t *v = json_object_get(req, local[i].key);

		if (strcmp(local[i].program, program) || !v || json_is_false(v))
			continue;
		return err_set(e, -EACCES, "permission",
			       "'%s' cannot be asked for from afar",
			       local[i].key);
	}
	return 0;
}

static int narrow_project(json_t *req, const char *within, struct err *e)
{
	json_t *v = json_object_get(req, "project");

	if (!v)
		return json_object_set_new(req, "project",
					   json_string(within)) < 0
			       ? err_sys(e, ENOMEM, "request")
			       : 0;
	if (!json_is_string(v) || !auth_project_ok(json_string_value(v)))
		return err_set(e, -EBADMSG, "bad_value",
			       "'project' is not a path of names");
	return auth_within(json_string_value(v), within) ? 0 : no("project", e);
}

/*
 * An image of one's own subtree, or of a project above, which it is shared
 * with.  A digest tells nothing and may be used by who knows it; "host" is
 * nobody's.
 */
static bool image_ok(const char *name, const char *within, bool change)
{
	auto_free char *project = NULL;
	char *end;

	if (!strcmp(within, ROOT))
		return true;
	if (!change && (!strcmp(name, "host") || !strncmp(name, "sha256:", 7)))
		return true;
	project = strdup(name);
	end = project ? strrchr(project, '/') : NULL;
	if (!end)
		return false;
	*end = '\0';
	return auth_within(project, within) ||
	       (!change && auth_within(within, project));
}

static int no_text(const char *key, struct err *e)
{
	return err_set(e, -EBADMSG, "bad_value", "'%s' is no text", key);
}

/* One name, or a list of them. */
static int narrow_image(const json_t *v, const char *key, const char *within,
			bool change, struct err *e)
{
	size_t n = json_is_array(v) ? json_array_size(v) : v != NULL;
	const char *name;

	for (size_t i = 0; i < n; i++) {
		name = json_string_value(json_is_array(v) ? json_array_get(v, i)
							  : v);
		if (!name)
			return no_text(key, e);
		if (!image_ok(name, within, change))
			return no(key, e);
	}
	return 0;
}

static int narrow_images(const json_t *req, const char *const *keys, size_t n,
			 const char *within, bool change, struct err *e)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		r = narrow_image(json_object_get(req, keys[i]), keys[i], within,
				 change, e);
	return r;
}

/* A whole path says whose it is; a plain name is looked up in "project", an id
 * by who can. */
static int narrow_snapshot(const json_t *req, const char *key,
			   const char *within, struct err *e)
{
	const char *name = json_str(req, key);

	if (!strchr(name, '/') || auth_within(name, within))
		return 0;
	return no(key, e);
}

static int narrow_run(json_t *req, const char *within, struct err *e)
{
	static const char *const keys[] = {"image", "layers"};
	int r = narrow_images(req, keys, array_len(keys), within, false, e);

	if (r == 0)
		r = narrow_snapshot(req, "snapshot", within, e);
	return r < 0 ? r : narrow_project(req, within, e);
}

static int narrow_fork(json_t *req, const char *within, struct err *e)
{
	int r = narrow_snapshot(req, "snapshot", within, e);

	if (r == 0)
		r = narrow_snapshot(req, "from", within, e);
	/* Of a sandbox's copies the project is the sandbox's. */
	if (r < 0 || json_object_get(req, "sandbox"))
		return r;
	return narrow_project(req, within, e);
}

static int narrow_img(json_t *req, const char *within, struct err *e)
{
	static const char *const read[] = {"name", "names", "to", "dict"};
	static const char *const write[] = {"as", "new"};
	const char *op = json_str(req, "op");
	const char *match = json_str(req, "match");
	bool change = !strcmp(op, "rm") || !strcmp(op, "unmount");
	int r;

	if (!strcmp(within, ROOT))
		return 0;
	/* Of the whole node. */
	if (!strcmp(op, "prune") || json_is_true(json_object_get(req, "all")))
		return no("op", e);
	if (json_object_get(req, "digests"))
		return no("digests", e);
	if (!strcmp(op, "ls")) {
		if (*match && !auth_within(match, within))
			return no("match", e);
		return *match || json_object_set_new(req, "match",
						     json_string(within)) == 0
			       ? 0
			       : err_sys(e, ENOMEM, "request");
	}
	r = narrow_images(req, read, array_len(read), within, change, e);
	if (r == 0)
		r = narrow_images(req, write, array_len(write), within, true,
				  e);
	if (r == 0 && !strcmp(op, "du") && !json_object_get(req, "names"))
		r = no("names", e);
	if (r == 0 && json_is_true(json_object_get(req, "force")))
		r = no("force", e);
	return r;
}

/*
 * What is decided by here, and where requests are sent by it, must be what the
 * programs will read: no value that one takes for absent and another does not.
 */
static int make_plain(json_t *req, struct err *e)
{
	static const char *const texts[] = {"sandbox", "op",	"project",
					    "task",    "key",	"snapshot",
					    "from",    "match", "after",
					    "node"};
	const json_t *v;
	const char *key;
	json_t *one;
	void *next;

	json_object_foreach_safe(req, next, key, one)
		if (json_is_null(one))
			json_object_del(req, key);
	for (size_t i = 0; i < array_len(texts); i++) {
		v = json_object_get(req, texts[i]);
		if (v && json_string_length(v) == 0)
			return no_text(texts[i], e);
	}
	if (json_string_length(json_object_get(req, "key")) > AUTH_KEY_MAX)
		return err_set(e, -EBADMSG, "bad_value",
			       "'key' is over %d bytes", AUTH_KEY_MAX);
	v = json_object_get(req, "labels");
	return !v || json_is_object(v) ? 0
				       : err_set(e, -EBADMSG, "bad_value",
						 "'labels' is no object");
}

int auth_narrow(json_t *req, const char *within, struct err *e)
{
	const char *program = json_str(req, "program");
	int r = make_plain(req, e);
	bool one = json_object_get(req, "sandbox");

	if (r == 0)
		r = refuse_local(req, program, e);
	if (r < 0)
		return r;
	if (!strcmp(program, "drain") && strcmp(within, ROOT))
		return err_set(e, -EACCES, "permission",
			       "who is confined to a project drains no node");
	if (!strcmp(program, "run"))
		return narrow_run(req, within, e);
	if (!strcmp(program, "fork"))
		return narrow_fork(req, within, e);
	if (!strcmp(program, "img"))
		return narrow_img(req, within, e);
	if (one)
		return 0;
	if (!strcmp(program, "pause") || !strcmp(program, "net") ||
	    !strcmp(program, "task")) {
		if (!json_object_get(req, "task") &&
		    !json_object_get(req, "project") &&
		    !json_object_get(req, "labels"))
			return err_set(e, -EBADMSG, "missing_field",
				       "'sandbox' is missing, or a selector: "
				       "'task', 'project', 'labels'");
		return narrow_project(req, within, e);
	}
	return strcmp(program, "ps") ? 0 : narrow_project(req, within, e);
}

bool auth_holds(const struct auth_who *who, const json_t *req,
		const char *within)
{
	enum auth_op op;

	return who && auth_needs(req, &op, NULL) == 0 &&
	       (op == AUTH_NONE || (who->ops & op)) &&
	       auth_within(within, who->project);
}

void auth_blank_report(json_t *rec)
{
	static const char *const whose[] = {"tasks", "projects", "users",
					    "reserved_for"};

	for (size_t i = 0; i < array_len(whose); i++)
		json_object_del(rec, whose[i]);
}
