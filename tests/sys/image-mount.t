#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Layers on a node: who uses them, what a killed mount leaves, what cannot be
# trusted, and what the node does with those that nobody uses.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq busybox strace python3
tree_new

import() { # NAME SOURCE [FLAG...]
	import_name=$1 import_from=$2
	shift 2
	run timeout 60 dsec-img import "$import_from" --as "$import_name" "$@"
	[ "$status" -eq 0 ] || diag "import of $import_from: $out $err"
	field "$out" '.digest | ltrimstr("sha256:")'
}

mkdir -p "$T/base/bin" "$T/base/etc" "$T/base/root" "$T/dir"
cp "$(command -v busybox)" "$T/base/bin/busybox"
for tool in sh cat sleep ls; do
	ln -s busybox "$T/base/bin/$tool"
done
echo one >"$T/base/f"
ln "$T/base/f" "$T/base/g"
echo two >"$T/dir/h"
base=$(import root/base:1 "dir:$T/base" --kind base)
tool=$(import root/tool:1 "dir:$T/dir" --kind toolkit)
isnt "$base" "$tool" "two layers"

is_mounted() { # DIGEST
	grep -q " $DSEC_RUN/mnt/$1 " /proc/self/mountinfo
}

loops() {
	grep -lsF "$T/" /sys/block/loop*/loop/backing_file | wc -l
}

# The kernel, or who looks at new devices, lets go a moment later.
# shellcheck disable=SC2317 # by wait_for
no_loops() {
	[ "$(loops)" -eq 0 ]
}

own_meta() {
	cat /sys/block/loop*/loop/backing_file 2>/dev/null |
		grep -c "^$DSEC_LIB/.* (deleted)$"
}
leases() {
	find "$DSEC_LIB/img/store/lease" -name '*.json' 2>/dev/null | wc -l
}

unmount_all() {
	run timeout 60 dsec-img unmount --all
}

# --- who uses it -------------------------------------------------------------

s=$(timeout 60 dsec-run --detach --image root/base:1 --layer root/tool:1 |
	jq -r .sandbox)
run timeout 20 dsec-exec "$s" -- cat /f /h
is "$(printf '%s' "$out" | tr '\n' ' ')" "one two" "a sandbox on both"
is "$(leases)" 2 "the node has leases of what it mounted"
run timeout 20 dsec-img unmount root/base:1
is "$status $(field "$out" .error.code)" "1 image_in_use" \
	"field report 43: what a sandbox uses is not unmounted" ||
	diag "$out"
like "$(field "$out" .error.message)" "$s" "and the user is named"
run timeout 20 dsec-img rm root/base:1
is "$(field "$out" 'select(.ok == false).error.code')" image_in_use \
	"nor removed"
timeout 20 dsec-pause "$s" >/dev/null
run timeout 20 dsec-img rm root/tool:1
is "$(field "$out" 'select(.ok == false).error.code')" image_in_use \
	"nor while it is paused"
like "$out" "$s" "and that user is named too"
unmount_all
is "$status $(field "$out" '.unmounted | length')" "0 0" \
	"all that nobody uses is nothing"
run timeout 20 dsec-doctor --json --only dead
json_is "$out" '[true,true]' "dsec-doctor sees them in use" \
	'[.mounts[].used]'
timeout 20 dsec-exec "$s" --cmd 'echo mine >/mine' >/dev/null
run timeout 60 dsec-img pack "$s" --as root/child:1 --kind workspace
is "$status" 0 "its changes become a layer" || diag "$out $err"
timeout 20 dsec-pause --stop "$s" >/dev/null
run timeout 20 dsec-img rm root/base:1
is "$(field "$out" 'select(.ok == false).error.code')" image_in_use \
	"what a layer was packed on is not removed"
like "$out" 'root/child:1' "and the layer is named"
run timeout 60 dsec-run --rm --image root/base:1 --layer root/tool:1 \
	--layer root/child:1 -- cat /mine /h
is "$(printf '%s' "$out" | tr '\n' ' ')" "mine two" \
	"a sandbox on all three has the changes"
run timeout 20 dsec-img unmount root/child:1
run timeout 20 dsec-doctor --leaks
is "$status" 0 "mounts that wait for the next sandbox are no leak"
run timeout 20 dsec-doctor --json --only dead
json_is "$out" '[2,2]' "but told" '[.values.layers, .values.layers_unused]'
run timeout 20 dsec-doctor --json --fix --only dead
like "$(field "$out" '.fixed[]')" '2 layers' "--fix unmounts them"
is_mounted "$base"
isnt $? 0 "they are gone"
is "$(leases)" 0 "and their leases"

# Removals beside launches: each launch works, or is told there is no such
# image; none runs without its layers.
i=0
while [ $i -lt 8 ]; do
	import "root/race:$i" "dir:$T/dir" --kind workspace --at "/r$i" >/dev/null
	i=$((i + 1))
