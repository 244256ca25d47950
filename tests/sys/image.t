#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sandboxes on layers of the store: each way to mount them, what is seen
# inside, configuration, and images that are not what they should be.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq busybox python3 perl
tree_new

# --- images to try -----------------------------------------------------------

xattr() { # FILE NAME TEXT
	python3 -c 'import os, sys
os.setxattr(sys.argv[1], sys.argv[2], sys.argv[3].encode(),
            follow_symlinks=False)' "$@"
}

rootfs() { # DIR
	mkdir -p "$1/bin" "$1/etc" "$1/root" "$1/srv/me" "$1/tmp"
	chmod 1777 "$1/tmp"
	cp "$(command -v busybox)" "$1/bin/busybox"
	for rootfs_tool in sh ls cat id stat mount umount touch mkdir env pwd \
		echo head rm find readlink dd test grep sort chmod chown sleep \
		mknod wc hostname df ln; do
		ln -s busybox "$1/bin/$rootfs_tool"
	done
	printf 'root:x:0:0:root:/root:/bin/sh\nme:x:1000:1000::/srv/me:/bin/sh\n' \
		>"$1/etc/passwd"
	printf 'root:x:0:\nme:x:1000:\n' >"$1/etc/group"
	chown 1000:1000 "$1/srv/me"
}

import() { # SOURCE NAME [FLAG...]
	import_from=$1 import_as=$2
	shift 2
	run timeout 60 dsec-img import "$import_from" --as "$import_as" "$@"
	[ "$status" -eq 0 ] || diag "import of $import_from: $out $err"
	return "$status"
}

rootfs "$T/base"
mkdir -p "$T/base/d/sub" "$T/base/opq" "$T/base/proc" "$T/base/dev"
echo a >"$T/base/d/a"
echo b >"$T/base/d/b"
echo x >"$T/base/d/sub/x"
ln "$T/base/d/b" "$T/base/d/b2"
echo old >"$T/base/opq/old"
echo set >"$T/base/bin/set"
chmod 4755 "$T/base/bin/set"
echo theirs >"$T/base/etc/resolv.conf"
chown 1000:1000 "$T/base/d/sub/x"
dd if=/dev/zero of="$T/base/sparse" bs=1 count=1 seek=5000000 2>/dev/null
xattr "$T/base/sparse" user.note yes
cp "${BUILD:?}/helpers/xattr" "$BUILD/helpers/escape" "$T/base/bin/"
# CAP_NET_RAW, permitted and effective, version 2.
python3 -c 'import os, sys
os.setxattr(sys.argv[1], "security.capability",
            bytes.fromhex("0100000200200000" + "00" * 12))' "$T/base/bin/set"
import "dir:$T/base" root/base:1 --kind base --env A=base --env B=base ||
	plan_skip_all "dsec-img cannot import: $(field "$out" .error.message)"
base=$(field "$out" ".digest | ltrimstr(\"sha256:\")")
isnt "$base" null "the import says the digest"

# Overridden: a file, a whiteout, an opaque directory, a file for a directory.
mkdir -p "$T/mid/d" "$T/mid/opq"
touch "$T/mid/d/.wh.a" "$T/mid/opq/.wh..wh..opq"
echo B >"$T/mid/d/b"
echo new >"$T/mid/opq/new"
echo file >"$T/mid/d/sub"
tar -C "$T/mid" -cf "$T/mid.tar" d opq
import "tar:$T/mid.tar" root/mid:1 --kind toolkit --env B=mid --oci-whiteouts

# And again: a directory where the whiteout was.
mkdir -p "$T/top/d/a" "$T/top/home"
echo in >"$T/top/d/a/in"
import "dir:$T/top" root/top:1 --kind workspace --env C=top --workdir /home/made

# --- each way ----------------------------------------------------------------

# What a sandbox sees, but for what a launch made or mounted.
# shellcheck disable=SC2016
look='cd /; for f in $(find . -xdev | sort); do
	case $f in .|./proc*|./dev*|./sys|./home*) continue;; esac
	stat -c "%n %f %u:%g %Y" $f
	xattr $f user.note
	test -L $f || test ! -f $f || dd if=$f bs=64k 2>/dev/null | wc -c
	test ! -L $f || readlink $f
done'

three() { # COMMAND...
	run timeout 60 dsec-run --rm --image root/base:1 --layer root/mid:1 \
		--layer root/top:1 -- "$@"
}

