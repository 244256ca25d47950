#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Real images: a system of distribution packages with Python, git and gcc, and a
# project's own test-suite on top of it, in fifty sandboxes at once.
# shellcheck disable=SC2016 # scripts for inside
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq tar find mmdebstrap
here=$(cd "$(dirname "$0")" && pwd)
input=$("$here/image-input" 2>"${TMPDIR:-/tmp}/dsec-input.$$")
status=$?
said=$(tail -n 5 "${TMPDIR:-/tmp}/dsec-input.$$")
rm -f "${TMPDIR:-/tmp}/dsec-input.$$"
[ $status != 75 ] || plan_skip_all "the packages could not be had"
[ $status = 0 ] || {
	diag "$said"
	ok 1 "the input is made"
	done_testing
}
diag "project: $(cat "$input/project.how")"
LEAK_S=30
tree_new
echo '{"cpu_overcommit": 64, "memory_overcommit": 16}' \
	>"$DSEC_CONFIG/node.json"

img() { # WORD...: $out is the answer, and must be good
	run timeout 300 dsec-img "$@"
	ok "$status" "dsec-img $1 $2" || diag "$out" "$err"
}

# --- in: an archive of docker's, a project's directory
size=$(stat -c %s "$input/save.tar")
[ "$size" -ge 314572800 ]
ok $? "an archive of $((size >> 20)) MiB"
img import docker-archive:"$input/save.tar" --as root/system:1 --kind base
json_is "$out" true "all of it" ".bytes > 250000000 and .entries > 5000"
img import dir:"$input/project" --as root/project:1 --kind workspace \
	--at /work
img import tar:"$input/root.tar" --as root/again:1 --kind base
json_is "$out" 0 "the same from its tar: nothing new is stored" .new_bytes
img verify --all --data

# --- it is what tar makes of it
list() { # DIR: every attribute, directories without what their size is
	(cd "$1" && find . -xdev \( -type d -printf \
		'%P %y %m %U %G - %T@\n' -o -type l -printf \
		'%P %y %m %U %G %l %T@\n' -o -printf \
		'%P %y %m %U %G %s %n %T@\n' \)) |
		LC_ALL=C sort
}
sums() { # DIR
	(cd "$1" && find . -xdev -type f -print0 | LC_ALL=C sort -z |
		xargs -0 sha256sum) | sha256sum
}
mkdir "$T/tree"
tar -x -f "$input/root.tar" -C "$T/tree" --numeric-owner --xattrs \
	--xattrs-include='*'
img mount root/system:1
at=$(field "$out" '.layers[0].path')
list "$T/tree" >"$T/want"
list "$at" >"$T/got"
is "$(diff "$T/want" "$T/got" | head -n 10)" "" \
	"the mounted layer equals tar -x in $(wc -l <"$T/want") entries"
is "$(sums "$at")" "$(sums "$T/tree")" "and in every byte"
getcap -r "$T/tree" 2>/dev/null | sed "s,^$T/tree,," | sort >"$T/want"
getcap -r "$at" 2>/dev/null | sed "s,^$at,," | sort >"$T/got"
is "$(cat "$T/got")" "$(cat "$T/want")" "and in capabilities"
rm -rf "$T/tree"

# --- the project's tests, fifty times at once
timeout 60 dsec-run --rm --image root/system:1 --layer root/project:1 \
	--memory 160M -- true </dev/null
ok $? "a sandbox of it"
leak_start
tests='cd /work && PYTHONPATH=src exec python3 -m pytest -q -p no:cacheprovider -o filterwarnings= tests'
jq -nc --arg c "$tests" 'range(50) | {id: ., rm: true, image: "root/system:1",
	layers: ["root/project:1"], memory_limit_mb: 160,
	cpu_cores_limit: 1, command: $c}' |
	timeout 900 dsec-run --jobs 50 >"$T/fifty"
is "$(jq -r '"\(.outcome) \(.exit_code)"' "$T/fifty" | sort | uniq -c |
	tr -s ' ')" " 50 exited 0" "fifty sandboxes: the tests pass in each" ||
	diag "$(head -n 1 "$T/fifty" | cut -c 1-3000)"
passed=$(jq -r .stdout "$T/fifty" |
	sed -n -E 's/^([0-9]+) passed.*/\1/p' | sort -u)
diag "$passed passed in each, $(jq .duration_ms "$T/fifty" |
	sort -n | tail -n 1) ms the slowest"
[ "${passed:-0}" -gt 100 ]
ok $? "all of them, the same number in each"
leak_check "nothing of the fifty is left"

