#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# More connections than a node and a control have descriptors for: who is there
# is served, who comes waits, and all are served when there is room.
FILES=200 INJECT=crowd
export FILES INJECT
exec "$(dirname "$0")/serve-inject.t"