done
i=0
while [ $i -lt 8 ]; do
	echo '{"id":'$i',"rm":true,"image":"root/base:1","layers":["root/race:'$i'"],"command":"cat /r'$i'/h"}'
	i=$((i + 1))
done >"$T/requests"
timeout 60 dsec-run --jobs 4 <"$T/requests" >"$T/answers" &
racer=$!
i=8
while [ $i -gt 0 ]; do
	i=$((i - 1))
	timeout 20 dsec-img rm "root/race:$i" >/dev/null 2>&1 &
	timeout 20 dsec-img rm "root/race:$i" >/dev/null 2>&1
	timeout 20 dsec-img unmount --all >/dev/null 2>&1
	wait $!
done
wait "$racer"
is "$(jq -c 'if .ok then .stdout else .error.code end' "$T/answers" |
	grep -cvE '^"(two\\n|image_unknown)"$')" 0 \
	"field report 43: removals beside launches fail nobody half way" ||
	diag "$(cat "$T/answers")"
is "$(wc -l <"$T/answers")" 8 "all of them answered"

# --- killed on the way -------------------------------------------------------

killed() { # WAY CALL WHEN
	echo "{\"mount\":\"$1\"}" >"$DSEC_CONFIG/images.json"
	timeout 60 strace -f -o "$T/trace" -e "trace=$2" \
		-e "inject=$2:signal=SIGKILL:when=$3" \
		dsec-img mount root/base:1 >/dev/null 2>&1
	[ $? -eq 137 ] || {
		diag "$1: $2 is not called $3 times"
		unmount_all
		return 1
	}
	killed_n=$((killed_n + 1))
	is_mounted "$base" || wait_for 10 no_loops ||
		killed_bad="$killed_bad $1:$2:$3:loop"
	timeout 60 dsec-img mount root/base:1 >"$T/.o" 2>&1 ||
		killed_bad="$killed_bad $1:$2:$3:repeat"
	timeout 60 dsec-img unmount --all >"$T/.o" 2>&1 ||
		killed_bad="$killed_bad $1:$2:$3:unmount"
	! is_mounted "$base" && wait_for 10 no_loops && [ "$(leases)" -eq 0 ] &&
		[ -z "$(ls -A "$DSEC_LIB/img/dir" 2>/dev/null)" ] ||
		killed_bad="$killed_bad $1:$2:$3:left"
}

unmount_all
strace -o /dev/null true 2>/dev/null ||
	{ skip "killed mounts" "no ptrace here"; done_testing; }
for way in file loop directory; do
	killed_n=0 killed_bad=''
	echo "{\"mount\":\"$way\"}" >"$DSEC_CONFIG/images.json"
	timeout 60 dsec-img mount root/base:1 >/dev/null 2>&1 || {
		skip "killed on the way: $way" "not here"
		continue
	}
	unmount_all
	case $way in
	file) calls='fcntl:1 openat2:6 mkdir:1 mount:1' ;;
	loop) calls='ioctl:1 ioctl:2 ioctl:3 fsopen:1 fsconfig:2 fsmount:1
		move_mount:1' ;;
	directory) calls='mkdirat:1 mkdirat:2 symlinkat:1 linkat:1 fchownat:2
		utimensat:3 syncfs:1 renameat:1' ;;
	esac
	for at in $calls; do
		killed "$way" "${at%:*}" "${at#*:}"
	done
	is "$killed_bad" "" "$way: killed at $killed_n places, the next mends it"
	isnt "$killed_n" 0 "$way: it was killed"
done
rm "$DSEC_CONFIG/images.json"
timeout 60 strace -f -o "$T/trace" -e trace=mkdir \
	-e inject=mkdir:signal=SIGKILL:when=1 \
	dsec-img mount root/base:1 >/dev/null 2>&1
is "$(leases)" 1 "a killed mount leaves a lease"
unmount_all
is "$(leases)" 0 "which is dropped with those of idle mounts"

# A deadline is one for all layers: each alone would be there in time.
run timeout 60 strace -f -o "$T/trace" -P "$DSEC_RUN/mnt/.lock" \
	-e trace=openat -e inject=openat:delay_enter=2000000 \
	dsec-run --detach --deadline 3s --image root/base:1 --layer root/tool:1
is "$(field "$out" .error.code)" deadline "a deadline is one for all layers" ||
	diag "$out $err"
unmount_all

# --- the next best way -------------------------------------------------------

next_best() { # WANT WHAT [STRACE FLAG...]
	next_want=$1 next_what=$2
	shift 2
	run timeout 60 strace -f -o "$T/trace" "$@" dsec-img mount root/base:1
	is "$(field "$out" '.layers[0].way')" "$next_want" "$next_what" ||
		diag "$out"
	run timeout 60 dsec-img mount root/base:1
	is "$(field "$out" '.layers[0].way')" "$next_want" \
		"$next_what: and is told so while it is there" || diag "$out"
	unmount_all
}
# Linux mounts EROFS from files since 6.12, if it is configured so.  We ask the
# kernel and not the product; no device is given, so the mount itself may fail.
mkdir "$T/probe"
cat >"$T/probe.py" <<'PY'
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
file, to = (name.encode() for name in sys.argv[1:])
if libc.mount(file, to, b"erofs", 1, None) == 0:
    libc.umount(to)
