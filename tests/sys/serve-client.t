#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # status, out, err come from run
#
# dsec --server as people and scripts use it: what the local programs do with
# records, words and signals.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq python3
tree_new

D=$T/serve
node='' fake=''
finish() {
	for p in $node $fake; do
		kill "$p" 2>"$T/null"
	done
	wait
	tree_end "$1"
}
trap 'finish $?' EXIT

dsec-serve init "$D" --name one >"$T/null"
jq '.node.listen = ["127.0.0.1:0"]' "$D/serve.json" >"$T/j" &&
	cp "$T/j" "$D/serve.json"
: >"$T/ready"
dsec-serve node "$D" --ready-fd 9 9>"$T/ready" 2>"$T/log" &
node=$!
wait_for 30 test -s "$T/ready" || diag "$(cat "$T/log")"
read -r _ H <"$T/ready"
export DSEC_CLIENT="$D/client.json"

remote() {
	timeout 60 dsec --server "${S:-$H}" "$@"
}

# --- records of other programs -------------------------------------------------

remote run --name p1 --memory 64M -d >"$T/p1"
p1=$(jq -r .sandbox "$T/p1")
like "$p1" '^[a-z2-7]{20}$' "a sandbox is made"
is "$(remote pause <"$T/p1" | jq -r '"\(.ok) \(.sandbox) \(.in.name)"')" \
	"true $p1 p1" "its record is a request of the next program"
run sh -c "jq -c '. + {id: 7, ok: false, error: {code: \"count\"}}' '$T/p1' |
	timeout 60 dsec --server $H exec"
json_is "$out" '[7,false,"count"]' "one that failed is passed on" \
	'[.id, .ok, .error.code]'
is "$status" 75 "and counts as failed"
is "$(printf '%s\n' '{"id":1,"event":"started","exec":"e1"}' \
	"{\"sandbox\":\"$p1\",\"command\":[\"echo\",\"hi\"]}" |
	remote exec | jq -r '.stdout // empty')" hi "one that is not the last is none"

json_is "$(printf '\n{"id":null,"sandbox":"%s","command":"true"}\nno line\n' "$p1" |
	remote exec | jq -s 'map(select(has("ok"))) | sort_by(.id)')" \
	'[[2,true,null],[3,false,"bad_record"]]' "who says no id has his line's" \
	'map([.id, .ok, .error.code])'
odd=$(printf '%0200d' 0 | sed 's/0/ä/g')
odd="[7] {\"a\":1} \"\" \"$odd\" \"ok\""
is "$(for id in $odd; do
	echo "{\"id\":$id,\"sandbox\":\"$p1\",\"command\":\"true\"}"
done | remote exec | jq -c 'select(has("ok")) | [.id, .ok]' | sort)" \
	"$(for id in $odd; do echo "[$id,true]" | jq -c .; done | sort)" \
	"what is no id there is one here"
remote run --name p2 --memory 64M --task t -d >"$T/p2"
is "$(cat "$T/p1" "$T/p2" "$T/p1" | remote exec --cmd 'sleep 0.1; echo hi' |
	jq -r 'select(has("ok")) | "\(.id) \(.stdout)"' | sort -u | tr -d '\n')" \
	"1 hi" "flags are for every record, and ids are as they were"

is "$(printf '{"id":%s}\n' 8 9 | remote run --memory 64M --task batch |
	jq -r .id | sort | tr -d '\n')" 89 "requests have what flags say"
is "$(remote pause --stop --grace 0 --task batch | wc -l)" 2 "each of them"

# --- words ------------------------------------------------------------------------

is "$(remote pause --level freeze p1 p2 | jq -r '"\(.id) \(.state)"' | sort)" \
	"$(printf '1 paused\n2 paused')" "several sandboxes, a record for each"
is "$(remote ps p2 p1 | jq -r .name | sort)" "$(printf 'p1\np2')" \
	"are looked at, too"
