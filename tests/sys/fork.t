#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copies of files and snapshots of them: what works on every node, without a
# checkpoint engine.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
tree_new
# More sandboxes than a small node would promise memory to, and a small disk.
echo '{"memory_overcommit":64,"cpu_overcommit":1000,"disk_reserve_mb":0}' \
	>"$DSEC_CONFIG/node.json"

# What a command prints in a sandbox.
inside() { # SANDBOX COMMAND
	timeout 30 dsec-exec "$1" -- sh -c "$2" </dev/null
}
code() {
	field "$out" .error.code
}
snaps() {
	find "$DSEC_LIB/snap" -mindepth 1 -maxdepth 1 ! -name name | wc -l
}

dsec-run --detach -- true >"$T/warm" </dev/null
run timeout 20 dsec-pause --stop "$(jq -r .sandbox "$T/warm")"
leak_start

# --- copies -------------------------------------------------------------------

run timeout 30 dsec-run -n src -m 64 --task job --label a=1 --ttl 3600 \
	--owner ann --detach -- sh -c 'while sleep 0.1; do date >>/root/log; done'
is "$status" 0 "a source with a running command" || diag "$out$err"
src=$(field "$out" .sandbox)
inside src 'echo one >/root/file; ln /root/file /root/hard; ln -s file /root/soft
	mkdir /root/dir; rm -rf /etc/profile.d; chmod 600 /root/file'
echo '{"sandbox":"src","command":["sh","-c","date +%N"],"step":7}' |
	timeout 30 dsec-exec >"$T/step"
run timeout 60 dsec-fork src --fs-only --count 3 --name c --label b=2 --ttl 1800
is "$status" 0 "three copies" || diag "$out$err"
printf '%s\n' "$out" >"$T/copies"
is "$(jq -s 'map(.index)|sort|map(tostring)|join(" ")' -r "$T/copies")" \
	"0 1 2" "a record each"
is "$(jq -r '"\(.parent) \(.generation) \(.state) \(.memory)"' "$T/copies" |
	sort -u)" "$src 1 running none" "which says of whom, and how"
is "$(jq -r .layer "$T/copies" | sort -u | grep -Ec '^(snapshot|reflink|copied)$')" \
	1 "and how the files were copied"
is "$(jq -r 'select(.layer == "copied" and (.warnings |
	any(test("copied file by file")) | not)).sandbox' "$T/copies")" "" \
	"with a warning where that is slow"
is "$(inside c-1 'cat /root/file; readlink /root/soft; stat -c "%a %h" /root/file
	ls -d /root/dir; ls /etc/profile.d 2>/dev/null' | tr '\n' ' ')" \
	"one file 600 2 /root/dir " "a copy has the files"
inside c-1 'echo two >/root/file'
is "$(inside src 'cat /root/file') $(inside c-0 'cat /root/file') $(inside \
	c-1 'cat /root/file')" "one one two" "of its own"
n=$(inside src 'wc -l </root/log')
# shellcheck disable=SC2317 # by wait_for
longer() { # SANDBOX
	[ "$(inside "$1" 'wc -l </root/log')" -gt "$n" ]
}
wait_for 10 longer src
ok $? "the source goes on"
n=$(inside c-0 'wc -l </root/log; sleep 0.3')
is "$(inside c-0 'wc -l </root/log')" "$n" "a copy of files runs nothing"
run timeout 20 dsec-ps src c-0
is "$(printf '%s\n' "$out" | jq -s '.[1] | {task,user,project,profile,
	memory_limit_mb,labels,name,ttl_absolute} | tojson' -r)" \
	'{"task":"job","user":"ann","project":"root","profile":"default","memory_limit_mb":64,"labels":{"a":"1","b":"2"},"name":"c-0","ttl_absolute":1800}' \
	"what is inherited, and what is not"
is "$(printf '%s\n' "$out" | jq -s '.[0].uid_base != .[1].uid_base')" true \
	"a uid range of its own"
echo '{"sandbox":"c-2","command":["sh","-c","date +%N"],"step":7}' |
	timeout 30 dsec-exec >"$T/step2"
is "$(jq -r '"\(.repeated) \(.stdout)"' "$T/step2")" \
	"true $(jq -r .stdout "$T/step")" "a step that was done stays done"