elif ctypes.get_errno() == errno.ENOTBLK:
    sys.exit(1)
PY
if python3 "$T/probe.py" \
	"$(find "$DSEC_LIB/img/store/meta" -name '*.erofs' | head -n 1)" \
	"$T/probe"; then
	first='file'
	next_best file "from files, where that can be" -e trace=none
else
	first=loop
	next_best loop "from loop devices at once, where no file will do" \
		-e trace=none
	skip "from files, where that can be" \
		"this kernel mounts EROFS from block devices alone"
fi
next_best loop "from loop devices, where that cannot" \
	-e inject=mount:error=ENOTBLK
next_best directory "unpacked, where there is no EROFS" \
	-e inject=mount:error=ENODEV -e inject=fsopen:error=ENODEV
next_best directory "or no loop device to be had" \
	-e inject=mount:error=ENOTBLK -e inject=ioctl:error=EPERM
is "$(loops)" 0 "and no loop device is left"

# Several at once: one mount.
for i in 1 2 3 4 5 6; do
	timeout 60 dsec-img mount root/base:1 >"$T/at-once.$i" &
done
wait
is "$(cat "$T"/at-once.* | jq -s 'map(.ok) | all')" true "six at once"
is "$(grep -c " $DSEC_RUN/mnt/$base " /proc/self/mountinfo)" 1 "one mount"
unmount_all

# A library that is full.
echo '{"mount":"directory"}' >"$DSEC_CONFIG/images.json"
mkdir -p "$DSEC_LIB/img/dir"
mount -t tmpfs -o size=1m none "$DSEC_LIB/img/dir"
run timeout 60 dsec-run --detach --image root/base:1
is "$status $(field "$out" .error.code)" "71 no_space" \
	"no space to unpack: told as such"
is "$(ls -A "$DSEC_LIB/img/dir")$(leases)" 0 "and nothing of it is left"
umount "$DSEC_LIB/img/dir"

# A name that a mount option cannot hold.
cp -a "$DSEC_LIB/img/store" "$T/store, two"
echo "{\"store\":\"$T/store, two\",\"mount\":\"$first\"}" \
	>"$DSEC_CONFIG/images.json"
run timeout 60 dsec-run --rm --image root/base:1 -- cat /f
is "$out" one "a store with a comma in its name"
unmount_all

# A file system that EROFS cannot be mounted from.
cp -a "$DSEC_LIB/img/store" "$DSEC_RUN/store"
echo "{\"store\":\"$DSEC_RUN/store\"}" >"$DSEC_CONFIG/images.json"
run timeout 60 dsec-run --rm --image root/base:1 -- cat /f
is "$out" one "a store on tmpfs"
unmount_all

# A store of somebody else's: read, not written, and not believed twice.
chown -R 12345:12345 "$DSEC_RUN/store"
run timeout 60 dsec-run --rm --image root/base:1 -- cat /f
is "$out" one "a store that others write"
is "$(find "$DSEC_RUN/store/lease" -name '*.json' 2>/dev/null | wc -l)" 0 \
	"without a lease there"
unmount_all
echo "{\"store\":\"$DSEC_RUN/store\",\"mount\":\"loop\"}" \
	>"$DSEC_CONFIG/images.json"
run timeout 60 dsec-img mount root/base:1
if [ "$status" -eq 0 ]; then
	is "$(own_meta)" 1 "with metadata of our own, which has no name"
else
	skip "metadata of our own" "$(field "$out" .error.message | head -c 200)"
fi
unmount_all
is "$(own_meta)" 0 "which goes with the mount"
rm -r "$DSEC_RUN/store" "$DSEC_CONFIG/images.json"
for bad in '{"mount":"fuse"}' '{"stores":"/x"}' '{"store":"x"}' '[]'; do
	echo "$bad" >"$DSEC_CONFIG/images.json"
	run timeout 60 dsec-run --detach --image root/base:1
	is "$status $(field "$out" .error.code)" "78 configuration" "$bad"
done
rm "$DSEC_CONFIG/images.json"

# --- what cannot be trusted --------------------------------------------------

store=$DSEC_LIB/img/store
meta=$(find "$store/meta" -name '*.erofs' | head -n 1)
cp "$meta" "$T/meta"
for meta in "$store"/meta/sha256/*/*.erofs; do
	printf 'x' | dd of="$meta" bs=1 seek=1100 conv=notrunc 2>/dev/null
done
run timeout 60 dsec-run --detach --image root/base:1
is "$(field "$out" .error.code)" image_damaged \
	"metadata that is not what its digest says is never mounted"
is_mounted "$base"
isnt $? 0 "it is not"
is "$(leases)" 0 "and no lease is left"
run timeout 20 dsec-doctor --leaks
is "$status" 0 "nor anything else"
done_testing
