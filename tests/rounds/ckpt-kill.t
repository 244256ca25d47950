#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The engine of checkpoints killed at 50 moments.
KILLS=50 exec "$(dirname "$0")/../sys/ckpt-kill.t"
