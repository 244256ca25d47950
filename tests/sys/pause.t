#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Pause, resume and stop of real sandboxes: what cannot be frozen goes on, what
# is paused can be stopped, and nothing is ever left.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
tree_new

create() { # FIELDS... as JSON
	printf '%s\n' "$@" | dsec-run >"$T/created" 2>"$T/.err"
	jq -r .sandbox "$T/created"
}

alive() { # SANDBOX
	[ "$(timeout 10 dsec-exec "$1" -- echo alive 2>/dev/null)" = alive ]
}

s=$(create '{"name":"warm-up"}')
run timeout 30 dsec-pause --stop warm-up
leak_start

# --- pause and resume; what is recorded stays as it was (field report 51)
s=$(create '{"name":"one","task":"job","project":"root/rl","labels":{"k":"v"},"user":"me","memory_limit_mb":64}')
before=$(dsec-ps "$s" | jq -cS 'del(.state,.level,.since_ms,.idle_ms,.cpu_ms,
	.memory_bytes,.memory_peak_bytes,.pids)')
run timeout 30 dsec-pause --freeze one
json_is "$out" '{"id":1,"sandbox":"'"$s"'","ok":true,"state":"paused",
	"level":"freeze","generation":1}' "the record of a pause" 'del(.since_ms)'
is "$(dsec-ps | jq -r '.state+" "+.level')" "paused freeze" "listed as paused"
json_is "$(dsec-ps "$s")" "$before" \
	"paused: labels, project, limits and times are the same" \
	'del(.state,.level,.since_ms,.idle_ms,.cpu_ms,
	.memory_bytes,.memory_peak_bytes,.pids)'
is "$(dsec-ps --label k=v | jq -r .sandbox)" "$s" "and its label still finds it"
is "$(dsec-ps | jq -r .state)" paused "looking does not resume it"
run timeout 30 dsec-pause one
is "$status $(field "$out" .state)" "0 paused" "pausing twice is fine"
alive one
ok $? "a command resumes it"
is "$(dsec-ps | jq -r .state)" running "and it says so"
run timeout 30 dsec-pause --resume one
is "$status $(field "$out" .state)" "0 running" "resuming a running one is fine"

# --- a freeze that fails: the file cannot be written (field report 47)
freezer=$(for f in /sys/fs/cgroup/*/"$DSEC_CGROUP/$s"/cgroup.freeze \
	/sys/fs/cgroup/"$DSEC_CGROUP/$s"/cgroup.freeze; do
	[ -e "$f" ] && echo "$f"
done)
# What its supervisor has open goes when all is quiet.
sup=$(dsec-ps "$s" | jq .supervisor_pid)
# shellcheck disable=SC2317 # by wait_for
freezer_closed() {
	! find "/proc/$sup/fd" -lname '*/cgroup.freeze' | grep -q .
}
wait_for 10 freezer_closed
ok $? "a supervisor in peace keeps no file of its control group open"
if [ -n "$freezer" ] && mount --bind /dev/full "$freezer"; then
	run timeout 30 dsec-pause --freeze one
	umount "$freezer"
	ok $? "... and keeps nothing of it open"
	is "$status $(field "$out" .ok)" "71 false" "a pause that fails says so"
	is "$(dsec-ps | jq -r .state)" running "and it is running, as listed"
	alive one
	ok $? "really"
else
	skip "a pause that fails" "no cgroup.freeze here"
fi

# --- many changes without a gap, in order for each (field report 48,
# field report 66)
ids=$(create '{"task":"t"}' '{"task":"t"}' '{"task":"t"}' '{"task":"t"}')
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
	for id in $ids; do
		printf '{"sandbox":"%s","level":"freeze"}
{"sandbox":"%s","op":"resume"}\n' \
			"$id" "$id"
	done
done >"$T/storm"
for id in $ids; do
	(i=0; while [ $i -lt 5 ]; do
		alive "$id" || echo bad
		i=$((i + 1))
	done >"$T/ran.$id") &
done
timeout 60 dsec-pause <"$T/storm" >"$T/storm.out"
is "$?" 0 "120 pauses and resumes, and commands in between"
wait
is "$(jq -r .ok "$T/storm.out" | sort | uniq -c | tr -d ' ')" 120true \
	"each is answered"
is "$(cat "$T"/ran.*)" "" "every command ran"
is "$(dsec-ps --task t | jq -r .state | sort -u)" running "all run at the end"

