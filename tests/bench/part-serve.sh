# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2013,SC2154 # words; sourced by run
# What the network costs: sandboxes and commands through a control and a node
# beside the local programs, in times and in what can be counted; a gigabyte
# through both beside two hops of openssl; the memory of idle connections, and of
# the node daemon with many sandboxes.

serve_pids='' serve_dir=''

serve_end() {
	for p in $serve_pids; do
		kill "$p" 2>/dev/null || :
		wait "$p" 2>/dev/null || :
	done
	serve_pids=
}

serve_wait() { # COMMAND...: until it is true
	tries=0
	until "$@" >/dev/null 2>&1; do
		tries=$((tries + 1))
		[ $tries -lt 1200 ] || die "in vain: $*"
		sleep 0.05
	done
}

serve_one() { # ROLE: prints its address
	: >"$W/ready-$1"
	"$bin/dsec-serve" "$1" "$serve_dir" --ready-fd 9 9>"$W/ready-$1" \
		</dev/null >/dev/null 2>"$W/$1.log" &
	serve_pids="$serve_pids $!"
	serve_wait test -s "$W/ready-$1"
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
	serve_control=${serve_pids##* }
}

serve_live() { # the control has the node's first report
	serve_client "$ctl" nodes </dev/null | grep -q '"state":"live"'
}

serve_client() { # PORT ARGUMENT...
	port=$1
	shift
	"$bin/dsec-serve" client --server "127.0.0.1:$port" \
		--cert "$serve_dir/client.pem" --key "$serve_dir/client.key" \
		--ca "$serve_dir/ca.pem" "$@"
}

now_ms() { awk '{ printf "%d", $1 * 1000 }' /proc/uptime; }

serve_listens() { # PORT
	awk -v port=":$(printf %04X "$1")\$" '$2 ~ port && $4 == "0A" { r = 1 }
		END { exit !r }' /proc/net/tcp
}

# Two hops, each a server that hands on to the next client.
serve_hops() { # BYTES: milliseconds
	tls="timeout 300 openssl"
	mkfifo "$W/open1" "$W/open2"
	(cd "$serve_dir" && exec 5<>"$W/open1" 6<>"$W/open2" && {
		$tls s_server -accept 127.0.0.1:$((serve_port + 3)) -quiet \
			-cert node.pem -key node.key -tls1_3 -naccept 1 \
			<&5 2>/dev/null | head -c "$1" | wc -c >"$W/hopped" &
		last=$!
		serve_wait serve_listens $((serve_port + 3))
		$tls s_server -accept 127.0.0.1:$((serve_port + 2)) -quiet \
			-cert node.pem -key node.key -tls1_3 -naccept 1 \
			<&6 2>/dev/null |
			$tls s_client -connect 127.0.0.1:$((serve_port + 3)) \
				-quiet -no_ign_eof >/dev/null 2>&1 &
		serve_wait serve_listens $((serve_port + 2))
		begun=$(now_ms)
		head -c "$1" /dev/zero | $tls s_client -connect \
			127.0.0.1:$((serve_port + 2)) -quiet -no_ign_eof \
			>/dev/null 2>&1 &
		wait "$last"
		echo $(($(now_ms) - begun))
		wait
	})
	rm -f "$W/open1" "$W/open2"
	[ "$(cat "$W/hopped")" -eq "$1" ] || die "openssl lost bytes"
}

serve_bytes() { # SANDBOX BYTES: milliseconds
	begun=$(now_ms)
	serve_client "$ctl" exec "$1" -- "$busybox" head -c "$2" /dev/zero |
		wc -c >"$W/hopped"
	echo $(($(now_ms) - begun))
	[ "$(cat "$W/hopped")" -eq "$2" ] || die "bytes were lost"
}

serve_median() { # FILE of numbers
	sort -n "$1" | sed -n "$((($(wc -l <"$1") + 1) / 2))p"
}

serve_role() { # ROLE: the process
	for p in $(cat "/proc/$serve_node/task/$serve_node/children"); do
		case $(tr '\0' ' ' <"/proc/$p/cmdline") in
		"dsec-serve node-$1 ") echo "$p" ;;
		esac
	done
}

# What the node daemon consists of: the starter, what it has started and so on,
# but for supervisors, which are of their sandboxes.
serve_tree() { # PROCESS
	[ "$(cat "/proc/$1/comm" 2>/dev/null)" != dsec-box ] || return 0
	echo "$1"
	for c in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do
		serve_tree "$c"
	done
}