is "$(remote ps | jq -r .sandbox | sort)" "$(dsec-ps | jq -r .sandbox | sort)" \
	"a list is what it is here"
ageless() { awk '{ $4 = ""; print }' | sort; }
is "$(remote ps --table | ageless)" "$(dsec-ps --table | ageless)" \
	"for people, too"
is "$(remote ps --task nobody --table)" "$(dsec-ps --task nobody --table)" \
	"with its heading"
is "$(remote pause --resume --task t | jq -r .sandbox)" "$(jq -r .sandbox "$T/p2")" \
	"so is a task"
run remote ps --task nobody
is "$status $out" "0 " "of none there is nothing"
is "$(remote fork p1 --fs-only --count 2 --task copies | jq -r .ok | sort | uniq -c |
	tr -s ' ')" " 2 true" "copies"
is "$(remote fork --fs-only --task copies <"$T/p1" | jq 'select(has("ok")).ok')" \
	true "also of what a record names"
is "$(remote pause --stop --grace 0 --task copies | wc -l)" 3 "which are stopped"
draining() { # VERB: of this node itself, and what is so then
	echo '{}' | remote "$1" >"$T/null" && remote report | jq .draining
}
is "$(draining drain) $(draining undrain)" "true false" \
	"a node is drained, and not any more"
run remote drain
is "$status" 64 "of nothing there is nothing to ask"
like "$err" 'drain: nothing is asked for' "which is said"
run remote net p1 --show
is "$status" 64 "what has no words says so"
like "$err" 'net: its requests are lines' "by its name"
run remote run x
like "$err" 'a command comes after --' "a word that run has no use for"
run remote exec p1 p2 -- true
like "$err" 'one SANDBOX' "a command is for one"
for p in run exec pause ps fork nodes drain net; do
	run remote $p -h
	like "$status $out" "^0 usage: dsec --server HOST:PORT $p" "help of $p"
done
like "$(remote run -h)" 'no --rm' "says what is otherwise"

json_is "$(remote exec p1 --cmd 'echo hi')" '["hi\n"]' "a command's record alone" \
	'[.stdout]'

# --- a command with our descriptors ------------------------------------------------

is "$(remote exec p1 --attach "$(remote exec -d p1 -- sh -c 'echo early; sleep 0.1; exit 4' |
	jq -r 'select(.ok).exec')"; echo $?)" "$(printf 'early\n4')" \
	"one that runs is taken up, from its first byte"
mkfifo "$T/said"
# The shell has its children ignore ^C.
python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])' \
	dsec --server "$H" exec p1 -- sh -c 'trap "echo caught; exit 7" INT
	echo began; while :; do sleep 0.1; done' >"$T/said" 2>"$T/err" &
asker=$!
exec 7<"$T/said"
read -r line <&7
kill -INT "$asker"
wait "$asker"
is "$? $line $(cat <&7)" "7 began caught" "^C is the command's"
exec 7<&-
dsec --server "$H" exec p1 -- sh -c 'trap "echo got" USR1; trap "exit 7" TERM
	echo began; while :; do sleep 0.1; done' >"$T/said" 2>"$T/err" &
asker=$!
exec 7<"$T/said"
read -r line <&7
for n in 1 2 3 4; do
	kill -USR1 "$asker"
	read -r line <&7 || break
	got=$n
done
kill -TERM "$asker"
wait "$asker"
is "$? $got" "7 4" "signals that stop nothing are passed on, however many"
exec 7<&-
run sh -c "timeout 60 dsec --server $H exec -i p1 -- sh -c 'cat; echo end' <'$T'"
is "$status $out" "0 end" "what cannot be read has ended"
like "$err" "standard input: Is a directory" "which is said"

# --- refusals ---------------------------------------------------------------------------

