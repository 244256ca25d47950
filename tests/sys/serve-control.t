#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A control and two nodes: sandboxes are placed, found again by their ids and
# names, and by task on all nodes; bytes pass through; who may what; nodes that
# drain, go away and come back; a second control that learns from the first.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
tree_new

D=$T/serve
mkdir -p "$T/n2"
n1='' n2='' c1='' c2=''

# The second node is a tree of its own within ours.
as_n2() {
	DSEC_RUN=$DSEC_RUN/n2 DSEC_LIB=$DSEC_LIB/n2 DSEC_CONFIG=$T/n2 \
		DSEC_CGROUP=$DSEC_CGROUP-2 "$@"
}
n2_gone() {
	find /sys/fs/cgroup -depth -type d -path "*/$DSEC_CGROUP-2*" \
		-exec rmdir {} + 2>/dev/null
	[ -z "$(find /sys/fs/cgroup -type d -path "*/$DSEC_CGROUP-2*" 2>/dev/null)" ]
}
finish() {
	for daemon in "$c1" "$c2"; do kill "$daemon"; done 2>/dev/null
	as_n2 timeout 20 dsec-pause --stop --grace 0 --project root \
		</dev/null >/dev/null 2>&1
	for daemon in "$n1" "$n2"; do kill "$daemon"; done 2>/dev/null
	wait
	wait_for 5 n2_gone || diag "groups of the second node are left"
	tree_end "$1"
}

serve() { # ROLE DIR LOG, in the environment: who
	: >"$T/ready"
	"$BIN/dsec-serve" "$1" "$2" --ready-fd 9 9>"$T/ready" 2>>"$T/log-$3" &
	served=$!
	wait_for 30 test -s "$T/ready" || diag "$(tail "$T/log-$3")"
	read -r _ address <"$T/ready"
}

# --- the cluster ---------------------------------------------------------------

dsec-serve init "$D" --name one >/dev/null
dsec-serve issue "$D" --node two --host 127.0.0.1 --out "$T/n2/node" >/dev/null
dsec-serve issue "$D" --control other --host 127.0.0.1 --out "$T/n2/control" \
	>/dev/null
dsec-serve issue "$D" --client bob >/dev/null
cp "$D/ca.pem" "$D/crl.pem" "$T/n2"
jq '.node.listen = ["127.0.0.1:0"]' "$D/serve.json" >"$T/j"
jq '.name = "two" | del(.control)' "$T/j" >"$T/n2/serve.json"
cp "$T/j" "$D/serve.json"
trap 'finish $?' EXIT

serve node "$D" n1
n1=$served one=$address
as_n2 serve node "$T/n2" n2
n2=$served two=$address
jq --arg one "$one" --arg two "$two" '.control = {listen:["127.0.0.1:0"],
	nodes:[{name:"one",address:$one},{name:"two",address:$two}]} |
	.clients += [{uri:"dsec://client/bob",project:"root/rl",
		operations:["run","exec","ps"]}]' "$T/j" >"$D/serve.json"
serve control "$D" c1
c1=$served first=$address
export DSEC_SERVER="$first" DSEC_CA="$D/ca.pem" \
	DSEC_CERT="$D/client.pem" DSEC_KEY="$D/client.key"

ask() { # PROGRAM; requests on stdin, their records
	timeout 60 dsec-serve client "$@"
}
one() { # PROGRAM REQUEST: its final record
	printf '%s\n' "$2" | ask "$1" | jq -c 'select(has("ok"))'
}
live() {
	[ "$(ask nodes </dev/null | jq -r .state | grep -c live)" = "$1" ]
}
bob() {
	DSEC_CERT=$D/bob.pem DSEC_KEY=$D/bob.key "$@"
}

wait_for 20 live 2
ok $? "two nodes are live"
is "$(grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb)' "/proc/$c1/status" | cut -f2 | sort -u)" \
	0000000000000000 "a control has no capability, whoever starts it"

# --- placing ---------------------------------------------------------------------

for i in 1 2 3 4 5 6; do
	echo "{\"id\":$i,\"key\":\"k$i\",\"task\":\"t\",\"memory_limit_mb\":64}"
