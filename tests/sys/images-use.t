#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Images that sandboxes use: they are not removed, whoever removes, prunes and
# launches at the same time (field report 43).
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
tree_new

busybox=$(command -v busybox) || plan_skip_all "needs busybox"
ldd "$busybox" >"$T/null" 2>&1 && plan_skip_all "needs a static busybox"
mkdir -p "$T/root/bin" "$T/root/etc" "$T/root/tmp" "$T/work"
cp "$busybox" "$T/root/bin/busybox"
for tool in sh cat true sleep mkdir; do
	ln -s busybox "$T/root/bin/$tool"
done
echo 'root:x:0:0::/:/bin/sh' >"$T/root/etc/passwd"
echo hello >"$T/work/text"

# shellcheck disable=SC2317 # by wait_for
no_sandbox() {
	[ -z "$(ls "$DSEC_RUN/sb")" ]
}

# A stop is answered before all is taken away; the claim is the last to go.
stop() { # SANDBOX
	dsec-pause --stop "$1" >"$T/null"
	wait_for 20 no_sandbox
}

code() {
	field "$out" 'select(.ok != null) | .error.code // "ok"'
}

users() {
	printf '%s\n' "$out" | jq -r 'select(.event=="user")|"\(.type) \(.user)"' |
		sort | tr '\n' ,
}

run dsec-img import "dir:$T/root" --as root/base:1 --kind base \
	--env PATH=/bin
is "$status" 0 "a base" || diag "$out"
run dsec-img import "dir:$T/work" --as root/work:1 --kind workspace --at /srv
is "$status" 0 "a workspace"

leak_start
# What is laid over a directory joins it.
mkdir -p "$T/over/etc/profile.d" "$T/root/etc/profile.d"
echo b >"$T/root/etc/profile.d/b.sh"
echo a >"$T/over/etc/profile.d/a.sh"
echo dot >"$T/over/etc/profile.d/.dot"
run dsec-img import "dir:$T/root" --as root/base:1 --env PATH=/bin
run dsec-img import "dir:$T/over/etc/" --as root/over:1 --kind toolkit --at /etc
run dsec-run --rm --image root/base:1 --layer root/over:1 -- \
	sh -c 'cd /etc/profile.d && cat a.sh b.sh .dot && cat ../passwd'
is "$(printf '%s\n' "$out" | tr '\n' ,)" "a,b,dot,root:x:0:0::/:/bin/sh," \
	"field report 45: nothing is dropped" || diag "$err"
dsec-img rm root/over:1 >"$T/null"

run dsec-run --detach --name one --image root/base:1 --layer root/work:1
is "$status" 0 "a sandbox of both" || diag "$out"
one=$(field "$out" .sandbox)
for image in root/base:1 root/work:1; do
	run dsec-img rm $image
	is "$status $(code)" "1 image_in_use" "$image: not while it runs"
	is "$(users)" "sandbox $one," "and who runs"
done
dsec-pause one >"$T/null"
run dsec-img rm --force root/work:1
is "$status $(code)" "1 image_in_use" "nor while it is paused"
run dsec-img prune --grace 0
run dsec-img prune --grace 0
is "$(field "$(printf '%s\n' "$out" | tail -n 1)" .unmounted)" 0 \
	"prune unmounts nothing of it"
run dsec-exec one -- cat /srv/text
is "$out" hello "which it goes on reading"

# The names are lost, by somebody who writes the store past us.
cp -a "$DSEC_LIB/img/store/tag" "$T/tag"
rm -r "$DSEC_LIB/img/store/tag/root"
dsec-img prune --grace 0 >"$T/null"
run dsec-img prune --grace 0
is "$(field "$(printf '%s\n' "$out" | tail -n 1)" .blobs)" 0 \
	"what a sandbox uses is kept without a name"
run dsec-exec one -- sh -c 'cat /srv/text; echo new >/srv/new'
is "$out" hello "and read"
cp -a "$T/tag/." "$DSEC_LIB/img/store/tag"

run dsec-img pack one --as root/child:1 --kind workspace
is "$status" 0 "its changes are packed" || diag "$out"
stop one
run dsec-img rm root/work:1
is "$status $(code)" "1 image_in_use" "a layer packed on it uses it"
is "$(users)" "layer root/child:1," "and its name is told"
run dsec-img rm --force root/work:1
is "$status" 0 "--force: it goes"
run dsec-img import "dir:$T/work" --as root/work:1 --kind workspace --at /srv
is "$status" 0 "and comes again"
run dsec-img rm root/child:1 root/work:1
is "$status" 0 "child first, both go" || diag "$out"

# Launches, removals and prunes at once: a launch works, or fails as it should.
storm() { # N
	dsec-img import "dir:$T/work" --as "root/storm:$1" --kind workspace \
		--at /srv --env N="$1" >"$T/null"
	dsec-img rm "root/storm:$1" >"$T/rm.$1.a" 2>&1 &
	dsec-img prune --grace 0 >"$T/null" 2>&1 &
	dsec-run --rm --image root/base:1 --layer "root/storm:$1" -- \
		cat /srv/text >"$T/run.$1" 2>"$T/run.$1.err"
	echo $? >"$T/run.$1.status"
	dsec-img rm "root/storm:$1" >"$T/rm.$1.b" 2>&1
	dsec-img prune --grace 0 >"$T/null" 2>&1
	wait
}
bad=0
for n in 1 2 3 4 5 6; do
	storm $n
	case $(cat "$T/run.$n.status"),$(cat "$T/run.$n") in
	0,hello) ;;
	125,) grep -q "storm" "$T/run.$n.err" || bad=1 ;;
	*) bad=1 ;;
	esac
	[ $bad = 0 ] || { diag "$(cat "$T/run.$n.status" "$T/run.$n" "$T/run.$n.err")"; break; }
done
is $bad 0 "launches beside removals and prunes work, or name the image"
# After a boot there is no run tree.
dsec-img mount root/base:1 >"$T/null"
leases=$(find "$DSEC_LIB/img/store/lease" -name '*.json' | wc -l)
DSEC_RUN=$T/booted dsec-img prune >"$T/null"
is "$leases $(find "$DSEC_LIB/img/store/lease" -name '*.json' | wc -l)" "1 0" \
	"what a boot unmounted is not leased any more"
dsec-img rm root/base:1 >"$T/null"
dsec-img prune --grace 0 >"$T/null"
run dsec-img prune --grace 0
is "$(find "$DSEC_LIB/img/store/blob" -name '*.data' | wc -l)" 0 \
	"without names and sandboxes nothing is left in the store"
is "$(tree_mounts | grep -c "^$DSEC_RUN/mnt/[0-9a-f]\{64\}$")" 0 \
	"and nothing mounted"
leak_check
done_testing