DSEC_TOKEN=0123456789abcdef run remote ps
is "$status" 77 "a token that has no binding is refused"
like "$err" "$H: no such token" "at once, and by whom"
is "$(jq -c '{id: "hello", sandbox, command: "true"}' "$T/p1" | remote exec |
	jq -r 'select(has("ok")).id')" hello "its id is a request's as well"
remote exec p1 -- sh -c 'echo began; sleep 1000' >"$T/said" 2>"$T/err" &
asker=$!
exec 7<"$T/said"
read -r line <&7
jq '.clients[0].operations = ["ps"]' "$T/j" >"$D/serve.json"
kill -HUP "$node"
wait "$asker"
is $? 125 "who may not any more is told so"
like "$(cat "$T/err")" "$H: dsec://client/admin may not any more" "in these words"
exec 7<&-
cp "$T/j" "$D/serve.json"
kill -HUP "$node"
allowed() { remote ps >"$T/null" 2>&1; }
wait_for 30 allowed
remote exec p1 -- sh -c 'echo began; sleep 1000' >"$T/said" 2>"$T/err" &
asker=$!
exec 7<"$T/said"
read -r line <&7

# --- whom it asks, and as whom --------------------------------------------------------

is "$(remote ps p1 | jq -r .name) $(S=127.0.0.1:1,$H remote ps p1 | jq -r .name)" \
	"p1 p1" "of several addresses the next, where one is not there"
python3 -c 'import socket
with socket.create_server(("127.0.0.1", 0)) as s:
	print("127.0.0.1:%d" % s.getsockname()[1], flush=True)
	while True:
		with s.accept()[0] as c:
			c.recv(65536)
			c.sendall(b"\x15\3\3\0\2\2\x2d")  # certificate expired
			c.recv(65536)' >"$T/expired" &
fake=$!
wait_for 30 test -s "$T/expired"
X=$(cat "$T/expired")
is "$(S=$X,$H remote ps p1 | jq -r .name)" p1 "or where one has a bad certificate"
S=$X,127.0.0.1:1 run remote ps
is "$status" 77 "which is told where no other is there"
like "$err" "$X: .*refused" "and of whom"
kill "$fake"
fake=''
python3 -c 'import socket, ssl, sys
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(sys.argv[1] + "/node.pem", sys.argv[1] + "/node.key")
with socket.create_server(("127.0.0.1", 0)) as s:
	print("127.0.0.1:%d" % s.getsockname()[1], flush=True)
	with tls.wrap_socket(s.accept()[0], server_side=True) as c:
		c.recv(65536)
		c.unwrap()  # says no more, and hears on
		' "$D" >"$T/silent" 2>"$T/null" &
fake=$!
wait_for 30 test -s "$T/silent"
X=$(cat "$T/silent")
S=$X run remote ps
is "$status" 75 "a server that ends without an answer is away"
like "$err" "the connection to $X ended" "which is told at once"
wait "$fake"
fake=''
jq '. + {adresses: []}' "$D/client.json" >"$D/odd.json"
DSEC_CLIENT=$D/odd.json run remote ps
is "$status" 78 "a configuration is strict"
like "$err" "odd.json': unknown field 'adresses'" "and says where"
for key in certificate key ca; do
	jq "del(.$key)" "$D/client.json" >"$D/less.json"
	DSEC_CLIENT=$D/less.json run remote ps
	like "$status $err" "^78 .*no $key: .*DSEC_CLIENT" "without $key"
done
run dsec-serve
is "$status" 64 "dsec-serve alone"
is "$(printf '%s\n' "$err" | grep -c '^       dsec-serve ')" 8 "has its usage, in lines"

# --- the end of the other side ---------------------------------------------------------

kill -KILL "$node"
wait "$node" 2>"$T/null"
node=''
wait "$asker"
is $? 125 "a lost connection is no success"
like "$(cat "$T/err")" "left running: dsec --server $H exec p1 --attach e[0-9]+ takes" \
	"what goes on is told"
exec 7<&-
done_testing
