/* SPDX-License-Identifier: Apache-2.0 */
#include "../tap.h"
#include "base/cleanup.h"
#include "box/result.h"
#include "wire/exit.h"

int main(void)
{
	static const struct {
		const char *outcome, *code;
	} ends[] = {
		{"killed", "cancelled"},
		{"oom", "oom"}, /* the sandbox's own limit, no fault of ours */
		{"signalled", "internal"},
	};
	auto_json json_t *done = json_pack("{s:s, s:i}", "outcome", "exited",
					   "exit_code", 3);
	int status = -1;

	is_int(result_of_helper(done, &status, NULL), 0, "one that ended");
	is_int(status, 3, "... with its status");
	for (size_t i = 0; i < array_len(ends); i++) {
		auto_json json_t *end = json_pack("{s:s}", "outcome",
						  ends[i].outcome);
		struct err e = {0};

		ok(result_of_helper(end, &status, &e) < 0, "%s",
		   ends[i].outcome);
		is_str(e.code, ends[i].code, "... by its code");
		ok(!e.infra, "... which masks no sample");
		is_int(exit_of(&e), i == 2 ? EXIT_BUG : EXIT_NO,
		       "... and status");
	}
	return tap_done();
}
