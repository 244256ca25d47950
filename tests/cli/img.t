#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dsec-img: requests and the command line; a store's life, from import to prune.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_tools jq tar
tree_new

code() {
	field "$out" 'select(.ok != null) | .error.code // "ok"'
}

lines() { # LINE...: requests, one a line
	printf '%s\n' "$@" >"$T/requests"
	dsec-img <"$T/requests" >"$T/.out" 2>"$T/.err"
	status=$?
	out=$(cat "$T/.out")
}

events() { # EVENT FILTER: of $out, sorted
	printf '%s\n' "$out" | jq -r "select(.event==\"$1\")|$2" | sort |
		tr '\n' ,
}

# --- requests ----------------------------------------------------------------

run dsec-img -h
is "$status" 0 "-h"
ops=$(printf '%s\n' "$out" | sed -n '/^operations/,$s/^    \([a-z]*\) .*/\1/p')
like "$ops" '^prune$' "and lists operations"
for op in $ops; do
	lines "{\"op\":\"$op\",\"nosuch\":1,\"id\":\"$op\"}"
	json_is "$out" "[\"$op\",false,\"unknown_field\"]" \
		"$op: an unknown field, the id echoed" '[.id,.ok,.error.code]'
	is "$status" 65 "$op: is 65"
	lines "{\"op\":\"$op\",\"store\":7}"
	is "$(code)" bad_value "$op: a field of another type"
done
for op in import pull inspect tag rm env diff lint pack export mount; do
	lines "{\"op\":\"$op\"}"
	is "$status $(code)" "65 missing_field" "$op: what it needs is missing"
