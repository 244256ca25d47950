/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "box/env.h"

#define DEFAULT_PATH                                                           \
	"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

void env_free(char **envp)
{
	for (char **p = envp; p && *p; p++)
		free(*p);
	free(envp);
}

static int merge(json_t *all, const json_t *map, struct err *e)
{
	const char *name;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)map, name, v) {
		if (!*name || strchr(name, '='))
			return err_set(e, -EINVAL, "bad_value",
				       "'%s' is no name of an environment "
				       "variable",
				       name);
		if (json_object_set(all, name, v) < 0)
			return err_sys(e, ENOMEM, "environment");
	}
	return 0;
}

static int dflt(json_t *all, const char *name, const char *value)
{
	if (!value || json_object_get(all, name))
		return 0;
	return json_object_set_new(all, name, json_string(value));
}

int env_build(const json_t *const *maps, size_t n, const char *home,
	      const char *user, char ***ret_envp, struct err *e)
{
	auto_json json_t *all = json_object();
	const char *name;
	size_t i = 0;
	char **envp;
	json_t *v;
	int r;

	for (size_t k = 0; all && k < n; k++) {
		r = merge(all, maps[k], e);
		if (r < 0)
			return r;
	}
	if (!all || dflt(all, "HOME", home) < 0 ||
	    dflt(all, "USER", user) < 0 || dflt(all, "PATH", DEFAULT_PATH) < 0)
		return err_sys(e, ENOMEM, "environment");
	envp = calloc(json_object_size(all) + 1, sizeof(*envp));
	if (!envp)
		return err_sys(e, ENOMEM, "environment");
	json_object_foreach(all, name, v) {
		if (asprintf(&envp[i++], "%s=%s", name, json_string_value(v)) <
		    0) {
			envp[i - 1] = NULL;
			env_free(envp);
			return err_sys(e, ENOMEM, "environment");
		}
	}
	*ret_envp = envp;
	return 0;
}

int argv_build(const json_t *array, const char ***ret_argv, struct err *e)
{
	const char **argv;
	json_t *item;
	size_t i;

	argv = calloc(json_array_size(array) + 1, sizeof(*argv));
	if (!argv)
		return err_sys(e, ENOMEM, "arguments");
	json_array_foreach(array, i, item)
		argv[i] = json_string_value(item);
	*ret_argv = argv;
	return 0;
}