serve_pss() { # PROCESS...: in KiB
	for p in "$@"; do
		cat "/proc/$p/smaps_rollup" 2>/dev/null || :
	done | awk '/^Pss:/ { s += $2 } END { print s + 0 }'
}

serve_wakes() { # PROCESS...: how often they have slept
	for p in "$@"; do
		cat "/proc/$p/status"
	done | awk '/^voluntary_ctxt/ { s += $2 } END { print s + 0 }'
}

# serve_calls PROCESS... -- COMMAND...: system calls of those meanwhile
serve_calls() {
	list=
	while [ "$1" != -- ]; do
		list="$list -p $1"
		traced=$1
		shift
	done
	shift
	# shellcheck disable=SC2086 # words
	strace -qq -c -o "$W/calls" $list 2>/dev/null &
	tracer=$!
	serve_wait grep -q '^TracerPid:	[1-9]' "/proc/$traced/status"
	"$@" >"$W/traced" || die "$(cat "$W/traced")"
	kill -INT $tracer
	wait $tracer || :
	awk '$NF == "total" { print $4 }' "$W/calls"
}

serve_rounds() { # PORT SANDBOX COUNT: one command after another
	python3 "$top/tests/sys/serve_client.py" "$serve_dir" "127.0.0.1:$1" \
		rounds "$2" "$3" "$busybox" true
}

# Filters are asked beside each other, in turns.
serve_filters() { # OPTION... REQUEST; contenders on stdin
	"$build/bench/filters" --rounds "$rounds" "$@" ||
		die "a filter failed: its times mean nothing"
}

serve_show() {
	printf '%s\n' "$1" | jq -r '"  \(.name)\t p50 \(.p50_ms)\t p90 " +
		"\(.p90_ms)\t longest \(.longest_ms) ms"' | expand -t 14 >&2
}

serve_creates() {
	say "sandboxes, $lines a round, 8 at once: ms for each"
	r=$(serve_filters --lines "$lines" --jobs 8 --undo "$bin/dsec-pause" \
		"$serve_spec" <<-EOT
		alone - $bin/dsec-run --jobs 8
		node - $bin/dsec-serve $(serve_words "$serve_port") run
		both - $bin/dsec-serve $(serve_words "$ctl") run
	EOT
	)
	serve_show "$r"
	bar "creates through control and node, to dsec-run, 8 at once" \
		"$(value "$r" both p50_ms)" "$(value "$r" alone p50_ms)" \
		'<=' 1.25
	bar "longest that one of them took" "$(value "$r" both longest_ms)" '' \
		'<=' 5000
	bar "longest that one of them took, through the node" \
		"$(value "$r" node longest_ms)" '' '<=' 5000
}

serve_execs() { # SANDBOX
	say "commands, one after another"
	r=$(serve_filters --lines "$each" --jobs 1 \
		"{\"sandbox\":\"$1\",\"command\":[\"$busybox\",\"true\"]}" <<-EOT
		local c $bin/dsec-exec $1 -- $busybox true
		lines - $bin/dsec-exec --jobs 1
		node - $bin/dsec-serve $(serve_words "$serve_port") exec
		both - $bin/dsec-serve $(serve_words "$ctl") exec
	EOT
	)
	serve_show "$r"
	bar "round trip of true through control and node, to dsec-exec" \
		"$(value "$r" both p50_ms)" "$(value "$r" local p50_ms)" \
		'<=' 1.5
	bar "longest that one of them took" "$(value "$r" both longest_ms)" '' \
		'<=' 5000
}

# serve_beside COUNT COUNTED BEGUN IDLE: COUNTED for each of COUNT, without what
# IDLE counted in 3 seconds would have come to since BEGUN.
serve_beside() {
	echo $((($2 - $4 * ($(now_ms) - $3) / 3000 + $1 / 2) / $1))
}

