#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Networks come with their sandboxes and go with them, whoever dies meanwhile.
# Field report 82 (restarts), field report 93 (addresses are used again).
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/net.sh
. "$(dirname "$0")/net.sh"
need_tools jq curl strace nft
net_enter
tree_new
net_world

NAMES='{"allow":[{"domain":"allowed.test"}]}'
ROUTED='{"allow":[{"domain":"allowed.test"},
	{"cidr":"198.51.100.10/32","ports":[5432]}]}'

in_box() { # SANDBOX SCRIPT
	timeout 30 dsec-exec "$1" -- sh -c "$2" 2>&1
}

fetch() { # SANDBOX
	in_box "$1" 'curl -sS -m 10 http://allowed.test/from' | jq -r .path
}

# The helper's processes: the keeper is nobody's child.
helpers() {
	for helpers_pid in $(tree_pids); do
		case $(tr '\0' ' ' <"/proc/$helpers_pid/cmdline") in
		*--serve*) echo "$helpers_pid" ;;
		esac
	done 2>/dev/null
}

keeper() {
	for keeper_pid in $(helpers); do
		[ "$(awk '/^PPid:/ {print $2}' "/proc/$keeper_pid/status")" = 1 ] &&
			echo "$keeper_pid"
	done 2>/dev/null
}

no_helper() {
	[ -z "$(helpers)" ]
}

# The keeper dies; its worker goes with it.
kill_keeper() {
	kill -KILL "$(keeper)"
	wait_for 30 no_helper
}

# --- what the launch says, and does
run timeout 30 dsec-run -d --name none
is "$(field "$out" .network)" none "a launch without rules"
began=$(date +%s%N)
like "$(in_box none 'cat /etc/resolv.conf')" "^nameserver 198.18.0.1$" \
	"the resolver is the same everywhere"
is "$(in_box none 'getent hosts allowed.test; echo $?')" 2 "there is none"
ended=$(date +%s%N)
[ $(((ended - began) / 1000000)) -lt 4000 ]
ok $? "and that is said at once"
is "$(helpers)" "" "for which nothing runs"
run timeout 30 dsec-run -d --name names --network "$NAMES"
is "$status $(field "$out" .network)" "0 names" "one with names" || diag "$err"
is "$(fetch names)" /from "reaches what it may"
like "$(in_box names 'curl -sS -m 5 http://other.test/')" \
	"Could not resolve host" "and no other name"
like "$(in_box names 'curl -sS -m 5 http://198.51.100.10/')" \
	"connect to 198.51.100.10" "nor an address"
leak_start
# what the service's own file says, the first domain of it
pypi=$(dsec-net --services | jq -r 'select(.service == "pypi") | .rules[0].domain')
jq -n --arg name "$pypi" '{($name): [["A", "198.51.100.10", 60]]}' >"$W/zone.json"
run timeout 60 dsec-run --rm --network '{"pypi": true}' -- \
	curl -sSk -m 10 "https://$pypi/simple"
like "$out" '"path": "/simple"' "a one-shot with a semantic name" ||
	diag "$out $err"
for p in sealed nested; do
	run timeout 60 dsec-run --rm --profile $p --network "$NAMES" -- \
		curl -sS -m 10 http://allowed.test/$p
	like "$out" "\"path\": \"/$p\"" "profile $p" || diag "$err"
done

# --- routed
run timeout 30 dsec-run -d --name routed --network "$ROUTED"
is "$(field "$out" .error.code)" configuration "without an uplink: refused"
like "$err" "dsec-net --uplink up" "with the command that makes one"
leak_check "and nothing is left of it"
timeout 30 dsec-net --uplink up >/dev/null
run timeout 30 dsec-run -d --name routed --network "$ROUTED"
is "$status $(field "$out" .network)" "0 routed" "with one: routed" ||
	diag "$err"
