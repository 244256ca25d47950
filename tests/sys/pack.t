#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dsec-img pack: what a sandbox changed becomes a layer, whoever is killed when.
# What an upper may hold is tested in tests/unit/pack_upper.c.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq socat strace busybox

tree_new
state() {
	field "$(dsec-ps "$1" </dev/null)" .state
}
# shellcheck disable=SC2317 # wait_for calls it
is_running() {
	[ "$(state "$1")" = running ]
}
inside() { # SANDBOX COMMAND
	dsec-exec "$1" --cmd "$2" </dev/null >"$T/.inside" ||
		diag "inside $1: $(cat "$T/.inside")"
}
tags() {
	dsec-img ls </dev/null | jq -r 'select(.name) | .name' | tr '\n' ' '
}

# A base of our own, so that there are layers to pack on.
mkdir -p "$T/base/bin" "$T/base/etc" "$T/base/root" "$T/base/tmp" \
	"$T/base/proc" "$T/base/dev" "$T/base/old" "$T/base/gone"
cp "$(command -v busybox)" "$T/base/bin/busybox"
ln -s busybox "$T/base/bin/sh"
for tool in cat chmod chown cp dd echo ln ls mkdir mv rm rmdir sleep stat touch; do
	ln -s busybox "$T/base/bin/$tool"
done
echo root:x:0:0:root:/root:/bin/sh >"$T/base/etc/passwd"
echo old >"$T/base/old/file"
echo gone >"$T/base/gone/file"
run dsec-img import "dir:$T/base" --as root/base:1 --kind base
is "$status" 0 "a base" || diag "$err$out"
base=$(field "$out" .digest)

leak_start
run dsec-run --name a --memory 64 --image root/base:1
is "$status" 0 "a sandbox on it" || diag "$err$out"
id=$(field "$out" .sandbox)

# --- what it changed ---------------------------------------------------------

# shellcheck disable=SC2016 # for the shell inside
inside a '
	cp /bin/busybox /root/copy; echo hello > /root/new; ln /root/new /root/ln
	chown 1000:100 /root/new; chmod 4755 /root/copy
	rm /old/file; rm -r /gone; mkdir /gone; echo y > /gone/new
	mkdir -p /root/.cache/pip /root/.ssh; echo c > /root/.cache/pip/x
	echo k > /root/.ssh/id_rsa; echo h > /root/.ash_history; echo t > /tmp/t
	echo "AKIAABCDEFGHIJKLMNOP" > /root/notes; mkdir /open; chmod 777 /open'
run dsec-img pack a --as root/a:1 -e X=1 -w /root
is "$status" 0 "it is packed" || diag "$err$out"
packed=$out
json_is "$packed" '[true,"workspace","root/a:1",1,1]' "the answer" \
	'[.ok,.kind,.name,.whiteouts,.opaques]'
is "$(field "$packed" '[.removed[] | .rule + " " + .path] | sort | join(",")')" \
	"cache root/.cache/pip,history root/.ash_history,ssh root/.ssh/id_rsa,tmp tmp/t" \
	"residue is told"
is "$(state a)" running "and runs again"
ok "$([ "$(field "$packed" .new_bytes)" -le 65536 ]; echo $?)" \
	"what the base has is not stored again"
run dsec-img inspect root/a:1
json_is "$out" "[[\"$base\"],\"sandbox\",\"$id\",{\"X\":\"1\"},\"/root\"]" \
	"the manifest" '[.parents,.source.type,.source.name,.config.env,.config.workdir]'
run dsec-img verify --data root/a:1
is "$status" 0 "it verifies" || diag "$out"

run dsec-run --name b --memory 64 --image root/base:1 --layer root/a:1
is "$status" 0 "a sandbox on both" || diag "$err$out"
# shellcheck disable=SC2016
run dsec-exec b -- sh -c '
	cat /root/new /root/ln; stat -c "%u:%g %h" /root/new; stat -c %a /root/copy
	ls /old /gone /tmp /root/.ssh /root/.cache; echo "$X $PWD"'
is "$out" "hello
hello
1000:100 2
4755
/gone:
new

/old:

/root/.cache:

/root/.ssh:

/tmp:
1 /root" "sees what the first one made, and not what it removed" || diag "$err"

# --- rules -------------------------------------------------------------------

run dsec-img pack a --as root/a:2 --keep ssh --keep history
is "$(field "$out" '[.removed[].rule] | sort | join(",")')" "cache,tmp" \
	"rules can be turned off"
