#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/sys/matrix.t with 20 rounds.
MATRIX_ROUNDS=${MATRIX_ROUNDS:-20}
export MATRIX_ROUNDS
exec "$(dirname "$0")/../sys/matrix.t"
