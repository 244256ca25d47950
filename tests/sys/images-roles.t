#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A store that a builder owns and a node only reads: what the node may do, and
# how what it packs comes back.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools flock jq setpriv unshare
tree_new

busybox=$(command -v busybox) || plan_skip_all "needs busybox"
ldd "$busybox" >"$T/null" 2>&1 && plan_skip_all "needs a static busybox"
mkdir -p "$T/root/bin" "$T/root/etc" "$T/shared" "$T/run" "$T/lib"
cp "$busybox" "$T/root/bin/busybox"
ln -s busybox "$T/root/bin/sh"
echo 'root:x:0:0::/:/bin/sh' >"$T/root/etc/passwd"
chown 4711:4711 "$T/shared" "$T/run" "$T/lib"
echo "{\"store\":\"$T/shared\"}" >"$DSEC_CONFIG/images.json"
chmod 755 "$DSEC_CONFIG"

builder() {
	run env DSEC_RUN="$T/run" DSEC_LIB="$T/lib" setpriv --reuid 4711 \
		--regid 4711 --clear-groups "$BIN/dsec-img" "$@"
}

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

builder import "dir:$T/root" --as root/base:1 --env PATH=/bin
is "$status" 0 "the builder, no root, fills the store" || diag "$out$err"
run dsec-img ls
is "$(printf '%s\n' "$out" | jq -r 'select(.event).name')" root/base:1 \
	"the node reads it"
run dsec-img import "dir:$T/root" --as root/mine:1
is "$status $(code)" "77 permission" "and may not write"
leak_start
run dsec-run --detach --name one --image root/base:1
is "$status" 0 "it launches" || diag "$out$err"
run dsec-exec one -- sh -c 'echo made >/made'
is "$status" 0 "and works"
run dsec-img pack one --as root/packed:1
is "$status" 0 "what it packs" || diag "$out$err"
inbox=$(field "$out" .inbox)
like "$inbox" '^inbox:[^/]+/root\.packed\.1$' "goes to its inbox"
is "$(find "$T/shared" -name '*.tar' -perm /022 | wc -l)" 0 \
	"where others cannot change it"
# shellcheck disable=SC2317 # by wait_for
waits() { # PID: for a lock
	grep -q -- "-> FLOCK .* $1 " /proc/locks
}

# Between its making and its lock a place to pack into is nobody's.
exec 9<"$DSEC_LIB/img/pack"
flock 9
dsec-img pack one --as root/packed:1 >"$T/waiting" 9<&- &
packing=$!
wait_for 20 waits $packing
ok $? "one pack waits while another makes its place"
run timeout 10 dsec-exec one -- sh -c :
is "$status" 0 "and the sandbox runs on" || diag "$err"
exec 9<&-
wait $packing
is "$? $(jq -r .inbox "$T/waiting")" "0 $inbox" "until it has its turn"
cp -a "$T/shared/inbox/$(dirname "${inbox#inbox:}")" "$T/shared/inbox/ab-Host.X"
builder import "inbox:ab-Host.X/$(basename "$inbox")" --as root/capitals:1
is "$status" 0 "the builder imports from a host with capitals" || diag "$out"
builder import "$inbox" --as root/packed:1
is "$status $(field "$out" '.proposed + " " + .kind')" \
	"0 root/packed:1 workspace" "the builder imports it" || diag "$out$err"
run dsec-run --rm --image root/base:1 --layer root/packed:1 -- \
	sh -c 'read -r x </made; echo "$x"'
is "$out" made "and the node runs on it" || diag "$err"
builder inspect root/packed:1
is "$(field "$out" '.parents | length')" 1 "it knows what it was packed on"
builder tag root/base:1 root/spare:1
chown root:root "$T/run" && chmod 700 "$T/run"
builder rm root/spare:1
is "$status $(field "$out" .sandboxes_seen)" "0 false" \
	"a builder who may not see the sandboxes is told so" || diag "$out"
builder prune
is "$status $(field "$(printf '%s\n' "$out" | tail -n 1)" .sandboxes_seen)" \
	"0 false" "by prune too" || diag "$out"
chown 4711:4711 "$T/run"
builder tag root/base:1 root/spare:1
builder rm root/spare:1
is "$status $(field "$out" 'has("sandboxes_seen")')" "0 false" \
	"and who sees them is not"
builder rm root/base:1
is "$status $(code)" "1 image_in_use" "which is kept for it"
run dsec-img rm root/packed:1
is "$status $(code)" "77 permission" "the node removes nothing"
stop one
run dsec-img prune --grace 0
is "$status $(field "$(printf '%s\n' "$out" | tail -n 1)" \
	'"\(.read_only) \(.unmounted)"')" "0 true 2" \
	"its prune unmounts, and removes nothing"
is "$(tree_mounts | grep -c "^$DSEC_RUN/mnt/[0-9a-f]\{64\}$")" 0 \
	"nothing is mounted"

# Root's own store, shared read-only: the node is no builder of it.
mkdir "$T/ro"
run dsec-img import "dir:$T/root" --as root/own:1 --env PATH=/bin --store "$T/ro"
is "$status" 0 "a store of root" || diag "$out$err"
cat >"$T/on-ro" <<-'EOF'
	set -e
	mount --bind "$1" "$1"
	mount -o remount,bind,ro "$1"
	shift
	exec "$@"
EOF
on_ro() {
	run unshare -m --propagation slave sh "$T/on-ro" "$T/ro" "$@"
}
echo "{\"store\":\"$T/ro\"}" >"$DSEC_CONFIG/images.json"
on_ro dsec-img tag root/own:1 root/two:1
is "$status $(code)" "77 permission" "where it is read-only, it is not written"
like "$(field "$out" .error.message)" 'is read-only here' "and why"
# Its mounts are those of that namespace.
on_ro sh -c 'dsec-run --rm --image root/own:1 -- sh -c "echo ran" &&
	dsec-img unmount --all && dsec-img mount root/own:1 && dsec-img prune'
is "$status $(printf '%s\n' "$out" | head -n 1)" "0 ran" "a launch on it" ||
	diag "$err"
is "$(printf '%s\n' "$out" | sed 1d | jq -r '[(.unmounted | arrays |= length),
	.read_only] | @csv' | tr '\n' ' ')" '1, , 1,true ' \
	"unmount, mount and prune" || diag "$out"
is "$(tree_mounts | grep -c "^$DSEC_RUN/mnt/[0-9a-f]\{64\}$")" 0 \
	"nothing is mounted then"
echo "{\"store\":\"$T/shared\"}" >"$DSEC_CONFIG/images.json"
builder verify --all --data
is "$status" 0 "the store is whole" || diag "$out"
leak_check
done_testing
