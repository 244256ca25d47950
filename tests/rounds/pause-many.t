#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/sys/pause-many.t with all of its 200 sandboxes on the disk.
MANY=${MANY:-200} ON_DISK=${ON_DISK:-200}
export MANY ON_DISK
exec "$(dirname "$0")/../sys/pause-many.t"
