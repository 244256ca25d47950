#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Routed sandboxes: addresses and names by the kernel's rules, changes under
# load, datagrams, IPv6, the addresses themselves.  What single packets may do is
# tried in tests/unit/route_packets.c.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/net.sh
. "$(dirname "$0")/net.sh"
net_enter
need_tools jq curl nft ip
tree_new
trap 'net_end; tree_end $?' EXIT
net_world

transit() {
	nsenter --net="$DSEC_RUN/net/transit" "$@"
}
# What a connection from SANDBOX to ADDRESS PORT gets, and in what time.
try() {
	dsec-exec "$1" -- python3 /tmp/try "$2" "$3" 2>&1
}
cat >"$T/try" <<'EOF'
import errno, socket, sys, time
t = time.time()
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()
    what = "open"
except socket.timeout:
    what = "timeout"
except OSError as e:
    what = errno.errorcode.get(e.errno, str(e.errno)).lower()
print(what, "late" if time.time() - t > 1 else "soon")
EOF

# --- no way to the world ------------------------------------------------------
RULES='{"allow":[{"cidr":"198.51.100.10","ports":[5432]}]}'
run dsec-run --detach --network "$RULES" --name r
is "$(field "$out" '"\(.ok) \(.error.code)"')" "false configuration" \
	"without an uplink it is refused" || diag "$out"
like "$out" 'dsec-net --uplink up' "and told what to do"

# --- the node's own networks (field report 93) -----------------------------------
for clash in '"pool":"203.0.112.0/20"' '"pool":"203.0.113.128/25"' \
	'"uplink":{"address":"203.0.113.0/30"}' '"pool":"100.127.0.0/16"'; do
	echo "{\"dns\":[\"198.51.100.53\"],$clash}" >"$DSEC_CONFIG/net.json"
	run dsec-net --uplink up
	like "$status $err" '^78 .*overlap' "a clash is found: $clash"
done
is "$(ip -br link show dsec-up 2>&1 | grep -c '^dsec-up')" 0 "nothing was made"
echo '{"dns":["198.51.100.53"]}' >"$DSEC_CONFIG/net.json"
run dsec-net --uplink up
is "$(field "$out" '"\(.ok) \(.up)"')" "true true" "the uplink" || diag "$out$err"
run dsec-net --uplink up
is "$(field "$out" '"\(.ok) \(.up)"')" "true true" "once more is fine"

# --- an address and a name ------------------------------------------------------
PHASES='{"setup":{"allow":[{"cidr":"198.51.100.10","ports":[5432]},
		{"cidr":"198.51.100.10","proto":"udp","ports":[5432]},
		{"domain":"*.test","ports":[22,80,443]}]},
	"agent":{"allow":[{"cidr":"198.51.100.10","ports":[5432]},
		{"cidr":"198.51.100.10","proto":"udp","ports":[5432]}]},
	"grade":{}}'
run dsec-run --detach --name r --phase setup --phases "$PHASES"
is "$(field "$out" .network)" routed "a routed sandbox" || diag "$out$err"
run dsec-run --detach --name s --phase setup --phases "$PHASES"
is "$(field "$out" .network)" routed "another"
for sb in r s; do
	dsec-exec --cp "$T/try" $sb:/tmp/try >"$T/out"
done
is "$(try r 198.51.100.10 5432)" "open soon" "a port that is allowed"
is "$(try r 198.51.100.10 7)" "econnrefused soon" "one that is not"
is "$(try r 198.51.100.11 5432)" "econnrefused soon" "an address that is not"

# --- by address, where a name is allowed (field report 78) ------------------------
for to in 198.51.100.10 198.51.100.11; do
	for port in 80 443; do
		is "$(try r $to $port)" "econnrefused soon" \
			"$to:$port is nothing without its name"
	done
done
for to in 3325256715 0306.063.0144.013 0xc633640b; do
	is "$(try r $to 80)" "econnrefused soon" "$to, in whatever form"
done
is "$(dsec-exec r -- curl -s -m 5 http://allowed.test/x | jq -r .path)" /x \
	"the name"
is "$(try r 198.51.100.10 22)" "open soon" "leads to its ports"
is "$(try r 198.51.100.10 8443)" "econnrefused soon" "and to no other"
is "$(dsec-exec r -- curl -sk -m 5 https://allowed.test/x | jq -r .path)" /x \
	"443, by way of the proxy"
is "$(try s 198.51.100.10 22)" "econnrefused soon" "for this sandbox alone"

# --- the name in the handshake, where two have one address (field report 76) -----
run dsec-run --detach --name h --network '{"allow":[
	{"domain":"allowed.test","proto":"any","ports":[80,443]}]}'
is "$(field "$out" .network)" routed "a sandbox with one of the two names" ||
	diag "$out$err"
