#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# @PROG@: requests in, records out.
. "$(dirname "$0")/../tap.sh"
tree_new

out=$(echo '{"id":7,"text":"hello"}' | @PROG@)
is "$?" 0 "a good request"
json_is "$out" '{"id":7,"ok":true,"text":"hello"}' "its record"

out=$(echo '{"id":8,"txet":"hello"}' | @PROG@)
is "$?" 1 "an unknown field fails"
json_is "$out" '{"id":8,"ok":false,"code":"unknown_field"}' \
	"and is named" '{id, ok, code: .error.code}'

out=$(echo '{}' | @PROG@ --text hi)
json_is "$out" '{"id":1,"ok":true,"text":"hi"}' "flags fill in"

done_testing
