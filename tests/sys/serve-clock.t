#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # status, out, err come from run
#
# The clock of a node and of a control is set while they serve (clock_preload.c):
# nothing that lasts ends early, nobody connects with certificates that are not
# valid yet or have expired, and all goes on when the clock is right again, or
# the certificates are made anew, without a restart.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq python3
tree_new

D=$T/serve
shim=$BUILD/helpers/clock_preload.so
[ -e "$shim" ] || plan_skip_all "needs $shim"
[ -z "${SAN:-}${VALGRIND:-}" ] || plan_skip_all "a sanitizer is loaded first"
shim=$(realpath "$shim")
node='' control=''
finish() {
	for p in "$control" "$node"; do kill "$p"; done 2>/dev/null
	wait
	tree_end "$1"
}
trap 'finish $?' EXIT

DAY=86400
set_clock() { # WHOSE SECONDS
	python3 -c 'import os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.pwrite(fd, struct.pack("=q", int(sys.argv[2])), 0)' "$T/clock-$1" "$2"
}
all_clocks() { for w in node control client; do set_clock "$w" "$1"; done; }
by() { # WHOSE COMMAND...: by that clock
	by=$1
	shift
	env CLOCK_STEP="$T/clock-$by" LD_PRELOAD="$shim" "$@"
}
serve() { # ROLE
	: >"$T/ready"
	CLOCK_STEP="$T/clock-$1" LD_PRELOAD="$shim" "$BIN/dsec-serve" "$1" "$D" \
		--ready-fd 9 9>"$T/ready" 2>>"$T/log-$1" &
	served=$!
	wait_for 30 test -s "$T/ready" || diag "$(tail "$T/log-$1")"
	read -r _ address <"$T/ready"
}
conf() { # JQ-FILTER [ARG...]
	filter=$1
	shift
	jq "$@" "$filter" "$D/serve.json" >"$D/.new" && mv "$D/.new" "$D/serve.json"
}
ask() { # PROGRAM; requests on stdin
	by client timeout 60 "$BIN/dsec-serve" client --server "$to" --ca "$D/ca.pem" \
		--cert "$D/client.pem" --key "$D/client.key" "$@"
}
one() { # PROGRAM REQUEST
	printf '%s\n' "$2" | ask "$1" 2>"$T/asked" | jq -c 'select(has("ok"))'
}
hi() {
	one exec '{"sandbox":"a","command":["echo","hi"]}' | jq -r '.stdout // empty'
}
look() { # at the sandbox
	echo '{"sandbox":"a"}' | ask ps | jq -sc 'map(.record // .)[0]'
}
is_hi() { [ "$(hi)" = hi ]; }
state() { ask nodes </dev/null 2>/dev/null | jq -r 'select(.name == "one").state'; }
is_state() { [ "$(state)" = "$1" ]; }
ready() { # ADDRESS: what it says
	python3 -c 'import sys, urllib.request, urllib.error
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=10).status)
except urllib.error.HTTPError as e:
    print(e.code, e.read().decode().strip())' "http://$1/readyz"
}
is_ready() { [ "$(ready "$1")" = "$2" ]; }
said() { grep -q "$2" "$T/log-$1"; }
logs() { tail -n 5 "$T/asked" "$T/log-control" "$T/log-node"; }
worker() {
	# shellcheck disable=SC2013 # words of one line
	for p in $(cat "/proc/$node/task/$node/children"); do
		case $(tr '\0' ' ' <"/proc/$p/cmdline") in
		"dsec-serve node-worker ") echo "$p" ;;
		esac
	done
}

all_clocks 0
dsec-serve init "$D" --name one >/dev/null
node_watch=$(own_address):9101 control_watch=$(own_address):9102
conf '.node.listen = ["127.0.0.1:0"] | .node.metrics = $m' --arg m "$node_watch"
serve node
node=$served one=$address
conf '.control = {listen:["127.0.0.1:0"], nodes:[{name:"one",address:$a}],
	metrics:$m}' --arg a "$one" --arg m "$control_watch"
serve control
control=$served to=$address
wait_for 20 is_state live

# --- a step, while requests are under way ------------------------------------

box='{"name":"a","memory_limit_mb":64,"ttl_running_stop":600,"ttl_absolute":3600,
	"key":"k"}'