flat() {
	printf '%s' "$out" | tr '\n' ' '
}

layer_mounts() {
	tree_mounts | grep -cE "^$DSEC_RUN/mnt/[0-9a-f]{64}$"
}

loops() {
	grep -lsF "$T/" /sys/block/loop*/loop/backing_file | wc -l
}

for way in file loop directory; do
	run timeout 60 dsec-img unmount --all
	is "$status" 0 "$way: what no sandbox uses can be unmounted"
	is "$(layer_mounts) $(loops)" "0 0" "$way: and nothing is mounted then"
	echo "{\"mount\":\"$way\"}" >"$DSEC_CONFIG/images.json"
	run timeout 60 dsec-img mount root/base:1
	if [ "$status" -ne 0 ]; then
		skip "$way" "$(field "$out" .error.message | head -c 200)"
		continue
	fi
	is "$(field "$out" '.layers[].way')" "$way" "$way: it is this way"
	three sh -c "$look"
	is "$status" 0 "$way: a command on three layers"
	printf '%s\n' "$out" >"$T/see.$way"
	three sh -c 'cat /d/a/in /d/b /d/sub; ls /opq; ls /d'
	is "$(flat)" "in B file new a b b2 sub" \
		"$way: overridden files, whiteouts, opaque directories"
	three sh -c 'xattr /bin/set security.capability; xattr /sparse user.note
		xattr /opq trusted.overlay.opaque'
	is "$(flat)" "0100000200200000$(printf %024d 0) 796573 error 61" \
		"$way: capabilities of files are the image's, overlay's marks unseen"
	case $way in
	file) is "$(layer_mounts) $(loops)" "3 0" "$way: mounts" ;;
	loop) is "$(layer_mounts)" 3 "$way: mounts"
		isnt "$(loops)" 0 "$way: of loop devices" ;;
	directory) is "$(layer_mounts) $(loops)" "0 0" "$way: no mounts" ;;
	esac
done
seen=
for way in file loop directory; do
	[ -s "$T/see.$way" ] || continue
	[ -z "$seen" ] || ok "$(cmp -s "$T/see.$seen" "$T/see.$way"; echo $?)" \
		"by $way the same is seen as by $seen" ||
		diag "$(diff "$T/see.$seen" "$T/see.$way" | head -n 10)"
	[ -n "$seen" ] || seen=$way
done
isnt "$seen" "" "by one way at least something is seen"
run timeout 60 dsec-img unmount --all
[ ! -e "$DSEC_LIB/img/dir" ] || is "$(ls -A "$DSEC_LIB/img/dir")" "" \
	"an unpacked layer goes too"
rm "$DSEC_CONFIG/images.json"

# --- what is seen ------------------------------------------------------------

run timeout 60 dsec-run --rm --image root/base:1 -- \
	sh -c 'stat -c "%a %u" /bin/set /d/sub/x /srv/me /tmp; cat /d/b2'
is "$(flat)" "4755 0 644 1000 755 1000 1777 0 b" \
	"modes and owners are those of the image"
run timeout 60 dsec-run --rm --image root/base:1 -- sh -c \
	'echo more >> /d/b; echo own > /bin/busybox2; chmod 777 /d; cat /d/b; rm /d/a
	 ls /d'
is "$(flat)" "b more b b2 sub" "a sandbox may change all of it"
run timeout 60 dsec-run --rm --image root/base:1 -- cat /d/a /d/b
is "$(flat)" "a b" "and the next one has the image as it was"
run timeout 60 dsec-run --rm --image root/base:1 -- \
	sh -c 'cat /etc/resolv.conf; hostname; grep -c localhost /etc/hosts
	ls -ld /sys /proc/self /dev/shm | wc -l'
like "$out" '^nameserver 198.18.0.1' "resolv.conf is the platform's"
is "$(echo "$out" | tail -n 3 | tr '\n' ' ')" "sandbox 2 3 " \
	"host names resolve, and /sys, /proc and /dev/shm are there"
run timeout 60 dsec-run --rm --hostname other --image root/base:1 -- \
	grep other /etc/hosts
is "$status" 0 "a host name of its own too"
run timeout 60 dsec-run --rm --image "sha256:$base" -- cat /d/a
is "$out" a "by digest"
for profile in sealed nested; do
	run timeout 60 dsec-run --rm -p "$profile" --image root/base:1 \
		--layer root/mid:1 -- sh -c 'cat /d/b; id -u'
	is "$(flat)" "B 0" "profile $profile"
