#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How sandboxes end, and that dsec-ps tells it: ttl, memory, a dead pid 1, a dead
# supervisor; the events of a whole life.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
tree_new

create() { # FIELDS... as JSON
	printf '%s\n' "$@" | dsec-run >"$T/created" 2>"$T/.err"
	jq -r .sandbox "$T/created"
}

s=$(create '{}')
run timeout 30 dsec-pause --stop "$s"
leak_start

# --- the events of a life
: >"$T/watch"
dsec-ps --watch --label w=1 >"$T/watch" &
watcher=$!
s=$(create '{"name":"life","labels":{"w":"1"}}')
other=$(create '{}')
for op in --freeze --resume --stop; do
	run timeout 30 dsec-pause $op life
done
# shellcheck disable=SC2317 # by wait_for
seen_end() {
	grep -q '"ended"' "$T/watch"
}
wait_for 10 seen_end
kill $watcher
wait $watcher 2>/dev/null
is "$(jq -r '.event' "$T/watch" | sed -n '1p;$p' | tr '\n' ,)" \
	"created,ended," "--watch: born once, dead once"
is "$(jq -r 'select(.event=="created" or .event=="ended").event' "$T/watch" |
	wc -l)" 2 "no more than that"
like "$(jq -r .state "$T/watch" | tr '\n' ,)" 'paused,running,' \
	"paused and running again in between"
is "$(jq -r .sandbox "$T/watch" | sort -u)" "$s" "no other is told of"
run timeout 30 dsec-pause --stop "$other"

# --- inspection
s=$(create '{"name":"stats","memory_limit_mb":64}')
dsec-exec stats -- sleep 60 >/dev/null 2>&1 &
exec_pid=$!
# shellcheck disable=SC2317 # by wait_for
busy() {
	[ "$(dsec-ps stats | jq .execs)" = 1 ]
}
wait_for 10 busy
ok $? "a running command counts"
run dsec-ps stats
is "$(field "$out" '[.memory_bytes,.cpu_ms,.pids]|map(type)|unique[]')" number \
	"numbers of its use"
is "$(field "$out" '.pids >= 2')" true "pid 1 and the command"
run dsec-ps
is "$(field "$out" 'has("memory_bytes")')" false "the list asks nobody"
run dsec-ps --stats
is "$(field "$out" 'has("memory_bytes")')" true "unless told to"

# --- a client's death is none of a sandbox's (field report 52)
kill -KILL $exec_pid
wait $exec_pid 2>/dev/null
is "$(dsec-ps | jq -r .state)" running "dsec-exec is killed: it runs on"

# --- a stop that was answered: what is still taken apart behind it is stopped.
# Its end waits for the ledger, with nothing left of it but the claim.
behind=$(create '{"name":"behind"}')
exec 9<"$DSEC_RUN/ledger"
flock 9
run timeout 30 dsec-pause --stop --grace 0 behind
is "$status $(field "$out" .state)" "0 stopped" "a stop is answered"
# shellcheck disable=SC2317 # by wait_for
taken_apart() {
	[ ! -e "$DSEC_RUN/sb/$behind/ctl.sock" ] && [ ! -e "$DSEC_LIB/sb/$behind" ]
}
wait_for 10 taken_apart
ok $? "all of it goes"
ok "$([ -e "$DSEC_RUN/sb/$behind/claim.json" ]; echo $?)" "but its claim"
is "$(dsec-ps | jq -r "select(.sandbox==\"$behind\") | .state+\" \"+.outcome")" \
	"stopped killed" "which is listed as stopped, with its outcome"
