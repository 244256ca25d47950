#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dsec-run: launches, one-shots, streams of requests, refusals.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq busybox
tree_new
BB=$(command -v busybox)
dsec-run --rm -- true # what a node prepares once
leak_start

# --- one-shots, raw
run dsec-run --rm -- "$BB" echo hello
is "$status:$out" 0:hello "a one-shot's output and status are the command's"
run dsec-run --rm -- sh -c 'echo err >&2; exit 7'
is "$status:$err" 7:err "so are its standard error and another status"
run dsec-run --rm -- sh -c 'kill -9 $$'
is "$status" 137 "a signal is 128 and its number"
run dsec-run --rm -- no-such-program
is "$status" 125 "a command that is not there is our failure: 125"
like "$err" "no-such-program.*not found" "and the message names it"
run dsec-run --rm -- "$T"
is "$status" 125 "so is one that cannot be executed"
run dsec-run --rm --cwd /nope -- true
like "$err" "working directory '/nope'" "a missing working directory is named"
is "$(printf 'a\nb' | dsec-run --rm -- "$BB" wc -c)" 3 "a pipe is its input"
printf 12345 > "$T/file"
is "$(dsec-run --rm -- "$BB" wc -c < "$T/file")" 5 "and so is a file"
dsec-run --rm -- "$BB" readlink /proc/self/fd/1 > "$T/out"
like "$(cat "$T/out")" '^pipe:' "but what it sees of a file is a pipe"
run dsec-run --rm -- "$BB" sh -c 'echo "$#:$1:$2"' x 'a  b' "c'\"d"
is "$out" "2:a  b:c'\"d" "arguments arrive exactly"
run dsec-run --rm --env A='x y' --env B= -- sh -c 'echo "$A|$B|$HOME|$USER"'
is "$out" "x y||/root|root" "so does the environment"

# --- what is inside
run dsec-run --rm -- sh -c 'id -u; hostname; ls /sys; cat /proc/1/comm'
is "$out" "0
sandbox
dsec-init" "root inside, a constant host name, an empty /sys, our pid 1"
run dsec-run --rm --hostname box7 -- sh -c 'hostname; grep -c box7 /etc/hosts'
is "$out" "box7
1" "a host name of one's own resolves"
run dsec-run --rm --user user --cwd / -- sh -c 'id -u; id -g; echo "$HOME"'
is "$out" "1000
1000
/home/user" "another user, with the home of passwd"
run dsec-run --rm --user nosuch -- true
is "$status" 125 "no such user is refused"
run dsec-run --rm --cpu 1 -- nproc
is "$out" 1 "as many CPUs as the limit says"
run dsec-run --rm --shm 8M -- sh -c 'df -k /dev/shm | tail -1'
like "$out" "8192 " "/dev/shm of the asked size"
run dsec-run --rm -- sh -c 'touch /tmp/x /etc/y && rm /etc/hosts && echo done'
is "$out" "done" "the root is writable"
run dsec-run --rm -- sh -c 'touch /usr/x 2>&1'
like "$out" "Read-only" "/usr is not"
run dsec-run --rm -- stat -c %U /usr /etc/passwd
is "$out" "root
root" "and it belongs to the sandbox's root"
run dsec-run --rm -- sh -c 'cat /etc/shadow /etc/machine-id 2>/dev/null; true'
is "$out" "" "nothing of the host's secrets is there"
run dsec-run --rm -- python3 -c 'print(6*7)'
is "$out" 42 "python runs"

# --- limits
run dsec-run --rm --memory 64M -- python3 -c 'x = b"a" * (256 << 20)'
is "$status" 137 "over the memory limit it is killed"
like "$err" "memory limit of 64 MiB" "and we say why"
run dsec-run --rm --pids 16 -- sh -c 'for i in $(seq 30); do sleep 1 & done
	2>&1; wait'
like "$err" "[Rr]esource|fork" "processes are limited"
run dsec-run --rm --ttl 1 -- sleep 100
is "$status" 137 "ttl_absolute ends a one-shot"
like "$err" ttl_absolute "and is named"

