#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dsec-exec in real sandboxes: the field reports about commands, and what the
# supervisor does when its clients misbehave.
# shellcheck disable=SC2016,SC2317,SC1003 # text for other shells; wait_for
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq python3
tree_new
run sh -c 'echo "{\"name\":\"a\",\"pids_limit\":256}" | timeout 60 dsec-run'
S=$(field "$out" .sandbox)
like "$S" '^[a-z2-7]{20}$' "a sandbox" || done_testing

x() {
	run timeout -k 1 30 dsec-exec "$@"
}
# What runs inside beside pid 1 and the one that looks.
inside() {
	x a -- sh -c 'for p in /proc/[0-9]*; do
		[ -r "$p/stat" ] && read -r _ name rest <"$p/stat" &&
		case $name in *sleep*|*yes*|*python*) echo "$name $rest";; esac
	done'
}

# --- streams ----------------------------------------------------------------

x a -- sh -c 'echo out; echo err >&2; exit 3'
is "$status $out $err" "3 out err" "by name: streams and status"
x "$S" -- printf '[%s]' 'a b' '' '*' '$HOME' -- -i
is "$out" '[a b][][*][$HOME][--][-i]' "by id: arguments as they are"

one() {
	dsec-exec a -- sh -c 'for i in $(seq 2000); do
		echo "{\"i\":$i}"; done; exit 3' >"$T/one.$1"
	echo "$? $(wc -l <"$T/one.$1") $(tail -n 1 "$T/one.$1")" >"$T/st.$1"
}
n=0
while [ $n -lt 100 ]; do
	pids=
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		n=$((n + 1))
		one $n &
		pids="$pids $!"
	done
	# shellcheck disable=SC2086 # pids
	wait $pids
done
is "$(cat "$T"/st.* | sort | uniq -c | tr -s ' ')" ' 100 3 2000 {"i":2000}' \
	"field report 1: 100 times all lines and the status, 10 at once"
rm -f "$T"/one.* "$T"/st.*

x -d a -- sh -c 'i=0; while [ $i -lt 40 ]; do i=$((i + 1)); echo line $i
	sleep 0.05; done; exit 4'
E=$(field "$out" .exec)
dsec-exec a --attach "$E" >"$T/att" 2>&1 &
att=$!
wait_for 10 grep -q 'line 5' "$T/att"
kill -KILL $att
wait $att 2>/dev/null
dsec-exec a --attach "$E" >"$T/att"
is "$? $(wc -l <"$T/att") $(sort -u "$T/att" | wc -l)" "4 40 40" \
	"field report 1: after a broken link, attach again: no line lost or doubled"
dsec-exec a --attach "$E" >"$T/att2"
is "$? $(cmp "$T/att" "$T/att2")" "4 " \
	"field report 1: and the same from the recording"

# Three readers: one stopped, one killed; the third goes on.
x -d a -- sh -c 'yes | head -c 50M >&2; sleep 0.5; echo done >&2'
E=$(field "$out" .exec)
dsec-exec a --attach "$E" 2>"$T/r1" &
r1=$!
dsec-exec a --attach "$E" 2>"$T/r2" &
r2=$!
dsec-exec a --attach "$E" 2>"$T/r3" &
r3=$!
kill -STOP $r1
kill -KILL $r2
wait_for 30 sh -c 'tail -c 6 "$1" | grep -q done' sh "$T/r3"
ok $? "field report 3: the third reader gets it all"
wait $r3
is "$? $(stat -c %s "$T/r3")" "0 52428805" \
	"field report 3: every byte, and the command is not held up"
x a --attach "$E"
is "$status" 0 "field report 3: a new attach works"
kill -CONT $r1
kill -KILL $r1
wait $r1 $r2 2>/dev/null
rm -f "$T"/r?

x --timeout 2 --record a -- yes
json_is "$out" '["timeout",true,true]' \
	"field report 4: endless output ends at the timeout, truncated, counted" \
	'[.outcome,.truncated,.stdout_bytes > 1000000]'
E=$(field "$out" .exec)
ok "$([ "$(du -sk "$DSEC_LIB/sb/$S/out" | cut -f1)" -lt 140000 ]; echo $?)" \
	"field report 4: the recording is bounded"
