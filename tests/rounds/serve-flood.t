#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # status, out, err come from run
#
# What a node does with more than it can: CREATES (2,000) sandboxes and EXECS
# (5,000) commands offered at once.  Each is done, or refused with a time to
# come back; afterwards all is as before.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq python3
tree_new

dir=$T/serve
dsec-serve init "$dir" --name n1 --host 127.0.0.1 >/dev/null
jq '.node.listen = ["127.0.0.1:0"]' <"$dir/serve.json" >"$T/json" &&
	cat "$T/json" >"$dir/serve.json"
start() {
	: >"$T/ready"
	dsec-serve node "$dir" --ready-fd 9 9>"$T/ready" 2>"$T/log" &
	node=$!
	wait_for 20 test -s "$T/ready"
}
start # its lock, root and audit log stay
kill "$node"
wait "$node"
leak_start
start
hostile() {
	PYTHONDONTWRITEBYTECODE=1 timeout 1800 python3 \
		"$(dirname "$0")/../sys/serve_hostile.py" "$dir" \
		"$(cut -d' ' -f2 "$T/ready")" "$@"
}
hostile records '{"program":"run","name":"mine"}' >/dev/null
rec=$(hostile flood mine "${CREATES:-2000}" "${EXECS:-5000}")
diag "$rec"
json_is "$rec" '[true,true,true,"ok"]' \
	"all are answered, refusals with a time, and it goes on" \
	'[.all,.hinted,.stopped,.after]'
hostile records '{"program":"pause","sandbox":"mine","op":"stop","grace_ms":0}' >/dev/null
kill "$node"
wait "$node"
is $? 0 "it ends when it is told to"
LEAK_S=60 leak_check
done_testing
