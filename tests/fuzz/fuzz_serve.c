/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to a node: whatever passes names nothing outside of its caller's
 * project and no file of the node, and what goes to a supervisor is one of the
 * operations that may.
 */
#include <assert.h>
#include <string.h>

#include "base/cleanup.h"
#include "fuzz.h"
#include "serve/auth.h"
#include "serve/relay_priv.h"

#define WITHIN "root/rl"

static void narrowed(const json_t *req)
{
	const json_t *project = json_object_get(req, "project");
	const char *program = json_str(req, "program");
	const char *image = json_str(req, "image");

	if (!strcmp(program, "run")) {
		assert(auth_within(json_str(req, "project"), WITHIN));
		assert(!json_is_true(json_object_get(req, "rm")));
		assert(strncmp(image, "root/other/", 11));
	}
	if ((!strcmp(program, "pause") || !strcmp(program, "ps")) &&
	    !json_object_get(req, "sandbox"))
		assert(project &&
		       auth_within(json_string_value(project), WITHIN));
	if (!strcmp(program, "exec") || !strcmp(program, "file"))
		assert(!json_is_string(json_object_get(req, "source")) &&
		       !json_is_string(json_object_get(req, "target")));
}

static void relayed(const json_t *req)
{
	static const char *const may[] = {"exec", "attach", "wait", "connect",
					  "file"};
	struct relay r = {.req = json_deep_copy(req)};
	bool known = false;

	if (r.req && relay_check(&r, NULL) == 0) {
		for (size_t i = 0; i < array_len(may); i++)
			known |= !strcmp(json_str(r.line, "op"), may[i]);
		assert(known && !json_object_get(r.line, "fds"));
		assert(!json_object_get(r.line, "sandbox"));
	}
	json_decref(r.req);
	json_decref(r.line);
	json_decref(r.want);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_json json_t *req = NULL;
	enum auth_op needs;
	struct err e;

	if (json_parse((const char *)data, size, &req, &e) < 0 ||
	    auth_needs(req, &needs, &e) < 0)
		return 0;
	assert(needs != 0);
	if (auth_narrow(req, WITHIN, &e) == 0)
		narrowed(req);
	if (relay_takes(req))
		relayed(req);
	return 0;
}
