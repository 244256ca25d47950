#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The same things very often: what happens once in a thousand times.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
N=${CYCLES:-1}
LEAK_S=30
tree_new
echo '{"cpu_overcommit": 64, "memory_overcommit": 16}' \
	>"$DSEC_CONFIG/node.json"
timeout 30 dsec-run --rm -- true # what a node prepares once
leak_start

# --- field report 16: 3,000 short commands, 50 at once
s=$(echo '{"memory_limit_mb":256}' | dsec-run | jq -r .sandbox)
jq -nc --arg s "$s" --argjson n $((3000 * N)) 'range($n) |
	{id: ., sandbox: $s, command: ["/bin/true"]}' |
	timeout 900 dsec-exec --jobs 50 >"$T/short"
is "$? $(jq -r '"\(.outcome) \(.exit_code)"' "$T/short" | sort | uniq -c |
	tr -s ' ')" "0  $((3000 * N)) exited 0" \
	"field report 16: each answers, each with its status"
# shellcheck disable=SC2016 # expanded inside
run timeout 60 dsec-exec "$s" -- sh -c \
	'for i in $(seq 500); do (sleep 0.01 &) ; done; sleep 1
	cat /proc/[0-9]*/stat 2>/dev/null | grep -c ") Z "'
is "$out" 0 "field report 16: no zombie is left"

# --- field report 48: pause and resume without a gap, ten sandboxes
jq -nc 'range(10) | {id: ., memory_limit_mb: 64, task: "storm"}' | dsec-run \
	>"$T/ten"
jq -r .sandbox "$T/ten" | awk -v n=$((60 * N)) '{ id[NR] = $1 }
	END { for (i = 0; i < n; i++) for (k = 1; k <= NR; k++) {
		printf "{\"sandbox\":\"%s\",\"op\":\"pause\"}\n", id[k]
		printf "{\"sandbox\":\"%s\",\"op\":\"resume\"}\n", id[k] } }' \
	>"$T/storm"
timeout 600 dsec-pause --jobs 20 <"$T/storm" >"$T/storm.out" &
pid=$!
while kill -0 $pid 2>/dev/null; do
	jq -c '{sandbox, command: ["/bin/true"]}' "$T/ten" |
		timeout 120 dsec-exec >>"$T/between"
done
wait $pid
is "$(jq -r 'if .ok then "ok" else .error.code end' "$T/storm.out" |
	sort | uniq -c | grep -v ' busy' | tr -s ' ')" " $((1200 * N)) ok" \
	"field report 48: every one is done"
is "$(jq -r .exit_code "$T/between" | sort -u)" 0 \
	"field report 48: and every command in between"
timeout 60 dsec-pause --resume --task storm >/dev/null
is "$(dsec-ps --task storm | jq -r .state | sort -u)" running \
	"field report 48: none is stuck"

# --- field reports 60 and 69: made and destroyed with one name, without a gap
bad=0
for _ in $(seq $((200 * N))); do
	echo "{\"name\":\"again\",\"memory_limit_mb\":64,
		\"command\":\"head -c 20M /dev/zero | tail\"}" | tr -d '\n' |
		timeout 30 dsec-run >"$T/made" || bad=$((bad + 1))
	timeout 30 dsec-pause --stop --grace 0 again >"$T/gone" ||
		bad=$((bad + 1))
done
is "$bad" 0 "field report 69: $((200 * N)) times the same name"
timeout 60 dsec-pause --stop --grace 0 --project root >/dev/null
is "$(dsec-ps | jq -r 'select(.state != "stopped") | .sandbox')" "" \
	"nothing runs"
leak_check "field report 60: nothing of them is left"

done_testing
