#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a routed sandbox had is gone, or is of no use, before the next one on its
# slot begins: this node has one slot.  Field report 93 (addresses are used
# again).
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/net.sh
. "$(dirname "$0")/net.sh"
need_tools jq curl strace nft python3
net_enter
tree_new
net_world
mkdir -p "$DSEC_CONFIG"
echo '{"uid_ranges":1}' >"$DSEC_CONFIG/node.json"

NAMES='{"allow":[{"domain":"allowed.test"}]}'
ROUTED='{"allow":[{"domain":"allowed.test"},
	{"cidr":"198.51.100.10/32","ports":[5432]}]}'

# A one-shot that reaches what it may, and ends when its connection has: a socket
# that waits for the other side keeps its namespace and link, for minutes.
once() { # NETWORK
	timeout 60 dsec-run --rm --network "$1" -- sh -c '
		curl -sS -m 20 http://allowed.test/once
		while ss -Htn state connected exclude time-wait | grep -q .; do
			sleep 0.01
		done' 2>"$T/err"
}

# There is room for one, and one that ends is answered before its place is free;
# and a full node looks for the dead five times a second, no more.
next_one() {
	next=$(once "$ROUTED")
	! grep -q 'not enough left' "$T/err"
}
launched() { # NAME
	run timeout 30 dsec-run -d --name "$1" --network "$ROUTED"
	case $err in *'not enough left'*) return 1 ;; esac
}

links() { # those of sandboxes
	nsenter --net="$DSEC_RUN/net/transit" ip -br link show type veth |
		grep -c '^ds[0-9]'
}

no_links() {
	[ "$(links)" = 0 ]
}

learned() { # elements that a name has led to
	nsenter --net="$DSEC_RUN/net/transit" nft -j list set inet dsec dns4 |
		jq '[.nftables[] | .set? // empty | .elem? // [] | length] | add'
}

stats() {
	"$BUILD/bench/netctl" stats
}

timeout 30 dsec-net --uplink up >/dev/null

# --- who ended while nobody could be told
timeout 30 dsec-run -d --name first --network "$ROUTED" >/dev/null
timeout 30 dsec-exec first -- curl -sS -m 10 http://allowed.test/ >/dev/null
[ "$(learned)" -gt 0 ]
ok $? "a name that the first asked for leads somewhere"
kill -KILL "$(stats | jq .helper.pid)"
gone() { ! stats >/dev/null 2>&1; }
wait_for 30 gone
timeout 30 dsec-pause --stop --grace 0 first >/dev/null
[ "$(learned)" -gt 0 ]
ok $? "the helper is killed and the first ends: the kernel has it still"
wait_for 10 launched second
is "$status $(field "$out" .network)" "0 routed" "the second, same policy" ||
	diag "$err"
is "$(learned)" 0 "has none of it"
like "$(timeout 30 dsec-exec second -- curl -sS -m 10 http://allowed.test/)" \
	'"path": "/"' "and asks itself"

# --- a word that comes late
say() { # LINE: to the helper
	python3 -c 'import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(sys.argv[2].encode() + b"\n")
print(s.recv(4096).decode())' "$DSEC_RUN/net/ctl.sock" "$1"
}
id=$(field "$(dsec-ps second)" .sandbox)
like "$(say "{\"op\":\"detach\",\"sandbox\":\"$id\",\"netns\":1}")" '"ok":true' \
	"the end of a life before"
is "$(stats | jq --arg id "$id" '.sandboxes | has($id)')" true \
	"is not the end of this one"
like "$(timeout 30 dsec-exec second -- curl -sS -m 10 http://allowed.test/)" \
	'"path": "/"' "which goes on"

# --- a namespace that lives on
pid=$(jq .pid "$DSEC_RUN/sb/$id/net.json")
exec 9<"/proc/$pid/ns/net"
timeout 30 dsec-pause --stop --grace 0 second >/dev/null
is "$(links)" 1 "somebody holds its namespace: the link stays"
wait_for 10 next_one
like "$next" '"path": "/once"' "the next has its slot and address" ||
	diag "$(cat "$T/err")"
