#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The examples of README's section on images, as they stand there, but for those
# that need a network.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq tar sha256sum
tree_new

# A static shell is enough of a root for the examples.
busybox=$(command -v busybox) || plan_skip_all "needs busybox"
ldd "$busybox" >"$T/null" 2>&1 && plan_skip_all "needs a static busybox"

# What "docker save" writes: python.tar with a layer.
root=$T/root
mkdir -p "$root/bin" "$root/usr/bin" "$root/etc" "$root/tmp"
cp "$busybox" "$root/bin/busybox"
for tool in sh cat ls cp mkdir make; do
	ln -s busybox "$root/bin/$tool"
done
cat >"$root/bin/make.sh" <<-'EOF'
	#!/bin/sh
	echo built >built
EOF
cat >"$root/usr/bin/python3" <<-'EOF'
	#!/bin/sh
	echo "in $PWD: $(cat test_x.py) $*"
	[ -f test_x.py ]
EOF
rm "$root/bin/make"
mv "$root/bin/make.sh" "$root/bin/make"
chmod 755 "$root/bin/make" "$root/usr/bin/python3"
echo 'root:x:0:0::/:/bin/sh' >"$root/etc/passwd"
mkdir "$T/save"
tar -C "$root" -cf "$T/save/layer.tar" .
layer=$(sha256sum <"$T/save/layer.tar" | cut -d' ' -f1)
jq -nc --arg l "sha256:$layer" '{architecture:"amd64",os:"linux",
	config:{Env:["PATH=/bin:/usr/bin"],WorkingDir:"/"},
	rootfs:{type:"layers",diff_ids:[$l]}}' >"$T/save/config.json"
jq -nc '[{Config:"config.json",RepoTags:["python:3.12"],Layers:["layer.tar"]}]' \
	>"$T/save/manifest.json"
mkdir -p "$T/at/repo"
tar -C "$T/save" -cf "$T/at/python.tar" manifest.json config.json layer.tar
echo 'a test' >"$T/at/repo/test_x.py"

# The indented lines of a section.
examples() { # SECTION
	awk -v s="## $1" '
		/^## / { on = $0 == s; next }
		on && /^    / { print substr($0, 5) }
	' README.md
}
examples Images >"$T/examples"
n=0
cd "$T/at" || exit 1
while read -r line; do
	case $line in
	*"dsec-img pull"* | *mmdebstrap* | *"docker://"*) continue ;;
	esac
	n=$((n + 1))
	run timeout 60 sh -c "$line"
	is "$status" 0 "$line" || diag "$out $err"
	case $line in
	*unittest*) like "$out" 'a test' "and the test has run" ;;
	esac
done <"$T/examples"
ok $((n < 8)) "the section has examples ($n)"
run dsec-img inspect root/flask-ready:1
is "$(field "$out" .kind)" workspace "what was packed is a workspace"
run dsec-img ls root
is "$(printf '%s\n' "$out" | jq -r 'select(.event).name' | tr '\n' ,)" \
	"root/flask-env:1,root/flask-ready:1,root/flask:1,root/py:3.12," \
	"all are there"
done_testing