# --- records
cat > "$T/octets" <<'EOF'
{"id":"a","rm":true,"command":["sh","-c","printf '\\377'; exit 3"]}
EOF
rec=$(dsec-run < "$T/octets")
json_is "$rec" '{"id":"a","ok":true,"outcome":"exited","exit_code":3,
	"stdout_b64":"/w==","stderr":"","stdout_bytes":1,"stderr_bytes":0,
	"truncated":false,"infra":false}' "a one-shot's record" \
	'del(.sandbox,.started_ms,.ended_ms,.duration_ms,.cpu_ms,.max_rss_kb)'
rec=$(echo '{"rm":true,"memory_limit_mb":32,
	"command":["python3","-c","x=b\"a\"*(99<<20)"]}' | tr -d '\n\t' | dsec-run)
is "$(field "$rec" '.outcome, .oom.limit_mb, (.oom.kills > 0)')" "oom
32
true" "oom is an outcome, with the limit"
n=$(yes '{"rm":true,"command":["true"]}' | head -20 | dsec-run --jobs 4 |
	jq -r 'select(.outcome == "exited" and .exit_code == 0).id' |
	sort -n | uniq | wc -l)
is "$n" 20 "20 requests, 4 at a time, a record each"
{ echo '{"id":1,"rm":true,"command":["sleep","60"]}'; sleep 1
	echo '{"id":2,"cancel":1}'; } | dsec-run --jobs 2 > "$T/cancel"
is "$(jq -s -r 'map([.id, .ok, .cancelled, .outcome]|@json)|sort[]' "$T/cancel")" \
	'[1,true,null,"killed"]
[2,true,true,null]' "a request is cancelled"
{ echo '{"id":1,"rm":true,"command":["sleep","60"]}'
	echo '{"id":2,"cancel":1}'; } | timeout 20 dsec-run --jobs 2 > "$T/cancel"
# It comes before the command is begun, or just after.
like "$(jq -s -r 'map([.id, .cancelled, .error.code // .outcome]|@json)|sort|join(" ")' \
	"$T/cancel")" '^\[1,null,"(cancelled|killed)"\] \[2,true,null\]$' \
	"also at once"
rec=$(echo '{"rm":true,"deadline_ms":300,"command":["sleep","60"]}' | dsec-run)
is "$(field "$rec" .outcome)" killed "a deadline ends a one-shot"
rec=$(printf '{"key":"k1","rm":true,"command":["cat","/proc/sys/kernel/random/uuid"]}\n%s\n' \
	'{"key":"k1","rm":true,"command":["cat","/proc/sys/kernel/random/uuid"]}' |
	dsec-run | jq '.stdout' | sort -u | wc -l)
is "$rec" 1 "the same key twice runs once"
rec=$(echo '{"key":"k1","rm":true,"command":["true"]}' | dsec-run)
is "$(field "$rec" .error.code)" key_conflict "another request is a conflict"

# --- nothing, and both of two, are not asked for
run dsec-run --task none
is "$status $out" "64 " "no command and no request"
like "$err" "give -- COMMAND or --detach, or requests" "is told so"
run sh -c ': | dsec-run'
is "$status $out$err" "0 " "an empty batch is one"
run dsec-run --rm -d -- true
is "$status" 64 "--rm waits: not with --detach"
like "$err" "leave --rm or --detach out" "which is told"

# --- told to end while it waits: what lives on is named
named() { # RECORD: it was cancelled, and its sandbox can be asked for
	is "$(field "$1" '[.ok,.error.code,.error.infra//false,.exec]|tostring')" \
		'[false,"cancelled",false,"e0"]' "$2: a record of what it waited for"
	id=$(field "$1" .sandbox)
	is "$(field "$(dsec-ps "$id")" .state)" running "... which lives on"
	like "$(cat "$T/.err")" "$id" "... and is named to people"
}
made() { # COUNT
	[ "$(dsec-ps --task "$1" | grep -c '"running"')" -eq "$2" ]
}
env --default-signal=INT dsec-run --task cc -- sleep 1000 >"$T/one" 2>"$T/.err" &
pid=$!
wait_for 20 made cc 1
kill -INT $pid
wait $pid
is $? 1 "SIGINT ends the wait for a command"
named "$(cat "$T/one")" "one"
mkfifo "$T/in"
dsec-run --task cc2 --jobs 2 <"$T/in" >"$T/two" 2>"$T/.err" &
pid=$!
exec 7>"$T/in"
for i in 1 2 3; do
	echo "{\"id\":$i,\"key\":\"w$i\",\"wait\":true,\"command\":[\"sleep\",\"1000\"]}"
