#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shell test library itself: failures must be seen, and leaks.
# shellcheck disable=SC2016 # the one-line tests expand what is theirs
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_tools jq
tree_new

lib=$(cd "$(dirname "$0")/.." && pwd)/tap.sh

# A test of one line, in a shell of its own.
sub() {
	run env LEAK_S=1 sh -c ". '$lib'; $1; done_testing"
}

sub 'ok 0 a; is x x b; isnt x y b; like "a b" "^a" c; unlike a "^b" d'
is "$status" 0 "good checks: status 0"
is "$(printf '%s\n' "$out" | grep -c '^ok ')" 5 "good checks: five of them"
like "$out" '^1\.\.5$' "good checks: the plan"

for bad in 'ok 1 a' 'is x y a' 'isnt x x a' 'like b "^a" a' 'unlike a "^a" a' \
	"json_is '{\"a\":1}' '{\"a\":2}' a" "json_is nonsense '{}' a"; do
	sub "$bad"
	is "$status" 1 "status 1 after: $bad"
	like "$out" '^not ok 1 - a$' "a line says so: $bad"
done

sub "json_is '{\"b\":[1],\"a\":2,\"t\":7}' '{\"a\":2,\"b\":[1]}' a 'del(.t)'"
is "$status" 0 "JSON is compared whatever the order"

sub 'plan_skip_all "no such thing"'
is "$out" '1..0 # SKIP no such thing' "a skipped test has an empty plan"

sub 'skip a why'
like "$out" '^ok 1 - a # SKIP why$' "a skipped check says why"

sub 'tree_new; echo "$T $DSEC_RUN"; leak_start; leak_check; exit 3'
is "$status" 3 "the clean-up keeps the exit status"
like "$out" '^ok 1 - nothing is left' "no leak, none seen"
for dir in $(printf '%s\n' "$out" | grep '^/'); do
	[ ! -e "$dir" ]
	ok $? "the tree is gone: ${dir%.*}"
done

sub "tree_new; . '${lib%tap.sh}sys/net.sh'; trap 'net_end; tree_end \$?' EXIT; exit 3"
is "$status" 3 "so does that of a network's world"

sub 'tree_new; leak_start; mkdir -p "$DSEC_RUN/sb/x"; leak_check'
is "$status" 1 "a left directory is a leak"
like "$out" '^# > file /.*/sb/x$' "and is named"

if [ "$(id -u)" -eq 0 ]; then
	sub 'tree_new; leak_start; mkdir "$DSEC_LIB/m";
		mount -t tmpfs none "$DSEC_LIB/m"; echo "$T"; leak_check'
	is "$status" 1 "a left mount is a leak"
	like "$out" '^# > mount /.*/lib/m$' "and is named"
	[ ! -e "$(printf '%s\n' "$out" | grep '^/')" ]
	ok $? "and is undone at the end"
else
	skip "a left mount is a leak" "needs root"
fi

wait_for 1 true
ok $? "wait_for sees success"
! wait_for 1 false
ok $? "wait_for gives up"

done_testing
