#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python SDK on this machine: its own tests against real sandboxes, and its
# examples.  Failures of the platform are told from those of what ran, which is
# field report 107.  SDK_TESTS picks some: live.Streams, or examples.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
tree_new
# shellcheck source=tests/sys/sdk.sh
. "$(dirname "$0")/sdk.sh"
sdk_need
echo '{"cpu_overcommit":500}' >"$DSEC_CONFIG/node.json"
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
sdk_image

sdk_warm
leak_start
tests=${SDK_TESTS-live live_kinds.Kinds live_copies examples}
if [ "$tests" != examples ]; then
	# shellcheck disable=SC2086 # a list of words
	sdk_tests local ${tests% examples}
fi
case $tests in
*examples) sdk_examples local ;;
esac
leak_check
if [ -z "${SDK_TESTS-}" ]; then
	sdk_pool
	sdk_tests local live_kinds.Quota
fi
done_testing