done >&7
wait_for 20 made cc2 2
kill -TERM $pid
wait $pid
is $? 1 "SIGTERM ends a stream, though its input does not"
exec 7>&-
named "$(jq -c 'select(.id == 1)' "$T/two")" "first"
named "$(jq -c 'select(.id == 2)' "$T/two")" "second"
json_is "$(jq -c 'select(.id == 3)' "$T/two")" '["cancelled",false]' \
	"what was not begun makes nothing" '[.error.code,has("sandbox")]'
rec=$(echo '{"key":"w2","wait":true,"deadline_ms":300,"command":["sleep","1000"]}' |
	dsec-run --task cc2)
json_is "$rec" "[\"deadline\",\"e0\",\"$id\"]" \
	"who repeats it by its key waits for the same one, to his deadline" \
	'[.error.code,.exec,.sandbox]'

# --- and while it waits for another with its key; the second "w2" is held below
holds() { # PID: it has the file of a key open
	readlink "/proc/$1/fd/"* 2>/dev/null | grep -q "^$DSEC_RUN/key/"
}
gone() { # PID
	! kill -0 "$1" 2>/dev/null
}
first_child() { # PID
	cut -d' ' -f1 "/proc/$1/task/$1/children" 2>/dev/null
}
ask='{"key":"w2","wait":true,"command":["sleep","1000"]}'
echo "$ask" | dsec-run --task cc2 >"$T/holder" 2>/dev/null &
holder=$!
wait_for 20 sh -c 'test -n "$(cut -d" " -f1 /proc/$1/task/$1/children)"' sh $holder
keeper=$(first_child $holder)
wait_for 20 holds "$keeper"
env --default-signal=INT dsec-run --key w2 --task cc2 -- sleep 1000 \
	>"$T/one" 2>/dev/null &
pid=$!
wait_for 20 holds $pid
kill -INT $pid
wait_for 10 gone $pid || kill -KILL $pid
wait $pid
json_is "$(cat "$T/one")" '["cancelled",false]' \
	"SIGINT ends the wait for a key" '[.error.code,has("sandbox")]'
dsec-run --task cc2 --jobs 2 <"$T/in" >"$T/two" 2>/dev/null &
pid=$!
exec 7>"$T/in"
echo "$ask" >&7
wait_for 20 sh -c 'test -n "$(cut -d" " -f1 /proc/$1/task/$1/children)"' sh $pid
worker=$(first_child $pid)
wait_for 20 holds "$worker"
kill -KILL $pid
wait $pid 2>/dev/null
wait_for 10 gone "$worker"
ok $? "nor does a worker wait whose dsec-run is gone" || kill -KILL "$worker"
exec 7>&-
kill -TERM $holder
wait $holder

# --- whose sandbox ended while nobody waited
dsec-pause --stop --task cc >/dev/null
dsec-pause --stop --task cc2 >/dev/null
wait_for 20 made cc2 0
json_is "$(echo "$ask" | timeout 20 dsec-run --task cc2)" \
	"[true,\"stopped\",\"e0\",\"$id\",null]" \
	"it was made and has ended: no result is made up" \
	'[.ok,.state,.exec,.sandbox,.outcome]'
json_is "$(echo "$ask" | timeout 20 dsec-run --task cc2)" "[true,\"$id\"]" \
	"which is the answer from then on" '[.repeated,.sandbox]'

# --- refusals, each with its own code, and nothing is left
refuse() { # CODE REQUEST
	rec=$(echo "$2" | dsec-run)
	is "$?:$(field "$rec" .error.code)" "$3:$1" "refused: $2"
}
refuse unknown_field '{"memroy":3}' 65
refuse bad_value '{"memory_limit_mb":"1"}' 65
refuse bad_value '{"cpu_cores_limit":0}' 65
refuse bad_value '{"name":"../x"}' 65
refuse bad_value '{"project":"root//x"}' 65
refuse bad_value '{"project":"other/x"}' 65
refuse memory_too_small '{"memory_limit_mb":3}' 1
refuse image_unknown '{"image":"root/py:3.12"}' 1
refuse bad_value '{"profile":"nosuch"}' 65
refuse unsupported '{"backend":"microvm"}' 69
refuse image_unknown '{"layers":["root/nosuch:1"]}' 1
refuse snapshot_unknown '{"snapshot":"s"}' 1
refuse bad_value '{"snapshot":"s","memory_limit_mb":64}' 65
refuse unsupported '{"qos":"ls"}' 69
for f in '"network_rules":[]' '"phases":[]' '"phases":{"a b":{}}' \
	'"phases":{"a":true}' '"phase":"a"' '"publish":["x"]'; do
	refuse bad_value "{$f}" 65
