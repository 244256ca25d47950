#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# File operations in a real sandbox: records, --cp, and what an agent plants.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq tar prlimit
tree_new
cd "$T" || exit 1
echo "host secret" >"$T/canary"
chmod 600 "$T/canary"

leak_start
run dsec-run --detach -n a --memory 256M -- sleep 1000
[ "$status" -eq 0 ] || plan_skip_all "no sandbox can be launched: $err"

# A request: KEY=VALUE words become a record; $out is the answer.
op() {
	out=$(jq -cn '[$ARGS.positional[] | capture("^(?<k>[^=:]+)(?<t>:?)=(?<v>.*)$"; "p") |
		{(.k): (if .t == ":" then (.v | fromjson) else .v end)}] |
		add + {sandbox: "a"}' --args "$@" | timeout 60 dsec-exec 2>"$T/.err")
}
code() { field "$out" '.error.code // "none"'; }
inside() { timeout 60 dsec-exec a -- sh -c "$1"; }

# --- records
op op=write path=/tmp/x/y "data=$(printf 'line\n€')" parents:=true mode=0640
id=$(timeout 60 dsec-ps a | jq -r .sandbox)
json_is "$out" '{"id":1,"sandbox":"'"$id"'","ok":true,"size":8}' \
	"write; records have the sandbox's id, not its name"
op op=read path=/tmp/x/y; is "$(field "$out" .data)" "$(printf 'line\n€')" "read"
op op=read path=/tmp/x/y offset:=5 limit:=3; is "$(field "$out" .data)" '€' \
	"read a part"
op op=write path=/tmp/b data_b64="$(printf '\0\377' | base64)"
op op=read path=/tmp/b; is "$(field "$out" .data_b64)" AP8= "bytes"
op op=stat path=/tmp/x/y
json_is "$out" '["y","file",8,"0640",0]' "stat" '[.name,.type,.size,.mode,.uid]'
op op=mkdir path=/tmp/x/d mode=0711
op op=list path=/tmp/x
json_is "$out" '[["d","0711"],["y","0640"]]' "mkdir, list" \
	'[.entries[] | [.name,.mode]]'
op op=move path=/tmp/x/y to=/tmp/x/d/z; is "$(code)" none "move"
op op=remove path=/tmp/x; is "$(code)" not_empty "remove what is not empty"
op op=remove path=/tmp/x recursive:=true; is "$(code)" none "recursive"
head -c 700000 /dev/zero | tr '\0' '\001' >"$T/ctl"
jq -cRs '{op:"write",sandbox:"a",path:"/tmp/ctl",data_b64:@base64}' "$T/ctl" |
	dsec-exec >"$T/.out"
json_is "$(cat "$T/.out")" '[true,700000]' "700,000 bytes in a record" '[.ok,.size]'
op op=read path=/tmp/ctl
is "$(field "$out" .data_b64 | base64 -d | cmp - "$T/ctl" 2>&1)" "" "and out"
op op=put path=/tmp/ctl2 source="$T/ctl" ; is "$(code)" none "put"
inside 'cat /tmp/ctl /tmp/ctl2 >/tmp/big'
op op=read path=/tmp/big; is "$(code)" too_large "what is too big says so"
op op=get path=/tmp/big target="$T/big"
is "$(code) $(stat -c %s "$T/big")" "none 1400000" "get"
op op=write path_b64="$(printf '/tmp/\377' | base64)" data=odd
op op=list path=/tmp
is "$(field "$out" '.entries[].name_b64 // empty')" /w== "a name that is not UTF-8"
op op=read path_b64="$(printf '/tmp/\377' | base64)"; is "$(field "$out" .data)" \
	odd "as a path"

# --- a key: done once
op op=mkdir path=/tmp/once key=k1; json_is "$out" '[true,null]' "with a key" \
	'[.ok,.repeated]'
inside 'rmdir /tmp/once'
op op=mkdir path=/tmp/once key=k1; json_is "$out" '[true,true]' "repeated" \
	'[.ok,.repeated]'
isnt "$(inside 'ls -d /tmp/once 2>/dev/null')" /tmp/once "and not done again"
op op=mkdir path=/tmp/other key=k1; is "$(code)" key_conflict "of another request"
op op=write path=/tmp/k data=a key=k2
op op=write path=/tmp/k data=b key=k2; is "$(code)" key_conflict "of other data"
op op=move path=/none to=/none2 key=k3
op op=move path=/none to=/none2 key=k3; is "$(code)" not_found \
	"a failure is repeated as it was"
