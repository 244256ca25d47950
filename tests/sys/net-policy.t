#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Policies of sandboxes with a real helper and a small world: changed while they
# are used (field report 80), in part (field report 81), and kept over restarts,
# pauses and copies (field report 82).
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/net.sh
. "$(dirname "$0")/net.sh"
net_enter
need_tools jq curl
tree_new
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
trap 'net_end; tree_end $?' EXIT
net_world

PHASES='{"setup":{"allow":[{"domain":"allowed.test"},{"domain":"*.api.test"}]},
	"agent":{"allow":[{"domain":"other.test"}]},"grade":{}}'
run dsec-run --detach --name p --phase setup --phases "$PHASES"
is "$status $(field "$out" .network)" "0 names" "a sandbox with phases" ||
	diag "$err"
id=$(field "$out" .sandbox)
SPEC=$DSEC_LIB/sb/$id/spec.json

# What the HTTP server of NAME answers inside SANDBOX: its path, or "".
get() { # SANDBOX NAME [PORT]
	dsec-exec "$1" -- curl -s -m 5 "http://$2:${3:-80}/x" 2>/dev/null | jq -r .path 2>/dev/null
}
reaches() { # SANDBOX NAME WHAT
	is "$(get "$1" "$2")" /x "$3"
}
misses() {
	is "$(get "$1" "$2")" '' "$3"
}

# --- phases -------------------------------------------------------------------
reaches p allowed.test "an allowed name"
reaches p a.b.api.test "and one below a wildcard"
misses p api.test "not the wildcard's own name"
misses p other.test "not another one"
run dsec-exec p -- python3 -c 'import socket; socket.create_server(("", 80))'
like "$status $err" 'in use' "the policy's ports are the node's"
run dsec-net p --phase agent
is "$status" 0 "a switch" || diag "$out"
misses p allowed.test "what was allowed is not"
reaches p other.test "and the other way round"

# --- why ------------------------------------------------------------------------
verdict='"\(.allowed) \(.attempt.outcome) \(.agrees)"'
run dsec-net p --explain other.test:80
is "$(field "$out" "$verdict")" "true connected true" "an allowed name is explained"
is "$(field "$out" .by)" "allow domain other.test tcp 80,443" "by its rule"
run dsec-net p --explain allowed.test:80
is "$(field "$out" "$verdict")" "false not_resolved true" "a denied one"
run dsec-net p --explain other.test:22
is "$(field "$out" '"\(.allowed) \(.why) \(.agrees)"')" "false port true" "a port"
run dsec-net p --explain 198.51.100.10:80
is "$(field "$out" "$verdict")" "false unreachable true" "an address"
run dsec-net p --explain other.test:80/udp
is "$(field "$out" '"\(.allowed) \(.agrees)"')" "false true" "UDP"
run dsec-net p --explain 198.51.100.10/icmp
is "$(field "$out" "$verdict")" "false unreachable true" "ICMP"
is "$(echo '{"id":7,"sandbox":"p","denied":true}' | dsec-net | jq -c 'select(.id == 7) |
	select(.name=="allowed.test" or .ok).ok' | sort -u | tr '\n' ' ')" "null true " \
	"what was denied is asked for by a request"
is "$(dsec-net p --denied | jq -r 'select(.event=="denied" and .name=="allowed.test") | .why' |
	head -n 1)" name "what was denied is told"
run dsec-net p --show
is "$(field "$out" '"\(.phase) \(.in_force)"')" "agent true" "what is stored is in force"
run dsec-run --detach --name f --network '{"allow":[{"domain":"allowed.test"}]}'
dsec-net f --denied --follow >"$T/follow" &
follow=$!
misses f six.test "another sandbox, with a name that is denied"
wait_for 10 grep -q '"name":"six.test"' "$T/follow"
ok $? "--follow tells while it happens"
dsec-pause --stop f >"$T/out"
wait_for 10 sh -c "! kill -0 $follow 2>/dev/null"
wait "$follow"
is "$? $(tail -n 1 "$T/follow" | jq .ok)" "0 true" "and ends with the sandbox"

