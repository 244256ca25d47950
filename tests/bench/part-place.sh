# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# Placement: how fast, and how even.

# CPU_S FILE COMMAND...: user and system seconds of it, its output in FILE.
cpu_of() {
	cpu_out=$1
	shift
	# The second line of times is of the children.
	sh -c 'out=$1; shift; "$@" >"$out" || exit; times' sh "$cpu_out" "$@" |
		sed -n 2p | tr 'ms' '  ' |
		awk '{print $1 * 60 + $2 + $3 * 60 + $4}'
}

place_lines() { # REQUESTS
	awk -v n="$1" 'BEGIN {
		all = "{\"memory_mb\":1000000,\"cpu_cores\":1000," \
			"\"disk_mb\":1000000,\"pids\":10000000,\"sandboxes\":4000}"
		for (i = 0; i < 1000; i++)
			printf "{\"ok\":true,\"node\":\"n%d\",\"at_ms\":1000," \
				"\"backends\":[\"container\"],\"capabilities\":" \
				"[\"checkpoint\",\"pool\"],\"labels\":{\"zone\":\"%d\"}," \
				"\"limit\":%s,\"held\":{},\"memory_available_mb\":" \
				"900000,\"memory_total_mb\":1000000}\n", i, i % 3, all
		for (i = 0; i < n; i++)
			printf "{\"id\":%d,\"at_ms\":%d,\"image\":\"root/py:3.12\"," \
				"\"memory_limit_mb\":1024,\"cpu_cores_limit\":1," \
				"\"project\":\"root/rl/job-42\",\"task\":\"job-42\"," \
				"\"key\":\"k%d\",\"ttl_running_stop\":300}\n", \
				i, 1000 + i / 100, i
	}'
}

part_place() {
	n=1000000 lines=200000
	[ -z "${BENCH_SMOKE:-}" ] || n=100000 lines=20000
	say "placement: $n simulated, $lines through the filter"
	r=$("$bin/dsec-place" --simulate --nodes 1000 --requests "$n" \
		--rate 2000 --policies overlay,random)
	one() { printf '%s' "$r" | jq ".results[] | select(.policy == \"$1\") | $2"; }
	say "  random: max/mean $(one random .max_mean)" \
		"(theory $(one random .theory_max_mean))"
	bar "placements a second of one core, simulated, 1,000 nodes" \
		"$(one overlay .per_second)" '' '>=' 300000 /s
	r=$("$bin/dsec-place" --simulate --requests "$n" --placers 2)
	for p in random one blind least; do
		say "  $p: max/mean $(one $p .max_mean)," \
			"worst $(one $p .max_mean_worst)"
	done
	bar "fullest node to the mean, k 2, overlay, reports each second" \
		"$(one overlay .max_mean_worst)" '' '<=' 1.10 x
	r=$("$bin/dsec-place" --simulate --burst 32000 --requests 32000 \
		--placers 4)
	for p in random one blind least; do
		say "  $p: max/mean $(one $p .burst_max_mean)"
	done
	bar "fullest of 160 nodes to the mean, burst of 32,000, 4 placers" \
		"$(one overlay .burst_max_mean)" '' '<=' 1.25 x
	place_lines "$lines" >"$W/place.jsonl"
	s=$(cpu_of "$W/place.out" "$bin/dsec-place" --seed 1 <"$W/place.jsonl")
	[ "$(grep -c '"ok":true' "$W/place.out")" = "$lines" ] ||
		die "not every request was placed"
	bar "placements a second of one core, filter, 1,000 nodes" \
		"$(jq -n "$lines / $s | round")" '' '>=' 60000 /s
	rm "$W/place.jsonl" "$W/place.out"
}
