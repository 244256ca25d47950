#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What is imported is what tar(1) extracts, in every attribute; what tar(1) does
# not extract gives one line and no image.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools python3 tar zstd lz4 jq setpriv
tree_new
tools=$(cd "$(dirname "$0")" && pwd)/import
store=$T/store # file-backed mounts do not take one on tmpfs

requests() { # of the names on stdin: each its import
	jq -cR --arg dir "$1" --arg store "$store" \
		'{op: "import", id: ., source: "tar:\($dir)/\(.)", store: $store}'
}

# The digest and the tree for each import that went well.
pairs() {
	jq -r --arg dir "$1" 'select(.ok) | "\(.digest) \($dir)/\(.id)"' "$T/out"
}

extract() { # FILE DIR
	mkdir -p "$2"
	case $1 in
	*/z-lz4) lz4 -dc "$1" ;;
	*/z-lzma) xz --format=lzma -dc "$1" ;;
	*/z-gzip*) gzip -dc "$1" 2>/dev/null ;;
	*/z-*) cat "$1" ;;
	*) cat "$1" ;;
	esac >"$T/plain"
	tar --numeric-owner --xattrs '--xattrs-include=*' --acls \
		-xpf "$T/plain" -C "$2" 2>>"$T/tar.err"
}

run "$tools/archives" "$T/a"
is "$status" 0 "field report 39: the archives are made" || diag "$err"

# --- those that tar extracts ---------------------------------------------------

for f in "$T"/a/good/*; do
	extract "$f" "$T/x/${f##*/}"
done
printf '%s\n' "$T"/a/good/* | sed 's,.*/,,' >"$T/names"
requests "$T/a/good" <"$T/names" | timeout 120 dsec-img >"$T/out" 2>"$T/err"
is "$?" 0 "field report 39: all of them are imported" ||
	diag "$(jq -c 'select(.ok | not)' "$T/out")" "$(cat "$T/err")"
pairs "$T/x" | timeout 120 "$tools/tree" check "$store" >"$T/same"
while read -r name; do
	case $name in
	# An empty value is no value, says the standard; tar takes it for a name.
	pax-empty-value) continue ;;
	esac
	grep -qx "same $name" "$T/same"
	ok "$?" "as tar extracts it: $name" || diag "$(grep "^$name:" "$T/same")"
done <"$T/names"
run "$tools/tree" show "$store" "$(jq -r 'select(.id == "pax-empty-value").digest' "$T/out")"
like "$out" '"name": "a".*"uid": 5' "an empty pax value is none"

# The same once more: nothing new.
find "$store/blob" "$store/meta" "$store/manifest" -type f | sort >"$T/before"
cp "$T/out" "$T/first"
requests "$T/a/good" <"$T/names" | timeout 120 dsec-img >"$T/out" 2>&1
is "$(jq -r '"\(.id) \(.digest)"' "$T/out")" \
	"$(jq -r '"\(.id) \(.digest)"' "$T/first")" \
	"the same archives have the same digests"
is "$(jq '.new_bytes' "$T/out" | sort -u)" 0 "and nothing is stored again"
is "$(find "$store/blob" "$store/meta" "$store/manifest" -type f | sort)" \
	"$(cat "$T/before")" "no file is new"

"$tools/archives" | timeout 120 dsec-img import tar:/dev/stdin \
	--store "$store" >"$T/out" 2>&1
json_is "$(cat "$T/out")" '[8589934597,2]' \
	"field report 39: 8 GiB in base 256, holes in the image" \
	'[.bytes, .entries]'

# --- those that it does not ------------------------------------------------------

printf '%s\n' "$T"/a/bad/* | sed 's,.*/,,' >"$T/names"
good_store=$store
store=$DSEC_RUN/store # nothing is mounted from it
requests "$T/a/bad" <"$T/names" | timeout 120 dsec-img >"$T/out" 2>"$T/err"
is "$?" 65 "field report 39: none of the others is imported" ||
	diag "$(jq -c 'select(.ok)' "$T/out")" "$(cat "$T/err")"
while read -r name; do
	code=bad_archive
	[ "$name" != sparse-endless ] || code=too_large
	is "$(jq -r --arg id "$name" 'select(.id == $id) | .error.code' "$T/out")" \
		"$code" "refused: $name"
done <"$T/names"
is "$(jq -r '.error.message' "$T/out" | wc -l)" "$(wc -l <"$T/names")" \
	"each with one line"
bad=$(jq -r 'select(.error.message | test("offset [0-9]+|nothing in it") | not).id' \
	"$T/out")