x a --op output --exec "$E" --limit 10
json_is "$out" '"y\ny\ny\ny\ny\n"' "field report 4: its beginning is kept" .data
x --timeout 1 --record a -- sh -c 'cat /dev/zero | tr "\0" a'
json_is "$out" '"timeout"' "field report 4: the same without lines" .outcome

x a -- python3 -c 'import os, time
for b in (0xe2, 0x82, 0xac):
    os.write(1, bytes([b])); time.sleep(0.05)'
is "$out" "€" "field report 7: a character in three writes"
x --record a -- head -c 1000 /dev/urandom
json_is "$out" '[true,1000]' "field report 7: bytes that are no text" \
	'[(.stdout_b64 != null), .stdout_bytes]'
x --record a -- printf '\377'
json_is "$out" '"/w=="' "field report 7: a lone 0xff" .stdout_b64

head -c 50M /dev/urandom >"$T/big"
is "$(timeout 60 dsec-exec -i a -- sh -c 'sleep 1; sha256sum' <"$T/big")" \
	"$(sha256sum <"$T/big")" "field report 8: 50 MB through standard input"
# shellcheck disable=SC2002 # a pipe is what is tried
cat "$T/big" | timeout 30 dsec-exec -i a -- true
is $? 0 "field report 8: into true: its status and no hang"
rm -f "$T/big"

x a -- cat
is "$status:$out" "0:" "field report 9: the default is no input"
x -i a -- wc -c
is "$out" 0 "field report 9: -i of /dev/null ends"
mkfifo "$T/fifo"
timeout -k 1 30 dsec-exec --stdin pipe a --cmd 'wc -c' >"$T/out" &
in=$!
wait_for 10 grep -q started "$T/out"
E=$(head -n 1 "$T/out" | jq -r .exec)
x a --op input --exec "$E" --data abc --close
wait $in
is "$(tail -n 1 "$T/out" | jq -r .stdout)" 3 \
	"field report 9: three bytes and the end, by requests"

# --- sessions ---------------------------------------------------------------

x a --op session
SE=$(field "$out" .session)
s() { # COMMAND
	x --timeout 10 -s "$SE" a --cmd "$1"
}
s 'cd /tmp; A=5'
# shellcheck disable=SC2016 # for the session
s 'echo "$PWD $A"'
json_is "$out" '"/tmp 5\n"' "a session keeps its directory and variables" .stdout
s "$(printf "cat <<'EOF' >/tmp/x\nhello\nEOF\ncat /tmp/x")"
json_is "$out" '"hello\n"' "field report 10: a here-document" .stdout
s 'cat <<-X'
json_is "$out" '"exited"' "field report 10: one without an end returns" .outcome
s 'echo foo \'
json_is "$out" '"exited"' "field report 10: a backslash at the end returns" \
	.outcome
s 'echo "unbalanced'
json_is "$out" '[true,true]' "field report 10: an open quote is the shell's error" \
	'[.outcome == "exited", .exit_code != 0]'
# shellcheck disable=SC2016
s 'echo "$PWD $A"; (exit 3)'
json_is "$out" '["/tmp 5\n",3]' "field report 10: the session is usable still" \
	'[.stdout,.exit_code]'
x a --op close-session --session "$SE"
is "$status" 0 "close-session"
s true
json_is "$out" '"session_unknown"' "a closed session" .error.code

# --- limits and errors ------------------------------------------------------

long=$(head -c 131073 /dev/zero | tr '\0' a)
printf '"%s"' "$long" | jq -c --arg s "$S" '. as $long |
	{sandbox:$s, command:["echo",$long]},
	{sandbox:$s, command:["true"], env:{BIG:($long + $long)}},
	{sandbox:$s, command:["sh","-c","env | grep -c ^V_"],
		env:([range(3000)|{"V_\(.)":"x"}]|add)}' >"$T/in"
timeout -k 1 30 dsec-exec <"$T/in" >"$T/out"
is "$(jq -c 'select(.id == 1) | .error.code' "$T/out")" '"args_too_long"' \
	"field report 12: an argument over 128 KiB"
is "$(jq -c 'select(.id == 2) | .error.code' "$T/out")" '"args_too_long"' \
	"field report 12: a variable over 128 KiB"