# What times cannot hide behind: the daemons' own work for one command, without
# that of the reports of each second.
serve_counts() { # SANDBOX
	n=200
	daemons="$serve_control $(serve_role worker) $(serve_role keeper)"
	# shellcheck disable=SC2086 # words
	{
		was=$(serve_wakes $daemons)
		sleep 3
		still=$(($(serve_wakes $daemons) - was))
		was=$(serve_wakes $daemons) begun=$(now_ms)
		serve_rounds "$ctl" "$1" $n >/dev/null
		wakes=$(($(serve_wakes $daemons) - was))
		bar "times that control, worker and keeper wake for a command" \
			"$(serve_beside $n $wakes "$begun" $still)" '' '<=' \
			"$max_wakes" wakes
		still=$(serve_calls $daemons -- sleep 3)
		begun=$(now_ms)
		calls=$(serve_calls $daemons -- serve_rounds "$ctl" "$1" $n)
		bar "system calls of control, worker and keeper for a command" \
			"$(serve_beside $n "$calls" "$begun" "$still")" '' '<=' \
			"$max_calls" calls
		calls=$(serve_calls $daemons -- serve_bytes "$1" $((64 << 20)))
	}
	bar "system calls of control, worker and keeper for a MiB of output" \
		$(((calls + 32) / 64)) '' '<=' "$max_mib" calls
}

serve_throughput() { # SANDBOX
	rm -f "$W/took-hops" "$W/took-ours"
	i=0
	while [ $i -lt "$turns" ]; do
		i=$((i + 1))
		serve_hops $((mib << 20)) >>"$W/took-hops"
		serve_bytes "$1" $((mib << 20)) >>"$W/took-ours"
	done
	hops=$(serve_median "$W/took-hops") ours=$(serve_median "$W/took-ours")
	say "  $mib MiB of output: $ours ms, two hops of openssl $hops ms"
	bar "$mib MiB of output through both, to two hops of openssl" \
		$((mib * 1000 / ours)) $((mib * 1000 / hops)) '>=' 0.6 MiB/s
}

serve_idle() { # PORT PROCESS NAME
	# shellcheck disable=SC2086
	was=$(serve_pss "$2")
	mkfifo "$W/holds"
	python3 "$top/tests/sys/serve_client.py" "$serve_dir" "127.0.0.1:$1" \
		idle "$connections" <"$W/holds" >"$W/held" &
	holder=$!
	exec 8>"$W/holds"
	serve_wait test -s "$W/held"
	bar "memory of an idle connection of the $3" \
		"$((($(serve_pss "$2") - was) / connections))" '' '<=' 40 KiB
	exec 8>&-
	wait $holder
	rm "$W/holds" "$W/held"
}

serve_many() {
	say "$idle sandboxes on the node"
	jq -nc --argjson n "$idle" --argjson spec "$serve_spec" \
		'range($n) | $spec' >"$W/specs"
	serve_client "$serve_port" run <"$W/specs" >"$W/made" ||
		die "$(jq -c 'select(.ok | not)' "$W/made" | head -n 3)"
	serve_client "$serve_port" ps >/dev/null
	# shellcheck disable=SC2046 # words
	bar "memory of the node daemon with $idle sandboxes" \
		"$(serve_pss $(serve_tree "$serve_node"))" '' '<=' 40960 KiB
	admit=$(for p in $(serve_tree "$serve_node"); do
		[ "$(cat "/proc/$p/comm")" != dsec-admit ] || echo "$p"
	done)
	# Its own reports in 3 seconds, each with 1 turn of what it looks at.
	calls=$(serve_calls "$admit" -- sleep 3)
	bar "system calls for a report, with $idle sandboxes" \
		$((calls / 3)) '' '<=' 400 calls
}

serve_words() { # PORT: how dsec-serve is told where to and who
	echo "client --server 127.0.0.1:$1 --cert $serve_dir/client.pem" \
		"--key $serve_dir/client.key --ca $serve_dir/ca.pem"
}

part_serve() {
	lines=24 each=3 turns=3 connections=1000
	max_wakes=12 max_calls=60 max_mib=500
	if [ -n "${BENCH_SMOKE:-}" ]; then
		lines=8 turns=1 connections=100
	fi
	serve_spec='{"memory_limit_mb":16,"cpu_cores_limit":0.01,"pids_limit":16}'
	serve_port=$((20000 + $$ % 10000)) ctl=$((serve_port + 1))
	say "through a control and a node: $rounds rounds"
	serve_start $serve_port $ctl
	serve_wait serve_live
	serve_creates
	id=$(box '{"memory_limit_mb":512,"cpu_cores_limit":1}')
	serve_execs "$id"
	serve_counts "$id"
	serve_throughput "$id"
	serve_idle "$serve_port" "$(serve_role worker)" node
	serve_idle "$ctl" "$serve_control" control
	serve_many
	serve_end
	stop_ours
}
