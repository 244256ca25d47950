#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whoever dies, hangs or is missing while a sandbox comes back or is copied: what
# was good before is good afterwards, and nothing else is left (field report 47,
# field report 62, field report 70).
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
need_root
need_tools jq busybox unshare
tree_new
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"
matrix_image || plan_skip_all "no image"

# The engine by way of a script, which does the verb that $T/hang names in part
# ("half") or not at all, says so in $T/hangs, and stays.
real=$(jq -r .engine.path "$DSEC_RUN/engine.json")
top=${real%/usr/sbin/criu}
set -- "$top"/usr/lib*/ld-linux-*
if [ "$top" != "$real" ] && [ -x "$1" ]; then
	real="$1 --library-path $(echo "$top"/usr/lib/*-linux-gnu) $real"
fi
cat >"$T/stub" <<STUB
#!/bin/sh
read -r verb how <$T/hang
case \$verb-\$how in
\$1-half)
	$real "\$@" &
	sleep 0.3
	kill -STOP \$!
	;;
\$1-*) ;;
*) exec $real "\$@" ;;
esac
echo \$\$ >$T/hangs.new
mv $T/hangs.new $T/hangs
exec sleep 1000
STUB
chmod 755 "$T/stub"

# The engine may take so long; it hangs in VERB, as said.
engine() { # MS [VERB [HOW]]
	printf '{"criu":"%s","timeout_ms":%s}\n' "$T/stub" "$1" \
		>"$DSEC_CONFIG/engine.json"
	rm -f "$T/hangs"
	echo "${2:--}" "${3:-}" >"$T/hang"
}
engine 60000
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"

code() {
	field "$out" 'select(.ok == false).error.code'
}
# Seen from outside, without waking it.
counted() { # ID
	cat "$DSEC_LIB/sb/$1/upper/srv/n"
}
# shellcheck disable=SC2317 # by wait_for
beyond() { # SANDBOX COUNT
	[ "$(counted "$1")" -gt "$2" ]
}
goes_on() { # ID
	goes_at=$(counted "$1")
	[ "${goes_at:-0}" -gt 0 ] && wait_for 30 beyond "$1" "$goes_at"
}
snaps() {
	find "$DSEC_LIB/snap" -mindepth 1 -maxdepth 1 ! -name name | wc -l
}

# One process, so that what there is of processes stays the same.
timeout 60 dsec-run -n src -i root/matrix:1 -m 64 --detach -- /bin/python3 -S \
	-c 'import os, time
f = os.open("/srv/n", os.O_WRONLY | os.O_CREAT)
n = 10000
while True:
    n += 1
    os.pwrite(f, b"%d" % n, 0)
    time.sleep(0.05)' >"$T/src" </dev/null
src=$(jq -r .sandbox "$T/src")
wait_for 20 test -s "$DSEC_LIB/sb/$src/upper/srv/n"
goes_on "$src"
ok $? "a source that counts"
run timeout 60 dsec-fork src --snapshot good
is "$status" 0 "a snapshot of it" || diag "$out$err"
good=$(field "$out" .snapshot)
run timeout 60 dsec-run --snapshot good -n warm --detach
run timeout 30 dsec-pause --stop --grace 0 warm
leak_start

# --- an engine that hangs in a restore ----------------------------------------

for how in "" half; do
	engine 2000 restore $how
	run timeout 60 dsec-fork --from good
	is "$status $(code)" "71 engine" \
		"an engine that hangs${how:+ half way}: a copy fails" || diag "$out"
	like "$(field "$out" .error.message)" 'not done within 2000 ms' \
		"for that reason"
done
[ -e "$T/hangs" ]
ok $? "it did hang"
leak_check "nothing is left of either"
engine 60000
run timeout 60 dsec-pause --disk src
is "$status" 0 "the source goes to the disk" || diag "$out"
engine 2000 restore half
run timeout 60 dsec-pause --resume src
is "$status $(code)" "71 engine" "the engine hangs: it does not come back" ||
	diag "$out"
is "$(dsec-ps src | jq -r '.state+" "+.level')" "paused disk" \
	"and is on the disk still"

# --- a supervisor killed while its sandbox comes back -------------------------

engine 15000 restore half # the client asks twice
timeout 60 dsec-pause --resume src >"$T/resume" 2>&1 </dev/null &
resume=$!
wait_for 30 test -s "$T/hangs"
kill -KILL "$(jq .supervisor_pid "$DSEC_RUN/sb/$src/state.json")"
wait "$resume"
isnt $? 0 "a supervisor killed meanwhile: that fails"
engine 60000
is "$(dsec-ps "$src" | jq -r '.state+" "+.level')" "paused disk" \
	"it is on the disk all the same"
