# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# Pauses: one sandbox beside its control group alone, a whole task, and how much
# memory leaves RAM where there is swap.

part_pause() {
	task=200
	[ -z "${BENCH_SMOKE:-}" ] || task=24
	say "freeze and thaw of one sandbox of 20 processes, $rounds rounds"
	"$bin/dsec-run" --detach --name bench-pause --memory 64M --cmd '
		for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18; do
			sleep 1000 &
		done; wait' </dev/null >"$W/one" || die "$(cat "$W/one")"
	lines=$("$build/bench/freeze" "$rounds" bench-pause) ||
		die "no freeze could be measured"
	bar "freeze and thaw of one sandbox, p50" \
		"$(value "$lines" dsec p50_ms)" \
		"$(value "$lines" cgroup p50_ms)" '<=' 3
	"$bin/dsec-pause" --stop --grace 0 bench-pause >/dev/null

	say "a task of $task sandboxes"
	jq -nc --argjson n "$task" 'range($n) | {task: "bench-job",
		memory_limit_mb: 16, cpu_cores_limit: 0.01, pids_limit: 16,
		command: ["/bin/sleep", "1000"]}' >"$W/task"
	"$bin/dsec-run" --jobs 8 <"$W/task" >"$W/task.made" ||
		die "$(jq -c 'select(.ok | not)' "$W/task.made" | head -n 3)"
	t0=$(uptime_ms)
	"$bin/dsec-pause" --freeze --task bench-job >"$W/task.paused"
	t1=$(uptime_ms)
	"$bin/dsec-pause" --resume --task bench-job >"$W/task.resumed"
	t2=$(uptime_ms)
	[ "$(jq -r 'select(.ok).level' "$W/task.paused" | grep -c freeze)" \
		= "$task" ] || die "not all were frozen"
	say "  resumed in $(((t2 - t1) / 10))e-2 s"
	bar "$task frozen by task" $(((t1 - t0) / 10))e-2 "" '<=' 2 s
	"$bin/dsec-pause" --stop --grace 0 --task bench-job >/dev/null

	if [ "$(awk 'NR > 1' /proc/swaps | wc -l)" = 0 ]; then
		unmeasured "reclaim of an idle sandbox" \
			"no swap here: make check-vm has some"
		return
	fi
	part_pause_reclaim
}

part_pause_reclaim() {
	hold=500
	[ -z "${BENCH_SMOKE:-}" ] || hold=64
	say "reclaim of an idle sandbox of $hold MB"
	"$bin/dsec-run" --detach --name bench-idle --memory $((hold + 200))M --cmd \
		"x=\$(head -c ${hold}000000 /dev/zero | tr '\\0' x)
		echo ready; sleep 1000" </dev/null >"$W/idle.made"
	id=$(jq -r .sandbox "$W/idle.made")
	i=0
	until grep -q ready "$W/lib/sb/$id/out/e0.stdout" 2>/dev/null; do
		i=$((i + 1))
		[ $i -lt 1200 ] || die "the sandbox does not come up"
		sleep 0.1
	done
	before=$(anonymous_kb bench-idle)
	"$bin/dsec-pause" --reclaim bench-idle >"$W/idle.paused"
	after=$(anonymous_kb bench-idle)
	say "  anonymous $before KiB, then $after KiB;" \
		"$(jq -r '"freed_bytes \(.freed_bytes)"' "$W/idle.paused")"
	bar "reclaim of an idle sandbox, of its anonymous memory" \
		$((100 - after * 100 / before)) "" '>=' 95 %
	"$bin/dsec-pause" --stop --grace 0 bench-idle >/dev/null
}

# What of a sandbox's anonymous memory is in RAM.
anonymous_kb() { # SANDBOX
	cgroup_procs "$1" | xargs cat | while read -r p; do
		cat "/proc/$p/status"
	done 2>/dev/null | awk '/^RssAnon:/ { s += $2 } END { print s + 0 }'
}

cgroup_procs() { # SANDBOX: the files of all its leaves
	init=$("$bin/dsec-ps" "$1" | jq .init_pid)
	rel=$(sed -n 's/^0:://p' "/proc/$init/cgroup")
	for top in /sys/fs/cgroup /sys/fs/cgroup/unified; do
		[ ! -e "$top$rel/cgroup.procs" ] ||
			find "$top$(dirname "$rel")" -name cgroup.procs
	done
}
