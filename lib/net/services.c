/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/proc.h"
#include "net/services.h"

#define NAME_LEN_MAX 32

struct services {
	const struct netconf *conf;
	char operators[PATH_MAX], ours[PATH_MAX]; /* directories */
	json_t *loaded;				  /* name: what load() made */
};

static bool is_name(const char *s)
{
	size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-");

	return n > 0 && n <= NAME_LEN_MAX && s[n] == '\0' && s[0] != '-';
}

/* --- a file -------------------------------------------------------------- */

static int bad(struct err *e, const char *path, const char *what)
{
	return err_set(e, -EINVAL, "configuration", "%s: %s", path, what);
}

static int check_head(const json_t *file, const char *path, const char *name,
		      struct err *e)
{
	const char *version = json_str(file, "version");

	if (json_int(file, "v", 0) != 1)
		return bad(e, path, "\"v\" is not 1");
	if (strcmp(json_str(file, "name"), name))
		return bad(e, path, "\"name\" is not that of the file");
	if (!*version || strlen(version) > 64)
		return bad(e, path, "\"version\" is missing or too long");
	if (!json_is_array(json_object_get(file, "rules")) ||
	    json_object_size(file) != 4)
		return bad(e, path,
			   "its keys are v, name, version and a list of rules");
	return 0;
}

/* To deny a service is to deny its domains and networks, whatever the port. */
static int add_whole(json_t *deny, const json_t *entry, struct err *e)
{
	const char *key = json_object_get(entry, "domain") ? "domain" : "cidr";
	json_t *one = json_pack("{s:O}", key, json_object_get(entry, key));

	return json_array_append_new(deny, one) < 0
		       ? err_sys(e, ENOMEM, "service")
		       : 0;
}

static int add_rules(json_t *deny, const json_t *list, const char *path,
		     struct err *e)
{
	struct netpol_rule rules[3];
	char where[PATH_MAX + 32];
	json_t *one;
	size_t i;
	int n, r = 0;

	json_array_foreach(list, i, one) {
		snprintf(where, sizeof(where), "%s: rules[%zu]", path, i);
		n = netpol_rule_parse(one, NETPOL_ALLOW, rules, where, e);
		if (n < 0) {
			if (e)
				e->code = "configuration";
			return n;
		}
		while (n > 0)
			netpol_rule_done(&rules[--n]);
		r = add_whole(deny, one, e);
		if (r < 0)
			return r;
	}
	return r;
}

/* Where NAME.json is: the operator's or ours; -ENOENT. */
static int find_file(const struct services *s, const char *name, char *path,
		     bool *ret_operators)
{
	const char *dirs[] = {s->operators, s->ours};

	if (!is_name(name))
		return -ENOENT;
	for (size_t i = 0; i < array_len(dirs); i++) {
		if (snprintf(path, PATH_MAX, "%s/%s.json", dirs[i], name) >=
		    PATH_MAX)
			continue;
		if (access(path, F_OK) == 0) {
			*ret_operators = i == 0;
			return 0;
		}
	}
	return -ENOENT;
}

static json_t *make(const char *path, bool operators, const json_t *file,
		    const json_t *allow, const json_t *deny, bool mirror)
{
	return json_pack("{s:{s:O, s:O, s:s, s:s, s:b}, s:O, s:O}", "about",
			 "name", json_object_get(file, "name"), "version",
			 json_object_get(file, "version"), "from",
			 operators ? "operator" : "built-in", "path", path,
			 "mirror", mirror, "allow", allow, "deny", deny);
}

static int load(struct services *s, const char *name, json_t **ret,
		struct err *e)
{
	const json_t *mirrors = json_object_get(s->conf->file, "mirrors");
	const json_t *mirror = json_object_get(mirrors, name), *allow;
	auto_json json_t *file = NULL, *deny = json_array();
	char path[PATH_MAX];
	bool operators = false;
	int r;

