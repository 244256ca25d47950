#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The corpus of every fuzz target, replayed without libFuzzer.
. "$(dirname "$0")/../tap.sh"
tree_new

for t in tests/fuzz/fuzz_*.c; do
	name=$(basename "$t" .c)
	name=${name#fuzz_}
	for f in tests/fuzz/corpus/"$name"/*; do
		run "$BUILD/fuzz/$name" "$f"
		is "$status" 0 "$name: $(basename "$f")" || diag "$err"
	done
done
done_testing