is "$(fetch routed)" /from "it reaches a name"
tcp() { # SANDBOX ADDRESS PORT
	in_box "$1" "python3 -c \"
import socket
try:
    s = socket.create_connection(('$2', $3), 5)
    s.sendall(b'hi'); print(s.recv(2).decode())
except OSError as e: print(type(e).__name__)\""
}
is "$(tcp routed 198.51.100.10 5432)" hi "and an address with its port"
is "$(tcp routed 198.51.100.10 8443)" ConnectionRefusedError "no other"
is "$(tcp routed 198.51.100.11 5432)" ConnectionRefusedError "of neither"
link() {
	nsenter --net="$DSEC_RUN/net/transit" ip -br link show type veth |
		grep -c ^ds
}
is "$(link)" 2 "it has a link (and the node one)"
leak_start
run timeout 60 dsec-run --rm --network "$ROUTED" -- \
	curl -sS -m 10 http://allowed.test/once
like "$out" '"path": "/once"' "a one-shot that is routed" || diag "$err"
run timeout 60 dsec-run --rm --network "$ROUTED" -- ip -br addr show eth0
like "$out" " 100.96.[0-9]+.[0-9]+/32" "with an address of the pool"
leak_check "whose links go"
is "$(field "$(dsec-ps routed)" '.network + " " + (.network_hash | length |
	tostring) + " " + (.policies | tostring)')" "routed 64 null" \
	"dsec-ps: strength and hash"
is "$(field "$(dsec-ps --stats names)" '.network_stats.accepted > 0')" true \
	"and counters"

# --- whoever dies
w=$(pgrep -P "$(keeper)")
kill -KILL "$w"
served() { [ "$(fetch "$1")" = /from ]; }
wait_for 30 served names
ok $? "the worker is killed: names are served again"
wait_for 30 served routed
ok $? "routed ones too"
kill_keeper
ok $? "the keeper is killed"
like "$(in_box names 'curl -sS -m 5 http://allowed.test/')" \
	"resolve host|connect to" "names reach nothing"
is "$(tcp routed 198.51.100.10 5432)" hi "what was routed goes on"
is "$(tcp routed 198.51.100.10 8443)" ConnectionRefusedError \
	"and so do its rules"
run timeout 60 dsec-doctor --fix --json --only dead
like "$(field "$out" '.fixed[]')" "put 2 networks" "dsec-doctor mends them"
is "$(fetch names) $(fetch routed)" "/from /from" "both are served"
kill_keeper
run timeout 60 dsec-run --rm --network "$NAMES" -- true
is "$status" 0 "so does the next launch"
is "$(fetch names) $(fetch routed)" "/from /from" "both are served again"

# --- who listens inside while nobody serves
kill_keeper
timeout 30 dsec-exec --detach names -- python3 -c 'import socket, time
s = socket.socket()
s.bind(("0.0.0.0", 443))
s.listen()
time.sleep(600)' >/dev/null
listens() { in_box names 'ss -tlnH sport = :443' | grep -q 443; }
wait_for 30 listens
timeout 60 dsec-doctor --fix --only dead >/dev/null 2>&1
is "$(fetch names)" /from "the other ports are served"
is "$(field "$(dsec-net names --show)" '.unserved | tostring')" "[443]" \
	"the one that it took is told"
like "$(dsec-doctor --json)" "listens on port 443 itself" \
	"dsec-doctor tells it as well"
in_box names 'pkill -x python3' >/dev/null
kill_keeper
"$BIN/dsec-net" --serve >/dev/null 2>&1 &
unit=$!
wait_for 30 served names
ok $? "one that nobody started for them attaches them as well"
wait_for 30 served routed
ok $? "routed ones too"
kill -KILL $unit
wait $unit 2>/dev/null
wait_for 30 no_helper

# --- rules of one that ended meanwhile
rules() { # lines of the slots that have any
	nsenter --net="$DSEC_RUN/net/transit" nft list map inet dsec slot |
		grep -o '"ds[0-9]*"' | sort -u | wc -l
}
timeout 60 dsec-doctor --fix --only dead >/dev/null 2>&1
timeout 30 dsec-run -d --name ends --network "$ROUTED" >/dev/null
is "$(rules)" 2 "two routed sandboxes have rules"
kill_keeper
timeout 30 dsec-pause --stop --grace 0 ends >/dev/null
is "$(rules)" 2 "one ends while nobody serves: its rules are left"
timeout 60 dsec-doctor --fix --only dead >/dev/null 2>&1
is "$(rules)" 1 "who attaches the others takes them away"
is "$(tcp routed 198.51.100.10 5432)" hi "the others keep theirs"

