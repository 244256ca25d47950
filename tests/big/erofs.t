#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A hundred thousand damaged images, none read that leads out of its devices.
. "$(dirname "$0")/../tap.sh"
tree_new

run env EROFS_ROUNDS="${EROFS_ROUNDS:-100000}" timeout 900 "$BUILD/unit/erofs"
is "$status" 0 "damaged images" || diag "$out"
diag "$(printf '%s\n' "$out" | grep '^# ')"
done_testing