done
run timeout 60 dsec-run --rm --layer root/top:1 -- cat /d/a/in /usr/bin/env
is "$status" 0 "a layer on the image host"

# --- configuration -----------------------------------------------------------

# shellcheck disable=SC2016
three sh -c 'echo $A $B $C; pwd; stat -c %u .'
is "$(flat)" "base mid top /home/made 0" \
	"variables by name, the topmost working directory, made if need be"
run timeout 60 dsec-run --rm --image root/base:1 -e B=own -- env
like "$out" '^B=own$' "what is asked for comes last"
import "dir:$T/top" root/user:1 --user me --workdir /srv/me/w/x
run timeout 60 dsec-run --rm --image root/base:1 --layer root/user:1 -- \
	sh -c 'id -un; id -g; pwd; stat -c %U . ..; echo $HOME; touch f && echo wrote'
is "$(flat)" "me 1000 /srv/me/w/x me root /srv/me wrote" \
	"the image's user, by its own passwd, and his directory"
import "dir:$T/top" root/ids:1 --user 1234:77
run timeout 60 dsec-run --rm --image root/base:1 --layer root/ids:1 -- \
	sh -c 'id -u; id -g'
is "$(flat)" "1234 77" "a user that is numbers"
id=$(timeout 60 dsec-run --detach --image root/base:1 --layer root/user:1 |
	jq -r .sandbox)
run timeout 30 dsec-exec "$id" -- sh -c 'id -un; pwd; touch f && echo wrote'
is "$(flat)" "me /srv/me/w/x wrote" "the same under a supervisor"
run jq -c '[.image, .layers, (.image_layers|length)]' \
	"$DSEC_LIB/sb/$id/spec.json"
is "$out" '["root/base:1",["root/user:1"],2]' "spec.json says the layers"
is "$(jq -r '.layers[0]' "$DSEC_RUN/sb/$id/claim.json")" "$base" \
	"and the claim their digests"
timeout 20 dsec-pause --stop "$id" >/dev/null

# An archive says what to run.
oci_archive() { # FILE CONFIG
	mkdir -p "$T/oci"
	tar -C "$T/base" -cf "$T/oci/layer.tar" .
	printf '{"architecture":"%s","os":"linux","config":%s,"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
		"$(uname -m | sed 's/x86_64/amd64/;s/aarch64/arm64/')" "$2" \
		"$(sha256sum <"$T/oci/layer.tar" | cut -d' ' -f1)" \
		>"$T/oci/config.json"
	echo '[{"Config":"config.json","RepoTags":["x:1"],"Layers":["layer.tar"]}]' \
		>"$T/oci/manifest.json"
	tar -C "$T/oci" -cf "$1" manifest.json config.json layer.tar
}
oci_archive "$T/run.tar" \
	'{"Entrypoint":["/bin/echo","entry"],"Cmd":["cmd"],"Env":["V=1"]}'
import "docker-archive:$T/run.tar" root/run:1
run timeout 60 dsec-run --rm --image root/run:1 --
is "$status $out" "0 entry cmd" "without a command: entrypoint and cmd"
run timeout 60 dsec-run --rm --image root/run:1 -- /bin/echo given
is "$out" given "a command replaces both"
out=$(echo '{"rm":true,"image":"root/run:1"}' | timeout 60 dsec-run)
is "$(field "$out" .stdout)" "entry cmd" "in a record too"
run timeout 60 dsec-run --rm --
is "$status" 125 "host has none"
run timeout 60 dsec-run --rm --image root/base:1 --
like "$err" "'command' is missing" "nor has this one"

# --- the same mount for all --------------------------------------------------

leak_start
seq 5 | jq -c '{id:., image:"root/base:1", layers:["root/mid:1"]}' |
	timeout 60 dsec-run >"$T/five"
is "$(jq -s 'map(.ok) | all' "$T/five")" true "five sandboxes"
is "$(tree_mounts | grep -cE '/mnt/[0-9a-f]{64}$')" \
	"$(tree_mounts | grep -E '/mnt/[0-9a-f]{64}$' | sort -u | wc -l)" \
	"share one mount of each layer"
run timeout 20 dsec-exec "$(jq -r .sandbox "$T/five" | head -n 1)" -- \
	sh -c 'grep -c erofs /proc/self/mountinfo; umount / 2>&1
	mount -o remount,rw / 2>&1; mount -t tmpfs x /d 2>&1; cat /d/b'
