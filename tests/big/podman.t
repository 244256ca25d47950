#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What we export, others load: podman, in each compression, and skopeo.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools podman skopeo jq busybox

tree_new
pod() {
	podman --root "$T/pod" --runroot "$T/podrun" --storage-driver vfs "$@"
}
mkdir -p "$T/base/bin" "$T/base/etc" "$T/work/deep"
cp "$(command -v busybox)" "$T/base/bin/busybox"
ln -s busybox "$T/base/bin/sh"
echo root:x:0:0:root:/root:/bin/sh >"$T/base/etc/passwd"
target=$(printf '0123456789%.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18)
ln -s "$target" "$T/work/link"
echo hello >"$T/work/$target"
ln "$T/work/$target" "$T/work/deep/second"
chown 12:34 "$T/work/deep/second"
chmod 4711 "$T/work/deep/second"
truncate -s 30M "$T/work/sparse"
echo end >>"$T/work/sparse"
dsec-img import "dir:$T/base" --as root/base:1 -e X=1 -e PATH=/bin >/dev/null
dsec-img import "dir:$T/work" --as root/work:1 --kind workspace --at /work \
	-w /work >/dev/null
run dsec-img env root/base:1 root/work:1 --as root/both:1
is "$status" 0 "an environment of two layers" || diag "$err$out"

# Field report 41: long names of links, read by another program.
for how in none gzip zstd; do
	run dsec-img export root/both:1 "oci-archive:$T/$how.tar" --compress "$how"
	is "$status" 0 "exported ($how)" || diag "$err$out"
	run pod load -i "$T/$how.tar"
	like "$out" 'localhost/root/both:1' "podman loads it" || diag "$err"
	run pod inspect root/both:1
	json_is "$out" '[["PATH=/bin","X=1"],"/work",2]' "with its configuration" \
		'.[0] | [.Config.Env,.Config.WorkingDir,(.RootFS.Layers|length)]'
	mnt=$(pod image mount localhost/root/both:1)
	is "$(cd "$mnt/work" && cat "$target" && readlink link &&
		stat -c '%u:%g %a %h' deep/second && tail -c 4 sparse &&
		stat -c %s sparse)" "hello
$target
12:34 4711 2
end
31457284" "and all its files"
	pod image umount -a >/dev/null
	pod rmi -f root/both:1 >/dev/null 2>&1
done
# One that did not come from us: what podman writes of it comes back the same.
pod load -q -i "$T/none.tar" >/dev/null
for form in docker-archive oci-archive; do
	rm -f "$T/back.tar"
	run pod save --format "$form" -o "$T/back.tar" root/both:1
	is "$status" 0 "podman saves it ($form)" || diag "$err"
	run dsec-img import "$form:$T/back.tar" --as root/back:1
	is "$status" 0 "and we import that" || diag "$err$out"
	run dsec-img diff root/both:1 root/back:1
	is "$(field "$out" 'select(.event) | .path + " " + (.what|tostring)')" "" \
		"the same file system" || diag "$out"
done
run skopeo inspect "oci-archive:$T/gzip.tar"
is "$status" 0 "skopeo reads it" || diag "$err"
run skopeo inspect "docker-archive:$T/gzip.tar"
is "$status" 0 "in docker's form as well" || diag "$err"
pod rmi -fa >/dev/null 2>&1
done_testing
