/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_ENV_H
#define BOX_ENV_H

#include "wire/json.h"

/*
 * env_build(maps, n, home, user, ret_envp, e):
 * The environment of a command as a new NULL-terminated array: the ${n} objects
 * of ${maps} (NULL ones are skipped), later ones over earlier ones, and HOME
 * and USER unless one of them says so, PATH if none does.  "bad_value" for a
 * name with '=' or a NUL in it.
 */
int env_build(const json_t *const *maps, size_t n, const char *home,
	      const char *user, char ***ret_envp, struct err *e);
void env_free(char **envp);

/*
 * argv_build(array, ret_argv, e): a JSON array of strings as an argv whose
 * strings stay those of ${array}; free() the result.
 */
int argv_build(const json_t *array, const char ***ret_argv, struct err *e);

#endif
