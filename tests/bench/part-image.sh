# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154,SC2034 # sourced by run
# Layers: import beside mkfs.erofs and tar, merge, mounts, what a second image
# adds, pack beside tar.  The input is a part of this machine's own /usr.

I=$D/image
img_store=$I/lib/img/store
img_rounds=${BENCH_IMAGE_ROUNDS:-3} img_entries=50000 img_upper=25000
[ -z "${BENCH_SMOKE:-}" ] || img_rounds=1 img_entries=4000 img_upper=2000

img() { DSEC_LIB=$I/lib "$bin/dsec-img" "$@"; }

# cost NAME COMMAND...: a line in $I/costs
cost() {
	cost_name=$1
	shift
	line=$("$build/bench/cost" env DSEC_LIB="$I/lib" "$@") ||
		die "$cost_name failed"
	printf '%s\n' "$line" | jq -c --arg n "$cost_name" \
		'{name: $n} + .' >>"$I/costs"
}

# best NAME KEY: the least of all rounds
best() {
	jq -s --arg n "$1" --arg k "$2" \
		'map(select(.name == $n) | .[$k]) | min' "$I/costs"
}

img_show() {
	for n in "$@"; do
		say "  $n: wall $(best "$n" wall_ms) ms," \
			"CPU $(best "$n" cpu_ms) ms, $(best "$n" rss_kb) KiB"
	done
}

# img_tar FILE FROM COUNT: entries of /usr, in an order that stays
img_tar() {
	[ -s "$1" ] && return
	tail -n +"$2" "$out/usr.list" | head -n "$3" >"$1.list"
	tar -c --no-recursion --ignore-failed-read -f "$1.new" -C / \
		--verbatim-files-from -T "$1.list" 2>/dev/null || :
	mv "$1.new" "$1"
}

img_input() {
	mkdir -p "$I/lib" "$W/mnt"
	[ -s "$out/usr.list" ] || (cd / && find usr/bin usr/include usr/lib \
		usr/share -xdev \( -type d -o -type l -o -type f -size -1024k \) \
		! -name '*
*') | LC_ALL=C sort >"$out/usr.list"
	base=$out/usr-$img_entries.tar more=$out/usr-more-$img_entries.tar
	upper=$out/usr-upper-$img_upper.tar
	img_tar "$base" 1 "$img_entries"
	img_tar "$more" $((img_entries + 1)) $((img_entries / 10))
	img_tar "$upper" $((img_entries + img_entries / 10 + 1)) "$img_upper"
	img_n=$(tar -tf "$base" | wc -l)
	mkdir "$I/tree"
	tar -x -f "$base" -C "$I/tree"
	say "  $img_n entries, $(($(stat -c %s "$base") >> 20)) MiB"
}

# Import beside mkfs.erofs of the same as a tree, and beside tar -x.
img_import() {
	v=$(mkfs.erofs --version 2>&1 | sed -n -E 's/^mkfs\.erofs (\([^)]*\) )?([0-9.]+).*/\2/p')
	for _ in $(seq "$img_rounds"); do
		rm -rf "${I:?}/lib"
		cost import "$bin/dsec-img" import tar:"$base" --as root/base:1
		mkdir "$I/x"
		cost 'tar -x' tar -x -f "$base" -C "$I/x"
		rm -rf "$I/x"
		cost mkfs.erofs mkfs.erofs -d0 --chunksize=1048576 \
			--blobdev="$I/x.blob" "$I/x.erofs" "$I/tree"
		rm -f "$I/x.blob" "$I/x.erofs"
	done
	rm -rf "$I/tree"
	img_show import 'tar -x' mkfs.erofs
	if [ "$v" = 1.5 ]; then
		bar "import, CPU, to mkfs.erofs" "$(best import cpu_ms)" \
			"$(best mkfs.erofs cpu_ms)" '<=' 0.5
	else
		unmeasured "import, CPU, to mkfs.erofs" \
			"mkfs.erofs is ${v:-unknown}, not 1.5"
	fi
	bar "import, wall, to tar -x" "$(best import wall_ms)" \
		"$(best 'tar -x' wall_ms)" '<=' 1.0
	bar "import, memory, to 64 MiB and 1 KiB an entry" \
		"$(best import rss_kb)" $((65536 + img_n)) '<=' 1 KiB
}

# An image whose first part is the base: only what no base file has is stored.
# Files are padded to blocks, so that is what the bytes of both are counted in.
img_second() {
	cp "$base" "$I/second.tar"
	tar -A -f "$I/second.tar" "$more"
	cost second "$bin/dsec-img" import tar:"$I/second.tar" \
		--dict root/base:1 --as root/second:1
	rm "$I/second.tar"
	img_show second
	bar "a second image, new bytes, to its own in blocks of 4 KiB" \
		"$(img inspect root/second:1 </dev/null | jq .new_bytes)" \
		"$(python3 "$here/new-bytes.py" "$base" "$more")" '<=' 1.02 bytes
}

# img_layout DIR TAR...: an OCI image of these layers, without copying them
img_layout() {
	layout=$1 layers='' ids=''
	shift
	mkdir -p "$layout/blobs/sha256"
	for t; do
		d=$(sha256sum <"$t" | cut -c 1-64)
		# links are not followed
		ln "$t" "$layout/blobs/sha256/$d" 2>/dev/null ||
			cp "$t" "$layout/blobs/sha256/$d"
		ids="$ids sha256:$d"
		layers="$layers $(stat -L -c %s "$t")"
	done
	jq -nc --arg ids "$ids" '{architecture: "amd64", os: "linux",
		config: {}, rootfs: {type: "layers",
		diff_ids: ($ids | ltrimstr(" ") | split(" "))}}' >"$I/config"
	d=$(sha256sum <"$I/config" | cut -c 1-64)
	mv "$I/config" "$layout/blobs/sha256/$d"
	jq -nc --arg d "sha256:$d" --arg ids "$ids" --arg sizes "$layers" \
		--argjson size "$(stat -c %s "$layout/blobs/sha256/$d")" '
		"application/vnd.oci.image." as $t |
		($ids | ltrimstr(" ") | split(" ")) as $i |
		($sizes | ltrimstr(" ") | split(" ")) as $s |
		{schemaVersion: 2, mediaType: ($t + "manifest.v1+json"),
		 config: {mediaType: ($t + "config.v1+json"), digest: $d,
			size: $size},
		 layers: [range($i | length) | {digest: $i[.],
			mediaType: ($t + "layer.v1.tar"),
			size: ($s[.] | tonumber)}]}' >"$I/manifest"
	d=$(sha256sum <"$I/manifest" | cut -c 1-64)
	size=$(stat -c %s "$I/manifest")
	mv "$I/manifest" "$layout/blobs/sha256/$d"
	jq -nc --arg d "sha256:$d" --argjson size "$size" '{schemaVersion: 2,
		manifests: [{digest: $d, size: $size,
		mediaType: "application/vnd.oci.image.manifest.v1+json"}]}' \
		>"$layout/index.json"
	echo '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
}

