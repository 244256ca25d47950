#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copies with memory: what runs goes on in each of them by itself, the source
# notices nothing but the time, and a copy can be copied.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq busybox python3
tree_new
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"
echo '{"memory_overcommit":64,"cpu_overcommit":1000}' \
	>"$DSEC_CONFIG/node.json"
matrix_image || plan_skip_all "no image to test with"

inside() { # SANDBOX COMMAND
	timeout 60 dsec-exec "$1" -- sh -c "$2" </dev/null
}
code() {
	field "$out" .error.code
}
snaps() {
	find "$DSEC_LIB/snap" -mindepth 1 -maxdepth 1 ! -name name | wc -l
}
# Several at once, on a machine that may be busy.
fork() {
	run timeout 120 dsec-fork "$@"
}
# What e0 wrote in a sandbox.
said() { # SANDBOX
	echo "{\"op\":\"output\",\"sandbox\":\"$1\",\"exec\":\"e0\",\"stream\":\"stdout\"}" |
		timeout 60 dsec-exec | jq -j .data
}

# A parent and a child, a pipe between them, an open file that has no name, 8 MB
# that must stay what they are, and a count of it all.
cat >"$T/work.py" <<'END'
import os, time
mem = bytearray(os.urandom(1 << 20) * 8)
want = hash(bytes(mem))
r, w = os.pipe()
fd = os.open("/srv/gone", os.O_RDWR | os.O_CREAT)
os.unlink("/srv/gone")
pid = os.fork()
if pid == 0:
    n = 0
    while True:
        n += 1
        os.write(w, b"%08d" % n)
        time.sleep(0.1)
last, me = 0, os.getpid()
while True:
    n = int(os.read(r, 8))
    ok = n == last + 1 and os.getpid() == me
    if n % 16 == 0:
        ok = ok and hash(bytes(mem)) == want
    last = n
    os.pwrite(fd, b"%08d" % n, 0)
    ok = ok and os.pread(fd, 8, 0) == b"%08d" % n
    print(n, os.getpid(), pid, "well" if ok else "BAD", flush=True)
END

dsec-run -i root/matrix:1 --detach -- true >"$T/warm" </dev/null
run timeout 20 dsec-pause --stop "$(jq -r .sandbox "$T/warm")"
leak_start
run timeout 60 dsec-run -n src -i root/matrix:1 -m 128 --task job --label a=1 \
	--detach -- /bin/python3 -S -u -c "$(cat "$T/work.py")"
is "$status" 0 "a source" || diag "$out$err"
src=$(field "$out" .sandbox)
last() { # SANDBOX: 0 before the first, or if it does not answer
	last_n=$(said "$1" | tail -n 1 | cut -d' ' -f1)
	echo "${last_n:-0}"
}
# shellcheck disable=SC2317 # by wait_for
beyond() { # SANDBOX COUNT
	[ "$(last "$1")" -gt "$2" ]
}
# shellcheck disable=SC2317 # by wait_for
goes_on() { # SANDBOX
	at=$(last "$1")
	[ "$at" -gt 0 ] || return 1
	wait_for 30 beyond "$1" $((at + 3))
}
wait_for 30 beyond src 5
ok $? "which works"
echo '{"sandbox":"src","command":["sh","-c","date +%N"],"step":7}' |
	timeout 30 dsec-exec >"$T/step"
keyed() { # SANDBOX: the number of the command
	printf '{"sandbox":"%s","command":["sh","-c",
		"echo >>/srv/keyed; exec sleep 1000"],"key":"k","detach":true}' \
		"$1" | tr -d '\n\t' | timeout 30 dsec-exec | jq -r .exec
}
# shellcheck disable=SC2317 # by wait_for
begun() { # SANDBOX N: how often it was begun there
	[ "$(inside "$1" 'wc -l </srv/keyed')" = "$2" ]
}
keyed=$(keyed src)
wait_for 20 begun src 1