op op=put path=/tmp/kput source=/etc/hostname key=k4
op op=put path=/tmp/kput source=/etc/hostname key=k4
json_is "$out" '[true,true]' "a copy" '[.ok,.repeated]'
op op=put path=/tmp/kput source=/etc/hosts key=k4
is "$(code)" key_conflict "of another source"

# --- errors have their own codes (field report 31)
for c in "read /none not_found" "stat /none not_found" "list /none not_found" \
	"remove /none not_found" "read /tmp is_directory" \
	"list /etc/passwd not_directory" "read /dev/zero not_regular"; do
	# shellcheck disable=SC2086
	set -- $c
	op op="$1" path="$2"; is "$(code)" "$3" "$1 $2: $3"
done
op op=write path=/usr/x data=x; is "$(code)" read_only "write to a read-only mount"
unlike "$(cat "$T/.err")" . "and nobody is shouted at"
op op=write path=/tmp/m data=x mode=9; is "$(code)" bad_value "mode 9"
op op=write path=/tmp/m; is "$(code)" missing_field "write without data"

# --- there at once, and whole (field report 23)
i=0
while [ $i -lt 100 ]; do
	i=$((i + 1))
	printf '{"id":"w","op":"write","sandbox":"a","path":"/tmp/d%d/f","data":"content %d","parents":true}\n' $i $i
	printf '{"id":"r%d","sandbox":"a","command":["cat","/tmp/d%d/f"]}\n' $i $i
done | dsec-exec --jobs 1 >"$T/.out"
is "$(jq -r 'select(.id != "w") | .stdout' "$T/.out" | uniq | wc -l) $(
	jq -c .ok "$T/.out" | sort | uniq -c | tr -s ' ')" "100  200 true" \
	"100 files written, each there for the next command" || diag "$(head -3 "$T/.out")"

# --- a confused deputy (field report 25)
inside "mkdir -p /tmp/p && cd /tmp/p && chmod 777 . && ln -s /etc/shadow l &&
	ln -s / r && mkfifo f && ln -s /proc/1/root q && ln -s $T/canary c &&
	ln -s /proc/self/fd/0 fd0 && mkdir d && echo inside >/etc/mine &&
	chmod 600 /etc/mine"
for user in 0 1000:1000; do
	for c in "/tmp/p/f not_regular" "/tmp/p/c not_found" \
		"/tmp/p/r$T/canary not_found" "/tmp/p/fd0 not_regular" \
		"/tmp/p/q$T/canary permission" "/tmp/p/q/etc/passwd permission"; do
		op op=read user="$user" path="${c% *}"
		is "$(code)" "${c#* }" "as $user: read ${c% *}: ${c#* }"
	done
	op op=write user="$user" path=/tmp/p/f data=x
	is "$(code)" not_regular "as $user: a FIFO is no place to write to"
	op op=write user="$user" path="/tmp/p/q$T/canary" data=x
	is "$(code)" permission "as $user: nor pid 1's root"
	op op=write user="$user" path=/tmp/p/fd0 data=x
	is "$(code)" bad_path "as $user: nor a link of /proc"
done
op op=read user=1000:1000 path=/etc/mine; is "$(code)" permission \
	"the user's own rights: read"
op op=write user=1000:1000 path=/tmp/p/r/etc/mine data=x
is "$(code)" permission "write through a link"
op op=remove user=1000:1000 path=/etc/mine; is "$(code)" permission "remove"
op op=list user=1000:1000 path=/root; is "$(code)" permission "list"
is "$(inside 'cat /etc/mine')" inside "nothing has changed"
op op=write path=/tmp/p/r/tmp/by-root data=x
is "$(inside 'cat /tmp/by-root')" x "a link to / is the sandbox's own root"
# A directory that becomes a link to outside and back, all the time.
inside 'cd /tmp/p; mkdir -p s/real s/keep; echo ok >s/real/f; touch races
	while [ -e races ]; do mv -T s/real s/hold; ln -s / s/real; rm s/real
	mv -T s/hold s/real; done' >/dev/null 2>&1 &
