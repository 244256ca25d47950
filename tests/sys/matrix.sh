# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154
#
# For tests that pause to disk and fork: an image that can be checkpointed, and
# whether there is an engine.  Sourced after tap.sh and tree_new.

# A root file system with busybox, a Python interpreter (the modules it needs to
# start, no more) and the program matrix.
matrix_rootfs() { # DIR
	mkdir -p "$1/bin" "$1/etc" "$1/root" "$1/tmp" "$1/srv" "$1/proc" \
		"$1/dev" "$1/usr/bin"
	chmod 1777 "$1/tmp" "$1/srv"
	cp "$(command -v busybox)" "$1/bin/busybox"
	for matrix_tool in sh ls cat id touch mkdir env echo head tail rm sleep \
		dd date ps kill hostname df sync wc tr cut seq nc readlink cp mv \
		grep stat test timeout true false ip printf; do
		ln -s busybox "$1/bin/$matrix_tool"
	done
	printf 'root:x:0:0:root:/root:/bin/sh\n' >"$1/etc/passwd"
	printf 'root:x:0:\n' >"$1/etc/group"
	cp "${BUILD:?}/helpers/matrix" "$1/bin/matrix"
	matrix_python "$1"
}

matrix_python() { # DIR
	matrix_py=$(readlink -f /usr/bin/python3)
	[ -x "$matrix_py" ] || return 0
	{
		echo "$matrix_py"
		ldd "$matrix_py" | grep -o '/[^ ]*'
		"$matrix_py" -I -S -c '
import encodings.ascii, encodings.latin_1, encodings.utf_8, io, os, sys, time
for m in list(sys.modules.values()):
    for f in (getattr(m, "__file__", None), getattr(m, "__cached__", None)):
        if f and os.path.exists(f):
            print(f)
'
	} | sort -u | while read -r matrix_file; do
		mkdir -p "$1${matrix_file%/*}"
		cp -L "$matrix_file" "$1$matrix_file"
	done
	ln -sf "$matrix_py" "$1/bin/python3"
}

# An image of it, root/matrix:1 if nothing else is said.
matrix_image() { # [NAME]
	matrix_rootfs "$T/matrix-root"
	timeout 120 dsec-img import "dir:$T/matrix-root" \
		--as "${1:-root/matrix:1}" --kind base </dev/null \
		>"$T/.image" 2>&1 || {
		diag "$(cat "$T/.image")"
		return 1
	}
	rm -rf "$T/matrix-root"
}

# The matrix in SANDBOX, in DIR (/srv/m), MB of Python's memory: 24 processes
# and their parent, and one on a terminal from outside.
matrix_start() { # SANDBOX [MB]
	timeout 30 dsec-exec "$1" --detach -- /bin/matrix run /srv/m \
		/bin/python3 "${2:-100}" >"$T/.matrix" 2>&1 &&
		timeout 30 dsec-exec "$1" --detach --tty -- /bin/matrix tty \
			/srv/m >>"$T/.matrix" 2>&1 &&
		wait_for 60 matrix_all "$1"
}

matrix_all() { # SANDBOX
	timeout 60 dsec-exec "$1" -- /bin/matrix check /srv/m 20 2>&1 |
		grep -qx '26 processes' &&
		timeout 60 dsec-exec "$1" -- sh -c '[ $(ls /srv/m/r | wc -l) = 26 ]'
}

# Nothing but the count when all 26 go on and are well.
matrix_check() { # SANDBOX
	timeout 100 dsec-exec "$1" -- /bin/matrix check /srv/m 30 2>&1
}

# matrix_count SANDBOX NAME: how many rounds a process has made.
matrix_count() {
	timeout 60 dsec-exec "$1" -- cut -d' ' -f3 "/srv/m/r/$2"
}

# Why nothing can be checkpointed here; "" where it can.
checkpoint_why() {
	dsec-doctor --json --only kernel </dev/null 2>/dev/null |
		jq -r 'if .features.checkpoint == true then "" else
			(.values.checkpoint_why // "no checkpoint engine") end'
}
