#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two controls and four nodes, each in a network namespace of its own: the
# demonstration of share/demo, and that nothing of it stays, however it ends; then
# calls through both controls while everything that runs there is killed, cut off
# or upgraded (serve_chaos.py).  CHAOS_CALLS: how many; CHAOS_TESTS: others;
# CLUSTER_CREATES: of the demonstration, 0: without it.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools ip nsenter setpriv
unshare -n ip link add to-a type veth peer name to-b 2>/dev/null ||
	plan_skip_all "needs network namespaces and veth"
tree_new
# shellcheck source=tests/sys/sdk.sh
. "$(dirname "$0")/sdk.sh"
leak_start
TMPDIR=$T
demo=$PWD/share/demo
sdk_need
PYTHONPATH=$sdk:$demo:$PWD/tests/sys
export TMPDIR PYTHONPATH

gone() { # nothing of a cluster is there
	[ -z "$(tree_pids; tree_cgroups | grep cluster; tree_mounts
		find "$DSEC_RUN" "$T" -maxdepth 1 -name '*cluster.*')" ]
}

# --- the demonstration --------------------------------------------------------

begun() {
	[ "$(find "$DSEC_RUN"/cluster.*/n1/sb -mindepth 1 2>/dev/null |
		head -n 5 | wc -l)" -gt 4 ]
}

demonstration() {
	# Field report 97: nobody is overrun, and what is refused is made elsewhere.
	run timeout 200 "$demo/cluster.py" --creates "${CLUSTER_CREATES:-60}"
	is "$status" 0 "the demonstration ends well" || diag "$out" "$err"
	is "$(printf '%s\n' "$out" | grep -c '^  ok: ')" 7 "all it promises is true"
	unlike "$out" 'NOT OK' "none of it is not" || diag "$out"
	wait_for 10 gone
	ok $? "nothing of it is left"
	run timeout 60 "$demo/cluster.py" --nodes 2 --controls 1 -- \
		dsec --server 10.213.0.11:7443 run -- echo hello
	like "$out" hello "a command in a cluster" || diag "$out" "$err"

	# Ctrl-C, in the middle of a burst.
	"$demo/cluster.py" --nodes 2 --creates 2000 >"$T/out" 2>&1 &
	pid=$!
	wait_for 60 begun
	ok $? "a burst has begun" || diag "$(cat "$T/out")"
	kill -INT "$pid"
	wait "$pid"
	is $? 130 "it is ended by a signal" || diag "$(cat "$T/out")"
	wait_for 10 gone
	ok $? "and nothing of it is left"
}

[ "${CLUSTER_CREATES:-60}" -eq 0 ] || demonstration

# --- chaos, and faults ---------------------------------------------------------

sdk_where=cluster
# shellcheck disable=SC2086 # a list of words
timeout "${SDK_SECONDS:-240}" python3 "$sdk/tests/tap.py" \
	${CHAOS_TESTS:-serve_chaos} >"$T/tap" 2>"$T/err" </dev/null
status=$?
sdk_tap "$T/tap"
is "$status" 0 "chaos and faults end well" || diag "$(tail -n 40 "$T/err")"
wait_for 10 gone
ok $? "nothing of it is left"
leak_check
done_testing