# What curl says of shared.test at the address of allowed.test.
shared() {
	dsec-exec h -- curl -sk -m 5 -o /dev/null -w '%{http_code}' "$@" 2>/dev/null
}
is "$(dsec-exec h -- curl -sk -m 5 https://allowed.test/x | jq -r .path)" /x \
	"the name that is allowed"
is "$(shared --connect-to shared.test:443:allowed.test:443 \
	https://shared.test/x)" 000 "another name in the handshake"
is "$(shared --resolve shared.test:443:198.51.100.10 https://shared.test/x)" 000 \
	"with the address that was learned"
is "$(shared https://198.51.100.10/x)" 000 "none at all"
is "$(shared --resolve ALLOWED.test:443:198.51.100.10 https://ALLOWED.test/x)" 200 \
	"upper case is the same name"
is "$(world_saw '.sni == "shared.test" or .host == "shared.test"')" 0 \
	"nothing of it came there"
wait_for 5 sh -c 'dsec-net h --denied | grep -q "\"why\":\"sni\""'
ok $? "and it is told"
dsec-exec h -- python3 -c 'import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b"x", ("198.51.100.10", 443))' >"$T/out" 2>&1
udp443='"port":443,"proto":"udp"'
wait_for 5 sh -c "dsec-net h --denied | grep -q '$udp443'"
ok $? "UDP 443 is refused, even by a rule that has it"
dsec-pause --stop --grace 0 h >"$T/out"

# --- what names may lead to (field report 77) --------------------------------------
for name in private loopback metadata node mapped nat64 toprivate; do
	dsec-exec r -- getent ahosts $name.test >"$T/out" 2>&1
	is "$(grep -cE '^[0-9a-f]' "$T/out")" 0 "$name.test leads nowhere"
done
dsec-exec r -- sh -c 'for i in $(seq 64); do
	getent ahosts many.test; done | sort -u | wc -l' >"$T/many"
n=$(transit nft -j list set inet dsec dns4 |
	jq '[.nftables[].set.elem // [] | .[]] | length')
[ "$(cat "$T/many")" -gt 16 ] && [ "$n" -le 2048 ]
ok $? "a name with a thousand addresses: $(cat "$T/many") seen, $n kept"
is "$(transit nft -j list set inet dsec dns4 | jq '[.nftables[].set.elem // [] |
	.[] | .elem.timeout | select(. == null or . < 60 or . > 3630)] |
	length')" 0 "each for a time"
is "$(dsec-exec r -- curl -s -m 5 http://short.test/x | jq -r .path)" /x \
	"a TTL of nothing is usable"

# --- IPv6 (field report 85) ----------------------------------------------------------
is "$(dsec-exec r -- sh -c "grep -vc '^00000000000000000000000000000001' \
	/proc/net/if_inet6")" 0 "no IPv6 address but ::1"
for to in 2001:db8:1::10 fd00::1 64:ff9b::c633:640a; do
	is "$(try r $to 80 | cut -d' ' -f2)" soon "$to fails at once"
	isnt "$(try r $to 80 | cut -d' ' -f1)" open "and is not open"
done
isnt "$(try r fe80::1%eth0 80 | cut -d' ' -f1)" open "nor link-local"
is "$(try r ::ffff:198.51.100.11 80)" "econnrefused soon" \
	"a mapped address is judged as the one it is"
dsec-exec r -- getent ahostsv6 six.test >"$T/out" 2>&1
is "$(grep -c 2001 "$T/out")" 0 "no name has one"
is "$(dsec-exec r -- curl -s -m 5 http://both.test/x | jq -r .path)" /x \
	"one with both is reached at once"

# --- datagrams (field report 88) -----------------------------------------------------
cat >"$T/echo" <<'EOF'
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("198.51.100.10", int(sys.argv[1])))
s.settimeout(3)
for size in 100, 1400, 1500, 8000, 65507:
    try:
        s.send(b"x" * size)
        got = len(s.recv(70000))
    except OSError as e:
        got = type(e).__name__ if s.gettimeout() else e
    print(size if got == size else f"{size}:{got}", end=" ")
EOF
dsec-exec --cp "$T/echo" r:/tmp/echo >"$T/out"
is "$(dsec-exec r -- python3 /tmp/echo 5432)" "100 1400 1500 8000 65507 " \
	"datagrams of every size come back"
before=$(world_saw '.proto=="udp" and .port==7')
dsec-exec r -- python3 /tmp/echo 7 >"$T/out"
is "$(world_saw '.proto=="udp" and .port==7')" "$before" \
	"to a denied port none goes out ($(cat "$T/out"))"

