#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Disk limits: refused without a pool, enforced with one, and the pool that
# dsec-doctor makes goes without a trace.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
tree_new

run dsec-run --disk 32M --detach -- true
is "$status $(field "$out" .error.code)" "69 unsupported" \
	"a disk limit without a pool is refused"
like "$out" 'dsec-doctor --fix --pool-size' "and the way out is told"
run dsec-doctor --leaks
is "$status" 0 "nothing is left of it"

command -v mkfs.btrfs >/dev/null 2>&1 || {
	skip "a pool" "needs mkfs.btrfs"
	done_testing
}
run dsec-doctor --fix --only pool --pool-size 100G0
is "$status" 64 "a size that is none"
run dsec-doctor --fix --json --only node --only pool --pool-size 1
like "$(field "$out" '.findings[].why')" 'at least' "a pool that is too small"
run dsec-doctor --fix --json --only node --only pool --pool-size 300M
if [ "$(field "$out" .features.pool)" != btrfs ]; then
	diag "$out"
	skip "a pool" "btrfs cannot be mounted from a file here"
	done_testing
fi
like "$(field "$out" '.fixed|join(",")')" 'pool.img.*mounted.*quota' \
	"--fix makes a pool and says so"
like "$(field "$out" .features.pool_quota)" '^(squota|qgroup)$' "with quota"
run dsec-doctor --fix --json --only pool --pool-size 300M
is "$(field "$out" '.fixed')" null "once only"

dsec-run --detach -- true >"$T/warm"
run timeout 20 dsec-pause --stop "$(jq -r .sandbox "$T/warm")"
leak_start
s=$(echo '{"name":"small","disk_limit_mb":32}' | dsec-run | tee "$T/rec" |
	jq -r .sandbox)
is "$(jq -r .pool "$T/rec")" btrfs "the launch says which pool"
[ -d "$DSEC_LIB/pool/$s/upper" ]
ok $? "the layer is there"
run timeout 20 dsec-exec small --cmd 'echo recorded'
is "$(field "$out" .stdout)" recorded "a record has its output"
run timeout 60 dsec-exec small -- dd if=/dev/zero of=/root/big bs=1M count=16
is "$status" 0 "half of the limit fits"
run timeout 60 dsec-exec small -- \
	sh -c 'dd if=/dev/zero of=/root/more bs=1M count=64 && sync'
isnt "$status" 0 "twice the limit does not"
like "$err" 'Disk quota exceeded|No space' "and is told as such"
run timeout 20 dsec-exec small -- sh -c 'rm /root/more; echo free'
is "$out" free "removing makes room"
run timeout 20 dsec-pause --stop small
is "$(field "$out" .outcome)" killed "it stops"
# shellcheck disable=SC2317 # by wait_for
layer_gone() {
	[ ! -e "$DSEC_LIB/pool/$s" ]
}
wait_for 10 layer_gone
ok $? "its subvolume goes"
leak_check "a sandbox on a pool leaves nothing"
run dsec-doctor --leaks
json_is "$out" '{"ok":true,"leaks":0}' "no leaks"

# Copies of files alone: the source's mount is not touched and it runs on.
s=$(echo '{"name":"src","disk_limit_mb":64}' | dsec-run | jq -r .sandbox)
run timeout 20 dsec-exec src -- sh -c \
	'dd if=/dev/urandom of=/home/big bs=1M count=24 && md5sum /home/big'
sum=$(echo "$out" | cut -d' ' -f1)
run timeout 20 dsec-exec src --detach -- sh -c \
	'i=0; while :; do i=$((i + 1)); echo $i >/home/new && mv /home/new /home/count; done'
