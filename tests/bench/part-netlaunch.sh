# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# What a network costs a launch: the same one-shot without one, with names and
# routed, in a network namespace that is the node.

netlaunch_node=

netlaunch_in() {
	nsenter --net="/proc/$netlaunch_node/ns/net" -- "$@"
}

netlaunch_start() {
	unshare -n sh -c 'ip link set lo up && echo ready >"$1"
		exec sleep 100000' sh "$W/netnode" >/dev/null 2>&1 &
	netlaunch_node=$!
	i=0
	until [ -s "$W/netnode" ]; do
		i=$((i + 1))
		[ $i -lt 200 ] || die "no network namespace"
		sleep 0.05
	done
	mkdir -p "$DSEC_CONFIG"
	echo '{"dns": ["192.0.2.53"]}' >"$DSEC_CONFIG/net.json"
	netlaunch_in "$bin/dsec-net" --uplink up >/dev/null
	# Whatever bench starts, it waits for; the helper stays.
	netlaunch_in "$bin/dsec-run" --rm --network \
		'{"allow":[{"domain":"example.org"}]}' -- "$busybox" true
}

# The helper of our tree is nobody's child.
netlaunch_end() {
	grep -lsF "DSEC_RUN=$DSEC_RUN" /proc/[0-9]*/environ | cut -d/ -f3 |
		while read -r p; do
			case $(cat "/proc/$p/comm" 2>/dev/null) in
			dsec-net) kill "$p" 2>/dev/null ;;
			esac
		done
	kill "$netlaunch_node"
	netlaunch_node=
	rm -f "$DSEC_CONFIG/net.json"
}

part_netlaunch() {
	netlaunch_start
	one="$bin/dsec-run --rm --cpu 1 --memory 512M"
	names='{"allow":[{"domain":"*.example.org","ports":[80,443]}]}'
	routed='{"allow":[{"cidr":"203.0.113.0/24","ports":[443]}]}'
	say "a static true in a sandbox with a network: $rounds rounds"
	r=$(netlaunch_in "$build/bench/bench" --work "$W" \
		--peers "/proc/$keeper/ns/mnt" --seccomp "$W/syscalls" \
		--rounds "$rounds" <<-EOT
		none - $one -- $busybox true
		names - $one --network $names -- $busybox true
		routed - $one --network $routed -- $busybox true
	EOT
	)
	show "$r"
	none=$(value "$r" none p50_ms)
	bar "launch with names, p50, to none" "$(value "$r" names p50_ms)" \
		"$none" '<=' 1.15
	bar "launch routed, p50, to none" "$(value "$r" routed p50_ms)" \
		"$none" '<=' 1.5
	netlaunch_end
}
