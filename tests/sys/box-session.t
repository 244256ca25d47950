#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The supervisor: sessions.
. "$(dirname "$0")/../tap.sh"
. "$(dirname "$0")/box/results.sh"
need_root
need_tools jq python3 bash
tree_new
dsec-run --rm -- true # what a node prepares once
leak_start
box_part session
leak_check
done_testing
