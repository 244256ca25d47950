#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# After the restart: a new boot, and the disk as it was.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../../tap.sh"

isnt "$(cat /proc/sys/kernel/random/boot_id)" "$(cat /root/boot_id)" \
	"the system was started anew"
done_testing
