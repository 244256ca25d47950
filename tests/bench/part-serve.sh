# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # sourced by run
# What the network costs: sandboxes and commands through a control and a node
# beside the local programs; a gigabyte through both beside two hops of openssl;
# and the memory of the node daemon with many sandboxes.

serve_pids='' serve_dir=''

serve_end() {
	for p in $serve_pids; do
		kill "$p" 2>/dev/null || :
		wait "$p" 2>/dev/null || :
	done
	serve_pids=
}

serve_one() { # ROLE: prints its address
	: >"$W/ready-$1"
	"$bin/dsec-serve" "$1" "$serve_dir" --ready-fd 9 9>"$W/ready-$1" \
		2>"$W/$1.log" &
	serve_pids="$serve_pids $!"
	i=0
	until [ -s "$W/ready-$1" ]; do
		i=$((i + 1))
		[ $i -lt 400 ] || die "$1: $(cat "$W/$1.log")"
		sleep 0.05
	done
}

serve_start() {
	serve_dir=$W/serve
	"$bin/dsec-serve" init "$serve_dir" --name b --host 127.0.0.1 >/dev/null
	jq --arg n "127.0.0.1:$1" --arg c "127.0.0.1:$2" '
		.node.listen = [$n] | .control.listen = [$c] |
		.control.nodes = [{name: "b", address: $n}]' \
		<"$serve_dir/serve.json" >"$W/json"
	cat "$W/json" >"$serve_dir/serve.json"
	serve_one node
	serve_node=${serve_pids##* }
	serve_one control
}

serve_client() { # PORT ARGUMENT...
	port=$1
	shift
	"$bin/dsec-serve" client --server "127.0.0.1:$port" \
		--cert "$serve_dir/client.pem" --key "$serve_dir/client.key" \
		--ca "$serve_dir/ca.pem" "$@"
}

now_ms() { awk '{ printf "%d", $1 * 1000 }' /proc/uptime; }

# serve_create NAME COMMAND...: how long the specs take; a line for serve_median
serve_create() {
	name=$1
	shift
	begun=$(now_ms)
	"$@" <"$W/specs" >"$W/made" ||
		die "$(jq -c 'select(.ok | not)' "$W/made" | head -n 3)"
	ended=$(now_ms)
	jq -r .sandbox <"$W/made" | xargs "$bin/dsec-pause" --stop --grace 0 \
		>/dev/null
	echo $((ended - begun)) >>"$W/took-$name"
}

serve_median() { # NAME
	sort -n "$W/took-$1" | sed -n "$(((few + 1) / 2))p"
}

# Two hops, each a server that hands on to the next client.
serve_hops() { # BYTES: milliseconds
	mkfifo "$W/open1" "$W/open2"
	(cd "$serve_dir" && exec 5<>"$W/open1" 6<>"$W/open2" && {
		openssl s_server -accept 127.0.0.1:$((serve_port + 3)) -quiet \
			-cert node.pem -key node.key -tls1_3 -naccept 1 \
			<&5 2>/dev/null | head -c "$1" | wc -c >"$W/hopped" &
		last=$!
		openssl s_server -accept 127.0.0.1:$((serve_port + 2)) -quiet \
			-cert node.pem -key node.key -tls1_3 -naccept 1 \
			<&6 2>/dev/null | {
			sleep 0.5
			openssl s_client -connect \
				127.0.0.1:$((serve_port + 3)) -quiet \
				-no_ign_eof >/dev/null 2>&1
		} &
		sleep 1
		begun=$(now_ms)
		head -c "$1" /dev/zero | openssl s_client -connect \
			127.0.0.1:$((serve_port + 2)) -quiet -no_ign_eof \
			>/dev/null 2>&1 &
		wait "$last"
		echo $(($(now_ms) - begun))
	})
	rm -f "$W/open1" "$W/open2"
	[ "$(cat "$W/hopped")" -eq "$1" ] || die "openssl lost bytes"
}

serve_pss() { # the starter, its children and theirs, in KiB
	all=$serve_node
	for p in $serve_node $(cat "/proc/$serve_node/task/$serve_node/children"); do
		all="$all $(cat "/proc/$p/task/$p/children")"
	done
	for p in $all; do
		cat "/proc/$p/smaps_rollup" 2>/dev/null || :
	done | awk '/^Pss:/ { s += $2 } END { print s + 0 }'
}

part_serve() {
	serve_port=$((20000 + $$ % 10000))
	say "through a control and a node: $rounds rounds"
	serve_start $serve_port $((serve_port + 1))
	ctl=$((serve_port + 1))
	sleep 2 # the control has the node's first report

	jq -nc --argjson n "$count" 'range($n) | {memory_limit_mb: 16,
		cpu_cores_limit: 0.01, pids_limit: 16}' >"$W/specs"
	serve_create warm "$bin/dsec-run" --jobs 8
	i=0
	while [ $i -lt "$few" ]; do
		i=$((i + 1))
		serve_create alone "$bin/dsec-run" --jobs 8
		serve_create node serve_client "$serve_port" run
		serve_create both serve_client "$ctl" run
	done
	alone=$(serve_median alone)
	node=$(serve_median node)
	both=$(serve_median both)
	say "  $count sandboxes: dsec-run $alone ms, node $node ms, control and node $both ms"
	bar "creates through control and node, to dsec-run" "$both" "$alone" \
		'<=' 1.25

	id=$(box '{"memory_limit_mb":512,"cpu_cores_limit":1}')
	r=$(bench --rounds "$rounds" <<-EOT
		dsec - $bin/dsec-exec $id -- $busybox true
	EOT
	)
	for via in $serve_port $ctl; do
		took=$(python3 "$top/tests/sys/serve_client.py" "$serve_dir" \
			"127.0.0.1:$via" rounds "$id" "$rounds" "$busybox" true |
			jq .p50_ms)
		say "  a command by port $via: $took ms, local $(value "$r" dsec p50_ms) ms"
	done
	bar "round trip of true through control and node, to dsec-exec" \
		"$took" "$(value "$r" dsec p50_ms)" '<=' 1.5

	hops=$(serve_hops $((mib << 20)))
	begun=$(now_ms)
	serve_client "$ctl" exec "$id" -- "$busybox" head -c $((mib << 20)) \
		/dev/zero | wc -c >"$W/hopped"
	ours=$(($(now_ms) - begun))
	[ "$(cat "$W/hopped")" -eq $((mib << 20)) ] || die "bytes were lost"
	say "  $mib MiB of output: $ours ms, two hops of openssl $hops ms"
	bar "$mib MiB of output through both, to two hops of openssl" \
		$((mib * 1000 / ours)) $((mib * 1000 / hops)) '>=' 0.6 MiB/s

	say "$idle sandboxes on the node"
	jq -nc --argjson n "$idle" 'range($n) | {memory_limit_mb: 16,
		cpu_cores_limit: 0.01, pids_limit: 16}' >"$W/specs"
	serve_client "$serve_port" run <"$W/specs" >"$W/made" ||
		die "$(jq -c 'select(.ok | not)' "$W/made" | head -n 3)"
	serve_client "$serve_port" ps >/dev/null
	bar "memory of the node daemon with $idle sandboxes" "$(serve_pss)" '' \
		'<=' 40960 KiB
	serve_end
	stop_ours
}