is "$(echo "$out" | head -n 1)" 0 "no layer is in sight inside"
like "$out" '^B$' "and none can be taken away or covered from there"
jq -r .sandbox "$T/five" | timeout 60 xargs dsec-pause --stop --grace 0 >"$T/.o"
# Root there tries what it tries on the image host.  Other than there, /bin is
# no mount of the host's but the sandbox's own to change.
here=$(cd "$(dirname "$0")" && pwd)
timeout -s KILL 60 dsec-run --rm --image root/base:1 --layer root/mid:1 -- \
	/bin/escape >"$T/attempts" 2>"$T/err" </dev/null
grep -q '^0 end' "$T/attempts"
ok $? "what root inside may try is tried"
perl "$here/judge" "$here/escape.expect" default 1 <"$T/attempts" |
	grep '^not ok' | grep -vE '(open_by_handle_at own file: (EOPNOTSUPP|ENOENT)|overwrite /bin/sh: ok)$' >"$T/judged"
is "$(cat "$T/judged")" "" "and comes to the same as on the image host"
leak_check "five sandboxes on layers leave nothing"
run timeout 60 dsec-img unmount --all
is "$(layer_mounts)" 0 "and pin nothing"

# A name that moves is noticed by a stream that goes on.
mkfifo "$T/req"
timeout 100 dsec-run --jobs 1 <"$T/req" >"$T/ans" &
exec 9>"$T/req"
# shellcheck disable=SC2317 # by wait_for
answers() {
	[ "$(wc -l <"$T/ans")" -ge "$1" ]
}
import "dir:$T/base" root/moving:1
echo '{"rm":true,"image":"root/moving:1","command":"cat /d/b"}' >&9
wait_for 30 answers 1
run timeout 20 dsec-img tag root/mid:1 root/moving:1
echo '{"rm":true,"image":"root/base:1","layers":["root/moving:1"],"command":"cat /d/b"}' >&9
wait_for 30 answers 2
mkdir "$T/moved"
echo moved >"$T/moved/b"
import "dir:$T/moved" root/moving:1 --kind workspace --at /d
echo '{"rm":true,"image":"root/base:1","layers":["root/moving:1"],"command":"cat /d/b"}' >&9
wait_for 30 answers 3
exec 9>&-
wait
is "$(jq -r .stdout "$T/ans" | tr -d '\n')" "bBmoved" \
	"a name that was given to another image is looked up again"

# --- images that are not there, and more than there may be -------------------

refuse() { # CODE WHAT FLAG...
	refuse_code=$1 refuse_what=$2
	shift 2
	run timeout 60 dsec-run --detach "$@"
	is "$(field "$out" .error.code)" "$refuse_code" "$refuse_what"
}
refuse image_unknown "a name that nobody has" --image root/none:1
refuse image_unknown "a digest that nobody has" --image \
	sha256:0000000000000000000000000000000000000000000000000000000000000000
refuse bad_value "a name that is none" --image ../x
refuse bad_value "host is no layer" --image root/base:1 --layer host
i=0 many=''
while [ $i -lt 17 ]; do
	mkdir "$T/l$i"
	echo $i >"$T/l$i/n"
	import "dir:$T/l$i" "root/l:$i" >/dev/null
	[ $i -eq 15 ] || many="$many --layer root/l:$i"
	i=$((i + 1))
done
# shellcheck disable=SC2086
refuse bad_value "seventeen layers" --image root/base:1 $many
many=$(echo "$many" | sed 's/ --layer root.l:16//')
# shellcheck disable=SC2086
run timeout 60 dsec-run --rm --image root/base:1 $many -- cat /n
is "$out" 14 "sixteen work"
run timeout 60 dsec-run --rm --image root/base:1 --layer root/l:1 \
	--layer root/l:2 --layer root/l:1 -- cat /n
is "$out" 1 "a layer named twice counts where it is last"

# A configuration that is as large as may be, and a request that is.
head -c 110000 /dev/zero | tr '\0' x >"$T/x"
set --
for i in 1 2 3 4 5 6 7 8; do
	set -- "$@" --env "V$i=$(cat "$T/x")"
