#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dsec-net: what needs no sandbox.
. "$(dirname "$0")/../tap.sh"
tree_new
DSEC_SHARE=$(cd "$(dirname "$0")/../../share" && pwd)
export DSEC_SHARE

compile() { # RULES
	printf '%s\n' "$1" | dsec-net --compile >"$T/.out" 2>"$T/.err"
	status=$?
	out=$(cat "$T/.out")
	err=$(cat "$T/.err")
}

compile '{"pypi":true,"npm":false}'
is "$status" 0 "rules compile"
is "$(field "$out" '.network')" names "to a strength"
is "$(field "$out" '.compiled.allow | length')" 4 "names are replaced by what they stand for"
hash=$(field "$out" .hash)
is "${#hash}" 64 "with a hash"
is "$(field "$out" .compiled | jq -cjS . | sha256sum | cut -d' ' -f1)" "$hash" \
	"that of the canonical text"
again=$(field "$out" .compiled | jq -c .)
compile "$again"
is "$(field "$out" .hash)" "$hash" "a compiled policy compiles to itself"
compile '{
	"npm": false,
	"pypi": true
}'
is "$(field "$out" .hash)" "$hash" "of many lines, in another order"
compile '{"pypi":true}
{"pipy":true}
{"allow":[{"domain":"a.org","ports":[0]}]}'
is "$status" 65 "one of several is wrong"
is "$(printf '%s\n' "$out" | jq -c '[.id,.ok]' | tr -d '\n')" \
	'[1,true][2,false][3,false]' "each has its record"
like "$out" 'unknown semantic name .pipy' "which names an unknown name"
like "$out" 'allow\[0\]\.ports\[0\]' "and the place"
compile '{"phases":{"a":{"pypi":true},"b":{"allow":[{"cidr":"203.0.113.0/24"}]}},"phase":"a"}'
is "$(field "$out" '[.network, (.policies|keys[])] | join(" ")')" "routed a b" \
	"phases: the strongest that any needs"
compile '{"phases":{"a":{}},"phase":"b"}'
is "$(field "$out" .error.code)" bad_value "a phase that is not there"
compile '{"phases":{"a":{"x":1}}}'
like "$out" "phases.*a.*'x'" "an error in a phase names it"

run dsec-net --services
is "$status" 0 "the semantic names"
is "$(printf '%s\n' "$out" | jq -r .service | tr '\n' ' ')" \
	'conda crates debian docker-hub github go huggingface maven npm pypi rubygems ubuntu ' \
	"there are twelve"
is "$(printf '%s\n' "$out" | jq -r 'select(.from != "built-in" or .ok != true)')" '' "all ours"
mkdir "$DSEC_CONFIG/net.d"
echo '{"v":1,"name":"mine","version":"1","rules":[{"domain":"*.example.org"}]}' \
	>"$DSEC_CONFIG/net.d/mine.json"
compile '{"mine":true}'
is "$(field "$out" '.compiled.allow[0].domain')" '*.example.org' "an operator's own"
echo '{"pool":"10.0.0.1/8"}' >"$DSEC_CONFIG/net.json"
compile '{"mine":true}'
is "$status" 78 "a broken net.json is told"
like "$err" 'net.json: pool' "by its place"
rm "$DSEC_CONFIG/net.json"

usage() {
	run dsec-net "$@"
	is "$status" 64 "usage: $*"
}
usage --follow x
usage --connect 80
usage --connect 80 a b
usage --uplink sideways
usage --denied
usage --denied --connect 80 x
usage --jobs 0 x
usage --background x
usage --compile --phase x

request() { # LINE CODE
	printf '%s\n' "$1" | dsec-net >"$T/.out" 2>"$T/.err"
	is "$(jq -r .error.code "$T/.out")" "$2" "$2: $1"
}
request '{"sandbox":"nosuch","show":true}' sandbox_unknown
request '{"sandbox":"aaaaaaaaaaaaaaaaaaaa","show":true}' sandbox_unknown
request '{"sandbox":"aaaaaaaaaaaaaaaaaaaa","phase":"a"}' sandbox_unknown
request '{"sandbox":"aaaaaaaaaaaaaaaaaaaa","explain":"a.org:443"}' sandbox_unknown
request '{"sandbox":"a"}' missing_field
request '{"show":true}' missing_field
request '{"sandbox":"a","show":true,"phase":"x"}' bad_value
request '{"sandbox":"a","task":"t","show":true}' bad_value
request '{"sandbox":"a","replace":[]}' bad_value
request '{"sandbox":"a","deny":true}' unknown_field
request '{"sandbox":"a","explain":7}' bad_value
run dsec-net --task nosuch --deny-all
json_is "$out" '{"id":1,"ok":true,"count":0}' "a selector that fits none"
run dsec-net aaaaaaaaaaaaaaaaaaaa --denied
is "$status" 1 "denied attempts of nobody"
printf '{"id":9,"sandbox":"x","ok":false,"error":{"code":"memory","message":"no"}}\n' |
	dsec-net --phase a >"$T/.out"
is "$? $(jq -r .id "$T/.out")" "75 9" "a failure of another program is passed on"
done_testing
