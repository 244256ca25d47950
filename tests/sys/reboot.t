#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The node goes down: every process of ours is killed at once, the run directory
# is gone, the library is found in another place by a new mount namespace.
# Sandboxes that were paused to disk come back (field report 70); what was frozen
# or ran is lost, and said to be.  The same for one whose supervisor alone is killed
# (field report 49, field report 51, field report 62).
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq busybox python3 unshare
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"

all='26 processes'

create() { # FIELDS as JSON
	printf '%s' "$1" | tr -d '\n' | timeout 60 dsec-run >"$T/created" 2>"$T/.err"
	jq -r .sandbox "$T/created"
}

# What must be the same afterwards.
known() { # SANDBOX
	dsec-ps "$1" | jq -cS '{sandbox, name, task, project, labels, user, image,
		memory_limit_mb, disk_limit_mb, created_ms, image_layers,
		checkpointable}'
}

# A sandbox with a little state in it: a counter, from 1 on, once in 50 ms.  It
# may be stopped at any moment: the file is never without a number.
counting='i=0; while :; do i=$((i + 1)); echo $i >>/srv/n; sleep 0.05; done'
counted() { # SANDBOX
	timeout 60 dsec-exec "$1" -- tail -n 1 /srv/n
}
counts() { # SANDBOX
	[ "$(counted "$1" 2>"$T/null")" -gt 0 ] 2>"$T/null"
}

none_of() { # PATH...
	[ -z "$(ls -d "$@" 2>"$T/null")" ]
}

# Its supervisor is killed, and holds nothing any more.
kill_box() { # SANDBOX
	box=$(dsec-ps "$1" | jq .supervisor_pid)
	kill -KILL "$box"
	# shellcheck disable=SC2016 # expanded there
	wait_for 20 sh -c '! kill -0 "$0"' "$box" 2>"$T/null"
}

# One that is on the disk is stopped, and its supervisor is killed at its first
# removal of a file, at its second, and so on: once the end was answered it
# does not come back.
killed_at_the_end() {
	if ! command -v strace >/dev/null; then
		skip "supervisors that are killed at the end" "no strace"
		return
	fi
	bad=''
	for n in 1 2 3; do
		s=$(create '{"image":"root/matrix:1","memory_limit_mb":64}')
		timeout 100 dsec-pause --disk "$s" >"$T/x" 2>&1
		pid=$(dsec-ps "$s" | jq .supervisor_pid)
		strace -qq -o "$T/trace" -p "$pid" -e trace=unlink,unlinkat -e \
			inject=unlink,unlinkat:signal=KILL:when="$n" &
		tracer=$!
		wait_for 10 grep -q "^TracerPid:.$tracer\$" "/proc/$pid/status"
		timeout 60 dsec-pause --stop --grace 0 "$s" >"$T/x"
		wait "$tracer"
		grep -q 'killed by SIGKILL' "$T/trace" || bad="$bad $n:alive"
		now="$(jq -r .state "$T/x") $(dsec-ps "$s" |
			jq -r '.state+" "+.outcome')"
		[ "$now" = "stopped stopped killed" ] || bad="$bad $n:$now"
		timeout 60 dsec-pause --resume "$s" >"$T/x" &&
			bad="$bad $n:resumed"
	done
	is "$bad" "" "killed when its end was answered: it has ended"
}

