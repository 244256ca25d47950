#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The same system with a newer kernel: what depends on one runs again here
# (suite), and what the release's own kernel has not.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../../tap.sh"

# shellcheck disable=SC2012 # names of releases
is "$(uname -r)" "$(ls /lib/modules | sort -V | tail -n 1)" \
	"the newest kernel that is installed"
is "$(systemctl is-system-running)" running "no unit has failed"
is "$(stat -fc %T /sys/fs/cgroup)" cgroup2fs "control groups: version 2 only"
like "$(tail -n +2 /proc/swaps)" . "swap is on"
done_testing
