#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The last of the first life: what a crash of the machine shall meet.  In the
# default places, as a node has them; guest.2 looks at what is left.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../../tap.sh"
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

# The disk is to have this test's notes; what is DSEC_LIB's is its own matter.
sync "$T" "$T"/*
done_testing