is "$(jq -c 'select(.id == 3) | .stdout' "$T/out")" '"3000\n"' \
	"field report 12: 3000 small variables are fine"

x --timeout 1 a -- sh -c 'sleep 300 & sleep 300 & (setsid sleep 300 &) ; wait'
is "$status" 124 "field report 14: a timeout says so"
inside
is "$out" "" "field report 14: nothing of it survives, setsid or not"

seq 300 | jq -c "{sandbox:\"$S\",command:[\"true\"]}" |
	timeout -k 1 60 dsec-exec --jobs 50 >"$T/out"
is "$(jq -c '[.outcome,.exit_code]' "$T/out" | sort | uniq -c | tr -s ' ')" \
	' 300 ["exited",0]' "field report 16: 300 fast commands, 50 at once"
# shellcheck disable=SC2016
x a -- sh -c 'for i in $(seq 100); do (sleep 0.01 &) ; done; sleep 0.5
	grep -l "^State:.Z" /proc/[0-9]*/status 2>/dev/null | wc -l'
is "$out" 0 "field report 16: no zombies"

x --timeout 1 --grace 300ms a -- python3 -c 'import signal
print("partial", flush=True)
signal.signal(15, signal.SIG_IGN)
while 1: pass'
is "$status $out" "124 partial" \
	"field report 17: a busy loop that ignores SIGTERM; what it wrote is here"
dsec-exec --timeout 2 --grace 300ms a -- python3 -c 'import signal
signal.signal(15, signal.SIG_IGN)
print("on", flush=True)
while 1: pass' >"$T/out" &
busy=$!
wait_for 10 grep -q on "$T/out"
kill -KILL $busy
wait $busy 2>/dev/null
gone() {
	inside
	[ -z "$out" ]
}
wait_for 10 gone
ok $? "field report 17: it ends though its client was killed"

x --timeout 0 a -- touch /tmp/ran
is "$status" 64 "field report 18: a timeout of 0 is refused"
x a -- test -e /tmp/ran
is "$status" 1 "field report 18: and nothing ran"

x --cwd /nope a -- touch /tmp/ran
like "$status $err" '^125 .*working directory.*/nope' \
	"field report 20: no such directory"
x --cwd /etc/passwd a --cmd 'touch /tmp/ran'
json_is "$out" '"cwd"' "field report 20: a file" .error.code
x a -- install -d -m 700 /tmp/secret
x --cwd /tmp/secret --user 1000 a --cmd 'touch /tmp/ran'
json_is "$out" '"cwd"' "field report 20: one that the user may not enter" \
	.error.code
x a -- test -e /tmp/ran
is "$status" 1 "field report 20: the command is not run"

x a -- sh -c 'grep -q ^alice: /etc/passwd ||
	{ echo alice:x:1234:1234::/home/alice:/bin/sh >>/etc/passwd &&
	echo alice:x:1234: >>/etc/group &&
	echo g1:x:2001:alice >>/etc/group && echo g2:x:2002:alice >>/etc/group; }'
if [ "$status" -eq 0 ]; then
	x --user alice a -- sh -c 'id -u; id -g; id -G; echo $HOME; umask'
	is "$(echo "$out" | tr '\n' ,)" \
		"1234,1234,1234 2001 2002,/home/alice,0022," \
		"field report 22: a name: uid, gid, all groups, HOME, umask"
else
	skip "field report 22: a name" "/etc of the image is read-only"
fi
x --user 4321 a -- sh -c 'id -u; id -g; echo $HOME'
like "$(echo "$out" | tr '\n' ,)" '^4321,[0-9]+,/,$' \
	"field report 22: a number nobody has: HOME is /"
x --user 4321:50 a -- sh -c 'id -u; id -g'
is "$(echo "$out" | tr '\n' ,)" "4321,50," "field report 22: a pair of numbers"
for u in 4294967295 -1 nosuch 0x0 '1000:' '4294967296' '1000:-1' '' ' 0'; do
	x --user "$u" a -- id
	is "$status:$out" "$([ -n "$u" ] && echo 125 || echo 64):" \
		"field report 22: '$u' is refused and never becomes root"
done

# --- a terminal -------------------------------------------------------------