run dsec-img pack a --as root/a:3 --residue list
is "$(field "$out" '.removed_count')" 4 "residue can be listed"
run dsec-img diff root/a:1 root/a:3
is "$(field "$out" 'select(.change=="added") | .path' | tr '\n' ' ')" \
	"root/.ash_history root/.cache/pip root/.cache/pip/x root/.ssh/id_rsa tmp/t " \
	"and is in the layer then"
run dsec-img pack a --dry-run
is "$(field "$out" '[.ok,.removed_count,.digest]|tojson')" '[true,4,null]' \
	"a dry run packs nothing"
run dsec-img pack a --as root/a:4 --keep nonsense
json_is "$out" '"bad_value"' "an unknown rule is an error" .error.code
run dsec-img lint root/a:3 --strict
is "$status" 1 "lint --strict is not content"
is "$(field "$out" 'select(.event) | .rule' | sort -u | tr '\n' ' ')" \
	"cache history secret setuid ssh tmp world-writable " "with what it found"
run dsec-img lint root/base:1 --strict
is "$status" 0 "a base without findings is fine" || diag "$out"

# --- who it may be -----------------------------------------------------------

run dsec-pause a
run dsec-img pack a --as root/a:5
is "$(state a)" paused "one that was paused stays paused"
run dsec-img pack nobody --as root/x:1
json_is "$out" '"sandbox_unknown"' "nobody" .error.code
run dsec-img pack a
json_is "$out" '"missing_field"' "without a name" .error.code
run dsec-pause --resume a

# --- somebody resumes it meanwhile -------------------------------------------

(dsec-img pack a --as root/a:6 </dev/null >"$T/undisturbed" 2>&1)
strace -o "$T/trace" -e trace=flistxattr \
	-e inject=flistxattr:delay_enter=3000000:when=1 \
	"$BIN/dsec-img" pack a --as root/a:7 </dev/null >"$T/disturbed" 2>&1 &
pid=$!
# shellcheck disable=SC2317 # wait_for calls it
is_paused() {
	[ "$(state a)" = paused ]
}
wait_for 10 is_paused
ok $? "it stands still while it is packed"
inside a 'echo more >> /root/new'
wait "$pid"
json_is "$(cat "$T/disturbed")" '"busy"' "an operation meanwhile is noticed" \
	.error.code
is "$(field "$(cat "$T/undisturbed")" .ok)" true "and only then"

# --- hold --------------------------------------------------------------------

mkfifo "$T/in"
run dsec-run --name ttl --memory 64 --ttl-paused 1s
strace -o "$T/trace" -e trace=flistxattr \
	-e inject=flistxattr:delay_enter=2000000:when=1 \
	"$BIN/dsec-img" pack ttl --as root/ttl:1 </dev/null >"$T/ttl" 2>&1
is "$(field "$(cat "$T/ttl")" .ok),$(state ttl)" true,running \
	"the time it may be paused is not counted"
dsec-pause --stop --grace 0 ttl </dev/null >/dev/null
sock=$DSEC_RUN/sb/$id/ctl.sock
socat -t 60 - "UNIX-CONNECT:$sock" <"$T/in" >"$T/hold" &
pid=$!
exec 5>"$T/in"
echo '{"id":1,"op":"hold"}' >&5
wait_for 10 grep -q paused "$T/hold"
ok $? "hold: it is paused"
echo '{"id":2,"op":"inspect"}' >&5
wait_for 10 grep -q '"id":2' "$T/hold"
is "$(state a)" paused "asking does not resume it"
kill -KILL "$pid"
wait_for 10 is_running a
ok $? "it runs again when the holder is killed"
exec 5>&-
# The holder goes in the very moment in which the supervisor is replaced.
socat -t 60 - "UNIX-CONNECT:$sock" <"$T/in" >"$T/hold" &
pid=$!
exec 5>"$T/in"
echo '{"id":1,"op":"hold"}' >&5
wait_for 10 grep -q paused "$T/hold"
box=$(jq .supervisor_pid "$DSEC_RUN/sb/$id/state.json")
kill -STOP "$box"
wait_for 10 grep -q '^State:.T' "/proc/$box/status"
kill -HUP "$box"
kill -KILL "$pid"
wait "$pid" 2>/dev/null
kill -CONT "$box"
# Not asked: any question would have it look again.
wait_for 10 grep -q '"running"' "$DSEC_RUN/sb/$id/state.json"
ok $? "it runs again when the holder goes during an upgrade"
grep -q -e --state "/proc/$box/cmdline"
ok $? "which there was"
exec 5>&-
socat -t 60 - "UNIX-CONNECT:$sock" <"$T/in" >"$T/hold" &
exec 5>"$T/in"
echo '{"id":1,"op":"hold"}' >&5
wait_for 10 grep -q paused "$T/hold"
dsec-pause a </dev/null >/dev/null
exec 5>&-
wait $!
is "$(state a)" paused "one paused for good meanwhile stays so"
dsec-pause --resume a </dev/null >/dev/null

