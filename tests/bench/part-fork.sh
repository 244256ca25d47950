# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154,SC2034 # sourced by run
# Copies.  What the numbers are:
#
# source stopped    milliseconds that the source stands still while it is copied
#       with its memory (frozen_ms of dsec-fork), beside the part of it that the
#       engine needs (engine_frozen_ms), medians of the same copies
# fork of N x M MB    wall time of one dsec-fork --count N, from its start to its
#       end, the dump of the source included, beside that of N restores by the
#       engine alone, of the same processes dumped once before, in namespaces of
#       their own, each in a control group beside those of the sandboxes; both at
#       most as many at once as there are CPUs, in turns
# memory    proportional set sizes of all processes of the copies, whose memory is
#       of random bytes: no page is like another but its copies
# files of a layer    milliseconds from the request to the record (fork_ms of
#       dsec-fork --fs-only), the copy's own launch included, and of these those
#       that the source stands still (frozen_ms), in which the copy of its layer
#       is made; no bytes are copied when each copy is a snapshot.  The whole
#       program is shown beside a dsec-run of the same image, in turns

F=$D/fork
fork_mb=100 fork_n=8 fork_rounds=${BENCH_FORK_ROUNDS:-5} fork_layer_mb=1024
[ -z "${BENCH_SMOKE:-}" ] ||
	fork_mb=16 fork_n=2 fork_rounds=2 fork_layer_mb=64

# forked NAME ARGS...: records of dsec-fork into $F/NAME
forked() {
	forked_name=$1
	shift
	timeout 600 "$bin/dsec-fork" "$@" </dev/null >"$F/$forked_name" ||
		die "dsec-fork $*: $(jq -c 'select(.ok == false)' \
			"$F/$forked_name" | head -n 3)"
}

# median FILE FILTER
median() {
	jq -s "map($2) | sort | .[length / 2 | floor]" "$1"
}

fork_stop() {
	timeout 60 "$bin/dsec-pause" --stop --grace 0 --project root \
		</dev/null >/dev/null
}

# 18 processes that wait, their parent, which has the memory, and pid 1.
fork_setup() {
	mkdir -p "$F/lib" "$F/img" "$F/restored" "$F/t"
	T=$F/t BUILD=$build PATH=$bin:$PATH
	# shellcheck source=tests/sys/matrix.sh
	. "$top/tests/sys/matrix.sh"
	matrix_image || die "no image: $(cat "$T/.image")"
	cat >"$F/hold.py" <<-'END'
		import os, sys, time
		os.closerange(3, 64)
		if os.getsid(0) != os.getpid():
		    os.setsid()
		for i in range(18):
		    if os.fork() == 0:
		        while True:
		            time.sleep(1000)
		mem = bytearray(int(sys.argv[1]) << 20)
		for i in range(0, len(mem), 1 << 20):
		    mem[i:i + (1 << 20)] = os.urandom(1 << 20)
		open("/srv/ready", "w").write("x")
		while True:
		    time.sleep(1)
	END
	"$bin/dsec-run" --name bench-fork --image root/matrix:1 \
		--memory $((fork_mb * 3 + 64))M --detach -- /bin/python3 -S -c \
		"$(cat "$F/hold.py")" $fork_mb </dev/null >"$F/made" ||
		die "$(cat "$F/made")"
	fork_i=0
	until "$bin/dsec-exec" bench-fork -- test -e /srv/ready </dev/null; do
		fork_i=$((fork_i + 1))
		[ $fork_i -lt 300 ] || die "the sandbox does not come up"
		sleep 0.1
	done
}

# --- the engine alone ------------------------------------------------------

fork_engine=/usr/lib/dsec/engine/usr
engine() {
	timeout 120 "$fork_engine"/lib64/ld-linux-x86-64.so.2 \
		--preload "$bin/../libexec/dsec/engine-shim.so" --library-path \
		"$fork_engine/lib/x86_64-linux-gnu" "$fork_engine/sbin/criu" "$@"
}

