/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/binding.h"

const struct auth_who *binding_of(const struct auth *a, const struct client *cl)
{
	return auth_of(a, cl->uri, cl->token_sha256);
}

bool binding_token_ok(const struct auth *a, const struct client *cl)
{
	return !*cl->token_sha256 || auth_by_digest(a, cl->token_sha256);
}

bool binding_holds(const struct auth *a, const struct client *cl,
		   const char *(*within)(const struct call *k))
{
	const struct auth_who *who = binding_of(a, cl);
	const char *project;

	if (!who)
		return !cl->calls && !*cl->token_sha256;
	for (const struct call *k = cl->calls; k; k = k->next) {
		project = within(k);
		if (project && !auth_holds(who, k->req, project))
			return false;
	}
	return true;
}
