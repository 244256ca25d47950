#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Field report 93: 1,100 sandboxes with a network on one node, each with an address
# of its own, one in twenty tried; what ends gives its address back. NET_SANDBOXES
# says how many, NET_RULES which rules they have.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/net.sh
. "$(dirname "$0")/../sys/net.sh"
NET_DIR=$(dirname "$0")/../sys
net_enter
need_tools jq curl ip nft
N=${NET_SANDBOXES:-1100}
RULES=${NET_RULES:-'{"allow":[{"cidr":"198.51.100.0/24","ports":[80]}]}'}
LEAK_S=30
tree_new
trap 'net_end; tree_end $?' EXIT
echo '{"cpu_overcommit": 64, "memory_overcommit": 16}' \
	>"$DSEC_CONFIG/node.json"
net_world
run dsec-net --uplink up
is "$status" 0 "an uplink" || diag "$out $err"
dsec-run --rm --network "$RULES" -- true >"$T/null" # what a node prepares once
leak_start

specs() { # COUNT TASK
	jq -nc --argjson n "$1" --arg task "$2" --argjson rules "$RULES" \
		'range($n) | {id: ., memory_limit_mb: 16, task: $task,
		cpu_cores_limit: 0.1, pids_limit: 16, network_rules: $rules}'
}
# The links in the transit, and the addresses that its rules know.
links() {
	nsenter --net="$DSEC_RUN/net/transit" ip -br link | grep -c '^ds[0-9]'
}
addresses() {
	nsenter --net="$DSEC_RUN/net/transit" nft -j list set inet dsec bind4 |
		jq -r '.nftables[].set.elem // [] | .[] | .concat[2]' | sort -u | wc -l
}

t=$(now_s)
specs "$N" many | dsec-run --jobs 8 >"$T/running.jsonl" 2>"$T/err"
is $? 0 "$N are made" || diag "$(head -n 5 "$T/err")"
diag "in $(($(now_s) - t)) s"
is "$(jq -s 'map(select(.ok and .network != "none")) | length' "$T/running.jsonl")" \
	"$N" "each with a network" ||
	diag "$(jq -c 'select(.ok | not) | .error' "$T/running.jsonl" | head -n 3)"
routed=$(jq -s 'map(select(.network == "routed")) | length' "$T/running.jsonl")
is "$(links) $(addresses)" "$routed $routed" \
	"$routed links, and as many addresses"

t=$(now_s)
jq -c 'select(.id % 20 == 7)' "$T/running.jsonl" >"$T/some"
dsec-exec --jobs 8 --cmd "curl -s -m 20 -o /dev/null -w '%{http_code}' \
	${NET_URL:-http://198.51.100.10/x}" <"$T/some" >"$T/worked"
is "$(jq -r .stdout "$T/worked" | sort | uniq -c | tr -s ' ')" \
	" $(wc -l <"$T/some") 200" "one in twenty reaches its server"
diag "in $(($(now_s) - t)) s"

t=$(now_s)
dsec-pause --stop --grace 0 --task many >"$T/stopped"
is $? 0 "all are stopped"
# shellcheck disable=SC2317 # by wait_for
none_left() {
	[ -z "$(dsec-ps)" ] && [ "$(links)" = 0 ]
}
wait_for 60 none_left
ok $? "and leave no link" || diag "$(links) links"
diag "in $(($(now_s) - t)) s"
is "$(addresses)" 0 "nor an address"

# Their addresses are used again: made and removed, 50 at a time.
n=0 bad=0
while [ $n -lt "$((N < 300 ? N : 300))" ]; do
	specs 50 again | dsec-run --jobs 8 >"$T/again" 2>&1 || bad=$((bad + 1))
	dsec-pause --stop --grace 0 --task again >"$T/null" || bad=$((bad + 1))
	n=$((n + 50))
done
is "$bad" 0 "$n more, one after the other"
wait_for 60 none_left
ok $? "leave nothing either"
leak_check "nothing of them is left"
run dsec-net --uplink down
is "$status" 0 "the uplink is taken down" || diag "$out $err"
done_testing
