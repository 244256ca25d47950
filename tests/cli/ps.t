#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dsec-ps on claims and states made by hand: what it says must be true whatever
# the files of a dead supervisor say.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_tools jq flock
tree_new

a=aaaaaaaaaaaaaaaaaaaa
b=bbbbbbbbbbbbbbbbbbbb
c=cccccccccccccccccccc

state() { # ID STATE SINCE
	echo "{\"state\":\"$2\",\"since_ms\":$3,\"generation\":1}" \
		>"$DSEC_RUN/sb/$1/.state"
	mv "$DSEC_RUN/sb/$1/.state" "$DSEC_RUN/sb/$1/state.json"
}

# A claim, and a process that holds its lock until it is killed.  It has its name
# when it is whole and locked, as claims have.
live() { # ID CLAIM
	mkdir -p "$DSEC_RUN/sb/$1"
	mkfifo "$T/hold.$1"
	sh -c 'exec 9>"$1/.claim"; flock -x 9
		printf %s "$2" | jq -c ".pid=$$" >&9
		mv "$1/.claim" "$1/claim.json"; read -r x <"$3"' \
		hold "$DSEC_RUN/sb/$1" "$2" "$T/hold.$1" >"$T/null" &
	eval "hold_$1=$!"
	wait_for 5 test -s "$DSEC_RUN/sb/$1/claim.json"
}

die() { # ID
	eval "kill \$hold_$1"
	eval "wait \$hold_$1" 2>/dev/null
}

dead() { # ID OUTCOME SPEC
	mkdir -p "$DSEC_LIB/dead/2026010100"
	echo "{\"sandbox\":\"$1\",\"outcome\":\"$2\",\"infra\":false,
	\"ended_ms\":5,\"spec\":$3}" >"$DSEC_LIB/dead/2026010100/$1.json"
}

run dsec-ps
is "$status $out" "0 " "no tree: an empty list"

mkdir -p "$DSEC_RUN/sb" "$DSEC_RUN/task/t"
live $a '{"sandbox":"'$a'","kind":"supervised","name":"one","task":"t","project":"root/x","labels":{"k":"v"},"created_ms":1}'
state $a running 7
ln -s $a "$DSEC_RUN/task/t/$a"
mkdir "$DSEC_RUN/name"
ln -s $a "$DSEC_RUN/name/one"
run dsec-ps
json_is "$out" '{"sandbox":"'$a'","ok":true,"kind":"supervised","name":"one",
	"task":"t","project":"root/x","labels":{"k":"v"},"created_ms":1,
	"state":"running","since_ms":7,"generation":1}' "the whole record"
is "$status" 0 "status 0"

live $b '{"sandbox":"'$b'","kind":"supervised","project":"root"}'
live $c '{"sandbox":"'$c'","kind":"one-shot","project":"root/xy"}'
state $b running 8
run dsec-ps
is "$(printf '%s\n' "$out" | jq -r '.sandbox+" "+.state' | sort | tr '\n' ,)" \
	"$a running,$b running,$c running," "three, a line each"
for sel in "--task t" "--project root/x" "--label k=v"; do
	# shellcheck disable=SC2086
	run dsec-ps $sel
	is "$(field "$out" .sandbox)" $a "selected by $sel"
done
run dsec-ps --label k=w
is "$out" "" "nothing fits"

# The owner dies: state.json says running for ever.
die $b
run dsec-ps $b
json_is "$out" '["stopped","supervisor-lost",true]' \
	"a lost supervisor is never running" '[.state,.outcome,.infra]'

dead dddddddddddddddddddd oom '{"name":"old","project":"root/x"}'
run dsec-ps dddddddddddddddddddd
json_is "$out" '{"id":1,"sandbox":"dddddddddddddddddddd","ok":true,
	"state":"stopped","outcome":"oom","infra":false,"ended_ms":5,
	"name":"old","project":"root/x"}' "one that ended, from its record"
