#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make new PROG=: what it makes builds, passes its own test and its page's.
. "$(dirname "$0")/../tap.sh"
need_tools gcc
tree_new
top=$PWD

mkdir "$T/src"
cp -R lib share Makefile "$T/src"
mkdir "$T/src/tests"
cp tests/tap.sh "$T/src/tests"
cd "$T/src" || exit 1

run share/new-program dsec-Foo
is "$status" 64 "a bad name is refused"
run make -s --no-print-directory new PROG=dsec-hello
is "$status" 0 "make new"
run make -s --no-print-directory new PROG=dsec-hello
isnt "$status" 0 "not over one that is there"
case $BUILD in /*) lib=$BUILD/libdsec.a ;; *) lib=$top/$BUILD/libdsec.a ;; esac
mkdir bin
# shellcheck disable=SC2086 # flags
run gcc -std=gnu17 -D_GNU_SOURCE -Wall -Wextra -Werror ${SAN:+-fsanitize=$SAN} \
	-Ilib -o bin/dsec-hello cmd/dsec-hello/main.c "$lib" -ljansson
is "$status" 0 "it builds"
diag "$err"
run env BIN="$T/src/bin" sh tests/cli/hello.t
is "$status" 0 "its test passes"
[ "$status" = 0 ] || diag "$out"
run "$T/src/bin/dsec-hello" -h
like "$out" '^  -t, --text TEXT' "-h"
if command -v mandoc >/dev/null; then
	run mandoc -T lint -W warning cmd/dsec-hello/dsec-hello.1
	is "$status $out" "0 " "its page is sound"
fi
cd "$top" || exit 1

done_testing
