#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # status, out, err come from run
#
# What monitoring sees of a control and a node: metrics, health, readiness.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq python3 curl openssl
tree_new

here=$(dirname "$0")
dir=$T/serve

start() { # ROLE: sets $address of what serves
	: >"$T/ready.$1"
	"$BIN/dsec-serve" "$1" "$dir" --ready-fd 9 9>"$T/ready.$1" \
		2>>"$T/log" &
	pid=$!
	wait_for 30 test -s "$T/ready.$1" || diag "$(cat "$T/log")"
}

one() { # ADDRESS REQUEST
	timeout 100 python3 "$here/serve_client.py" "$dir" "$1" one "$2" 2>&1
}
get() { # ADDRESS PATH
	curl -s --max-time 10 "http://$1$2"
}
code() { # ADDRESS PATH
	curl -s --max-time 10 -o /dev/null -w '%{http_code}' \
		"http://$1$2"
}
value() { # ADDRESS SERIES
	get "$1" /metrics | awk -v s="$2" 'index($0, s " ") == 1 { print $2 }'
}
has_value() { # ADDRESS SERIES VALUE
	[ "$(value "$1" "$2")" = "$3" ]
}
is_value() { # ADDRESS SERIES VALUE
	has_value "$@" || wait_for 10 has_value "$@"
	is "$(value "$1" "$2")" "$3" "$2"
}

at=$(own_address)
"$BIN/dsec-serve" init "$dir" --name n1 --host "$at" >/dev/null
node_at=$at:9101 control_at=$at:9102 node_watch=$at:9103 control_watch=$at:9104
jq --arg a "$node_at" --arg b "$control_at" --arg c "$node_watch" \
	--arg d "$control_watch" '.node.listen = [$a] | .control.listen = [$b] |
	.node.metrics = $c | .control.metrics = $d |
	.control.audit = "denied.jsonl" | .clients[0].operations = ["run",
		"exec", "pause", "ps"] |
	.control.nodes = [{"name":"n1","address":$a}]' <"$dir/serve.json" \
	>"$T/json" && cat "$T/json" >"$dir/serve.json"

start control
control=$pid
is "$(code "$control_watch" /healthz)" 200 'a control alone is healthy'
is "$(code "$control_watch" /readyz)" 503 '... and not ready'
is "$(get "$control_watch" /readyz)" 'no node is live' '... and says why'
start node
node=$pid
ready() { [ "$(code "$control_watch" /readyz)" = 200 ]; }
wait_for 30 ready
ok $? 'with a node it is'
is "$(code "$node_watch" /readyz)" 200 'so is the node'

rec=$(one "$control_at" '{"program":"run","name":"a","project":"root/rl"}')
json_is "$rec" true 'a sandbox by way of the control' .ok
one "$control_at" '{"program":"exec","sandbox":"a","command":"true"}' >/dev/null
one "$control_at" '{"program":"exec","sandbox":"b","command":"true"}' >/dev/null
one "$control_at" '{"program":"dance"}' >/dev/null
one "$control_at" '{"program":"net","sandbox":"a","deny_all":true}' \
	>/dev/null
for at in $node_at $control_at; do
	is "$(one "$at" '{"program":"hello","v":1,"token":"0123456789abcdef0"}' |
		jq -r .error.code)" permission \
		"a token that is nobody's, whatever the certificate may"
done
denied() { [ -s "$dir/denied.jsonl" ]; }
wait_for 10 denied
json_is "$(head -n 1 "$dir/denied.jsonl")" \
	'[1,"dsec://client/admin","net","a","deny","permission"]' \
	'what it turns away is in its audit log' \
	'[.seq, .who, .program, .sandbox, .decision, .code]'
run "$BIN/dsec-serve" audit verify "$dir/denied.jsonl"
is "$status" 0 '... which verifies'
one "$control_at" \
	'{"program":"run","memory_limit_mb":16000000}' >/dev/null

is_value "$control_watch" 'dsec_requests_total{program="run",op="",code="ok"}' 1
is_value "$control_watch" \
	'dsec_requests_total{program="exec",op="",code="sandbox_unknown"}' 1
is_value "$control_watch" \
	'dsec_requests_total{program="other",op="",code="unsupported"}' 1
is_value "$control_watch" 'dsec_request_seconds_count{program="run",op=""}' 2
is_value "$control_watch" 'dsec_refusals_total{program="run",code="memory"}' 1
is_value "$control_watch" 'dsec_node_state{node="n1",state="live"}' 1

"$BIN/dsec-serve" issue "$dir" --client gone >/dev/null
"$BIN/dsec-serve" revoke "$dir" gone.pem >/dev/null
turned_away() { # ADDRESS
	"$BIN/dsec-serve" client --server "$1" --ca "$dir/ca.pem" \
		--cert "$dir/gone.pem" --key "$dir/gone.key" ps 2>&1 |
		grep -q 'certificate: revoked'
}
for watched in "$control_at $control_watch" "$node_at $node_watch"; do
	wait_for 20 turned_away "${watched% *}"
	ok $? 'who is revoked is turned away'
	is_value "${watched#* }" 'dsec_handshakes_refused_total{reason="revoked"}' 1
