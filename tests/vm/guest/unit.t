#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A sandbox is no child of the service or session that asked for it.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../../tap.sh"
need_root
need_tools jq systemd-run
tree_new

# What a unit's end kills is its control group, with all that is in it.
# shellcheck disable=SC2317 # called by run
in_unit() {
	systemd-run --quiet --collect --wait --pipe \
		--property=KillMode=control-group \
		--setenv=DSEC_RUN="$DSEC_RUN" --setenv=DSEC_LIB="$DSEC_LIB" \
		--setenv=DSEC_CONFIG="$DSEC_CONFIG" \
		--setenv=DSEC_CGROUP="$DSEC_CGROUP" --setenv=PATH="$PATH" "$@"
}

run in_unit dsec-run --name u --detach -- true
is "$status" 0 "a sandbox started by a unit"
run dsec-exec u -- echo alive
is "$out" alive "it lives when the unit has ended"
box=$(dsec-ps | jq -r .supervisor_pid)
like "$(cat "/proc/$box/cgroup")" "^0::/$DSEC_CGROUP(/|\$)" \
	"its supervisor is in a group of ours"

run in_unit dsec-exec u --detach --cmd 'sleep 10000'
run dsec-exec u --op list-execs
like "$(field "$out" '.execs[] | .outcome // "running"')" running \
	"a command started by a unit runs on"

run dsec-pause --stop u
is "$status" 0 "stopped"
done_testing
