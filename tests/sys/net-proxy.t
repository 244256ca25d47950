#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The helper's proxy of names, without a sandbox: a namespace stands for one.
. "$(dirname "$0")/../tap.sh"
. "$(dirname "$0")/net.sh"
net_enter
need_tools jq curl nsenter

NETCTL=$BUILD/bench/netctl
tree_new
net_world
. "$(dirname "$0")/net_box.sh"
run "$BIN/dsec-net" --serve --background
is "$status $err" "0 " "the helper starts"
box_new sb

LIMITS='"limits":{"connections":6000,"connections_per_s":100000}'
ALLOW='{"domain":"allowed.test","ports":[80,443,7,22]},
	{"domain":"both.test","ports":[443]},{"domain":"other.test","ports":[7]},
	{"domain":"loopback.test","ports":[80]},{"domain":"mixed.test"},
	{"domain":"closed.test"},{"domain":"six.test"}'
POLICY="{\"allow\":[$ALLOW],$LIMITS}"
# shellcheck disable=SC2154 # box_new sets it
$NETCTL attach sb "$sb" "$T/sb" "$POLICY"
ok $? "a sandbox is attached"
is "$($NETCTL ports sb)" "7 22 53 80 443" "it listens on what the policy needs"

# --- what passes -----------------------------------------------------------
in_box sb curl -s -m 30 -o "$T/o" http://allowed.test/hi
json_is "$(cat "$T/o")" '"allowed.test"' "HTTP by name" .headers.host
in_box sb curl -s -m 30 --cacert "$W/ca.pem" -o "$T/o" https://allowed.test/hi
json_is "$(cat "$T/o")" '"/hi"' "HTTPS, the certificate is the server's" .path
is "$(client sb echo allowed.test 7 some)" some "any protocol, half-closed"
is "$(client sb echo other.test 7 some)" some "another name"
in_box sb curl -s -m 30 -o "$T/o" http://six.test/six
json_is "$(cat "$T/o")" '"/six"' "a name that has v6 alone" .path
# --- what does not ---------------------------------------------------------
is "$(client sb quick other.test 80)" "reset soon" "a port that another name has"
is "$(client sb probe 198.51.100.10 80)" unreachable "an address of the world"
is "$(client sb probe 198.18.99.99 80)" reset "a fake address without a name"
is "$(client sb probe closed.test 80)" reset "nobody listens there"
is "$(client sb probe loopback.test 80)" unknown "a name of the node's own"
FAKE=$(awk '$2 == "loopback.test" { print $1 }' "$T/sb/names")
is "$(client sb probe "${FAKE:-198.18.1.0}" 80)" reset "nor by its address"
is "$(client sb probe 8.8.8.8 53)" unreachable "another resolver"
in_box sb jq -rs 'map("\(.name // .addr) \(.port) \(.why)") | .[]' \
	"$T/sb/denied.jsonl" >"$T/denied"
like "$(cat "$T/denied")" '^other.test 80 port$' "denied: the port"
like "$(cat "$T/denied")" '^198.18.99.99 80 address$' "denied: the address"
like "$(cat "$T/denied")" '^loopback.test (53|80) private$' "denied: private"

# --- names in a ClientHello (field report 76) ------------------------------
for t in "right allowed.test passed" "other both.test passed" \
	"denied shared.test reset" "bytes allowed.test passed" \
	"large allowed.test passed" "huge allowed.test reset" \
	"none x reset" "garbage x reset" "end x reset" \
	"upper ALLOWED.TEST passed" "dot allowed.test. reset"; do
	# shellcheck disable=SC2086
	set -- $t
	is "$(client sb hello allowed.test 443 "$1" "$2")" "$3" "hello: $t"
done
is "$(world_saw '.sni == "shared.test" or .host == "shared.test"')" 0 \
	"the denied name on the same address was never asked for"
# Names that only a ClientHello says are asked for upstream: they cost as others.
$NETCTL policy sb "{\"allow\":[$ALLOW,{\"domain\":\"*.allowed.test\",\"ports\":[443]}],$LIMITS}" \
	>"$T/o"
