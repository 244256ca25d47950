#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Images of docker and OCI: layers over layers, indexes, names, platforms, and
# those that are not what they say.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools python3 zstd jq
tree_new
tools=$(cd "$(dirname "$0")" && pwd)/import
store=$T/store # file-backed mounts do not take one on tmpfs
i=$T/images

run "$tools/images" "$i"
is "$status" 0 "the images are made" || diag "$err"

import() { # SOURCE [FLAGS]
	run timeout 60 dsec-img import --store "$store" "$@"
}

tree() { # of the last import: names, kinds and sizes
	"$tools/tree" show "$store" "$(field "$out" .digest)" | jq -r '
		"\(.name)\(if .mode[:4] == "0o40" then "/" else "" end) " +
		"\(.size // "")"' | sed 's/ *$//' | sort
}

# --- layers --------------------------------------------------------------------

import "$i/three.tar" --as t/three:1
is "$status" 0 "field report 37: an image of three layers" || diag "$out$err"
json_is "$out" '{"cached":0,"new":3}' "each is imported" .layers
is "$(tree)" "$(sort <<'END'
/
again/
again/kept 5
d/
d/a/
d/a/now 11
d/c 1
dirlink
etc/
etc/.dot 3
etc/.new 3
etc/profile.d/
etc/profile.d/a.sh 3
etc/profile.d/old.sh 3
file/
file/f 15
nix
swap 10
target/
target/kept 4
target/sub/
target/sub/file 14
two 16
x
END
)" "field report 36, field report 37, field report 45: the merged tree"
run "$tools/tree" show "$store" "$(field "$out" .digest)"
like "$out" "\"link\": \"$(printf '../../../../etc/hostname' | od -An -tx1 |
	tr -d ' \n')\"" "field report 36: a link that leaves the root is data"
is "$(printf '%s\n' "$out" | jq -r 'select(.name == "two") | .nlink, .same')" \
	"1
null" "a name of a file that has one left"
run dsec-img inspect t/three:1 --store "$store"
json_is "$out" '{"A":"b=c","EMPTY":"","PATH":"/usr/bin:/bin"}' \
	"the configuration is kept: variables" .config.env
json_is "$out" '["nobody:1","/work",["/bin/sh","-c"],["echo hi"],"amd64"]' \
	"user, directory, entrypoint, command, architecture" \
	'.config | [.user, .workdir, .entrypoint, .cmd, .arch]'
meta=$(field "$out" '.meta.digest')
isnt "$meta" null "and there is metadata"
run dsec-img verify --data t/three:1 --store "$store"
is "$status" 0 "what was made verifies" || diag "$out$err"

same_meta() { # WHAT
	run dsec-img inspect t/again:1 --store "$store"
	is "$(field "$out" .meta.digest)" "$meta" "$1"
}
import "$i/three" --as t/again:1
json_is "$out" '{"cached":3,"new":0}' "the layout as a directory: all is there" \
	.layers
is "$(field "$out" .new_bytes)" 0 "nothing is stored again"
same_meta "it is the same image"
for source in "$i/docker.tar" "docker-archive:$i/docker.tar.gz"; do
	import "$source" --as t/again:1
	is "$status" 0 "as docker saves it: ${source##*/}" || diag "$out$err"
	same_meta "the same again"
done
import "$i/sibling.tar"
json_is "$out" '{"cached":1,"new":1}' "a shared base is imported once" .layers
is "$(field "$out" .warning)" null "an image as such is no surprise"
import "tar:$i/docker.tar"
like "$(field "$out" .warning)" 'docker-archive:FILE' "as a file tree it is"
import "tar:$i/three.tar"
like "$(field "$out" .warning)" 'oci-archive:FILE' "of OCI, too"
import "$i/sibling.tar" --env A=mine --env B=new --user 7 --workdir /tmp \
	--as t/own:1
run dsec-img inspect t/own:1 --store "$store"
json_is "$out" '["mine","new","/usr/bin:/bin","7","/tmp"]' \
	"flags go over the image's configuration" \
	'.config | [.env.A, .env.B, .env.PATH, .user, .workdir]'

# A layer that other images share, damaged: made anew, in its place.
for kind in erofs json; do
	find "$store/source" -type f -name '*.json' -exec jq -r .digest {} + |
		sed 's/^sha256://' | sort -u >"$T/layers"
	while read -r hex; do
		f=$store/manifest/sha256/$(printf %.2s "$hex")/$hex.json
		if [ "$kind" = erofs ]; then
			hex=$(jq -r .meta.digest "$f" | sed 's/^sha256://')
			f=$store/meta/sha256/$(printf %.2s "$hex")/$hex.erofs
		fi
		[ "$(od -An -tx1 -j 100 -N1 "$f")" ] || diag "too short: $f"
		chmod u+w "$f"
		printf '\377' | dd of="$f" bs=1 seek=100 conv=notrunc 2>"$T/null"
	done <"$T/layers"
	import "$i/three.tar" --as t/again:1
	json_is "$out" '{"cached":0,"new":3}' "damaged layers are made anew: $kind" \
		.layers
	same_meta "to the same image"
	import "$i/sibling.tar"
	json_is "$out" '{"cached":1,"new":1}' "and one image repairs another's" \
		.layers
	run dsec-img verify --all --store "$store"
	is "$status" 0 "nothing damaged is left" || diag "$out"
