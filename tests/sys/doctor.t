#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What dies without its supervisor is found and removed: processes, groups,
# layers, and never what lies behind a mount.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
tree_new

create() { # FIELDS... as JSON
	printf '%s\n' "$@" | dsec-run >"$T/created" 2>"$T/.err"
	jq -r .sandbox "$T/created"
}

run dsec-doctor --json
is "$(field "$out" '[.findings[]|select(.severity=="error")]|length')" 0 \
	"this machine is fit"
# --- addresses for all who can come to have one
addresses() { # POOL UID-RANGES
	echo "{\"pool\":\"$1\"}" >"$DSEC_CONFIG/net.json"
	echo "{\"uid_ranges\":$2}" >"$DSEC_CONFIG/node.json"
	dsec-doctor --json | jq -r '.findings[].why' | grep 'uid ranges'
	rm "$DSEC_CONFIG/net.json" "$DSEC_CONFIG/node.json"
}
like "$(addresses 100.96.0.0/24 255)" '/24.* 254 addresses .* 255 uid ranges' \
	"fewer addresses than slots: told"
is "$(addresses 100.96.0.0/24 254)" "" "as many: nothing to tell"

# --- what every launch would be refused for, in the words of a launch
unfit() { # FILE TEXT CHECK ERE
	echo "$2" >"$DSEC_CONFIG/$1"
	run dsec-doctor --json --only node
	like "$status $(field "$out" '.findings[]|select(.severity=="error")|
		.check+": "+.why')" "^1 $3: .*$4" "$1 with $2: no node is fit with it"
	rm "$DSEC_CONFIG/$1"
}
mkdir "$DSEC_CONFIG/net.d"
unfit node.json '{"cpu_overcomit":5}' configuration "node.json.*'cpu_overcomit'"
unfit images.json '{"stor":"/x"}' configuration "images.json.*'stor'"
unfit net.json '{"poool":"100.96.0.0/16"}' network "net.json.*'?poool"
unfit broker.json '{"endpoint":{}}' configuration "broker.json.*'?endpoint"
unfit net.d/our.json '{"v":1,"name":"our"}' configuration 'net.d/our.json'
unfit node.json '{"disk_reserve_mb":1000000000}' admission \
	"every launch is refused: $DSEC_LIB has .* MiB free, 1000000000 are kept"
echo '{"disk_reserve_mb":1000000000}' >"$DSEC_CONFIG/node.json"
rec=$(echo '{}' | dsec-run 2>"$T/.err")
like "$(field "$rec" .error.message)" 'MiB free, .* disk_reserve_mb' \
	"which is what a launch is told"
rm "$DSEC_CONFIG/node.json"

s=$(create '{}')
run timeout 30 dsec-pause --stop "$s"
leak_start

# --- supervisors that are killed, with commands running in their sandboxes
# shellcheck disable=SC2046
ids=$(create $(for n in 1 2 3 4 5; do
	echo '{"name":"n'$n'","task":"t","command":["sleep","1000"]}'
done))
keep=$(create '{"name":"keep"}')
for id in $ids; do
	dsec-ps "$id" | jq -r '"\(.supervisor_pid) \(.init_pid)"'
done >"$T/pids"
while read -r box init; do
	kill -KILL "$box"
	echo "$init"
done <"$T/pids" >"$T/inits"
# shellcheck disable=SC2317 # by wait_for
none_runs() {
	while read -r pid; do
		! kill -0 "$pid" 2>/dev/null || return 1
	done <"$T/inits"
}
wait_for 10 none_runs
ok $? "a sandbox ends with its supervisor, by itself"
is "$(dsec-ps --task t | jq -r '.state+" "+.outcome' | sort -u)" \
	"stopped supervisor-lost" "each is listed as lost"
run dsec-doctor --leaks
is "$status $(printf '%s\n' "$out" | jq -r 'select(.leak=="claim").sandbox' |
	sort | tr '\n' ,)" "1 $(printf '%s\n' "$ids" | sort | tr '\n' ,)" \
	"--leaks tells of each"

# --- a mount in a dead one's directory: a canary behind it (field report 71)
mkdir "$T/canary"
echo alive >"$T/canary/file"
id=$(printf '%s\n' "$ids" | head -n 1)
mkdir "$DSEC_LIB/sb/$id/upper/mnt"
mount --bind "$T/canary" "$DSEC_LIB/sb/$id/upper/mnt"
run dsec-doctor --fix --json --only dead
like "$(field "$out" '.fixed|join("\n")')" '^removed 5 sandboxes' \
	"--fix buries them and says so"
is "$(cat "$T/canary/file")" alive "what was mounted there is not touched"
run dsec-doctor --leaks
json_is "$out" '{"ok":true,"leaks":0}' "nothing is left of them"
is "$(timeout 10 dsec-exec keep -- echo alive)" alive "the living go on"
run dsec-ps "$id"
is "$(field "$out" '.outcome+" "+.task')" "supervisor-lost t" \
	"how they ended is on record"

# --- names and places are free again
s=$(create '{"name":"n1"}')
isnt "$s" null "the name of a dead one is free"
run timeout 30 dsec-pause --stop n1

# --- a launch that is killed at any moment is swept by the next
# (field report 60)
for delay in 0.005 0.01 0.02 0.03 0.05; do
	echo '{"name":"half"}' | dsec-run >/dev/null 2>&1 &
	sleep $delay
	kill -KILL $! 2>/dev/null
	wait $! 2>/dev/null
done
run timeout 30 dsec-doctor --fix --json --only dead
for id in $(dsec-ps | jq -r "select(.sandbox!=\"$keep\").sandbox"); do
	run timeout 30 dsec-pause --stop "$id"
done
run dsec-doctor --leaks
json_is "$out" '{"ok":true,"leaks":0}' "dsec-run killed five times: no leak"

# --- what the node prepared
run timeout 30 dsec-pause --stop keep
leak_check "nothing of all that is left"
isnt "$(tree_mounts)" "" "the node has prepared mounts"
run dsec-doctor --unmount
is "$status $(tree_mounts)" "0 " "--unmount undoes them"
s=$(create '{}')
run timeout 30 dsec-exec "$s" -- echo again
is "$out" again "and a launch makes them again"
run timeout 30 dsec-pause --stop "$s"

done_testing
