#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The first version's freezer, as on a node without the second's tree: to the
# disk and back, copies, a copy of a copy.  Where both are, the second is taken
# away from this test's mount namespace.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq busybox unshare
if [ -z "${RESTORE_V1:-}" ]; then
	[ -d /sys/fs/cgroup/freezer ] ||
		plan_skip_all "no freezer of the first version"
	RESTORE_V1=yes exec unshare -m --propagation private "$0"
fi
awk '$0 ~ / - cgroup2 / { print $5 }' /proc/self/mountinfo | sort -r |
	while read -r mnt; do
		umount -l "$mnt"
	done
tree_new
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"
matrix_image || plan_skip_all "no image"

counted() { # SANDBOX
	timeout 60 dsec-exec "$1" -- cat /srv/n </dev/null
}
# shellcheck disable=SC2317 # by wait_for
beyond() { # SANDBOX COUNT
	[ "$(counted "$1")" -gt "$2" ]
}
goes_on() { # SANDBOX WHAT
	goes_at=$(counted "$1")
	[ "${goes_at:-0}" -gt 0 ] && wait_for 30 beyond "$1" "$goes_at"
	ok $? "$2" || diag "it is at $goes_at"
}

# shellcheck disable=SC2016
run timeout 60 dsec-run -n src -i root/matrix:1 -m 64 --detach -- sh -c \
	'i=0; while :; do i=$((i + 1)); echo $i >/srv/.n; mv /srv/.n /srv/n
	sleep 0.05; done'
src=$(field "$out" .sandbox)
[ -d "/sys/fs/cgroup/freezer/$DSEC_CGROUP/$src" ]
ok $? "a sandbox in the first version's freezer" || diag "$out$err"
timeout 60 dsec-exec src --detach -- sleep 1000 >"$T/null" </dev/null
# shellcheck disable=SC2317 # by wait_for
begun() {
	[ "$(counted src)" -gt 0 ]
}
wait_for 20 begun
run timeout 20 dsec-pause src
is "$status $(cat "/sys/fs/cgroup/freezer/$DSEC_CGROUP/$src/freezer.state")" \
	"0 FROZEN" "it is frozen there" || diag "$out$err"
goes_on src "and goes on"
run timeout 60 dsec-pause --disk src
is "$status $(field "$out" .level)" "0 disk" "to the disk" || diag "$out$err"
goes_on src "and back"
run timeout 60 dsec-fork src --count 2 --name c
is "$status $(printf '%s\n' "$out" | jq -s 'map(select(.ok)) | length')" "0 2" \
	"two copies" || diag "$out$err"
goes_on c-0 "one goes on"
goes_on c-1 "and the other"
goes_on src "and the source"
run timeout 60 dsec-fork c-0 --name g
is "$status" 0 "a copy of a copy" || diag "$out$err"
goes_on g-0 "goes on"
run timeout 20 dsec-pause c-1
was=$(cat "$DSEC_LIB/sb/$(dsec-ps c-1 | jq -r .sandbox)/upper/srv/n")
goes_on g-0 "one that is paused holds up nobody"
is "$(cat "$DSEC_LIB/sb/$(dsec-ps c-1 | jq -r .sandbox)/upper/srv/n")" "$was" \
	"and stands still"
run timeout 60 dsec-pause --stop --grace 0 src c-0 c-1 g-0
is "$status" 0 "all end" || diag "$out$err"
run timeout 20 dsec-doctor --leaks
json_is "$out" '{"ok":true,"leaks":0}' "and leave nothing"
done_testing
