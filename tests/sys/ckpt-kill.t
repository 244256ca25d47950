#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checkpoints that go wrong: an engine or its keeper killed at any moment, a
# full disk, an engine that hangs, files that were changed.  The source runs on,
# or its end is told, and nothing is left (field report 47, field report 62).
#   KILLS=50 SEED=1 tests/sys/ckpt-kill.t, which tests/big runs
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
need_root
need_tools jq busybox pgrep awk seq
tree_new
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"

kills=${KILLS:-10}
seed=${SEED:-$$}
diag "SEED=$seed"
moments=$(awk -v n=$((kills + 3)) -v s="$seed" \
	'BEGIN { srand(s); for (i = 0; i < n; i++) print int(rand() * 1000) }')

matrix_image || plan_skip_all "no image"

# The engine by way of a script, which says who it is, and hangs when it is told
# to write below $T/hang.
real=$(jq -r .engine.path "$DSEC_RUN/engine.json")
top=${real%/usr/sbin/criu}
set -- "$top"/usr/lib*/ld-linux-*
if [ "$top" != "$real" ] && [ -x "$1" ]; then
	start="$1 --library-path $(echo "$top"/usr/lib/*-linux-gnu) $real"
else
	start=$real
fi
cat >"$T/stub" <<STUB
#!/bin/sh
case "\$*" in
*$T/hang*) exec sleep 1000 ;;
*freeze-cgroup*) echo \$\$ >$T/engine.tmp; mv $T/engine.tmp $T/engine ;;
esac
exec $start "\$@"
STUB
chmod 755 "$T/stub"
mkdir -p "$DSEC_CONFIG"
printf '{"criu":"%s"}\n' "$T/stub" >"$DSEC_CONFIG/engine.json"
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"

# A tree of six processes with memory that count.
# shellcheck disable=SC2016
job='i=0; while [ $i -lt 4 ]; do i=$((i + 1))
	(n=0; while :; do n=$((n + 1)); echo $n >/tmp/.$i
	mv /tmp/.$i /tmp/$i; sleep 0.02; done) & done
	exec python3 -c "