racer=$!
for i in $(seq 100); do
	printf '{"op":"read","sandbox":"a","path":"/tmp/p/s/real/f"}\n'
	printf '{"op":"write","sandbox":"a","user":"1000:1000","path":"/tmp/p/s/real/etc/x%d","data":"x"}\n' "$i"
	printf '{"op":"list","sandbox":"a","path":"/tmp/p/s/real","depth":3,"limit":50}\n'
done | timeout 100 dsec-exec --jobs 4 >"$T/.out"
is "$(jq -c 'select(.ok | not) | .error.code' "$T/.out" |
	grep -Ev '"(not_found|permission|not_directory|read_only|bad_path)"')" "" \
	"a racing rename: clean answers only"
is "$(grep -c '"id"' "$T/.out")" 300 "to every request"
inside 'rm /tmp/p/races'
wait $racer
inside 'rm -rf /tmp/p/s'
is "$(cat "$T/canary")" "host secret" "the host's file is as it was"
is "$(find /etc /root -maxdepth 1 -newer "$T/canary" -name 'x[0-9]*')" "" \
	"and nothing is new there"

# --- copies: names as docker cp has them
mkdir -p src/sub; echo one >src/f1; echo two >src/sub/f2
cp1() { timeout 60 dsec-exec --cp "$@" >"$T/.out" 2>"$T/.err"; status=$?; err=$(cat "$T/.err"); }
cp1 src/f1 a:/tmp/c1; is "$(inside 'cat /tmp/c1')" one "a file to a new name"
inside 'mkdir /tmp/into'
cp1 src/f1 a:/tmp/into; is "$(inside 'cat /tmp/into/f1')" one "into a directory"
cp1 src a:/tmp/new; is "$(inside 'cat /tmp/new/sub/f2')" two \
	"a directory to a new name"
cp1 src a:/tmp/into; is "$(inside 'cat /tmp/into/src/sub/f2')" two \
	"a directory into one"
cp1 src/. a:/tmp/into; is "$(inside 'cat /tmp/into/sub/f2')" two \
	"what is in a directory"
cp1 src a:/tmp/c1; isnt "$status" 0 "a directory onto a file"
like "$err" "no directory" "says why"
cp1 a:/tmp/new out1; is "$(cat out1/sub/f2)" two "out, to a new name"
mkdir out2
cp1 a:/tmp/new out2; is "$(cat out2/new/sub/f2)" two "into a directory"
cp1 a:/tmp/new/. out2; is "$(cat out2/sub/f2)" two "what is in it"
cp1 a:/tmp/c1 out2/name; is "$(cat out2/name)" one "a file"
cp1 a:/tmp/none out3; is "$status" 1 "nothing there: 1"
[ ! -e out3 ]; ok $? "and nothing made"
cp1 src/none a:/tmp/x; is "$status" 1 "nothing here"
cp1 src b:/x; isnt "$status" 0 "no such sandbox"
cp1 src out; is "$status" 64 "no sandbox at all: 64"
dsec-exec --cp a:/tmp/new - | tar tf - | sort >"$T/.l"
is "$(tr '\n' ' ' <"$T/.l")" "new/ new/f1 new/sub/ new/sub/f2 " "to a tar stream"
inside 'mkdir /tmp/fromtar'
tar -C src -c . | dsec-exec --cp - a:/tmp/fromtar
is "$(inside 'cat /tmp/fromtar/sub/f2')" two "from a tar stream"

# --- what is hostile in it, and what only looks so (field report 26, field report 27)
inside 'mkdir -p /tmp/h/sub && cd /tmp/h && ln -s /etc/passwd abs &&
	ln -s ../../../x up && mkfifo fifo && echo x >./--checkpoint-action=exec=sh &&
	echo s >suid && chmod 4755 suid && echo g >good && ln good sub/hard'
cp1 a:/tmp/h h
is "$status" 1 "a FIFO does not come out: 1"
like "$err" "fifo" "and is named"
is "$(cat h/good) $(readlink h/abs) $(readlink h/up)" \
	"g /etc/passwd ../../../x" "the rest is there, links as links"
is "$(stat -c '%a %U' h/suid)" "755 root" "without set-ID bits"
is "$(stat -c %h h/good)" 2 "hard links as hard links"
op op=get path=/tmp/h target="$T/h2"
json_is "$out" '["refused_entries",["h2/fifo"],1]' "in a record: listed" \
	'[.error.code,[.refused[].path],.refused_count]'
