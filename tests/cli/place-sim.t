#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dsec-place --simulate: balance, refusals, losses, traces.
. "$(dirname "$0")/../tap.sh"
need_tools jq
tree_new

sim() {
	run dsec-place --simulate "$@"
}
of() { # POLICY FILTER
	printf '%s\n' "$out" | jq -c ".results[] | select(.policy == \"$1\") | $2"
}

# Field report 97: four nodes, reports every ten seconds, 400 creations in a
# second: the herd.
sim --nodes 4 --interval 10 --requests 400 --rate 400
is "$status" 0 "a herd"
is "$(of overlay '.max_mean <= 1.2')" true "is spread by the overlay"
is "$(of blind '.max_mean > 1.5')" true "... and is one without"
is "$(of overlay '[.placed, .refused, .decisions]')" '[400,0,400]' "all placed"
first=$out
sim --nodes 4 --interval 10 --requests 400 --rate 400
is "$(printf '%s' "$out" | jq -c 'del(.results[] | .cpu_s, .per_second)')" \
	"$(printf '%s' "$first" | jq -c 'del(.results[] | .cpu_s, .per_second)')" \
	"the same again"

sim --nodes 160 --requests 32000 --burst 32000 --placers 4 \
	--policies overlay,random,least
is "$(printf '%s' "$out" | jq -c '[.results[].policy]')" \
	'["overlay","random","least"]' "those that were asked for"
is "$(of overlay '.burst_max_mean <= 1.25')" true "a burst of 32,000"
is "$(of overlay '.burst_max_mean')" "$(printf '%s\n' "$out" |
	jq '[.results[] | select(.policy != "least").burst_max_mean] | min')" \
	"better than random"
is "$(of random '(.burst_max_mean / .theory_max_mean - 1 | fabs) < 0.1')" true \
	"random is what theory says"

# Nodes that refuse everything and do not say so: placed elsewhere.
sim --nodes 50 --requests 20000 --rate 2000 --hidden 20 --policies overlay
is "$(of overlay '.retried > 0 and .refused < 20 and
	.placed + .refused == 20000')" true "refusals are placed elsewhere"
# Nodes that die and come back empty.
sim --nodes 20 --requests 20000 --rate 1000 --lose 3 --down 5 --policies overlay
is "$(of overlay '.lost > 0 and .placed + .refused == 20000 and .refused == 0')" \
	true "nodes that die"
# More than there is room for.
sim --nodes 5 --requests 5000 --rate 1000 --node-memory 64G --node-cpu 64 \
	--policies overlay
is "$(of overlay '.refused > 0 and .node_refused == 0 and .mean_load > 0.9')" \
	true "what has no room is refused before a node has to"

# A trace.
i=0
while [ $i -lt 100 ]; do
	echo "{\"at_ms\":$((i * 10)),\"life_ms\":60000,\"memory_limit_mb\":1024}"
	i=$((i + 1))
done >"$T/trace"
sim --nodes 10 --trace "$T/trace" --svg "$T/plot.svg"
is "$(of overlay '[.placed, .max_mean_end <= 1.2]')" '[100,true]' "a trace"
like "$(head -n 1 "$T/plot.svg")" '^<svg xmlns=' "drawn"
is "$(tail -n 1 "$T/plot.svg")" '</svg>' "... to the end"
if command -v xmllint >/dev/null; then
	xmllint --noout "$T/plot.svg"
	ok $? "... as XML"
else
	skip "... as XML" "needs xmllint"
fi
echo '{"at_ms":5,"life_ms":1}' >>"$T/trace"
sim --trace "$T/trace"
is "$status" 65 "a trace that goes back"
like "$err" "line 101: at_ms goes back" "... with its line"
echo '{"at_ms":5}' >"$T/trace"
sim --trace "$T/trace"
is "$status" 65 "a trace without lives"
: >"$T/trace"
sim --trace "$T/trace"
is "$status" 65 "an empty one"
sim --policies guess
is "$status" 64 "no such policy"
sim --requests 10 --burst 11
is "$status" 64 "a burst of more than all"
sim --requests 10 --rate 0.001
is "$status" 0 "long ones"

done_testing
