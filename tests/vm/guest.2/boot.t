#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The restart was one, and the system is well after it.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../../tap.sh"

isnt "$(cat /proc/sys/kernel/random/boot_id)" "$(cat /root/left/boot_id)" \
	"the system was started anew"
is "$(cat /proc/1/comm)" systemd "systemd is pid 1"
done_testing