run sh -c 'echo "{\"op\":\"list-execs\",\"sandbox\":\"c-2\"}" |
	timeout 20 dsec-exec'
is "$(field "$out" '[.execs[].running // false]|any')" false \
	"the source's commands do not run in it"
run timeout 60 dsec-fork c-1 --fs-only --name d
is "$status $(inside d-0 'cat /root/file')" "0 two" "a copy of a copy"
run timeout 60 dsec-fork src --fs-only --name d
is "$status $(code)" "1 name_taken" "a name that is taken"
dsec-run -n e-1 --detach -- true >"$T/e1" </dev/null
run timeout 60 dsec-fork src --fs-only --name e --count 3
is "$status $(printf '%s\n' "$out" | jq -s 'sort_by(.index)|
	map(if .ok then "ok" else .error.code end)|join(" ")' -r)" \
	"1 ok name_taken ok" "of three, one that cannot be: the others stay"
is "$(printf '%s\n' "$out" | jq -r 'select(.ok|not)|.parent')" "$src" \
	"its record says of whom"
for p in sealed nested; do
	dsec-run -n "$p" -p "$p" --detach -- true >"$T/$p" </dev/null
	inside "$p" 'echo x >/root/x'
	run timeout 60 dsec-fork "$p" --fs-only --name "of-$p"
	is "$status $(inside "of-$p-0" 'cat /root/x')" "0 x" "profile $p"
done
timeout 20 dsec-pause c-2 >"$T/null" </dev/null
run timeout 60 dsec-fork c-2 --fs-only --name f
is "$status $(timeout 20 dsec-ps c-2 </dev/null | jq -r .state)" "0 paused" \
	"one that is paused stays so"
is "$(snaps)" 0 "nothing is kept of what was not named"
# The thirtieth copy of a sandbox takes as long as the first (field report 63).
for _ in 1 2 3; do
	timeout 100 dsec-fork src --fs-only --count 1 --label many=1 </dev/null
	timeout 100 dsec-fork src src src src src src src src src \
		--fs-only --label many=1 --jobs 1 </dev/null
done >"$T/many" 2>&1
is "$(jq -s 'map(select(.ok))|length' "$T/many")" 30 "thirty more copies"
median() { # FROM TO
	jq -s ".[$1:$2]|map(.frozen_ms)|sort|.[5]" "$T/many"
}
first=$(median 0 10) last=$(median 20 30)
ok $((last > 2 * first + 20)) \
	"it stands still as long for the last as for the first" ||
	diag "first $first ms, last $last ms"
run timeout 60 dsec-pause --stop --grace 0 --label many=1
run timeout 60 sh -c 'echo "{\"image\":\"host\"}" | dsec-run |
	dsec-fork --fs-only --count 2 | dsec-exec --cmd "echo piped"'
is "$status $(printf '%s\n' "$out" | jq -r .stdout | tr '\n' ' ')" \
	"0 piped  piped  " "records pipe"
run timeout 60 sh -c '{ echo "{\"id\":1,\"sandbox\":\"src\",\"fs_only\":true,\"count\":2,\"key\":\"k\"}"
	echo "{\"id\":2,\"sandbox\":\"src\",\"fs_only\":true,\"count\":2,\"key\":\"k\"}"
	echo "{\"id\":3,\"sandbox\":\"src\",\"fs_only\":true,\"key\":\"k\"}"; } | dsec-fork'
is "$(printf '%s\n' "$out" | jq -s '(map(select(.id==1).sandbox)|sort) ==
	(map(select(.id==2 and .repeated).sandbox)|sort)')" true \
	"a key: the same copies"
is "$(printf '%s\n' "$out" | jq -r 'select(.id==3).error.code')" key_conflict \
	"for the same request"
# Its dsec-fork is killed when the snapshot has its name and copies are begun.
echo '{"sandbox":"src","fs_only":true,"count":6,"snapshot":"torn","key":"torn",
	"labels":{"torn":"1"}}' | tr -d '\n' >"$T/torn"
mkfifo "$T/told"
dsec-fork --jobs 1 <"$T/torn" >"$T/told" 2>"$T/.err" &
forker=$!
read -r first <"$T/told"
kill -KILL "$forker"
wait "$forker" 2>/dev/null
is "$(field "$first" .event)" snapshot "a snapshot got its name"
run timeout 60 sh -c 'dsec-fork <"$1"' sh "$T/torn"
is "$status $(printf '%s\n' "$out" | jq -rs 'map(select(.ok).index) | sort |
	map(tostring) | join(" ")')" "0 0 1 2 3 4 5" \
	"its dsec-fork was killed: the request made again does the rest"