mkdir -p rt/dir; (
	cd rt || exit 1
	echo a >a; ln -s a rel; ln -s "$T/rt/dir" abs; ln -s none dangling
	ln -s dir todir; ln a dir/hard; chmod 750 dir; : >"odd name
here"
	touch -d '2001-02-03 04:05:06.789012345Z' a dir
)
tar -C rt -cf rt.tar .
cp1 rt a:/tmp/rt; is "$status" 0 "links of every kind go in"
is "$(inside 'cd /tmp/rt; readlink rel abs dangling todir; cat rel' | tr '\n' ' ')" \
	"a $T/rt/dir none dir a " "as they are"
cp1 a:/tmp/rt rt2; is "$status" 0 "and out again"
is "$(tar --compare -f rt.tar -C rt2 2>&1)" "" "the same tree"

# --- sizes (field report 29)
: >zero; printf x >onebyte; truncate -s 100G sparse
printf data | dd of=sparse bs=1M seek=50000 conv=notrunc status=none
head -c 100000000 /dev/zero | tr '\0' z >plain
cp1 zero a:/tmp/zero; cp1 onebyte a:/tmp/onebyte; cp1 sparse a:/tmp/sparse
is "$status" 0 "100 GB with a hole go in" || diag "$err"
is "$(inside 'stat -c %s /tmp/zero /tmp/onebyte /tmp/sparse; du -m /tmp/sparse | cut -f1' |
	tr '\n' ' ')" "0 1 107374182400 1 " "as little as they hold"
cp1 a:/tmp/sparse sparse2
is "$(stat -c %s sparse2) $(($(du -m sparse2 | cut -f1) < 4)) $(
	dd if=sparse2 bs=1M skip=50000 count=1 status=none | head -c 4)" \
	"107374182400 1 data" "and out"
prlimit --as=134217728 dsec-exec --cp plain a:/tmp/plain 2>"$T/.err"
is "$?" 0 "100 MB in 128 MiB of address space" || diag "$(cat "$T/.err")"
prlimit --as=134217728 dsec-exec --cp a:/tmp/plain plain2 2>"$T/.err"
cmp plain plain2; ok $? "and out, the same"
rm -f plain plain2 sparse sparse2
inside 'rm -f /tmp/plain /tmp/sparse'

# --- 64 at once into a new tree (field report 30)
for i in $(seq 64); do
	echo "$i" >"src/n$i"
	dsec-exec --cp "src/n$i" "a:/new/deep/dir/n$i" 2>>"$T/.par" &
	[ $((i % 16)) -ne 0 ] || wait
done
wait
is "$(inside 'cat /new/deep/dir/* | sort -n | uniq | wc -l') $(cat "$T/.par")" \
	"64 " "64 copies make one new tree"

# --- mounts (field report 33)
cp1 src/f1 a:/dev/shm/f; is "$(inside 'cat /dev/shm/f')" one \
	"a copy under a mount is in the mount"
op op=move path=/dev/shm/f to=/tmp/moved; is "$(inside 'cat /tmp/moved')" one \
	"and moves out of it"

mkdir -p allowed/data
echo lent >allowed/data/f
echo "$T/allowed" >"$DSEC_CONFIG/mounts.allow"
for profile in sealed nested; do
	printf '{"name":"%s","profile":"%s","memory_limit_mb":64,"mounts":[{"source":"%s","target":"/mnt"}]}\n' \
		$profile $profile "$T/allowed/data" | dsec-run >"$T/.out"
	ops=$(for o in '"write","path":"/tmp/x","data":"y"' '"read","path":"/tmp/x"' \
		'"read","path":"/mnt/f"' '"write","path":"/mnt/f","data":"z"' \
		'"read","path":"/proc/1/root/etc/passwd"'; do
		printf '{"sandbox":"%s","op":%s}\n' $profile "$o"
	done | dsec-exec --jobs 1 | jq -c '.data // .error.code // .ok')
	is "$(printf '%s\n' "$ops" | tr '\n' ' ')" \
		'true "y" "lent\n" "read_only" "permission" ' \
		"profile $profile: a mount, too" || diag "$(cat "$T/.out")"
	cp1 src "$profile:/tmp/src"; cp1 "$profile:/tmp/src" "from-$profile"
	is "$(diff -r src "from-$profile" 2>&1)" "" "profile $profile: copies"
	dsec-pause --stop "$profile" </dev/null >"$T/.out"
done
is "$(cat allowed/data/f)" lent "what was lent is as it was"