# --- in part (field report 81) ---------------------------------------------------
dsec-net p --deny-all >"$T/out"
misses p other.test "deny all"
dsec-net p --merge '{"allow":[{"domain":"allowed.test"}]}' >"$T/out"
reaches p allowed.test "one rule more is one rule more"
misses p other.test "and nothing else"
dsec-net p --merge '{}' >"$T/out"
misses p other.test "an empty one is nothing"
run dsec-net p --merge '{"allow":[{"domain":"other.test"}],"allow_all":true}'
is "$status" 65 "an unknown field is refused"
misses p other.test "and all of it"
dsec-net p --replace '{}' >"$T/out"
misses p allowed.test "an empty replacement denies"
dsec-net p --merge '{"allow":[{"domain":"db.test","ports":[5432]}]}' >"$T/out"
run dsec-net p --explain db.test:5432
is "$(field "$out" "$verdict")" "true connected true" "a port nobody listened on until then" ||
	diag "$out"

# --- while it is used (field report 80) --------------------------------------------
helper() { # KEY of its record
	python3 - "$DSEC_RUN/net/ctl.sock" "$1" <<'EOF'
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b'{"op":"stats"}\n')
print(json.loads(s.makefile().readline())["helper"][sys.argv[2]])
EOF
}
dsec-net p --phase setup >"$T/out"
cat >"$T/client" <<'EOF'
import collections, socket, sys, time
to = socket.getaddrinfo("allowed.test", 80, socket.AF_INET)[0][4]
seen = collections.Counter()
print("ready", flush=True)
until = time.time() + float(sys.argv[1])
while time.time() < until:
    began = time.time()
    try:
        with socket.create_connection(to, 5) as s:
            s.sendall(b"GET /x HTTP/1.0\r\nHost: allowed.test\r\n\r\n")
            seen["allowed" if s.recv(64) else "closed"] += 1
    except ConnectionError:
        seen["denied"] += 1
    except OSError as e:
        seen[type(e).__name__] += 1
    if time.time() - began > 2:
        seen["slow"] += 1
    time.sleep(0.005)
closed = seen.pop("closed", 0)
print(" ".join(sorted(seen)), closed, flush=True)
EOF
dsec-exec --cp "$T/client" p:/tmp/client >"$T/out"
dsec-exec p -- python3 /tmp/client 12 >"$T/seen" 2>&1 &
client=$!
wait_for 10 grep -q ready "$T/seen"
end=$(($(now_s) + 10)) n=0 bad=0 killed=0
while [ "$(now_s)" -lt "$end" ]; do
	n=$((n + 1))
	phase=$([ $((n % 2)) = 0 ] && echo setup || echo agent)
	if [ $((n % 7)) = 0 ]; then
		dsec-net p --phase "$phase" >/dev/null 2>&1 &
		sleep "0.0$((n % 10))"
		kill -9 $! 2>/dev/null
		wait $! 2>/dev/null
	elif [ "$n" = 25 ]; then
		kill -9 "$(helper worker)" && killed=1
	else
		dsec-net p --phase "$phase" >"$T/out" || bad=$((bad + 1))
	fi
done 2>/dev/null
wait "$client"
is "$bad" 0 "$n switches under load"
# What the killed worker carried ends with it: one connection, if it had asked.
closed=$(tail -n 1 "$T/seen" | sed 's/.* //')
is "$(tail -n 1 "$T/seen" | sed 's/ [0-9]*$//')" "allowed denied" \
	"every attempt is decided by one policy or the other, and at once"
[ "$closed" -le "$killed" ]
ok $? "none of them is closed but by the death of the worker ($closed)"
dsec-net p --phase agent >"$T/out"
is "$(dsec-net p --show | jq -r '"\(.phase) \(.in_force)"')" "agent true" "the last one holds"

# An open connection that the next policy denies ends, one that it allows stays.
dsec-net p --replace '{"allow":[{"domain":"allowed.test","ports":[7]},{"domain":"other.test","ports":[7]}]}' >"$T/out"
cat >"$T/open" <<'EOF'
import socket, sys, time
socks = {n: socket.create_connection((n, 7), 5) for n in ("allowed.test", "other.test")}
for s in socks.values():
    s.sendall(b"x")
    s.recv(1)
