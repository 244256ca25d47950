/* SPDX-License-Identifier: Apache-2.0 */
/* A create request: checked, completed, and then it must stay as it is. */
#include <assert.h>
#include <string.h>

#include "base/cleanup.h"
#include "box/spec.h"
#include "fuzz.h"
#include "wire/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct record_line line = {(const char *)data, size, 1};
	auto_json json_t *req = NULL;
	auto_json json_t *was = NULL;
	enum record_kind kind;
	struct err e = {0};
	int r;

	r = record_take(&line, spec_fields, spec_fields_len, NULL, &kind, &req,
			&e);
	if (r < 0 || kind != RECORD_REQUEST) {
		assert(r == 0 || e.code);
		return 0;
	}
	r = spec_complete(req, &e);
	if (r < 0) {
		assert(e.code);
		return 0;
	}
	was = json_deep_copy(req);
	assert(field_check(spec_fields, spec_fields_len, req, &e) == 0);
	assert(spec_complete(req, &e) == 0);
	assert(json_equal(was, req));
	return 0;
}
