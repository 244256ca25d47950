#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# README.md on pauses, as it is written: its commands work in their order.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq busybox python3
tree_new
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"
matrix_image root/py:3.12 || plan_skip_all "no image could be made"

sed -n '/^## Pause and preemption/,/^## /s/^    //p' "$(dirname "$0")/../../README.md" \
	>"$T/commands"
[ "$(grep -c '^dsec-' "$T/commands")" -ge 8 ]
ok $? "there are commands"
while read -r line; do
	timeout 120 sh -c "$line" </dev/null >"$T/out" 2>&1
	ok $? "$line" || diag "$(cat "$T/out")"
done <"$T/commands"
# A stop is answered when nothing runs; the rest is removed behind it.
# shellcheck disable=SC2317 # by wait_for
none_left() {
	[ -z "$(dsec-ps --task job-42)" ]
}
wait_for 10 none_left
ok $? "nothing of it is left"

done_testing