df_mb() {
	sync -f "$DSEC_LIB/pool" && df -m --output=used "$DSEC_LIB/pool" | tail -n 1
}
used=$(df_mb)
run timeout 60 dsec-fork src --fs-only --count 3 --name copy
is "$status" 0 "three copies of its files"
is "$(field "$out" .layer | sort -u)" snapshot "by snapshots"
[ $(($(df_mb) - used)) -lt 24 ]
ok $? "which take no room"
run timeout 20 dsec-exec copy-1 -- md5sum /home/big
is "${out%% *}" "$sum" "a copy has the file"
run timeout 20 dsec-exec src -- md5sum /home/big
is "${out%% *}" "$sum" "and so has the source"
was=$(timeout 20 dsec-exec src -- cat /home/count)
# shellcheck disable=SC2317 # by wait_for
goes_on() {
	[ "$(timeout 20 dsec-exec src -- cat /home/count)" -gt "$was" ]
}
wait_for 20 goes_on
ok $? "which goes on"
# Whoever takes the snapshot holds the source meanwhile: it dies of it.
sup=$(dsec-ps src | jq .supervisor_pid)
if command -v strace >/dev/null; then
	strace -f -e trace=ioctl -e inject=ioctl:signal=KILL -o "$T/ambush" \
		-p "$sup" 2>"$T/attached" &
	ambush=$!
	wait_for 20 grep -q attached "$T/attached"
	run timeout 60 dsec-fork src --fs-only --name never
	{ kill "$ambush" && wait "$ambush"; } 2>"$T/null"
	is "$status $(grep -c 'killed by SIGKILL' "$T/ambush")" "71 1" \
		"one that is killed at that moment fails"
	was=$(timeout 20 dsec-exec src -- cat /home/count)
	wait_for 20 goes_on
	ok $? "... and the source goes on"
fi
run timeout 20 dsec-exec copy-0 -- cat /home/count
is "$(timeout 20 dsec-exec copy-0 -- cat /home/count)" "$out" \
	"a copy does not: its processes are its own"
run timeout 60 dsec-exec copy-2 -- \
	sh -c 'dd if=/dev/zero of=/home/more bs=1M count=96 && sync'
like "$err" 'Disk quota exceeded|No space' "a copy has a limit of its own"
run timeout 20 dsec-exec src -- sh -c 'echo room >/home/room && cat /home/room'
is "$out" room "which is not its source's"
run timeout 60 dsec-fork src --fs-only --snapshot kept
is "$status $(field "$out" .layer)" "0 snapshot" "a snapshot is kept"
run timeout 60 dsec-pause --stop src copy-0 copy-1 copy-2
is "$status" 0 "all stop"
# shellcheck disable=SC2317 # by wait_for
one_layer() {
	[ "$(find "$DSEC_LIB/pool" -maxdepth 1 | wc -l)" -eq 2 ]
}
wait_for 20 one_layer
ok $? "only its layer is left"
run dsec-doctor --leaks
json_is "$out" '{"ok":true,"leaks":0}' "which is no leak"
run dsec-doctor --fix --only dead
run timeout 60 dsec-run --snapshot kept --detach --name again
is "$(field "$out" .layer)" snapshot "nor does --fix take it: a sandbox starts"
run timeout 20 dsec-exec again -- md5sum /home/big
is "${out%% *}" "$sum" "with what was kept"
run timeout 20 dsec-pause --stop again
run timeout 20 dsec-fork --remove kept
is "$status" 0 "it is removed"
# shellcheck disable=SC2317 # by wait_for
layers_gone() {
	[ -z "$(ls "$DSEC_LIB/pool")" ]
}
wait_for 20 layers_gone
ok $? "no subvolume is left"
run dsec-doctor --leaks
json_is "$out" '{"ok":true,"leaks":0}' "no leaks"

# A pool that was unmounted comes back by --fix alone.
umount "$DSEC_LIB/pool"
run dsec-doctor --json --only pool
is "$(field "$out" '.findings[].fix')" "dsec-doctor --fix" \
	"an unmounted pool is seen"
run dsec-doctor --fix --json --only pool
is "$(field "$out" .features.pool)" btrfs "and mounted again"

done_testing
