#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # status, out, err come from run
#
# dsec --server as people and scripts use it: what the local programs do with
# records, words and signals.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
tree_new

D=$T/serve
node=''
finish() {
	[ -z "$node" ] || kill "$node" 2>"$T/null"
	wait
	tree_end "$1"
}
trap 'finish $?' EXIT

dsec-serve init "$D" --name one >"$T/null"
jq '.node.listen = ["127.0.0.1:0"]' "$D/serve.json" >"$T/j" &&
	cp "$T/j" "$D/serve.json"
: >"$T/ready"
dsec-serve node "$D" --ready-fd 9 9>"$T/ready" 2>"$T/log" &
node=$!
wait_for 30 test -s "$T/ready" || diag "$(cat "$T/log")"
read -r _ H <"$T/ready"
export DSEC_CLIENT="$D/client.json"

remote() {
	timeout 60 dsec --server "$H" "$@"
}

# --- records of other programs -------------------------------------------------

remote run --name p1 --memory 64M -d >"$T/p1"
p1=$(jq -r .sandbox "$T/p1")
like "$p1" '^[a-z2-7]{20}$' "a sandbox is made"
is "$(remote pause <"$T/p1" | jq -r '"\(.ok) \(.sandbox) \(.in.name)"')" \
	"true $p1 p1" "its record is a request of the next program"
run sh -c "jq -c '. + {id: 7, ok: false, error: {code: \"count\"}}' '$T/p1' |
	timeout 60 dsec --server $H exec"
json_is "$out" '[7,false,"count"]' "one that failed is passed on" \
	'[.id, .ok, .error.code]'
is "$status" 75 "and counts as failed"
is "$(printf '%s\n' '{"id":1,"event":"started","exec":"e1"}' \
	"{\"sandbox\":\"$p1\",\"command\":[\"echo\",\"hi\"]}" |
	remote exec | jq -r '.stdout // empty')" hi "one that is not the last is none"

done_testing
