#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What serve.json says anew holds without a restart: nodes that come and leave,
# bindings of who is connected; and a node that is not seen for long.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq python3
tree_new

here=$(dirname "$0")
D=$T/serve
node='' control=''
finish() {
	exec 8>&- 2>/dev/null
	for p in "$control" "$node"; do kill "$p"; done 2>/dev/null
	wait
	tree_end "$1"
}
trap 'finish $?' EXIT

serve() { # ROLE
	: >"$T/ready"
	"$BIN/dsec-serve" "$1" "$D" --ready-fd 9 9>"$T/ready" \
		2>>"$T/log-$1" &
	served=$!
	wait_for 30 test -s "$T/ready" || diag "$(tail "$T/log-$1")"
	read -r _ address <"$T/ready"
}
conf() { # JQ-FILTER [ARG...]
	filter=$1
	shift
	jq "$@" "$filter" "$D/serve.json" >"$D/.new" &&
		mv "$D/.new" "$D/serve.json"
}

dsec-serve init "$D" --name one >/dev/null
dsec-serve issue "$D" --client bob >/dev/null
conf '.node.listen = ["127.0.0.1:0"] | .clients += [{uri:"dsec://client/bob",
	project:"root/rl",operations:["run","exec","ps"]}]'
serve node
node=$served one=$address
conf '.node.listen = [$a] | .control = {listen:["127.0.0.1:0"], nodes:[]} |
	.limits = {lost_ms:3000}' --arg a "$one"
serve control
control=$served to=$address

ask() { # PROGRAM; requests on stdin
	timeout 60 dsec-serve client --server "$to" --ca "$D/ca.pem" \
		--cert "$D/${WHO:-client}.pem" --key "$D/${WHO:-client}.key" "$@"
}
one() { # PROGRAM REQUEST
	printf '%s\n' "$2" | ask "$1" | jq -c 'select(has("ok"))'
}
state() { # of the node, as the control sees it
	ask nodes </dev/null | jq -r 'select(.name == "one").state'
}
is_state() { [ "$(state)" = "$1" ]; }
linked() { # are control and node connected?
	port=$(printf '%04X' "${one##*:}")
	awk -v p="0100007F:$port" '$3 == p && $4 == "01"' /proc/net/tcp |
		grep -q .
}

# --- nodes that come and leave ------------------------------------------------

is "$(state)" "" "there is no node"
is "$(one run "{}" | jq -r .error.code)" busy "and nothing to place on"
conf '.control.nodes = [{name:"one",address:$a}]' --arg a "$one"
kill -HUP "$control"
wait_for 20 is_state live
ok $? "one that is added is there" || diag "$(cat "$T/log-control")"
linked
ok $? "and connected to"
id=$(one run '{"memory_limit_mb":64,"name":"a"}' | jq -r .sandbox)
like "$id" '^[a-z2-7]{20}$' "it takes sandboxes"
# What is not there is refused by its name, as it is here.
said() { jq -r '"\(.error.code): \(.error.message)"'; }
is "$(one run '{"backend":"microvm"}' | said)" \
	"$(echo '{"backend":"microvm"}' | dsec-run 2>"$T/null" | said)" \
	"a backend that is not there is refused as locally"
like "$(one run '{"backend":"microvm"}' | said)" '^unsupported: .*microvm' \
	"by its name"
conf '.control.nodes = []'
kill -HUP "$control"
wait_for 20 is_state ""
ok $? "one that is taken away vanishes"
is "$(ask nodes </dev/null | jq -r 'select(has("ok")).count')" 0 "of it all"
unlinked() { ! linked; }
wait_for 20 unlinked
ok $? "its connection has ended"
is "$(one exec "{\"sandbox\":\"$id\",\"command\":\"true\"}" |
	jq -r .error.code)" sandbox_unknown "what it has is nobody's here"
conf '.control.nodes = [{name:"one",address:$a}]' --arg a "$one"
kill -HUP "$control"
wait_for 20 is_state live
is "$(one exec "{\"sandbox\":\"$id\",\"command\":[\"echo\",\"hi\"]}" |
	jq -r .stdout)" hi "until it is added again"

reloaded() { # LOG COUNT TEXT
	[ "$(grep -c "$3" "$T/log-$1")" -gt "$2" ]
}
reload() { # ROLE PID TEXT: its log says it took something over
	n=$(grep -c "$3" "$T/log-$1")
	kill -HUP "$2"
	wait_for 20 reloaded "$1" "$n" "$3"
}

# --- what is wrong changes nothing --------------------------------------------

said_by() { # LOG TEXT
	grep -q "$2" "$T/log-$1"
}
cp "$D/control.pem" "$T/was.pem"
cp "$D/control.key" "$T/was.key"
cp "$D/node.pem" "$D/control.pem"
cp "$D/node.key" "$D/control.key"
kill -HUP "$control"
wait_for 20 said_by control "is not a control's certificate"
ok $? "a node's certificate is none for a control" ||
	diag "$(cat "$T/log-control")"
