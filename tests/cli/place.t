#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dsec-place: on which node?
. "$(dirname "$0")/../tap.sh"
need_tools jq
tree_new

report() { # NODE HELD [MORE]
	jq -nc --arg n "$1" --argjson h "$2" --argjson more "${3:-null}" '
		def all($n): {memory_mb: (512 * $n), cpu_cores: $n,
			disk_mb: (100 * $n), pids: (1024 * $n), sandboxes: $n};
		{ok: true, node: $n, at_ms: 1000, backends: ["container"],
		 limit: all(10), held: all($h), memory_available_mb: 100000,
		 users: {}} + ($more // {})'
}

run sh -c "($(printf '%s; ' "echo '$(report a 5)'" "echo '$(report b 1)'") \
	echo '{\"id\":\"x\",\"at_ms\":1000}') | dsec-place --explain --seed 1"
is "$status" 0 "placed"
json_is "$out" '["x",true,"b",2,2,[0.2,0.6],{}]' "on the emptier node, and why" \
	'[.id, .ok, .node, .nodes, .fit, ([.candidates[].load] | sort), .left_out]'

# Ten requests at once on two empty nodes: five each.
{
	report a 0
	report b 0
	for i in 1 2 3 4 5 6 7 8 9 10; do echo "{\"id\":$i,\"at_ms\":1000}"; done
} >"$T/burst"
out=$(dsec-place --seed 1 <"$T/burst" | jq -r .node | sort | uniq -c | tr -s ' \n' ' ')
is "$out" " 5 a 5 b " "the overlay spreads a burst"
a=$(dsec-place --seed 5 <"$T/burst" | sha256sum)
is "$(dsec-place --seed 5 <"$T/burst" | sha256sum)" "$a" "the same by seed"

# A report that shows what was placed ends it; so does time.
nodes() { # the last count of placements in flight of node a
	{
		report a 0
		echo '{"id":1,"at_ms":1000}'
		cat
		echo "{\"op\":\"nodes\",\"at_ms\":$1}"
	} | dsec-place --seed 1 | jq -c 'select(.event == "node") |
		[.sandboxes, .in_flight]'
}
is "$(nodes 1100 </dev/null)" '[0,1]' "in flight"
is "$(report a 1 '{"at_ms":1500}' | nodes 1500)" '[1,1]' \
	"still, by a report of soon after"
is "$(report a 1 '{"at_ms":3000}' | nodes 3000)" '[1,0]' \
	"shown by a later one"
is "$(nodes 10999 </dev/null)$(nodes 11000 </dev/null)" '[0,1][0,0]' \
	"ten seconds at most"
p=$({ report a 0; echo '{"at_ms":1000}'; } | dsec-place --seed 1 |
	jq .placement)
out=$({ echo "{\"op\":\"done\",\"placement\":$p,\"end\":\"taken\",\"at_ms\":1100}"
	report a 1 '{"at_ms":1100}'; } | nodes 1100)
is "$out" '[1,0]' "taken, and reported at once"

json_is "$({ report a 0; echo '{"node_labels":{"zone":"b"},"at_ms":1000}'; } |
	dsec-place | jq -c .error)" '{"code":"unsupported","infra":false,
	"message":"none of 1 nodes fits: 1 label"}' "a label nobody has"
out=$({ report a 0 '{"labels":{"zone":"b"},"capabilities":["pool"]}'
	report b 0
	echo '{"node_labels":{"zone":"b"},"at_ms":1000}'
	echo '{"node_capabilities":["pool"],"at_ms":1000}'
	echo '{"node_capabilities":["gpu"],"at_ms":1000}'
	echo '{"backend":"vm","at_ms":1000}'
	echo '{"avoid":["a"],"at_ms":1000}'
	echo '{"among":["b","c"],"at_ms":1000}'
	echo '{"among":["c"],"at_ms":1000}'
	echo '{"at_ms":99000}'; } | dsec-place |
	jq -r '.node // .error.code' | tr '\n' ' ')
is "$out" "a a unsupported unsupported b b busy busy " \
	"labels, capabilities, backends, avoid, among, freshness"
out=$({ report a 0 '{"draining":true}'; echo '{"at_ms":1000}'; } | dsec-place)
is "$?" 1 "a refusal is a failure"
json_is "$out" '["draining",true,true]' "... that says when to come back" \
	'[.error.code, .error.infra, .error.retry_after_ms > 0]'
out=$({ report a 0 '{"isolation":"user","users":{"ann":2}}'
	echo '{"user":"bob","at_ms":1000}'
	echo '{"user":"ann","at_ms":1000}'; } | dsec-place |
	jq -r '.node // .error.code' | tr '\n' ' ')
is "$out" "busy a " "one user at a time"

out=$({ report 'a"b' 0; echo '{"nonsense":1}'; echo '{"ok":false,"x":1}'
	echo '{"op":"done"}'; echo '{"op":"what"}'; echo 'no json'; } |
	dsec-place | jq -r '.error.code // .x' | tr '\n' ' ')
is "$out" "bad_value unknown_field 1 missing_field bad_value bad_record " \
	"wrong lines"
report a 0 '{"limit":{"memory_mb":-1,"cpu_cores":1e300,"pids":"x"},"users":[]}' |
	dsec-place
ok $? "numbers that are none harm nobody"
run dsec-place word
is "$status" 64 "a stray word"
run dsec-place --choices 17
is "$status" 64 "too many choices"

done_testing