print("ready", flush=True)
sys.stdin.readline()
for n, s in socks.items():
    try:
        s.settimeout(3)
        s.sendall(b"y")
        print(n, "open" if s.recv(1) == b"y" else "closed")
    except OSError as e:
        print(n, "cut")
EOF
dsec-exec --cp "$T/open" p:/tmp/open >"$T/out"
mkfifo "$T/go"
dsec-exec -i p -- python3 /tmp/open <"$T/go" >"$T/seen" 2>&1 &
client=$!
exec 9>"$T/go"
wait_for 10 grep -q ready "$T/seen"
run dsec-net p --replace '{"allow":[{"domain":"other.test","ports":[7]}]}'
is "$(field "$out" .cut)" 1 "a tighter policy cuts one connection" || diag "$out"
echo >&9
exec 9>&-
wait "$client"
is "$(sed 1d "$T/seen" | tr '\n' ' ')" "allowed.test cut other.test open " \
	"that which it denies, not the other"

# --- restarts, pauses, copies (field report 82) -------------------------------------
dsec-net p --phase agent >"$T/out"
kill -9 "$(helper worker)"
wait_for 10 sh -c "[ \"\$(dsec-net p --show | jq .in_force)\" = true ]"
reaches p other.test "its worker was killed: it is served again"
misses p allowed.test "as before"
old=$(helper pid)
kill -9 "$old"
wait_for 10 sh -c "! kill -0 $old 2>/dev/null"
misses p other.test "the helper was killed: nothing is reached"
is "$(dsec-net p --show | jq -r .in_force)" false "which --show tells"
run dsec-net p --phase agent
is "$status" 0 "the next change starts another" || diag "$out"
reaches p other.test "with the policy that was stored"
misses p allowed.test "and no other"
kill -9 "$(helper pid)"
run timeout 60 dsec-doctor --fix
wait_for 10 sh -c "[ \"\$(dsec-net p --show | jq .in_force)\" = true ]"
reaches p other.test "dsec-doctor --fix brings it back"
misses p allowed.test "as it was"

for level in freeze reclaim; do
	dsec-pause p --level $level >"$T/out"
	reaches p other.test "$level: what was changed holds"
	misses p allowed.test "$level: and nothing else"
done
run dsec-fork --fs-only --count 1 p
copy=$(printf '%s\n' "$out" | jq -r 'select(.parent) | .sandbox')
reaches "$copy" other.test "a copy of files inherits it"
misses "$copy" allowed.test "and nothing more"
is "$(jq -r .policy.hash "$DSEC_LIB/sb/$copy/spec.json")" "$(jq -r .policy.hash "$SPEC")" "hash and all"

why=$(checkpoint_why)
if [ -z "$why" ] && matrix_image; then
	run dsec-run --detach --name d --image root/matrix:1 --phase setup --phases "$PHASES" \
		-- sleep 1000
	is "$status" 0 "a sandbox that can be checkpointed" || diag "$err"
	dsec-net d --phase agent >"$T/out"
	reach() { # SANDBOX NAME
		dsec-exec "$1" -- sh -c "printf 'GET /x HTTP/1.0\\r\\nHost: $2\\r\\n\\r\\n' |
			busybox nc -w 5 $2 80" 2>/dev/null | tail -n 1 | jq -r .path 2>/dev/null
	}
	is "$(reach d other.test) $(reach d allowed.test)" "/x " "it has the changed policy"
	run timeout 120 dsec-pause d --level disk
	is "$status" 0 "on the disk" || diag "$out"
	is "$(reach d other.test) $(reach d allowed.test)" "/x " "and back: the changed policy"
	timeout 120 dsec-pause d --level disk >"$T/out"
	run dsec-net d --phase setup
	is "$status" 0 "changed on the disk" || diag "$out"
	is "$(reach d other.test) $(reach d allowed.test)" " /x" "it holds"
	run timeout 120 dsec-fork d --count 1
	copy=$(printf '%s\n' "$out" | jq -r 'select(.parent) | .sandbox')
	is "$(reach "$copy" other.test) $(reach "$copy" allowed.test)" " /x" "a copy with memory inherits it"
else
	skip "pause to disk, copies with memory" "${why:-no image}"
fi
dsec-pause --stop --project root >"$T/out"
done_testing