is "$(state)" live "which goes on with its own" || diag "$(cat "$T/log-control")"
cp "$T/was.pem" "$D/control.pem"
cp "$T/was.key" "$D/control.key"
worker() {
	# shellcheck disable=SC2013 # words of one line
	for p in $(cat "/proc/$node/task/$node/children"); do
		case $(tr '\0' ' ' <"/proc/$p/cmdline") in
		"dsec-serve node-worker ") echo "$p" ;;
		esac
	done
}
conf '.node.user = "65533"'
reload node "$node" anew
w=$(worker)
conf '.node.user = "no-such-user"'
kill -HUP "$node"
wait_for 20 said_by node "no user 'no-such-user'"
ok $? "a user that is none is told"
kill -KILL "$w"
is_other() { [ -n "$(worker)" ] && [ "$(worker)" != "$w" ]; }
wait_for 20 is_other
wait_for 20 is_state live
is "$(awk '$1 == "Uid:" { print $2 }' "/proc/$(worker)/status")" 65533 \
	"and the next worker is who was named before"
conf 'del(.node.user)'

# --- bindings of who is connected ----------------------------------------------

# The same request twice on one connection, the second when told to.
twice() { # ADDRESS REQUEST
	timeout 100 python3 "$here/serve_client.py" "$D" "$1" twice@bob "$2" \
		<"$T/go" >"$T/twice" 2>&1 &
	asker=$!
	exec 8>"$T/go"
	wait_for 30 test -s "$T/twice"
}
mkfifo "$T/go"
b=$(WHO=bob one run '{"memory_limit_mb":64,"project":"root/rl"}' |
	jq -r .sandbox)
for role in control node; do
	addr=$to pid=$control text='were taken over'
	[ $role = control ] || addr=$one pid=$node text='anew'
	reload $role "$pid" "$text" # it knows what was said last
	twice "$addr" \
		"{\"program\":\"exec\",\"sandbox\":\"$b\",\"command\":\"true\"}"
	is "$(jq -r .ok "$T/twice")" true "$role: what was granted is done" ||
		diag "$(cat "$T/twice")"
	conf '(.clients[] | select(.uri == "dsec://client/bob").operations) =
		["ps"]'
	reload $role "$pid" "$text"
	echo go >&8
	exec 8>&-
	wait "$asker"
	is "$(tail -n 1 "$T/twice" | jq -r .error.code)" permission \
		"$role: what was taken away is refused on the same connection"
	conf '(.clients[] | select(.uri == "dsec://client/bob").operations) =
		["exec"] | (.clients[] | select(.uri == "dsec://client/bob").project) =
		"root/rl"'
	reload $role "$pid" "$text"
	twice "$addr" \
		"{\"program\":\"exec\",\"sandbox\":\"$b\",\"command\":\"true\"}"
	conf '(.clients[] | select(.uri == "dsec://client/bob").project) =
		"root/other"'
	reload $role "$pid" "$text"
	echo go >&8
	exec 8>&-
	wait "$asker"
	is "$(jq -r '.ok, .error.code // empty' "$T/twice" | tr '\n' ' ')" \
		"true false sandbox_unknown " "$role: so is another project's"
	conf '(.clients[] | select(.uri == "dsec://client/bob").project) =
		"root/rl"'
	reload $role "$pid" "$text"
done

# --- a node that is not seen -----------------------------------------------------

kill -KILL "$node"
wait "$node" 2>/dev/null
wait_for 20 is_state away
ok $? "a node that is gone is away"
rec=$(one exec "{\"sandbox\":\"$id\",\"command\":\"true\"}")
is "$(field "$rec" .error.code)" node_away "its sandboxes cannot be reached"
like "$(field "$rec" .error.retry_after_ms)" '^[0-9]+$' "for now"
silent() { # CODE LOST: all there is to ask cannot be asked
	run ask ps
	json_is "$(printf '%s\n' "$out" | jq -c 'select(has("ok"))')" \
		"[false,\"$1\",[\"one\"],$2]" "a list without any node is none ($1)" \
		'[.ok, .error.code, .missing, .lost]'
	like "$err" 'node one could not be asked' "which is said"
	isnt "$status" 0 "and fails"
}
silent node_away null
wait_for 20 is_state lost
ok $? "after lost_ms it is lost, and listed still"
json_is "$(one exec "{\"sandbox\":\"$id\",\"command\":\"true\"}")" \
	'["node_lost",true,null]' "so are its sandboxes, and nobody need wait" \
	'[.error.code, .error.infra, .error.retry_after_ms]'
silent node_lost '["one"]'
json_is "$(timeout 60 python3 "$here/serve_client.py" "$D" "$to" one \
	"{\"program\":\"ps\",\"op\":\"wait\",\"sandbox\":\"$id\"}")" \
	'[true,"stopped","node-lost",true]' "who waits for one is told its end" \
	'[.ok,.state,.outcome,.infra]'
serve node
node=$served
wait_for 20 is_state live
ok $? "one that comes back is live"
is "$(one exec "{\"sandbox\":\"$id\",\"command\":[\"echo\",\"still\"]}" |
	jq -r .stdout)" still "with its sandboxes"
one pause '{"op":"stop","project":"root","grace_ms":0}' >/dev/null
done_testing
