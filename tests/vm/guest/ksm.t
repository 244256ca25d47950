#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Equal pages of copies of a sandbox: merged where the operator says that the
# node is of one tenant, and otherwise not, however busily the kernel merges.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../../tap.sh"
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/../../sys/matrix.sh"
need_root
need_tools jq python3 busybox
[ -e /sys/kernel/mm/ksm/run ] || plan_skip_all "this kernel has no KSM"
here=$(cd "$(dirname "$0")" && pwd)
tree_new

# PR_SET_MEMORY_MERGE, for a process and what it starts: since Linux 6.4.
python3 -c 'import ctypes, sys
sys.exit(ctypes.CDLL(None).prctl(67, 1, 0, 0, 0) != 0)' ||
	plan_skip_all "this kernel merges no whole processes"
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"

for key in run pages_to_scan sleep_millisecs; do
	cat "/sys/kernel/mm/ksm/$key" >"$T/ksm.$key"
done
# shellcheck disable=SC2317 # by the trap
ksm_back() {
	[ -z "$busy" ] || kill "$busy"
	echo 2 >/sys/kernel/mm/ksm/run
	for key in pages_to_scan sleep_millisecs run; do
		cat "$T/ksm.$key" >"/sys/kernel/mm/ksm/$key"
	done
}
busy=
code=0
trap 'code=$?; ksm_back; tree_end $code' EXIT
echo 20000 >/sys/kernel/mm/ksm/pages_to_scan
echo 20 >/sys/kernel/mm/ksm/sleep_millisecs
echo 1 >/sys/kernel/mm/ksm/run

# Somebody who gives the kernel something to merge all the time: it goes round
# only for those who want it.
cat >"$T/busy.py" <<'PY'
import mmap, time
memory = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_MERGEABLE)
while True:
    memory[:] = bytes([time.monotonic_ns() & 255]) * (1 << 20)
    time.sleep(0.5)
PY
python3 "$T/busy.py" &
busy=$!
# shellcheck disable=SC2317 # by wait_for
rounds() { # N
	[ "$(cat /sys/kernel/mm/ksm/full_scans)" -ge "$1" ]
}
# Whatever may be merged is merged after it was seen unchanged twice.
all_seen() {
	wait_for 120 rounds $(($(cat /sys/kernel/mm/ksm/full_scans) + 4))
}

pids() { # SANDBOX
	find "/sys/fs/cgroup/$DSEC_CGROUP/$1" -name cgroup.procs \
		-exec cat {} + 2>/dev/null
}

merged_pages() { # SANDBOX...
	for s in "$@"; do
		for pid in $(pids "$s"); do
			cat "/proc/$pid/ksm_merging_pages"
		done
	done 2>/dev/null | awk '{ n += $1 } END { print n + 0 }'
}

pss_kb() { # SANDBOX...
	for s in "$@"; do
		for pid in $(pids "$s"); do
			grep '^Pss:' "/proc/$pid/smaps_rollup"
		done
	done 2>/dev/null | awk '{ n += $2 } END { print n + 0 }'
}

copies() { # WHAT: four, their ids into $copies
	run timeout 200 dsec-fork source --count 4
	is "$status" 0 "$1: four copies" || diag "$out $err"
	copies=$(field "$out" 'select(.ok) | .sandbox')
	is "$(echo "$copies" | grep -c .)" 4 "$1: and a record of each"
}

go_on() { # WHAT
	# shellcheck disable=SC2086 # a list of ids
	for copy in $copies; do
		run timeout 250 dsec-exec "$copy" -- \
			sh -c 'echo >/srv/ask; cat /srv/answer'
		is "$out" "100 same" "$1: a copy goes on, and has what it had" ||
			diag "$err"
	done
	echo "$copies" | timeout 60 xargs dsec-pause --stop --grace 0 >"$T/.o"
}

matrix_image || plan_skip_all "no image could be made"
timeout 60 dsec-run --detach --name source --image root/matrix:1 >"$T/.source"
timeout 60 dsec-exec --detach source -- \
	/bin/python3 -I -S -c "$(cat "$here/hold.py")" random 100 0 >"$T/.o" 2>&1
timeout 250 dsec-exec source -- sh -c 'until [ -p /srv/ask ]
	do sleep 0.5; done' >>"$T/.o" 2>&1
ok $? "a sandbox holds 100 MB" || diag "$(cat "$T/.source" "$T/.o")"

# --- one tenant ----------------------------------------------------------------

echo '{"single_tenant":true}' >"$DSEC_CONFIG/node.json"
copies "one tenant"
is "$(field "$out" .memory | sort -u)" ksm "one tenant: the records say ksm"
# shellcheck disable=SC2317,SC2086 # by wait_for; a list of ids
small() {
	[ "$(pss_kb $copies)" -le $((200 << 10)) ]
}
wait_for 120 small
ok $? "one tenant: 4 x 100 MB in at most 200 MB"
# shellcheck disable=SC2086 # a list of ids
diag "PSS of all: $(pss_kb $copies) KB, merged pages: $(merged_pages $copies)"
is "$(merged_pages "$(jq -r .sandbox "$T/.source")")" 0 \
	"one tenant: the source has not asked for it"
go_on "one tenant"

# --- several -------------------------------------------------------------------

for node in '{"single_tenant":false}' ''; do
	rm "$DSEC_CONFIG/node.json"
	[ -z "$node" ] || echo "$node" >"$DSEC_CONFIG/node.json"
	what=${node:-nothing is said}
	copies "$what"
	is "$(field "$out" .memory | sort -u)" private \
		"$what: the records say private"
	all_seen
	ok $? "$what: the kernel has looked at all memory"
	# shellcheck disable=SC2086 # a list of ids
	is "$(merged_pages $copies)" 0 "$what: and merged nothing of it" ||
		diag "PSS of all: $(pss_kb $copies) KB"
	go_on "$what"
done
done_testing
