# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# Admission as a filter, beside a thousand claims.

in_admit() {
	DSEC_RUN="$W/admit/run" DSEC_LIB="$W/admit/lib" "$@"
}

# Claims that nobody holds the lock of: they count until somebody buries them,
# which asking does not.
admit_claims() { # COUNT
	node=$(in_admit "$bin/dsec-admit" --report | jq -r .node)
	awk -v sb="$W/admit/run/sb/$node" -v n="$1" 'BEGIN {
		for (i = 0; i < n; i++) {
			id = sprintf("aaaaaaaaaaa%05d", i)
			gsub("0", "q", id); gsub("1", "r", id)
			gsub("8", "s", id); gsub("9", "t", id)
			print sb id
		}
	}' >"$W/admit/dirs"
	xargs mkdir -p <"$W/admit/dirs"
	i=0
	while read -r dir; do
		i=$((i + 1))
		printf '{"sandbox":"%s","task":"t%d","project":"root/p%d",%s}' \
			"${dir##*/}" $((i % 20)) $((i % 5)) \
			'"memory_limit_mb":1,"cpu_cores_limit":0.01,"pids_limit":8' \
			>"$dir/claim.json"
	done <"$W/admit/dirs"
	rm -f "$W/admit/run/ledger"
	[ "$(in_admit "$bin/dsec-admit" --report | jq .held.sandboxes)" = "$1" ] ||
		die "the claims are not counted"
}

part_admit() {
	n=20000
	[ -z "${BENCH_SMOKE:-}" ] || n=2000
	say "admission: $n requests beside 1,000 claims"
	mkdir -p "$W/admit/run" "$W/admit/lib"
	admit_claims 1000
	awk -v n=$n 'BEGIN { for (i = 0; i < n; i++)
		printf "{\"id\":%d,\"memory_limit_mb\":16,\"project\":" \
			"\"root/rl\",\"task\":\"j\"}\n", i }' >"$W/admit/in"
	s=$(in_admit cpu_of "$W/admit/out" "$bin/dsec-admit" <"$W/admit/in")
	[ "$(grep -c '"ok":true' "$W/admit/out")" = $n ] ||
		die "not every request was admitted"
	awk 'BEGIN { for (i = 0; i < 50; i++) print "{\"op\":\"report\"}" }' \
		>"$W/admit/in"
	t=$(in_admit cpu_of "$W/admit/out" "$bin/dsec-admit" <"$W/admit/in")
	say "  a report: $(jq -n "$t * 20000 | round") us of CPU"
	bar "admissions a second of one core, streaming, 1,000 claims" \
		"$(jq -n "$n / $s | round")" '' '>=' 5000 /s
	rm -rf "$W/admit"
}
