#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dsec-seccomp: profiles that are not right are not built.
. "$(dirname "$0")/../tap.sh"
need_tools jq
T=$(mktemp -d "${TMPDIR:-/tmp}/dsec-test.XXXXXX") || exit 1
trap 'rm -rf "$T"' EXIT
root=$(cd "$(dirname "$0")/../.." && pwd)
compiler=$(cd "${BIN:?}/../libexec/dsec" && pwd)/dsec-seccomp
cp "$root"/share/profiles/* "$T"

for arch in x86_64 aarch64; do
	for p in default sealed nested; do
		run "$compiler" --arch $arch "$T/$p.json" "$T/$arch-$p.bpf"
		is "$status$err" 0 "$p for $arch"
	done
done
cmp -s "$T/x86_64-default.bpf" "$T/aarch64-default.bpf"
isnt $? 0 "they differ"
cmp -s "$T/x86_64-default.bpf" "$T/x86_64-nested.bpf"
isnt $? 0 "default and nested differ"
run "$compiler" "$T/default.json" "$T/again.bpf"
run "$compiler" "$T/default.json" "$T/once more.bpf"
cmp -s "$T/again.bpf" "$T/once more.bpf"
ok $? "the same profile gives the same file"

refuse() { # WHAT JQ-FILTER MESSAGE
	jq "$2" "$root/share/profiles/default.json" >"$T/bad.json"
	run "$compiler" "$T/bad.json" "$T/bad.bpf"
	isnt "$status" 0 "refused: $1"
	like "$err" "$3" "and says why"
	[ ! -e "$T/bad.bpf" ]
	ok $? "and writes nothing"
}

refuse "an unknown key" '.sealled = true' sealled
refuse "a flag that is no boolean" '.sealed = "true"' sealed
refuse "a flag that is not there" 'del(.nested)' nested
refuse "a capability that is none" '.capabilities += ["ALL"]' ALL
refuse "a change of a call that is not there" '.changes.opne = ["allow"]' opne
refuse "a change that leaves a case open" \
	'.changes.open = ["allow if arg0==1"]' open
refuse "a change that is no list" '.changes.open = "allow"' open
refuse "a table elsewhere" '.syscalls = "../syscalls"' syscalls
refuse "no table" 'del(.syscalls)' file

printf 'raed allow\n' >"$T/typo"
refuse "a call that no kernel has" '.syscalls = "typo"' raed
printf 'read allow\nwrite@0 allow\n' >"$T/twice"
refuse "a wrong number" '.syscalls = "twice"' write

run "$compiler" "$T/default.json"
is "$status" 64 "one word is not enough"
run "$compiler" --arch vax "$T/default.json" "$T/x.bpf"
is "$status" 64 "an architecture that is none"
run "$compiler" "$T/absent.json" "$T/x.bpf"
isnt "$status" 0 "no such profile"
run "$compiler" --help
is "$status" 0 "help"
done_testing
