#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Memory of paused sandboxes out of RAM, and back: to a disk, to compressed
# memory, and where there is nowhere to go.  The guest's swap is ours to change.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../../tap.sh"
need_root
need_tools jq python3 swapon zramctl
[ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ] ||
	plan_skip_all "control groups are not version 2 alone"
here=$(cd "$(dirname "$0")" && pwd)
tree_new
# An emulated guest takes its time.
mb=500
[ "$(systemd-detect-virt)" != qemu ] || mb=200

swaps() {
	awk 'NR > 1 { print $1 }' /proc/swaps
}

disks=$(swaps)
# The swap of before, and no zram.
# shellcheck disable=SC2317 # by the trap
swap_back() {
	for swap in $(swaps); do
		swapoff "$swap"
	done
	for swap in /dev/zram[0-9]*; do
		[ ! -b "$swap" ] || zramctl -r "$swap"
	done
	for swap in $disks; do
		swapon "$swap"
	done
}
code=0
trap 'code=$?; swap_back; tree_end $code' EXIT

stat_of() { # KEY of memory.stat
	awk -v key="$1" '$1 == key { print $2 }' "$group/memory.stat"
}

# Pages of the sandbox's own in RAM, those included that are in swap as well.
in_ram() {
	echo $(($(stat_of active_anon) + $(stat_of inactive_anon)))
}

charged() {
	cat "$group/memory.current"
}

hold() { # WHAT KIND MB CHILDREN
	id=$(timeout 60 dsec-run --detach --name s --memory 900M |
		jq -r .sandbox)
	group=/sys/fs/cgroup/$DSEC_CGROUP/$id
	timeout 60 dsec-exec --detach s -- \
		python3 -c "$(cat "$here/hold.py")" "$2" "$3" "$4" >"$T/.o"
	timeout 250 dsec-exec s -- sh -c 'until [ -p /srv/ask ]
		do sleep 0.5; done' >>"$T/.o" 2>&1
	ok $? "$1: a sandbox holds $3 MB" || diag "$(cat "$T/.o")"
	had=$(in_ram)
}

goes_on() { # WHAT MB
	run timeout 250 dsec-exec s -- \
		sh -c 'echo >/srv/ask; cat /srv/answer'
	is "$out" "$2 same" "$1: it goes on, and has what it had" || diag "$err"
	timeout 60 dsec-pause --stop --grace 0 s >/dev/null
}

# Frozen first, so that what is charged changes by the reclaim alone.
reclaim() { # WHAT
	timeout 60 dsec-pause --freeze s >/dev/null
	before=$(charged) freed=0 tries=0
	while [ $tries -lt 5 ]; do
		run timeout 200 dsec-pause --level reclaim s
		freed=$((freed + $(field "$out" '.freed_bytes // 0')))
		# An emulated disk may be too slow for once.
		[ "$(field "$out" .cut)" = true ] || break
		tries=$((tries + 1))
	done
	is "$status $(field "$out" '.state+" "+.level')" "0 paused reclaim" \
		"$1: paused to reclaim" || diag "$out $err"
	after=$(charged)
	# What each CPU keeps charged for later use is given back as well.
	off=$((before - after - freed))
	[ ${off#-} -le $((1 << 20)) ]
	ok $? "$1: the bytes it tells are what the memory cgroup lost" ||
		diag "told $freed, was $before, is $after"
}

gone() { # WHAT
	left=$(in_ram)
	[ $((left * 100)) -le $((had * 5)) ]
	ok $? "$1: 95 % of its anonymous pages are out of RAM" ||
		diag "$left of $had bytes are left: $out"
	diag "$1: $((had >> 20)) MB were in RAM, $((left >> 10)) KB are;" \
		"$((freed >> 20)) MB freed"
	is "$(field "$out" .swap)" true "$1: and it says that there is swap"
}

# shellcheck disable=SC2317 # by wait_for
is_back() {
	[ $(($(in_ram) * 10)) -ge $((had * 9)) ]
}

resumed() { # WHAT
	run timeout 60 dsec-pause --resume s
	is "$status $(field "$out" .state)" "0 running" "$1: resumed"
	wait_for 120 is_back
	ok $? "$1: its memory is read back before it is touched" ||
		diag "$(in_ram) of $had bytes"
	is "$(cat "$group/memory.swap.max")" 0 \
		"$1: while it runs nothing of it goes to swap"
}

# --- a disk, and contents that nothing compresses -----------------------------

isnt "$disks" "" "the guest has a disk to swap to"
hold disk random $mb 0
reclaim disk
gone disk
[ "$(cat "$group/memory.swap.current")" -ge $((had * 95 / 100)) ]
ok $? "disk: they are in swap"
run timeout 60 dsec-ps s
is "$(field "$out" '.state+" "+.level')" "paused reclaim" \
	"disk: to look at it does not resume it"
run timeout 120 dsec-pause --level reclaim s
is "$status $(field "$out" .level)" "0 reclaim" "disk: twice is fine"
resumed disk
goes_on disk $mb

# --- pages that several processes share ---------------------------------------

hold shared random 50 2
reclaim shared
gone shared
run timeout 60 dsec-exec s -- echo awake
is "$out" awake "shared: a command resumes it"
goes_on shared 50

# --- nowhere to go --------------------------------------------------------------

for swap in $disks; do
	swapoff "$swap"
done
hold "no swap" random 50 0
reclaim "no swap"
is "$(field "$out" .swap)" false "no swap: it says so"
like "$(field "$out" '.warnings[]?')" "swap" "no swap: and in words"
[ $(($(in_ram) * 10)) -ge $((had * 9)) ]
ok $? "no swap: what has nowhere to go has stayed"
goes_on "no swap" 50

# --- compressed memory, as dsec-doctor offers it ---------------------------------

run timeout 60 dsec-doctor --json
fix=$(field "$out" '[.findings[]? | select(.check == "swap") | .fix][0]')
like "$fix" zramctl "zram: without swap dsec-doctor offers it" || diag "$out"
run timeout 60 sh -c "$fix"
is "$status" 0 "zram: its command works" || diag "$fix: $out $err"
zram=$(swaps)
like "$zram" '^/dev/zram' "zram: and gives swap"
run timeout 60 dsec-doctor --json
is "$(field "$out" .features.zram)" true "zram: dsec-doctor sees it"
if [ -n "$zram" ]; then
	hold zram compressible $mb 0
	reclaim zram
	gone zram
	# Bytes as they were, and what holds them now.
	# shellcheck disable=SC2046 # numbers
	set -- $(cat "/sys/block/${zram#/dev/}/mm_stat")
	[ "$1" -ge $((mb * 9 / 10 << 20)) ] && [ "$3" -le $(($1 / 5)) ]
	ok $? "zram: in less than a fifth of the RAM" || diag "mm_stat: $*"
	resumed zram
	goes_on zram $mb
else
	skip "zram" "no zram device could be made"
fi
done_testing
