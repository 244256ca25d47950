# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# The DNS forwarder of the network helper, every query going upstream.

part_netdns() {
	n=1000000
	[ -z "${BENCH_SMOKE:-}" ] || n=100000
	say "$n DNS queries through the forwarder"
	r=$("$build/bench/dns" "$n")
	say "  $r"
	bar "DNS answers per second of one core" \
		"$(printf '%s' "$r" | jq .per_cpu_s)" '' '>=' 8000 /s
	bar "memory of the forwarder after $n queries, to after a tenth" \
		"$(printf '%s' "$r" | jq .rss_end_kb)" \
		"$(printf '%s' "$r" | jq .rss_kb)" '<=' 1.05 KiB
	bar "memory of the forwarder after $n queries, to after half of them" \
		"$(printf '%s' "$r" | jq .rss_end_kb)" \
		"$(printf '%s' "$r" | jq .rss_half_kb)" '<=' 1.05 KiB
}