# --- changes become a layer, which runs again
timeout 60 dsec-run --detach --name work --image root/system:1 \
	--layer root/project:1 --memory 512M </dev/null >"$T/rec"
timeout 120 dsec-exec work -- sh -ec 'cd /work
git init -q . && git add -A
git -c user.name=a -c user.email=a@example.org commit -qm all
mkdir -p /opt/tool
cat >/opt/tool/t.c <<C
#include <stdio.h>
int main(void) { puts("made here"); return 0; }
C
gcc -O2 -o /opt/tool/t /opt/tool/t.c
rm README*
echo secret >/root/.bash_history' </dev/null 2>"$T/err"
ok $? "work in a sandbox: git, gcc, files removed" || diag "$(cat "$T/err")"
img pack work --as root/ready:1 --kind workspace
json_is "$out" true "what was removed is in it" '.whiteouts > 0'
json_is "$out" '["/root/.bash_history"]' "and no history" \
	'[.removed[] | select(.rule == "history") | "/" + (.path | ltrimstr("/"))]'
timeout 60 dsec-pause --stop --grace 0 work </dev/null >"$T/rec"
run timeout 120 dsec-run --rm --image root/system:1 --layer root/project:1 \
	--layer root/ready:1 --memory 512M -- sh -c '/opt/tool/t
	git -C /work -c safe.directory=/work log --oneline | wc -l
	git -C /work -c safe.directory=/work status --porcelain | grep -c "^ D"
	ls /root/.bash_history 2>&1 | grep -c "No such"'
is "$(echo "$out" | sed 's/^[12]$/some/' | tr '\n' ' ')" \
	"made here some some some " "the packed layer runs, with all of it" ||
	diag "$out" "$err"

# --- a second system on the first costs what is new
timeout 60 dsec-run --detach --name more --image root/system:1 \
	--memory 512M </dev/null >"$T/rec"
timeout 60 dsec-exec more -- sh -c \
	'head -c 5000000 /dev/urandom >/opt/data' </dev/null
img pack more --as root/more:1 --kind toolkit --dict root/system:1
json_is "$out" true "five megabytes" \
	'.new_bytes >= 5000000 and .new_bytes < 5500000'
timeout 60 dsec-pause --stop --grace 0 more </dev/null >"$T/rec"
img env root/system:1 root/project:1 root/ready:1 root/more:1 --as root/env:1
run timeout 60 dsec-run --rm --image root/env:1 --memory 256M -- \
	stat -c %s /opt/data
is "$out" 5000000 "an environment of four"

# --- out: other engines take it
if command -v podman >/dev/null; then
	img export root/system:1 oci-archive:"$T/out.tar"
	rm -rf "$T/pm"
	pm() {
		timeout 300 podman --root "$T/pm/root" --runroot "$T/pm/run" \
			--storage-driver vfs "$@"
	}
	id=$(pm load -i "$T/out.tar" 2>"$T/err" | sed -n 's/^Loaded image[^:]*: *//p')
	isnt "$id" "" "podman loads it" || diag "$(cat "$T/err")"
	rm -f "$T/out.tar"
	where=$(pm image mount "$id" 2>"$T/err")
	[ -d "$where" ]
	ok $? "and mounts it" || diag "$where" "$(cat "$T/err")"
	list "$at" | sed '1d' >"$T/want"
	list "$where" | sed '1d' >"$T/got"
	is "$(diff "$T/want" "$T/got" | head -n 10)" "" \
		"and has the same tree, in every attribute"
	is "$(pm inspect "$id" | jq -c '.[0].Config |
		[(.Env | index("LANG=C.UTF-8") != null), .Cmd, .WorkingDir]')" \
		'[true,["python3"],"/work"]' "and configuration"
	pm image unmount "$id" >"$T/rec"
	rm -rf "$T/pm"
else
	skip "podman loads it" "podman is not installed"
fi

# --- and all of it goes
for name in system project again ready more env; do
	timeout 60 dsec-img rm root/$name:1 --force </dev/null
done >"$T/rec"
is "$(jq -r 'select(has("ok")) | .ok' "$T/rec" | sort -u)" true \
	"names are removed"
timeout 120 dsec-img prune --grace 0 </dev/null >"$T/rec"
timeout 120 dsec-img prune --grace 0 </dev/null >>"$T/rec"
[ "$(find "$DSEC_LIB/img/store/blob" -type f | wc -l)" = 0 ]
ok $? "and then no blob is left" || diag "$(cat "$T/rec")"
done_testing