# --- a launch that cannot have its network
kill_keeper
cp "$DSEC_CONFIG/net.json" "$T/net.json"
echo '{"dns": 7}' >"$DSEC_CONFIG/net.json"
run timeout 30 dsec-run -d --network "$NAMES"
is "$(field "$out" .error.code)" configuration "no helper: refused" ||
	diag "$out"
like "$err" "dns" "with the reason"
cp "$T/net.json" "$DSEC_CONFIG/net.json"
mv "$DSEC_RUN/net" "$DSEC_RUN/net.away" && : >"$DSEC_RUN/net"
run timeout 30 dsec-run -d --network "$NAMES"
isnt "$status" 0 "no place for its socket: refused"
rm -f "$DSEC_RUN/net" && mv "$DSEC_RUN/net.away" "$DSEC_RUN/net"
run timeout 60 dsec-doctor --fix --json --only dead
wait_for 30 served names
ok $? "the others are served when it can be started"

# --- every step fails once
leak_start
failed=0
tries=0
inject() { # NETWORK CALL:error=E NUMBER...: fails there, of each process
	inject_net=$1
	inject_call=$2
	shift 2
	for inject_when; do
		tries=$((tries + 1))
		timeout 60 strace -f -b execve -qq -o /dev/null \
			-e "trace=${inject_call%%:*}" \
			-e "inject=$inject_call:when=$inject_when" \
			dsec-run -d --label "x=$tries" --network "$inject_net" \
			</dev/null >/dev/null 2>&1 || failed=$((failed + 1))
	done
}
inject "$NAMES" socket:error=EMFILE 1 2 3 5
inject "$NAMES" bind:error=EADDRNOTAVAIL 2
inject "$NAMES" listen:error=ENOBUFS 2
inject "$NAMES" openat:error=ENOSPC 9
inject "$NAMES" sendmsg:error=ENOBUFS 1
inject "$NAMES" recvmsg:error=ECONNREFUSED 1
inject "$ROUTED" socket:error=EMFILE 3 4
inject "$ROUTED" sendto:error=ENOBUFS 3
inject "$ROUTED" setns:error=ENOMEM 1 3
[ "$failed" -ge $((tries - 4)) ]
ok $? "a launch of which a step fails fails ($failed of $tries)"
for id in $(dsec-ps | jq -r 'select(.labels) | .sandbox'); do
	timeout 30 dsec-pause --stop --grace 0 "$id" >/dev/null
done
leak_check "and nothing stays"
run timeout 60 dsec-doctor --leaks
is "$(field "$out" .leaks)" 0 "nor does dsec-doctor see any" || diag "$out"

# --- killed between two steps
killed=0
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
	net=$NAMES
	[ $((i % 2)) = 0 ] || net=$ROUTED
	timeout -s KILL "0.0$((i * 3 % 9))$i" dsec-run -d --network "$net" \
		</dev/null >/dev/null 2>&1 || killed=$((killed + 1))
done
diag "$killed of 12 were killed"
half_done() {
	timeout 60 dsec-doctor --fix --only dead >/dev/null 2>&1
	for half_id in $(dsec-ps | jq -r 'select(.name == null) | .sandbox'); do
		timeout 30 dsec-pause --stop --grace 0 "$half_id" >/dev/null
	done
	[ "$(timeout 60 dsec-doctor --leaks | jq -r .leaks | tail -n 1)" = 0 ]
}
wait_for 60 half_done
ok $? "dsec-run is killed on the way: dsec-doctor --fix removes what it left"
leak_check "and nothing stays"

# --- supervisors
for s in names routed; do
	kill -KILL "$(field "$(dsec-ps $s)" .supervisor_pid)"
done
lost() { [ "$(field "$(dsec-ps routed)" .outcome)" = supervisor-lost ]; }
wait_for 30 lost
run timeout 60 dsec-doctor --leaks
like "$out" '"leak":"network"' "what the dead have is a leak"
run timeout 60 dsec-doctor --fix --json --only dead
is "$(timeout 60 dsec-doctor --leaks | jq -r .leaks | tail -n 1)" 0 \
	"dsec-doctor removes it"
is "$(link)" 1 "their links too"
timeout 30 dsec-pause --stop none >/dev/null
net_end
done_testing
