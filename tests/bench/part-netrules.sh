# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# Rules of routed sandboxes, beside nft(8) and beside a table per sandbox; all
# in namespaces of their own.

# Microseconds that nft(8) takes for $W/delta where $W/before is in force.
netrules_nft() {
	unshare -n sh -c 'for i in 1 2 3 4 5; do
		nft flush ruleset && nft -f "$1/before" || exit 1
		t0=$(date +%s%N)
		nft -f "$1/delta" || exit 1
		t1=$(date +%s%N)
		echo $(((t1 - t0) / 1000))
	done
	nft list table inet dsec >"$1/theirs"' sh "$W" |
		sort -n | sed -n 3p
}

part_netrules() {
	many=3000
	[ -z "${BENCH_SMOKE:-}" ] || many=600
	for tool in nft unshare python3; do
		command -v $tool >/dev/null || {
			unmeasured "rules of routed sandboxes" "no $tool"
			return
		}
	done
	say "a sandbox with a policy of its own, at 100 sandboxes"
	lines=$("$build/bench/net_rules" apply "$W") ||
		die "no rules could be loaded"
	python3 "$(dirname "$0")/net-delta.py" "$W/before" "$W/after" \
		>"$W/delta"
	us=$(netrules_nft) || die "nft refuses our listing"
	cmp "$W/after" "$W/theirs" >&2 ||
		die "nft made other rules of the same text"
	bar "policy applied, beside nft -f" \
		"$(value "$lines" apply p50_ms)" "$((us / 1000)).$(
			printf %03d $((us % 1000)))" '<=' 0.025

	say "$many sandboxes under 20 policies"
	lines=$("$build/bench/net_rules" many $many) || die "no rules"
	bar "one sandbox more at $many, beside the first 100" \
		"$(value "$lines" many later_ms)" \
		"$(value "$lines" many first_ms)" '<=' 6
	bar "phase switch of one among $many" \
		"$(value "$lines" many switch_p50_ms)" "" '<=' 1

	say "a packet of 64 bytes, at 100 sandboxes"
	lines=$("$build/bench/net_rules" packet) || die "no packets"
	bar "added latency per packet, beside a table per sandbox" \
		"$(echo "$lines" | jq '(.ours_us - .none_us) * 1000 | round')" \
		"$(echo "$lines" | jq '(.each_us - .none_us) * 1000 | round')" \
		'<=' 0.6 ns
}
