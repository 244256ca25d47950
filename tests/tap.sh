# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2034
#
# TAP for tests in POSIX sh.  A test begins with
#
#	. "$(dirname "$0")/../tap.sh"
#
# and ends with done_testing.  tests/run sets BIN (the programs) and BUILD (the
# build directory; helpers are in $BUILD/helpers).  Checks count in shell
# variables: never call them in a pipeline or a subshell.
#
#   ok STATUS WHAT             0 is good: `cmd; ok $? "it works"`
#   is GOT WANT WHAT           equal strings
#   isnt GOT OTHER WHAT        different strings
#   like GOT ERE WHAT          a line of GOT matches
#   unlike GOT ERE WHAT        no line does
#   json_is GOT WANT WHAT [F]  the same JSON whatever the order of keys; the jq
#                              filter F is applied to GOT first
#   field JSON FILTER          print what jq -r makes of it
#   skip WHAT WHY              counts as a skipped check
#   plan_skip_all WHY          the whole test is skipped; ends it
#   need_root, need_tools T... plan_skip_all where they are missing
#   run CMD...                 sets $status, $out and $err (text, no newline at
#                              the end); standard input is /dev/null
#   wait_for SECONDS CMD...    until CMD succeeds; fails after SECONDS
#   own_address                print an address of the loopback that no other test
#                              has: a port of it, below those that are given to
#                              who asks for any, is free at any time
#   diag TEXT                  a comment
#
#   tree_new                   a tree of our own: exports DSEC_RUN (on tmpfs),
#                              DSEC_LIB, DSEC_CONFIG, DSEC_CGROUP and PATH, sets
#                              $T, a scratch directory.  At exit every sandbox of
#                              the tree ends and all of it is removed.
#   leak_start, leak_check [WHAT]
#                              what this tree holds of the machine (mounts,
#                              cgroups, processes and those that somebody traces
#                              still, network namespaces, loop
#                              devices, sockets, files) must be the same again
#                              at leak_check, within LEAK_S (10) seconds: one
#                              check.  What the node prepares once (mnt/) and
#                              keeps on purpose (dead/, img/, key/, engine/) is not counted
#                              unless it was there at leak_start.

tap_n=0
tap_bad=0
status=0 out='' err=''
T='' DSEC_TREE=''

diag() {
	printf '%s\n' "$*" | sed 's/^/# /'
}

tap_result() { # STATUS WHAT
	tap_n=$((tap_n + 1))
	if [ "$1" -eq 0 ]; then
		printf 'ok %d - %s\n' "$tap_n" "$2"
	else
		tap_bad=$((tap_bad + 1))
		printf 'not ok %d - %s\n' "$tap_n" "$2"
	fi
	return "$1"
}

ok() {
	tap_result "$1" "$2" || return 1
}

is() {
	if [ "$1" = "$2" ]; then
		tap_result 0 "$3"
	else
		tap_result 1 "$3"
		diag "got:  $1"
		diag "want: $2"
		return 1
	fi
}

isnt() {
	if [ "$1" != "$2" ]; then
		tap_result 0 "$3"
	else
		tap_result 1 "$3"
		diag "got what it must not be: $1"
		return 1
	fi
}

like() {
	if printf '%s\n' "$1" | grep -Eq -e "$2"; then
		tap_result 0 "$3"
	else
		tap_result 1 "$3"
		diag "got:        $1"
		diag "want match: $2"
		return 1
	fi
}

unlike() {
	if printf '%s\n' "$1" | grep -Eq -e "$2"; then
		tap_result 1 "$3"
		diag "got:           $1"
		diag "must not match: $2"
		return 1
	fi
	tap_result 0 "$3"
}

json_is() {
	json_is_got=$(printf '%s\n' "$1" | jq -cS "${4:-.}" 2>&1) ||
		json_is_got="not JSON: $1"
	json_is_want=$(printf '%s\n' "$2" | jq -cS . 2>&1) ||
		json_is_want="(the test is wrong) $2"
	is "$json_is_got" "$json_is_want" "$3"
}

field() {
	printf '%s\n' "$1" | jq -r "$2"
}