is "$(printf '%s\n' "$out" | jq -rs 'map(.snapshot) | unique | join(" ")')" \
	"$(field "$first" .snapshot)" "with the same snapshot"
is "$(printf '%s\n' "$out" | jq -c 'select(.event) | [.name, .repeated]')" \
	'["root/torn",true]' "which is told again"
is "$(dsec-ps --label torn=1 | wc -l)" 6 "and no copy twice"
is "$(jq -c '.key = "other"' "$T/torn" | dsec-fork | jq -r .error.code)" exists \
	"another request finds its name taken"
run timeout 20 dsec-fork --remove torn
run timeout 60 dsec-pause --stop --grace 0 --label torn=1
# A worker is killed when its copy is there, at the second write to the file of
# its key, "lost/0": the record's.
if command -v strace >/dev/null; then
	lost='{"sandbox":"src","fs_only":true,"key":"lost","labels":{"lost":"1"}}'
	echo "$lost" | strace -I2 -f -qq -o "$T/null" -e trace=write \
		-P "$DSEC_RUN/key/a40eb968197e6ea4" \
		-e inject=write:signal=KILL:when=2 dsec-fork \
		>"$T/lost" 2>"$T/.err" &
	tracer=$!
	wait_for 30 test -s "$T/lost"
	kill -TERM "$tracer" # which follows the copy, too
	wait "$tracer" 2>/dev/null
	is "$(field "$(cat "$T/lost")" .error.code)" helper_lost \
		"a worker was killed" || diag "$(cat "$T/.err")"
	made=$(dsec-ps --label lost=1 | jq -r .sandbox)
	run sh -c 'printf "%s\n" "$1" | timeout 60 dsec-fork' sh "$lost"
	json_is "$out" "[true,\"$made\",\"$src\",\"running\",0]" \
		"its copy is the answer to who asks again" \
		'[.ok,.sandbox,.parent,.state,.index]'
	is "$(dsec-ps --label lost=1 | wc -l)" 1 "and no other is made"
	run timeout 60 dsec-pause --stop --grace 0 --label lost=1
else
	skip "a worker that is killed" "strace is not installed"
fi

refuse() { # CODE STATUS REQUEST
	run sh -c 'printf "%s\n" "$1" | timeout 20 dsec-fork' sh "$3"
	is "$status $(code)" "$2 $1" "$3: $1"
}
refuse missing_field 65 '{}'
refuse bad_value 65 '{"sandbox":"src","from":"x"}'
refuse bad_value 65 '{"sandbox":"src","count":0}'
refuse bad_value 65 '{"sandbox":"src","count":1001}'
refuse bad_value 65 '{"sandbox":"src","project":"root"}'
refuse bad_value 65 '{"from":"x","snapshot":"y"}'
refuse bad_value 65 '{"sandbox":"src","fs_only":true,"snapshot":"../y"}'
refuse bad_value 65 '{"sandbox":"src","fs_only":true,"snapshot":"a/b"}'
refuse bad_value 65 '{"op":"list","count":2}'
refuse bad_value 65 '{"op":"eat"}'
refuse unknown_field 65 '{"sandbox":"src","memory_limit_mb":64}'
refuse sandbox_unknown 1 '{"sandbox":"nosuch"}'
refuse snapshot_unknown 1 '{"from":"nosuch"}'
refuse snapshot_unknown 1 '{"from":"../../etc"}'
refuse not_checkpointable 1 '{"sandbox":"src"}'
is "$(snaps)" 0 "and nothing is left of it"

# --- snapshots ----------------------------------------------------------------

run timeout 60 dsec-fork src --fs-only --snapshot base
is "$status $(field "$out" '"\(.name) \(.parent) \(.sandbox)"')" \
	"0 root/base $src null" "a snapshot with a name"
