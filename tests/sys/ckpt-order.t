#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The order in which a pause to the disk becomes durable, as the kernel is asked:
# a crash at any moment leaves a whole checkpoint with a whole layer, or none.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
need_root
need_tools jq busybox strace
tree_new
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"
matrix_image || plan_skip_all "no image"

s=$(dsec-run --detach -i root/matrix:1 -m 64 -- sleep 1000 </dev/null |
	jq -r .sandbox)
timeout 30 dsec-exec "$s" -- sh -c 'echo kept >/srv/file' </dev/null
box=$(dsec-ps "$s" | jq .supervisor_pid)
strace -f -qq -y -o "$T/trace" -p "$box" -e \
	trace=syncfs,fsync,fdatasync,openat,rename,renameat,renameat2,unlinkat &
tracer=$!
# shellcheck disable=SC2317 # by wait_for
attached() {
	grep -q "^TracerPid:.$tracer\$" "/proc/$box/status"
}
wait_for 20 attached
run timeout 120 dsec-pause --disk "$s"
is "$status" 0 "a sandbox is paused to disk" || diag "$out$err"
kill "$tracer"
wait "$tracer" 2>/dev/null

# The numbers of the lines that match, in one line.
lines() { # ERE
	grep -nE -- "$1" "$T/trace" | cut -d: -f1 | tr '\n' ' '
}
first() {
	lines "$1" | cut -d' ' -f1
}
last() {
	lines "$1" | awk '{ print $NF }'
}
before() { # LINE LINE
	[ "${1:-0}" -gt 0 ] && [ "$1" -lt "${2:-0}" ]
}
new="/sb/$s/ckpt\.new"
manifest=$(first "rename.*$new.*\"manifest\.json\"")
named=$(first 'rename.*"ckpt\.new".*"ckpt"')
ok "$([ -n "$manifest" ] && [ -n "$named" ]; echo $?)" \
	"a manifest, and a name" || diag "$(grep rename "$T/trace")"
before "$(last "syncfs\(.*/sb/$s/upper>")" "$manifest"
ok $? "the layer is synced before there is a manifest"
before "$(last "syncfs\(.*/sb/$s>")" "$manifest"
ok $? "and its names"
(cd "$DSEC_LIB/sb/$s/ckpt" && find . -type f ! -name manifest.json \
	! -name files | sed 's/^\.//') | sort >"$T/files"
sed -nE "${manifest}q; s|.*fsync\(.*$new(/[^>]*)>.*|\1|p" "$T/trace" | sort -u |
	comm -23 "$T/files" - >"$T/unsynced"
is "$([ -s "$T/files" ]; echo $?) $(cat "$T/unsynced")" "0 " \
	"so is each file of the checkpoint"
before "$(last "fsync\(.*$new/\.files")" "$manifest"
ok $? "and the list of them"
before "$(last "fsync\(.*$new/\.manifest")" "$manifest"
ok $? "and the manifest itself before it has its name"
made=$(lines "openat\(.*$new.*O_CREAT" | tr ' ' '\n' |
	awk -v m="$manifest" '$1 > m' | wc -l)
is "$made" 0 "no file of it is made after it"
is "$(sed -n "$manifest,${named}p" "$T/trace" | grep -cE "fsync\(.*$new>")" 1 \
	"its name is synced before the checkpoint has its own"
before "$named" "$(last "fsync\(.*/sb/$s>")"
ok $? "which is synced, too"
is "$(lines "rename.*$new.*\"manifest\.json\"" | wc -w) $(
	lines "openat\(.*$new>, \"manifest\.json\".*O_(WRONLY|RDWR)" |
	wc -w)" "1 0" "there is one manifest, and nobody writes to it"
is "$(timeout 60 dsec-exec "$s" -- cat /srv/file </dev/null)" kept \
	"it comes back"
timeout 30 dsec-pause --stop --grace 0 "$s" >"$T/x" </dev/null
done_testing