done
like "$(dsec-img import -h)" 'SOURCE: docker-archive:FILE' "import -h: its sources"
like "$(dsec-img export -h)" 'TARGET: oci-archive:FILE' "export -h: its targets"
# PROTOCOL.md has each operation with all its flags.
for op in $ops; do
	row=$(grep "^| \`$op\` | " PROTOCOL.md | tail -n 1)
	missing=
	for flag in $(dsec-img "$op" -h | sed -n '/--version/,$s/^.*  *--\([a-z-]*\).*/\1/p' |
		grep -v version | tr - _); do
		case $op:$flag:$row in
		pull:authfile:*authfile* | pull:insecure:*insecure* | pull:*) ;;
		*\`"$flag"*) ;;
		*) missing="$missing $flag" ;;
		esac
	done
	is "$missing" "" "PROTOCOL.md: $op has its flags"
done
lines '{}' '{"op":"frob"}' 'x' '[]' '{"ok":false,"id":9,"error":{"code":"busy"}}' \
	'{"cancel":1}' '{"op":7}' '{"op":"rm","name":"a/b","force":1}' \
	'{"op":"rm","name":"a/b","name":"a/c"}'
is "$(printf '%s\n' "$out" | jq -r '"\(.id) \(.error.code)"' | tr '\n' ,)" \
	"1 missing_field,2 bad_value,3 bad_record,4 bad_record,9 busy,6 missing_field,7 missing_field,8 bad_value,9 bad_record," \
	"lines that are no requests are answered, each"
is "$status" 1 "and the exit status says that they differ"
head -c 1100000 /dev/zero | tr '\0' a >"$T/long"
out=$(dsec-img <"$T/long")
is "$? $(code)" "65 too_large" "a line of more than 1 MiB"
lines '{"ok":true,"sandbox":"x","id":4}'
json_is "$out" '[4,"missing_field"]' "a record without an operation" \
	'[.id,.error.code]'

for args in frob "tag a/b" "tag a/b a/c a/d" "ls a b" "rm --nosuch a/b" \
	"import a b" "--nosuch" "ls --deadline x"; do
	# shellcheck disable=SC2086
	run dsec-img $args
	is "$status $out" "64 " "usage: dsec-img $args"
done
run dsec-img --version
like "$out" '^dsec-img [0-9]' "--version"
run dsec-img ls --store relative/path
is "$status" 65 "a store that is no absolute path"

# --- no store ----------------------------------------------------------------

for op in "ls" "inspect a/b" "rm a/b" "du" "env a/b" "verify a/b" "tag a/b a/c"; do
	# shellcheck disable=SC2086
	run dsec-img $op
	is "$status $(code)" "1 image_unknown" "no store: $op"
done
run dsec-img prune
is "$status $(code)" "0 ok" "no store: nothing to prune"
run dsec-img prune --store "$T/nosuch"
is "$status $(code)" "1 image_unknown" "but one that is named must be there"
echo '{"stoer":"/x"}' >"$DSEC_CONFIG/images.json"
run dsec-img ls
is "$status" 78 "an unknown key in images.json"
rm "$DSEC_CONFIG/images.json"

# --- names -------------------------------------------------------------------

mkdir -p "$T/base/usr/bin" "$T/base/etc/app" "$T/base/srv"
echo one >"$T/base/etc/a"
echo conf >"$T/base/etc/app/conf"
echo same >"$T/base/etc/same"
head -c 3000000 /dev/urandom >"$T/base/usr/bin/big"
ln -s a "$T/base/etc/link"
run dsec-img import "dir:$T/base" --as root/base:1 --kind base
is "$status $(code)" "0 ok" "a directory becomes an image"
name300=$(printf 'root/%0300d' 0)
# Each of them where each operation takes a name.
for name in ../x root/../x root/a:.. /root/a root//a root/a: root/A root/a:B \
	root/-a root a/b/ 'root/a b' host "$name300" sha256:00 "root/a.json/b" \
	"sha256:$(printf '%063d' 0)" "sha256:$(printf '%065d' 0)" \
	"sha256:$(printf '%063dX' 0)" 'root/a:1/2' 'root/é' "root/a\\n"; do
	printf '"%s"\n' "$name"
done | jq -c --arg d "dir:$T/base" '. as $n | {op:"inspect",name:$n},
	{op:"rm",name:$n}, {op:"verify",name:$n}, {op:"lint",name:$n},
	{op:"tag",name:"root/base:1",new:$n}, {op:"tag",name:$n,new:"root/x"},
	{op:"env",names:[$n]}, {op:"env",names:["root/base:1"],as:$n},
	{op:"import",source:$d,as:$n}, {op:"diff",name:"root/base:1",to:$n},
	{op:"du",names:[$n]} | .id = .op + " " + $n' >"$T/requests"
out=$(dsec-img <"$T/requests" | jq -r '"\(.error.code) \(.id)"' |
	grep -Ev '^(bad_value|too_large) ')
is "$out" "" "hostile names are refused, wherever they are given"
is "$(wc -l <"$T/requests")" 242 "(all of them)"
is "$(find "$DSEC_LIB/img/store/tag" -type f | wc -l)" 1 "and none was made"
run dsec-img inspect root/nosuch:1
is "$status $(code)" "1 image_unknown" "a name nobody gave"
run dsec-img inspect "sha256:$(printf '%064d' 0)"
is "$status $(code)" "1 image_unknown" "a digest of nothing"

# --- ls, inspect, tag --------------------------------------------------------

run dsec-img ls
json_is "$(printf '%s\n' "$out" | head -n 1)" '["image",1,"root/base:1","base",1]' \
	"ls: a record each" '[.event,.id,.name,.kind,.layers]'
digest=$(printf '%s\n' "$out" | jq -r 'select(.event).digest')
like "$digest" '^sha256:[0-9a-f]{64}$' "with its digest"
json_is "$(printf '%s\n' "$out" | tail -n 1)" '{"id":1,"ok":true,"count":1}' \
	"and the answer"
run dsec-img inspect root/base:1 "$digest"
is "$(printf '%s\n' "$out" | jq -r '"\(.id) \(.digest) \(.names[0])"' | tr '\n' ,)" \
	"1 $digest root/base:1,2 $digest root/base:1," \
	"inspect: by name and by digest, a request each"
is "$(field "$out" '.devices[0].bytes > 3000000' | head -n 1)" true \
	"the devices have the data"
run dsec-img tag root/base:1 root/other
is "$status $(field "$out" '.name+" "+.digest')" "0 root/other:latest $digest" \
	"tag: one more name"
run dsec-img tag "$digest" root/sub/deep:1
is "$status" 0 "tag: a digest"
run dsec-img tag root/nosuch root/x
is "$status $(code)" "1 image_unknown" "tag: of nothing"
for match in "" root root/base "root/base:1" 'root/*:1' 'root/sub' '*' 'x/*' ro; do
	run dsec-img ls ${match:+"$match"}
	printf '%s: %s.\n' "$match" "$(events image .name)"
done >"$T/matches"
cat >"$T/want" <<-'EOF'
	: root/base:1,root/other:latest,root/sub/deep:1,.
	root: root/base:1,root/other:latest,root/sub/deep:1,.
	root/base: root/base:1,.
	root/base:1: root/base:1,.
	root/*:1: root/base:1,root/sub/deep:1,.
	root/sub: root/sub/deep:1,.
	*: root/base:1,root/other:latest,root/sub/deep:1,.
	x/*: .
	ro: .
EOF
is "$(cat "$T/matches")" "$(cat "$T/want")" "ls: by project, name, pattern"
run dsec-img ls --table
like "$out" "^NAME +KIND +DIGEST +ENTRIES" "ls: a table for people"
like "$out" "^root/base:1 +base +[0-9a-f]{12} " "with the image"
run dsec-img tag root/base:1 root/other --table
like "$out" "^root/other:latest is sha256:[0-9a-f]{64}$" "tag: a line for people"

# --- messages that say what is wrong -----------------------------------------

run dsec-img import "dir:$T/base" --at work
is "$status $(field "$out" .error.message)" \
	"65 'at' is no absolute path: 'work'" "import: a relative --at"
run dsec-img ls --store "$T/nosuch"
like "$(field "$out" .error.message)" "$T/nosuch': the first import makes it" \
	"no store: what makes one"
run dsec-img verify
is "$status $(field "$out" .error.message)" "65 'name' or 'all' is missing" \
	"verify: of nothing"
run dsec-img verify root/base:1 --all
is "$status $(field "$out" .error.message)" "65 'name' and 'all': one of them" \
	"verify: of a name and all"
# Where the disk of the store is not mounted, the one below is not filled.
run dsec-img import "dir:$T/base" --as root/base:1 --store "$T/nosuch/shared"
is "$status $(code)" "1 not_found" "import: --store where its parent is missing"
like "$(field "$out" .error.message)" "$T/nosuch/shared'.* mount or make that" \
	"and what helps"
echo "{\"store\":\"$T/nosuch/shared\"}" >"$DSEC_CONFIG/images.json"
run dsec-img import "dir:$T/base" --as root/base:1
is "$status $(code)" "1 not_found" "import: the same of images.json"
rm "$DSEC_CONFIG/images.json"
is "$(ls -d "$T/nosuch" 2>"$T/null")" "" "and nothing is made"
run dsec-img export root/nosuch:1 "tar:$T/nosuch.tar"
like "$(field "$out" .error.message)" "^there is no image 'root/nosuch:1'" \
	"an unknown image is named once"

# --- a second image, the same twice ------------------------------------------

cp -a "$T/base" "$T/again"
run dsec-img import "dir:$T/again" --as root/again:1 --kind base
is "$(dsec-img inspect root/again:1 | jq -r .devices[0].root)" \
	"$(dsec-img inspect root/base:1 | jq -r .devices[0].root)" \
	"the same tree again: its data is stored once"
run dsec-img rm root/again:1
is "$status" 0 "and its name goes"
mkdir -p "$T/repo/sub" "$T/over/etc/app" "$T/over/usr"
echo test >"$T/repo/test.py"
echo other >"$T/over/etc/a"
cp -a "$T/base/etc/same" "$T/over/etc/same"
echo file >"$T/over/srv"
head -c 2000000 /dev/urandom >"$T/over/usr/tool"
run dsec-img import "dir:$T/repo" --as root/repo:1 --kind workspace --at /work \
	--env A=1 --env B=1 --workdir /work
is "$status" 0 "a workspace with its place"
run dsec-img import "dir:$T/over" --as root/over:1 --kind toolkit \
	--dict root/base:1 --env B=2
is "$status" 0 "a toolkit"

# --- du ----------------------------------------------------------------------

run dsec-img du
is "$(events image .name)" \
	"root/base:1,root/other:latest,root/over:1,root/repo:1,root/sub/deep:1," \
	"du: each image"
is "$(printf '%s\n' "$out" | jq -s 'map(select(.event)) |
	all(.stored == .shared + .own and .own > 0)')" true \
	"what is stored is shared or its own"
run dsec-img du root/over:1
is "$(printf '%s\n' "$out" | jq -r 'select(.event)|.own>2000000 and .own<2100000')" \
	true "du: of one"
is "$(printf '%s\n' "$out" | jq -r 'select(.ok)|"\(.stored>5000000) \(.unused)"')" \
	"true 0" "and of the store"
run dsec-img du root/nosuch
is "$(code)" image_unknown "du: of nothing"

# --- env ---------------------------------------------------------------------

run dsec-img env root/base:1 root/repo:1 root/over:1
is "$(events conflict '"\(.conflict) \(.path) \(.winner)"')" \
	"file etc/a root/over:1,type srv root/over:1," \
	"env: conflicts, and who wins"
json_is "$(printf '%s\n' "$out" | tail -n 1)" \
	'[true,2,1,["root/base:1","root/repo:1","root/over:1"],{"A":"1","B":"2"},"/work",null]' \
	"env: layers, configuration" \
	'[.ok,.conflicts,.same,[.layers[].name],.config.env,.config.workdir,.digest]'
run dsec-img env root/over:1 root/base:1
is "$(events conflict '"\(.path) \(.winner)"')" \
	"etc/a root/base:1,srv root/base:1," "env: the other way round"
run dsec-img env root/base:1 root/repo:1 root/over:1 --as root/env:1
is "$status" 0 "env: becomes an image"
env=$(field "$(printf '%s\n' "$out" | tail -n 1)" .digest)
run dsec-img env root/base:1 root/repo:1 root/over:1 --as root/env:2
is "$(field "$(printf '%s\n' "$out" | tail -n 1)" .digest)" "$env" \
	"the same layers, the same digest"
run dsec-img inspect root/env:1
json_is "$out" '["env",["root/base:1","root/repo:1","root/over:1"],["root/env:1","root/env:2"]]' \
	"inspect: an environment" '[.kind,[.layers[].name],.names]'
run dsec-img env root/env:1 root/base:1
is "$(field "$(printf '%s\n' "$out" | tail -n 1)" '[.layers[].name]|join(",")')" \
	"root/repo:1,root/over:1,root/base:1" \
	"env: of an environment; a layer counts where it comes last"
lines '{"op":"env","names":[]}' '{"op":"env","names":["root/base:1",7]}'
is "$(printf '%s\n' "$out" | jq -r .error.code | tr '\n' ,)" \
	"bad_value,bad_value," "env: of nothing, of no names"
run dsec-img env root/base:1 root/over:1 --table
like "$out" '^file: /etc/a: root/base:1, root/over:1; root/over:1 wins$' \
	"env: for people"

# --- verify ------------------------------------------------------------------

run dsec-img verify root/env:1 root/base:1
is "$status $(field "$out" .ok | tr '\n' ,)" "0 true,true," "verify: by name"
run dsec-img verify --all --data
is "$status $(field "$out" .checked)" "0 4" "verify: all, with the data"
lines '{"op":"verify"}' '{"op":"verify","all":true,"name":"root/base:1"}'
is "$(printf '%s\n' "$out" | jq -r .error.code | tr '\n' ,)" \
	"missing_field,bad_value," "verify: one or all"

# A byte changes: FILE OFFSET
flip() {
	chmod u+w "$1"
	b=$(od -An -tu1 -j "$2" -N1 "$1")
	# shellcheck disable=SC2059
	printf "\\$(printf %03o $(((b + 1) % 256)))" |
		dd of="$1" bs=1 seek="$2" conv=notrunc 2>"$T/null"
}
hex() { # JQ-FILTER NAME
	dsec-img inspect "$2" | jq -r "$1" | sed 's/^sha256://'
}
store=$DSEC_LIB/img/store
meta=$(hex .meta.digest root/over:1)
meta=$store/meta/sha256/$(printf %.2s "$meta")/$meta.erofs
cp "$meta" "$T/meta"
flip "$meta" 5000
run dsec-img verify root/over:1
is "$status $(code)" "1 image_damaged" "verify: a byte of metadata"
run dsec-img verify --all
is "$status $(code)" "1 image_damaged" "verify --all fails"
is "$(events damaged '.name // .digest')" "root/env:1,root/over:1," \
	"and names each image that has it"
run dsec-img env root/base:1 root/over:1
is "$(code)" image_damaged "env: reads none that is damaged"
cat "$T/meta" >"$meta"
manifest=$(hex .digest root/over:1)
manifest=$store/manifest/sha256/$(printf %.2s "$manifest")/$manifest.json
cp "$manifest" "$T/manifest"
flip "$manifest" 0
run dsec-img du
is "$status $(events image .name)" \
	"0 root/base:1,root/other:latest,root/repo:1,root/sub/deep:1," \
	"du: passes over what cannot be read"
run dsec-img du root/over:1
is "$status $(code)" "1 image_damaged" "du: not when it is asked for"
cat "$T/manifest" >"$manifest"
blob=$(hex '.devices[0].root' root/base:1)
blob=$store/blob/sha256/$(printf %.2s "$blob")/$blob.data
cp "$blob" "$T/blob"
flip "$blob" 2000000
run dsec-img verify root/base:1
is "$status" 0 "verify: data is read when asked"
run dsec-img verify --data root/base:1
is "$status $(code)" "1 image_damaged" "verify --data: a byte of data"
chmod u+w "$blob"
truncate -s 4096 "$blob"
run dsec-img verify --data root/base:1
is "$status $(code)" "1 image_damaged" "verify --data: data cut short"
cat "$T/blob" >"$blob"

# --- rm and prune ------------------------------------------------------------

claim() { # ID NAME DIGEST...: of a sandbox that uses layers
	mkdir -p "$DSEC_RUN/sb/$1"
	jq -nc --arg i "$1" --arg n "$2" \
		'{sandbox:$i,name:$n,layers:$ARGS.positional}' \
		--args "$3" >"$DSEC_RUN/sb/$1/claim.json"
}
over=$(hex .digest root/over:1)
claim aaaaaaaaaaaaaaaaaaaa box "$over"
run dsec-img rm root/over:1
is "$status $(code)" "0 ok" "rm: another name (the environment) keeps it"
like "$(field "$out" .kept_by)" '^root/env:' "and says which"
run dsec-img rm root/env:1
is "$status $(field "$out" .kept_by)" "0 root/env:2" "rm: one of two names"
run dsec-img rm root/env:2
is "$status $(code)" "1 image_in_use" "rm: the last name of what a sandbox uses"
like "$out" 'aaaaaaaaaaaaaaaaaaaa \(box\)' "and who it is"
is "$(events user '"\(.type) \(.user) \(.name)"')" \
	"sandbox aaaaaaaaaaaaaaaaaaaa box," "as an event too"
run dsec-img rm --force root/env:2
is "$status $(code)" "1 image_in_use" "rm --force: not from under a sandbox"
run dsec-img prune --grace 0
run dsec-img prune --grace 0
is "$(dsec-img verify root/env:2 | jq .ok)" true "prune: nothing that has a name"
# Even without a name.
rm "$store/tag/root/env/2.json"
run dsec-img prune --grace 0
run dsec-img prune --grace 0
is "$(dsec-img inspect "sha256:$over" | jq -r .digest)" "sha256:$over" \
	"prune: nothing that a sandbox uses"
rm -r "$DSEC_RUN/sb/aaaaaaaaaaaaaaaaaaaa"
run dsec-img prune --dry-run --grace 0
is "$(field "$(printf '%s\n' "$out" | tail -n 1)" .dry_run)" true "prune --dry-run"
run dsec-img prune --dry-run --grace 0 --table
like "$out" "^would free [0-9.]+K?: manifests [0-9]+, .* noted for a later run" \
	"and for people"
is "$(dsec-img inspect "sha256:$over" | jq -r .ok)" true "removes nothing"
run dsec-img prune
is "$status" 0 "prune: takes note"
run dsec-img prune
is "$(dsec-img inspect "sha256:$over" | jq -r .ok)" true \
	"and waits for the grace time"
run dsec-img prune --grace 0
is "$(dsec-img inspect "sha256:$over" | jq -r .error.code)" image_unknown \
	"prune: what nothing leads to, the second time"
like "$(events gone .what)" 'blob,' "and tells what went"
run dsec-img verify --all
is "$status $(field "$out" .checked)" "0 2" "the others are whole"

# Children and leases (field report 43).
jq -nc '{v:1,until_ms:0,why:"a test"}' >"$T/lease"
base=$(hex .digest root/base:1)
for n in root/other root/sub/deep:1; do
	dsec-img rm "$n" >"$T/null"
done
mkdir -p "$store/lease/node-x"
cp "$T/lease" "$store/lease/node-x/$base.json"
run dsec-img rm root/base:1
is "$status $(code)" "1 image_in_use" "rm: another node has it mounted"
like "$out" 'lease node-x' "and which"
run dsec-img rm --force root/base:1
is "$(code)" image_in_use "rm --force: not that either"
jq -nc '{v:1,until_ms:1000,why:"long ago"}' >"$store/lease/node-x/$base.json"
run dsec-img rm root/base:1
is "$status" 0 "rm: a lease that ran out is none"
run dsec-img rm root/base:1
is "$status $(code)" "1 image_unknown" "rm: gone is gone"
run dsec-img rm root/repo:1 root/nosuch:1
is "$status $(field "$out" '.error.code // "ok"' | tr '\n' ,)" \
	"1 ok,image_unknown," "rm: each by itself"

# --- others' stores ----------------------------------------------------------

if [ "$(id -u)" -eq 0 ] && command -v setpriv >"$T/null"; then
	dsec-img import "dir:$T/repo" --as root/repo:1 --kind workspace >"$T/null"
	chmod 755 "$T" "$DSEC_LIB" "$DSEC_LIB/img"
	mkdir "$T/nobody"
	chown 65534 "$T/nobody"
	as_nobody() {
		run env DSEC_RUN="$T/nobody/run" setpriv --reuid 65534 \
			--regid 65534 --clear-groups "$BIN/dsec-img" "$@"
	}
	as_nobody ls
	is "$status $(events image .name)" "0 root/repo:1," "anybody may read"
	for args in "tag root/repo:1 root/x:1" "rm root/repo:1" \
		"env root/repo:1 --as root/x:1"; do
		# shellcheck disable=SC2086
		as_nobody $args
		is "$status $(code)" "77 permission" "but not write: $args"
	done
	as_nobody prune
	is "$status $(field "$out" .read_only)" "0 true" \
		"prune of others' stores prunes nothing"
	is "$(dsec-img ls | tail -n 1 | jq .count)" 1 "nothing has changed"
else
	skip "others' stores" "needs root and setpriv"
fi

for how in --json --table; do
	# shellcheck disable=SC2086
	dsec-img ls $how >/dev/full 2>"$T/.err"
	is "$?" 74 "ls $how: a full disk behind standard output"
done

# --- in the middle -----------------------------------------------------------

# A tar that never ends: a file of 8 GiB, most of which does not come.
truncate -s 8G "$T/endless"
endless() {
	exec tar -C "$T" -cf - endless
}
before=$(find "$store" -type f | sort)
out=$(endless | timeout 60 dsec-img import tar:/dev/stdin --as root/no:1 \
	--deadline 0.5)
is "$? $(code)" "75 deadline" "a deadline passes"
endless | dsec-img import tar:/dev/stdin --as root/no:1 --events >"$T/events" &
wait_for 10 grep -qs progress "$T/events"
json_is "$(head -n 1 "$T/events")" '["progress",1,"string","number"]' \
	"--events: how far it is" '[.event,.id,(.what|type),(.done|type)]'
kill -TERM $!
wait $!
status=$?
out=$(tail -n 1 "$T/events")
is "$status $(code)" "1 cancelled" "a signal ends it, with an answer"
is "$(find "$store" -type f | sort)" "$before" "and both leave nothing"
lines '{"op":"import","source":"/nosuch/file","as":"root/no:1","deadline_ms":1}' \
	'{"op":"ls","deadline_ms":0}'
is "$(printf '%s\n' "$out" | jq -r .error.code | tr '\n' ,)" \
	"not_found,bad_value," "a missing file, a deadline of nothing"

is "$(find "$store/tmp" -mindepth 1 2>"$T/null" | wc -l)" 0 \
	"no temporary file is left"
done_testing
