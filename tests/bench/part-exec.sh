# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# A command in a sandbox that runs already.

# Leaves the peer's container "dsec-bench-PEER" running, with its root mounted.
peer_start() { # PEER
	jq '.process.args = ["/bin/sleep", "100000"]' "$W/slot$1/config.json" \
		>"$W/config.new"
	mv "$W/config.new" "$W/slot$1/config.json"
	mkdir -p "$W/slot$1/upper" "$W/slot$1/work"
	in_peers mount -t overlay overlay "$W/slot$1/rootfs" -o \
		"lowerdir=$W/lower,upperdir=$W/slot$1/upper,workdir=$W/slot$1/work"
	in_peers "$1" --root "$W/$1" run --detach --bundle "$W/slot$1" \
		"dsec-bench-$1" </dev/null >/dev/null 2>"$W/$1.err" ||
		die "$1: $(cat "$W/$1.err")"
}

peer_stop() {
	in_peers "$1" --root "$W/$1" delete --force "dsec-bench-$1" || :
	in_peers umount "$W/slot$1/rootfs" || :
}

# box FIELDS...: a sandbox of ours; prints its id
box() {
	echo "$1" | "$bin/dsec-run" | jq -r .sandbox
}

part_exec() {
	say "a command in a running sandbox: $rounds rounds"
	peer_start crun
	peer_start runc
	id=$(box '{"memory_limit_mb":512,"cpu_cores_limit":1}')
	r=$(bench --rounds "$rounds" <<-EOT
		floor - $busybox true
		crun p crun --root $W/crun exec dsec-bench-crun /bin/true
		dsec - $bin/dsec-exec $id -- $busybox true
		runc p runc --root $W/runc exec dsec-bench-runc /bin/true
	EOT
	)
	peer_stop crun
	peer_stop runc
	stop_ours
	show "$r"
	ours=$(value "$r" dsec p50_ms)
	bar "exec, p50, to crun exec" "$ours" "$(value "$r" crun p50_ms)" \
		'<=' 0.30
	bar "exec, p50, to runc exec" "$ours" "$(value "$r" runc p50_ms)" \
		'<=' 0.12
}
