#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dsec-serve audit verify, of logs made as PROTOCOL.md says.
. "$(dirname "$0")/../tap.sh"
need_tools jq sha256sum
tree_new

prev=0000000000000000000000000000000000000000000000000000000000000000
line() { # SEQ WHO: the next line
	body="{\"seq\":$1,\"at_ms\":1000,\"prev\":\"$prev\",\"who\":\"$2\",\"decision\":\"allow\""
	prev=$(printf '%s%s}' "$prev" "$body" | sha256sum | cut -d' ' -f1)
	printf '%s,"hash":"%s"}\n' "$body" "$prev"
}
verify() {
	run dsec-serve audit verify "$@"
}

{
	line 1 ann
	line 2 bob
	line 3 'c\u00e9cile'
} >"$T/a.1"
last=$prev
{
	line 4 dora
	line 5 eve
} >"$T/a"

verify "$T/a.1"
is "$status" 0 "a log"
json_is "$out" "{\"ok\":true,\"file\":\"$T/a.1\",\"lines\":3,\"first\":1,
	\"last\":3,\"torn\":0,\"hash\":\"$last\"}" "... and what it holds"
verify "$T/a.1" "$T/a"
is "$status" 0 "and the one that took its place"
json_is "$(printf '%s\n' "$out" | tail -n 1)" "[5,1,5,\"$prev\"]" "... as one" \
	'[.lines, .first, .last, .hash]'
verify "$T/a"
json_is "$out" '[true,4]' "alone it tells that it goes on" '[.ok, .first]'

printf '{"seq":6,' >>"$T/a"
verify "$T/a.1" "$T/a"
is "$status" 0 "a torn end"
json_is "$(printf '%s\n' "$out" | tail -n 1)" '9' "... is told" .torn
verify "$T/a" "$T/a.1"
is "$status" 1 "the wrong order"

sed 's/bob/rob/' "$T/a.1" >"$T/b"
verify "$T/b"
is "$status" 1 "a word that was changed"
json_is "$out" '["audit_damaged",1]' "... and where" '[.error.code, .lines]'
like "$out" 'line 2 of the log' "... for people"
sed 2d "$T/a.1" >"$T/b"
verify "$T/b"
json_is "$out" '"audit_damaged"' "a line that was taken out" .error.code
sed 1d "$T/a.1" >"$T/b"
verify "$T/b"
json_is "$out" '[true,2]' "a beginning that was cut off shows" '[.ok, .first]'
: >"$T/b"
verify "$T/b"
json_is "$out" '[true,0,0]' "an empty one" '[.ok, .lines, .last]'
head -c 100000 /dev/zero | tr '\0' x >"$T/b"
verify "$T/b"
json_is "$out" '"audit_damaged"' "what is none" .error.code
verify "$T/nothing"
is "$status" 1 "no file" || diag "$err"
run dsec-serve audit check "$T/a"
is "$status" 64 "no such verb"

done_testing
