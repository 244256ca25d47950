#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A sandbox's limits as a system with control groups of version 2 has them,
# beside systemd, which owns the rest of the tree.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../../tap.sh"
need_root
need_tools jq python3
[ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ] ||
	plan_skip_all "control groups are not version 2 alone"
tree_new

# What systemd calls its own, and the state of each unit.
systemd_tree() {
	find /sys/fs/cgroup/init.scope /sys/fs/cgroup/system.slice -type d
	systemctl list-units --all --plain --no-legend \
		--type=service,slice,scope | awk '{ print $1, $3, $4 }'
}
systemd_tree >"$T/before"

run dsec-run --name a --cpu 0.5 --memory 64M --pids 32 --detach -- true
is "$status" 0 "a sandbox with limits"
is "$(field "$out" .cgroup)" v2 "its record says: v2"
id=$(field "$out" .sandbox)
group=/sys/fs/cgroup/$DSEC_CGROUP/$id
is "$(cat "$group/memory.max")" 67108864 "memory.max"
is "$(cat "$group/memory.swap.max")" 0 "no swap beside it"
is "$(cat "$group/cpu.max")" "50000 100000" "cpu.max"
is "$(cat "$group/pids.max")" 32 "pids.max"
is "$(wc -l <"$group/init/cgroup.procs")" 1 "pid 1 is in its leaf"

run dsec-exec a -- cat /proc/self/cgroup
like "$out" '^0::/' "inside there is the one hierarchy"
unlike "$out" "$id" "and no name of the host's in it"

run dsec-exec a --cmd 'python3 -c "x = bytearray(200 << 20)"'
is "$(field "$out" .outcome)" oom "over memory: oom"
is "$(field "$out" .oom.limit_mb)" 64 "and the limit is told"
isnt "$(awk '$1 == "oom_kill" { print $2 }' "$group/memory.events")" 0 \
	"the kernel counted it"
run dsec-exec a -- echo alive
is "$out" alive "the sandbox goes on"

run dsec-exec a -- python3 -c '
import os, time
n = 0
try:
    while n < 100:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        n += 1
except OSError as e:
    print(e.errno, n < 32)
'
is "$out" "11 True" "over pids: EAGAIN"

run dsec-exec a -- timeout 3 sh -c 'while :; do :; done'
isnt "$(awk '$1 == "nr_throttled" { print $2 }' "$group/cpu.stat")" 0 \
	"over CPU: throttled"

run dsec-pause a
is "$status" 0 "paused"
like "$(cat "$group/cgroup.events")" '^frozen 1$' "frozen by cgroup.freeze"
run dsec-exec a -- echo awake
is "$out" awake "an operation resumes it"
like "$(cat "$group/cgroup.events")" '^frozen 0$' "and it runs"

# systemd realizes its tree anew; the limits and the sandbox are to stay.
systemctl daemon-reload && systemctl daemon-reexec
ok $? "systemd is executed anew"
is "$(cat "$group/memory.max")" 67108864 "the limit has stayed"
run dsec-exec a -- echo alive
is "$out" alive "the sandbox lives"

run dsec-pause --stop a
is "$status" 0 "stopped"
[ ! -e "$group" ]
ok $? "its group is gone"
systemd_tree >"$T/after"
is "$(diff "$T/before" "$T/after")" "" "systemd's tree is as it was"
done_testing
