#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the root of a sandbox may try, in every profile: tests/sys/escape.c and
# siege.c try it, escape.expect says what they must see.
# shellcheck source=tests/tap.sh
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
	timeout 60 dsec-run --rm --profile "$box_profile" --mount \
		"[{\"source\":\"$helpers\",\"target\":\"/opt\"}]" -- "$@"
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

for profile in default sealed nested; do
	box $profile /opt/escape >"$T/attempts" 2>"$T/err" </dev/null
	is "$?" 0 "$profile: escape ran" || diag "$(cat "$T/err")"
	judged $profile "escape"
	box $profile /opt/siege inside >"$T/attempts" 2>"$T/err" </dev/null
	is "$?" 0 "$profile: siege ran" || diag "$(cat "$T/err")"
	judged $profile "siege"
done

leak_check "nothing is left of the sandboxes"
done_testing