done

# The same layers anew, in another store: bit for bit the same.
run timeout 60 dsec-img import "$i/three.tar" --store "$DSEC_RUN/store2"
digest=$(field "$out" .digest)
import "$i/three.tar"
is "$(field "$out" .digest)" "$digest" "another store, the same digest"

import "$i/many-127.tar"
is "$status" 0 "127 layers" || diag "$out$err"
import "$i/many-128.tar"
is "$(field "$out" .error.code)" unsupported "one more is refused"

# --- names and platforms ---------------------------------------------------------

import "docker-archive:$i/several.tar:two"
is "$status" 0 "one of several images, by name" || diag "$out$err"
import "docker-archive:$i/several.tar:docker.io/library/uno:1"
is "$status" 0 "by its full name" || diag "$out$err"
import "$i/several.tar"
like "$(field "$out" '.error | .code + " " + .message')" \
	'^image_unknown .*one:1, uno:1' "without a name: which there are"
import "oci:$i/named:other"
is "$(tree | grep other)" "other 1" "a layout's image by name"
import "oci:$i/named:none"
like "$(field "$out" '.error | .code + " " + .message')" \
	'^image_unknown .*1\.0, other' "an unknown name: which there are"

case $(uname -m) in
x86_64) here=amd64 ;;
aarch64) here=arm64 ;;
*) here= ;;
esac
if [ -n "$here" ]; then
	import "$i/nested"
	is "$(tree | grep arch)" "arch 5" \
		"field report 41: this machine's of an index in an index" ||
		diag "$out"
	run dsec-img inspect "$(field "$out" .digest)" --store "$store"
	is "$(field "$out" .config.arch)" "$here" "is what it says"
else
	skip "field report 41: this machine's of an index in an index" "$(uname -m)"
	skip "is what it says" "$(uname -m)"
fi
import "$i/nested.tar" --platform linux/arm/v7
is "$(tree | grep arch)" "arch 6" "field report 41: another, by its variant"
import "$i/nested.tar" --platform linux/s390x
like "$(field "$out" '.error | .code + " " + .message')" \
	'^image_unknown .*linux/arm64/v8' "one that is not there"
import "$i/nested.tar" --platform arm64
is "$(field "$out" .error.code)" bad_value "a platform is OS/ARCHITECTURE"
if [ "$here" = amd64 ]; then
	for name in foreign foreign-untold; do
		import "$i/$name"
		is "$(field "$out" .error.code)" image_unknown \
			"an image of another machine is not taken: $name"
		import "$i/$name" --platform linux/arm64
		is "$status" 0 "unless it is asked for: $name"
	done
fi

# --- there and back ----------------------------------------------------------------

mkdir -p "$T/long/d"
ln -s "$(printf '%0180d' 7)" "$T/long/d/link"
ln "$T/long/d/link" "$T/long/other-name-of-the-link"
printf x >"$T/long/$(printf '%0200d' 8)"
import "dir:$T/long" --as t/long:1
run dsec-img inspect t/long:1 --store "$store"
meta=$(field "$out" .meta.digest)
run dsec-img export t/long:1 "oci-archive:$T/long.tar" --store "$store"
is "$status" 0 "field report 41: an image with a link of 180 bytes is exported" ||
	diag "$out$err"
import "oci-archive:$T/long.tar" --as t/again:1
same_meta "field report 41: and comes back as it was"

# --- what is not what it says --------------------------------------------------------

store=$DSEC_RUN/store3
for f in "$i"/bad/*.tar; do
	name=${f##*/}
	code=bad_archive
	case $name in
	encrypted.tar | foreign-type.tar) code=unsupported ;;
	config-huge.tar) code=too_large ;;
	index-empty.tar) code=image_unknown ;;
	esac
	import "$f"
	is "$(field "$out" .error.code)" "$code" "refused: $name" ||
		diag "$out$err"
done
import "oci:$T/long"
is "$(field "$out" .error.code)" bad_archive "a directory without an image"
mkdir -p "$T/evil/blobs"
ln -s /etc "$T/evil/blobs/sha256"
cp "$i/three/index.json" "$T/evil"
import "oci:$T/evil"
like "$(field "$out" '.error | .code + " " + .message')" \
	'^bad_archive .*lacks a file' "links out of a layout are not followed"
is "$(find "$store" -path '*/manifest/*' -type f | wc -l)" 0 \
	"no image is made of them"
is "$(ls -A "$store/tmp")" '' "and nothing half made is left"
done_testing
