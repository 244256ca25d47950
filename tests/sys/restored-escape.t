#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the root of a sandbox may try when it came back from the disk, and in a
# fork of that: escape.t's attempts, by a process that was there before and by
# one that entered after.  Mounts made by the engine are not locked as those of
# a launch are: capabilities and filters must hold alone.
# shellcheck source=tests/tap.sh disable=SC2317
. "$(dirname "$0")/../tap.sh"
need_root
need_tools perl timeout jq busybox
here=$(cd "$(dirname "$0")" && pwd)
helpers=$(cd "$BUILD/helpers" && pwd)
tree_new
# shellcheck source=tests/sys/matrix.sh
. "$here/matrix.sh"
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"
echo "$helpers" >"$DSEC_CONFIG/mounts.allow"
matrix_image || plan_skip_all "no image"
# This image's programs are its own, in its own layer: no matter of the host's.
{
	printf '3 open_by_handle_at own file\tEPERM EOPNOTSUPP\n'
	printf '12 overwrite /%s/*\tok EROFS ETXTBSY ENOENT\n' bin lib usr
	cat "$here/escape.expect"
} >"$T/expect"

up() { # NAME ARGS...: a sandbox with the helpers in /opt
	up_name=$1
	shift
	run timeout -s KILL 60 dsec-run --detach --name "$up_name" \
		--image root/matrix:1 --mount \
		"[{\"source\":\"$helpers\",\"target\":\"/opt\"}]" "$@"
	is "$status" 0 "$up_name is up" || diag "$out"
}

within() { # NAME SCRIPT
	timeout -s KILL 60 dsec-exec "$1" -- sh -c "$2" 2>&1 </dev/null
}

# A process that waits now and tries later; its number inside.
lie_in_wait() { # NAME PROGRAM ARGS
	within "$1" "busybox mkfifo /srv/go-$2" || return 1
	timeout 60 dsec-exec "$1" --detach -- sh -c "echo \$\$ >/srv/pid-$2
		read -r go </srv/go-$2; exec /opt/$2 $3 >/srv/out-$2 2>&1" \
		</dev/null >"$T/detach" 2>&1
	wait_for 20 within "$1" "test -s /srv/pid-$2"
}

# What of a process decides what it may do.
rights() { # NAME
	within "$1" 'for p in 1 $(cat /srv/pid-escape); do
		grep -E "^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp)" /proc/$p/status
	done; cat /proc/self/setgroups'
}

# Every mount: its root, where, its flags, of which file system.
mounts() { # NAME
	within "$1" 'cat /proc/self/mountinfo' | awk '{
		for (i = 7; $i != "-"; i++);
		print $5, $5 == "/opt" ? "" : $4, $6, $(i + 1) }' | sort
}

uid_base() { # NAME
	within "$1" 'cat /proc/self/uid_map' | awk '{ print $1, $3, $2 }'
}

judged() { # WHAT: of $T/attempts
	perl "$here/judge" "$T/expect" default $((tap_n + 1)) \
		<"$T/attempts" >"$T/judged"
	sed '$d' "$T/judged" | sed "s/ default: / $1: /"
	tap_bad=$((tap_bad + $(grep -c '^not ok' "$T/judged")))
	tap_n=$(($(sed -n 's/^total //p' "$T/judged") - 1))
	tail -n 1 "$T/attempts" | grep -q '^0 end'
	ok $? "$1: to its end"
}

# By whom was there before: it goes on, and tries.
by_restored() { # NAME PROGRAM WHAT
	within "$1" "echo go >/srv/go-$2" >"$T/go"
	wait_for 60 within "$1" "grep -q '^0 end' /srv/out-$2"
	within "$1" "cat /srv/out-$2" >"$T/attempts"
	judged "$3, $2 by whom was there before"
	[ "$2" != escape ] || as_before "$3, by whom was there before"
}

# Not only as expected: as before.
as_before() { # WHAT
	diff "$T/before" "$T/attempts" >"$T/diff"
	ok $? "$1: every answer is the one of before" || diag "$(cat "$T/diff")"
}

by_entered() { # NAME PROGRAM ARG WHAT
	timeout -s KILL 60 dsec-exec "$1" -- "/opt/$2" ${3:+"$3"} \
		>"$T/attempts" 2>"$T/err" </dev/null
	is $? 0 "$4: $2 ran" || diag "$(cat "$T/err")"
	judged "$4, $2 entered"
}

same_house() { # NAME WHAT
	is "$(rights "$1")" "$rights" "$2: ids, capabilities and filters"
	mounts "$1" >"$T/mounts.now"
	diff "$T/mounts" "$T/mounts.now" >"$T/diff"
	ok $? "$2: the same mounts with the same flags" || diag "$(cat "$T/diff")"
}

# --- before -------------------------------------------------------------------

# The node keeps what it mounts for the image.
dsec-run -i root/matrix:1 --detach -- true >"$T/warm" </dev/null
run timeout 20 dsec-pause --stop --grace 0 "$(jq -r .sandbox "$T/warm")"
leak_start
up src
lie_in_wait src escape
ok $? "a process waits to try"
lie_in_wait src siege inside
ok $? "and another"
rights=$(rights src)
like "$rights" '^CapPrm:	00000010800405fb$' "pid 1 has a capability more"
like "$rights" '^CapPrm:	00000000800405fb$' "than the others"
mounts src >"$T/mounts"
[ "$(wc -l <"$T/mounts")" -gt 10 ]
ok $? "masks are mounted"
base=$(uid_base src)
by_entered src escape '' "launched"
mv "$T/attempts" "$T/before"

# --- from the disk ------------------------------------------------------------

run timeout -s KILL 60 dsec-pause --level disk src
is "$status $(field "$out" .level)" "0 disk" "paused to disk" || diag "$out"
same_house src "resumed"
is "$(uid_base src)" "$base" "resumed: the same ids of the host"

# The copy is made before anybody has tried, and of one that was restored.
run timeout -s KILL 60 dsec-fork src --count 1
is "$status" 0 "forked" || diag "$out"
child=$(field "$out" .sandbox)

by_entered src escape '' "resumed"
as_before "resumed"
by_entered src siege inside "resumed"
by_restored src escape "resumed"
by_restored src siege "resumed"

# --- a copy -------------------------------------------------------------------

same_house "$child" "forked"
isnt "$(uid_base "$child")" "$base" "forked: other ids of the host"
like "$(uid_base "$child")" '^0 65536 [0-9]+$' "as many"
by_entered "$child" escape '' "forked"
as_before "forked"
by_entered "$child" siege inside "forked"
by_restored "$child" escape "forked"
by_restored "$child" siege "forked"

# --- who cannot be checkpointed -------------------------------------------------

for profile in sealed nested; do
	up "in-$profile" --profile $profile
	run timeout -s KILL 60 dsec-pause --level disk "in-$profile"
	is "$status $(field "$out" .error.code)" "1 not_checkpointable" \
		"$profile: refused" || diag "$out"
	is "$(within "in-$profile" 'echo well')" well "$profile: it runs on"
done

run timeout -s KILL 60 dsec-pause --stop --grace 0 src "$child" in-sealed \
	in-nested
is "$status" 0 "all stopped" || diag "$out"
leak_check "nothing is left of them"
done_testing