box=$(printf %s "$box" | tr -d '\n\t')
rec=$(one run "$box")
json_is "$rec" true "a sandbox that may live for an hour" .ok
id=$(field "$rec" .sandbox)
wait='while [ ! -e /tmp/go ]; do sleep 0.1; done; echo'
printf '{"id":%d,"sandbox":"a","deadline_ms":60000,"command":"%s"}\n' \
	1 "$wait one" 2 "$wait two" |
	ask exec >"$T/under-way" 2>"$T/under-way.err" &
asker=$!
running() {
	[ "$(grep -c started "$T/under-way")" = 2 ]
}
wait_for 20 running
ok $? "two commands are under way" || diag "$(cat "$T/under-way")"
for step in $DAY 0 $((2 * DAY)); do
	all_clocks "$step"
	is "$(hi)" hi "the clock is $step s ahead: it is served" || diag "$(logs)"
	json_is "$(one run "$box")" "[true,\"$id\"]" "the key is known" \
		'[.repeated,.sandbox]'
	json_is "$(by node dsec-admit --report)" 1 "the claim is held" .held.sandboxes
	is "$(state)" live "the node is live"
done
one exec '{"sandbox":"a","command":["touch","/tmp/go"]}' >/dev/null
wait "$asker"
is "$(jq -r 'select(has("ok")) | .stdout' "$T/under-way" | sort | tr -s '\n' ' ')" \
	' one two ' "what was under way ended as it would have" ||
	diag "$(cat "$T/under-way")"
json_is "$(look)" '"running"' "no ttl is over" .state

# --- not valid yet -----------------------------------------------------------

all_clocks 0
set_clock node $((-DAY))
wait_for 20 is_ready "$node_watch" "503 the certificate is not valid yet"
ok $? "a node whose clock is a day behind says so" || diag "$(ready "$node_watch")"
wait_for 20 said node 'is not valid for'
ok $? "and its log does"
is "$(hi)" hi "who is connected is served"
kill -KILL "$(worker)" # the control must connect anew
wait_for 20 is_state away
ok $? "who connects is not let in: the node is away"
json_is "$(one exec '{"sandbox":"a","command":"true"}')" '["node_away",true,true]' \
	"its sandboxes cannot be reached for now" \
	'[.error.code, .error.infra, (.error.retry_after_ms > 0)]'
set_clock node 0
wait_for 30 is_hi
ok $? "with the clock right again, all goes on" || diag "$(logs)"

set_clock control $((-DAY))
wait_for 20 is_ready "$control_watch" "503 the certificate is not valid yet"
ok $? "so does a control"
is "$(hi)" '' "nobody connects to it"
like "$(cat "$T/asked")" 'certificate' "and is told why"
set_clock control 0
is "$(hi)" hi "with the clock right again, all do"
set_clock client $((-DAY))
is "$(hi)" '' "a client whose clock is behind trusts nobody"
like "$(cat "$T/asked")" 'not yet valid' "and says why"
set_clock client 0

# --- expired, while connections are open -------------------------------------

all_clocks $((800 * DAY))
for watch in $node_watch $control_watch; do
	wait_for 20 is_ready "$watch" "503 the certificate has expired"
	ok $? "one whose certificate has expired says so" || diag "$(ready "$watch")"
done
is "$(hi)" '' "nobody connects"
run by node dsec-serve renew "$D"
is "$status" 0 "it is renewed" || diag "$err"
wait_for 30 is_hi
ok $? "and all goes on, without a restart" || diag "$(logs)"
wait_for 20 is_ready "$node_watch" 200
ok $? "which it says, too"

all_clocks 0
wait_for 20 is_ready "$node_watch" "503 the certificate is not valid yet"
ok $? "certificates of a time to come are not valid yet"
run dsec-serve renew "$D"
is "$(printf '%s\n' "$out" | jq -r 'select(.file == "node.pem").did')" renewed \
	"they are renewed" || diag "$out"
wait_for 30 is_hi
ok $? "and all goes on" || diag "$(logs)"
json_is "$(look)" "[\"$id\",\"running\"]" \
	"the sandbox lives through all of it" '[.sandbox,.state]'

for pid in "$control" "$node"; do
	kill "$pid"
	wait "$pid"
done
run dsec-serve audit verify "$DSEC_LIB/serve/audit.jsonl"
is "$status" 0 "the audit log is whole, whatever the time" || diag "$out"
done_testing
