#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The guest is what it is for: what the other machine of the suite has not.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../../tap.sh"

is "$(stat -fc %T /sys/fs/cgroup)" cgroup2fs "control groups: version 2 only"
for c in cpu memory pids io cpuset; do
	like "$(tr ' ' '\n' </sys/fs/cgroup/cgroup.controllers)" "^$c\$" \
		"its controllers: $c"
done
is "$(cat /proc/1/comm)" systemd "systemd is pid 1"
is "$(cat /sys/module/apparmor/parameters/enabled)" Y "AppArmor is on"
like "$(cat /sys/kernel/security/lsm)" apparmor "AppArmor is in force"
like "$(tail -n +2 /proc/swaps)" . "swap is on"
is "$(systemctl is-system-running)" running "no unit has failed"
done_testing