# --- stop, by selector, in any state, more than once (field report 49)
run timeout 30 dsec-pause --freeze --task t
is "$status $(printf '%s\n' "$out" | grep -c '"paused"')" "0 4" "a task pauses"
run timeout 30 dsec-pause --stop --task t
is "$status $(printf '%s\n' "$out" |
	jq -r '"\(.id) \(.state) \(.outcome) \(.infra)"' | sort -u)" \
	"0 1 stopped killed false" "paused ones stop, a record each"
run timeout 30 dsec-pause --stop --task t
json_is "$out" '{"id":1,"ok":true,"count":0}' "nobody is left in the task"
for id in $ids; do
	run timeout 30 dsec-pause --stop "$id"
	is "$status $(field "$out" '.state+" "+.outcome')" "0 stopped killed" \
		"stopped again: the same answer"
	break
done
run timeout 30 dsec-pause --resume "$id"
is "$status $(field "$out" .error.code)" "1 stopped" "nothing resumes it"
run timeout 30 dsec-pause --stop aaaaaaaaaaaaaaaaaaaa nobody
is "$status $(printf '%s\n' "$out" | jq -r .error.code | sort -u)" \
	"1 sandbox_unknown" "unknown ones are told"

# --- the grace time
s2=$(create '{"command":["/bin/sh","-c","trap \"\" TERM; while :; do sleep 1; done"]}')
begin=$(date +%s%N)
run timeout 30 dsec-pause --stop --grace 500ms "$s2"
took=$((($(date +%s%N) - begin) / 1000000))
is "$status $(field "$out" .outcome)" "0 killed" "what ignores SIGTERM is killed"
[ "$took" -ge 450 ] && [ "$took" -lt 5000 ]
ok $? "after the grace time ($took ms)"

# --- the project and all below it
s3=$(create '{"project":"root/rl/a"}')
s4=$(create '{"project":"root/rlx"}')
run timeout 30 dsec-pause --stop --project root/rl
is "$(printf '%s\n' "$out" | jq -r .sandbox | sort | tr '\n' ,)" \
	"$(printf '%s\n' "$s" "$s3" | sort | tr '\n' ,)" "a project's subtree"
is "$(dsec-ps | jq -r .sandbox)" "$s4" "and no other"

# --- dsec-pause killed half way does no harm
for delay in 0 0.01 0.03; do
	victim=$(create '{}')
	dsec-pause --stop "$victim" >/dev/null &
	sleep "$delay"
	kill -KILL $! 2>/dev/null
	run timeout 30 dsec-pause --stop "$victim"
	is "$status $(field "$out" .outcome)" "0 killed" \
		"killed after $delay s, repeated"
done

# --- a supervisor that is killed
s5=$(create '{"name":"lost"}')
kill -KILL "$(dsec-ps lost | jq .supervisor_pid)"
run dsec-ps --wait --timeout 5s "$s5"
is "$status $(field "$out" '.outcome+" "+(.infra|tostring)')" \
	"0 supervisor-lost true" "a killed supervisor ends its sandbox"
is "$(dsec-ps | jq -r "select(.sandbox==\"$s5\").state" | grep -v stopped)" "" \
	"it is not listed as running"
run timeout 30 dsec-pause --freeze "$s5"
is "$status $(field "$out" .error.code)" "69 supervisor_lost" "not to be paused"
run timeout 30 dsec-pause --stop "$s5"
is "$status $(field "$out" .outcome)" "0 supervisor-lost" "stop cleans it up"
run timeout 30 dsec-pause --stop "$s5"
is "$status" 0 "twice"

# --- a name is free at once (field report 69)
bad=0
for _ in 1 2 3 4 5 6 7 8 9 10; do
	again=$(create '{"name":"again"}')
	dsec-pause --stop --grace 0 again >"$T/again" || bad=$((bad + 1))
	[ "$again" != null ] || bad=$((bad + 1))
done
is $bad 0 "stop and create with the same name, ten times without a gap"

# --- a one-shot is ended through its owner
dsec-run --rm --name shot -- sleep 60 >/dev/null 2>&1 &
owner=$!
# shellcheck disable=SC2317 # by wait_for
shot_there() {
	dsec-ps shot 2>/dev/null | jq -e '.ok' >/dev/null
}
wait_for 10 shot_there
run timeout 30 dsec-pause --freeze shot
is "$status $(field "$out" .error.code)" "1 one_shot" "it cannot be paused"
run timeout 30 dsec-pause --stop shot
is "$status $(field "$out" .state)" "0 stopped" "it can be stopped"
wait $owner
isnt $? 0 "and its owner knows"

run timeout 30 dsec-pause --stop "$s4"
leak_check "nothing of all that is left"
run dsec-doctor --leaks
json_is "$out" '{"ok":true,"leaks":0}' "dsec-doctor finds nothing either"

done_testing
