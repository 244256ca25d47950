#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A sandbox of many processes that hold all that a checkpoint has to carry over:
# paused at each level and resumed, forked, forks forked, over and over.  The
# processes check themselves all the time: see matrix.c.
#   MATRIX_ROUNDS=N   rounds of the last part (1; tests/rounds/matrix.t makes 20)
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq busybox python3
tree_new
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"

all='26 processes'

matrix_image || plan_skip_all "no image could be made"
run timeout 60 dsec-run --image root/matrix:1 --name first
run timeout 60 dsec-pause --stop --grace 0 first
leak_start
s=$(dsec-run --image root/matrix:1 --memory 512M --name m --label k=v \
	</dev/null 2>"$T/.err" | jq -r .sandbox)
matrix_start m
ok $? "the matrix is running" || diag "$(cat "$T/.matrix")" "$(matrix_check m)"
is "$(matrix_check m)" "$all" "and its processes are well"

# How far one is, seen from outside, without waking it.
rounds() { # SANDBOX NAME
	cut -d' ' -f3 "$DSEC_LIB/sb/$1/upper/srv/m/r/$2"
}

tty_bytes() { # SANDBOX
	printf '{"sandbox":"%s","op":"output","exec":"e1","offset":0,"limit":1}\n' \
		"$1" | timeout 60 dsec-exec | jq .bytes
}

# shellcheck disable=SC2317 # by wait_for
more_on_tty() { # SANDBOX THAN
	[ "$(tty_bytes "$1")" -gt "$2" ]
}

# --- pause at each level, looked at, resumed by a command
level() { # LEVEL
	level_tty=$(tty_bytes m)
	run timeout 120 dsec-pause --level "$1" m
	is "$status $(field "$out" '.state+" "+.level')" "0 paused $1" \
		"$1: paused"
	[ "$status" -eq 0 ] || diag "$out"
	level_rec=$out
	level_at=$(rounds "$s" python)
	sleep 0.3
	is "$(rounds "$s" python)" "$level_at" "$1: nothing goes on"
	is "$(dsec-ps m | jq -r '.state+" "+.level')" "paused $1" \
		"$1: looking does not wake it"
	is "$(matrix_check m)" "$all" "$1: a command resumes it, all are well"
	wait_for 20 more_on_tty m "$level_tty"
	ok $? "$1: what it says on its terminal is recorded"
	is "$(dsec-ps m | jq -r '.state+" "+(.level // "-")')" "running -" \
		"$1: it runs"
}
level freeze
level reclaim
if [ "$(dsec-doctor --json --only kernel | jq .features.swap)" = true ]; then
	is "$(field "$level_rec" '.swap and .freed_bytes > 50000000')" true \
		"reclaim: memory left"
else
	is "$(field "$level_rec" '(.swap | not) and (.warnings | length) > 0')" \
		true "reclaim: the record says that there is no swap"
fi

why=$(checkpoint_why)
if [ -n "$why" ]; then
	run timeout 60 dsec-pause --level disk m
	is "$status $(field "$out" .error.code)" "69 unsupported" \
		"disk: refused, for there is no engine"
	is "$(matrix_check m)" "$all" "and it runs on"
	skip "disk and forks" "$why"
	done_testing
fi
level disk
is "$(field "$level_rec" '.bytes > 100000000')" true \
	"disk: the size of the checkpoint is in the record"
diag "$(field "$level_rec" '"disk: \(.bytes) bytes, \(.frozen_ms) ms"')"

# The clock inside has stood still, the time of day is right (field report 65).
up() {
	timeout 60 dsec-exec m -- cut -d. -f1 /proc/uptime
}
u=$(up)
run timeout 120 dsec-pause --disk m
t=$(now_s)
sleep 4
t=$(($(now_s) - t))
now=$(timeout 60 dsec-exec m -- date +%s)
[ $(($(date +%s) - now)) -le 1 ]
ok $? "disk: the first command sees the right time"
later=$(up)
[ "$later" -ge "$u" ]
ok $? "disk: the monotonic clock does not go back"
diag "monotonic: $u, $later; it lay on the disk for $t s"
level disk
run timeout 60 dsec-pause --freeze m
run timeout 60 dsec-pause --disk m
is "$status $(field "$out" .level)" "0 disk" "from one level to a deeper one"
run timeout 60 dsec-pause --freeze m
is "$status $(field "$out" .level)" "0 disk" "not to a higher one"
run timeout 60 dsec-pause --resume m
is "$status $(field "$out" .state)" "0 running" "resumed by request"
is "$(matrix_check m)" "$all" "all are well"

