#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dsec-admit: would this node take it?
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
tree_new

mkdir -p "$DSEC_CONFIG"
conf() {
	printf '%s\n' "$1" >"$DSEC_CONFIG/node.json"
}

conf '{"memory_mb":1000,"cpu_cores":1,"max_sandboxes":5}'
out=$(echo '{"id":7,"memory_limit_mb":600,"cpu_cores_limit":0.5}' | dsec-admit)
is "$?" 0 "yes"
json_is "$out" '{"id":7,"ok":true,"claim":{"memory_mb":600,"cpu_cores":0.5,
	"disk_mb":0,"pids":1024,"sandboxes":1}}' "with what it claims"
out=$(echo '{"id":7,"memory_limit_mb":600}' | dsec-admit)
is "$?" 0 "asking takes nothing"

out=$(echo '{"id":8,"memory_limit_mb":1001}' | dsec-admit)
is "$?" 1 "no"
json_is "$out" '["memory",null]' "more than the node has: no time helps" \
	'[.error.code, .error.retry_after_ms]'
out=$(echo '{}' | dsec-admit --cpu 8.1)
json_is "$out" '["cpu",null]' "the CPU promised 8 times" \
	'[.error.code, .error.retry_after_ms]'
touch "$DSEC_RUN/draining"
out=$(echo '{}' | dsec-admit)
json_is "$out" '["draining",true]' "draining" \
	'[.error.code, .error.retry_after_ms > 0]'
rm "$DSEC_RUN/draining"

out=$(echo '{"memory":1}' | dsec-admit)
json_is "$out" '"unknown_field"' "an unknown field" '.error.code'
out=$(echo '{"memory_limit_mb":8}' | dsec-admit)
json_is "$out" '"memory_too_small"' "too small for any sandbox" '.error.code'
out=$(printf '{"id":1}\n{"id":2,"memory_limit_mb":5000}\n{"id":3}\n' |
	dsec-admit | jq -c '[.id, .ok]' | tr '\n' ' ')
is "$out" '[1,true] [2,false] [3,true] ' "an answer each"

run dsec-admit --report
is "$status" 0 "the report"
json_is "$out" '{"memory_mb":1000,"cpu_cores":8,"sandboxes":5}' "the limit" \
	'.limit | {memory_mb, cpu_cores, sandboxes}'
json_is "$out" '{"memory_mb":0,"sandboxes":0}' "nothing is held" \
	'.held | {memory_mb, sandboxes}'
json_is "$out" '[true,true]' "the node" \
	'[(.node | length == 4), .disk_free_mb > 0]'

conf '{"memory_mib":1000}'
out=$(echo '{}' | dsec-admit)
json_is "$out" '"configuration"' "a key node.json does not have" '.error.code'
run dsec-admit --report
is "$status" 78 "... and no report either"
run dsec-admit word
is "$status" 64 "a stray word"

done_testing
