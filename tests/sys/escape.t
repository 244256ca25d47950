#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the root of a sandbox may try, in every profile: tests/sys/escape.c and
# siege.c try it, escape.expect says what they must see.
# shellcheck source=tests/tap.sh disable=SC2317 # $way
. "$(dirname "$0")/../tap.sh"
need_root
need_tools perl unshare timeout
here=$(cd "$(dirname "$0")" && pwd)
helpers=$(cd "$BUILD/helpers" && pwd)
tree_new
leak_start
echo "$helpers" >"$DSEC_CONFIG/mounts.allow"

box() { # PROFILE ARGV...: a one-shot with the helpers in /opt
	box_profile=$1
	shift
	timeout -s KILL 60 dsec-run --rm --profile "$box_profile" --mount \
		"[{\"source\":\"$helpers\",\"target\":\"/opt\"}]" -- "$@"
}

entered() { # PROFILE ARGV...: the same in a sandbox that runs already
	entered_profile=$1
	shift
	timeout -s KILL 60 dsec-exec "in-$entered_profile" -- "$@"
}

judged() { # PROFILE WHAT: of $T/attempts
	perl "$here/judge" "$here/escape.expect" "$1" $((tap_n + 1)) \
		<"$T/attempts" >"$T/judged"
	sed '$d' "$T/judged"
	bad=$(grep -c '^not ok' "$T/judged")
	tap_bad=$((tap_bad + bad))
	tap_n=$(($(sed -n 's/^total //p' "$T/judged") - 1))
	tail -n 1 "$T/attempts" | grep -q '^0 end' # or it was cut short
	ok $? "$1: $2 went to its end"
}

# --- without confinement the attempts do what they are meant to ---------------

timeout 60 unshare -mpniuC --fork --mount-proc "$helpers/escape" control \
	>"$T/attempts" 2>"$T/err" </dev/null
grep -q '^0 end' "$T/attempts"
ok $? "the attempts, outside"
perl "$here/judge" --control "$here/escape.expect" <"$T/attempts" >"$T/vain"
all=$(wc -l <"$T/attempts")
vain=$(wc -l <"$T/vain")
diag "outside, too, refused or absent: $(cut -f 1 "$T/vain" | tr '\n' ',')"
[ "$vain" -lt $((all / 3)) ]
ok $? "of $all attempts $vain are refused outside as well"
for must in '2 mount tmpfs' '2 open_tree /' '2 fsopen tmpfs' '3 mknod block' \
	'3 open_by_handle_at own file' '3 setns /proc/self/ns/net' \
	'4 unshare user' '4 unshare mnt' '4 unshare net' '4 clone3 user' \
	'4 inner proc' '5 keyctl' '6 socket packet' '6 socket raw' \
	'6 socket netlink netfilter' '6 add an address' '6 take lo down'; do
	grep -q "^$must	ok$" "$T/attempts"
	ok $? "outside it works: $must"
done

# --- inside -------------------------------------------------------------------

# A one-shot's command inherits what pid 1 gave up; one that enters a running
# sandbox from outside gives it up by itself.
for profile in default sealed nested; do
	timeout -s KILL 60 dsec-run --detach --name "in-$profile" \
		--profile $profile --mount \
		"[{\"source\":\"$helpers\",\"target\":\"/opt\"}]" \
		</dev/null >"$T/up" 2>"$T/err"
	is $? 0 "$profile: a sandbox is up" || diag "$(cat "$T/err")"
	for way in box entered; do
		$way $profile /opt/escape >"$T/attempts" 2>"$T/err" </dev/null
		is $? 0 "$profile: escape ran, $way" || diag "$(cat "$T/err")"
		judged $profile "escape, $way,"
		$way $profile /opt/siege inside >"$T/attempts" 2>"$T/err" \
			</dev/null
		is $? 0 "$profile: siege ran, $way" || diag "$(cat "$T/err")"
		judged $profile "siege, $way,"
	done
	timeout -s KILL 60 dsec-pause --stop --grace 0 "in-$profile" \
		</dev/null >"$T/stop" 2>&1
	is $? 0 "$profile: and stopped" || diag "$(cat "$T/stop")"
done

leak_check "nothing is left of the sandboxes"
done_testing
