# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# A namespace that stands for a sandbox of strength names, for tests of the
# helper alone.
#
#   box_new NAME         make it; its pid is $NAME, its files are in $T/NAME
#   box_end NAME
#   in_box NAME CMD...   run there
#   client NAME ARGS...  net_client.py there
#   worker, keeper       the pids of the helper
#   helper_end           end it

box_new() {
	mkdir -p "$T/$1"
	echo 'nameserver 198.18.0.1' >"$T/$1/resolv.conf"
	# shellcheck disable=SC2016
	unshare -n -m sh -c 'ip link set lo up
		ip addr add 198.18.0.2/32 dev lo
		ip route add local 198.18.0.0/15 dev lo
		mount --bind "$0/resolv.conf" "$(readlink -f /etc/resolv.conf)"
		: >"$0/up"
		exec sleep 3600' "$T/$1" &
	eval "$1=$!"
	wait_for 30 test -e "$T/$1/up"
}

box_end() {
	eval "kill \"\$$1\"; wait \"\$$1\" 2>/dev/null"
}

in_box() {
	eval "box_pid=\$$1"
	shift
	# shellcheck disable=SC2154
	nsenter -t "$box_pid" -n -m "$@"
}

client() {
	eval "box_pid=\$$1"
	shift
	nsenter -t "$box_pid" -n python3 "$(dirname "$0")/net_client.py" "$@"
}

keeper() {
	"$BUILD/bench/netctl" stats | jq .helper.pid
}

worker() {
	"$BUILD/bench/netctl" stats | jq .helper.worker
}

helper_end() {
	box_pid=$(keeper)
	kill "$box_pid"
	# shellcheck disable=SC2016
	wait_for 30 sh -c '! kill -0 "$0" 2>/dev/null' "$box_pid"
}