fork src --count 4 --name c
is "$status" 0 "four copies" || diag "$out$err"
printf '%s\n' "$out" >"$T/copies"
is "$(jq -r '"\(.parent) \(.generation) \(.state) \(.memory)"' "$T/copies" |
	sort -u)" "$src 1 running private" "a record each"
is "$(jq -s 'map(.reset|index("id") != null)|all' "$T/copies")" true \
	"that says what is new"
for i in 0 1 2 3; do
	goes_on "c-$i"
	ok $? "copy $i goes on" || diag "$(said "c-$i" | tail -n 3)"
done
goes_on src
ok $? "and so does the source"
is "$(for s in src c-0 c-1 c-2 c-3; do said $s; done | grep -c -v ' well$')" 0 \
	"memory, pipe and files are what they were in all"
is "$(for s in src c-0 c-1 c-2 c-3; do
	said $s | cut -d' ' -f2,3
done | sort -u | wc -l)" 1 "with the same pids"
for s in src c-3; do
	is "$(said "$s" | awk '{ if ($1 != NR) bad++ } END { print bad + 0 }')" 0 \
		"$s: the output has all of it, once"
done
inside c-0 'kill -9 "$(ps | grep [p]ython3 | head -n 1 |
	sed "s/^ *//;s/ .*//")"'
run sh -c 'echo "{\"op\":\"wait\",\"sandbox\":\"c-0\",\"exec\":\"e0\"}" |
	timeout 30 dsec-exec'
is "$(field "$out" '"\(.outcome) \(.signal)"')" "signalled SIGKILL" \
	"a command of a copy ends, and is told" || diag "$out"
goes_on c-1 && goes_on src
ok $? "in that copy alone"
run timeout 20 dsec-ps src c-1
is "$(printf '%s\n' "$out" | jq -s '.[1]|{task,labels,name,memory_limit_mb} |
	tojson' -r)" \
	'{"task":"job","labels":{"a":"1"},"name":"c-1","memory_limit_mb":128}' \
	"what is inherited"
is "$(printf '%s\n' "$out" | jq -s 'map(.uid_base)|unique|length')" 2 \
	"and what is not"
echo '{"sandbox":"c-1","command":["sh","-c","date +%N"],"step":7}' |
	timeout 30 dsec-exec >"$T/step2"
is "$(jq -r '"\(.repeated) \(.stdout)"' "$T/step2")" \
	"true $(jq -r .stdout "$T/step")" "a step that was done stays done"
is "$(keyed src)" "$keyed" "a key stands for its command in the source"
isnt "$(keyed c-2)" "$keyed" "and for none in a copy"
wait_for 20 begun c-2 2
ok $? "which does what it is asked"
begun src 1
ok $? "and the source does not do it again"
is "$(inside c-1 'echo more')" more "new commands run in a copy"
is "$(snaps)" 0 "nothing is kept"

# --- generations, snapshots ---------------------------------------------------

fork c-1 --name g --hostname other
is "$status" 0 "a copy of a copy" || diag "$out$err"
goes_on g-0
ok $? "goes on"
is "$(inside g-0 hostname)" other "with another host name"
fork g-0 --snapshot warm
is "$status $(field "$out" '"\(.name) \(.processes > 1)"')" \
	"0 root/warm true" "a snapshot of that" || diag "$out$err"
frozen=$(field "$out" '.frozen_ms <= 3 * .engine_frozen_ms + 100')
is "$frozen" true "the source stood still about as long as the engine needed" ||
	diag "$out"
run timeout 20 dsec-pause --stop --grace 0 src c-0 c-2 c-3 g-0
fork --from warm --count 2 --name w --label b=2
is "$status" 0 "copies of a snapshot whose source is gone" || diag "$out$err"
goes_on w-0 && goes_on w-1
ok $? "go on"
is "$(said w-1 | grep -c -v ' well$')" 0 "well"
run timeout 60 dsec-run --snapshot warm -n r -- sh -c 'echo begun; hostname'
is "$status $(field "$out" .stdout | tr '\n' ' ')" "0 begun other  " \
	"dsec-run: a command beside those that go on" || diag "$out$err"
