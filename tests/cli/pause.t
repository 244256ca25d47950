#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dsec-pause: requests, records and exit status, and supervisors that say
# nothing, nonsense or half a line.  No sandbox runs here.
# shellcheck disable=SC2016
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_tools jq python3
tree_new

python=/usr/bin/python3
[ -x "$python" ] || python=python3
a=aaaaaaaaaaaaaaaaaaaa
b=bbbbbbbbbbbbbbbbbbbb
mkdir -p "$DSEC_RUN/sb/$a" "$DSEC_RUN/sb/$b"

# Serve sb/ID/ctl.sock, the claim held: each line is answered by TEXT, or never.
serve() { # ID TEXT
	"$python" - "$DSEC_RUN/sb/$1" "$2" "$T/ready.$1" <<'PY' &
import fcntl, os, socket, sys, threading
where, text, ready = sys.argv[1:]
claim = open(where + "/claim.json", "w")
claim.write('{"kind":"supervised","pid":%d,"project":"root"}' % os.getpid())
claim.flush()
fcntl.flock(claim, fcntl.LOCK_EX)
s = socket.socket(socket.AF_UNIX)
s.bind(where + "/ctl.sock")
s.listen(100)
open(ready, "w").close()
def talk(c):
    while c.recv(65536):
        if text:
            c.sendall(text.encode())
            if not text.endswith("\n"):
                break
    c.close()
while True:
    threading.Thread(target=talk, args=(s.accept()[0],), daemon=True).start()
PY
	eval "server_$1=$!"
	wait_for 10 test -e "$T/ready.$1"
}
stop_serving() {
	eval "kill \$server_$1; wait \$server_$1" 2>/dev/null
	rm -f "$DSEC_RUN/sb/$1/ctl.sock" "$T/ready.$1"
}

ask() { # LINES, FLAGS...
	printf '%s\n' "$1" >"$T/in"
	shift
	timeout 20 dsec-pause "$@" <"$T/in" >"$T/.out" 2>"$T/.err"
	status=$?
	out=$(cat "$T/.out")
}

# --- requests
run dsec-pause
is "$status $out" "0 " "no request, no record"
while IFS='|' read -r code exit line; do
	ask "$line"
	is "$status $(field "$out" '.error.code')" "$exit $code" "refused: $line"
done <<'EOT'
bad_record|65|{"sandbox":
unknown_field|65|{"sandbox":"a","what":1}
missing_field|65|{"op":"stop"}
bad_value|65|{"sandbox":"a","op":"kill"}
bad_value|65|{"sandbox":"a","task":"t"}
bad_value|65|{"sandbox":"a","grace_ms":-1}
bad_value|65|{"task":"../sb"}
bad_value|65|{"sandbox":"a","level":"deep"}
sandbox_unknown|1|{"sandbox":"nobody"}
sandbox_unknown|1|{"sandbox":"../../etc"}
EOT
ask '{"id":"x","sandbox":"nobody","ok":true,"k":"v"}'
json_is "$out" '{"id":"x","sandbox":"nobody","ok":false,"in":{"k":"v"}}' \
	"a record is taken by its sandbox, its keys go along" 'del(.error)'
ask '{"id":3,"ok":false,"error":{"code":"memory","message":"m"},"k":1}'
json_is "$out" '{"id":3,"ok":false,"error":{"code":"memory","message":"m"},"k":1}' \
	"a failure passes unchanged"
is "$status" 75 "and counts"
ask '{"sandbox":"n1"}
{"task":"none"}
{"sandbox":"n2"}'
is "$(printf '%s\n' "$out" | jq -c '[.id,.ok,.count]' | sort | tr '\n' ' ')" \
	'[1,false,null] [2,true,0] [3,false,null] ' "lines, each answered"
run dsec-pause --stop --resume x
is "$status" 64 "one operation"
run dsec-pause --level deep x
is "$status" 64 "an unknown level"
run dsec-pause --freeze --disk x
is "$status" 64 "one level"
run dsec-pause --disk --resume x
is "$status" 64 "a level, or resume"
run dsec-pause --jobs 0 x
is "$status" 64 "--jobs 0"

# --- a supervisor that answers
serve $a '{"id":1,"ok":true,"state":"paused","level":"freeze"}
'
ask '{"sandbox":"'$a'"}
{"sandbox":"'$a'"}'
is "$status $(printf '%s\n' "$out" | jq -r .state | tr '\n' ,)" \
	"0 paused,paused," "an answer for each"
run timeout 20 dsec-pause --project root
is "$(printf '%s\n' "$out" | jq -r .sandbox)" $a "by selector"
# shellcheck disable=SC2046
run timeout 60 dsec-pause $(yes $a | head -n 1000)
is "$status $(printf '%s\n' "$out" | jq -r .id | sort -un | wc -l)" "0 1000" \
	"a thousand words"
ids=$(for c in b c d e f g h i j k l m n o p q r s t u; do
	printf '%s%s\n' "$c" aaaaaaaaaaaaaaaaaaa
done)
for id in $ids; do
	mkdir -p "$DSEC_RUN/sb/$id"
	ln -s "../$a/ctl.sock" "$DSEC_RUN/sb/$id/ctl.sock"
done
# shellcheck disable=SC2086
run sh -c 'ulimit -n 14; exec timeout 20 dsec-pause "$@"' sh $ids
is "$status $(printf '%s\n' "$out" | grep -c '"paused"')" "0 20" \
	"more sandboxes than descriptors"
dsec-pause $a >/dev/full 2>/dev/null
is $? 74 "a lost record is seen"
stop_serving $a

# --- one that says nothing
serve $a ''
ask '{"sandbox":"'$a'","deadline_ms":100}'
is "$status $(field "$out" .error.code)" "75 deadline" "the deadline passes"
ask '{"id":7,"sandbox":"'$a'"}
{"id":8,"cancel":7}
{"id":9,"cancel":70}'
is "$(printf '%s\n' "$out" | jq -c '[.id,.ok,.error.code,.cancelled]' |
	sort | tr '\n' ' ')" \
	'[7,false,"cancelled",null] [8,true,null,true] [9,true,null,false] ' \
	"a request is cancelled"
serve $b '{"id":1,"ok":true,"state":"paused"}
'
ask '{"sandbox":"'$a'","deadline_ms":500}
{"sandbox":"'$b'","deadline_ms":9000}'
is "$(printf '%s\n' "$out" | jq -r '.sandbox' | tr '\n' ,)" "$b,$a," \
	"one that hangs holds up no other"
stop_serving $b

# --- ones that lie
for text in 'nonsense
' '[]
' '{"id":1,"ok":true' '{"id":1,"ok":true,"fds":["stdin"]}
'; do
	serve $b "$text"
	run timeout 20 dsec-pause --deadline 300ms $b
	is "$(printf '%s\n' "$out" | jq -r .ok)" false "an error after: $(printf %s "$text" | tr -d "\n")"
	stop_serving $b
done

# --- SIGKILL leaves a supervisor's files behind
stop_serving $a
run dsec-pause $a
is "$status $(field "$out" '.error|.code+" "+(.infra|tostring)')" \
	"69 supervisor_lost true" "it is lost, and that is nobody's sample"

done_testing
