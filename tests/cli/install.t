#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make install puts everything in place, and it runs from there.
. "$(dirname "$0")/../tap.sh"
tree_new

run make -s --no-print-directory install DESTDIR="$T/dest" PREFIX=/usr
is "$status" 0 "make install DESTDIR="
[ "$status" = 0 ] || diag "$err"

D=$T/dest/usr
for main in cmd/*/main.c; do
	prog=$(basename "$(dirname "$main")")
	[ -x "$D/bin/$prog" ] || [ -x "$D/libexec/dsec/$prog" ]
	ok $? "$prog is installed"
	[ -f "$D/share/man/man1/$prog.1" ]
	ok $? "$prog: its page is"
done
for json in share/profiles/*.json; do
	name=$(basename "$json" .json)
	[ -s "$D/libexec/dsec/$name.bpf" ]
	ok $? "profile $name is"
done
[ -f "$D/share/dsec/net/pypi.json" ]
ok $? "the semantic names are"
for unit in share/systemd/*.service; do
	name=$(basename "$unit")
	grep -o '=[^ ]*/dsec-[a-z]*' "$D/lib/systemd/system/$name" >"$T/programs"
	ok $? "$name is, and starts a program"
	is "$(grep -v '^=/usr/bin/' "$T/programs")" "" "of the same prefix"
done
grep -q '^OnCalendar=' "$D/lib/systemd/system/dsec-serve-renew.timer"
ok $? "certificates are renewed by a timer"
is "$(find "$D/lib/systemd/system" -type f ! -name '*.service' \
	! -name '*.timer')" "" "there are no other units"
if command -v systemd-analyze >/dev/null; then
	# The programs are not where they will be.
	mkdir "$T/units"
	for unit in "$D"/lib/systemd/system/*; do
		sed "s,=/usr/bin/dsec,=$D/bin/dsec," "$unit" \
			>"$T/units/${unit##*/}"
	done
	run systemd-analyze verify --man=no "$T"/units/*
	is "$status $err" "0 " "systemd takes the units"
else
	skip "systemd takes the units" "there is no systemd-analyze"
fi
for unit in dsec-serve-node dsec-net; do
	unlike "$(cat "$D/lib/systemd/system/$unit.service")" \
		'^KillMode=(control-group|none)|^OOMPolicy=(stop|kill)' \
		"$unit leaves sandboxes alone"
done
like "$(cat "$D/lib/systemd/system/dsec-serve-node.service")" \
	'^KillMode=process$' "the node's end is nobody else's"
[ -f "$D/share/dsec/python/dsec/py.typed" ] &&
	PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$D/share/dsec/python \
		python3 -c 'import dsec.sync'
ok $? "the Python package is"
if [ -x /usr/bin/pip ]; then
	PIP_NO_INDEX=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
		run /usr/bin/pip install -q --root-user-action=ignore \
		--target "$T/site" "$D/share/dsec/python"
	is "$status" 0 "pip installs it, offline" || diag "$err"
	run env PYTHONPATH="$T/site" /usr/bin/python3 -c 'import dsec.sync, os
print(dsec.__version__, os.listdir(os.path.dirname(dsec.__file__)).count("py.typed"))'
	is "$out" "$(sed -n 's/^version = "\(.*\)"/\1/p' \
		share/python/pyproject.toml) 1" "with its version and its types"
else
	skip "pip installs it, offline" "needs pip in /usr"
fi
[ -f "$D/share/dsec/PROTOCOL.md" ]
ok $? "the protocol is"
is "$(find "$T/dest" -type f -newer "$T/dest" -perm /022 | head -n 3)" "" \
	"nothing is writable by others"
is "$(find "$T/dest" -mindepth 1 -maxdepth 1)" "$T/dest/usr" \
	"nothing is outside the prefix"

# The installed programs find the internal ones beside themselves.
PATH=$D/bin:$PATH
unset DSEC_LIBEXEC
if [ "$(id -u)" = 0 ] && [ -x "$D/bin/dsec-run" ]; then
	run dsec-run --rm -- /bin/echo installed
	is "$status $out" "0 installed" "a sandbox runs from there"
else
	skip "a sandbox runs from there" "needs root and dsec-run"
fi

done_testing
