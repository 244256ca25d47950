#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dsec-img export, and what diff and lint say of what came back.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq

tree_new
leak_start
mkdir "$T/in"
long=$(printf '0123456789%.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18)
(
	cd "$T/in" || exit 1
	mkdir -p a/b etc home/user var/empty
	echo hello >a/file
	ln a/file a/b/second
	ln -s "$long" a/link
	ln -s ../../../etc/passwd a/out
	echo x >"a/$long"
	printf 'x' >"$(printf 'a/\303\251\377')"
	mkfifo a/fifo
	mknod a/dev b 7 300
	chmod 1777 var/empty
	chown 1000:100 home/user
	echo u >home/user/file
	chmod 2755 home/user/file
	truncate -s 20M a/sparse
	echo end >>a/sparse
	touch -d '2001-02-03 04:05:06.789 UTC' a/file
	touch -d '1969-12-31 23:00:00 UTC' a/b
	setfattr -n user.x -v y a/file
	setfacl -m u:1234:rw a/file
) 2>/dev/null

run dsec-img import "dir:$T/in" --as root/in:1 -e B=2 -e A=1 -w /home -u user
is "$status" 0 "a directory" || diag "$err$out"

# --- and back ----------------------------------------------------------------
# Field report 41: long names of links come back as they were.

for how in none gzip zstd; do
	run dsec-img export root/in:1 "oci-archive:$T/$how.tar" --compress "$how"
	is "$status" 0 "exported ($how)" || diag "$err$out"
	run dsec-img import "oci-archive:$T/$how.tar" --as "root/$how:1"
	is "$status" 0 "imported" || diag "$err$out"
	run dsec-img diff root/in:1 "root/$how:1"
	is "$out" '{"id":1,"ok":true,"added":0,"removed":0,"changed":0}' \
		"identical after the round trip"
done
run dsec-img import "docker-archive:$T/none.tar" --as root/docker:1
is "$(field "$out" .ok)" true "docker's form of it" || diag "$out"
run dsec-img inspect root/gzip:1
json_is "$out" '[{"A":"1","B":"2"},"/home","user"]' "with its configuration" \
	'.config | [.env,.workdir,.user]'
run dsec-img export root/in:1 "oci-archive:$T/again.tar"
cmp -s "$T/none.tar" "$T/again.tar"
ok $? "the same image is the same bytes"
is "$(tar -xOf "$T/none.tar" manifest.json | jq -c '.[0].RepoTags')" \
	'["root/in:1"]' "under its name"
is "$(tar -xOf "$T/none.tar" index.json |
	jq -r '.manifests[0].annotations["org.opencontainers.image.ref.name"]')" \
	root/in:1 "in both forms"

mkdir "$T/out"
run dsec-img export root/in:1 "tar:$T/flat.tar"
is "$status" 0 "a root file system" || diag "$err$out"
tar -C "$T/out" --xattrs --xattrs-include='*' -xpf "$T/flat.tar" 2>/dev/null
run dsec-img import "dir:$T/out" --as root/out:1
run dsec-img diff root/in:1 root/out:1
is "$(field "$out" 'select(.ok) | [.added,.removed]' | tr -d ' \n')" '[0,0]' \
	"tar extracts it"
is "$(field "$out" 'select(.event) | .what[]' | sort -u)" "" "in every attribute" ||
	diag "$out"

# --- an environment ----------------------------------------------------------

mkdir -p "$T/work"
echo w >"$T/work/w"
run dsec-img import "dir:$T/work" --as root/work:1 --kind workspace --at /work
run dsec-img env root/in:1 root/work:1 --as root/env:1
is "$status" 0 "an environment" || diag "$err$out"
run dsec-img export root/env:1 "oci-archive:$T/env.tar"
is "$(field "$out" .layers)" 2 "is a layer for each of its own"
run dsec-img import "oci-archive:$T/env.tar" --as root/env2:1
run dsec-img diff root/env:1 root/env2:1
is "$(field "$out" '[.added,.removed,.changed]|tojson')" '[0,0,0]' \
	"and the same file system" || diag "$out"

# --- what differs ------------------------------------------------------------

