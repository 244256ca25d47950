# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# The helper's proxies beside the same bytes without them, in namespaces of
# their own: a server, the node, a sandbox of each strength.  A third process
# beside sender and receiver takes its share of few processors, so there is the
# least one that can be thought of too: blocking, spliced, a process for each
# direction.

part_netproxy() {
	for tool in unshare nsenter ip; do
		command -v $tool >/dev/null || {
			unmeasured "proxies of the network helper" "no $tool"
			return
		}
	done
	n=${BENCH_ROUNDS:-7}
	[ -z "${BENCH_SMOKE:-}" ] || n=1
	say "proxies of the network helper, $n rounds"
	lines=$(unshare -n sh "$(dirname "$0")/netproxy" "$build/bench" "$bin" \
		"$W/netproxy" "$n") || die "no proxies"
	of() { # KEY
		printf '%s' "$lines" | jq ".$1"
	}
	bar "SNI proxy, beside the same link without it" \
		"$(of sni)" "$(of routed)" '>=' 0.9 Mbit/s
	bar "proxy of names, beside a connection from the node" \
		"$(of names)" "$(of direct)" '>=' 0.9 Mbit/s
	bar "SNI proxy, beside a bare relay behind a link" \
		"$(of sni)" "$(of veth)" '>=' 0.9 Mbit/s
	bar "proxy of names, beside a bare relay inside" \
		"$(of names)" "$(of lo)" '>=' 0.9 Mbit/s
	bar "memory of the helper after that, to before" \
		"$(of after_kb)" "$(of before_kb)" '<=' 1.1 KiB
}
