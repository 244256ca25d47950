#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The README's first command: its job runs, its results are right, and it
# leaves nothing.  And what it says of a tree of its own.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
tree_new

left() {
	ls -d /tmp/dsec-quickstart.* /dev/shm/dsec-quickstart.* \
		/sys/fs/cgroup/dsec-quickstart-* \
		/sys/fs/cgroup/*/dsec-quickstart-* 2>/dev/null
	grep -o '/[^ ]*dsec-quickstart[^ ]*' /proc/self/mountinfo
}
left >"$T/before"
run timeout 120 env -u DSEC_RUN -u DSEC_LIB -u DSEC_CONFIG -u DSEC_CGROUP \
	share/quickstart
is "$status" 0 "it ends well"
like "$out" '^8 sandboxes ready' "eight sandboxes"
like "$out" 'eats memory +oom' "one ran out of memory"
like "$out" 'loops for ever +timeout' "one out of time"
like "$out" 'right +exited +0 +OK' "one is right"
[ "$status" = 0 ] || diag "$out" "$err"
is "$(left)" "$(cat "$T/before")" "nothing is left"

new=dsec-test-$$-new
{
	echo set -e
	sed -n '/^## A tree of its own/,/^## /s/^    //p' README.md |
		sed "s|/run/dsec-new|$T/new-run|; s|/var/lib/dsec-new|$T/new-lib|
			s|dsec-new|$new|g"
} >"$T/commands"
is "$(grep -c "$new\|$T/new-" "$T/commands")" 2 "there is a tree of its own"
run timeout 60 sh "$T/commands"
is "$status" 0 "it is made, and taken away" || {
	diag "$out" "$err"
	DSEC_RUN=$T/new-run DSEC_LIB=$T/new-lib DSEC_CGROUP=$new \
		timeout 30 dsec-pause --stop --grace 0 --project root >"$T/o"
	find /sys/fs/cgroup -depth -type d -path "*/$new*" -exec rmdir {} +
}
like "$out" '^hello$' "it works"
is "$(ls -d "$T"/new-* 2>/dev/null; find /sys/fs/cgroup -maxdepth 2 -name "$new"
	grep -o "$T/new-[^ ]*" /proc/self/mountinfo)" "" "nothing of it is left"

done_testing
