#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Policies of routed sandboxes: changed while connections are open, kept over
# restarts, and explained.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/net.sh
. "$(dirname "$0")/net.sh"
net_enter
need_tools jq curl
tree_new
trap 'net_end; tree_end $?' EXIT
net_world

PHASES='{"setup":{"allow":[{"domain":"allowed.test"},{"cidr":"198.51.100.11/32","ports":[7,80]}]},
	"agent":{"allow":[{"cidr":"198.51.100.10/32","ports":[7]},{"cidr":"198.51.100.11/32","ports":[7]}]},
	"half":{"allow":[{"cidr":"198.51.100.11/32","ports":[7]}]},
	"open":{"default":"allow","deny":[{"cidr":"198.51.100.11/32"}]},"grade":{}}'
run dsec-run --detach --name r --phase setup --phases "$PHASES"
is "$(field "$out" .error.code)" configuration "without an uplink it is refused"
run dsec-net --uplink up
is "$status $(field "$out" .up)" "0 true" "an uplink" || diag "$err"
run dsec-run --detach --network '{"allow":[{"cidr":"2001:db8:1::10/128"}]}'
is "$(field "$out" .error.code)" unsupported "a network of IPv6 is refused"
like "$err" "allow\[0\]: .*IPv6" "by name"
run dsec-net --uplink up
is "$status $(field "$out" .up)" "0 true" "which may be asked for again"
run dsec-run --detach --name r --phase setup --phases "$PHASES"
is "$status $(field "$out" .network)" "0 routed" "a sandbox with networks" || diag "$err"
id=$(field "$out" .sandbox)

gets() { # URL
	dsec-exec r -- curl -s -m 5 "$1" 2>/dev/null | jq -r .path 2>/dev/null
}
verdict() { # TO
	dsec-net r --explain "$1" | jq -r '"\(.allowed) \(.attempt.outcome) \(.agrees)"'
}
is "$(gets http://allowed.test/x) $(gets http://198.51.100.11/x)" "/x /x" "a name and a network"
is "$(gets http://other.test/x)" "" "not another name"
run dsec-net r --merge '{"allow":[{"cidr":"2001:db8::/32"}]}'
is "$(field "$out" .error.code)" unsupported "nor does a change allow IPv6"
# What nobody wrote about port 443 and IPv6.
implicit='[.implicit[] | select((.ports == [443] and .cidr == "any") or .cidr == "::/0") |
	"\(.does) \(.proto)"] | join(", ")'
is "$(dsec-net r --show | jq -r "$implicit")" "redirect tcp, deny udp, deny null" \
	"the handshake is looked at"
is "$(verdict 198.51.100.11:80)" "true connected true" "an allowed address"
denied=$(dsec-net r --show | jq .counters.denied)
is "$(verdict 198.51.100.11:22)" "false refused true" "a port of it"
is "$(dsec-net r --denied | jq -c 'select(.addr == "198.51.100.11") | .port')" 22 "is told"
is "$(($(dsec-net r --show | jq .counters.denied) - denied))" 1 "and counted once"
is "$(verdict 198.51.100.12:80)" "false refused true" "another address"
is "$(verdict 169.254.169.254:80)" "false refused true" "what is always denied"
is "$(verdict 198.51.100.11:80/udp)" "false unreachable true" "UDP"
is "$(verdict 198.51.100.11/icmp)" "false unreachable true" "ICMP"
is "$(verdict allowed.test:80)" "true connected true" "an allowed name"
is "$(verdict other.test:443)" "false not_resolved true" "another name"

# --- what holds by name, what by address (field report 76) ----------------------
# shared.test has the address of allowed.test.
asks() { # CURL-ARGS: the host that the server was asked for
	dsec-exec r -- curl -sk -m 5 "$@" 2>/dev/null | jq -r .headers.host 2>/dev/null
}
is "$(asks http://shared.test/x)" "" "a denied name on an allowed one's address has none"
is "$(asks -H 'Host: shared.test' http://allowed.test/x)" shared.test \
	"on port 80 the address decides, and no Host header"
is "$(asks --connect-to shared.test:443:allowed.test:443 https://shared.test/x)" "" \
	"on 443 the name in the ClientHello"
is "$(asks https://allowed.test/x)" allowed.test "which may be the allowed one"
is "$(world_saw '.sni=="shared.test"')" 0 "the other was never asked for there"

# Two connections: the switch cuts the one that is denied, whoever sends.
cat >"$T/open" <<'EOF'
import socket, sys
names = ("198.51.100.10", "198.51.100.11")
socks = {n: socket.create_connection((n, 7), 5) for n in names}
for s in socks.values():
    s.sendall(b"x")
    s.recv(1)