done | ask run >"$T/made"
is "$(jq -r .ok "$T/made" | sort | uniq -c | tr -s ' ')" " 6 true" \
	"six are made" || diag "$(cat "$T/made" "$T/log-c1")"
is "$(jq -r '.sandbox[0:4]' "$T/made" | sort -u | wc -l)" 2 "on both nodes"
id=$(jq -r 'select(.id == 1).sandbox' "$T/made")
json_is "$(one img "{\"op\":\"pack\",\"sandbox\":\"$id\",\"as\":\"root/packed:1\"}")" \
	'"root/packed:1"' "what one wrote is an image of its node" .name
# Field report 100: a create whose answer was lost.
is "$(one run '{"key":"k1","task":"t","memory_limit_mb":64,"again":true}' |
	jq -r .sandbox)" "$id" "one that may have been made is found by its key"
is "$(ask ps --task t | wc -l)" 6 \
	"and was not made twice"

# A first try that arrives when it was asked for again, at a node that has not
# made it: as if it had been on its way all the time.
late='{"key":"late","task":"late","memory_limit_mb":64}'
made=$(one run '{"key":"late","task":"late","memory_limit_mb":64,"again":true}' |
	jq -r .sandbox)
here=$(dsec-admit --report | jq -r .node)
if [ "$(printf %.4s "$made")" = "$here" ]; then
	is "$(DSEC_SERVER=$two one run "$late" | jq -r .error.code)" cancelled \
		"a first try that comes too late does nothing"
	same=$one
else
	is "$(DSEC_SERVER=$one one run "$late" | jq -r .error.code)" cancelled \
		"a first try that comes too late does nothing"
	same=$two
fi
is "$(DSEC_SERVER=$same one run "$late" | jq -r .sandbox)" "$made" \
	"where it was made it is what was made"
is "$(ask ps --task late | wc -l)" 1 "it is there once"
one pause "{\"op\":\"stop\",\"sandbox\":\"$made\",\"grace_ms\":0}" >/dev/null

# --- finding -----------------------------------------------------------------------

for s in $(jq -r .sandbox "$T/made"); do
	printf '{"sandbox":"%s","command":"echo $0"}\n' "$s"
done | ask exec | jq -c 'select(has("ok"))' >"$T/execs"
is "$(jq -r '.stdout | rtrimstr("\n")' "$T/execs" | sort | uniq -c | tr -s ' ')" " 6 /bin/sh" \
	"each is found by its id" || diag "$(cat "$T/execs")"
is "$(one run '{"name":"n","node_labels":{},"memory_limit_mb":64}' |
	jq -r .ok)" true "one with a name"
is "$(one exec '{"sandbox":"n","command":["echo","hi"]}' | jq -r .stdout)" hi \
	"is found by it"
code=$(ask ps n | jq -r '.sandbox[0:4]')
like "$code" '^[a-z2-7]{4}$' "and looked at"
is "$(one run '{"name":"n","memory_limit_mb":64,"avoid":["'"$code"'"]}' |
	jq -r .ok)" true "another of that name, elsewhere"
is "$(one exec '{"sandbox":"n","command":"true"}' | jq -r .error.code)" \
	bad_value "then the name is not enough"
other=$(ask ps | jq -r 'select(.name == "n") | .sandbox' | grep -v "^$code")
one pause "{\"op\":\"stop\",\"sandbox\":\"$other\",\"grace_ms\":0}" >"$T/null"
is "$(one exec '{"sandbox":"n","command":["echo","hi"]}' | jq -r .stdout)" hi \
	"of one that has ended the live one takes it over"
is "$(one run '{"name":"over","memory_limit_mb":64}' | jq -r .ok)" true \
	"a third with a name"
one pause '{"op":"stop","sandbox":"over","grace_ms":0}' >"$T/null"
is "$(ask ps over | jq -r '"\(.state) \(.outcome)"')" "stopped killed" \
	"how it ended is told to who knows its name alone"