# --- a full disk (field report 35)
inside 'dd if=/dev/zero of=/dev/shm/fill bs=1M' 2>/dev/null
op op=write path=/dev/shm/more data="$(head -c 100000 /dev/zero | tr '\0' x)"
is "$(code)" no_space "a full disk: no_space"
head -c 2000000 /dev/zero >two
cp1 two a:/dev/shm/two; is "$status" 71 "copy to it: 71"
like "$err" "No space" "says why"
is "$(inside 'ls -A /dev/shm')" fill "nothing half is left"
inside 'rm /dev/shm/fill'
op op=write path=/dev/shm/more data=x; is "$(code)" none "and it goes on"
mkdir small
mount -t tmpfs -o size=1m tmpfs small && {
	inside 'head -c 3000000 /dev/zero >/tmp/three'
	cp1 a:/tmp/three small/three; is "$status" 71 "a full disk of the host: 71"
	is "$(ls -A small)" "" "nothing half is left"
	umount small
}

# --- a client that dies, a helper that is stopped
mkfifo hold
dsec-exec --cp - a:/tmp/fromtar <hold &
client=$!
exec 7>hold
{
	head -c 100000 /dev/zero >half
	tar -cf - half | head -c 50000
} >&7
# shellcheck disable=SC2317 # called by wait_for
helper_writes() { inside 'ls -A /tmp/fromtar' | grep -q '^\.dsec-'; }
wait_for 5 helper_writes
ok $? "a copy is under way"
kill -KILL $client
wait $client 2>/dev/null
exec 7>&-
# shellcheck disable=SC2317
helper_cleaned() { ! helper_writes; }
wait_for 5 helper_cleaned
ok $? "its client dies: nothing half is left"
is "$(inside 'ls /tmp/fromtar/half 2>&1' | grep -c "No such")" 1 "nor the name"
# One that has little CPU, so that its copy is not over before it is seen.
timeout 30 dsec-run --detach -n snail --memory 256M --cpu 0.05 -- sleep 1000 \
	>"$T/.out"
timeout 60 dsec-exec snail -- sh -c 'head -c 100000000 /dev/zero >/tmp/slow'
mkdir slowly
dsec-exec --cp snail:/tmp/slow slowly/f 2>"$T/.err" &
client=$!
# shellcheck disable=SC2317,SC2010
half_here() { ls -A slowly | grep -q '^\.dsec-'; }
wait_for 30 half_here && kill -TERM $client
wait $client
is "$? $(find slowly -type f)" "1 " "a signal: nothing half is left here"
timeout 30 dsec-pause --stop --grace 0 snail >"$T/.out"
printf '%s\n' '{"op":"watch","sandbox":"a","path":"/tmp","deadline_ms":4000}' |
	timeout 30 dsec-exec >"$T/.w" &
wait_for 5 grep -q watching "$T/.w"
# shellcheck disable=SC2016
inside 'for p in /proc/[0-9]*; do
	grep -q dsec-file $p/comm && kill -STOP ${p#/proc/}; done; true' 2>/dev/null
wait $!
is "$(tail -n 1 "$T/.w" | jq -r .error.code)" deadline \
	"a helper that is stopped inside: the deadline holds"
# shellcheck disable=SC2317
helper_gone() { [ -z "$(inside 'grep -l dsec-file /proc/[0-9]*/comm' 2>/dev/null)" ]; }
wait_for 10 helper_gone
ok $? "and it is gone"

# --- watch
printf '%s\n' '{"op":"watch","sandbox":"a","path":"/tmp/into","recursive":true,"timeout_ms":4000}' |
	dsec-exec >"$T/.w" &
wait_for 5 grep -q watching "$T/.w"
inside 'mkdir /tmp/into/w'
wait_for 5 grep -q created "$T/.w"
inside 'cd /tmp/into; echo 1 >w/f; mv w/f g; rm g'
wait
is "$(jq -r 'select(.event) | .event' "$T/.w" | uniq | tr '\n' ' ')" \
	"watching created modified moved removed " "watch" || diag "$(cat "$T/.w")"
json_is "$(tail -n 1 "$T/.w")" true "and its end" .ok

run dsec-pause --stop a
is "$status" 0 "stop"
op op=read path=/etc/passwd
like "$(code)" "stopped|sandbox_unknown" "and a clean answer after it"
leak_check "nothing is left behind"
done_testing