skip() {
	tap_n=$((tap_n + 1))
	printf 'ok %d - %s # SKIP %s\n' "$tap_n" "$1" "$2"
}

plan_skip_all() {
	printf '1..0 # SKIP %s\n' "$1"
	exit 0
}

need_root() {
	[ "$(id -u)" -eq 0 ] || plan_skip_all "needs root"
}

need_tools() {
	for need_tool; do
		command -v "$need_tool" >/dev/null 2>&1 ||
			plan_skip_all "needs $need_tool"
	done
}

run() {
	: "${T:?call tree_new first}"
	"$@" </dev/null >"$T/.out" 2>"$T/.err"
	status=$?
	out=$(cat "$T/.out")
	err=$(cat "$T/.err")
	return 0
}

now_s() {
	cut -d. -f1 /proc/uptime
}

# A look that began before the time was up does not decide: it may be slow.
wait_for() {
	wait_end=$(($(now_s) + $1))
	shift
	while :; do
		wait_began=$(now_s)
		"$@" && return
		[ "$wait_began" -lt "$wait_end" ] || return 1
		sleep 0.05
	done
}

own_address() {
	echo "127.$((64 + $$ / 65536)).$(($$ / 256 % 256)).$(($$ % 256))"
}

done_testing() {
	printf '1..%d\n' "$tap_n"
	[ "$tap_bad" -eq 0 ] || exit 1
	exit 0
}

# --- the tree ----------------------------------------------------------------

tree_new() {
	T=$(mktemp -d "${TMPDIR:-/tmp}/dsec-test.XXXXXX") || exit 1
	DSEC_TREE=$T
	# Only the name of the run tree is random: its place decides its speed.
	if [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ]; then
		DSEC_RUN=$(mktemp -d /dev/shm/dsec-test.XXXXXX) || exit 1
	else
		DSEC_RUN=$T/run
	fi
	chmod 755 "$T"
	DSEC_LIB=$T/lib
	DSEC_CONFIG=$T/config
	DSEC_CGROUP=dsec-test-$$
	mkdir -p "$DSEC_RUN" "$DSEC_LIB" "$DSEC_CONFIG"
	chmod 700 "$DSEC_RUN" "$DSEC_LIB"
	PATH=${BIN:?}:$PATH
	export DSEC_RUN DSEC_LIB DSEC_CONFIG DSEC_CGROUP PATH
	trap 'tree_end $?' EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
}

# Our own groups in every hierarchy, deepest first.
tree_cgroups() {
	for tree_cg in /sys/fs/cgroup/"$DSEC_CGROUP" \
		/sys/fs/cgroup/*/"$DSEC_CGROUP"; do
		[ -d "$tree_cg" ] && find "$tree_cg" -depth -type d
	done 2>/dev/null
	return 0
}

tree_mounts() {
	awk -v a="$DSEC_TREE/" -v b="$DSEC_RUN/" '
		index($5, a) == 1 || index($5, b) == 1 { print $5 }
	' /proc/self/mountinfo
}

# The processes of the tree's sandboxes and the programs of ours that serve it.
tree_pids() {
	for tree_cg in $(tree_cgroups); do
		cat "$tree_cg/cgroup.procs"
	done 2>/dev/null >"$T/.pids"
	grep -lsF "DSEC_RUN=$DSEC_RUN" /proc/[0-9]*/environ |
		while IFS=/ read -r _ _ tree_pid _; do
			case $(cat "/proc/$tree_pid/comm" 2>/dev/null) in
			dsec-*) echo "$tree_pid" ;;
			esac
		done >>"$T/.pids"
	sort -un "$T/.pids"
}

tree_stop_all() {
	if [ -x "$BIN/dsec-pause" ]; then
		timeout 20 "$BIN/dsec-pause" --stop --grace 0 --project root \
			</dev/null >/dev/null 2>&1
	fi
	# Whatever that left: by the group, then one by one.
	for tree_cg in $(tree_cgroups); do
		[ ! -e "$tree_cg/cgroup.kill" ] || echo 1 >"$tree_cg/cgroup.kill"
	done 2>/dev/null
	for tree_pid in $(tree_pids); do
		kill -KILL "$tree_pid"
	done 2>/dev/null
	return 0
}

