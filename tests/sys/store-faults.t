#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A store when building and pruning end anywhere: killed, on a full disk, with
# errors of the disk.  What was there before is whole, nothing half there can be
# seen, and what is left over goes with the next prunes.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools strace unshare
if [ -z "$STORE_FAULTS_NS" ]; then
	STORE_FAULTS_NS=1 exec unshare -m "$0"
fi
tree_new

D=$T/disk
S=$D/store
tool="$BUILD/unit/store_race"
mkdir "$D"
mount -t tmpfs -o size=8m,mode=755 none "$D" ||
	plan_skip_all "a tmpfs cannot be mounted"

whole() {
	"$tool" verify "$S" >"$T/verify" 2>&1
}

# What the store has of each kind, and in tmp.
census() {
	for c in 'manifest/*.json' 'meta/*.erofs' 'blob/*.data' 'blob/*.idx' \
		'tmp/*'; do
		printf '%s ' "$(find "$S/${c%%/*}" -type f -name "${c##*/}" |
			wc -l)"
	done
}

# Two prunes take all that nobody names.
settle() {
	"$tool" prune "$S" >/dev/null && "$tool" prune "$S" >/dev/null
}

# How often a run of the tool makes each of the calls: "CALL N" lines.
calls() { # CALLS ARG...
	calls_set=$1
	shift
	strace -qq -o "$T/trace" -e "trace=$calls_set" "$tool" "$@" \
		>/dev/null 2>&1
	sed -n 's/^\([a-z0-9]*\)(.*/\1/p' "$T/trace" | sort | uniq -c |
		while read -r n call; do
			echo "$call $n"
		done
}

changing=writev,write,pwrite64,fsync,mkdirat,linkat,renameat,unlinkat

"$tool" put "$S" root/keep:1 1 || exit 1

# --- killed ------------------------------------------------------------------

# The same name for new content each time.
n=0 bad='' killed=0
"$tool" put "$S" root/new:1 999
calls "$changing" put "$S" root/new:1 1000 >"$T/calls"
while read -r call times; do
	i=0
	while [ "$i" -lt "$times" ]; do
		i=$((i + 1)) n=$((n + 1))
		strace -qq -o /dev/null -e trace="$call" \
			-e inject="$call":signal=KILL:when="$i" \
			"$tool" put "$S" root/new:1 $((n * 10 + 2000)) \
			>/dev/null 2>&1
		# it makes directories that other digests had need of
		[ $? -ne 137 ] || killed=$((killed + 1))
		whole || bad="$bad $call.$i:$(cat "$T/verify")"
		# or the disk is full of them
		[ $((n % 5)) -ne 0 ] || settle || bad="$bad $call.$i:prune"
	done
done <"$T/calls" 2>/dev/null
is "$bad" "" "put: killed at $killed of $n steps"
is "$([ "$killed" -gt 40 ] && echo many)" many "those are many"
settle
run "$tool" put "$S" root/new:1 5
is "$status" 0 "then it works"
settle
is "$(census)" "2 2 2 2 0 " "and nothing else is left"

# Old content of the name is what a prune takes.
prune_at() { # CALL N
	n=$((n + 1))
	# what comes back is a candidate anew, and the disk small
	[ $((n % 3)) -ne 0 ] || settle
	"$tool" put "$S" root/new:1 $((n * 10)) && "$tool" prune "$S" ||
		bad="$bad $1.$2:before"
	strace -qq -o /dev/null -e trace="$1" \
		-e inject="$1":signal=KILL:when="$2" "$tool" prune "$S"
	[ $? -ne 137 ] || killed=$((killed + 1))
	whole || bad="$bad $1.$2:$(cat "$T/verify")"
}
n=1000 bad='' killed=0
"$tool" put "$S" root/new:1 7 && "$tool" prune "$S" >/dev/null
calls "$changing" prune "$S" >"$T/calls"
while read -r call times; do
	i=0
	while [ "$i" -lt "$times" ]; do
		i=$((i + 1))
		prune_at "$call" "$i" >/dev/null 2>&1
	done
done <"$T/calls" 2>/dev/null
is "$bad" "" "prune: killed at $killed of $((n - 1000)) steps"
is "$([ "$killed" -gt 12 ] && echo many)" many "those are many"
settle
is "$(census)" "2 2 2 2 0 " "nothing is lost, nothing is left"

# --- errors of the disk ------------------------------------------------------

errors_of() { # put|prune ERROR CALLS
	bad='' n=$((n + 1))
	"$tool" put "$S" root/new:1 $((n * 10)) && "$tool" prune "$S" >/dev/null
	what=$1 error=$2 at=$3
	set -- "$S"
	[ "$what" = prune ] || set -- "$S" root/new:1 8
	calls "$at" "$what" "$@" >"$T/calls"
	while read -r call times; do
		i=0
		while [ "$i" -lt "$times" ]; do
			i=$((i + 1)) n=$((n + 1))
			set -- "$S"
			[ "$what" = prune ] || set -- "$S" root/new:1 $((n * 10))
			strace -qq -o /dev/null -e trace="$call" \
				-e inject="$call":error="$error":when="$i" \
				"$tool" "$what" "$@" >/dev/null 2>"$T/said"
			s=$?
			[ "$s" -le 1 ] || bad="$bad $call.$i:$s"
			# what it says is a write, too
			[ "$s" -eq 0 ] || [ "$call" = write ] || [ -s "$T/said" ] ||
				bad="$bad $call.$i:silent"
			whole || bad="$bad $call.$i:$(cat "$T/verify")"
			[ -z "$(find "$S/tmp" -mindepth 1)" ] ||
				bad="$bad $call.$i:left"
			[ $((n % 5)) -ne 0 ] || settle
		done
	done <"$T/calls"
	is "$bad" "" "$what: $error at each step"
	settle
	is "$(census)" "2 2 2 2 0 " "and after that"
}
# not unlinkat, which cleans up after the others
errors_of put EIO write,writev,pwrite64,fsync,linkat,renameat
errors_of put ENOSPC write,writev,mkdirat
errors_of prune EIO write,fsync,mkdirat,renameat

# --- a full disk -------------------------------------------------------------

n=0
while "$tool" put "$S" root/full:$n $((n * 10 + 90000)) 2>"$T/said"; do
	n=$((n + 1))
	[ "$n" -lt 50 ] || break
done
like "$(cat "$T/said")" '^no_space: .*No space left' \
	"a full disk: after $n layers more"
run whole
is "$status" 0 "all of before is whole"
is "$(find "$S/tmp" -mindepth 1)" "" "nothing is left in tmp"
rm -r "$S/tag/root/full"
dd if=/dev/zero of="$D/rest" bs=4k 2>/dev/null
run "$tool" prune "$S"
is "$status $(echo "$err" | cut -d: -f1)" "1 no_space" \
	"no list can be written on a disk that is full"
truncate -s -4096 "$D/rest"
run "$tool" prune "$S"
is "$status" 0 "a block is enough for it"
dd if=/dev/zero of="$D/rest2" bs=4k 2>/dev/null
run "$tool" prune "$S"
# the blob of the one that failed may have come so far
is "$status $([ "$out" -ge "$n" ] && echo all)" "0 all" \
	"then all goes, even if that is gone as well"
rm "$D/rest" "$D/rest2"
run "$tool" put "$S" root/full:1 3
is "$status" 0 "there is room again"
run whole
is "$status" 0 "and all is whole"

umount "$D"
done_testing