done
refuse memory '{"memory_limit_mb":16000000}' 75
refuse missing_field '{"rm":true}' 65
refuse mount_denied '{"mounts":[{"source":"/root","target":"/mnt"}]}' 77
refuse bad_record '{"a":1,"a":2}' 65
refuse bad_record 'nonsense' 65
mkdir -p "$DSEC_CONFIG" "$T/data"
echo hi > "$T/data/f"
echo "$T/data" > "$DSEC_CONFIG/mounts.allow"
ln -s "$T/data" "$T/link"
run dsec-run --rm --mount '[{"source":"'"$T/data"'","target":"/mnt"}]' -- \
	sh -c 'cat /mnt/f; touch /mnt/x 2>&1'
like "$out" "^hi" "an allowed directory is mounted"
like "$out" "Read-only" "read-only"
run dsec-run --rm --mount '[{"source":"'"$T/link"'","target":"/mnt"}]' -- true
is "$status" 125 "a link to it is not it"

# --- a failure on the way
for at in clone3 mount unshare pipe2 mkdirat; do
	run strace -f -qq -o /dev/null -e "inject=$at:error=ENOMEM:when=2" \
		dsec-run --rm -- true
	isnt "$status" 0 "ENOMEM at the second $at is a failure"
done
for at in openat:error=EMFILE write:error=ENOSPC mkdirat:error=ENOSPC; do
	for n in 6 9 12; do
		run strace -f -qq -o /dev/null -e "inject=$at:when=$n" \
			dsec-run --rm -- "$BB" true
		ok 0 "$at at call $n: ended ($status)"
	done
done
mkdir "$T/libexec"
ln -s "$BIN"/../libexec/dsec/* "$T/libexec"
rm "$T/libexec/dsec-box"
echo junk >"$T/libexec/dsec-box"
chmod 755 "$T/libexec/dsec-box"
run env DSEC_LIBEXEC="$T/libexec" timeout 20 dsec-run --detach
is "$status $(field "$out" .error.code)" "71 system" \
	"a supervisor that cannot be executed"
run env --ignore-signal=CHLD dsec-run --rm -- sh -c 'exit 3'
is "$status" 3 "a caller that ignores SIGCHLD"
leak_check "nothing is left after one-shots and failures"

# --- killed at any point: the next launch buries what is left
for n in 5 20 40 60 80 100 120 140; do
	strace -f -qq -o /dev/null -e "inject=all:signal=KILL:when=$n" \
		dsec-run --rm -- "$BB" true > /dev/null 2>&1
done
run dsec-run --rm -- true
is "$status" 0 "a launch after launches that were killed"
dsec-run --rm -- sleep 300 &
pid=$!
wait_for 10 sh -c "grep -q one-shot $DSEC_RUN/sb/*/claim.json 2>/dev/null"
kill -9 $pid
wait $pid 2>/dev/null
dsec-doctor --fix --only dead > /dev/null 2>&1
leak_check "nothing is left after SIGKILL"

# Killed while pid 1 has not yet asked to go with it, and the command waits.
inside() { # COUNT
	cat /sys/fs/cgroup/"$DSEC_CGROUP"/*/init/cgroup.procs \
		/sys/fs/cgroup/unified/"$DSEC_CGROUP"/*/init/cgroup.procs \
		2>/dev/null | wc -l | grep -qx "$1"
}
strace -f -qq -o /dev/null -e inject=clone:delay_exit=2000000 \
	"$BIN/dsec-run" --rm -- sleep 300 &
pid=$!
wait_for 30 inside 2
kill -KILL "$(pgrep -P $pid)"
ok $? "who launches is killed"
wait_for 20 inside 0
ok $? "what it began ends with it"
kill -KILL $pid 2>/dev/null
wait $pid 2>/dev/null
dsec-doctor --fix --only dead >/dev/null 2>&1
leak_check "and nothing is left"
done_testing