first_life() {
	tree_new
	why=$(checkpoint_why)
	[ -z "$why" ] || plan_skip_all "$why"
	matrix_image || plan_skip_all "no image could be made"
	matrix_rootfs "$T/other"
	echo other >"$T/other/srv/other"
	run timeout 120 dsec-img import "dir:$T/other" --as root/other:1 \
		--kind base

	m=$(create '{"image":"root/matrix:1","name":"m","task":"job",
		"project":"root/rl","labels":{"k":"v"},"user":"me",
		"memory_limit_mb":300}')
	named=$(create '{"image":"root/matrix:1","name":"named","memory_limit_mb":64}')
	layer=$(create '{"image":"root/other:1","name":"layer","memory_limit_mb":64}')
	gone=$(create '{"image":"root/matrix:1","name":"gone","memory_limit_mb":64}')
	frozen=$(create '{"image":"root/matrix:1","name":"frozen","memory_limit_mb":64}')
	runs=$(create '{"image":"root/matrix:1","name":"runs","memory_limit_mb":64}')
	matrix_start m 20
	ok $? "a sandbox of 26 processes"
	for x in named layer gone frozen runs; do
		timeout 60 dsec-exec $x --detach -- sh -c "$counting" >"$T/x" 2>&1
		wait_for 20 counts $x
	done
	before=$(known m)
	pids=$(timeout 60 dsec-exec m -- sh -c 'cat /srv/m/r/*' | cut -d' ' -f1,2)
	run timeout 60 dsec-pause --freeze frozen
	run timeout 200 dsec-pause --disk m named layer gone
	is "$status" 0 "four sandboxes are paused to disk"
	[ "$status" -eq 0 ] || diag "$out"

	# --- the supervisor alone
	kill_box gone
	is "$(dsec-ps gone | jq -r '"\(.state) \(.level) \(.recovery)"')" \
		"paused disk true" "a killed supervisor: listed as waiting"
	counts gone
	ok $? "a command finds it, with a new supervisor, running"
	run timeout 60 dsec-pause --disk gone
	is "$status" 0 "it is paused to disk again"
	kill_box gone
	run timeout 60 dsec-doctor --fix --only dead --json
	is "$(dsec-ps gone | jq -r '"\(.state) \(.level) \(.recovery)"')" \
		"paused disk null" "dsec-doctor --fix recovers it as well"
	kill_box gone
	run timeout 60 dsec-pause --stop gone
	is "$status $(field "$out" '.state+" "+.outcome')" "0 stopped killed" \
		"and it can be ended instead"
	# What is answered at once is finished behind.
	wait_for 20 none_of "$DSEC_LIB/sb/$gone" "$DSEC_RUN/sb/$gone"
	ok $? "of which nothing is left"
	run timeout 60 dsec-ps "$gone"
	is "$(field "$out" '.state+" "+.outcome')" "stopped killed" "but its record"
	killed_at_the_end
	kill_box runs
	run dsec-ps --wait --timeout 20s "$runs"
	is "$(field "$out" .outcome)" "supervisor-lost" \
		"one that runs is lost with its supervisor"
	runs=$(create '{"image":"root/matrix:1","name":"runs","memory_limit_mb":64}')
}