# The same processes in plain namespaces, dumped once.
bare_setup() {
	matrix_rootfs "$F/root"
	mkdir "$F/root/old"
	mknod "$F/root/dev/null" c 1 3
	cp "$F/hold.py" "$F/root/srv/"
	# shellcheck disable=SC2016
	unshare --mount --pid --net --ipc --uts --fork sh -c '
		mount --make-rprivate / && mount --bind "$1" "$1" &&
			cd "$1" && mount -t proc proc proc &&
			pivot_root . old && busybox umount -l /old || exit 1
		exec </dev/null >/dev/null 2>&1
		exec /bin/python3 -S /srv/hold.py "$2"' sh "$F/root" $fork_mb \
		2>"$F/bare.err" &
	bare=$!
	fork_i=0
	until [ -e "$F/root/srv/ready" ]; do
		fork_i=$((fork_i + 1))
		[ $fork_i -lt 300 ] || die "the bare processes do not come up"
		sleep 0.1
	done
	bare_init=$(pgrep -P $bare)
	engine dump -t "$bare_init" -D "$F/img" -o dump.log -v2 --empty-ns net \
		--network-lock skip --manage-cgroups=ignore ||
		die "bare dump: $(tail -n 3 "$F/img/dump.log")"
	wait $bare || :
	mount --bind "$F/root" "$F/root"
}

# Control groups beside those of the sandboxes, one for each CPU: what competes
# for it must be the same for both.  They are made and joined before the clock
# runs.
bare_group() { # mkdir|rmdir NAME
	bare_bad=0
	for g in /sys/fs/cgroup/*/"$cg" "/sys/fs/cgroup/$cg"; do
		[ -e "$g/cgroup.procs" ] || continue
		[ "$1" = rmdir ] && [ ! -e "$g/$2" ] || "$1" "$g/$2" ||
			bare_bad=1
	done
	return $bare_bad
}

bare_join() { # NAME
	for g in /sys/fs/cgroup/*/"$cg/$1" "/sys/fs/cgroup/$cg/$1"; do
		[ ! -e "$g/cgroup.procs" ] || echo 0 >"$g/cgroup.procs"
	done
}

bare_one() { # I
	engine restore -D "$F/img" -W "$F/restored/$1" -o restore.log -v2 \
		--root "$F/root" --restore-detached \
		--pidfile "$F/restored/$1/pid" --empty-ns net \
		--manage-cgroups=ignore >/dev/null 2>&1 ||
		say "  a bare restore failed"
}

# The K-th, and from there every so many as there are workers, once told to.
bare_worker() { # K
	bare_join "bare-$1" && echo "$1" >>"$F/restored.joined"
	read -r _ <&8
	i=$1
	while [ "$i" -lt $fork_n ]; do
		bare_one "$i"
		i=$((i + $(nproc)))
	done
}