out=$(printf 'stty size; tty >/dev/null && exit 6\n' |
	timeout -k 1 20 dsec-exec -it --rows 33 --cols 101 a -- sh 2>&1)
is $? 6 "a terminal"
like "$out" '33 101' "of the size that was asked for"
x -d -t --rows 20 --cols 30 a -- sh -c 'trap "stty size; exit" WINCH; stty size
	while :; do sleep 0.1; done'
E=$(field "$out" .exec)
sized() {
	x a --op output --exec "$E"
	field "$out" .data | grep -q "$1"
}
wait_for 10 sized '20 30'
x a --op resize --exec "$E" --rows 40 --cols 50
wait_for 10 sized '40 50'
ok $? "resize reaches it"

# --- clients that fail or die at each step ----------------------------------

if command -v strace >/dev/null; then
	pid=$(jq -r .supervisor_pid "$DSEC_RUN/sb/$S/state.json")
	bad=
	for call in socket connect sendmsg poll recvmsg splice; do
		for how in signal=KILL error=ENOMEM error=EMFILE; do
			for when in 1 2; do
				timeout -k 1 20 strace -o /dev/null -e \
					"inject=$call:$how:when=$when" \
					dsec-exec a -- echo x >"$T/out" 2>&1
				# poll and splice may never come so far
				st=$?
				[ $st -ne 0 ] || [ "$(cat "$T/out")" = x ] ||
					bad="$bad $call:$how:$when"
			done
		done
	done
	is "$bad" "" "a client that fails or dies at a step never says success"
	ok "$(kill -0 "$pid"; echo $?)" "and the supervisor survives them all"
	none_left() {
		x a --op list-execs
		[ "$(field "$out" '[.execs[] | select(.outcome == null)] |
			length')" -le 1 ] # the one with a terminal
	}
	wait_for 10 none_left
	ok $? "and every command came to its end"
else
	skip "clients that fail at each step" "strace is not installed"
fi
(
	# shellcheck disable=SC3045 # dash has it
	ulimit -n 14
	seq 60 | jq -c '{sandbox:"a",command:["echo","x"]}' |
		timeout -k 1 60 dsec-exec >"$T/out"
)
is "$(jq -c '[.ok,.stdout]' "$T/out" | sort | uniq -c | tr -s ' ')" \
	' 60 [true,"x\n"]' "few descriptors: fewer at once, all of them done"

# --- signals, and the ends of sandboxes -------------------------------------

# shellcheck disable=SC2016
x -d a -- sh -c 'trap "echo got; exit 7" USR1; echo up
	while :; do sleep 0.1; done'
E=$(field "$out" .exec)
up() {
	x a --op output --exec "$E"
	[ "$(field "$out" .data)" = up ]
}
wait_for 10 up
x a --op signal --exec "$E" --signal USR1
x a --op attach --exec "$E"
json_is "$out" '[7,"up\ngot\n"]' "a signal by request" '[.exit_code,.stdout]'
x a --op wait --exec e99999
json_is "$out" '"exec_unknown"' "a command that never was" .error.code

dsec-exec a -- sh -c 'echo up; sleep 60' >"$T/out" 2>"$T/err" &
last=$!
wait_for 10 grep -q up "$T/out"
run timeout 30 dsec-pause --stop a
wait $last
st=$?
ok "$([ $st -ne 0 ]; echo $?)" "a stop while a command runs: $st, not success"
x "$S" -- true
is "$status" 125 "a stopped sandbox"
x "$S" --cmd true
json_is "$out" '[false,"stopped"]' "with its own code" '[.ok,.error.code]'

run sh -c 'echo "{\"name\":\"b\"}" | timeout 60 dsec-run'
B=$(field "$out" .sandbox)
dsec-exec b -- sh -c 'echo up; sleep 60' >"$T/out" 2>"$T/err" &
last=$!
wait_for 10 grep -q up "$T/out"
kill -KILL "$(jq -r .supervisor_pid "$DSEC_RUN/sb/$B/state.json")"
wait $last
is $? 125 "the supervisor is killed while a command runs"
x "$B" --cmd true
json_is "$out" '[false,"supervisor_lost",true]' "and then: supervisor_lost" \
	'[.ok,.error.code,.error.infra]'

done_testing
