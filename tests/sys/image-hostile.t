#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Images and stores whose makers mean harm: nothing of the host is read or
# written, nothing hangs, nothing is taken at its word, and what is shown on a
# terminal does not command it.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq busybox script python3
tree_new

import() { # SOURCE NAME [FLAG...]
	import_from=$1 import_as=$2
	shift 2
	run timeout 60 dsec-img import "$import_from" --as "$import_as" "$@"
	[ "$status" -eq 0 ] || diag "import of $import_from: $out $err"
	return "$status"
}

mkdir -p "$T/base/bin" "$T/base/etc" "$T/base/root"
cp "$(command -v busybox)" "$T/base/bin/busybox"
for tool in sh cat id ls sleep stat pwd touch find; do
	ln -s busybox "$T/base/bin/$tool"
done
echo 'root:x:0:0::/root:/bin/sh' >"$T/base/etc/passwd"
import "dir:$T/base" root/base:1 --kind base
base=$(field "$out" .digest)
base=${base#sha256:}
mkdir "$T/outside"
hangs='' commands=''

# --- the user's files --------------------------------------------------------

# Whatever is in the place of /etc/passwd: a user by name is not there, one by
# number is, and no launch waits for it or reads the host's.
for kind in fifo chain host proc device huge dir; do
	rm -rf "${T:?}/etc"
	mkdir -p "$T/etc/etc"
	at=$T/etc/etc/passwd
	case $kind in
	fifo) mkfifo "$at" ;;
	chain) ln -s passwd "$at" ;;
	host) ln -s ../../../../../../../../etc/passwd "$at" ;;
	proc) ln -s /proc/1/root/etc/passwd "$at" ;;
	device) mknod "$at" c 1 5 ;;
	huge) truncate -s 20G "$at" ;;
	dir) mkdir "$at" ;;
	esac
	cp -a "$at" "$T/etc/etc/group" 2>/dev/null
	import "dir:$T/etc" "root/etc:$kind" --kind toolkit
	run timeout 20 dsec-run --rm --image root/base:1 \
		--layer "root/etc:$kind" --user daemon -- sh -c :
	is "$status" 125 "a $kind for /etc/passwd: no user of the host's" ||
		diag "$out $err"
	run timeout 20 dsec-run --rm --image root/base:1 \
		--layer "root/etc:$kind" --user 7 -- \
		sh -c 'touch /tmp/x; stat -c %u /tmp/x'
	is "$status $out" "0 7" "a $kind for /etc/passwd: a number needs none" ||
		diag "$err"
done

# --- working directories -----------------------------------------------------

mkdir -p "$T/w"
ln -s "$T/outside" "$T/w/abs"
ln -s ../../../../../../../../../../"$T/outside" "$T/w/up"
ln -s /proc/self/root/"$T/outside" "$T/w/magic"
mkfifo "$T/w/fifo"
for dir in abs/x up/x/y magic/x fifo/x ../../x/.. /; do
	import "dir:$T/w" root/w:1 --workdir "/$dir"
	run timeout 20 dsec-run --rm --image root/base:1 --layer root/w:1 \
		-- pwd
	isnt "$status" 124 "a working directory of /$dir"
done
is "$(ls -A "$T/outside")" "" "no working directory is made outside"

# --- a store that others write -----------------------------------------------

cp -a "$DSEC_LIB/img/store" "$T/kept"
theirs() { # a new copy, somebody else's
	rm -rf "$T/store"
	cp -a "$T/kept" "$T/store"
	chown -R 12345:12345 "$T/store"
}
echo "{\"store\":\"$T/store\"}" >"$DSEC_CONFIG/images.json"

# A pipe in place of a file: nothing waits for somebody to write to it.
theirs
timeout 20 dsec-img unmount --all >/dev/null
dev=$(jq -r '.devices[0].root' \
	"$T/store/manifest/sha256/$(echo "$base" | head -c 2)/$base.json")
meta=$(jq -r .meta.digest \
	"$T/store/manifest/sha256/$(echo "$base" | head -c 2)/$base.json")