is "$(client sb hellos allowed.test 443 140) $(dns_saw '[0-9]*.allowed.test')" \
	"128 128" "the budget of long names below a wildcard holds for them too"
like "$(in_box sb tail -n 1 "$T/sb/denied.jsonl")" '[0-9]\.allowed\.test.*"limit"' \
	"denied: the limit"
$NETCTL policy sb "$POLICY" >"$T/o"
like "$(client sb hello allowed.test 443 slow)" '^reset after 1[01]$' \
	"a slow hello has its deadline"
is "$(client sb echo allowed.test 22 SSH-2.0-x)" SSH-2.0-x "no TLS elsewhere"

# --- questions that nobody answers, and somebody else ------------------------
box_new other
# shellcheck disable=SC2154
$NETCTL attach other "$other" "$T/other" \
	"{\"allow\":[{\"domain\":\"*.hang.test\",\"ports\":[443]},$ALLOW],$LIMITS}"
$NETCTL policy sb "{\"allow\":[$ALLOW,{\"domain\":\"api.test\",\"ports\":[443]}],$LIMITS}" \
	>"$T/o"
client other hang allowed.test 443 hang.test 1000 "$T/hung" "$T/go" >"$T/o" &
HANG=$!
wait_for 30 test -e "$T/hung"
is "$(client sb hello allowed.test 443 "" api.test)" passed \
	"another sandbox's questions are answered"
touch "$T/go"
wait $HANG
WAIT=$(cat "$T/o")
ok $((WAIT < 1 || WAIT > 100)) "who had too many out was told ($WAIT waited)"
$NETCTL detach other
box_end other

# --- half-closed and idle ones (field report 87) ---------------------------
stat_of() { "$NETCTL" stats sb | jq ".sandboxes.sb.$1"; }
is "$(client sb half allowed.test 7 5000)" 5000 "5,000 half-closed clients"
no_connections() { [ "$(stat_of connections)" = 0 ]; }
wait_for 30 no_connections
ok $? "none of them is left"
is "$(client sb echo allowed.test 7 more)" more "and one more works"
client sb hold allowed.test 7 1000 "$T/held" "$T/let" >"$T/o" &
HOLD=$!
wait_for 30 test -e "$T/held"
is "$(stat_of connections)" 1000 "1,000 idle ones"
FDS=$(find "/proc/$(worker)/fd" -mindepth 1 | wc -l)
ok $((FDS > 2100)) "they hold no pipes ($FDS descriptors)"
is "$(in_box sb ss -tniHO sport = :7 | grep -c ' reno ')" 1000 \
	"nor does anything pace them"
# For longer only by hand: IDLE_S=600.
sleep "${IDLE_S:-0}"
is "$(stat_of connections)" 1000 "none is lost meanwhile"
touch "$T/let"
wait $HOLD
is "$(cat "$T/o")" 2000 "work afterwards"
wait_for 30 no_connections
ok $? "and leave nothing"

# --- limits ----------------------------------------------------------------
$NETCTL policy sb "{\"allow\":[$ALLOW],\"limits\":{\"connections\":3,\"connections_per_s\":100000}}" >"$T/o"
is "$(client sb many allowed.test 7 5)" 3 "no more connections than the limit"
$NETCTL policy sb "{\"allow\":[$ALLOW],\"limits\":{\"connections_per_s\":5}}" >"$T/o"
is "$(client sb many allowed.test 7 30)" 10 "no more a second, but the burst"
like "$(jq -r .why "$T/sb/denied.jsonl")" '^limit$' "denied: the limit"
$NETCTL policy sb "{\"allow\":[$ALLOW],\"limits\":{\"bandwidth_mbit\":16}}" >"$T/o"
out=$(client sb get allowed.test 7 4000000)
json_is "$out" true "16 Mbit/s both ways ($out)" '.got == 4000000 and .s > 1.5 and .s < 5'
$NETCTL policy sb "{\"allow\":[$ALLOW],\"limits\":{\"bytes_mb\":1}}" >"$T/o"
is "$(client sb get allowed.test 7 4000000)" reset "no more bytes than the limit"
is "$(client sb probe allowed.test 7)" reset "nor new connections then"
$NETCTL policy sb "$POLICY" >"$T/o"