crash() {
	timeout 20 sync -f "$DSEC_LIB"
	for pid in $(tree_pids); do
		kill -KILL "$pid"
	done 2>/dev/null
	wait_for 20 sh -c '[ -z "$(cat $(find /sys/fs/cgroup/"$DSEC_CGROUP" \
		/sys/fs/cgroup/*/"$DSEC_CGROUP" -name cgroup.procs) </dev/null)" ]' \
		2>/dev/null
	wait_for 10 tree_groups_gone
	tree_unmount
	rm -rf --one-file-system "${DSEC_RUN:?}"/*
	mv "$DSEC_LIB" "$T/library"
	DSEC_LIB=$T/library
	mkdir -p "$DSEC_RUN"
}

second_life() {
	trap 'status=$?; tree_stop_all; umount -l "$DSEC_RUN"; tree_end $status' EXIT
	mount -t tmpfs -o mode=0700 dsec-test "$DSEC_RUN" || exit 1
	is "$(dsec-ps | jq -r .sandbox | sort | tr '\n' ' ')" \
		"$(printf '%s\n' "$m" "$named" "$layer" | sort | tr '\n' ' ')" \
		"the ones on the disk are listed"
	is "$(dsec-ps | jq -r '"\(.state) \(.level) \(.recovery)"' | sort -u)" \
		"paused disk true" "as waiting"
	is "$(dsec-ps --label k=v | jq -r .sandbox)" "$m" "and found by label"
	is "$(dsec-ps m | jq -r '"\(.sandbox) \(.recovery)"')" "$m true" \
		"and by name"
	run timeout 20 dsec-doctor --json --only dead
	is "$(field "$out" '.values.recovery')" 3 "dsec-doctor counts them"

	for x in "$frozen" "$runs"; do
		is "$(dsec-ps "$x" | jq -r '"\(.state) \(.outcome) \(.infra)"')" \
			"stopped node-lost true" "what was not is lost at once"
		echo "{\"sandbox\":\"$x\",\"command\":[\"true\"]}" >"$T/ask"
		run timeout 20 sh -c 'dsec-exec <"$1"' sh "$T/ask"
		is "$(field "$out" '"\(.error.code) \(.error.infra)"')" \
			"stopped true" "to whoever asks for it"
	done
	run timeout 20 dsec-pause --stop "$frozen"
	is "$status $(field "$out" '"\(.state) \(.outcome) \(.infra)"')" \
		"0 stopped node-lost true" "and ended, to whoever ends it"

	# A name that is taken, and a layer that is gone.
	taker=$(create '{"image":"root/matrix:1","name":"named","memory_limit_mb":64}')
	run timeout 60 dsec-img rm root/other:1 --force
	hex=$(jq -r '.image_layers[0]' "$DSEC_LIB/sb/$layer/spec.json")
	find "$DSEC_LIB/img/store" -name "*$hex*" >"$T/layer"
	while read -r file; do
		mv "$file" "$T/layer.kept"
	done <"$T/layer"
	run timeout 100 dsec-doctor --fix --json --only dead
	like "$(field "$out" '.fixed[]')" "recovered sandbox $m, m: " \
		"--fix recovers what it can"
	like "$(field "$out" '.findings[].why')" \
		"$named: a live sandbox has the name 'named'; its checkpoint is kept" \
		"a name that is taken is told"
	like "$(field "$out" '.findings[].why')" \
		"$layer: .*; its checkpoint is kept" "a layer that is gone is told"
	like "$(field "$out" '.fixed[]')" "sandbox $frozen as lost" \
		"so is one that was frozen"
	for x in "$frozen" "$runs"; do
		is "$(dsec-ps "$x" | jq -r '"\(.state) \(.outcome) \(.infra)"')" \
			"stopped node-lost true" "lost with the node"
		like "$(dsec-ps "$x" | jq -r .why)" 'not paused to disk' \
			"with its cause"
	done
	is "$(known m)" "$before" "what came back is what it was"
	is "$(dsec-ps m | jq -r '"\(.state) \(.level) \(.recovery)"')" \
		"paused disk null" "still paused"
	run timeout 60 dsec-doctor --leaks
	json_is "$out" '{"ok":true,"leaks":0}' "nothing else is left"

	is "$(matrix_check m)" "$all" "a command resumes it: all are well"
	is "$(timeout 60 dsec-exec m -- sh -c 'cat /srv/m/r/*' |
		cut -d' ' -f1,2)" "$pids" "they are the same processes"
	is "$(timeout 60 dsec-exec m -- sh -c 'cat /proc/sys/kernel/hostname')" \
		sandbox "under the same name"
	run timeout 60 dsec-pause --disk m
	is "$status" 0 "it can be paused to disk again"
	is "$(matrix_check m)" "$all" "and resumed"

	# What hindered the others goes away.
	run timeout 60 dsec-pause --stop "$taker"
	counts "$named"
	ok $? "with its name free, the next command finds the other one"
	is "$(dsec-ps named | jq -r .sandbox)" "$named" "by name, too"
	run timeout 60 dsec-pause --resume "$layer"
	is "$status $(field "$out" .ok)" "1 false" "one without its layer stays"
	run timeout 60 dsec-pause --stop "$layer"
	is "$status $(field "$out" '.state+" "+.outcome')" "0 stopped killed" \
		"and can be ended without being recovered"

	# No room for another sandbox: refused, kept.
	run timeout 60 dsec-pause --disk named
	kill_box named
	echo '{"max_sandboxes":1}' >"$DSEC_CONFIG/node.json"
	run timeout 60 dsec-pause --resume "$named"
	is "$status $(field "$out" .error.code)" "75 count" "no room: told"
	is "$(dsec-ps "$named" | jq -r '"\(.state) \(.recovery)"')" "paused true" \
		"and kept"
	rm "$DSEC_CONFIG/node.json"
	run timeout 60 dsec-pause --resume named
	is "$status $(field "$out" .state)" "0 running" \
		"with room it comes back, by its name"

	run timeout 100 dsec-pause --stop --grace 0 --project root
	is "$status" 0 "all end"
	run timeout 60 dsec-doctor --leaks
	json_is "$out" '{"ok":true,"leaks":0}' "nothing is left"
	done_testing
}

if [ -z "${REBOOT_LIFE:-}" ]; then
	first_life
	crash
	export REBOOT_LIFE=2 REBOOT_TREE="$T" m named layer frozen runs before pids \
		DSEC_LIB
	export REBOOT_N="$tap_n" REBOOT_BAD="$tap_bad"
	exec unshare --mount --propagation private "$0"
fi
tap_n=$REBOOT_N
tap_bad=$REBOOT_BAD
T=$REBOOT_TREE
DSEC_TREE=$T
second_life