# Nobody is there who would ask again.
engine 60000 restore half
dsec-pause --resume src >"$T/resume" 2>&1 </dev/null &
resume=$!
wait_for 30 test -s "$T/hangs"
kill -KILL "$resume" "$(jq .supervisor_pid "$DSEC_RUN/sb/$src/state.json")"
wait "$resume" 2>/dev/null
engine 60000
# shellcheck disable=SC2317 # by wait_for
waits() {
	[ "$(dsec-ps "$src" | jq .recovery)" = true ]
}
wait_for 20 waits
ok $? "with the client killed, too, it waits for a supervisor"
is "$(dsec-ps src | jq -r '.sandbox+" "+.state+" "+.level')" \
	"$src paused disk" "and is found by its name"
# A claim is given back from its name to itself, and who does that may be killed.
rm "$DSEC_RUN/name/src"
is "$(dsec-ps src | jq -r '.sandbox+" "+.state+" "+.level')" \
	"$src paused disk" "even if the name was given back already"
was=$(counted "$src")
is "$(timeout 60 dsec-exec src -- echo up </dev/null)" up \
	"and the next who asks has it back"
wait_for 30 beyond "$src" "$was"
ok $? "where it was"

# --- or while a snapshot is taken ---------------------------------------------

for how in "" half; do
	[ -z "$how" ] || timeout 60 dsec-run --snapshot good -n src --detach \
		>"$T/src" </dev/null
	engine 60000 dump $how
	timeout 60 dsec-fork src --snapshot good --replace >"$T/rec" \
		2>&1 </dev/null &
	fork=$!
	wait_for 30 test -s "$T/hangs"
	kill -KILL "$(dsec-ps src | jq .supervisor_pid)"
	wait "$fork"
	isnt $? 0 "killed while a snapshot is replaced${how:+, half way}: that fails"
	engine 60000
	run timeout 60 dsec-doctor --fix --only dead
	run timeout 60 dsec-fork --inspect good
	is "$(field "$out" .snapshot)" "$good" "the last good one is there"
	is "$(snaps)" 1 "and no other"
	run timeout 30 dsec-pause --stop --grace 0 src
done
run timeout 60 dsec-fork --from good --name src
is "$status" 0 "it serves" || diag "$out"
src=$(field "$out" .sandbox)
goes_on "$src"
ok $? "well"

# --- a supervisor that cannot be made of what came back -----------------------

mkdir "$T/libexec"
cp "$BIN"/../libexec/dsec/* "$T/libexec/"
run timeout 60 env DSEC_LIBEXEC="$T/libexec" dsec-run --snapshot good -n warm \
	--detach
run timeout 30 dsec-pause --stop --grace 0 warm
leak_start
timeout 60 env DSEC_LIBEXEC="$T/libexec" dsec-run --snapshot good -n own \
	--detach >"$T/own" </dev/null
own=$(jq -r .sandbox "$T/own")
timeout 60 dsec-pause --disk "$own" >"$T/paused" </dev/null
is "$(jq -r .level "$T/paused")" disk "another one on the disk"
chmod 644 "$T/libexec/dsec-box"
run timeout 60 env DSEC_LIBEXEC="$T/libexec" dsec-fork --from good
isnt "$status" 0 "no supervisor can be executed: a copy fails"
like "$(field "$out" .error.message)" 'dsec-box' "for that reason" ||
	diag "$out$err"
goes_on "$src"
ok $? "others go on"
run timeout 60 env DSEC_LIBEXEC="$T/libexec" dsec-pause --resume "$own"
isnt "$status" 0 "nor does one come back" || diag "$out"
is "$(dsec-ps "$own" | jq -r '.state+" "+.level')" "paused disk" \
	"it is on the disk still"
chmod 755 "$T/libexec/dsec-box"
run timeout 60 dsec-pause --resume "$own"
is "$status $(field "$out" .state)" "0 running" "put right, it comes back" ||
	diag "$out"
goes_on "$own"
ok $? "and goes on"
run timeout 60 dsec-pause --stop --grace 0 "$own"
leak_check "nothing is left of what failed"

# --- another processor --------------------------------------------------------

case $(uname -m) in
x86_64) feature=sse2 ;;
*) feature=asimd ;;
esac
sed "s/ $feature / /" /proc/cpuinfo >"$T/cpuinfo"
# shellcheck disable=SC2016 # the inner shell's
elsewhere() { # COMMAND...: on a node without that
	run timeout 60 unshare -m --propagation private sh -c \
		'mount --bind "$0" /proc/cpuinfo && exec "$@"' "$T/cpuinfo" "$@"
}
elsewhere dsec-fork --from good
is "$status $(code)" "1 incompatible" \
	"a processor that lacks something: no copy" || diag "$out$err"
like "$(field "$out" .error.message)" "$feature" "and that is named"
elsewhere dsec-run --snapshot good --detach
is "$status $(code)" "1 incompatible" "nor one by dsec-run" || diag "$out$err"
elsewhere dsec-fork --inspect good
like "$(field "$out" .incompatible)" "$feature" "an inspection tells"
elsewhere dsec-fork --from good --fs-only
is "$status" 0 "its files are good everywhere" || diag "$out$err"
run timeout 30 dsec-pause --stop --grace 0 --project root
run timeout 20 dsec-fork --remove good
is "$status $(snaps)" "0 0" "removed"
done_testing
