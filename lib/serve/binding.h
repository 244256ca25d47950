/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_BINDING_H
#define SERVE_BINDING_H

#include "serve/auth.h"
#include "serve/server.h"

/*
 * What clients who are connected may (serve/auth.h).
 *
 * binding_of(a, cl): his binding, or NULL.
 * binding_token_ok(a, cl): is the token that he said, if any, somebody's?
 * binding_holds(a, cl, within): may he go on with all that he has under way?
 * ${within}: the project in which a call was begun; NULL: it needs no right.
 * Who has none is let be while he asks for nothing: he may say a token yet.
 */
const struct auth_who *binding_of(const struct auth *a,
				  const struct client *cl);
bool binding_token_ok(const struct auth *a, const struct client *cl);
bool binding_holds(const struct auth *a, const struct client *cl,
		   const char *(*within)(const struct call *k));

#endif
