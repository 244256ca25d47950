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

json_is "$out" '[1,["container"],"none",[],{},false,false,0,{}]' "what it is" \
	'[.v, .backends, .isolation, .reserved_for, .labels, .draining,
	.pressed, .tasks_count, .tasks]'
json_is "$out" 'true' "what is measured" \
	'.memory_total_mb >= .memory_available_mb and .processes > 0 and
	.processes_max > .processes and .swap_mb >= .swap_free_mb and
	(.node as $n | .name | startswith($n)) and .made_ms > 0'

conf '{"labels":{"zone":"a"},"capabilities":["gpu"],"isolation":"user",
	"reserved_for":["ann"]}'
run dsec-admit --report
json_is "$out" '[{"zone":"a"},true,"user",["ann"]]' "what node.json says" \
	'[.labels, (.capabilities | index("gpu") != null), .isolation,
	.reserved_for]'
out=$(echo '{"user":"bob"}' | dsec-admit)
json_is "$out" '["isolation",true]' "kept for another" \
	'[.error.code, .error.infra]'
out=$(echo '{"user":"ann"}' | dsec-admit)
is "$?" 0 "... who may"

# A claim of a sandbox counts for its task, project and user.
conf '{}'
id=$(dsec-admit --report | jq -r .node)aaaabbbbccccdddd
mkdir -p "$DSEC_RUN/sb/$id"
echo '{"sandbox":"'"$id"'","task":"t1","project":"root/rl","user":"ann",
	"memory_limit_mb":100,"cpu_cores_limit":1,"pids_limit":10,"slot":28672}' \
	>"$DSEC_RUN/sb/$id/claim.json"
rm "$DSEC_RUN/ledger"
run dsec-admit --report
json_is "$out" '{"running":1}' "running, for all that is known" .states
out=$({ echo '{"op":"report"}'
	echo '{"state":"paused","level":"disk"}' >"$DSEC_RUN/sb/$id/state.json"
	echo '{"op":"report"}'; } | dsec-admit | tail -n 1)
json_is "$out" '{"paused":1}' "paused" .states
json_is "$out" '[100,{"container":1},{"t1":1},{"root/rl":1},{"ann":1},1]' \
	"who is here" \
	'[.held.memory_mb, .sandboxes, .tasks, .projects, .users, .users_count]'
conf '{"isolation":"user"}'
out=$(printf '{"user":"ann"}\n{"user":"bob"}\n{}\n' | dsec-admit |
	jq -r '.error.code // "yes"' | tr '\n' ' ')
is "$out" "yes isolation isolation " "one user at a time"
rm -r "$DSEC_RUN/sb/$id" "$DSEC_RUN/ledger"

# Of many, some are looked at again with each report, and all in a few.
node=${id%aaaabbbbccccdddd}
awk -v sb="$DSEC_RUN/sb/$node" 'BEGIN { for (i = 0; i < 300; i++) {
	id = sprintf("aaaaaaaaaaaaa%03d", i)
	gsub("0", "q", id); gsub("1", "r", id)
	gsub("8", "s", id); gsub("9", "t", id)
	print sb id
} }' >"$T/dirs"
xargs mkdir <"$T/dirs"
states() { # STATE
	while read -r d; do
		echo "{\"state\":\"$1\"}" >"$d/state.new"
		mv "$d/state.new" "$d/state.json"
	done <"$T/dirs"
}
while read -r d; do
	echo '{"sandbox":"'"${d##*/}"'","project":"root"}' >"$d/claim.json"
done <"$T/dirs"
states running
mkfifo "$T/in"
dsec-admit <"$T/in" >"$T/out" &
exec 8>"$T/in"
reported() { [ "$(wc -l <"$T/out")" = "$1" ]; }
report() { # NUMBER: its states
	echo '{"op":"report"}' >&8
	wait_for 10 reported "$1"
	sed -n "$1p" "$T/out"
}
json_is "$(report 1)" '{"running":300}' "each is looked at when it is new" .states
states paused
json_is "$(report 2)" true "a part of them again" \
	'.states | .paused > 0 and .paused < 250'
report 3 >/dev/null
json_is "$(report 4)" '{"paused":300}' "all of them after a few" .states
exec 8>&-
wait
xargs rm -r <"$T/dirs"
rm "$DSEC_RUN/ledger"

out=$(printf '%s\n' '{"op":"drain"}' '{}' '{"op":"report"}' \
	'{"op":"undrain"}' '{}' '{"op":"report"}' '{"op":"dance"}' | dsec-admit |
	jq -c '[.draining, .error.code]' | tr '\n' ' ')
is "$out" '[true,null] [null,"draining"] [true,null] [false,null] [null,null] [false,null] [null,"bad_value"] ' \
	"drained and back, in one run"
run dsec-admit --drain
json_is "$out" '{"ok":true,"draining":true}' "by flag"
out=$(echo '{}' | dsec-admit)
json_is "$out" '"draining"' "... for all" '.error.code'
run dsec-admit --undrain
out=$(echo '{}' | dsec-admit)
is "$?" 0 "and back"

conf '{"memory_mib":1000}'
out=$(echo '{}' | dsec-admit)
json_is "$out" '"configuration"' "a key node.json does not have" '.error.code'
run dsec-admit --report
is "$status" 78 "... and no report either"
run dsec-admit word
is "$status" 64 "a stray word"

done_testing