done
is_value "$control_watch" 'dsec_sandboxes{node="n1",backend="container"}' 1
is_value "$control_watch" 'dsec_sandboxes_by_project{project="root/rl"}' 1
is_value "$control_watch" 'dsec_sandboxes_by_state{node="n1",state="running"}' 1
is_value "$control_watch" 'dsec_claimed{node="n1",resource="memory_mb"}' 512
is_value "$node_watch" 'dsec_requests_total{program="run",op="",code="ok"}' 1
code=$(dsec-admit --report | jq -r .node)
is_value "$node_watch" "dsec_sandboxes{node=\"$code\",backend=\"container\"}" 1
like "$(get "$node_watch" /metrics)" \
	'^dsec_coprocess_restarts\{node=".*",program="dsec-run"\} 0$' \
	'the programs behind it'
rec=$(one "$control_at" '{"program":"pause","sandbox":"a","level":"freeze"}')
json_is "$rec" true 'paused' .ok || diag "$rec"
is_value "$control_watch" 'dsec_sandboxes_by_state{node="n1",state="paused"}' 1
# --- logs that are moved away ---------------------------------------------------

moved() { # FILE PID: it is, and goes on in a new one
	mv "$1" "$1.1"
	kill -HUP "$2"
	wait_for 20 test -s "$1"
	ok $? "a new ${1##*/} is there" || diag "$(cat "$T/log")"
	is "$(jq -r '[.program, .op] | join(" ")' "$1" | head -n 1)" \
		"audit continue" "... which says that it goes on"
}
verified() { # FILE TEXT: it, and the one before it, are one log with TEXT
	like "$(cat "$1")" "$2" "... and has what came since"
	run "$BIN/dsec-serve" audit verify "$1.1" "$1"
	is "$status" 0 "... as one log" || diag "$out"
}
moved "$dir/denied.jsonl" "$control"
one "$control_at" '{"program":"fork","sandbox":"a"}' >/dev/null
again() { grep -q '"program":"fork"' "$dir/denied.jsonl"; }
wait_for 10 again
verified "$dir/denied.jsonl" '"program":"fork"'
moved "$DSEC_LIB/serve/audit.jsonl" "$node"
one "$node_at" '{"program":"run","name":"b"}' >/dev/null
verified "$DSEC_LIB/serve/audit.jsonl" '"program":"run"'
kill -HUP "$node"
one "$node_at" '{"program":"pause","sandbox":"b","op":"stop"}' \
	>/dev/null
verified "$DSEC_LIB/serve/audit.jsonl" '"op":"stop"'

# --- certificates -------------------------------------------------------------

expires() { # FILE: when it expires
	date -d "$(openssl x509 -noout -enddate -in "$dir/$1" | cut -d= -f2)" +%s
}
metric=dsec_certificate_expiry_timestamp_seconds
is_value "$control_watch" $metric "$(expires control.pem)"
is_value "$node_watch" $metric "$(expires node.pem)"
unlike "$(cat "$T/log")" 'the certificate of [^ ]*/n1 ' 'nobody is warned of a new one'
warned() { # TEXT: both of them
	[ "$(grep -c "the certificate of dsec://[a-z]*/n1 $1" "$T/log")" -ge 2 ]
}
"$BIN/dsec-serve" renew "$dir" --all --days 6 >/dev/null
wait_for 20 warned 'expires in 14[34] hours'
ok $? 'one that is good for less than a week is warned of' ||
	diag "$(grep certificate "$T/log")"
is "$(code "$control_watch" /readyz) $(code "$node_watch" /readyz)" '200 200' \
	'... and ready still'
"$BIN/dsec-serve" renew "$dir" --all --days 0 >/dev/null
wait_for 20 warned 'has expired'
ok $? 'one that has expired is told'
is "$(get "$control_watch" /readyz)" 'the certificate has expired' \
	'... and the control is not ready'
is "$(get "$node_watch" /readyz)" 'the certificate has expired' \
	'... nor the node'
"$BIN/dsec-serve" renew "$dir" --all --days 90 >/dev/null
wait_for 30 ready
ok $? 'until it is renewed'
is_value "$control_watch" $metric "$(expires control.pem)"

if command -v promtool >/dev/null; then
	get "$control_watch" /metrics | promtool check metrics >/dev/null 2>&1
	ok $? 'Prometheus reads it'
fi

kill "$node"
wait "$node"
lost() { [ "$(code "$control_watch" /readyz)" = 503 ]; }
wait_for 30 lost
ok $? 'without the node it is not ready'
is_value "$control_watch" 'dsec_node_state{node="n1",state="away"}' 1
kill "$control"
wait "$control"

done_testing