id=$(field "$out" .snapshot)
run timeout 20 dsec-fork src --fs-only --snapshot base
is "$status $(code)" "1 exists" "a name is not taken over silently"
run timeout 60 dsec-fork src --fs-only --snapshot base --replace
isnt "$(field "$out" .snapshot)" "$id" "but when that is asked for"
is "$(snaps)" 1 "and then the older one goes"
dsec-run -n rl --project root/rl --detach -- true >"$T/rl" </dev/null
inside rl 'echo in rl >/root/file'
run timeout 60 dsec-fork rl --fs-only --snapshot base --count 1 --name rlc
is "$(printf '%s\n' "$out" | jq -s 'map(.event // .state)|join(" ")' -r)" \
	"snapshot running" "with a copy: an event before it"
run timeout 20 dsec-fork --list
is "$(printf '%s\n' "$out" | jq -s 'map(.name // empty)|sort|join(" ")' -r)" \
	"root/base root/rl/base" "both are listed"
is "$(printf '%s\n' "$out" | jq -r 'select(.ok).count')" 2 "and counted"
run timeout 20 dsec-fork --list --project root/rl
is "$(printf '%s\n' "$out" | jq -r '.name // empty')" root/rl/base \
	"those of a project"
run timeout 20 dsec-fork --inspect base
is "$(field "$out" '"\(.name) \(.engine) \(.image) \(.incompatible)"')" \
	"root/base none host null" "one is looked at"
timeout 20 dsec-pause --stop src rl --grace 0 >"$T/null" </dev/null
run timeout 60 dsec-fork --from base --count 2 --name g
is "$status $(inside g-1 'cat /root/file')" "0 one" \
	"copies of a snapshot whose source is gone"
run timeout 60 dsec-run --snapshot root/rl/base -n h -- cat /root/file
is "$status $(field "$out" .stdout)" "0 in rl" "dsec-run starts from one"
run timeout 60 dsec-run --snapshot base --project root/rl --hostname other \
	-- sh -c 'cat /root/file; hostname; getent hosts other | cut -d" " -f1'
is "$(field "$out" .stdout | tr '\n' ' ')" "in rl other 127.0.1.1  " \
	"found in a project, with another host name"
# Whoever waits goes, or is killed before he could tell: it is not made twice.
ran='echo >>/root/ran; exec sleep 1000'
once() { # NAME: asked for with a key, to a deadline
	printf '{"snapshot":"base","project":"root/rl","name":"%s","key":"%s",
		"wait":true,"command":["sh","-c","%s"],"deadline_ms":500}' \
		"$1" "$1" "$ran" | tr -d '\n' | timeout 60 dsec-run
}
first=$(once left)
like "$(field "$first" '"\(.error.code) \(.exec)"')" '^deadline e[0-9]+$' \
	"who waits for the command of one from a snapshot goes"
json_is "$(once left)" "$first" "and comes again: it is the same one"
dsec-run --snapshot base --project root/rl -n dead --key dead \
	-- sh -c "$ran" >"$T/null" 2>&1 </dev/null &
pid=$!
wait_for 20 inside dead 'test -e /root/ran'
kill -KILL $pid
wait $pid 2>/dev/null
first=$(once dead)
is "$(field "$first" '"\(.error.code) \(.sandbox)"')" \
	"deadline $(dsec-ps dead | jq -r .sandbox)" \
	"whoever made it was killed: it is found" || diag "$first"
like "$(field "$first" .exec)" '^e[0-9]+$' "with its command"
is "$(inside dead 'wc -l </root/ran')" 1 "which was begun once"
run timeout 20 dsec-run --snapshot base -m 128 -- true
is "$status $(code)" "65 bad_value" "a limit is the snapshot's"
like "$(field "$out" .error.message)" memory_limit_mb "which is told"
run timeout 20 dsec-run --rm --snapshot base -- true
is "$status" 125 "no one-shots from it"
is "$(stat -c %a "$DSEC_LIB/snap" "$DSEC_LIB"/snap/*/ckpt \
	"$DSEC_LIB"/snap/*/ckpt/manifest.json | sort -u | tr '\n' ' ')" \
	"600 700 " "only root can read them"
run timeout 20 dsec-fork --remove base
is "$status $(field "$out" .name)" "0 root/base" "one is removed"
run timeout 20 dsec-fork --remove base
is "$status $(code)" "1 snapshot_unknown" "once"
run timeout 20 dsec-fork --inspect root/rl/base
is "$status" 0 "the other one is there"
snap=$DSEC_LIB/snap/$(field "$out" .snapshot)/ckpt/manifest.json
sed -i 's/"layer"/"lajer"/' "$snap"
run timeout 20 dsec-fork --from root/rl/base
is "$status $(code)" "1 checkpoint_damaged" "one that was changed is refused"
run timeout 20 dsec-fork --remove root/rl/base
is "$status $(snaps)" "0 0" "and can be removed"

