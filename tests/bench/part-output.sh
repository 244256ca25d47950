# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# A gigabyte of output: through an attached reader, and to the recording alone.

mib_per_s() { # JSONL NAME
	value "$1" "$2" p50_ms | jq --argjson n "$mib" '$n * 1000 / . | round'
}

part_output() {
	say "$mib MiB of output in writes of 128 KiB: $few rounds"
	id=$(box '{"memory_limit_mb":512,"cpu_cores_limit":2}')
	"$bin/dsec-exec" -i "$id" -- /bin/sh -c 'cat >/tmp/w; chmod 755 /tmp/w' \
		<"$build/bench/writer"
	line=$(jq -nc --arg id "$id" --arg mib "$mib" \
		'{sandbox: $id, command: ["/tmp/w", $mib]}')
	r=$(bench --rounds "$few" --count 1 --line "$line" <<-EOT
		pipe r $build/bench/writer $mib
		attached r $bin/dsec-exec $id -- /tmp/w $mib
		recorded b $bin/dsec-exec
	EOT
	)
	stop_ours
	show "$r"
	[ "$(value "$r" attached bytes)" = $((mib * 1048576)) ] ||
		die "the attached reader got $(value "$r" attached bytes) bytes"
	pipe=$(mib_per_s "$r" pipe)
	bar "output to an attached reader, to a bare pipe" \
		"$(mib_per_s "$r" attached)" "$pipe" '>=' 0.7 MiB/s
	bar "output to the recording, to a bare pipe" \
		"$(mib_per_s "$r" recorded)" "$pipe" '>=' 0.7 MiB/s
}
