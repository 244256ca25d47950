#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python SDK over TLS: the tests and examples of sdk-local.t at a node of
# dsec-serve and through a control; who is revoked meanwhile (field report 101),
# bursts (field report 106), a node that is lost (field report 107), and daemons
# that are killed.  SDK_TESTS picks some of the tests.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
tree_new
# shellcheck source=tests/sys/sdk.sh
. "$(dirname "$0")/sdk.sh"
sdk_need
echo '{"cpu_overcommit":500}' >"$DSEC_CONFIG/node.json"
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
sdk_image
sdk_init

# A second node, in a tree of its own, that is to be lost.
n2=''
as_n2="env DSEC_RUN=$T/n2/run DSEC_LIB=$T/n2/lib DSEC_CONFIG=$T/n2
	DSEC_CGROUP=$DSEC_CGROUP-2"
n2_init() {
	mkdir -p "$T/n2/run" "$T/n2/lib"
	chmod 700 "$T/n2/run" "$T/n2/lib"
	dsec-serve issue "$SDK_SERVE" --node n2 --host 127.0.0.1 \
		--out "$T/n2/node" >"$T/null"
	cp "$SDK_SERVE/ca.pem" "$SDK_SERVE/crl.pem" "$T/n2"
	jq '.name = "n2" | del(.control) | .node.listen = ["127.0.0.1:0"]' \
		"$SDK_SERVE/serve.json" >"$T/n2/serve.json"
	n2_start
	# It is to come back where it was.
	sed "s/127.0.0.1:0/$n2_address/" "$T/n2/serve.json" >"$T/j"
	mv "$T/j" "$T/n2/serve.json"
	jq --arg a "$n2_address" '.control.nodes += [{name:"n2",address:$a}]' \
		"$SDK_SERVE/serve.json" >"$T/j"
	mv "$T/j" "$SDK_SERVE/serve.json"
}
n2_start() {
	: >"$T/ready-n2"
	# shellcheck disable=SC2086 # words
	$as_n2 dsec-serve node "$T/n2" --ready-fd 9 9>"$T/ready-n2" \
		>>"$T/n2.log" 2>&1 </dev/null &
	n2=$!
	wait_for 30 grep -q ready "$T/ready-n2"
	ok $? "a second node serves" || diag "$(cat "$T/n2.log")"
	read -r _ n2_address <"$T/ready-n2"
}
n2_stop() {
	[ -n "$n2" ] || return 0
	kill "$n2"
	wait "$n2"
	n2=''
}
n2_gone() {
	find /sys/fs/cgroup -depth -type d -path "*/$DSEC_CGROUP-2*" \
		-exec rmdir {} + 2>"$T/null"
	[ -z "$(find /sys/fs/cgroup -type d -path "*/$DSEC_CGROUP-2*" 2>"$T/null")" ]
}
n2_end() {
	n2_stop
	# shellcheck disable=SC2086 # words
	$as_n2 timeout 20 dsec-pause --stop --grace 0 --project root \
		</dev/null >"$T/null" 2>&1
	wait_for 10 n2_gone || diag "groups of the second node are left"
	awk -v a="$T/n2/" 'index($5, a) == 1 { print $5 }' /proc/self/mountinfo |
		while read -r mount; do umount "$mount"; done
}
# shellcheck disable=SC2317 # by the trap
end() {
	sdk_stop_all
	n2_end
	tree_end "$1"
}
trap 'end $?' EXIT

sdk_warm
sdk_start node # its lock, root and audit log stay
sdk_stop node
leak_start
sdk_start node
n2_init
sdk_start control
sdk_live 2

# The SDK makes one there: not on the node of this tree.
sdk_as control
SDK_LOST=$(timeout 60 python3 - "$(dsec-admit --report </dev/null | jq -r .node)" <<-'END'
	import asyncio, sys, dsec
	async def main():
	    async with dsec.DSecClient() as c:
	        sb = await c.run_sandbox(dsec.DSecRunArgs(
	            memory_limit_mb=32, extra={"avoid": [sys.argv[1]]}))
	        await sb.files.write("/tmp/kept", "kept")
	        print(sb.id)
	asyncio.run(main())
	END
)
export SDK_LOST
isnt "$SDK_LOST" "" "a sandbox on the second node"
n2_stop
lost_at=$(now_s)
sdk_tests control live_lost.Lost.test_away

if [ -n "${SDK_TESTS-}" ]; then
	# shellcheck disable=SC2086 # a list of words
	sdk_tests node $SDK_TESTS
	# shellcheck disable=SC2086
	sdk_tests control $SDK_TESTS
else
	sdk_tests node live live_kinds.Kinds live_copies live_denied
fi

is_lost() {
	DSEC_SERVER='' dsec-serve client nodes </dev/null 2>"$T/null" |
		grep -q '"state":"lost"'
}
sdk_as control
wait_for 150 is_lost
ok $? "after two minutes a node is lost"
took=$(($(now_s) - lost_at))
ok $((took < 118)) "and not before ($took s)"
sdk_tests control live_lost.Lost.test_lost
# A node that is away may have what is asked of all: only now is that known.
if [ -z "${SDK_TESTS-}" ]; then
	sdk_tests control live.Streams live.Life live.Ports live_kinds.Kinds \
		live_copies live_denied
	sdk_examples control
fi
n2_start
sdk_live 2
sdk_tests control live_lost.Lost.test_back
[ -n "${SDK_TESTS-}" ] ||
	sdk_tests control live_burst live_copies.Copies.test_snapshot
n2_end
sdk_stop control
jq 'del(.control.nodes[] | select(.name == "n2"))' "$SDK_SERVE/serve.json" \
	>"$T/j"
mv "$T/j" "$SDK_SERVE/serve.json"

# Calls while daemons are killed; it starts controls of its own.
SDK_NODE_LOG=$T/node.log
export SDK_NODE_LOG
sdk_tests control "${SDK_CHAOS-live_chaos}"
is "$(dsec-ps </dev/null)" "" "no sandbox is left"
sdk_stop node
leak_check
if [ -z "${SDK_TESTS-}" ]; then
	sdk_pool
	sdk_start node
	sdk_tests node live_kinds.Quota
fi
done_testing