img_blobs() {
	du -sb "$img_store/blob" | cut -f 1
}

# An image whose layers are in the store costs their merge.
img_merge() {
	img_layout "$I/oci" "$base" "$upper"
	img import oci:"$I/oci" --as root/merged:0 </dev/null >"$I/rec" ||
		die "$(cat "$I/rec")"
	before=$(img_blobs)
	for i in $(seq "$img_rounds"); do
		cost merge "$bin/dsec-img" import oci:"$I/oci" \
			--as root/merged:"$i"
	done
	img_show merge
	n=$(img inspect root/merged:1 </dev/null | jq .entries)
	bar "merge of two layers, CPU an inode, of $n" \
		"$(best merge cpu_ms | jq --argjson n "$n" \
			'. * 100000 / $n | round / 100')" "" '<=' 6 us
	bar "merge, blob bytes written" $(($(img_blobs) - before)) "" \
		'<=' 0 bytes
}

# img_files NAME: its metadata and devices, as tests/bench/mount takes them
img_files() {
	img inspect "$1" </dev/null | jq -r --arg s "$img_store" '
		def file($dir; $suffix): ltrimstr("sha256:") |
			"\($s)/\($dir)/sha256/\(.[:2])/\(.)\($suffix)";
		[(.meta.digest | file("meta"; ".erofs")),
		 (.devices[].root | file("blob"; ".data"))] | join(",")'
}

img_mounts() {
	# shellcheck disable=SC2046 # words
	r=$("$build/bench/mount" $((img_rounds * 30)) "$W/mnt" \
		$(for n in base second merged; do img_files root/$n:1; done)) ||
		die "mounts failed"
	say "  $r"
	m() { printf '%s\n' "$r" | jq ".$1.median_us // .$1"; }
	if [ "$(m loop)" = null ]; then
		unmeasured "layer mount, to loop set-up and mount" \
			"no loop devices here"
	else
		bar "layer mount, to loop set-up and mount" "$(m file)" \
			"$(m loop)" '<=' 0.1 us
	fi
	bar "environment of three mounted layers, to one layer mount" \
		"$(m env)" "$(m file)" '<=' 2 us
}

# A sandbox's changes, beside tar of the same directory.
img_pack() {
	box=$(DSEC_LIB=$I/lib "$bin/dsec-run" --detach --memory 1G -- sleep \
		100000 </dev/null | jq -r .sandbox)
	DSEC_LIB=$I/lib "$bin/dsec-exec" --cp - "$box:/opt/tree" <"$upper" ||
		die "the upper was not made"
	for i in $(seq "$img_rounds"); do
		cost pack "$bin/dsec-img" pack "$box" --as root/packed:"$i" \
			--kind workspace
		cost 'tar -c' tar -c -f "$I/upper.tar" -C "$I/lib/sb/$box/upper" .
	done
	rm -f "$I/upper.tar"
	DSEC_LIB=$I/lib "$bin/dsec-pause" --stop --grace 0 "$box" >"$I/rec"
	img_show pack 'tar -c'
	n=$(img inspect root/packed:1 </dev/null | jq .entries)
	bar "pack of $n entries, CPU, to tar -c" "$(best pack cpu_ms)" \
		"$(best 'tar -c' cpu_ms)" '<=' 1.0
}

part_image() {
	say "layers: $img_rounds rounds"
	need_image mkfs.erofs python3 || return 0
	img_input
	img_import
	img_second
	img_merge
	img_mounts
	img_pack
	# what the sandbox leaves is removed behind its answer
	rm -rf "$I" 2>/dev/null || sleep 2
	rm -rf "$I" || :
}

need_image() {
	for t; do
		command -v "$t" >/dev/null && continue
		unmeasured "layers" "$t is not installed"
		return 1
	done
}
