#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The network helper's two processes: what they are, and what happens when they
# end.
. "$(dirname "$0")/../tap.sh"
. "$(dirname "$0")/net.sh"
net_enter
need_tools jq curl nsenter setpriv

NETCTL=$BUILD/bench/netctl
tree_new
net_world
. "$(dirname "$0")/net_box.sh"
run "$NETCTL" ping
like "$err" '^helper_lost: ' "nobody serves"
run "$BIN/dsec-net" --serve --background
is "$status $err" "0 " "it starts"
$NETCTL ping
ok $? "and answers"
KEEPER=$(keeper) WORKER=$(worker)
run "$BIN/dsec-net" --serve
like "$status $err" '^75 .*another helper' "there is one of a tree"

# --- what they are ---------------------------------------------------------
for p in "$KEEPER" "$WORKER"; do
	is "$(awk '$1 == "Uid:" { print $2, $3, $4, $5 }' "/proc/$p/status")" \
		"2147418112 2147418112 2147418112 2147418112" "a uid of its own"
	is "$(awk '/^Cap/ { print $2 }' "/proc/$p/status" | sort -u)" \
		0000000000000000 "no capability, not in any set"
	is "$(awk '$1 == "NoNewPrivs:" { print $2 }' "/proc/$p/status")" 1 \
		"none to be had"
	is "$(stat -c %U "/proc/$p/environ")" root "not to be traced by its uid"
done
is "$(awk '$1 == "Seccomp:" { print $2 }' "/proc/$WORKER/status")" 2 \
	"the worker is filtered"
run setpriv --reuid 65534 --clear-groups "$NETCTL" ping
isnt "$status" 0 "root alone may ask"
printf 'garbage\n' | timeout 30 python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b"garbage\n")
print(s.recv(999).decode())
' "$DSEC_RUN/net/ctl.sock" >"$T/o"
json_is "$(cat "$T/o")" '"bad_record"' "garbage is refused" .error.code
$NETCTL ping
ok $? "and hurts nobody else"

# shellcheck disable=SC2317 # by wait_for
another() { # a worker than ${WORKER}, which answers
	another=$(worker)
	[ "${another:-null}" != null ] && [ "$another" != "$WORKER" ]
}

# --- a sandbox over their deaths -------------------------------------------
box_new sb
POLICY='{"allow":[{"domain":"allowed.test","ports":[80,7]}]}'
NEXT='{"allow":[{"domain":"other.test","ports":[80,7]}]}'
# shellcheck disable=SC2154 # box_new sets it
$NETCTL attach sb "$sb" "$T/sb" "$POLICY"
ok $? "a sandbox is attached"
is "$(client sb echo allowed.test 7 a)" a "and served"
$NETCTL policy sb "$NEXT" >"$T/o"
kill -KILL "$WORKER"
wait_for 30 another
isnt "$(worker)" "$WORKER" "the worker is killed: another takes over"
is "$(client sb echo other.test 7 b)" b "it serves what the first was told last"
is "$(client sb probe "$(awk '$2 == "allowed.test" { print $1 }' \
	"$T/sb/names")" 7)" reset "and refuses what it refused"
is "$(keeper)" "$KEEPER" "the keeper is the same"

stat_of() { "$NETCTL" stats sb | jq ".sandboxes.sb.$1"; }
$NETCTL policy sb "${NEXT%\}},\"limits\":{\"bytes_mb\":1}}" >"$T/o"
is "$(client sb get other.test 7 4000000)" reset "a limit of bytes"
USED=$(stat_of "sent_bytes + .sandboxes.sb.received_bytes") WORKER=$(worker)
ok $((USED < 1048576)) "is used up"
in_box sb curl -s -m 5 http://denied.test/
ASKED=$(stat_of "dns, .sandboxes.sb.dns_denied, .sandboxes.sb.denied" | tr '\n' ' ')
like "$ASKED" '^[1-9][0-9]* [1-9][0-9]* [1-9][0-9]* $' "questions, some of them denied"
kill -KILL "$WORKER"
wait_for 30 another
is "$(stat_of "sent_bytes + .sandboxes.sb.received_bytes")" "$USED" \
	"another worker counts on"
is "$(stat_of "dns, .sandboxes.sb.dns_denied, .sandboxes.sb.denied" | tr '\n' ' ')" \
	"$ASKED" "questions and what was denied, too"
is "$(client sb probe other.test 7)" reset "and nothing more passes"
$NETCTL policy sb "$NEXT" >"$T/o"
WORKER=$(worker)

kill -KILL "$KEEPER"
# shellcheck disable=SC2016
wait_for 30 sh -c '! kill -0 "$0" 2>/dev/null && ! kill -0 "$1" 2>/dev/null' \
	"$KEEPER" "$WORKER"
is "$(client sb probe "$(awk '$2 == "other.test" { print $1 }' \
	"$T/sb/names")" 7)" refused "the keeper is killed: nothing passes"
is "$(in_box sb curl -s -m 5 -o "$T/o" http://other.test/; echo $?)" 6 \
	"no name is known"
run "$BIN/dsec-net" --serve --background
is "$status" 0 "the next one starts"
$NETCTL attach sb "$sb" "$T/sb" "$NEXT"
ok $? "and is told again"
is "$(client sb echo other.test 7 c)" c "what was allowed passes"
is "$("$NETCTL" again sb "$sb" "$T/sb" "$NEXT"; client sb echo other.test 7 d)" \
	d "told once more, without sockets: nothing changes"

# --- a new program takes over ----------------------------------------------
KEEPER=$(keeper) HAD=$(stat_of sent_bytes)
client sb hold other.test 7 1 "$T/held" "$T/let" >"$T/o" &
HOLD=$!
wait_for 30 test -e "$T/held"
run "$BIN/dsec-net" --serve --upgrade
is "$status $err" "0 " "a new program takes over"
is "$(keeper)" "$KEEPER" "in the same process"
ok $((HAD < 1 || $(stat_of sent_bytes) < HAD)) "it counts on"
is "$(client sb echo other.test 7 e)" e "its listeners serve on"
touch "$T/let"
wait $HOLD

# --- its end ---------------------------------------------------------------
$NETCTL detach sb
ok $? "detached"
$NETCTL detach sb
ok $? "twice is fine"
is "$(client sb probe 198.18.1.0 7)" refused "its sockets are closed"
run "$NETCTL" ports sb
like "$err" '^sandbox_unknown: ' "it is not known any more"
helper_end
run "$NETCTL" ping
like "$err" '^helper_lost: ' "SIGTERM ends it"
like "$(cat "$DSEC_RUN/net/log")" 'ends by SIGTERM' "its log says so"
box_end sb
net_end
done_testing
