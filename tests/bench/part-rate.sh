# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# How many launches a second, eight at a time.

per_second() { # JSONL NAME
	value "$1" "$2" p50_ms | jq --argjson n "$count" \
		'$n * 10000 / . | round / 10'
}

part_rate() {
	say "$count launches, 8 in parallel: $few rounds"
	line=$(jq -nc --arg b "$busybox" '{rm: true, command: [$b, "true"],
		cpu_cores_limit: 1, memory_limit_mb: 512}')
	r=$(bench --rounds "$few" --jobs 8 --count "$count" --line "$line" \
		<<-EOT
		floor n $busybox true
		bwrap posn $bwrap_run
		crun pon $crun_run
		dsec b $bin/dsec-run --jobs 8
	EOT
	)
	show "$r"
	for c in floor bwrap crun dsec; do
		say "  $c: $(per_second "$r" $c) a second"
	done
	bar "launches a second, 8 in parallel, to crun" \
		"$(per_second "$r" dsec)" "$(per_second "$r" crun)" '>=' 5 /s
}
