#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# An import that ends in the middle: a full disk, SIGKILL, a failing system call.
# Nothing is half published, and the next one succeeds.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools python3 jq strace unshare zstd
tree_new
tools=$(cd "$(dirname "$0")" && pwd)/import
store=$DSEC_RUN/store

run "$tools/images" "$T/images"
image=$T/images/sibling.tar
run timeout 60 dsec-img import "$image" --store "$store" --as t/a:1
is "$status" 0 "an import for comparison" || diag "$out$err"
digest=$(field "$out" .digest)

# All that is named is whole: each manifest verifies with its data, no blob or
# metadata lies there that is not what its name says.
whole() { # STORE
	[ -f "$1/store.json" ] || return 0
	timeout 20 dsec-img verify --all --data --store "$1" </dev/null \
		>"$T/verify" 2>&1 || return 1
	find "$1/meta" "$1/blob" -type f ! -name '*.data' -exec sha256sum {} + |
		while read -r whole_d whole_f; do
			case $whole_f in
			*"/$whole_d.erofs") ;;
			*"/$whole_d.idx") [ -f "${whole_f%.idx}.data" ] || echo bad ;;
			*) echo bad ;;
			esac
		done >"$T/whole"
	[ ! -s "$T/whole" ] &&
		[ -z "$(find "$1/tag" -type f -name '*.json' -size 0 2>/dev/null)" ]
}
whole "$store"
ok "$?" "a store that is whole is found so" || diag "$(cat "$T/verify")"

# --- SIGKILL ---------------------------------------------------------------------

# At calls that change something: the first, the last, and some between.
calls='openat mkdirat write pwrite64 fsync fdatasync renameat renameat2 linkat
	unlinkat ftruncate'
list=$(printf "%s" "$calls" | tr -s " \t\n" ,)
strace -f -qq -o "$T/trace" -e trace="$list" dsec-img import "$image" \
	--store "$DSEC_RUN/k" --as t/a:1 </dev/null >"$T/out" 2>&1
bad='' hits=0
for call in $calls; do
	total=$(grep -c "^[0-9]* *$call(" "$T/trace")
	for at in 1 $((total / 2)) $((total * 3 / 4)) "$total"; do
		[ "$at" -gt 0 ] || continue
		rm -rf "$DSEC_RUN/k"
		strace -f -qq -o /dev/null -e trace="$call" \
			-e inject="$call:signal=KILL:when=$at" \
			dsec-img import "$image" --store "$DSEC_RUN/k" --as t/a:1 \
			</dev/null >"$T/out" 2>&1 && continue
		hits=$((hits + 1))
		whole "$DSEC_RUN/k" || bad="$bad whole:$call:$at"
		run timeout 60 dsec-img import "$image" --store "$DSEC_RUN/k" --as t/a:1
		[ "$(field "$out" .digest)" = "$digest" ] ||
			bad="$bad repeat:$call:$at"
	done
done
is "$bad" '' "SIGKILL at $hits points: nothing half published, the repeat succeeds"
ok "$((hits < 15))" "at no fewer than 15 of them"

# --- errors ------------------------------------------------------------------------

mkdir "$T/little" && run dsec-img import "dir:$T/little" --store "$DSEC_RUN/empty"
is "$status" 0 "a store with little in it" || diag "$out$err"
bad='' hits=0
for call in write pwrite64 fsync fdatasync openat renameat linkat mkdirat; do
	for at in 2 9; do
		error=ENOSPC
		[ "$call" != openat ] || error=EMFILE at=$((at + 20))
		rm -rf "$DSEC_RUN/k"
		cp -a "$DSEC_RUN/empty" "$DSEC_RUN/k"
		strace -f -qq -o /dev/null -e trace="$call" \
			-e inject="$call:error=$error:when=$at+" \
			dsec-img import "$image" --store "$DSEC_RUN/k" --as t/a:1 \
			</dev/null >"$T/out" 2>"$T/err"
		r=$?
		[ "$r" -lt 126 ] || bad="$bad $call:$at:$r"
		[ "$r" -eq 0 ] && continue
		hits=$((hits + 1))
		whole "$DSEC_RUN/k" || bad="$bad whole:$call:$at"
		[ -z "$(ls -A "$DSEC_RUN/k/tmp" 2>/dev/null)" ] ||
			bad="$bad left:$call:$at"
	done