run dsec-ps --all --project root/x
is "$(printf '%s\n' "$out" | jq -r .sandbox | sort | tr '\n' ,)" \
	"$a,dddddddddddddddddddd," "--all adds those that ended"
dead $a killed '{"project":"root/x"}'
run dsec-ps --all --project root/x
is "$(printf '%s\n' "$out" | grep -c $a)" 1 "in the list once"

run dsec-ps nosuch
is "$status $(field "$out" .error.code)" "1 sandbox_unknown" "unknown name"
run dsec-ps --nosuch
is "$status" 64 "unknown flag"

run dsec-ps --table
like "$out" "^SANDBOX +NAME +STATE" "a table for people"
like "$out" "^$b .*stopped/supervisor-lost" "with the outcome"

# --- wait
run dsec-ps --wait --timeout 50ms $a
is "$status $(field "$out" .error.code)" "75 deadline" "--wait gives up in time"
run dsec-ps --wait dddddddddddddddddddd $b
is "$(printf '%s\n' "$out" | jq -r '"\(.id) \(.outcome)"' | sort | tr '\n' ,)" \
	"1 oom,2 supervisor-lost," "--wait for what ended already"
rm "$DSEC_LIB/dead/2026010100/$a.json"
echo '{"id":"w","sandbox":"one"}' | dsec-ps --wait >"$T/wait" &
waiter=$!
dsec-ps --wait $a $a >"$T/wait2" &
waiter2=$!
sleep 0.2
is "$(cat "$T/wait" "$T/wait2")" "" "--wait says nothing before the end"
die $a
wait $waiter
is "$? $(jq -r '.id+" "+.outcome' "$T/wait")" "0 w supervisor-lost" \
	"--wait sees a supervisor die, of which no file tells"
wait $waiter2
is "$(jq -r .outcome "$T/wait2" | tr '\n' ,)" \
	"supervisor-lost,supervisor-lost," "each request is answered"
live eeeeeeeeeeeeeeeeeeee '{"kind":"supervised"}'
state eeeeeeeeeeeeeeeeeeee running 1
dsec-ps --wait eeeeeeeeeeeeeeeeeeee >"$T/wait" &
waiter=$!
dead eeeeeeeeeeeeeeeeeeee ttl_idle '{}'
state eeeeeeeeeeeeeeeeeeee stopped 2
wait $waiter
is "$(jq -r .outcome "$T/wait")" ttl_idle "--wait sees a stop"
die eeeeeeeeeeeeeeeeeeee
rm -rf "$DSEC_RUN/sb/eeeeeeeeeeeeeeeeeeee"

# --- watch
rm -rf "$DSEC_RUN/sb/$a" "$DSEC_RUN/sb/$b"
: >"$T/watch"
dsec-ps --watch >"$T/watch" &
watcher=$!
# shellcheck disable=SC2317 # by wait_for
seen() { # N
	[ "$(wc -l <"$T/watch")" -ge "$1" ]
}
wait_for 5 seen 1
rm -f "$T/hold.$a"
live $a '{"sandbox":"'$a'","kind":"supervised","name":"new"}'
wait_for 5 seen 2
state $a running 1
wait_for 5 seen 3
state $a paused 2
wait_for 5 seen 4
state $a running 3
wait_for 5 seen 5
dead $a killed '{}'
state $a stopped 4
wait_for 5 seen 6
die $a
rm -rf "$DSEC_RUN/sb/$a"
die $c
wait_for 5 seen 8
kill $watcher
wait $watcher 2>/dev/null
is "$(jq -r "select(.sandbox==\"$a\")|\"\(.event) \(.state) \(.outcome)\"" \
	"$T/watch" | tr '\n' ,)" \
	"created creating null,state running null,state paused null,state running null,state stopped null,ended null killed," \
	"--watch: every change once, in order"
is "$(jq -r "select(.sandbox==\"$c\")|\"\(.event) \(.outcome)\"" \
	"$T/watch" | tr '\n' ,)" "created null,state null,ended supervisor-lost," \
	"--watch: what was there, and a death"

done_testing
