#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whoever tries the checkpoint engine is killed at any moment: no process of the
# try, of the engine or restored, stays, and no directory of the node's /tmp.
# shellcheck source=tests/tap.sh disable=SC2317
. "$(dirname "$0")/../tap.sh"
need_root
need_tools timeout jq
here=$(cd "$(dirname "$0")" && pwd)
tree_new
# shellcheck source=tests/sys/matrix.sh
. "$here/matrix.sh"
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"
rm -f "$DSEC_RUN/engine.json"
began=$(date +%s%N)
checkpoint_why >/dev/null
took=$((($(date +%s%N) - began) / 1000000))

# All that comes of a try stays in the group it was started in.
group=
for top in /sys/fs/cgroup /sys/fs/cgroup/*; do
	[ -e "$top/cgroup.procs" ] || continue
	mkdir "$top/$DSEC_CGROUP-try" 2>/dev/null || continue
	group=$top/$DSEC_CGROUP-try
	echo 0 >"$group/cgroup.procs" 2>/dev/null && break
	rmdir "$group"
	group=
done
[ -n "$group" ] || plan_skip_all "no cgroup to watch"
echo 0 >"${group%/*}/cgroup.procs"

empty() {
	[ -z "$(cat "$group/cgroup.procs")" ]
}
directories() {
	find /tmp -maxdepth 1 -name '.criu.mntns.*' | sort >"$T/$1"
}
# Those of somebody else come and go.
no_more() {
	directories after
	[ -z "$(comm -13 "$T/before" "$T/after")" ]
}

# The time that one takes, in equal steps.
rounds=12
left=0
directories before
for i in $(seq "$rounds"); do
	rm -f "$DSEC_RUN/engine.json"
	sh -c 'echo 0 >"$1/cgroup.procs"; exec dsec-doctor --json \
		--only kernel' sh "$group" </dev/null >/dev/null 2>&1 &
	doctor=$!
	sleep "$(awk "BEGIN { print $took * $i / $rounds / 1000 }")"
	kill -KILL "$doctor" 2>/dev/null
	wait "$doctor" 2>/dev/null
	wait_for 10 empty && continue
	left=$((left + 1))
	diag "round $i: $(while read -r pid; do
		cat "/proc/$pid/comm"
		kill -KILL "$pid"
	done <"$group/cgroup.procs" 2>&1 | tr '\n' ' ')"
done
is "$left" 0 "nobody is left of $rounds that were killed"
wait_for 10 no_more
ok $? "nor a directory" || diag "$(cat "$T/after")"
wait_for 10 rmdir "$group"
ok $? "nor the group"
done_testing