is "$bad" '' "and an offset"
like "$(jq -r 'select(.id == "8-gib").error.message' "$T/out")" \
	"entry 'huge' at offset 1024: .* at offset 6656" "the entry is named"
is "$(find "$store/blob" "$store/meta" "$store/manifest" "$store/tmp" -type f)" \
	'' "nothing of them is left in the store"
store=$good_store

# --- a tree with something of everything ----------------------------------------

run "$tools/tree" make "$T/tree"
is "$status" 0 "a tree is made" || diag "$err"
LC_ALL=C tar --xattrs "--xattrs-include=*" --acls --numeric-owner \
	--sparse --format=pax --sort=name \
	-C "$T/tree" -cf "$T/tree.tar" . 2>"$T/err" || diag "$(cat "$T/err")"
mkdir "$T/tree.x"
extract "$T/tree.tar" "$T/tree.x"
run dsec-img import "$T/tree.tar" --store "$store" --as t/tree:1
is "$status" 0 "its tar is imported" || diag "$out$err"
echo "$(field "$out" .digest) $T/tree.x" | "$tools/tree" check "$store" >"$T/same"
is "$(cat "$T/same")" 'same tree.x' "the image is what tar -x makes"
run dsec-img import "dir:$T/tree" --store "$store" --as t/dir:1
is "$status" 0 "and so is the directory" || diag "$out$err"
json_is "$out" '{"sockets":1}' "the socket is told" .dropped
echo "$(field "$out" .digest) $T/tree" | "$tools/tree" check "$store" >"$T/same"
is "$(cat "$T/same")" 'same tree' "which makes the same image"
is "$(field "$out" .new_bytes)" 0 "its data is stored once for both"
run dsec-img inspect t/tree:1 --store "$store"
tree_meta=$(field "$out" '.meta // .layers[0].meta | tostring')
run dsec-img inspect t/dir:1 --store "$store"
is "$(field "$out" '.meta // .layers[0].meta | tostring')" "$tree_meta" \
	"the metadata is the same, bit for bit"
run dsec-img verify --data t/tree:1 t/dir:1 --store "$store"
is "$status" 0 "what was made verifies" || diag "$out$err"

# From a pipe, compressed, as another user, and below a place of its own.
zstd -qc "$T/tree.tar" | timeout 60 dsec-img import tar:/dev/stdin \
	--store "$store" --as t/pipe:1 >"$T/out" 2>&1
is "$?" 0 "a pipe with zstd in it is imported" || diag "$(cat "$T/out")"
run dsec-img ls t --store "$store"
is "$(printf '%s\n' "$out" | jq -r 'select(.name == "t/pipe:1").digest')" \
	"$(printf '%s\n' "$out" | jq -r 'select(.name == "t/tree:1").digest')" \
	"and makes the same image"
mkdir "$T/own" && chown 1234 "$T/own" && chmod 644 "$T/tree.tar"
run setpriv --reuid 1234 --regid 1234 --clear-groups \
	"$BIN/dsec-img" import "$T/tree.tar" --store "$T/own/store" --as t/own:1
is "$status" 0 "root is not needed" || diag "$out$err"
is "$(field "$out" .digest)" "$(printf '%s\n' "$(dsec-img ls t/tree \
	--store "$store" </dev/null)" | jq -r 'select(.name).digest')" \
	"and another user's image is the same"
run dsec-img import "$T/tree.tar" --store "$store" --kind workspace \
	--at /work/here --as t/at:1
is "$status" 0 "a workspace at a place of its own" || diag "$out$err"
run "$tools/tree" show "$store" "$(field "$out" .digest)"
like "$out" '"name": "work/here/suid"' "lies below it"

# --- dictionaries, mounts, files that change ----------------------------------------

cp -a "$T/tree" "$T/more"
rm -f "$T/more/socket"
head -c 300000 /dev/urandom >"$T/more/new"
run dsec-img import "dir:$T/more" --store "$store" --dict t/tree:1 --as t/more:1
is "$status" 0 "with a dictionary" || diag "$out$err"
ok "$(($(field "$out" .new_bytes) > 306000))" \
	"what it has is not stored again: $(field "$out" .new_bytes) bytes for 300000"
echo "$(field "$out" .digest) $T/more" | "$tools/tree" check "$store" >"$T/same"
is "$(cat "$T/same")" 'same more' "and the image is the same"
run dsec-img verify --data t/more:1 --store "$store"
is "$status" 0 "it verifies" || diag "$out$err"