# --- a stricter policy -----------------------------------------------------
client sb stream allowed.test 7 "$T/s1" "$T/cut.json" >"$T/o1" &
S1=$!
client sb hold other.test 7 5 "$T/held2" "$T/let2" >"$T/o2" &
S2=$!
wait_for 30 test -e "$T/s1" && wait_for 30 test -e "$T/held2"
ANSWER=$($NETCTL policy sb '{"allow":[{"domain":"other.test","ports":[7]}]}')
wait $S1
is "${ANSWER% *}" 1 "one connection is cut"
is "$(cat "$T/o1")" reset "its client sees a reset"
json_is "$(cat "$T/cut.json")" true "no byte after the answer, at once" \
	".last_ms < ${ANSWER#* } + 2 and .end_ms < ${ANSWER#* } + 500"
touch "$T/let2"
wait $S2
is "$(cat "$T/o2")" 10 "those still allowed go on"
like "$(jq -r '.name + " " + .why' "$T/sb/denied.jsonl")" \
	'^allowed.test policy$' "denied: by a new policy"
is "$(client sb probe "$(awk '$2 == "allowed.test" { print $1 }' \
	"$T/sb/names")" 7)" reset "new ones see the new policy"
is "$(client sb probe allowed.test 7)" unknown "so does DNS"
run "$NETCTL" policy sb '{"allow":[{"domain":"x.test","ports":[99]}]}'
like "$err" '^unsupported: .*port 99' "a port without listener is refused"
run "$NETCTL" policy sb '{"allow":[{"cidr":"198.51.100.0/24"}]}'
like "$err" '^unsupported: .*routed' "more strength is refused"
is "$(client sb echo other.test 7 same)" same "and nothing has changed"
$NETCTL policy sb "$POLICY" >"$T/o"
is "$(client sb echo allowed.test 7 back)" back "loosened again"

# --- an address that is denied while it is being connected to ----------------
LATE='{"domain":"dead.test","ports":[7]}'
$NETCTL policy sb "{\"allow\":[$LATE]}" >"$T/o"
client sb echo dead.test 7 late >"$T/late" &
HOLD=$!
one_connection() { [ "$(stat_of connections)" = 1 ]; }
wait_for 30 one_connection
$NETCTL policy sb "{\"allow\":[$LATE],\"deny\":[{\"cidr\":\"198.51.100.99/32\"}]}" >"$T/o"
# It listens before the address is there: a SYN in between would be refused.
in_world python3 -c '
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_IP, 15, 1)  # IP_FREEBIND
s.bind(("198.51.100.99", 7))
s.listen()
open(sys.argv[1], "w").close()
c = s.accept()[0]
c.sendall(c.recv(9))
c.close()' "$T/listens" &
LISTEN=$!
wait_for 30 test -e "$T/listens"
in_world ip addr add 198.51.100.99/32 dev lo
wait $HOLD
is "$(cat "$T/late")" reset "is not joined with when it answers after all"
kill $LISTEN 2>/dev/null
wait $LISTEN
is "$(jq -r 'select(.name == "dead.test" and .port == 7) | "\(.addr) \(.why)"' "$T/sb/denied.jsonl")" \
	"198.51.100.99 private" "denied: the address"
$NETCTL policy sb "$POLICY" >"$T/o"

# --- no descriptors --------------------------------------------------------
helper_end
box_end sb
jq -c '.open_files = 60' "$DSEC_CONFIG/net.json" >"$T/o" &&
	cp "$T/o" "$DSEC_CONFIG/net.json"
run "$BIN/dsec-net" --serve --background
is "$status $err" "0 " "a helper of few descriptors"
box_new few
# shellcheck disable=SC2154
$NETCTL attach few "$few" "$T/few" "$POLICY"
is "$(awk '/^Max open files/ { print $4, $5 }' "/proc/$(worker)/limits")" \
	"60 60" "has as many as net.json says"
SOME=$(client few many allowed.test 7 40)
ok $((SOME < 1 || SOME > 20)) \
	"no descriptors: $SOME of 40 served, the rest told"
is "$(client few echo allowed.test 7 fine)" fine "and it works again"

helper_end
box_end few
net_end
done_testing