wait_for 30 no_links
ok $? "and leaves no link"
wait_for 10 launched third
pid=$(jq .pid "$DSEC_RUN/sb/$(field "$(dsec-ps third)" .sandbox)/net.json")
exec 9<&- 9<"/proc/$pid/ns/net"
timeout 30 dsec-pause --stop --grace 0 third >/dev/null
is "$(links)" 1 "again"
run timeout 60 dsec-doctor --leaks
like "$out" '"leak":"network"' "it is a leak"
timeout 60 dsec-doctor --fix --json --only dead >/dev/null
is "$(links)" 0 "which dsec-doctor removes"
exec 9<&-

# --- killed at every step
leak_start
stuck=
tries=0
killed_at() { # CALL NUMBER...
	killed_call=$1
	shift
	for killed_when; do
		for killed_net in "$NAMES" "$ROUTED"; do
			tries=$((tries + 1))
			timeout 60 strace -f -b execve -qq -o /dev/null \
				-e "trace=$killed_call" \
				-e "inject=$killed_call:signal=KILL:when=$killed_when" \
				dsec-run --rm --network "$killed_net" -- true \
				</dev/null >/dev/null 2>&1
			wait_for 10 next_one
			case $next in
			*'"path": "/once"'*) ;;
			*) stuck="$stuck $killed_call:$killed_when" ;;
			esac
		done
	done
}
killed_at connect 1 2
killed_at sendmsg 1 2
killed_at sendto 1 2 3 4
killed_at setns 1 3 5
killed_at flock 3 4 5
killed_at bind 2
killed_at renameat 1 2
killed_at recvmsg 1
killed_at unlinkat 1 4
killed_at unlink 1 3
# The helper has heard of it before anything of its network is written down.
timeout 60 strace -f -b execve -qq -o /dev/null -e trace=renameat \
	-e inject=renameat:signal=KILL:when=2 \
	dsec-run -d --name unwritten --network "$NAMES" </dev/null >/dev/null 2>&1
known() { [ "$(stats | jq '.sandboxes | length')" = "$1" ]; }
wait_for 10 known 1
ok $? "dsec-run is killed before it has written its network down"
run timeout 30 dsec-pause --stop --grace 0 unwritten
wait_for 10 known 0
ok $? "who takes it away tells the helper all the same" || diag "$out" "$err"
is "$stuck" "" "dsec-run is killed at $tries steps: the next has slot and address"
timeout 60 dsec-doctor --fix --only dead >/dev/null 2>&1
is "$(stats | jq -c '[.helper.sandboxes, (.sandboxes | length)]')" "[0,0]" \
	"the helper knows nobody"
wait_for 30 no_links
ok $? "nobody has a link"
leak_check "and nothing stays"

# --- many
ended=0
# Without what both share, which has a fixed size.
rss() { awk '/^RssAnon/ {print $2}' "/proc/$(stats | jq ".helper.$1")/status"; }
# shellcheck disable=SC2034 # counts
for i in $(seq 20); do once "$ROUTED" >/dev/null; done
keeper=$(rss pid) worker=$(rss worker)
# shellcheck disable=SC2034 # counts
for i in $(seq "${NET_ENDS:-40}"); do
	timeout 60 dsec-run --rm --network "$ROUTED" -- true && ended=$((ended + 1))
done
is "$ended" "${NET_ENDS:-40}" "one after another"
diag "keeper $keeper KiB, then $(rss pid); worker $worker, then $(rss worker)"
[ "$(rss pid)" -le $((keeper + 512)) ] && [ "$(rss worker)" -le $((worker + 512)) ]
ok $? "the helper does not grow"
wait_for 30 no_links
ok $? "no links are left"
is "$(stats | jq -c '[.helper.sandboxes, (.sandboxes | length)]')" "[0,0]" \
	"the helper knows nobody"
is "$(nsenter --net="$DSEC_RUN/net/transit" nft -j list map inet dsec slot |
	jq '[.nftables[] | .map? // empty | .elem? // [] | length] | add')" 0 \
	"nor do the rules"
is "$(learned)" 0 "nor what names led to"
net_end
done_testing
