#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dsec-exec against a supervisor that has no sandbox: command line, records,
# exit statuses, streams, and replies that no honest supervisor gives.
# shellcheck disable=SC2016,SC2317,SC1003 # text for other shells; wait_for
. "$(dirname "$0")/../tap.sh"
need_tools python3 jq
tree_new
S=abcdefghijklmnopqrst
FAKE=$(cd "$(dirname "$0")" && pwd)/fake-supervisor

"$FAKE" $S >"$T/fake.log" 2>&1 &
fake=$!
trap 'kill $fake; tree_end $?' EXIT
wait_for 10 grep -q ready "$T/fake.log"
ok $? "the supervisor listens" || done_testing

x() {
	run timeout -k 1 20 dsec-exec "$@"
}

# --- the command line -------------------------------------------------------

x --version
like "$out" '^dsec-exec [0-9]' "--version"
for t in 0 -1 NaN nan inf '' 1e3 1e99 5y 0x10 1.2.3 ' 1' 0.0001 99999999999; do
	x --timeout "$t" $S -- touch "$T/ran"
	is "$status" 64 "field report 18: --timeout '$t' is refused"
done
ok "$([ ! -e "$T/ran" ]; echo $?)" "field report 18: and nothing ran"
for t in 0.5 10m 500ms 2h; do
	x --timeout "$t" $S -- true
	is "$status" 0 "field report 18: --timeout '$t' has its meaning"
done
x --timeout 0 $S --cmd true
json_is "$out" '{"code":"bad_value","status":false}' \
	"field report 18: as a record, with its code" \
	'{code:.error.code, status:.ok}'
is "$status" 65 "field report 18: and its status"
for bad in "$S --" "--no-such $S -- true" "$S ls -l" "$S ls" "--jobs 0" \
	"--jobs x" "-i" "--attach e1 $S -- true" "--cp x" "--env =x $S -- true" \
	"--rows 0 $S -- true" "--signal FOO --exec e1 --op signal $S -- true"; do
	# shellcheck disable=SC2086 # words
	x $bad
	is "$status" 64 "usage: $bad"
done
x $S ls
like "$err" 'a command comes after --' "a forgotten -- is explained"

# --- sandboxes that are not there -------------------------------------------