run timeout 10 dsec-ps "$behind"
is "$(field "$out" '.state+" "+.outcome')" "stopped killed" "by its id too"
exec 9<&-
# shellcheck disable=SC2317 # by wait_for
unlisted() {
	[ -z "$(dsec-ps | jq -r "select(.sandbox==\"$behind\")")" ]
}
wait_for 10 unlisted
ok $? "and at last not at all"

# --- memory: the command dies of it, the sandbox does not (field report 56)
run timeout 30 dsec-exec --cmd 'tail /dev/zero' stats
json_is "$out" '["oom",64]' "out of memory is told, with the limit" \
	'[.outcome,.oom.limit_mb]'
run timeout 30 dsec-exec stats -- echo alive
is "$out" alive "the sandbox lives on"

# --- a killed command's group is not used again (field report 59)
bad=0
for _ in 1 2 3 4 5 6 7 8; do
	timeout 20 dsec-exec --cmd 'sleep 9' --timeout 50ms stats >"$T/x"
	[ "$(jq -r .outcome "$T/x")" = timeout ] || bad=$((bad + 1))
	[ "$(timeout 20 dsec-exec stats -- echo x)" = x ] || bad=$((bad + 1))
done
is $bad 0 "after kills, commands run and die of nothing"

# --- pid 1 is killed (field report 55)
kill -KILL "$(dsec-ps stats | jq .init_pid)"
run timeout 20 dsec-ps --wait --timeout 10s "$s"
is "$(field "$out" '.outcome+" "+(.infra|tostring)')" "died true" \
	"a dead pid 1 ends it, with the cause"
run timeout 20 dsec-exec "$s" -- true
is "$status" 125 "a command in it fails"
like "$err" 'died' "and says why"
run dsec-ps "$s"
is "$(field "$out" '.state+" "+.outcome')" "stopped died" "the cause is kept"
is "$(dsec-ps --all | jq -r "select(.sandbox==\"$s\").outcome")" died \
	"also in the list"

# --- ttl: commands are activity, silence is not (field report 54)
s=$(create '{"name":"idle","ttl_running_stop":1}')
run timeout 30 dsec-exec idle -- sh -c 'sleep 2.2; echo done'
is "$out" "done" "a silent command longer than the idle time ends by itself"
run timeout 20 dsec-ps --wait --timeout 15s "$s"
is "$(field "$out" .outcome)" ttl_idle "then the idle time passes"
s=$(create '{"ttl_absolute":1}')
run timeout 20 dsec-ps --wait --timeout 15s "$s"
is "$(field "$out" .outcome)" ttl_absolute "the absolute one"
s=$(create '{"ttl_paused":1,"ttl_running_stop":1}')
run timeout 20 dsec-pause --freeze "$s"
run timeout 20 dsec-ps --wait --timeout 15s "$s"
is "$(field "$out" .outcome)" ttl_paused "and a pause that lasts"

# --- another user may not see, and is told so rather than something false
s=$(create '{"name":"ours"}')
if setpriv --reuid 65534 --clear-groups "$BIN/dsec-ps" -h >/dev/null 2>&1; then
	for word in ours "$s"; do
		for prog in dsec-ps dsec-pause "dsec-net --show"; do
			# shellcheck disable=SC2086 # words
			run timeout 10 setpriv --reuid 65534 --clear-groups \
				"$BIN"/$prog "$word"
			is "$status $(field "$out" .error.code)" \
				"77 not_root" "$prog of another user"
			like "$out" "are root's: sudo does it, or .* --server" \
				"... is told the way out"
		done
	done
	for args in "dsec-exec ours -- true" "dsec-admit --report" dsec-ps \
		"dsec-fork ours" "dsec-run -- true"; do
		# shellcheck disable=SC2086 # words
		run timeout 10 setpriv --reuid 65534 --clear-groups "$BIN"/$args
		like "$err" "are root's: sudo does it, or .* --server" \
			"so is $args"
	done
else
	skip "another user" "cannot execute these programs"
fi
run timeout 20 dsec-pause --stop "$s"

# --- by the name of one that has ended: the last
for _ in 1 2; do
	s=$(create '{"name":"tt","ttl_absolute":1}')
	run timeout 20 dsec-ps --wait "$s"
done
run dsec-exec tt -- true
like "$status $err" "^125 .*$s \\('tt'\\) has ended: ttl_absolute" \
	"a command for it is told so"
run dsec-ps --all tt
json_is "$out" "[\"$s\",\"stopped\",\"ttl_absolute\",\"tt\"]" "it is shown" \
	'[.sandbox,.state,.outcome,.name]'
run timeout 20 dsec-ps --wait tt
json_is "$out" "[\"$s\",\"ttl_absolute\"]" "and need not be waited for" \
	'[.sandbox,.outcome]'
run timeout 20 dsec-pause --stop tt
is "$status $(field "$out" .sandbox)" "0 $s" "nor stopped"
s=$(create '{"name":"tt"}')
is "$(field "$(dsec-ps tt)" .sandbox)" "$s" "a live one has its name back"
run timeout 20 dsec-pause --stop "$s"
run dsec-ps ../tt
is "$(field "$out" .error.code)" sandbox_unknown "no path is a name"

# --- many at once
# shellcheck disable=SC2046
ids=$(create $(yes '{"ttl_absolute":2}' | head -n 10))
# shellcheck disable=SC2086
run timeout 30 dsec-ps --wait $ids
is "$status $(printf '%s\n' "$out" | jq -r .outcome | sort | uniq -c |
	tr -d ' ')" "0 10ttl_absolute" "--wait for ten"

leak_check "nothing of all that is left"
run dsec-doctor --leaks
json_is "$out" '{"ok":true,"leaks":0}' "dsec-doctor finds nothing either"

done_testing