mkdir -p "$T/top/bound" "$T/top/other" "$T/outside"
touch "$T/outside/secret"
cat >"$T/mounts" <<'END'
mount --bind "$1/outside" "$1/top/bound" && mount -t tmpfs none "$1/top/other" &&
	touch "$1/top/other/secret" || exit 99
exec dsec-img import "dir:$1/top" --store "$2"
END
run unshare -m sh "$T/mounts" "$T" "$store"
json_is "$out" '[3,2]' "what is mounted below a directory stays outside" \
	'[.entries, .dropped.others]'

mkdir "$T/moving"
touch "$T/writes"
(
	while [ -e "$T/writes" ]; do
		head -c 2000000 /dev/zero | tr '\0' x >>"$T/moving/f"
		[ "$(wc -c <"$T/moving/f")" -lt 100000000 ] || : >"$T/moving/f"
	done
) 2>/dev/null &
writer=$!
wait_for 10 test -s "$T/moving/f"
for _ in 1 2 3 4 5; do
	run dsec-img import "dir:$T/moving" --store "$DSEC_RUN/store"
	[ "$status" -eq 0 ] || break
done
rm "$T/writes"
wait "$writer"
rm -rf "$T/moving"
is "$(field "$out" .error.code)" busy "a file that changes is not taken"

# --- excludes, whiteouts in a plain tar ------------------------------------------

run dsec-img import "dir:$T/tree" --store "$store" --exclude 'file-with*' \
	--exclude links/s --exclude '/size-*'
is "$status" 0 "patterns leave out" || diag "$out$err"
run "$tools/tree" show "$store" "$(field "$out" .digest)"
unlike "$out" '"name": "(many/file.*|links/s|size-1)"' "what they match"
like "$out" '"name": "links/s2"' "and nothing else"

mkdir -p "$T/wh/d"
touch "$T/wh/d/.wh.gone" "$T/wh/d/.wh..wh..opq" "$T/wh/.wh..wh.plnk"
tar -C "$T/wh" -cf "$T/wh.tar" .
run dsec-img import "tar:$T/wh.tar" --store "$store"
run "$tools/tree" show "$store" "$(field "$out" .digest)"
like "$out" '"name": "d/.wh.gone"' "in a plain tar .wh.NAME is a name"
run dsec-img import "tar:$T/wh.tar" --store "$store" --oci-whiteouts
run "$tools/tree" show "$store" "$(field "$out" .digest)"
like "$out" '"name": "d/gone", "nlink": 1, "rdev": \[0, 0\]' \
	"--oci-whiteouts makes it a whiteout"
unlike "$out" '\.wh\.' "and no such name is left"

# --- what overlay would take for its own ------------------------------------------

mkdir -p "$T/ov/dir"
mknod "$T/ov/white" c 0 0
setfattr -n trusted.overlay.opaque -v y "$T/ov/dir" 2>/dev/null ||
	python3 -c 'import os, sys
os.setxattr(sys.argv[1], "trusted.overlay.opaque", b"y")' "$T/ov/dir"
run dsec-img import "dir:$T/ov" --store "$store"
json_is "$out" '{"devices":1,"xattrs":1}' "overlay's own marks are dropped" \
	.dropped
tar --xattrs '--xattrs-include=*' -C "$T/ov" -cf "$T/ov.tar" .
run dsec-img import "tar:$T/ov.tar" --store "$store"
json_is "$out" '{"devices":1,"xattrs":1}' "those of a tar too" .dropped

# --- what is not there -------------------------------------------------------------

run dsec-img import python:3.12 --store "$store" --as t/x:1
is "$(field "$out" .error.code)" not_found \
	"a missing file is an error and no registry name"
like "$(field "$out" .error.message)" 'dsec-img pull' "which says what to do"
run dsec-img import "docker-archive:$T/nothing.tar" --store "$store"
is "$(field "$out" .error.code)" not_found "so is a missing archive"
run dsec-img import "tar:$T/tree" --store "$store"
is "$(field "$out" .error.code)" is_directory "a directory is no archive"
run dsec-img import "dir:$T/tree.tar" --store "$store"
is "$(field "$out" .error.code)" not_directory "an archive is no directory"
run dsec-img import "$T/tree.tar" --store "$store" --at /x
is "$(field "$out" .error.code)" bad_value "a base has no place of its own"
is "$(ls -A "$store/tmp")" '' "the store has nothing half made"
is "$(find "$store/lease" -type f)" '' "and no lease of an import"
done_testing