is "$(one exec '{"sandbox":"over","command":"true"}' | jq -r .error.code)" \
	stopped "and who asks for more is told that"
is "$(bob ask ps over | jq -r .error.code)" sandbox_unknown \
	"but not who may not see it"
is "$(one exec '{"sandbox":"aaaaaaaaaaaaaaaaaaaa","command":"true"}' |
	jq -r .error.code)" sandbox_unknown "an id of nobody's"

seen='' after='' pages=0
while :; do
	ask ps --limit 3 ${after:+--after $after} >"$T/page"
	seen="$seen $(jq -r '.sandbox // empty' "$T/page")"
	after=$(jq -r '.next // empty' "$T/page")
	pages=$((pages + 1))
	if [ -z "$after" ] || [ $pages -ge 9 ]; then
		break
	fi
done
is "$(printf '%s\n' "$seen" | tr -s ' ' '\n' | sed '/^$/d' | sort -u | wc -l) $pages" "7 3" "a list by pages"

# --- bytes --------------------------------------------------------------------------

run ask exec "$id" -- sh -c 'echo out; echo err >&2; exit 3'
is "$status $out $err" "3 out err" "a command's output, errors and status"
sum=$(head -c 20000000 /dev/zero | tr '\0' x | tee "$T/bytes" | md5sum)
is "$(ask exec -i "$id" -- cat <"$T/bytes" | md5sum)" "$sum" \
	"20 MB there and back"
is "$(printf '%s\n' '{"id":1,"sandbox":"'"$id"'","command":["sleep","100"]}' \
	'{"id":2,"cancel":1}' | ask exec | jq -r 'select(.id == 1 and has("ok")) |
	.error.code // .outcome' | grep -cE 'cancelled|killed')" 1 \
	"a command is cancelled through both"

# --- tasks -----------------------------------------------------------------------------

ask pause --task t --level freeze >"$T/paused"
is "$(jq -r .state "$T/paused" | sort | uniq -c | tr -s ' ')" " 6 paused" \
	"a task is paused on all nodes, with a record for each"
json_is "$(one pause '{"task":"t","op":"resume"}')" \
	'{"id":1,"ok":true,"count":6,"failed":0}' "and resumed, with one at the end"
json_is "$(ask pause --resume --task nobody)" \
	'{"id":1,"ok":true,"count":0,"failed":0}' "of none that is all there is"

# --- snapshots ------------------------------------------------------------------------

one exec '{"sandbox":"'"$id"'","command":"echo kept >/tmp/warm"}' >"$T/null"
json_is "$(one fork '{"sandbox":"'"$id"'","snapshot":"warm","fs_only":true}')" \
	'"root/warm"' "a snapshot of one" .name
for i in 1 2 3 4; do
	echo '{"snapshot":"warm","task":"w","command":["cat","/tmp/warm"],"wait":true}'
done | ask run | jq -c 'select(has("ok"))' >"$T/warm"
is "$(jq -r '"\(.sandbox[0:4]) \(.stdout | rtrimstr("\n"))"' "$T/warm" | sort | uniq -c |
	tr -s ' ')" " 4 $(printf %.4s "$id") kept" \
	"what is made from it is made where it is" || diag "$(cat "$T/warm")"
is "$(one fork '{"from":"warm","count":2,"task":"w"}' |
	jq -c '[.ok, .count]')" '[true,2]' "copies too"
is "$(echo '{"op":"list"}' | ask fork | jq -r 'select(.event).name')" \
	root/warm "a list of those of all nodes"
is "$(bob one run '{"snapshot":"warm"}' | jq -r .error.code)" \
	snapshot_unknown "it is another project's"
ask pause --stop --task w >"$T/null"

# --- who may ----------------------------------------------------------------------------

is "$(bob one run '{"project":"root/rl/a","name":"b","memory_limit_mb":64}' |
	jq -r .ok)" true "in his project he may"
is "$(bob one run '{"project":"root"}' | jq -r .error.code)" permission \
	"outside of it not"
is "$(bob one exec '{"sandbox":"'"$id"'","command":"true"}' |
	jq -r .error.code)" sandbox_unknown "others' sandboxes are not there"
