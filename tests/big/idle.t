#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A thousand idle sandboxes: made, listed, used, destroyed, and nothing of them
# is left.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
N=${IDLE_SANDBOXES:-1000}
LEAK_S=30
tree_new
echo '{"cpu_overcommit": 64, "memory_overcommit": 16}' \
	>"$DSEC_CONFIG/node.json"
leak_start

jq -nc --argjson n "$N" 'range($n) | {id: ., memory_limit_mb: 16, task: "idle",
	cpu_cores_limit: 0.01, pids_limit: 16, hostname: "box-\(.)",
	labels: {half: (if . % 2 == 0 then "even" else "odd" end)}}' \
	>"$T/specs.jsonl"

t=$(now_s)
dsec-run --jobs 8 <"$T/specs.jsonl" >"$T/running.jsonl" 2>"$T/err"
is $? 0 "$N are made"
diag "$(head -n 5 "$T/err")" "in $(($(now_s) - t)) s"
is "$(jq -s 'map(select(.ok and .state == "running")) | length' \
	"$T/running.jsonl")" "$N" "each answers that it runs"
is "$(jq -r .sandbox "$T/running.jsonl" | sort -u | wc -l)" "$N" \
	"no id twice"
is "$(jq -r .id "$T/running.jsonl" | sort -n | tr '\n' ' ')" \
	"$(seq 0 $((N - 1)) | tr '\n' ' ')" "one record for each request"
is "$(dsec-ps --task idle | jq -s 'map(select(.state == "running")) | length')" \
	"$N" "dsec-ps lists them"

# Every hundredth works, among all the others.
jq -c 'select(.id % 100 == 7)' "$T/running.jsonl" >"$T/some"
# shellcheck disable=SC2016 # expanded inside
dsec-exec --cmd 'echo $(hostname) $(ls /proc | grep -c "^[0-9]")' <"$T/some" \
	>"$T/worked"
is $? 0 "some are used"
is "$(jq -r '"box-\(.id) \(.stdout | split(" ")[0])"' "$T/worked" |
	awk '$1 != $2' | wc -l)" 0 "each answers for itself"

t=$(now_s)
dsec-pause --stop --grace 0 --label half=even >"$T/even"
is $? 0 "half of them are stopped by label"
is "$(jq -s 'map(select(.ok)) | length' "$T/even")" "$((N / 2))" \
	"a record for each"
jq -r 'select(.id % 2 == 1) | .sandbox' "$T/running.jsonl" |
	xargs dsec-pause --stop --grace 0 >"$T/odd"
is $? 0 "the others by id"
diag "in $(($(now_s) - t)) s"
# What is answered at once is finished behind.
# shellcheck disable=SC2317 # by wait_for
none_left() {
	[ -z "$(dsec-ps)" ]
}
is "$(dsec-ps | jq -r 'select(.state != "stopped") | .sandbox')" "" "none runs"
wait_for 30 none_left
ok $? "and soon none is listed"
leak_check "nothing of them is left"

done_testing