import time
b = bytearray(b\"x\" * 4096) * 5000
n = 0
while True:
    n += 1
    open(\"/tmp/py\", \"w\").write(str(n))
    time.sleep(0.02)
"'

begin() {
	printf '%s\n' '{"image":"root/matrix:1","memory_limit_mb":128}' |
		timeout 30 dsec-run >"$T/created" 2>"$T/.err"
	s=$(jq -r .sandbox "$T/created")
	timeout 20 dsec-exec "$s" --detach -- sh -c "$job" </dev/null \
		>/dev/null 2>&1
	init=$(dsec-ps "$s" </dev/null | jq -r .init_pid)
	wait_for 20 test -s "/proc/$init/root/tmp/py"
}

counted() {
	cat "/proc/$init/root/tmp/$1" 2>/dev/null || echo none
}

# shellcheck disable=SC2317 # by wait_for
further() { # NAME FROM
	[ "$(counted "$1")" != "$2" ]
}

# All that counts goes on counting, and nobody is traced.
runs_on() {
	for name in 1 2 3 4 py; do
		was=$(counted $name)
		wait_for 20 further $name "$was" || {
			diag "$name stands at $was"
			return 1
		}
	done
	for pid in $(pgrep --ns "$init" --nslist pid); do
		grep -q '^TracerPid:.0$' "/proc/$pid/status" 2>/dev/null ||
			[ ! -d "/proc/$pid" ] || {
			diag "$pid is traced: $(tr '\0' ' ' <"/proc/$pid/cmdline")"
			return 1
		}
	done
}

# Until the engine of a dump has begun; then it is $engine.
wait_engine() {
	for _ in $(seq 1000); do
		[ ! -s "$T/engine" ] || break
		sleep 0.01
	done
	engine=$(cat "$T/engine" 2>/dev/null)
	[ -n "$engine" ]
}

# The names of snapshots and what has none; the directory's own apart.
left() {
	find "$DSEC_LIB/snap" -mindepth 1 -maxdepth 1 ! -name name 2>/dev/null
	find "$DSEC_LIB/sb/$s" -maxdepth 1 -name 'ckpt*' 2>/dev/null
}

# shellcheck disable=SC2317 # by wait_for
clean() {
	[ -z "$(left)" ] && [ ! -d "/proc/$engine" ]
}

begin
ok 0 "a sandbox of six processes"
run timeout 60 dsec-fork "$s" --snapshot first
is "$(field "$out" 'select(.ok!=null).ok')" true "a snapshot of it" ||
	diag "$out"
rm -f "$T/engine"
timeout 60 dsec-fork "$s" --snapshot first --replace </dev/null \
	>/dev/null 2>&1 &
wait_engine
t0=$(date +%s%N)
wait $!
span=$((($(date +%s%N) - t0) / 1000000))
run timeout 60 dsec-fork --remove first
diag "a snapshot takes $span ms from the start of its engine"

# Kill WHO (engine, keeper) MOMENT thousandths of the way into a snapshot; one that
# came through was faster than the one measured: the next is killed earlier.
killed=0 came=0 gone=0 bad=0 late=1
strike() { # WHO MOMENT
	rm -f "$T/engine"
	timeout 100 dsec-fork "$s" --snapshot k </dev/null >"$T/rec" 2>"$T/.err" &
	fork=$!
	wait_engine || complain "no engine"
	pid=$engine
	[ "$1" = engine ] ||
		pid=$(sed -n 's/^PPid:.//p' "/proc/$engine/status" 2>/dev/null)
	sleep "$(awk -v m="$2" -v w=$span -v l=$late \
		'BEGIN { print m * w / l / 1e6 }')"
	# Not the number of one that has ended.
	[ ! -d "/proc/$engine" ] || kill -9 "${pid:-$engine}" 2>/dev/null
	wait "$fork"
	if jq -e 'select(.ok==true)' "$T/rec" >/dev/null 2>&1; then
		came=$((came + 1)) late=$((late * 2))
		timeout 60 dsec-fork --remove k </dev/null >/dev/null 2>&1
	else
		killed=$((killed + 1)) late=1
	fi
	if [ "$(dsec-ps "$s" </dev/null | jq -r .state)" != running ]; then
		# Pid 1 was taken along: that is told, by the record of its end.
		gone=$((gone + 1))
		timeout 30 dsec-ps --all </dev/null | jq -e --arg s "$s" \
			'select(.sandbox == $s) | .outcome == "died" and .infra' \
			>/dev/null || complain "its end is not told"
		begin
	elif ! runs_on; then
		# Others may be as well, which the error tells.
		grep -Eq 'ended meanwhile|may have ended' "$T/rec" ||
			complain "it does not run on"
		timeout 30 dsec-pause --stop "$s" </dev/null >/dev/null 2>&1
		begin
	fi
	wait_for 10 clean || complain "left: $(left)"
}

complain() {
	bad=$((bad + 1))
	diag "$1: $(cat "$T/rec")"
}

n=0
for moment in $moments; do
	n=$((n + 1))
	[ $n -le "$kills" ] && strike engine "$moment"
done
is $bad 0 "the engine killed $kills times: the source runs on or its end is told"
diag "$killed snapshots failed, $came came through, $gone took pid 1 along"
isnt $killed 0 "some were killed in time"
killed=0 came=0 gone=0 bad=0 n=0
for moment in $moments; do
	n=$((n + 1))
	[ $n -gt "$kills" ] && [ $n -le $((kills + 3)) ] &&
		strike keeper "$moment"
done
is $bad 0 "its keeper killed 3 times: likewise"
diag "$killed snapshots failed, $came came through, $gone took pid 1 along"

# --- a full disk
mkdir -p "$DSEC_LIB/snap"
mount -t tmpfs -o size=8m,mode=700 full "$DSEC_LIB/snap"
run timeout 60 dsec-fork "$s" --snapshot full
is "$(field "$out" 'select(.ok!=null).error.code')" no_space \
	"a full disk is told" || diag "$out"
is "$(find "$DSEC_LIB/snap" -mindepth 1 -maxdepth 1 ! -name name)" "" \
	"and nothing is left on it"
umount "$DSEC_LIB/snap"
runs_on
ok $? "the source runs on"

# --- an engine that hangs, in the middle
printf '{"v":1,"fds":{}}' >"$T/state"
run timeout 30 dsec-pause "$s"
mkdir "$T/hang"
ckpt=$(dirname "$BIN")/libexec/dsec/dsec-ckpt
exec 7<"$T/state"
run timeout 60 "$ckpt" dump "$s" --init "$init" --to "$T/hang/ckpt" --state 7 \
	--frozen --timeout-ms 1000
exec 7<&-
is "$status $(field "$out" .error.code)" "71 engine" \
	"an engine that hangs is ended" || diag "$out"
is "$(ls "$T/hang")" "" "and nothing is left of it"
run timeout 30 dsec-pause --resume "$s"
is "$status" 0 "the sandbox is resumed"
runs_on
ok $? "and runs on"

# --- files that were changed
run timeout 60 dsec-pause --level disk "$s"
is "$(field "$out" .ok)" true "paused to disk" || diag "$out"
dir=$DSEC_LIB/sb/$s/ckpt
changed() { # WHAT
	run timeout 60 dsec-pause --resume "$s"
	is "$status $(field "$out" .error.code)" "1 checkpoint_damaged" "$1" ||
		diag "$out"
	is "$(dsec-ps "$s" </dev/null | jq -r '.state+" "+.level')" \
		"paused disk" "$1: it is paused still"
}
cp "$dir/manifest.json" "$T/manifest.json"
sed 's/"processes":[0-9]*/"processes":99/' "$T/manifest.json" >"$dir/manifest.json"
changed "an edited manifest"
head -c 100 "$T/manifest.json" >"$dir/manifest.json"
changed "a torn manifest"
cp "$T/manifest.json" "$dir/manifest.json"
cp "$dir/img/pstree.img" "$T/pstree.img"
printf 'x' | dd of="$dir/img/pstree.img" bs=1 seek=20 conv=notrunc 2>/dev/null
changed "an edited image"
like "$(field "$out" .error.message)" 'img/pstree.img' "which is named"
cp "$T/pstree.img" "$dir/img/pstree.img"
pages=$(find "$dir/img" -name 'pages-*' -size +100k | head -n 1)
cp "$pages" "$T/pages"
truncate -s -4096 "$pages"
changed "pages that are cut short"
cp "$T/pages" "$pages"
mv "$dir/files" "$T/files"
changed "a list of files that is gone"
mv "$T/files" "$dir/files"
run timeout 60 dsec-pause --resume "$s"
is "$status" 0 "put right, it is resumed" || diag "$out"
init=$(dsec-ps "$s" </dev/null | jq -r .init_pid)
runs_on
ok $? "and runs on"
run timeout 30 dsec-pause --stop "$s"
done_testing
