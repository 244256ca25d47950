# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# Pauses.  What the numbers are:
#
# freeze and thaw of one sandbox   milliseconds, median of BENCH_ROUNDS rounds,
#       of "pause" and "resume" as requests to its supervisor over one
#       connection, each answered before the next; beside the same sandbox
#       frozen and thawed by its control group alone, in turns (freeze.c).  The
#       bar is for a sandbox of 20 processes.  For one of a single command, which
#       freezes at once, the way to the supervisor and back is most of it: that
#       is shown beside it.
# by dsec-pause    the same by two runs of the program, one after the other: a
#       process each, which finds the sandbox by its name and connects
# calls    system calls of the supervisor for a pause and a resume
# N frozen by task    one dsec-pause, from its start to its end
# reclaim    how much of the anonymous memory that was in RAM before is not after

# pause_one NAME: freeze.c; its lines in $lines
pause_one() {
	lines=$("$build/bench/freeze" "$rounds" "$1") ||
		die "no freeze could be measured"
	say "  the way to the supervisor and back, twice:" \
		"$(value "$lines" asked p50_ms) ms"
	pause_ours=$(value "$lines" dsec p50_ms)
	pause_bare=$(value "$lines" cgroup p50_ms)
}

# By the program, a process for each.
pause_program() { # NAME
	: >"$W/program.ms"
	i=0
	while [ $i -lt "$rounds" ]; do
		t0=$(now_us)
		"$bin/dsec-pause" --freeze "$1" </dev/null >"$W/o"
		"$bin/dsec-pause" --resume "$1" </dev/null >"$W/o"
		echo $(($(now_us) - t0)) >>"$W/program.ms"
		i=$((i + 1))
	done
	say "  by dsec-pause, a process each, p50:" \
		"$(jq -s 'sort | .[length / 2 | floor] / 1000' \
			"$W/program.ms") ms"
}

now_us() {
	date +%s%N | sed 's/...$//'
}

# Of ten pauses and resumes, without the making of the connection.
pause_calls() { # NAME
	sup=$("$bin/dsec-ps" "$1" </dev/null | jq .supervisor_pid)
	strace -p "$sup" -o "$W/calls" 2>"$W/attached" &
	i=$!
	until grep -q attached "$W/attached"; do
		kill -0 $i 2>/dev/null || die "strace: $(cat "$W/attached")"
		sleep 0.05
	done
	"$build/bench/freeze" 10 "$1" >"$W/o" || die "no freeze"
	{ kill $i && wait $i; } 2>/dev/null || :
	# Of each round two requests have nothing to do and take 3 calls each; to
	# let others run until all are frozen takes what it takes.
	bar "system calls of a supervisor for a pause and a resume" \
		"$(awk -F'(' '$1 !~ /yield|^p?poll$|^accept4$|sockopt|epoll_ctl/ {
			n++ } END { print (n - 60) / 10 }' "$W/calls")" \
		"" '<=' 20 calls
}

part_pause() {
	task=200
	[ -z "${BENCH_SMOKE:-}" ] || task=24
	say "freeze and thaw of one sandbox, $rounds rounds"
	"$bin/dsec-run" --detach --name bench-one --memory 64M -- \
		/bin/sleep 1000 </dev/null >"$W/one" || die "$(cat "$W/one")"
	pause_one bench-one
	say "  of one command: dsec $pause_ours ms, cgroup $pause_bare ms"
	pause_program bench-one
	pause_calls bench-one
	"$bin/dsec-run" --detach --name bench-pause --memory 64M --cmd '
		for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18; do
			sleep 1000 &
		done; wait' </dev/null >"$W/one" || die "$(cat "$W/one")"
	pause_one bench-pause
	bar "freeze and thaw of one sandbox, p50" \
		"$pause_ours" "$pause_bare" '<=' 3
	"$bin/dsec-pause" --stop --grace 0 bench-pause bench-one >/dev/null

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