# --- four copies, each on its own way
names() { # SANDBOX: names and pids inside
	timeout 60 dsec-exec "$1" -- sh -c 'cat /srv/m/r/*' | cut -d' ' -f1,2
}
fork_of() { # SANDBOX COUNT
	run timeout 200 dsec-fork "$1" --count "$2"
	is "$status $(printf '%s\n' "$out" | jq -s 'map(select(.ok)) | length')" \
		"0 $2" "$2 copies of $1"
	[ "$status" -eq 0 ] || diag "$out" "$err"
	forks=$(printf '%s\n' "$out" | jq -r .sandbox)
}
want=$(names m)
fork_of m 4
is "$(matrix_check m)" "$all" "the source is unaffected"
n=0
for f in $forks; do
	n=$((n + 1))
	is "$(matrix_check "$f")" "$all" "copy $n: all are well"
	is "$(names "$f")" "$want" "copy $n: the same pids inside"
	wait_for 20 more_on_tty "$f" 0
	ok $? "copy $n: its terminal is recorded"
done
first=${forks%%
*}
timeout 60 dsec-exec "$first" -- sh -c 'echo mine >/srv/mine'
run timeout 60 dsec-exec m -- cat /srv/mine
isnt "$status" 0 "what a copy writes is its own"
run timeout 60 dsec-pause --freeze "$first"
at=$(rounds "$s" python)
wait_for 20 sh -c "[ \"\$(cut -d' ' -f3 '$DSEC_LIB/sb/$s/upper/srv/m/r/python')\" -gt $at ]"
ok $? "a copy that is paused holds up nobody"
others=$(printf '%s\n' "$forks" | tail -n 3)
# shellcheck disable=SC2086
run timeout 100 dsec-pause --stop --grace 0 $others
is "$status" 0 "copies end"
is "$(matrix_check m)" "$all" "and the source goes on"

# --- a copy of a copy, and a checkpoint of that
fork_of "$first" 1
is "$(matrix_check "$forks")" "$all" "a copy of a copy: all are well"
run timeout 120 dsec-pause --disk "$forks"
is "$status $(field "$out" .level)" "0 disk" "it is paused to disk"
is "$(matrix_check "$forks")" "$all" "and comes back"
is "$(matrix_check "$first")" "$all" "its source is well"
run timeout 60 dsec-pause --stop --grace 0 "$first" "$forks"
is "$status" 0 "both end"

# --- again and again
# How many of each kind this tree holds; what commands leave on record grows.
census() {
	leak_list | grep -v '/out/' | cut -d' ' -f1 | sort | uniq -c | tr -s ' '
}
# shellcheck disable=SC2317 # by wait_for
same_census() {
	[ "$(census)" = "$held" ]
}
# What ended is answered at once, and finished behind.
# shellcheck disable=SC2317 # by wait_for
supervisors_gone() { # SANDBOX...
	for x in "$@"; do
		! pgrep -f "dsec-box .*$x" >"$T/null" || return 1
	done
}
# shellcheck disable=SC2086
wait_for 30 supervisors_gone "$first" $forks $others
run timeout 60 dsec-exec m -- true
held=$(census)
bad=0 i=0
while [ $i -lt "${MATRIX_ROUNDS:-1}" ]; do
	i=$((i + 1))
	timeout 120 dsec-pause --disk m >"$T/round" 2>&1 || {
		bad=$((bad + 1))
		diag "round $i: $(cat "$T/round")"
	}
	timeout 60 dsec-pause --resume m >"$T/round" 2>&1 || {
		bad=$((bad + 1))
		diag "round $i: $(cat "$T/round")"
	}
	f=$(timeout 120 dsec-fork m 2>"$T/.err" | tee "$T/round" | jq -r .sandbox)
	timeout 60 dsec-exec "$f" -- true || {
		bad=$((bad + 1))
		diag "round $i: $(cat "$T/round")"
	}
	timeout 60 dsec-pause --stop --grace 0 "$f" >"$T/round" 2>&1 || {
		bad=$((bad + 1))
		diag "round $i: $(cat "$T/round")"
	}
done
is "$bad" 0 "$i rounds of pause, resume, fork and stop"
is "$(matrix_check m)" "$all" "after which all are well"
wait_for 30 same_census
is "$(census)" "$held" "$i rounds leave nothing behind"
run timeout 60 dsec-pause --stop --grace 0 m
is "$status" 0 "it ends"
leak_check "nothing of all that is left"
run dsec-doctor --leaks
json_is "$out" '{"ok":true,"leaks":0}' "dsec-doctor finds nothing"

done_testing