for file in store.json tag/root/base/1.json \
	"manifest/sha256/$(echo "$base" | head -c 2)/$base.json" \
	"meta/sha256/$(echo "$meta" | head -c 2)/$meta.erofs" \
	"blob/sha256/$(echo "$dev" | head -c 2)/$dev.data"; do
	mv "$T/store/$file" "$T/away"
	mkfifo "$T/store/$file"
	for op in ls "inspect root/base:1" "verify root/base:1" \
		"mount root/base:1"; do
		# shellcheck disable=SC2086
		run timeout -k 1 10 dsec-img $op
		[ "$status" -ne 124 ] && [ "$status" -ne 137 ] ||
			hangs="$hangs $op:$file"
	done
	is "$status $(field "$out" .error.code)" "1 image_damaged" \
		"a pipe for ${file%%/*}: it is not mounted" || diag "$out"
	rm "$T/store/$file"
	mv "$T/away" "$T/store/$file"
done
is "$hangs" "" "nothing waits for a pipe in a store"

# A link in place of one leads to no file of the host.
echo secret >"$T/secret"
for way in file loop directory; do
	theirs
	echo "{\"store\":\"$T/store\",\"mount\":\"$way\"}" \
		>"$DSEC_CONFIG/images.json"
	ln -sf "$T/secret" "$T/store/$file"
	run timeout 20 dsec-img mount root/base:1
	is "$(field "$out" .ok)" false "$way: a link for a blob is not followed"
	theirs
	rm -r "$T/store/${file%/*}"
	ln -s "$T/kept/${file%/*}" "$T/store/${file%/*}"
	run timeout 20 dsec-img mount root/base:1
	is "$(field "$out" .ok)" false "$way: nor one for its directory"
	timeout 20 dsec-img unmount --all >/dev/null
done
echo "{\"store\":\"$T/store\"}" >"$DSEC_CONFIG/images.json"
theirs

# Metadata as large as a manifest says: not taken into memory.
mf=$T/store/manifest/sha256/$(echo "$base" | head -c 2)/$base.json
jq -c '.meta.size=1000000000000' "$mf" >"$T/mf"
cp "$T/mf" "$mf"
truncate -s 1000000000000 "$T/store/meta/sha256/$(echo "$meta" | head -c 2)/$meta.erofs"
run timeout 10 dsec-img mount root/base:1
is "$status $(field "$out" .error.code)" "1 image_damaged" \
	"metadata of a terabyte is refused" || diag "$out"

# The inbox leads nowhere else.
theirs
run timeout 20 dsec-run --detach --image root/base:1 -- sh -c 'echo x >/new'
id=$(field "$out" .sandbox)
run timeout 20 dsec-img pack "$id" --as root/p:1
inbox=$(field "$out" .inbox)
like "$inbox" '^inbox:' "without a link it is packed to the inbox" ||
	diag "$out $err"
