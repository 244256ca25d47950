#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sandboxes of both strengths ask for names and connect as fast as they can, while
# their phase is switched and the helper's processes are killed: what a phase
# denies never passes, and nothing is left.
#   STORM_ROUNDS=N    (12)
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/net.sh
. "$(dirname "$0")/../sys/net.sh"
NET_DIR=$(dirname "$0")/../sys
net_enter
need_tools jq curl python3
tree_new
trap 'net_end; tree_end $?' EXIT
net_world
rounds=${STORM_ROUNDS:-12}

cat >"$T/flood" <<'END'
import os, random, socket, struct, threading, time

NAMES = ("allowed.test", "other.test", "evil.test", "x" * 63 + ".allowed.test")

def ask():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setblocking(False)
    s.connect(("198.18.0.1", 53))
    while True:
        name = random.choice(NAMES)
        q = struct.pack("!6H", random.getrandbits(16), 256, 1, 0, 0, 0)
        for label in name.split("."):
            q += bytes([len(label)]) + label.encode()
        try:
            s.send(q + b"\0" + struct.pack("!2H", random.choice((1, 28, 16)), 1))
            s.recv(512)
        except OSError:
            time.sleep(0.001)

# Those who ask get no answer soon: what was answered once is kept.
known = {}

def address(name):
    if name not in known:
        known[name] = socket.gethostbyname(name)
    return known[name]

def connect():
    while True:
        name = random.choice(NAMES[:3])
        try:
            s = socket.create_connection((address(name), 80), 2)
            s.sendall(b"GET /flood HTTP/1.1\r\nHost: %s\r\n\r\n" % name.encode())
            s.settimeout(random.random())
            while s.recv(65536):
                pass
        except OSError:
            pass

while not known:
    try:
        address("allowed.test")
    except OSError:
        time.sleep(0.1)
for f in [ask] * 4 + [connect] * 24:
    threading.Thread(target=f, daemon=True).start()
while not os.path.exists("/tmp/stop"):
    time.sleep(0.1)
END
PHASES='{"one":{"allow":[{"domain":"allowed.test"}]},
	"two":{"allow":[{"domain":"other.test"}]},"none":{}}'
ROUTED='{"one":{"allow":[{"domain":"allowed.test"},{"cidr":"198.51.100.10","ports":[80]}]},
	"two":{"allow":[{"domain":"other.test"},{"cidr":"198.51.100.11","ports":[80]}]},
	"none":{}}'
run dsec-net --uplink up
is "$status" 0 "an uplink" || diag "$out $err"
# What is there for all of them, to be left as it is.
run dsec-run --detach --name first --network '{"allow":[{"cidr":"198.51.100.10"}]}'
is "$status" 0 "somebody else" || diag "$out $err"
# The helper is another one at the end.
processes() {
	tree_pids | wc -l
}
before=$(processes)
for box in names:"$PHASES" routed:"$ROUTED"; do
	run dsec-run --detach --name "${box%%:*}" --task storm --phase one \
		--phases "${box#*:}"
	is "$(field "$out" .network)" "${box%%:*}" "a sandbox" || diag "$out $err"
	dsec-exec --cp "$T/flood" "${box%%:*}:/tmp/flood" >"$T/out"
	dsec-exec --detach "${box%%:*}" -- python3 /tmp/flood >"$T/out" ||
		diag "$(cat "$T/out")"
done
floods() { # MORE than so many requests came
	[ "$(world_saw '.path == "/flood"')" -gt "$1" ]
}
wait_for 20 floods 0
ok $? "they get through" || diag "$(tail -n 3 "$W/world.log")"

helper() { # worker, pid
	jq -n '{op: "stats"}' -c | python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(sys.stdin.buffer.read())
print(s.makefile().readline())' "$DSEC_RUN/net/ctl.sock" | jq ".helper.$1"
}
# shellcheck disable=SC2317 # by wait_for
in_force() {
	[ "$(dsec-net --task storm --show </dev/null | jq -r .in_force | sort -u)" \
		= true ]
}
i=0 refused=0 passed=0
while [ $i -lt "$rounds" ]; do
	case $((i % 3)) in
	0) kill -9 "$(helper worker)" ;;
	1) kill -9 "$(helper pid)" ;;
	esac
	for phase in two one none; do
		timeout 60 dsec-net --task storm --phase $phase </dev/null \
			>"$T/out" || refused=$((refused + 1))
		[ $phase != two ] || wait_for 20 in_force || refused=$((refused + 1))
	done
	sleep 1 # what arrived before is written down
	n=$(wc -l <"$W/world.log")
	sleep 1
	[ "$(wc -l <"$W/world.log")" = "$n" ] || passed=$((passed + 1))
	timeout 60 dsec-net --task storm --phase one </dev/null >"$T/out" ||
		refused=$((refused + 1))
	i=$((i + 1))
done
is "$refused" 0 "$rounds times the worker, the keeper or none was killed: each switch is done" ||
	diag "$(cat "$T/out")"
is "$passed" 0 "nothing passes a phase that denies all"
is "$(world_saw '.host == "evil.test"') $(dns_saw evil.test)" "0 0" \
	"what no phase has was never seen"
wait_for 20 floods "$(world_saw '.path == "/flood"')"
ok $? "and they get through again"
rss() {
	awk '$1 == "VmRSS:" { print $2 }' "/proc/$(helper worker)/status"
}
[ "$(rss)" -lt 65536 ]
ok $? "the helper is small: $(rss) KiB"
dsec-pause --stop --grace 0 --task storm >"$T/out" </dev/null
# shellcheck disable=SC2317 # by wait_for
as_before() {
	[ "$(processes)" = "$before" ]
}
wait_for 20 as_before
ok $? "their processes are gone, and the helpers that were killed" ||
	diag "$(ps -f -p "$(tree_pids | paste -sd,)")"
run dsec-doctor --leaks
json_is "$out" '{"ok":true,"leaks":0}' "dsec-doctor finds nothing"
run dsec-pause --stop --grace 0 first
run dsec-net --uplink down
is "$status" 0 "the uplink goes" || diag "$out $err"
done_testing
