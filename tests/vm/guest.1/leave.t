#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The last of the first life: what a crash of the machine shall meet.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../../tap.sh"

cat /proc/sys/kernel/random/boot_id >/root/boot_id
ok $? "this boot's id is noted"
done_testing