node=${inbox#inbox:}
node=${node%/*}
rm -rf "$T/store/inbox/$node"
mkdir "$T/store/inbox/$node"
chown 4242:4242 "$T/store/inbox/$node"
run timeout 20 dsec-img pack "$id" --as root/p:1
is "$status $(field "$out" .error.code) $(ls -A "$T/store/inbox/$node")" \
	"77 permission " "a stranger's directory of our name is not written" ||
	diag "$out"
rm -rf "$T/store/inbox/$node"
ln -s "$T/outside" "$T/store/inbox/$node"
run timeout 20 dsec-img pack "$id" --as root/p:1
is "$(field "$out" .ok) $(ls -A "$T/outside")" "false " \
	"nothing is written through a link in the inbox" || diag "$out"
rm -r "$T/store/inbox"
ln -s "$T/outside" "$T/store/inbox"
run timeout 20 dsec-img pack "$id" --as root/p:1
is "$(field "$out" .ok) $(ls -A "$T/outside")" "false " \
	"nor through one in place of it" || diag "$out"
timeout 20 dsec-pause --stop --grace 0 "$id" >/dev/null

# A store that is ours by name, in a directory of many: the metadata that is
# mounted is no file that they could change.
rm -rf "$T/store"
cp -a "$T/kept" "$T/store"
chmod 1777 "$T/store"
timeout 20 dsec-img unmount --all >/dev/null
echo "{\"store\":\"$T/store\",\"mount\":\"loop\"}" \
	>"$DSEC_CONFIG/images.json"
run timeout 20 dsec-img mount root/base:1
if [ "$status" -eq 0 ]; then
	grep -qs "^$DSEC_LIB/.* (deleted)$" /sys/block/loop*/loop/backing_file
	ok $? "a store that others may write: metadata of our own is mounted"
else
	skip "metadata of our own" "$(field "$out" .error.message | head -c 200)"
fi
timeout 20 dsec-img unmount --all >/dev/null
rm "$DSEC_CONFIG/images.json"

# --- what compresses well ----------------------------------------------------

# Attributes are kept in memory: so many are refused, however small the archive.
python3 - "$T/attrs.tgz" <<'END'
import gzip, sys
with gzip.open(sys.argv[1], "wb", 1) as f:
    def block(name, kind, size):
        h = bytearray(512)
        h[0:len(name)] = name
        h[100:107] = b"0000644"
        h[124:135] = b"%011o" % size
        h[156:157] = kind
        h[257:265] = b"ustar\x0000"
        h[148:156] = b" " * 8
        h[148:156] = b"%06o\0 " % sum(h)
        return bytes(h)
    rec = b"60026 SCHILY.xattr.user.a=" + b"A" * 59999 + b"\n"
    rec = b"%d" % len(rec) + rec[5:]
    pax = block(b"p", b"x", len(rec)) + rec + bytes(-len(rec) % 512)
    for i in range(9200):
        f.write(pax + block(b"%d" % i, b"0", 0))
    f.write(bytes(1024))
END
run sh -c 'ulimit -v 3000000; timeout 60 dsec-img import "tar:$1" --as root/a:1' \
	sh "$T/attrs.tgz"
is "$(field "$out" .error.code)" too_large \
	"half a gigabyte of attributes from $(stat -c %s "$T/attrs.tgz") bytes" ||
	diag "$status $out $err"
is "$(find "$DSEC_LIB/img/store/tmp" -mindepth 1)" "" "nothing of it stays"

# An archive that does not end.
run timeout -k 1 20 dsec-img import tar:/dev/zero --as root/z:1 --deadline 1s
is "$(field "$out" .error.code)" deadline "the deadline ends it" ||
	diag "$status $out $err"
mkfifo "$T/endless"
(gzip -1c </dev/zero 2>/dev/null >"$T/endless" &)
run timeout -k 1 20 dsec-img import "oci-archive:$T/endless" --as root/z:1 \
	--deadline 1s
is "$(field "$out" .error.code)" deadline "nor while it is unpacked" ||
	diag "$status $out $err"
# It reads from a pipe: when that is open the program is at work.
mkfifo "$T/zeroes"
timeout --foreground -k 10 60 dsec-img import "tar:$T/zeroes" --as root/z:1 \
	>"$T/.cancelled" 2>"$T/.e" &
reader=$!
# shellcheck disable=SC2016 # the inner shell's
timeout 60 sh -c 'exec 9>"$1" && kill -TERM "$2" && exec cat /dev/zero >&9' \
	sh "$T/zeroes" $reader 2>/dev/null
wait $reader
is "$(field "$(cat "$T/.cancelled")" .error.code)" cancelled "and a signal" ||
	diag "$(cat "$T/.cancelled" "$T/.e")"

# --- the terminal ------------------------------------------------------------

esc=$(printf '\033]0;x\007\302\233')
mkdir -p "$T/esc/a" "$T/esc2/a"
echo 1 >"$T/esc/a/$esc"
echo 2 >"$T/esc2/a/$esc"
mkdir "$T/esc/.ssh"
echo key >"$T/esc/.ssh/id_$esc"
import "dir:$T/esc" root/esc:1 --kind toolkit --env "A=$esc"
import "dir:$T/esc2" root/esc:2 --kind toolkit
# script hands the line to a shell: the name is quoted for it.
for op in "env root/esc:1 root/esc:2" "diff root/esc:1 root/esc:2" \
	"lint root/esc:1" "inspect root/esc:1" "import 'dir:/$esc' --as a/b:1" \
	"import 'dir:$T/outside/$esc' --as a/b:1" "mount '$esc'" \
	"tag root/esc:1 '$esc'" "verify root/esc:1"; do
	SHELL=/bin/sh timeout 20 script -qec "dsec-img $op" /dev/null \
		</dev/null >"$T/tty" 2>&1
	! LC_ALL=C grep -q "$(printf '\033]\|\007\|\302\233')" "$T/tty" ||
		commands="$commands ${op%% *}"
done
is "$commands" "" "no name commands the terminal"
done_testing