# --- whoever dies in the middle -----------------------------------------------

dsec-run -n k --detach -- true >"$T/k" </dev/null
inside k 'dd if=/dev/zero of=/root/big bs=1M count=8 2>/dev/null'
for ms in 5 20 45 80 150; do
	timeout 20 dsec-fork k --fs-only --count 3 --label killed=1 \
		>"$T/killed" 2>&1 </dev/null &
	pid=$!
	sleep "0.$(printf %03d "$ms")"
	# timeout's child, or nobody any more
	pkill -KILL -P "$pid" 2>"$T/null"
	wait "$pid" 2>"$T/null"
done
# shellcheck disable=SC2317 # by wait_for
settled() {
	[ -z "$(timeout 20 dsec-ps </dev/null |
		jq -r 'select(.state == "creating").sandbox')" ]
}
wait_for 10 settled
run timeout 20 dsec-pause --stop --grace 0 --label killed=1
run timeout 60 dsec-doctor --fix
run timeout 20 dsec-fork --list
is "$(field "$out" .count) $(snaps)" "0 0" "no snapshot of a killed dsec-fork"
is "$(inside k 'echo well')" well "its source is well"
timeout 60 dsec-fork k --fs-only --count 60 --label stopped=1 --jobs 1 \
	>"$T/int" 2>"$T/null" </dev/null &
pid=$!
# shellcheck disable=SC2317 # by wait_for
two() {
	[ "$(wc -l <"$T/int")" -ge 2 ]
}
wait_for 30 two
pkill -TERM -P "$pid"
wait "$pid"
is "$(jq -s 'map(select(.ok|not).error.code)|unique|join(" ")' -r "$T/int") $(jq -s length "$T/int")" \
	"cancelled 60" "interrupted: what was not begun is told"
is "$(timeout 20 dsec-ps --label stopped=1 </dev/null | wc -l)" \
	"$(jq -s 'map(select(.ok))|length' "$T/int")" \
	"and exactly what was told is there"
timeout 30 dsec-pause --stop --grace 0 --project root >"$T/null" </dev/null

# --- no room ------------------------------------------------------------------

# On old kernels ids are not mapped on tmpfs.  In a mount namespace of its own:
# one that is made meanwhile has a copy of every mount, and keeps the device.
cat >"$T/small.sh" <<-'EOT'
	T=$1
	export DSEC_LIB="$T/small"
	inside() {
		timeout 60 dsec-exec "$1" -- /bin/sh -c "$2" </dev/null
	}
	mkdir "$DSEC_LIB"
	truncate -s 14M "$T/small.img"
	mke2fs -q -t ext4 -O ^has_journal "$T/small.img" 2>"$T/null" &&
		mount -o loop "$T/small.img" "$DSEC_LIB" 2>"$T/null" ||
		mount -t tmpfs -o size=12m small "$DSEC_LIB" || exit 9
	# A stop is answered when nothing runs; the rest goes behind it.
	trap 'n=0; until umount "$DSEC_LIB" 2>"$T/null" || [ $n -gt 99 ]; do
		n=$((n + 1)); sleep 0.1; done' EXIT
	dsec-run -n full --detach -- true >"$T/full" </dev/null || exit 8
	inside full 'dd if=/dev/zero of=/root/big bs=1M count=7 2>/dev/null'
	timeout 30 dsec-fork full --fs-only >"$T/nospace" </dev/null
	echo "$? $(jq -r .error.code "$T/nospace") $(inside full 'echo well')" \
		"$(find "$DSEC_LIB/snap" -mindepth 1 -maxdepth 1 ! -name name | wc -l)"
	timeout 20 dsec-pause --stop --grace 0 full >"$T/null" </dev/null
EOT
unshare -m sh "$T/small.sh" "$T" >"$T/small.out" 2>&1
is "$(cat "$T/small.out")" "71 no_space well 0" \
	"a full disk: refused, the source goes on, nothing stays"
leak_check
done_testing
