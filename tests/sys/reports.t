#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Faults of other systems that no other test is about: who dies of memory, and
# what clocks do over a pause.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
tree_new
leak_start

box() { # FIELDS
	echo "$1" | timeout 30 dsec-run | jq -r .sandbox
}

# --- field report 58: the sandbox's own processes die of memory, not pid 1
s=$(box '{"memory_limit_mb":96}')
# shellcheck disable=SC2016 # expanded inside
run timeout 30 dsec-exec "$s" -- sh -c '(sh -c "cat /proc/self/oom_score_adj")'
is "$status $out" "0 0" "field report 58: a grandchild has no protection"
if sh -c 'echo -900 >/proc/self/oom_score_adj' 2>/dev/null; then
	box=$(timeout 30 dsec-ps "$s" | jq -r .supervisor_pid)
	is "$(cat "/proc/$box/oom_score_adj")" -900 \
		"field report 58: its supervisor has"
else
	skip "field report 58: its supervisor has" \
		"this kernel lets nobody have it"
fi
for i in 1 2 3 4 5; do
	echo "{\"id\":$i,\"sandbox\":\"$s\",\"command\":\"tail /dev/zero\"}"
done | timeout 60 dsec-exec --jobs 5 >"$T/oom"
is "$(jq -r .outcome "$T/oom" | sort | uniq -c | tr -s ' ')" " 5 oom" \
	"field report 58: five die of it, each says so"
run timeout 30 dsec-exec "$s" -- echo alive
is "$out" alive "field report 58: pid 1 does not"

# --- field report 65: clocks over a pause
s2=$(box '{"memory_limit_mb":64}')
# shellcheck disable=SC2016 # expanded inside
jq -nc --arg s "$s2" '{sandbox: $s, timeout_ms: 4000,
	command: "touch /tmp/begun; sleep 2; date +%s"}' |
	timeout 60 dsec-exec >"$T/slept" &
pid=$!
# shellcheck disable=SC2317 # by wait_for
begun() {
	timeout 20 dsec-exec "$s2" -- test -e /tmp/begun
}
wait_for 20 begun
ok $? "a command is half done"
run timeout 30 dsec-pause --freeze "$s2"
is "$(field "$out" .state)" paused "and paused"
sleep 5 # longer than its timeout: time is what this is about
run timeout 30 dsec-pause --resume "$s2"
wait $pid
is "$(jq -r '"\(.outcome) \(.exit_code)"' "$T/slept")" "exited 0" \
	"field report 65: a timeout stands still while paused"
inside=$(timeout 30 dsec-exec "$s2" -- date +%s)
outside=$(date +%s)
[ $((outside - inside)) -le 1 ] && [ $((outside - inside)) -ge -1 ]
ok $? "field report 65: its wall clock is the host's after a pause"

timeout 30 dsec-pause --stop --grace 0 "$s" "$s2" >/dev/null
leak_check "nothing of them is left"

done_testing
