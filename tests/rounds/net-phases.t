#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A phase of a whole task: every sandbox is in it afterwards.
#   MANY=N    sandboxes of the task (1000)
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/net.sh
. "$(dirname "$0")/../sys/net.sh"
NET_DIR=$(dirname "$0")/../sys
net_enter
need_tools jq curl
tree_new
trap 'net_end; tree_end $?' EXIT
net_world
many=${MANY:-1000}

echo '{"memory_overcommit":64,"cpu_overcommit":64,"memory_reserve_mb":64,
	"max_sandboxes":20000}' >"$DSEC_CONFIG/node.json"
now_ms() {
	awk '{ printf "%d", $1 * 1000 }' /proc/uptime
}

jq -nc --argjson n "$many" 'range($n) | {task: "t", memory_limit_mb: 32,
	cpu_cores_limit: 0.01, pids_limit: 32, phase: "setup",
	phases: {setup: {allow: [{domain: "allowed.test"}]},
		agent: {allow: [{domain: "other.test", ports: [8443]}]}, grade: {}}}' >"$T/requests"
began=$(now_ms)
timeout 1200 dsec-run --jobs 8 <"$T/requests" >"$T/made" 2>"$T/.err"
is "$(jq -r 'select(.ok) | .network' "$T/made" | grep -c names)" "$many" \
	"$many sandboxes, $((($(now_ms) - began) / many)) ms each" ||
	diag "$(grep -m 1 false "$T/made")"
for phase in agent setup agent grade; do
	began=$(now_ms)
	timeout 600 dsec-net --task t --phase $phase >"$T/out"
	is "$? $(jq -r 'select(.ok) | .phase' "$T/out" | grep -c $phase)" "0 $many" \
		"phase $phase: $(($(now_ms) - began)) ms for all"
done
hash=$(jq -r .hash "$T/out" | sort -u)
is "$(for id in $(jq -r .sandbox "$T/made"); do
	echo "$DSEC_LIB/sb/$id/spec.json"
done | xargs jq -r '"\(.phase) \(.policy.hash)"' | sort | uniq -c | sed 's/^ *//')" \
	"$many grade $hash" "all is stored"
is "$(timeout 600 dsec-net --task t --show | jq -r '"\(.phase) \(.in_force)"' | sort | uniq -c | sed 's/^ *//')" \
	"$many grade true" "and in force"
began=$(now_ms)
timeout 1200 dsec-pause --stop --task t >"$T/out"
is "$(grep -c '"outcome":"killed"' "$T/out")" "$many" "all end, $((($(now_ms) - began) / many)) ms each"
done_testing