# As many at once as there are CPUs.
bare_restores() {
	rm -rf "$F/restored" "$F/restored".*
	for i in $(seq 0 $((fork_n - 1))); do
		mkdir -p "$F/restored/$i"
	done
	mkfifo "$F/restored.go"
	exec 8<>"$F/restored.go"
	: >"$F/restored.joined"
	bare_k=0 bare_pids=
	while [ $bare_k -lt "$(nproc)" ]; do
		bare_group mkdir "bare-$bare_k"
		# A shell of its own: 0 is who writes it.
		sh -c 'say() { echo "$*" >&2; }
			. "$0"; F=$1 bin=$2 cg=$3 fork_n=$4; bare_worker "$5"' \
			"$here/part-fork.sh" "$F" "$bin" "$cg" $fork_n $bare_k &
		bare_pids="$bare_pids $!"
		bare_k=$((bare_k + 1))
	done
	bare_i=0
	until [ "$(wc -l <"$F/restored.joined")" = "$bare_k" ]; do
		bare_i=$((bare_i + 1))
		[ $bare_i -lt 300 ] || die "no control groups for bare restores"
		sleep 0.05
	done
	bare_t0=$(uptime_ms)
	seq $bare_k >&8 # a line for each
	# shellcheck disable=SC2086
	wait $bare_pids
	bare_t1=$(uptime_ms)
	exec 8>&-
	for p in "$F"/restored/*/pid; do
		kill -KILL "$(cat "$p")"
	done
	bare_k=0
	while [ $bare_k -lt "$(nproc)" ]; do
		bare_i=0
		until bare_group rmdir "bare-$bare_k" 2>/dev/null; do
			bare_i=$((bare_i + 1))
			[ $bare_i -lt 100 ] || break
			sleep 0.05
		done
		bare_k=$((bare_k + 1))
	done
	echo $((bare_t1 - bare_t0)) >>"$F/bare.ms"
}

# --- what is measured ------------------------------------------------------

part_fork_memory() {
	say "copies of $fork_mb MB and 20 processes, $fork_rounds rounds"
	fork_i=0
	while [ "$fork_i" -lt "$fork_rounds" ]; do
		forked "one" bench-fork --count 1 --name "one-$fork_i"
		cat "$F/one" >>"$F/ones"
		"$bin/dsec-pause" --stop --grace 0 "one-$fork_i-0" \
			</dev/null >/dev/null
		fork_i=$((fork_i + 1))
	done
	bar "source stopped during a fork of $fork_mb MB, to the engine's part" \
		"$(median "$F/ones" .frozen_ms)" \
		"$(median "$F/ones" .engine_frozen_ms)" '<=' 1.3

	bare_setup
	fork_i=0
	while [ "$fork_i" -lt "$fork_rounds" ]; do
		bare_restores
		fork_t0=$(uptime_ms)
		forked "many" bench-fork --count $fork_n --name "many-$fork_i"
		fork_t1=$(uptime_ms)
		echo $((fork_t1 - fork_t0)) >>"$F/fork.ms"
		jq -r .sandbox "$F/many" | xargs "$bin/dsec-pause" --stop \
			--grace 0 >/dev/null
		fork_i=$((fork_i + 1))
	done
	umount "$F/root"
	bar "fork of $fork_n x $fork_mb MB, to as many bare restores" \
		"$(median "$F/fork.ms" .)" "$(median "$F/bare.ms" .)" '<=' 1.2
}

ksm=/sys/kernel/mm/ksm
ksm_put() { # RUN PAGES SLEEP
	echo "$2" >$ksm/pages_to_scan
	echo "$3" >$ksm/sleep_millisecs
	echo "$1" >$ksm/run
}

# The PSS of all processes of the sandboxes named in a file, in MiB.
pss_mb() { # RECORDS
	jq -r .sandbox "$1" | while read -r s; do
		cgroup_procs "$s" | xargs cat
	done | while read -r p; do
		cat "/proc/$p/smaps_rollup"
	done 2>/dev/null | awk '/^Pss:/ { s += $2 } END { print int(s / 1024) }'
}

part_fork_ksm() {
	[ -w $ksm/run ] || {
		unmeasured "memory of $fork_n copies" "this kernel merges nothing"
		return
	}
	say "memory of $fork_n copies with merged pages"
	node=$(cat "$W/config/node.json")
	echo "$node" | jq '. + {single_tenant: true}' >"$W/config/node.json"
	ksm_was="$(cat $ksm/run) $(cat $ksm/pages_to_scan) $(cat \
		$ksm/sleep_millisecs)"
	(
		# shellcheck disable=SC2086
		trap 'ksm_put $ksm_was' EXIT
		ksm_put 1 20000 20
		forked ksm bench-fork --count $fork_n --name ksm
		say "  $(jq -r .memory "$F/ksm" | sort | uniq -c);" \
			"$(pss_mb "$F/ksm") MiB at first"
		if [ -n "${BENCH_SMOKE:-}" ]; then sleep 5; else sleep 60; fi
		pss_mb "$F/ksm" >"$F/pss"
	)
	echo "$node" >"$W/config/node.json"
	bar "memory of $fork_n copies of $fork_mb MB, sum of PSS" \
		"$(cat "$F/pss")" "" '<=' 250 MiB
}

# A pool of its own, on the disk, for a layer of a gigabyte.
part_fork_files() {
	say "files of a layer of $fork_layer_mb MB, $rounds rounds"
	fork_stop
	mkdir -p "$F/pool"
	export DSEC_LIB="$F/pool"
	"$bin/dsec-doctor" --fix --only pool --pool-size \
		$((fork_layer_mb * 2 + 256))M </dev/null >/dev/null 2>&1 || :
	"$bin/dsec-run" --name bench-layer --detach -- sh -c \
		'i=0; while :; do i=$((i + 1)); echo $i >/root/n; sleep 0.1; done' \
		</dev/null >"$F/layer" || die "$(cat "$F/layer")"
	[ "$(jq -r .pool "$F/layer")" = btrfs ] || {
		unmeasured "a copy of files" "no pool of btrfs can be made here"
		return
	}
	"$bin/dsec-exec" bench-layer -- dd if=/dev/zero of=/root/big bs=1M \
		count=$fork_layer_mb </dev/null >/dev/null 2>&1 ||
		die "the layer could not be filled"
	sync -f "$F/pool/pool"
	used=$(df --output=used -k "$F/pool/pool" | tail -n 1)
	fork_count=$(fork_counter)
	fork_i=0
	while [ $fork_i -lt "$rounds" ]; do
		fork_files_round
		fork_i=$((fork_i + 1))
	done
	sync -f "$F/pool/pool"
	say "  $(jq -r .layer "$F/fs" | sort | uniq -c | tr -s ' ')," \
		"$((($(df --output=used -k "$F/pool/pool" | tail -n 1) - used) /
			rounds)) KiB more of the pool each;" \
		"the source stood still $(jq -s 'map(.frozen_ms) | sort |
			.[length * 9 / 10 | floor]' "$F/fs") ms at p90"
	say "  the whole of it, p50: dsec-fork $(median "$F/fork.wall" .) ms," \
		"dsec-run $(median "$F/run.wall" .) ms;" \
		"the launch in it $(median "$F/run" .launch_ms) ms"
	[ "$(fork_counter)" -gt "$fork_count" ] ||
		die "the source does not go on"
	bar "a copy of the files of a layer, p50" \
		"$(median "$F/fs" .fork_ms)" "" '<=' 50 ms
	bar "source stopped while the files of a layer are copied, p50" \
		"$(median "$F/fs" .frozen_ms)" "" '<=' 50 ms
	bar "copies of a layer that are no snapshot" \
		"$(jq -r .layer "$F/fs" | grep -vc snapshot || :)" "" '<=' 0 \
		copies
	fork_stop
	fork_i=0
	until umount "$F/pool/pool" 2>/dev/null; do # what was stopped ends
		fork_i=$((fork_i + 1))
		[ $fork_i -lt 100 ] || die "the pool stays mounted"
		sleep 0.1
	done
}

fork_counter() {
	"$bin/dsec-exec" bench-layer -- cat /root/n </dev/null
}

fork_files_round() {
	fork_t0=$(uptime_ms)
	forked "files" bench-layer --fs-only --name "files-$fork_i"
	fork_t1=$(uptime_ms)
	"$bin/dsec-run" --name "run-$fork_i" --detach -- true </dev/null \
		>"$F/ran" || die "$(cat "$F/ran")"
	fork_t2=$(uptime_ms)
	cat "$F/files" >>"$F/fs"
	cat "$F/ran" >>"$F/run"
	echo $((fork_t1 - fork_t0)) >>"$F/fork.wall"
	echo $((fork_t2 - fork_t1)) >>"$F/run.wall"
	"$bin/dsec-pause" --stop --grace 0 "run-$fork_i" </dev/null >/dev/null
}

part_fork() {
	export DSEC_LIB="$F/lib"
	fork_setup
	if [ -n "$(checkpoint_why)" ]; then
		unmeasured "copies with memory" "$(checkpoint_why)"
	else
		part_fork_memory
		part_fork_ksm
	fi
	part_fork_files
	export DSEC_LIB="$W/lib"
}