done
is "$bad" '' "$hits failing calls: an error each, and nothing left"
ok "$((hits < 8))" "at no fewer than 8 of them"

# --- a full disk -------------------------------------------------------------------

cat >"$T/full" <<'END'
mount -t tmpfs -o size=6m,mode=755 none "$1" || exit 99
dsec-img import "$2" --store "$1/store" --as t/full:1 </dev/null
echo "status $?"
(cd "$1/store" && find manifest blob meta tmp tag lease -type f | sed 's/^/left /')
mount -o remount,size=80m "$1" || exit 99
dsec-img import "$2" --store "$1/store" --as t/full:1 </dev/null
echo "again $?"
END
mkdir "$DSEC_RUN/mnt"
python3 -c 'import os, sys
for n in range(20):
	open("%s/f%d" % (sys.argv[1], n), "wb").write(os.urandom(1 << 20))' \
	"$(mkdir "$T/big" && echo "$T/big")"
tar -C "$T/big" -cf "$T/big.tar" .
gzip -1 -k "$T/big.tar"
# The third is spooled, for nobody can seek in it.
mkdir "$T/big-oci"
python3 - "$T/big.tar" "$T/big-oci" <<'END'
import hashlib, json, sys
tar, out = open(sys.argv[1], "rb").read(), sys.argv[2]
conf = json.dumps({"os": "linux", "architecture": "", "rootfs": {"diff_ids": [
    "sha256:" + hashlib.sha256(tar).hexdigest()]}})
for name, data in (("l.tar", tar), ("c.json", conf.encode()), (
        "manifest.json", json.dumps([{"Config": "c.json", "Layers": ["l.tar"]}]
                                    ).encode())):
    open("%s/%s" % (out, name), "wb").write(data)
END
tar -C "$T/big-oci" -cf - l.tar c.json manifest.json | gzip -1 >"$T/spooled.tar.gz"
for source in "tar:$T/big.tar" "dir:$T/big" "$T/big.tar.gz" \
	"docker-archive:$T/spooled.tar.gz"; do
	run timeout 60 unshare -m sh "$T/full" "$DSEC_RUN/mnt" "$source"
	is "$(printf '%s\n' "$out" | jq -rR 'fromjson? | .error.code // empty' |
		head -n 1)" no_space \
		"field report 35: a full disk is said so: ${source##*/}" ||
		diag "$out$err"
	is "$(printf '%s\n' "$out" | grep '^left')" '' "nothing is left of it"
	like "$out" '^again 0$' "with room it succeeds"
done

# --- a signal ------------------------------------------------------------------------

mkfifo "$T/fifo"
timeout 30 dsec-img import "tar:$T/fifo" --store "$DSEC_RUN/k" --as t/b:1 </dev/null \
	>"$T/out" 2>&1 &
pid=$!
exec 3>"$T/fifo"
head -c 5000000 "$T/big.tar" >&3
child=$(pgrep -P "$pid" dsec-img)
kill -TERM "$child"
tail -c +5000001 "$T/big.tar" >&3 2>/dev/null
exec 3>&-
wait "$pid"
is "$(jq -r .error.code "$T/out")" cancelled "SIGTERM ends an import" ||
	diag "$(cat "$T/out")"
is "$(ls -A "$DSEC_RUN/k/tmp")" '' "which leaves nothing half made"
run dsec-img import "tar:$T/big.tar" --store "$DSEC_RUN/k" --deadline 0.001
is "$(field "$out" .error.code)" deadline "and so does a deadline"
is "$(ls -A "$DSEC_RUN/k/tmp")" '' "which leaves nothing either"
done_testing