goes_on r
ok $? "which do"
fork --from warm --fs-only --name files
is "$status $(field "$out" .memory)" "0 none" "the files of it alone"
is "$(inside files-0 'ps | grep -c [p]ython3')" 0 "run nothing"
timeout 60 dsec-pause w-0 >"$T/null" </dev/null
fork w-0 --name p
is "$status $(timeout 20 dsec-ps w-0 </dev/null | jq -r .state)" "0 paused" \
	"one that is paused stays so" || diag "$out$err"
goes_on p-0
ok $? "and its copy runs"
timeout 60 dsec-pause --level disk w-0 >"$T/disk" </dev/null
is "$(jq -r '"\(.state) \(.level)"' "$T/disk")" "paused disk" "one on the disk"
fork w-0 --name q
is "$status" 0 "is copied" || diag "$out$err"
goes_on q-0
ok $? "and its copy runs"

# --- who is missing (field report 70) ------------------------------------------

run timeout 20 dsec-img rm root/matrix:1
is "$status $(printf '%s\n' "$out" | jq -r 'select(.ok == false).error.code')" \
	"1 image_in_use" "the image of a snapshot is not removed"
run timeout 60 dsec-img prune --grace 0
run timeout 60 dsec-img prune --grace 0
is "$(field "$out" .manifests)" 0 "nor pruned" || diag "$out"
timeout 60 dsec-pause --stop --grace 0 --project root >"$T/null" </dev/null
like "$(timeout 20 dsec-img rm root/matrix:1 </dev/null)" 'snapshot' \
	"which is told where it is the only one"
manifest=$(find "$DSEC_LIB/img/store/manifest" -name '*.json')
mv "$manifest" "$T/manifest"
fork --from warm
is "$status $(code)" "1 incompatible" "a layer that is missing"
like "$(field "$out" .error.message)" "$(basename "$manifest" .json |
	cut -c1-16)" "is named"
mv "$T/manifest" "$manifest"
echo '{"criu":"/nowhere/criu"}' >"$DSEC_CONFIG/engine.json"
fork --from warm
is "$status $(code)" "69 unsupported" "an engine that is missing"
fork --from warm --fs-only --name only
is "$status" 0 "files need none"
rm "$DSEC_CONFIG/engine.json"
run timeout 60 dsec-fork --inspect warm
is "$status $(field "$out" .incompatible)" "0 null" "and here is one again"
page=$(find "$DSEC_LIB/snap" -name 'pages-1.img')
cp "$page" "$T/page"
truncate -s -4096 "$page"
fork --from warm
is "$status $(code)" "1 checkpoint_damaged" "a file that was cut short"
like "$(field "$out" .error.message)" pages-1 "is named"
cp "$T/page" "$page"

# --- whoever dies in the middle -----------------------------------------------

for s in 0.05 0.3 0.7; do
	timeout 60 dsec-fork --from warm --count 2 --label killed=1 \
		>"$T/killed" 2>&1 </dev/null &
	pid=$!
	sleep "$s"
	pkill -KILL -P "$pid" 2>"$T/null"
	wait "$pid" 2>"$T/null"
done
# shellcheck disable=SC2317 # by wait_for
settled() {
	timeout 60 dsec-pause --stop --grace 0 --project root >"$T/null" 2>&1 \
		</dev/null
	timeout 60 dsec-doctor --fix >"$T/null" 2>&1 </dev/null
	[ -z "$(tree_pids)" ]
}
wait_for 30 settled
ok $? "dsec-fork killed: no half copies stay" || diag "$(ps -f -p "$(tree_pids | paste -sd,)")"
fork --from warm --name after
is "$status" 0 "and the snapshot is as good as it was" || diag "$out$err"
run timeout 20 dsec-pause --stop --grace 0 after-0
run timeout 20 dsec-fork --remove warm
is "$status $(snaps)" "0 0" "removed"
leak_check
done_testing
