#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Pauses to disk and forks where nothing is left: of the sandbox's processes, of
# its CPU, of its disk, and of the node's disk in the middle of the dump.
# shellcheck source=tests/tap.sh disable=SC2317
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
need_root
need_tools jq busybox pgrep
tree_new
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"
# A disk of our own, for the last test.
mount -t tmpfs -o size=400m,mode=0755 limits "$DSEC_LIB" || plan_skip_all "no tmpfs"
trap 'status=$?; tree_stop_all; umount -l "$DSEC_LIB"; tree_end $status' EXIT
if command -v mkfs.btrfs >/dev/null 2>&1; then
	timeout 60 dsec-doctor --fix --json --only node --only pool \
		--pool-size 300M </dev/null >"$T/pool" 2>"$T/null"
fi
matrix_image || plan_skip_all "no image"

create() { # JSON
	printf '%s\n' "$1" | timeout 30 dsec-run | jq -r .sandbox
}

count() { # NAME: its processes
	timeout 20 dsec-ps "$1" </dev/null | jq .pids
}

has() { # NAME N
	[ "$(count "$1")" = "$2" ]
}

# --- every process that it may have -------------------------------------------

create '{"name":"pids","image":"root/matrix:1","memory_limit_mb":64,"pids_limit":16}' \
	>"$T/null"
timeout 20 dsec-exec pids --detach -- sh -c 'trap : USR1
	sleep 1000 & wait
	for i in 1 2 3 4 5 6 7 8 9 10 11 12 13; do sleep 1000 & done
	wait' </dev/null >"$T/null"
# Those who start a command count for as long as they are there.
shell=
begun() {
	shell=$(pgrep -P "$(dsec-ps pids </dev/null | jq -r .init_pid)" -x sh) &&
		pgrep -P "$shell" -x sleep >"$T/null" && has pids 3
}
wait_for 20 begun
kill -USR1 "$shell"
wait_for 20 has pids 16
ok $? "16 of 16 processes"
run timeout 60 dsec-pause --level disk pids
is "$status $(field "$out" .level)" "0 disk" "paused to disk" || diag "$out"
run timeout 60 dsec-pause --resume pids
is "$status $(count pids)" "0 16" "and back, all of them" || diag "$out"
run timeout 60 dsec-fork pids --name more
is "$status $(count more-0)" "0 16" "and copied" || diag "$out"
run timeout 60 dsec-exec more-0 -- true
isnt "$status" 0 "the copy has no room for one more either"
run timeout 30 dsec-pause --stop --grace 0 pids more-0

# --- processes that come and go all the time ----------------------------------

create '{"name":"swarm","image":"root/matrix:1","memory_limit_mb":64,"pids_limit":64}' \
	>"$T/null"
timeout 20 dsec-exec swarm --detach -- sh -c \
	'i=0; while :; do (true &); (sleep 0.01 &); i=$((i + 1)); echo $i >/tmp/n
	done' </dev/null >"$T/null"
swarms() { # MORE than so often
	[ "$(timeout 20 dsec-exec swarm -- cat /tmp/n)" -gt "$1" ] 2>"$T/null"
}
wait_for 20 swarms 0
run timeout 60 dsec-pause --level disk swarm
is "$status $(field "$out" .level)" "0 disk" "a swarm is paused to disk" ||
	diag "$out"
