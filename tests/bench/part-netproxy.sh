# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# The helper's proxies beside the same bytes without them, in namespaces of
# their own: a server, the node, a sandbox of each strength.

part_netproxy() {
	for tool in unshare nsenter ip; do
		command -v $tool >/dev/null || {
			unmeasured "proxies of the network helper" "no $tool"
			return
		}
	done
	n=7
	[ -z "${BENCH_SMOKE:-}" ] || n=1
	say "proxies of the network helper, $n rounds"
	lines=$(unshare -n sh "$(dirname "$0")/netproxy" "$build/bench" "$bin" \
		"$W/netproxy" "$n") || die "no proxies"
	bar "SNI proxy, beside the same link without it" \
		"$(printf '%s' "$lines" | jq .sni)" \
		"$(printf '%s' "$lines" | jq .routed)" '>=' 0.9 Mbit/s
	bar "proxy of names, beside a connection from the node" \
		"$(printf '%s' "$lines" | jq .names)" \
		"$(printf '%s' "$lines" | jq .direct)" '>=' 0.9 Mbit/s
	bar "memory of the helper after that, to before" \
		"$(printf '%s' "$lines" | jq .after_kb)" \
		"$(printf '%s' "$lines" | jq .before_kb)" '<=' 1.1 KiB
}
