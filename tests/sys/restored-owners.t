#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whose things are after a restore, with the same ids of the host and, in a
# fork, with others: files, deleted files, memory, sockets, terminals, System V.
# shellcheck source=tests/tap.sh disable=SC2317
. "$(dirname "$0")/../tap.sh"
need_root
need_tools timeout jq busybox
here=$(cd "$(dirname "$0")" && pwd)
helpers=$(cd "$BUILD/helpers" && pwd)
tree_new
# shellcheck source=tests/sys/matrix.sh
. "$here/matrix.sh"
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"
echo "$helpers" >"$DSEC_CONFIG/mounts.allow"
matrix_image || plan_skip_all "no image"

said() { # NAME: what the helper in it says now
	timeout -s KILL 60 dsec-exec "$1" -- sh -c '
		rm -f /srv/o/said
		echo now >/srv/o/ask
		until [ -e /srv/o/said ]; do busybox usleep 20000; done
		cat /srv/o/said' </dev/null 2>&1
}

run timeout -s KILL 60 dsec-run --detach --name src --image root/matrix:1 \
	--mount "[{\"source\":\"$helpers\",\"target\":\"/opt\"}]"
is "$status" 0 "a sandbox is up" || diag "$out"
run timeout 60 dsec-exec src --detach -- /opt/owners /srv/o
wait_for 20 timeout 20 dsec-exec src -- test -p /srv/o/ask
ok $? "user 1000 has things"
said src >"$T/before"
[ "$(wc -l <"$T/before")" = 18 ]
ok $? "eighteen" || diag "$(cat "$T/before")"

# Commands of a user who open their streams anew, one on pipes, one on a terminal.
for tty in '' --tty; do
	# shellcheck disable=SC2086
	run timeout 60 dsec-exec src --user 1000:1001 --detach $tty -- sh -c '
		mkdir "/srv/s$0" && cd "/srv/s$0" || exit
		echo "$$" >ready
		for i in 1 2 3; do
			until [ -e "ask$i" ]; do busybox usleep 20000; done
			echo out >/dev/stdout && echo err >/dev/stderr &&
				echo fd >/proc/self/fd/1
			echo "$? $(stat -L -c "%u %g" /proc/self/fd/2)" >now
			mv now "said$i"
		done' "$tty"
	wait_for 20 timeout 20 dsec-exec src -- test -e "/srv/s$tty/ready"
	ok $? "user 1000 has a command ${tty:-on pipes}" || diag "$out"
done

anew() { # NAME N: status and owner of a stream of both, the Nth time
	timeout -s KILL 60 dsec-exec "$1" -- sh -c '
		for s in s s--tty; do
			touch "/srv/$s/ask$0"
			until [ -e "/srv/$s/said$0" ]; do
				busybox usleep 20000
			done
			cat "/srv/$s/said$0"
		done' "$2" </dev/null 2>&1
}
streams=$(printf '0 1000 1001\n0 1000 5')
is "$(anew src 1)" "$streams" "its streams are its own"

# What the engine makes as root inside and gives to nobody: the inodes of pipes
# and sockets, the peer a socket pair remembers, and the creator (not the owner)
# of what is System V's.  /dev/pts, with a terminal of outside, stays the host's.
sed -e 's/^\(socket\|pipe\|peer\) .*/\1 0 0/' \
	-e 's/^\(shm\|sem\|msg\) 1000 1000/\1 1000 0/' \
	"$T/before" >"$T/want"

run timeout -s KILL 60 dsec-pause --level disk src
is "$status" 0 "paused to disk" || diag "$out"
for what in 'the owner of a pipe' 'the peer \(SO_PEERCRED\) of a unix socket'; do
	like "$(field "$out" '.warnings[]')" \
		"'owners'.*: $what .descriptor [0-9]+. is user 1000, and root" \
		"the record says so: $what"
done
is "$(said src)" "$(cat "$T/want")" "resumed: whose they are"
is "$(anew src 2)" "$streams" "streams too"

run timeout -s KILL 60 dsec-fork src --count 2
is "$status" 0 "forked" || diag "$out"
: >"$T/bases"
for child in $(field "$out" .sandbox); do
	is "$(said "$child")" "$(cat "$T/want")" "forked: whose they are"
	is "$(anew "$child" 3)" "$streams" "streams too"
	run timeout 20 dsec-exec "$child" -- cat /proc/self/uid_map \
		/proc/self/gid_map
	echo "$out" | awk '{ print $2 }' >>"$T/bases"
done
is "$(sort "$T/bases" | uniq -c | awk '{ print $1 }' | tr '\n' ' ')" '2 2 ' \
	"two ranges for two copies, each for users and groups"

run timeout -s KILL 60 dsec-pause --stop --grace 0 --project root
is "$status" 0 "all stopped" || diag "$out"
done_testing