tree_groups_gone() {
	for tree_cg in $(tree_cgroups); do
		rmdir "$tree_cg"
	done 2>/dev/null
	[ -z "$(tree_cgroups)" ]
}

tree_unmount() {
	tree_mounts | sort -r | while read -r tree_mnt; do
		umount "$tree_mnt" || umount -l "$tree_mnt"
	done 2>/dev/null
	[ -z "$(tree_mounts)" ]
}

tree_end() { # STATUS
	trap - EXIT HUP INT TERM
	[ -n "$DSEC_TREE" ] || exit "$1"
	tree_stop_all
	wait_for 5 tree_groups_gone || diag "cgroups left: $(tree_cgroups)"
	tree_unmount
	if [ -n "$(tree_mounts)" ]; then
		diag "mounts left: $(tree_mounts)"
	else
		rm -rf --one-file-system "$DSEC_RUN" "$DSEC_TREE"
	fi
	exit "$1"
}

# --- leaks -------------------------------------------------------------------

leak_files() {
	find "$DSEC_RUN" "$DSEC_LIB" -mindepth 2 \
		\( -path "$DSEC_RUN/mnt/*" -o -path "$DSEC_LIB/dead/*" \
		-o -path "$DSEC_LIB/img/*" -o -path "$DSEC_RUN/key/*" \
		-o -path "$DSEC_RUN/engine/*" \) -prune -o -print 2>/dev/null
}

leak_list() {
	leak_pids=$(tree_pids)
	tree_mounts | grep -v "^$DSEC_RUN/mnt/" | sed 's/^/mount /'
	grep -hsF -e "$DSEC_RUN/" -e "$DSEC_TREE/" /proc/self/mountinfo |
		grep ' - nsfs ' | sed 's/^/nsfs /'
	tree_cgroups | grep -E "/$DSEC_CGROUP/[a-z2-7]{20}" | sed 's/^/cgroup /'
	for leak_pid in $leak_pids; do
		echo "process $leak_pid $(tr '\0' ' ' \
			<"/proc/$leak_pid/cmdline" 2>/dev/null)"
		grep -q '^TracerPid:.*[1-9]' "/proc/$leak_pid/status" &&
			echo "traced $leak_pid"
		readlink "/proc/$leak_pid/ns/net" | sed 's/^/netns /'
	done 2>/dev/null | grep -vF "netns $(readlink /proc/self/ns/net)"
	grep -hsF -e "$DSEC_RUN/" -e "$DSEC_TREE/" \
		/sys/block/loop*/loop/backing_file | sed 's/^/loop /'
	awk -v a="$DSEC_TREE/" -v b="$DSEC_RUN/" '
		index($8, a) == 1 || index($8, b) == 1 { print "socket", $8 }
	' /proc/net/unix
	leak_files | sed 's/^/file /'
}

leak_prepared() {
	tree_mounts | grep "^$DSEC_RUN/mnt/" | sort
}

# What ends behind an answer has ended: nothing changes for a moment.
leak_settled() {
	leak_list | sort -u >"$T/.leak-before"
	sleep 0.3
	leak_list | sort -u | cmp -s "$T/.leak-before" -
}

leak_start() {
	wait_for "${LEAK_S:-10}" leak_settled
	leak_prepared >"$T/.leak-prepared"
}

leak_same() {
	leak_list | sort -u >"$T/.leak-after"
	if [ -s "$T/.leak-prepared" ]; then
		leak_prepared | comm -13 "$T/.leak-prepared" - |
			sed 's/^/mount /' >>"$T/.leak-after"
	fi
	cmp -s "$T/.leak-before" "$T/.leak-after"
}

# The scratch files of the functions above are no leak: they are in $T itself,
# which is neither $DSEC_RUN nor $DSEC_LIB.
leak_check() {
	if wait_for "${LEAK_S:-10}" leak_same; then
		tap_result 0 "${1:-nothing is left behind}"
	else
		tap_result 1 "${1:-nothing is left behind}"
		diag "$(diff "$T/.leak-before" "$T/.leak-after" | grep '^[<>]' |
			head -n 20)"
		return 1
	fi
}
