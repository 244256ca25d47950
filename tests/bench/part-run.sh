# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# A command in a new sandbox, one at a time.

dsec_run="$bin/dsec-run --rm --cpu 1 --memory 512M -- $busybox true"

syscalls() { # COMMAND...: how many, of all processes
	strace -f -c -o "$W/strace" -- "$@" >/dev/null 2>&1 </dev/null || :
	awk '$NF == "total" { print $4; exit }' "$W/strace"
}

part_run() {
	say "a static true in a new sandbox: $rounds rounds"
	r=$(bench --rounds "$rounds" <<-EOT
		floor - $busybox true
		bwrap pos $bwrap_run
		crun po $crun_run
		dsec - $dsec_run
		runc po $runc_run
		disk - DSEC_LIB=$D/lib $dsec_run
	EOT
	)
	show "$r"
	ours=$(value "$r" dsec p50_ms)
	bar "run, p50, to crun" "$ours" "$(value "$r" crun p50_ms)" '<=' 0.40
	bar "run, p50, to runc" "$ours" "$(value "$r" runc p50_ms)" '<=' 0.15
	bar "run, p50, to bwrap" "$ours" "$(value "$r" bwrap p50_ms)" '<=' 0.65
	bar "run, CPU, to crun" "$(value "$r" dsec cpu_ms)" \
		"$(value "$r" crun cpu_ms)" '<=' 0.35
	bar "run, minor faults" "$(value "$r" dsec faults)" "" '<=' 130 faults
	# shellcheck disable=SC2086 # a command
	bar "run, system calls" "$(syscalls $dsec_run)" "" '<=' 300 calls
	bar "run on the default pool, p50, to crun" \
		"$(value "$r" disk p50_ms)" "$(value "$r" crun p50_ms)" \
		'<=' 0.55
}