# --- killed, at points of it -------------------------------------------------

before=$(tags)
inside a 'dd if=/bin/busybox of=/root/changed bs=1000 skip=1 count=800 2>&1'
killed=0
bad=''
for point in syncfs:1 syncfs:2 openat:60 flistxattr:5 pread64:8 writev:1 \
	fsync:1 fsync:2 fsync:4 fsync:6 fsync:8 renameat:1 renameat2:1 linkat:1 \
	linkat:2 linkat:3 unlinkat:1; do
	strace -o "$T/trace" -e "trace=${point%:*}" \
		-e "inject=${point%:*}:signal=KILL:when=${point#*:}" \
		"$BIN/dsec-img" pack a --as "root/kill:$killed" \
		</dev/null >"$T/killed" 2>&1
	grep -q 'killed by SIGKILL' "$T/trace" || continue
	killed=$((killed + 1))
	wait_for 10 is_running a || bad="$bad $point(frozen)"
done
is "$bad" "" "whoever packs it is killed, and it runs"
ok "$([ "$killed" -ge 8 ]; echo $?)" "at $killed points"
run dsec-img verify --all --data
is "$status" 0 "no name leads to half a layer" || diag "$out"
for tag in $(tags); do
	case $tag in
	root/kill:*) dsec-img rm "$tag" </dev/null >/dev/null ;;
	esac
done
is "$(tags)" "$before" "no other name is gone or changed"

# --- no room -----------------------------------------------------------------

mkdir "$T/small"
mount -t tmpfs -o size=1m none "$T/small"
run dsec-run --name c --memory 64
inside c 'dd if=/dev/urandom of=/root/big bs=1M count=4 2>&1'
run dsec-img pack c --as root/full:1 --store "$T/small/store"
json_is "$out" '"no_space"' "a full store" .error.code
is "$(find "$T/small/store/tag" "$T/small/store/tmp" "$T/small/store/blob" -type f)" \
	"" "nothing of it is left"
wait_for 10 is_running c
ok $? "and it runs again"
dsec-pause --stop --grace 0 c </dev/null >/dev/null
umount "$T/small"

# --- a store of somebody else ------------------------------------------------

run dsec-img pack a --as root/mine:1
mine=$out
chown -R nobody "$DSEC_LIB/img/store"
run dsec-img pack a --as root/mine:2
source=$(field "$out" .inbox)
like "$source" '^inbox:[^/]+/root\.mine\.2$' "a runner leaves it in its inbox"
chown -R 0 "$DSEC_LIB/img/store"
run dsec-img import "$source" --as root/mine:2
is "$status" 0 "from where a builder imports it" || diag "$out$err"
run dsec-img diff root/mine:1 root/mine:2
json_is "$out" '[0,0,0]' "the same layer" '[.added,.removed,.changed]'
is "$(dsec-img inspect root/mine:1 </dev/null | jq -c '[.parents,.source.name,.kind]')" \
	"$(dsec-img inspect root/mine:2 </dev/null | jq -c '[.parents,.source.name,.kind]')" \
	"on the same base, of the same sandbox"
is "$(find "$DSEC_LIB/img/pack" -mindepth 1)" "" "the node keeps nothing of it"
is "$(field "$mine" .ok)" true "as the builder packed it"

# --- those without a supervisor ----------------------------------------------

dsec-pause --stop --grace 0 b </dev/null >/dev/null
run dsec-img pack "$id" --as root/late:1
is "$(field "$out" .ok)" true "by id as by name"
dsec-pause --stop --grace 0 a </dev/null >/dev/null
run dsec-img pack "$id" --as root/late:2
json_is "$out" '"stopped"' "one that ended" .error.code
leak_check
done_testing
