# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# What idle sandboxes cost, and how fast many are made and destroyed.

uptime_ms() { awk '{ printf "%d", $1 * 1000 }' /proc/uptime; }

# The kernel's own memory, and what lies on tmpfs, in KiB.
kernel_memory() {
	awk '/^(SReclaimable|SUnreclaim|KernelStack|PageTables|Percpu|Shmem|VmallocUsed|MemAvailable):/ {
		sub(":", "", $1); print $1, $2 }' /proc/meminfo
}

# pss NAME PID...: proportional set size of those processes, in KiB
pss() {
	what=$1
	shift
	for pid; do
		cat "/proc/$pid/smaps_rollup" 2>/dev/null
	done | awk -v what="$what" '/^Pss:/ { s += $2 }
		END { print what, s + 0 }'
}

# idle_split BEFORE AFTER USER: a JSON object of KiB a sandbox
idle_split() {
	awk -v n="$idle" '
	FILENAME == ARGV[1] { before[$1] = $2; next }
	FILENAME == ARGV[2] { v[$1] = $2 - before[$1]; next }
	{ v[$1] = $2 }
	END { for (k in v) printf "{\"%s\":%.1f}\n", k, v[k] / n }' "$@" |
		jq -sc add
}

part_idle() {
	say "$idle idle sandboxes"
	mkdir -p "$W/idle"
	jq -nc --argjson n "$idle" 'range($n) | {memory_limit_mb: 16,
		cpu_cores_limit: 0.01, pids_limit: 16}' >"$W/idle/specs"
	kernel_memory >"$W/idle/before"
	t0=$(uptime_ms)
	"$bin/dsec-run" --jobs 8 <"$W/idle/specs" >"$W/idle/running" ||
		die "$(jq -c 'select(.ok | not)' "$W/idle/running" |
			head -n 3)"
	t1=$(uptime_ms)
	sleep 2 # what is freed late: let it be freed
	kernel_memory >"$W/idle/after"
	cat "$DSEC_RUN"/sb/*/state.json | jq -r .supervisor_pid \
		>"$W/idle/boxes"
	cat "$DSEC_RUN"/sb/*/state.json | jq -r .init_pid >"$W/idle/inits"
	# shellcheck disable=SC2046 # pids
	{
		pss supervisor $(cat "$W/idle/boxes")
		pss init $(cat "$W/idle/inits")
	} >"$W/idle/user"
	split=$(idle_split "$W/idle/before" "$W/idle/after" "$W/idle/user")
	say "  KiB a sandbox: $split"
	printf '{"split_kib":%s}\n' "$split" >>"$out/results.jsonl"
	t2=$(uptime_ms)
	jq -r .sandbox "$W/idle/running" |
		xargs "$bin/dsec-pause" --stop --grace 0 >"$W/idle/stopped"
	t3=$(uptime_ms)
	[ "$(jq -s 'map(select(.ok)) | length' "$W/idle/stopped")" = "$idle" ] ||
		die "not all were stopped"
	bar "an idle sandbox, kernel and user memory" \
		"$(echo "$split" | jq '.SReclaimable + .SUnreclaim +
			.KernelStack + .PageTables + .Percpu + .Shmem +
			.supervisor + .init | round')" "" '<=' 900 KiB
	bar "$idle made" $(((t1 - t0) / 10))e-2 "" '<=' 40 s
	bar "$idle destroyed" $(((t3 - t2) / 10))e-2 "" '<=' 5 s
}
