#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The supervisor of a sandbox that is paused to disk and comes back, of one that
# is copied, and what it does when either fails (field report 66).
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
. "$(dirname "$0")/box/results.sh"
need_root
need_tools jq python3 busybox
tree_new

why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"

mkdir -p "$T/base/bin" "$T/base/tmp" "$T/base/etc" "$T/base/root" \
	"$T/base/srv" "$T/base/proc" "$T/base/dev"
cp "$(command -v busybox)" "$T/base/bin/busybox"
for tool in sh cat sleep echo head stty true touch; do
	ln -s busybox "$T/base/bin/$tool"
done
printf 'root:x:0:0:root:/root:/bin/sh\n' >"$T/base/etc/passwd"
run dsec-img import "dir:$T/base" --as root/base --kind base
is "$status" 0 "an image"
dsec-run --rm --image root/base -- true # what a node prepares once
leak_start
box_part disk
box_part copies
leak_check
done_testing
