#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dsec-doctor: what it finds, what it mends, and that it leaves nothing.
# Limits of the machine are looked at, never changed: --only keeps to our tree.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
tree_new

a=aaaaaaaaaaaaaaaaaaaa
b=bbbbbbbbbbbbbbbbbbbb

# --- what this machine can do
rmdir "$DSEC_LIB"
run dsec-doctor --json
json_is "$out" '["features","findings","mounts","ok","values"]' "the keys of the record" \
	'del(.error)|keys'
is "$(field "$out" '.features.clone3')" true "clone3 is needed to be here"
like "$(field "$out" '.features.cgroup')" '^(v2|hybrid|v1)$' "the kind of cgroups"
is "$(field "$out" '[.findings[]|select((.check|length>0) and (.why|length>0)
	and (.severity|IN("info","warning","error")))]|length')" \
	"$(field "$out" '.findings|length')" "findings say what, how bad and why"
is "$(field "$out" 'if .ok then 0 else 1 end')" "$status" \
	"the status is the answer"
like "$(field "$out" '.findings[]|select(.check=="directories").fix')" \
	'^dsec-doctor --fix$' "missing directories, with the command"
[ ! -e "$DSEC_LIB" ]
ok $? "looking makes no directory"
run dsec-doctor
like "$out" '^This machine can:$' "text for people"

# --- directories
mkdir "$DSEC_LIB"
run dsec-doctor --fix --json --only node
[ -d "$DSEC_RUN/sb" ] && [ -d "$DSEC_LIB/dead" ]
ok $? "--fix makes the directories"
chmod 777 "$DSEC_LIB"
run dsec-doctor --json --only node
is "$status $(field "$out" '.findings[]|select(.check=="directories").severity')" \
	"1 error" "a library that others can change is an error"
eval "$(field "$out" '.findings[]|select(.check=="directories").fix')"
run dsec-doctor --json --only node
is "$(field "$out" '[.findings[]|select(.check=="directories")]|length')" 0 \
	"its command mends it"

# --- leaks
run dsec-doctor --leaks
json_is "$out" '{"ok":true,"leaks":0}' "no leaks"
is "$status" 0 "status 0"
mkdir -p "$DSEC_RUN/sb/$a" "$DSEC_RUN/sb/$b" "$DSEC_RUN/task/t" \
	"$DSEC_LIB/sb/$a/upper" "$DSEC_LIB/sb/$b/upper/deep/er"
echo '{"sandbox":"'$a'","kind":"supervised","slot":0}' \
	>"$DSEC_RUN/sb/$a/claim.json"
ln -s $b "$DSEC_RUN/name/n"
ln -s $b "$DSEC_RUN/uid/7"
ln -s $b "$DSEC_RUN/task/t/$b"
run dsec-doctor --leaks
is "$(printf '%s\n' "$out" | jq -r 'select(.event)|.leak+" "+.sandbox' |
	sort | tr '\n' ,)" \
	"claim $a,layer $b,name $b,run $b,task $b,uid $b," \
	"everything that belongs to nobody, and no more"
is "$status $(printf '%s\n' "$out" | tail -n 1 | jq .leaks)" "1 6" \
	"status 1, and their number"

# A mount in a dead sandbox's directory: what is below must live.
mkdir "$T/canary"
echo alive >"$T/canary/file"
for id in $a $b; do
	mkdir "$DSEC_LIB/sb/$id/upper/mnt"
	mount --bind "$T/canary" "$DSEC_LIB/sb/$id/upper/mnt"
done
run dsec-doctor --leaks
like "$out" '"mount"' "a stale mount is a leak"
# A held claim is nobody's leak, and stays.
c=cccccccccccccccccccc
mkdir "$DSEC_RUN/sb/$c"
echo '{"sandbox":"'$c'","kind":"supervised"}' >"$DSEC_RUN/sb/$c/claim.json"
exec 9<"$DSEC_RUN/sb/$c/claim.json"
flock -x 9
run dsec-doctor --fix --json --only dead
is "$(cat "$T/canary/file")" alive "what a stale mount shows is not removed"
run dsec-doctor --leaks
json_is "$out" '{"ok":true,"leaks":0}' "--fix removed all of it"
[ ! -e "$DSEC_RUN/sb/$a" ] && [ ! -e "$DSEC_LIB/sb/$b" ] &&
	[ ! -e "$DSEC_LIB/sb/$a" ]
ok $? "nothing is left of the dead"
[ -e "$DSEC_RUN/sb/$c/claim.json" ]
ok $? "the living are not touched"
run dsec-ps $a
is "$(field "$out" .outcome)" supervisor-lost "how it ended is on record"
exec 9<&-
rm -rf "$DSEC_RUN/sb/$c"

# --- old records
mkdir -p "$DSEC_LIB/dead/2020010100"
echo '{}' >"$DSEC_LIB/dead/2020010100/$c.json"
run dsec-doctor --fix --json --only dead
[ ! -e "$DSEC_LIB/dead/2020010100" ]
ok $? "old records are dropped"
run dsec-ps $a
is "$status" 0 "young ones are kept"

# --- what the node prepares
mkdir "$DSEC_RUN/mnt/x"
mount -t tmpfs none "$DSEC_RUN/mnt/x"
run dsec-doctor --unmount
is "$status $(tree_mounts)" "0 " "--unmount undoes what was prepared"

# --- the command line
run dsec-doctor --fix --leaks
is "$status" 64 "--fix and --leaks exclude each other"
run dsec-doctor --pool-size 1G
is "$status" 64 "--pool-size goes with --fix"
run dsec-doctor --only nothing
is "$status" 64 "an unknown part"
dsec-doctor --json >/dev/full 2>/dev/null
is $? 74 "a lost report is seen"
if command -v setpriv >/dev/null 2>&1; then
	run setpriv --reuid 65534 --clear-groups "$BIN/dsec-doctor"
	is "$status" 77 "not root: says so, does nothing"
fi

done_testing