is "$(bob one pause '{"sandbox":"b"}' | jq -r .error.code)" permission \
	"nor what he was not given"
is "$(bob ask ps | jq -r .name)" b "he sees his own"
is "$(bob one exec '{"sandbox":"b","command":"true","within":"root"}' |
	jq -r .error.code)" unknown_field "what controls say he cannot say"

# --- nodes that drain, and go away ----------------------------------------------------------

json_is "$(ask drain one </dev/null)" true "a node is drained" .ok
wait_for 10 sh -c "ask() { timeout 20 dsec-serve client nodes; }
	ask | jq -e 'select(.name == \"one\").report.draining' >/dev/null"
other=$(as_n2 dsec-admit --report | jq -r .node)
is "$(for i in 1 2 3; do echo '{"memory_limit_mb":64,"task":"d"}'; done |
	ask run | jq -r '.sandbox[0:4]' | sort -u)" "$other" \
	"new ones go to the other"
one drain '{"node":"two"}' >"$T/null"
rec=$(one run '{"memory_limit_mb":64}')
is "$(field "$rec" .error.code)" draining "with both there is no room"
like "$(field "$rec" .error.retry_after_ms)" '^[0-9]+$' "and a time to ask again"
is "$(ask undrain one two </dev/null | jq -c '[.id, .ok]' | sort | tr -d '\n')" \
	'[1,true][2,true]' "nodes are not drained any more"

mine=$(jq -r .sandbox "$T/made" | grep "^$other" | head -n 1)
kill -KILL "$n2"
pkill -KILL -P "$n2" 2>/dev/null
wait "$n2" 2>/dev/null
away() {
	[ "$(one exec '{"sandbox":"'"$mine"'","command":"true"}' |
		jq -r .error.code)" = node_away ]
}
wait_for 20 away
ok $? "a node that is gone is said to be away"
is "$(one run '{"memory_limit_mb":64}' | jq -r '.sandbox[0:4]' |
	grep -vc "$other")" 1 "and gets nothing"
is "$(ask ps --task t 2>"$T/err" | tail -n 1 | jq -c '[.ok, .missing]')" \
	'[true,["two"]]' "a list says whose is missing"
like "$(cat "$T/err")" 'node two could not be asked' "to people, too"
jq --arg two "$two" '.node.listen = [$two]' "$T/n2/serve.json" >"$T/j"
cp "$T/j" "$T/n2/serve.json"
as_n2 serve node "$T/n2" n2
n2=$served
wait_for 20 live 2
is "$(one exec '{"sandbox":"'"$mine"'","command":["echo","still"]}' |
	jq -r .stdout)" still "its sandboxes are as they were"

# --- another control -----------------------------------------------------------------------

cp "$D/clients.json" "$T/n2" 2>/dev/null
jq --arg first "$first" --slurpfile d "$D/serve.json" '{v:1, name:"other",
	clients:$d[0].clients, control:{listen:["127.0.0.1:0"],
	peers:[{name:"one",address:$first}]}}' "$D/serve.json" >"$T/j"
mkdir "$T/other"
cp "$T/j" "$T/other/serve.json"
cp "$D/ca.pem" "$D/crl.pem" "$T/n2/control.pem" "$T/n2/control.key" "$T/other"
serve control "$T/other" c2
c2=$served
DSEC_SERVER=$address
wait_for 20 live 2
ok $? "a control learns of nodes from its peer"
is "$(one exec '{"sandbox":"'"$mine"'","command":["echo","here"]}' |
	jq -r .stdout)" here "and finds what others made"
is "$(one run '{"snapshot":"warm"}' | jq -r '.sandbox[0:4]')" \
	"$(printf %.4s "$id")" "and snapshots"
kill -KILL "$c1"
wait "$c1" 2>/dev/null
is "$(one run '{"memory_limit_mb":64}' | jq -r .ok)" true \
	"it goes on when that one is gone"
is "$(one pause '{"op":"stop","project":"root"}' | jq -r .failed)" 0 \
	"everything is stopped"
done_testing
