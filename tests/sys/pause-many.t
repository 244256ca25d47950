#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A whole task is preempted by one command and comes back by one, or one by one;
# what is killed half way loses nothing (field report 48, field report 49,
# field report 62).
#   MANY=N    sandboxes of the task (200)
#   ON_DISK=N how many of them go to the disk (8; tests/rounds/pause-many.t: all)
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq busybox
tree_new
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
many=${MANY:-200} on_disk=${ON_DISK:-8}

echo '{"memory_overcommit":64,"cpu_overcommit":64,"memory_reserve_mb":64,
	"max_sandboxes":20000}' >"$DSEC_CONFIG/node.json"
why=$(checkpoint_why)
image=host
if [ -z "$why" ] && matrix_image; then
	image=root/matrix:1
fi
uptime_ms() {
	awk '{ printf "%d", $1 * 1000 }' /proc/uptime
}
available_mb() {
	awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo
}
# How far one has counted; it may be about to write.
seen() { # SANDBOX, from outside, without waking it
	until seen_n=$(cat "$DSEC_LIB/sb/$1/upper/tmp/n") && [ -n "$seen_n" ]; do
		timeout 60 dsec-exec "$1" -- sleep 0.1
	done
	echo "$seen_n"
}
counted() { # SANDBOX
	timeout 60 dsec-exec "$1" -- sh -c \
		'until n=$(cat /tmp/n); [ -n "$n" ]; do :; done; echo $n'
}
levels() { # SELECTOR...
	dsec-ps "$@" | jq -r '.state+" "+(.level // "-")' | sort | uniq -c |
		sed 's/^ *//'
}

# Those that go to the disk count and hold 4 MB; the others would keep the
# machine busy.
jq -nc --argjson n "$many" --argjson d "$on_disk" --arg image "$image" '
	range($n) | {task: "job-42", image: $image, memory_limit_mb: 32,
		cpu_cores_limit: 0.01, pids_limit: 32,
		labels: {disk: (if . < $d then "yes" else "no" end)},
		command: (if . < $d then ["/bin/sh", "-c",
			"x=$(head -c 4000000 /dev/zero | tr \"\\0\" x)
			i=0; while :; do i=$((i + 1)); echo $i >/tmp/n; sleep 1
			done"] else ["/bin/sleep", "1000"] end)}' >"$T/requests"
timeout 200 dsec-run --jobs 8 <"$T/requests" >"$T/made" 2>"$T/.err"
is "$(jq -r .ok "$T/made" | grep -c true)" "$many" "$many sandboxes of a task" ||
	diag "$(grep -m 1 false "$T/made")"
one=$(jq -r .sandbox "$T/made" | head -n 1)

# --- all of them, frozen
t0=$(uptime_ms)
timeout 60 dsec-pause --freeze --task job-42 >"$T/paused"
status=$?
t1=$(uptime_ms)
is "$status $(jq -r 'select(.ok).level' "$T/paused" | sort | uniq -c |
	tr -s ' ')" "0  $many freeze" "one command pauses all, a record each"
diag "$many frozen in $((t1 - t0)) ms"
is "$(levels --task job-42)" "$many paused freeze" "all are listed so"
is "$(timeout 20 dsec-exec "$one" -- echo up)" up "a command resumes one"
is "$(levels --task job-42)" "$((many - 1)) paused freeze
1 running -" "the others stay paused"
timeout 60 dsec-pause --resume --task job-42 >"$T/resumed"
is "$? $(levels --task job-42)" "0 $many running -" "one command resumes all"

# --- killed in the middle
for delay in 0.02 0.05 0.1; do
	dsec-pause --freeze --task job-42 >/dev/null 2>&1 &
	victim=$!
	sleep "$delay"
	kill -KILL "$victim"
	wait "$victim" 2>/dev/null
done
is "$(dsec-ps --task job-42 | jq -r .state | grep -cxE 'paused|running')" \
	"$many" "dsec-pause killed half way: every one is there"
timeout 60 dsec-pause --resume --task job-42 >"$T/resumed"
is "$? $(levels --task job-42)" "0 $many running -" "all resume"

# --- to the disk
if [ "$image" = host ]; then
	skip "a task on the disk" "$why"
	timeout 100 dsec-pause --stop --grace 0 --task job-42 >"$T/stopped"
	done_testing
fi
# Once they have what they hold: to make it takes each a part of a CPU.
# shellcheck disable=SC2317 # by wait_for
all_count() {
	for id in $(dsec-ps --label disk=yes | jq -r .sandbox); do
		[ -s "$DSEC_LIB/sb/$id/upper/tmp/n" ] || return 1
	done
}
wait_for 300 all_count
ok $? "all of them count"
before=$(available_mb)
held=$(dsec-ps --label disk=yes --stats | jq -s 'map(.memory_bytes) | add')
t0=$(uptime_ms)
timeout 500 dsec-pause --level disk --label disk=yes >"$T/paused"
status=$?
t1=$(uptime_ms)
after=$(available_mb)
is "$status $(jq -r 'select(.ok).level' "$T/paused" | sort | uniq -c |
	tr -s ' ')" "0  $on_disk disk" "$on_disk of them are paused to disk"
[ "$status" -eq 0 ] || diag "$(jq -c 'select(.ok | not)' "$T/paused" | head -n 3)"
diag "$on_disk in $((t1 - t0)) ms; they held $((held >> 20)) MiB; available" \
	"before $before MiB, after $after MiB"
is "$(dsec-ps --label disk=yes --stats | jq -s 'map(.memory_bytes // 0) | add')" \
	0 "they hold no memory"
is "$(levels --label disk=yes)" "$on_disk paused disk" "all are listed so"
n=$(seen "$one")
[ "$(counted "$one")" -ge "$n" ]
ok $? "a command resumes one, which goes on"
is "$(levels --label disk=yes)" "$((on_disk - 1)) paused disk
1 running -" "the rest stay on the disk"
timeout 300 dsec-pause --resume --label disk=yes >"$T/resumed"
is "$? $(levels --label disk=yes)" "0 $on_disk running -" \
	"one command resumes the rest"

# --- killed while memory is written
for delay in 0.1 0.4 1; do
	dsec-pause --disk --label disk=yes >/dev/null 2>&1 &
	victim=$!
	sleep "$delay"
	kill -KILL "$victim"
	wait "$victim" 2>/dev/null
done
timeout 300 dsec-pause --resume --label disk=yes >"$T/resumed"
is "$? $(levels --label disk=yes)" "0 $on_disk running -" \
	"killed while it writes: all resume"
bad=0
for id in $(dsec-ps --label disk=yes | jq -r .sandbox); do
	n=$(seen "$id")
	[ "$(counted "$id")" -ge "$n" ] ||
		bad=$((bad + 1))
done
is "$bad" 0 "none has lost its place"
timeout 300 dsec-pause --disk --label disk=yes >"$T/paused"
timeout 200 dsec-pause --stop --grace 0 --task job-42 >"$T/stopped"
is "$? $(jq -r .outcome "$T/stopped" | sort | uniq -c | tr -s ' ')" \
	"0  $many killed" "all end, wherever they are, without being woken"
run dsec-doctor --leaks
json_is "$out" '{"ok":true,"leaks":0}' "dsec-doctor finds nothing"

done_testing
