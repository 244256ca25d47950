#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The last of the first life: what a crash of the machine shall meet.  In the
# default places, as a node has them; guest.2 looks at what is left.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../../tap.sh"
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/../../sys/matrix.sh"
need_root
unset DSEC_RUN DSEC_LIB DSEC_CONFIG DSEC_CGROUP
PATH=$BIN:$PATH
T=/root/left
mkdir -p "$T"

cat /proc/sys/kernel/random/boot_id >"$T/boot_id"
run dsec-doctor --fix --pool-size 1G
is "$status" 0 "dsec-doctor --fix makes the node fit, with a pool"
diag "$(printf '%s\n' "$out" "$err" | grep -E ': (error|warning)|fixed')"
for name in idle busy frozen stopped; do
	run dsec-run --name "$name" --label kept="$name" \
		--memory 64M --detach -- true
	is "$status" 0 "a sandbox: $name"
	field "$out" .sandbox >"$T/$name"
done
run dsec-exec idle --step 1 --cmd 'echo first >/srv/done; echo first'
is "$(field "$out" .outcome)" exited "a numbered step in one" || diag "$out"
run dsec-exec busy --detach --cmd 'sleep 3600'
is "$status" 0 "a command that runs on in one"
run dsec-pause frozen
is "$status" 0 "one is frozen"
run dsec-pause --stop stopped
is "$status" 0 "one is stopped"
dsec-ps --all >"$T/ps"
ok $? "they are listed"

# One that is paused to disk survives: it has counted to 2.
why=$(checkpoint_why)
printf '%s' "$why" >"$T/disk.why"
if [ -s "$T/disk.why" ]; then
	skip "one is paused to disk" "$(cat "$T/disk.why")"
else
	matrix_image
	ok $? "an image that can be checkpointed"
	run dsec-run --name disk --label kept=disk --image root/matrix:1 \
		--memory 64M --detach -- true
	field "$out" .sandbox >"$T/disk"
	# shellcheck disable=SC2016 # the inner shell's
	dsec-exec disk --detach --cmd 'mkfifo /srv/ask; n=0; while :; do
		read x </srv/ask || continue
		n=$((n + 1)); echo $n >/srv/answer; done' >"$T/.o"
	for n in 1 2; do
		run timeout 60 dsec-exec disk -- sh -c 'rm -f /srv/answer
			until [ -p /srv/ask ]; do sleep 0.1; done; echo >/srv/ask
			until [ -s /srv/answer ]; do sleep 0.1; done
			cat /srv/answer'
		is "$out" $n "a process in it counts: $n" || diag "$err"
	done
	run timeout 120 dsec-pause --level disk disk
	is "$status $(field "$out" '.state+" "+.level')" "0 paused disk" \
		"one is paused to disk" || diag "$out$err"
fi

# The disk is to have this test's notes; what is DSEC_LIB's is its own matter.
sync "$T" "$T"/*
done_testing