	if (find_file(s, name, path, &operators) < 0)
		return err_set(e, -ENOENT, "bad_value",
			       "unknown semantic name '%.64s' (dsec-net "
			       "--services lists them)",
			       name);
	r = json_read_file(AT_FDCWD, path, &file, e);
	if (r < 0) {
		if (e)
			e->code = "configuration";
		return r;
	}
	r = check_head(file, path, name, e);
	allow = json_object_get(file, "rules");
	if (r == 0)
		r = add_rules(deny, allow, path, e);
	if (r == 0 && mirror) {
		allow = mirror;
		r = add_rules(deny, mirror, "net.json: mirrors", e);
	}
	if (r < 0)
		return r;
	*ret = make(path, operators, file, allow, deny, mirror != NULL);
	if (!*ret)
		return err_sys(e, ENOMEM, "service");
	return 0;
}

/* --- the interface ------------------------------------------------------- */

int services_open(const char *config, const struct netconf *conf,
		  struct services **ret, struct err *e)
{
	auto_services struct services *s = calloc(1, sizeof(*s));
	char path[PATH_MAX];
	bool operators;
	const char *name;
	json_t *v;
	int r;

	if (!s || !(s->loaded = json_object()))
		return err_sys(e, ENOMEM, "services");
	s->conf = conf;
	if (snprintf(s->operators, PATH_MAX, "%s/net.d", config) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "configuration");
	r = proc_share("net", s->ours, sizeof(s->ours), e);
	if (r < 0)
		return r;
	json_object_foreach(json_object_get(conf->file, "mirrors"), name, v)
		if (find_file(s, name, path, &operators) < 0)
			return err_set(e, -EINVAL, "configuration",
				       "net.json: mirrors: unknown semantic "
				       "name '%.64s'",
				       name);
	*ret = steal_ptr(s);
	return 0;
}

void services_free(struct services *s)
{
	if (!s)
		return;
	json_decref(s->loaded);
	free(s);
}

static int get(struct services *s, const char *name, const json_t **ret,
	       struct err *e)
{
	json_t *one = json_object_get(s->loaded, name);
	int r;

	if (!one) {
		r = load(s, name, &one, e);
		if (r < 0)
			return r;
		if (json_object_set_new(s->loaded, name, one) < 0)
			return err_sys(e, ENOMEM, "services");
	}
	*ret = one;
	return 0;
}

static int find(void *arg, const char *name, const json_t **ret_allow,
		const json_t **ret_deny, struct err *e)
{
	const json_t *one;
	int r = get(arg, name, &one, e);

	if (r < 0)
		return r;
	*ret_allow = json_object_get(one, "allow");
	*ret_deny = json_object_get(one, "deny");
	return 0;
}

struct netpol_env services_env(struct services *s)
{
	return (struct netpol_env){.find = find,
				   .arg = s,
				   .limits = &s->conf->limits};
}

int services_about(struct services *s, const char *name, json_t **ret,
		   struct err *e)
{
	const json_t *one;
	int r = get(s, name, &one, e);

	if (r == 0)
		*ret = json_incref(json_object_get(one, "about"));
	return r;
}

static void add_names(const char *path, json_t *names)
{
	auto_dir DIR *dir = opendir(path);
	char name[NAME_LEN_MAX + 1];
	struct dirent *d;
	size_t len;

	while (dir && (d = readdir(dir))) {
		len = strlen(d->d_name);
		if (len < 6 || len - 5 > NAME_LEN_MAX ||
		    strcmp(d->d_name + len - 5, ".json"))
			continue;
		memcpy(name, d->d_name, len - 5);
		name[len - 5] = '\0';
		if (is_name(name))
			json_object_set_new(names, name, json_true());
	}
}

static int cmp(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int services_names(struct services *s, json_t **ret, struct err *e)
{
	auto_json json_t *names = json_object(), *list = json_array();
	auto_free const char **v = NULL;
	const char *name;
	size_t n = 0;
	json_t *j;

	add_names(s->operators, names);
	add_names(s->ours, names);
	v = calloc(json_object_size(names) + 1, sizeof(*v));
	if (!v || !list)
		return err_sys(e, ENOMEM, "services");
	json_object_foreach(names, name, j)
		v[n++] = name;
	qsort(v, n, sizeof(*v), cmp);
	for (size_t i = 0; i < n; i++)
		if (json_array_append_new(list, json_string(v[i])) < 0)
			return err_sys(e, ENOMEM, "services");
	*ret = steal_ptr(list);
	return 0;
}