n=$(timeout 20 dsec-exec swarm -- sh -c 'until n=$(cat /tmp/n); [ -n "$n" ]
	do :; done; echo $n')
wait_for 20 swarms "$n"
ok $? "and goes on"
run timeout 60 dsec-fork swarm --name other
is "$status" 0 "and is copied" || diag "$out"
run timeout 30 dsec-pause --stop --grace 0 swarm other-0

# --- hardly any CPU -----------------------------------------------------------

s=$(create '{"name":"cpu","image":"root/matrix:1","memory_limit_mb":64,"cpu_cores_limit":0.01}')
limit=$(find /sys/fs/cgroup -maxdepth 4 -path "*/$DSEC_CGROUP/$s/*" \
	\( -name cpu.max -o -name cpu.cfs_quota_us \))
throttled() {
	awk '$1 == "nr_throttled" { print $2 }' "${limit%/*}/cpu.stat"
}
was=$(cat "$limit") so_often=$(throttled)
run timeout 60 dsec-fork cpu --name little
is "$status $(cat "$limit") $(throttled)" "0 $was $so_often" \
	"a hundredth of a CPU: the engine does not wait for it" || diag "$out"
dd if=/dev/zero of="$DSEC_LIB/filler" bs=1k 2>"$T/null" \
	count=$(($(df -k --output=avail "$DSEC_LIB" | tail -n 1) - 64))
run timeout 60 dsec-pause --level disk cpu
rm "$DSEC_LIB/filler"
is "$(field "$out" .error.code) $(cat "$limit")" "no_space $was" \
	"nor has it more when a pause fails" || diag "$out"
run timeout 60 dsec-pause --level disk cpu
run timeout 60 dsec-pause --resume cpu
is "$status $(cat "$limit")" "0 $was" "nor when it is back from the disk" ||
	diag "$out"
run timeout 30 dsec-pause --stop --grace 0 cpu little-0

# --- all of its disk ----------------------------------------------------------

if [ "$(jq -r .features.pool "$T/pool" 2>"$T/null")" = btrfs ]; then
	create '{"name":"disk","image":"root/matrix:1","memory_limit_mb":64,"disk_limit_mb":16}' \
		>"$T/null"
	timeout 60 dsec-exec disk --detach -- sh -c '
		dd if=/dev/zero of=/srv/all bs=64k 2>/dev/null; sync
		exec sleep 1000' </dev/null >"$T/null"
	# Its own records count as well: what is said is not to be relied on.
	asleep() {
		pgrep -P "$(dsec-ps disk </dev/null | jq -r .init_pid)" -x sleep \
			>"$T/null"
	}
	wait_for 60 asleep
	ok $? "16 MB of 16"
	run timeout 60 dsec-pause --level disk disk
	is "$status $(field "$out" .level)" "0 disk" "paused to disk" ||
		diag "$out"
	run timeout 60 dsec-pause --resume disk
	is "$status" 0 "and back" || diag "$out"
	run timeout 60 dsec-fork disk --name wide
	is "$status $(field "$out" .layer)" "0 snapshot" "and copied" ||
		diag "$out"
	run timeout 60 dsec-exec disk -- rm /srv/all
	is "$status" 0 "room can be made"
	run timeout 60 dsec-exec wide-0 -- sh -c 'stat -c %s /srv/all'
	[ "$out" -gt 8000000 ]
	ok $? "the copy has what there was"
	run timeout 30 dsec-pause --stop --grace 0 disk wide-0
else
	skip "a full disk limit" "no pool with limits"
fi

# --- the node's disk, in the middle -------------------------------------------

s=$(create '{"name":"big","image":"root/matrix:1","memory_limit_mb":96}')
timeout 20 dsec-exec big --detach -- sh -c \
	'{ head -c 40000000 /dev/urandom; echo there >&2; sleep 1000; } |
	tail -c 40000000' </dev/null >"$T/null"
large() {
	[ "$(timeout 20 dsec-ps big </dev/null | jq .memory_bytes)" -gt 40000000 ]
}
wait_for 30 large
ok $? "a sandbox with 40 MB of memory"
left=$(df -k --output=avail "$DSEC_LIB" | tail -n 1)
dd if=/dev/zero of="$DSEC_LIB/filler" bs=1k count=$((left - 8192)) 2>"$T/null"
run timeout 60 dsec-pause --level disk big
is "$(field "$out" .error.code)" no_space "8 MB are too little: told" ||
	diag "$out"
is "$(timeout 20 dsec-ps big </dev/null | jq -r .state)" running "it runs on"
is "$(count big)" 4 "all of it"
is "$(find "$DSEC_LIB/sb/$s" -maxdepth 1 -name 'ckpt*')" "" "nothing is left"
run timeout 60 dsec-fork big --count 1
is "$(field "$out" .error.code)" no_space "a copy: likewise" || diag "$out"
is "$(find "$DSEC_LIB/snap" -mindepth 1 -maxdepth 1 ! -name name 2>"$T/null")" \
	"" "nothing of it is left"
rm "$DSEC_LIB/filler"
run timeout 60 dsec-pause --level disk big
is "$(field "$out" .level)" disk "with room it is paused" || diag "$out"
run timeout 60 dsec-pause --resume big
is "$status $(count big)" "0 4" "and back"
run timeout 30 dsec-pause --stop --grace 0 big
done_testing