x nosuch -- true
is "$status" 125 "raw: no such sandbox"
like "$err" 'nosuch' "and the message names it"
x nosuch --cmd true
json_is "$out" '"sandbox_unknown"' "record: sandbox_unknown" .error.code
is "$status" 1 "with its status"
D=bbbbbbbbbbbbbbbbbbbb
mkdir -p "$DSEC_LIB/dead/500000"
for o in ttl_idle:stopped:1:false oom:stopped:1:false died:stopped:1:true \
	supervisor-lost:supervisor_lost:69:true; do
	outcome=${o%%:*} rest=${o#*:}
	code=${rest%%:*} rest=${rest#*:}
	echo "{\"outcome\":\"$outcome\",\"infra\":${rest#*:}}" \
		>"$DSEC_LIB/dead/500000/$D.json"
	x $D --cmd true
	json_is "$out" "[\"$code\",${rest#*:}]" "ended by $outcome: $code" \
		'[.error.code, .error.infra]'
	is "$status" "${rest%%:*}" "ended by $outcome: status"
	x $D -- true
	is "$status" 125 "ended by $outcome: raw mode never succeeds"
done

# --- raw mode ---------------------------------------------------------------

x $S -- sh -c 'echo out; echo err >&2; exit 3'
is "$status $out $err" "3 out err" "streams and status are the command's"
x $S -- printf '[%s]' 'a b' '' '*' "it's" '$HOME' '--' -i "$(printf 'l1\nl2')"
is "$out" "$(printf '[%s]' 'a b' '' '*' "it's" '$HOME' '--' -i \
	"$(printf 'l1\nl2')")" "arguments arrive as they are"
x $S -- sh -c 'kill -TERM $$'
is "$status" 143 "a signal is 128 and its number"
x --timeout 300ms $S -- sleep 20
is "$status" 124 "a timeout is 124"
x $S -- /no/such/program
is "$status" 127 "no such program is 127"
x $S -- @error command_not_executable
is "$status" 126 "one that cannot be executed is 126"
x --cwd /etc/passwd $S -- true
is "$status" 125 "a bad working directory is ours"
x --env A=1 --env B=2 --cwd / $S -- sh -c 'echo $A$B; pwd'
is "$out" "$(printf '12\n/')" "environment and working directory"
x $S -- cat
is "$status:$out" "0:" "field report 9: standard input is empty by default"
x -i $S -- wc -c
is "$out" 0 "field report 9: -i with /dev/null ends at once"
is "$(printf abc | timeout 20 dsec-exec -i $S -- wc -c)" 3 \
	"field report 9: three bytes and the end"
x $S -- sh -c 'for b in "\342" "\202" "\254"; do printf "$b"; sleep 0.05; done'
is "$out" "€" "field report 7: a character written in three pieces"
timeout 20 dsec-exec $S -- printf '\377\200' >"$T/raw"
is "$(od -An -tx1 <"$T/raw" | tr -d ' ')" ff80 \
	"field report 7: bytes that are no text"
x $S -- sh -c 'echo x' >/dev/null
timeout 20 dsec-exec $S -- echo x >/dev/full 2>"$T/err"
is $? 74 "standard output is full: 74"
timeout 20 dsec-exec $S -- sh -c 'echo x; exit 9' >/dev/full 2>"$T/err"
is $? 9 "but the command's own failure wins"
timeout 20 dsec-exec $S -- echo x >&- 2>"$T/err"
is $? 74 "standard output is closed: 74"
(
	timeout 20 dsec-exec $S -- yes
	echo $? >"$T/st"
) | head -n 1 >"$T/out"
is "$(cat "$T/out") $(cat "$T/st")" "y 141" \
	"a reader that goes away ends the writer as in a pipeline"

# --- large streams ----------------------------------------------------------

head -c 20000000 /dev/urandom >"$T/big"
want=$(sha256sum <"$T/big")
is "$(timeout 30 dsec-exec -i $S -- sh -c 'sleep 0.5; sha256sum' <"$T/big")" \
	"$want" "field report 8: a file through standard input"
# shellcheck disable=SC2002 # a pipe is what is tried
is "$(cat "$T/big" | timeout 30 dsec-exec -i $S -- cat | sha256sum)" \
	"$want" "field report 8: a pipe in, a pipe out"
# shellcheck disable=SC2002
cat "$T/big" | timeout 30 dsec-exec -i $S -- true
is $? 0 "field report 8: a reader that exits at once: its status, no hang"
# shellcheck disable=SC2002
cat "$T/big" | timeout 30 dsec-exec -i $S -- sh -c 'exec <&-; sleep 0.2; exit 4'
is $? 4 "field report 8: a reader that closes"
timeout 30 dsec-exec $S -- cat "$T/big" >"$T/a"
timeout 30 dsec-exec $S -- cat "$T/big" >>"$T/a"
cat "$T/big" "$T/big" | cmp -s - "$T/a"
ok $? "to a file, and appended to it"

# --- signals ----------------------------------------------------------------

start_signal() { # COMMAND
	dsec-exec $S -- sh -c "$1" >"$T/sig.out" 2>"$T/sig.err" &
	sig=$!
	wait_for 5 grep -q ready "$T/sig.out"
}
start_signal 'trap "echo got; exit 7" TERM; echo ready
	while :; do sleep 0.1; done'
kill -TERM $sig
wait $sig
is "$? $(tail -n 1 "$T/sig.out")" "7 got" "SIGTERM goes to the command"
start_signal 'trap "" TERM; echo ready; i=0
	while [ ! -e '"$T"'/go ]; do sleep 0.1; done; echo end; exit 5'
for _ in 1 2 3; do
	kill -TERM $sig
	sleep 0.2
done
wait $sig
is $? 125 "the third that it ignores leaves it running"
like "$(cat "$T/sig.err")" '--attach e[0-9]+' "and says how to come back"
E=$(sed -n 's/.*--attach \(e[0-9]*\).*/\1/p' "$T/sig.err")
dsec-exec $S --attach "$E" >"$T/att" 2>&1 &
att=$!
wait_for 5 grep -q ready "$T/att"
ok $? "field report 1: --attach brings what was written before"
touch "$T/go"
wait $att
is "$? $(tr '\n' ' ' <"$T/att")" "5 ready end " \
	"field report 1: then the rest, and the command's status"
x $S --attach "$E"
is "$status $(echo "$out" | tr '\n' ' ')" "5 ready end " \
	"field report 1: and the same after its end"
x $S --attach e999
is "$status" 125 "--attach to a command that never was"
start_signal 'echo ready; exec sleep 30'
kill -STOP $fake
kill -TERM $sig
wait $sig
is $? 125 "a supervisor that does not answer is not waited for"
kill -CONT $fake

# --- a terminal -------------------------------------------------------------

out=$(printf 'stty size; tty >/dev/null && exit 6\n' |
	timeout -k 1 20 dsec-exec -it $S -- sh 2>&1)
is $? 6 "a terminal without one of our own"
like "$out" '24 80' "has a size"
x -t --rows 33 --cols 101 $S -- stty size
is "$(echo "$out" | tr -d '\r')" "33 101" "a terminal of a given size"
cat >"$T/terminal.py" <<'END'
import fcntl, os, pty, select, struct, sys, termios
def size(rows, cols):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
def until(text):
    got = b""
    while text not in got:
        if not select.select([fd], [], [], 10)[0]:
            sys.exit("no %r in %r" % (text, got))
        got += os.read(fd, 4096)
r, w = os.pipe()
pid, fd = pty.fork()
if pid == 0:
    os.close(w)
    os.read(r, 1)
    os.execvp("dsec-exec", ["dsec-exec", "-it", sys.argv[1], "--", "sh", "-c",
        "stty -echo; trap 'stty size' WINCH; stty size; "
        "until read x; do :; done; until read y; do :; done; "
        "echo =$y=; exit 9"])
size(50, 132)
os.close(w)
until(b"50 132")
assert not termios.tcgetattr(fd)[3] & termios.ICANON
size(33, 77)
until(b"33 77")
os.write(fd, b"one\rtwo\r")
until(b"two=")
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert termios.tcgetattr(fd)[3] & termios.ICANON
sys.exit(status)
END
run timeout -k 1 20 python3 "$T/terminal.py" $S
is "$status $err" "9 " "raw mode, the size and its changes; all is restored"

# --- replies no honest supervisor gives -------------------------------------

for what in @torn @die @silent @nofds @badjson @long @path; do
	x $S -- $what
	is "$status" 125 "raw: a supervisor that is $what"
	x $S --cmd x --op exec
	x --record $S -- $what
	json_is "$out" false "record: a supervisor that is $what" .ok
done
x $S -- @slowly
is "$status" 5 "records that come a byte at a time"
x $S -- @short
is "$status" 74 "output that never arrives is not passed over"
like "$err" '1000 bytes of stdout did not arrive' "and is told"
for o in '{"outcome":"oom","signal":"SIGKILL"}:137' \
	'{"outcome":"killed","signal":"SIGTERM"}:143' \
	'{"outcome":"timeout","signal":"SIGKILL"}:124' \
	'{"outcome":"died","infra":true}:125' \
	'{"outcome":"signalled","signal":"SIGSEGV"}:139' \
	'{"outcome":"what?"}:137' '{"outcome":"exited","exit_code":77}:77' \
	'{}:137'; do
	x $S -- @outcome "${o%:*}"
	is "$status" "${o##*:}" "raw: ${o%:*} is ${o##*:}"
done

# --- record mode ------------------------------------------------------------

x $S --cmd 'echo 42; echo e >&2; exit 3'
json_is "$out" '[1,true,"exited",3,"42\n","e\n",false]' "a command's record" \
	'[.id,.ok,.outcome,.exit_code,.stdout,.stderr,.truncated]'
is "$status" 0 "is ok whatever its status"
x --record $S -- printf '\377'
json_is "$out" '["/w==",null]' "field report 7: bytes as base64" \
	'[.stdout_b64,.stdout]'
x --inline 1 $S --cmd 'yes € | head -c 4000'
json_is "$out" '[1024,true,4000]' "field report 7: cut between characters" \
	'[(.stdout|utf8bytelength), .truncated, .stdout_bytes]'
x --inline 512 $S --cmd 'head -c 500000 /dev/zero | tr "\0" "\1"'
json_is "$out" '[true,true]' "output that would not fit a record is cut" \
	'[.truncated, (.stdout|length) > 50000]'

cat >"$T/in" <<END
{"id":"a","sandbox":"$S","command":"sleep 0.3; echo slow"}
{"sandbox":"$S","command":["echo","fast"]}

{"ok":true,"sandbox":"$S","name":"x","id":77}
{"ok":false,"id":5,"error":{"code":"memory","message":"no"}}
{"sandbox":"$S","bogus":1,"id":6}
garbage
{"sandbox":"$S","op":"list-execs","path":"/","id":8}
{"sandbox":"$S","op":"dance","id":9}
{"op":"exec","id":10}
{"sandbox":"$S","op":"signal","exec":"e1","signal":"FOO","id":11}
{"sandbox":"$S","timeout_ms":0,"id":12}
{"sandbox":"$S","timeout_ms":1.5,"id":13}
{"sandbox":"$S","command":[],"id":14}
{"sandbox":"$S","command":"a","command":"b","id":15}
{"sandbox":"$S","op":"wait","exec":"../x","id":16}
{"sandbox":"$S","op":"output","exec":"../x","id":17}
END
timeout -k 1 20 dsec-exec --cmd 'echo default' <"$T/in" >"$T/out" 2>"$T/err"
is $? 1 "failures of several kinds: 1"
is "$(jq -s length "$T/out")" 16 "a record for each line"
rec() { # ID FILTER
	jq -c "select(.id == $1) | $2" "$T/out"
}
is "$(rec 2 .stdout)" '"fast\n"' "a line without an id has its number"
is "$(rec 77 '[.stdout,.in]')" '["default\n",{"name":"x"}]' \
	"a record of another program, with the flags' command"
is "$(rec 5 .error.code)" '"memory"' "a failure is passed on"
is "$(rec '"a"' .stdout)" '"slow\n"' "what takes long comes"
is "$(tail -n 1 "$T/out" | jq -r .id)" a "last"
is "$(rec 6 .error.code)" '"unknown_field"' "an unknown field"
is "$(rec 7 .error.code)" '"bad_record"' "a line that is no record"
is "$(rec 8 .error.code)" '"unknown_field"' "a field of another operation"
is "$(rec 9 .error.code)" '"bad_value"' "an unknown operation"
is "$(rec 10 .error.code)" '"missing_field"' "no sandbox"
is "$(rec 11 .error.code)" '"bad_value"' "no such signal"
is "$(rec 12 .error.code)" '"bad_value"' "field report 18: timeout_ms 0"
is "$(rec 13 .error.code)" '"bad_value"' "field report 18: timeout_ms 1.5"
is "$(rec 14 .error.code)" '"bad_value"' "an empty command"
is "$(rec 16 .error.code)" '"exec_unknown"' "a command's name that is a path"
is "$(rec 17 .error.code)" '"exec_unknown"' "the same for its files"

x -d $S -- sh -c "echo 1; while [ ! -e $T/go2 ]; do sleep 0.05; done; exit 4"
json_is "$out" '[true,true,null]' "--detach answers at once" \
	'[.ok, (.exec|startswith("e")), .outcome]'
E=$(field "$out" .exec)
x $S --op wait --exec "$E" --timeout 0.2
json_is "$out" '"deadline"' "wait with a timeout" .error.code
is "$status" 75 "which may be tried again"
x $S --op output --exec "$E"
json_is "$out" '["1\n",0,2,2,false]' "output of a running command" \
	'[.data,.offset,.next,.bytes,.ended]'
touch "$T/go2"
x $S --op wait --exec "$E"
json_is "$out" '[4,null]' "wait for its end" '[.exit_code,.stdout]'
x $S --op attach --exec "$E"
json_is "$out" '[4,"1\n"]' "attach has its output too" '[.exit_code,.stdout]'
x $S --op output --exec "$E" --offset 1
json_is "$out" '["\n",1,2,true]' "output from an offset" \
	'[.data,.offset,.next,.ended]'
x --step 3 $S --cmd "echo once >>$T/steps; echo done"
x --step 3 $S --cmd "echo once >>$T/steps; echo done"
json_is "$out" '[true,"done\n"]' "a repeated step answers what it answered" \
	'[.repeated,.stdout]'
is "$(wc -l <"$T/steps")" 1 "and runs nothing"

mkfifo "$T/fifo"
timeout -k 1 20 dsec-exec <"$T/fifo" >"$T/out" &
cancelling=$!
exec 3>"$T/fifo"
echo "{\"id\":7,\"sandbox\":\"$S\",\"command\":\"echo x >$T/r7; sleep 30\"}" >&3
wait_for 5 [ -e "$T/r7" ]
echo '{"cancel":7,"id":"c"}' >&3
echo '{"cancel":8,"id":"d"}' >&3
exec 3>&-
wait $cancelling
is "$(rec 7 .error.code)" '"cancelled"' "a cancelled request"
is "$(rec '"c"' '[.ok,.cancelled]')" '[true,true]' "its cancel"
is "$(rec '"d"' '[.ok,.cancelled]')" '[true,false]' "one that meets nothing"
x $S --cmd 'sleep 30' --deadline 0.3
json_is "$out" '"deadline"' "deadline_ms gives up" .error.code
x $S --op list-execs
is "$(field "$out" '[.execs[] | select(.outcome == null)] | length')" 0 \
	"and the command was killed"

seq 200 | jq -c "{id:., sandbox:\"$S\", command:[\"echo\", \"n\(.)\"]}" |
	timeout -k 1 60 dsec-exec --jobs 16 >"$T/out"
is "$(jq -s 'map(select(.stdout == "n\(.id)\n")) | length' "$T/out")" 200 \
	"200 requests on one loop, each with its own answer"
timeout -k 1 20 dsec-exec $S --cmd true >/dev/full 2>"$T/err"
is $? 74 "records that cannot be written: 74"

done_testing