print("ready", flush=True)
sys.stdin.readline()
for n, s in socks.items():
    s.settimeout(3)
    try:
        s.sendall(b"y")
        print(n, "open" if s.recv(1) == b"y" else "closed")
    except OSError as e:
        print(n, "cut")
EOF
dsec-exec --cp "$T/open" r:/tmp/open >"$T/out"
opened() { # sets $client; what it says goes to $T/seen
	rm -f "$T/go" "$T/seen"
	mkfifo "$T/go"
	dsec-exec -i r -- python3 /tmp/open <"$T/go" >"$T/seen" 2>&1 &
	client=$!
	exec 9>"$T/go"
	wait_for 10 grep -q ready "$T/seen" || diag "$(cat "$T/seen")"
}
told() { # sets $tells; in this shell, which alone can wait for its client
	echo >&9
	exec 9>&-
	wait "$client"
	tells=$(sed 1d "$T/seen" | tr '\n' ' ')
}
run dsec-net r --phase agent
is "$status" 0 "a switch" || diag "$out"
is "$(gets http://198.51.100.11/x)" "" "closes what it does not allow"
opened
run dsec-net r --phase half
told
is "$tells" "198.51.100.10 cut 198.51.100.11 open " "a tighter one cuts what it denies, and that alone"
dsec-net r --phase agent >"$T/out"
opened
run dsec-net r --phase setup
run dsec-net r --phase agent
told
is "$tells" "198.51.100.10 cut 198.51.100.11 open " "even when the next one allows it again"

# --- restarts -----------------------------------------------------------------
helper() { # KEY of its record
	python3 - "$DSEC_RUN/net/ctl.sock" "$1" <<'EOF'
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b'{"op":"stats"}\n')
print(json.loads(s.makefile().readline())["helper"][sys.argv[2]])
EOF
}
in_force() {
	[ "$(dsec-net r --show | jq .in_force)" = true ]
}
opened
kill -9 "$(helper worker)"
wait_for 10 in_force
ok $? "its worker was killed: another serves"
told
is "$tells" "198.51.100.10 open 198.51.100.11 open " "routed connections live"
opened
old=$(helper pid)
kill -9 "$old"
wait_for 10 sh -c "! kill -0 $old 2>/dev/null"
told
is "$tells" "198.51.100.10 open 198.51.100.11 open " "the helper was killed: the rules stay"
is "$(gets http://198.51.100.11/x)" "" "and deny what they denied"
run dsec-net r --phase half
is "$status" 0 "the next change starts another" || diag "$out"
in_force
ok $? "and holds"
opened_one=$(verdict 198.51.100.10:7)
is "$opened_one $(verdict 198.51.100.11:7)" "false refused true true connected true" "as it says"

# --- open, limits ----------------------------------------------------------------
dsec-net r --phase open >"$T/out"
is "$(dsec-net r --show | jq -r "$implicit")" "deny null" \
	"it is not where all is allowed"
is "$(verdict 198.51.100.10:80) $(verdict 198.51.100.11:80)" \
	"true connected true false refused true" "all but a network"
is "$(verdict 203.0.113.1:80)" "false refused true" "and never the node"
run dsec-net r --replace '{"allow":[{"cidr":"198.51.100.0/24","proto":"any"}],"limits":{"bandwidth_mbit":5}}'
is "$status" 0 "with a limit" || diag "$out"
is "$(verdict 198.51.100.10:80)" "true connected true" "it still passes"
is "$(verdict 198.51.100.10/icmp)" "true answered true" "an echo request too"
is "$(verdict 198.51.100.99/icmp | cut -d' ' -f1,2)" "true silent" "which nobody need answer"
run dsec-net r --show
is "$(field "$out" '.limits.bandwidth_mbit')" 5 "which is shown"
# What a queue lets through at once is little beside 3 MB, which are 4.8 s.
out=$(dsec-exec r -- curl -s -m 30 -o /dev/null -w '%{size_download} %{time_total}' \
	http://198.51.100.10/bytes/3000000)
ok "$(awk -v got="$out" 'BEGIN { split(got, v, " ")
	print (v[1] == 3000000 && v[2] >= 4) ? 0 : 1 }')" "and kept: $out s"
run dsec-fork --fs-only --count 1 r
copy=$(printf '%s\n' "$out" | jq -r 'select(.parent) | .sandbox')
is "$(dsec-net "$copy" --explain 198.51.100.10:80 | jq -r '"\(.allowed) \(.attempt.outcome)"')" \
	"true connected" "a copy has it too"
is "$(jq -r .policy.hash "$DSEC_LIB/sb/$copy/spec.json")" \
	"$(jq -r .policy.hash "$DSEC_LIB/sb/$id/spec.json")" "with its hash"
dsec-pause --stop --project root >"$T/out"
run dsec-net --uplink down
is "$status $(field "$out" .up)" "0 false" "the uplink is taken down"
done_testing