done
import "dir:$T/top" root/large:1 "$@"
i=0
printf '{"image":"root/large:1","command":"true","env":{' >"$T/large"
while [ $i -lt 8 ]; do
	printf '"W%d":"%s",' $i "$(cat "$T/x")" >>"$T/large"
	i=$((i + 1))
done
echo '"X":"1"}}' >>"$T/large"
timeout 60 dsec-run <"$T/large" >"$T/.o" 2>"$T/.e"
is "$(field "$(cat "$T/.o")" .error.code)" too_large \
	"what would not fit into the sandbox's spec is refused"

# field report 44: links where mounts go.
mkdir "$T/outside"
echo keep >"$T/outside/resolv.conf"
for at in dev proc; do
	rm -rf "$T/bad"
	cp -a "$T/base" "$T/bad"
	rmdir "$T/bad/$at"
	ln -s "$T/outside" "$T/bad/$at"
	import "dir:$T/bad" "root/bad-$at:1"
	refuse bad_path "a link in place of /$at" --image "root/bad-$at:1"
	rm "$T/bad/$at"
	ln -s ../../../../tmp "$T/bad/$at"
	import "dir:$T/bad" "root/bad-$at:2"
	refuse bad_path "one that leads out, in place of /$at" \
		--image "root/bad-$at:2"
	rm "$T/bad/$at"
	echo >"$T/bad/$at"
	import "dir:$T/bad" "root/bad-$at:3"
	refuse bad_path "a file in place of /$at" --image "root/bad-$at:3"
done
rm -rf "$T/bad"
cp -a "$T/base" "$T/bad"
rmdir "$T/bad/proc" "$T/bad/dev" "$T/bad/tmp"
ln -sf "$T/outside" "$T/bad/sys"
ln -sf "$T/outside/resolv.conf" "$T/bad/etc/resolv.conf"
ln -sf "$T/outside/hosts" "$T/bad/etc/hosts"
ln -sf /etc "$T/bad/data"
import "dir:$T/bad" root/bad:1
run timeout 60 dsec-run --rm --hostname mine --image root/bad:1 -- sh -c \
	'cat /etc/resolv.conf; grep -c mine /etc/hosts; echo hi > /dev/shm/x
	 stat -c %a /tmp; test -c /dev/null && test -d /proc/1 && echo all'
is "$(flat)" "nameserver 198.18.0.1 1 1777 all" \
	"without /proc, /dev and /tmp, with links for files of /etc"
echo "$T/outside" >"$DSEC_CONFIG/mounts.allow"
mkdir -p "$T/outside/in"
mount_json='[{"source":"'$T'/outside/in","target":"/vol/a/b"},
	{"source":"'$T'/outside","target":"/vol/a"}]'
run timeout 60 dsec-run --rm --image root/bad:1 --mount "$mount_json" -- ls /vol/a
isnt "$status" 0 "a mount within a mount needs its directory there"
mkdir "$T/outside/b"
echo inner >"$T/outside/in/f"
run timeout 60 dsec-run --rm --image root/bad:1 --mount "$mount_json" -- \
	cat /vol/a/b/f /vol/a/resolv.conf
is "$(flat)" "inner keep" \
	"field report 33: mounts within mounts, the inner one named first"
refuse bad_path "a mount through a link of the image" --image root/bad:1 \
	--mount '[{"source":"'"$T"'/outside","target":"/data/x"}]'
import "dir:$T/moved" root/covered:1 --workdir /vol/made --user me
run timeout 60 dsec-run --rm --image root/base:1 --layer root/covered:1 \
	--mount '[{"source":"'"$T"'/outside","target":"/vol/made"}]' -- \
	sh -c 'pwd; cat resolv.conf'
is "$(flat)" "/vol/made keep" \
	"a directory of the host over the working directory that was made" ||
	diag "$err"
is "$(stat -c %u "$T/outside")" 0 "stays whose it is"
import "dir:$T/bad" root/bad:2 --workdir /dev --user 1000
run timeout 60 dsec-run --rm --image root/bad:2 -- \
	sh -c 'pwd; test "$(stat -c %u .)" != 1000 && echo "not his"'
is "$(flat)" "/dev not his" "so does /dev" || diag "$err"
run find "$T/outside" -type f
is "$(printf '%s\n' "$out" | wc -l) $(cat "$T/outside/resolv.conf")" "2 keep" \
	"the host's own files are as they were"
ls -d "$T/bad/etc/x" /etc/x >/dev/null 2>&1
isnt $? 0 "nothing was made through a link"
done_testing