# --- connections outlive no policy (field report 84) ------------------------------------
cat >"$T/streams" <<'EOF'
import errno, select, socket, sys, time
# One that streams, one that waits, and datagrams, all on 5432: until they end.
to = ("198.51.100.10", 5432)
stream, idle = (socket.create_connection(to, 5) for _ in range(2))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.connect(to)
idle.sendall(b"hello")
idle.recv(5)
stream.setblocking(False)
udp.setblocking(False)
ends, got, last = {}, {"stream": 0, "udp": 0}, {"stream": 0.0, "udp": 0.0}
socks = {"stream": stream, "idle": idle, "udp": udp}
until = time.time() + float(sys.argv[1])
print("ready", flush=True)
while time.time() < until and len(ends) < 3:
    for name, s in socks.items():
        if name in ends:
            continue
        try:
            if name != "idle":
                s.send(b"x" * 1000)
        except BlockingIOError:
            pass
        except OSError as e:
            ends[name] = time.time()
            continue
        try:
            if select.select([s], [], [], 0)[0]:
                n = len(s.recv(65536))
                if not n:
                    raise OSError
                got[name] += n
                last[name] = time.time()
        except BlockingIOError:
            pass
        except OSError as e:
            ends[name] = time.time()
    time.sleep(0.002)
print({k: round(v * 1000) for k, v in ends.items()},
      {k: round(v * 1000) for k, v in last.items()}, got, sep="\n", flush=True)
EOF
dsec-exec --cp "$T/streams" r:/tmp/streams >"$T/out"
dsec-exec r -- python3 /tmp/streams 30 >"$T/streamed" 2>&1 &
streams=$!
wait_for 10 grep -q ready "$T/streamed"
sleep 0.5
dsec-net r --phase agent >"$T/out"
sleep 0.7
isnt "$(kill -0 $streams && echo there)" "" "what the next phase allows goes on"
helper() { # KEY of its record
	python3 - "$DSEC_RUN/net/ctl.sock" "$1" <<'EOF'
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b'{"op":"stats"}\n')
print(json.loads(s.makefile().readline())["helper"][sys.argv[2]])
EOF
}
kill -9 "$(helper worker)"
sleep 0.7
isnt "$(kill -0 $streams && echo there)" "" "and over the death of the worker"
t0=$(date +%s%3N)
dsec-net r --phase grade >"$T/out"
t1=$(date +%s%3N)
wait $streams
python3 - "$T/streamed" "$t0" "$t1" >"$T/verdict" <<'EOF'
import ast, sys
lines = open(sys.argv[1]).read().splitlines()
ends, last, got = (ast.literal_eval(x) for x in lines[-3:])
t0, t1 = int(sys.argv[2]), int(sys.argv[3])
print("ended:", *sorted(ends))
print("early:", *sorted(k for k, v in ends.items() if v < t0))
print("late:", *sorted(k for k, v in ends.items() if v > t1 + 1000))
print("leaked:", *sorted(k for k, v in last.items() if v > t1 + 5))
print("idle:", *sorted(k for k, v in got.items() if v < 10000))
EOF
is "$(tr '\n' ' ' <"$T/verdict")" \
	"ended: idle stream udp early: late: leaked: idle: " \
	"the stricter one ends all within a second, and no byte comes after it" ||
	diag "$(cat "$T/streamed")"
wait_for 5 sh -c 'dsec-net r --denied | grep -q "\"port\":5432"'
ok $? "and it is told"
dsec-net r --phase agent >"$T/out"
is "$(try r 198.51.100.10 5432)" "open soon" "a looser one opens again"

# --- many (field report 93) -------------------------------------------------------------
addresses() {
	transit nft -j list set inet dsec bind4 |
		jq -r '.nftables[].set.elem // [] | .[] | .concat | "\(.[0]) \(.[2])"' | sort
}
is "$(addresses | cut -d' ' -f2 | sort -u | wc -l)" 2 "each has its address"
dsec-pause --stop s >"$T/out"
wait_for 10 sh -c '[ "$(nsenter --net="$DSEC_RUN/net/transit" ip -br link | grep -c "^ds[0-9]")" = 1 ]'
ok $? "one that ends takes its link along"
is "$(addresses | wc -l)" 1 "and its rules"
i=0
while [ $i -lt 5 ]; do
	i=$((i + 1))
	dsec-run --network "$RULES" --rm -- true >"$T/out" 2>&1 || diag "$(cat "$T/out")"
done
wait_for 10 sh -c '[ "$(nsenter --net="$DSEC_RUN/net/transit" ip -br link | grep -c "^ds[0-9]")" = 1 ]'
ok $? "five more leave nothing"

# --- the end ---------------------------------------------------------------------------
dsec-pause --stop r >"$T/out"
wait_for 10 sh -c '[ "$(nsenter --net="$DSEC_RUN/net/transit" ip -br link | grep -c "^ds[0-9]")" = 0 ]'
run dsec-net --uplink down
is "$status" 0 "the uplink goes" || diag "$out$err"
is "$(ip -br link show dsec-up 2>&1 | grep -c '^dsec-up')" 0 "its link"
is "$(nft list tables | grep -c dsec)" 0 "its rules"
is "$(grep -c "$DSEC_RUN/net/transit" /proc/self/mountinfo)" 0 "the transit namespace"

net_end
done_testing