rm -r "$T/in/a/b" "$T/in/home"
echo h >"$T/in/home"
chmod 600 "$T/in/a/fifo"
ln -sf elsewhere "$T/in/a/out"
printf 'E' | dd of="$T/in/a/sparse" bs=1 seek=15000000 conv=notrunc 2>/dev/null
touch -d '2020-01-01 UTC' "$T/in" "$T/in/a" "$T/in/a/sparse"
run dsec-img import "dir:$T/in" --as root/in:2
run dsec-img diff root/in:1 root/in:2
is "$(printf '%s\n' "$out" | jq -r 'select(.event) | .path + " " + .change + " " +
	((.what // []) - ["mtime"] | join(",")) | rtrimstr(" ")')" " changed
a changed
a/b removed
a/b/second removed
a/fifo changed mode
a/file changed links
a/out changed target
a/sparse changed content
home changed type
home/user removed
home/user/file removed" "each difference is told"
like "$out" '"added":0,"removed":4,"changed":7' "and counted"

# --- what a grader would not want --------------------------------------------

(
	mkdir -p "$T/bad/tests" "$T/bad/.git/objects/ab" "$T/bad/.git/logs" \
		"$T/bad/usr/share" "$T/bad/open" "$T/bad/root"
	cd "$T/bad" || exit 1
	echo 1 >tests/solution_1.py
	echo 1 >usr/share/solution.txt
	echo 1 >main.c.orig
	echo ref: refs/heads/main >.git/HEAD
	echo x >.git/objects/ab/cdef
	echo x >.git/logs/HEAD
	echo x >root/.bash_history
	printf 'token = ghp_%s\n' abcdefghijklmnopqrstuvwxyz0123456789 >config
	printf '\000ghp_%s\n' abcdefghijklmnopqrstuvwxyz0123456789 >binary
	echo 1 >setid
	chmod 6755 setid
	chmod 777 open
	mknod dev c 1 3
)
run dsec-img import "dir:$T/bad" --as root/bad:1 --kind workspace --at /work
run dsec-img lint root/bad:1
is "$status" 0 "lint tells"
is "$(field "$out" 'select(.event) | .rule + " " + .path')" \
	"git-history work/.git
git work/.git/logs
secret work/config
device work/dev
answer work/main.c.orig
world-writable work/open
history work/root/.bash_history
setuid work/setid
setgid work/setid
answer work/tests/solution_1.py
answer work/usr/share/solution.txt" "what it finds"
run dsec-img lint root/bad:1 --strict
is "$status,$(field "$out" 'select(.ok) | .findings')" 1,11 \
	"and says no with --strict"
run dsec-img lint root/work:1 --strict
is "$status" 0 "but not without a finding"

# --- what does not work ------------------------------------------------------

run dsec-img export root/in:1 "$T/x.tar"
json_is "$out" '"bad_value"' "a target without a form" .error.code
run dsec-img export root/nothing:1 "tar:$T/x.tar"
json_is "$out" '"image_unknown"' "no such image" .error.code
run dsec-img export root/in:1 "tar:$T/none/x.tar"
json_is "$out" '"not_found"' "no such directory" .error.code
run dsec-img export root/in:1 "oci-archive:$T/x.tar" --compress bzip2
json_is "$out" '"bad_value"' "no such compression" .error.code
mkdir "$T/small"
mount -t tmpfs -o size=64k none "$T/small"
head -c 300000 /dev/urandom >"$T/work/big"
run dsec-img import "dir:$T/work" --as root/big:1
for form in tar oci-archive; do
	run dsec-img export root/big:1 "$form:$T/small/x.tar"
	json_is "$out" '"no_space"' "no room ($form)" .error.code
	is "$(ls -A "$T/small")" "" "nothing of it is left"
done
run dsec-img export root/big:1 "oci-archive:$T/small/x.tar" --compress gzip
json_is "$out" '"no_space"' "no room (gzip)" .error.code
umount "$T/small"
# A file of a gigabyte, nearly, which is written as zeros.
mkdir "$T/large"
truncate -s 1000M "$T/large/file"
dsec-img import "dir:$T/large" --as root/large:1 >"$T/null"
run dsec-img export root/large:1 "oci-archive:$T/large.tar" --deadline 100ms
is "$(field "$out" .error.code)" deadline "a deadline ends it within a layer" ||
	diag "$out$err"

leak_check
done_testing
