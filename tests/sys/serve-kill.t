#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Launchers, the processes of a node and dsec-place are killed at each call that
# changes something: a key that is asked again is done once, no claim is left.
INJECT="kill"
export INJECT
exec "$(dirname "$0")/serve-inject.t"
