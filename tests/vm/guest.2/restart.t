#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# After the machine went down under its sandboxes (guest.1/leave.t): what was
# lost is said, with its cause, nothing is left of it, and the node works.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../../tap.sh"
need_root
unset DSEC_RUN DSEC_LIB DSEC_CONFIG DSEC_CGROUP
PATH=$BIN:$PATH
T=/root/left

[ ! -e /run/dsec ]
ok $? "what was on tmpfs is gone"
for name in idle busy frozen; do
	[ -e "/var/lib/dsec/sb/$(cat "$T/$name")/spec.json" ]
	ok $? "the spec of a sandbox has survived: $name"
done

# disk: what is paused to disk, where the first life could do that
disk=
[ -s "$T/disk.why" ] || disk=$(cat "$T/disk")
listed() {
	dsec-ps | jq -r --arg id "$disk" 'select(.sandbox == $id) |
		[.state, .level, .recovery // false] | join(" ")'
}
[ -z "$disk" ] || is "$(listed)" "paused disk true" \
	"one that was paused to disk is listed, to be recovered"

run dsec-doctor
diag "$(printf '%s\n' "$out" | grep -v ' yes$')"
run dsec-doctor --leaks
for name in idle busy frozen; do
	like "$out" "$(cat "$T/$name")" "dsec-doctor names what was lost: $name"
done
[ -z "$disk" ] || unlike "$out" "$disk" "but not what is paused to disk"
run dsec-doctor --fix
is "$status" 0 "dsec-doctor --fix" || diag "$out$err"
[ -z "$disk" ] || is "$(listed)" "paused disk false" \
	"it recovers what was paused to disk, which waits on"
run dsec-doctor --leaks
is "$status" 0 "dsec-doctor --leaks: clean"
diag "$out"

run dsec-ps --all
ended() {
	printf '%s\n' "$out" | jq -r --arg id "$(cat "$T/$1")" \
		'select(.sandbox == $id) | [.state, .outcome, .infra] | join(" ")'
}
for name in idle busy frozen; do
	is "$(ended "$name")" "stopped node-lost true" \
		"its end has its cause: $name"
done
is "$(ended stopped)" "stopped killed false" \
	"one that ended before has its own"

if [ -n "$disk" ]; then
	run timeout 120 dsec-exec disk -- sh -c 'rm -f /srv/answer; echo >/srv/ask
		until [ -s /srv/answer ]; do sleep 0.1; done; cat /srv/answer'
	is "$status $out" "0 3" "what was paused to disk counts on" ||
		diag "$err"
	run timeout 60 dsec-pause --stop disk
	is "$status" 0 "and can be stopped"
else
	skip "what was paused to disk goes on" "$(cat "$T/disk.why")"
fi

run dsec-exec idle --cmd true
isnt "$status" 0 "an operation on a lost one fails"
run dsec-run --name idle --rm -- echo again
is "$out" again "the node works, and the name is free" || diag "$err"
done_testing
