#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # status, out, err come from run
#
# A node and a control whose system calls fail while they are asked
# (serve_inject.py): typed answers, and when it is over all is served as before,
# without a restart.  INJECT: the groups of cases; FILES: how many descriptors the
# daemons may have.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq python3 strace setpriv prlimit
tree_new

here=$(dirname "$0")
D=$T/serve
node='' control=''
finish() {
	for p in "$control" "$node"; do kill "$p"; done 2>/dev/null
	wait
	tree_end "$1"
}
trap 'finish $?' EXIT

serve() { # ROLE
	: >"$T/ready"
	setpriv --bounding-set -sys_resource --inh-caps -sys_resource \
		prlimit --nofile="${FILES:-4096}" \
		"$BIN/dsec-serve" "$1" "$D" --ready-fd 9 9>"$T/ready" 2>>"$T/log-$1" &
	served=$!
	wait_for 30 test -s "$T/ready" || diag "$(tail "$T/log-$1")"
	read -r _ address <"$T/ready"
}
conf() { # JQ-FILTER [ARG...]
	filter=$1
	shift
	jq "$@" "$filter" "$D/serve.json" >"$D/.new" && mv "$D/.new" "$D/serve.json"
}

dsec-serve init "$D" --name one >/dev/null
conf '.node.listen = ["127.0.0.1:0"] | .node.metrics = $m' \
	--arg m "$(own_address):9101"
serve node # its lock, root and audit log stay
kill "$served"
wait "$served"
leak_start
serve node
node=$served one=$address
conf '.control = {listen:["127.0.0.1:0"], nodes:[{name:"one",address:$a}],
	metrics:$m}' --arg a "$one" --arg m "$(own_address):9102"
serve control
control=$served to=$address

# shellcheck disable=SC2086 # words
PYTHONDONTWRITEBYTECODE=1 timeout 300 python3 "$here/serve_inject.py" "$D" \
	"$one" "$to" "$node" "$control" \
	${INJECT:-keeper audit worker programs control} >"$T/tap"
status=$?
cat "$T/tap"
tap_n=$(grep -cE '^(not )?ok ' "$T/tap")
tap_bad=$(grep -c '^not ok ' "$T/tap")
ok $status "all of it went to its end" ||
	diag "$(tail -n 30 "$T/log-node" "$T/log-control")"
kill "$control" "$node"
wait "$control" "$node"
run dsec-serve audit verify "$DSEC_LIB/serve/audit.jsonl"
is "$status" 0 "the audit log is whole" || diag "$out"
leak_check
done_testing
