#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python SDK and networks, in a small world of its own: rules, phases, what
# was refused and why, on this machine, at a node and through a control.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/net.sh
. "$(dirname "$0")/net.sh"
net_enter
need_tools curl
tree_new
trap 'net_end; tree_end $?' EXIT
net_world
# shellcheck source=tests/sys/sdk.sh
. "$(dirname "$0")/sdk.sh"
sdk_need
echo '{"cpu_overcommit":500}' >"$DSEC_CONFIG/node.json"
sdk_init
# shellcheck disable=SC2317 # by the trap
end() {
	sdk_stop_all
	net_end
	tree_end "$1"
}
trap 'end $?' EXIT

for where in local node control; do
	[ "$where" = local ] || sdk_start "$where"
	if [ "$where" = control ]; then
		sdk_live 1
	fi
	# shellcheck disable=SC2086 # a list of words
	sdk_tests "$where" ${SDK_TESTS-live_net}
done
is "$(dsec-ps </dev/null)" "" "no sandbox is left"
sdk_stop_all
done_testing
