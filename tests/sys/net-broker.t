#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The credential broker, from inside sandboxes.
. "$(dirname "$0")/../tap.sh"
. "$(dirname "$0")/net.sh"
net_enter
need_tools jq curl nsenter
tree_new
net_world

SECRET=sk-test-$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
mkdir -p "$DSEC_CONFIG" "$W/www"
(umask 077 && echo "$SECRET" >"$T/secret")
echo hello >"$W/www/hello"
cat >"$DSEC_CONFIG/broker.json" <<-EOT
	{"ca": "$W/ca.pem", "endpoints": {
	 "api": {"upstream": "https://api.test",
		"paths": ["/www/", "/echo/", "/bytes/", "/stream"],
		"headers": {"X-Api-Key": {"file": "$T/secret"}}},
	 "plain": {"upstream": "https://other.test", "paths": ["/echo/"],
		"headers": {"X-Version": {"value": "2023-06-01"}}}}}
EOT

broker() { # SANDBOX PATH CURL-ARGS...: sets $code, and $T/body
	broker_box=$1 broker_path=$2
	shift 2
	code=$(dsec-exec "$broker_box" -- curl -s -m 20 -o /tmp/body \
		-w '%{http_code}' "$@" "http://broker.internal/$broker_path")
	dsec-exec "$broker_box" -- sh -c 'cat /tmp/body && rm /tmp/body' \
		>"$T/body" 2>/dev/null
}

audit() { # FILTER: lines of the audit
	jq -c "select($1)" "$DSEC_LIB/audit/broker.jsonl" | wc -l
}

run dsec-run --detach --name n \
	--phases '{"work":{"broker":["api","plain"]},"less":{"broker":["plain"]},"none":{}}' \
	--phase work
is "$status" 0 "a sandbox with endpoints" || diag "$out $err"
is "$(field "$out" .network)" names "its strength is names"
N=$(field "$out" .sandbox)

broker n api/www/hello
is "$code $(cat "$T/body")" "200 hello" "an answer of the upstream"
is "$(world_saw '.host=="api.test" and .proto=="https" and .path=="/www/hello"')" \
	1 "which was asked over TLS"
broker n plain/echo/x -H 'Authorization: Bearer mine' -H 'Cookie: a=b' \
	-H 'X-Version: mine'
is "$code" 200 "another endpoint"
json_is "$(cat "$T/body")" '["2023-06-01",null,null,"other.test"]' \
	"headers are added, and taken away" \
	'.headers | [.["x-version"], .authorization, .cookie, .host]'
broker n api/echo/x
is "$(grep -cF "$SECRET" "$T/body")" 0 "an answer that holds the secret is cut"
isnt "$(audit '.outcome=="blocked"')" 0 "and written down"
broker n api/other
is "$code" 403 "another path"
broker n nothing/x
is "$code" 403 "no such endpoint"
broker n api/bytes/20000000
is "$code $(wc -c <"$T/body")" "200 20000000" "20 MB"
is "$(audit '.sandbox=="'"$N"'" and .outcome=="ok" and .endpoint=="api"')" 2 \
	"each use is written down"
run dsec-exec n -- curl -s -m 5 https://broker.internal/
isnt "$status" 0 "nobody speaks TLS there"
run dsec-exec n -- curl -s -m 5 https://api.test/www/hello
isnt "$status" 0 "the upstream itself is not reached"

# --- another policy -----------------------------------------------------------
dsec-exec n -- sh -c 'curl -sN -m 60 http://broker.internal/api/stream \
	>/tmp/stream; echo ended >>/tmp/stream' &
STREAM=$!
# shellcheck disable=SC2317 # by wait_for
streams() { dsec-exec n -- grep -q . /tmp/stream; }
wait_for 10 streams
ok $? "a stream"
run dsec-net n --phase less
is "$status" 0 "a phase without that endpoint" || diag "$out"
wait_for 5 dsec-exec n -- grep -q ended /tmp/stream
ok $? "cuts it"
wait "$STREAM"
broker n api/www/hello
is "$code" 403 "no more of it"
broker n plain/echo/x
is "$code" 200 "the other one goes on"
run dsec-net n --phase none
is "$status" 0 "a phase without any"
broker n plain/echo/x
is "$code" 000 "and nobody is there"
is "$(jq -r 'select(.name=="broker.internal") | .why' \
	"$DSEC_LIB/sb/$N/denied.jsonl" | sort -u | head -n 1)" name "it is told"

# --- routed, and without a rule -------------------------------------------------
run dsec-net --uplink up
is "$status" 0 "an uplink" || diag "$out $err"
run dsec-run --detach --name r \
	--network '{"broker":["api"],"allow":[{"cidr":"198.51.100.11"}]}'
is "$status $(field "$out" .network)" "0 routed" "a routed sandbox" ||
	diag "$out $err"
broker r api/www/hello
is "$code $(cat "$T/body")" "200 hello" "has its endpoint"
broker r plain/echo/x
is "$code" 403 "and no other"
run dsec-run --detach --name s --network '{"allow":[{"cidr":"198.51.100.11"}]}'
broker s api/www/hello
is "$code" 000 "one without a rule has no broker"
run dsec-exec s -- curl -s -m 5 http://198.18.0.1/api/www/hello \
	-H 'Host: broker.internal'
isnt "$status" 0 "not by its address either"

# --- the helper's worker is replaced ---------------------------------------------
kill -9 "$("$BUILD/bench/netctl" stats | jq .helper.worker)"
# shellcheck disable=SC2317 # by wait_for
again() { broker r api/www/hello && [ "$code" = 200 ]; }
wait_for 10 again
ok $? "the next worker has it too"

# --- where the secret is ----------------------------------------------------------
is "$(grep -rlF "$SECRET" "$DSEC_LIB" "$DSEC_RUN" 2>/dev/null | wc -l)" 0 \
	"it is in no file of ours"
is "$(dsec-exec n -- sh -c 'grep -rlF sk-test- /tmp /proc/*/environ 2>/dev/null' |
	wc -l)" 0 "nor anywhere inside"

# --- by itself: streams (field report 90), ways for a secret to leak (field report 91)
# ---------------------------------------------------------------------
net_end
mkdir "$T/broker"
unshare -n python3 "$(dirname "$0")/net_broker.py" \
	"${DSEC_LIBEXEC:-$(dirname "$(command -v dsec-run)")/../libexec/dsec}/dsec-broker" \
	"$T/broker" >"$T/out" 2>&1
bad=$(grep -v '^ok\|^1\.\.' "$T/out")
is "$bad" "" "with an upstream that does everything wrong"
is "$(grep -c '^1\.\.' "$T/out")" 1 "to the end" || diag "$(tail "$T/out")"
done_testing
