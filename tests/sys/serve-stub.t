#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A control and nodes that say what they are told (serve_stub.py): to whom it
# goes with what, and what it makes of answers that real nodes seldom give.
# shellcheck disable=SC2154 # status, out, err come from run
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq python3 curl
tree_new

here=$(dirname "$0")
D=$T/serve
export PYTHONDONTWRITEBYTECODE=1
pids=''
# shellcheck disable=SC2317 # by the trap
finish() {
	for p in $pids; do kill "$p"; done 2>/dev/null
	wait
	tree_end "$1"
}
trap 'finish $?' EXIT

dsec-serve init "$D" --name ctl >/dev/null
dsec-serve issue "$D" --control peer --host 127.0.0.1 --out "$D/peer" \
	>/dev/null
dsec-serve issue "$D" --client bob >/dev/null
mkfifo "$T/go"

stub() { # NAME CODE: sets $address
	[ -e "$D/$1.pem" ] || dsec-serve issue "$D" --node "$1" \
		--host 127.0.0.1 >/dev/null
	: >"$D/$1.rules"
	: >"$D/$1.asked"
	python3 "$here/serve_stub.py" "$D" "$1" "$2" >"$T/at" 2>>"$T/log-$1" &
	pids="$pids $!"
	wait_for 20 test -s "$T/at"
	read -r address <"$T/at"
	: >"$T/at"
}
rules() { # NAME [RULE..]: what it says from now on, and nothing asked yet
	printf '%s\n' "$@" | sed 1d >"$D/$1.rules"
	: >"$D/$1.asked"
}
asked() { # NAME [FILTER]: requests that it had
	jq -c "$(printf 'select(.program) | %s' "${2:-.}")" <"$D/$1.asked"
}

stub one aaaa
one=$address
stub two bbbb
two=$address
stub three cccc
jq --arg one "$one" --arg two "$two" --arg three "$address" \
	--arg w "$(own_address):9102" '
	.control = {listen:["127.0.0.1:0"], metrics:$w, audit:"denied.jsonl",
	nodes:[{name:"one",address:$one},{name:"two",address:$two},
		{name:"three",address:$three}]} | .clients += [
	{uri:"dsec://client/bob",project:"root/rl",operations:["run","fork"]}]' \
	"$D/serve.json" >"$T/j"
cp "$T/j" "$D/serve.json"
watch=$(jq -r .control.metrics "$T/j")
# Its placer can be taken away.
mkdir -p "$T/top/bin" "$T/top/libexec"
cp "$BIN/dsec-serve" "$BIN/dsec-place" "$T/top/bin"
ln -s "$BIN/../libexec/dsec" "$T/top/libexec/dsec"

serve() { # sets $control, DSEC_SERVER
	: >"$T/ready"
	"$T/top/bin/dsec-serve" control "$D" --ready-fd 9 9>"$T/ready" \
		2>>"$T/log" &
	control=$!
	pids="$pids $control"
	wait_for 30 test -s "$T/ready" || diag "$(tail "$T/log")"
	read -r _ DSEC_SERVER <"$T/ready"
}
serve
export DSEC_SERVER DSEC_CA="$D/ca.pem" DSEC_CERT="$D/client.pem" \
	DSEC_KEY="$D/client.key"

client() { # SCENARIO [ARGUMENT..] of serve_client.py
	timeout 60 python3 "$here/serve_client.py" "$D" "$DSEC_SERVER" "$@"
}
one() { # PROGRAM REQUEST: its final record
	printf '%s\n' "$2" | timeout 60 dsec-serve client "$1" |
		jq -c 'select(has("ok"))'
}
live() {
	[ "$(timeout 20 dsec-serve client nodes </dev/null |
		jq -r .state | grep -c live)" = "$1" ]
}
value() { # SERIES
	curl -s --max-time 10 "http://$watch/metrics" |
		awk -v s="$1" 'index($0, s " ") == 1 { print $2 }'
}
has() { # SERIES VALUE
	[ "$(value "$1")" = "$2" ]
}
wait_for 20 live 3
ok $? "three nodes are live" || diag "$(cat "$T/log" "$T"/log-*)"

# --- snapshots -------------------------------------------------------------------

none='{"when":{"program":"fork","op":"inspect"},"say":[{"ok":false,"error":{"code":"snapshot_unknown","message":"none"}}]}'
snap() { # ID [MORE]: it has one
	echo '{"when":{"program":"fork","op":"inspect"},"say":[{"ok":true,"snapshot":"'"$1"'","name":"root/s","backend":"container","memory_limit_mb":300'"$2"'}]}'
}
made() { # CODE
	echo '{"when":{"program":"run"},"say":[{"ok":true,"sandbox":"'"$1"'aaaaaaaaaaaaaaaa"}]}'
}
for n in one:aaaa two:bbbb three:cccc; do
	rules "${n%:*}" "$none" "$(made "${n#*:}")"
done
a=aaaaaaaaaaaaaaaaaaaa b=bbbbaaaaaaaaaaaaaaaa
rules two "$(snap $b)" "$(made bbbb)"
is "$(for i in 1 2 3 4 5 6; do
	one run '{"snapshot":"s","task":"t'$i'"}' | jq -r .sandbox
done | sort | uniq -c | tr -s ' ')" " 6 $b" \
	"a create from a snapshot goes to the node that has it"
json_is "$(asked two 'select(.op == "inspect")' | head -n 1)" \
	'["s","root","dsec://client/admin","root"]' \
	"... which was asked for it, for who asks" \
	'[.snapshot, .project, .caller, .within]'
DSEC_CERT=$D/bob.pem DSEC_KEY=$D/bob.key one run \
	'{"snapshot":"s","project":"root/rl/x"}' >"$T/j"
is "$(asked two 'select(.op == "inspect" and .within == "root/rl")' |
	jq -r .project) $(jq -r .ok "$T/j")" "root/rl/x true" \
	"... in the project where it is looked for"
is "$(one run '{"snapshot":"'$b'"}' | jq -r .sandbox)" "$b" "by its id"
is "$(asked one 'select(.snapshot == "'$b'")')" "" "... of which no other is asked"
is "$(one fork '{"from":"s","count":2}' | jq -r .ok)" true "copies of one"
is "$(asked two 'select(.from)' | wc -l)$(asked one 'select(.from)')" 1 \
	"... are made there"
for op in inspect remove; do
	: >"$D/two.asked"
	one fork '{"op":"'$op'","snapshot":"'$b'"}' >"$T/null"
	one fork '{"op":"'$op'","snapshot":"s"}' >"$T/null"
	is "$(asked two 'select(.op == "'$op'") | .snapshot' | sort -u |
		tr '\n' ' ')" "\"$b\" \"s\" " "$op of one is its node's"
done
is "$(one run '{"snapshot":"s","avoid":["bbbb"]}' | jq -r .error.code)" busy \
	"a node that is to be avoided is, all the same"

rules one "$(snap $a ',"incompatible":"another kernel"')" "$(made aaaa)"
is "$(for i in 1 2 3 4 5 6; do
	one run '{"snapshot":"s","task":"u'$i'"}' | jq -r .sandbox
done | sort -u)" "$b" "one that cannot use it is left out"
rules one "$(snap $a)" '{"when":{"program":"run"},"say":[{"ok":false,"error":{"code":"memory","message":"full","retry_after_ms":1}}]}'
rules three "$none"
is "$(for i in 1 2 3 4 5 6; do
	one run '{"snapshot":"s","task":"v'$i'"}' | jq -r .sandbox
done | sort -u)" "$b" "one that refuses leaves it to another that has it"
is "$(asked three 'select(.program == "run")')" "" "... and to no other"
is "$(one fork '{"from":"s"}' | jq -r .error.code)" bad_value \
	"copies of a name that two nodes have"
rules one "$none"
rules two "$none"
is "$(one run '{"snapshot":"s"}' | jq -r .error.code)" snapshot_unknown \
	"one that nobody has"
is "$(one fork '{"from":"s"}' | jq -r .error.code)" snapshot_unknown \
	"... nor copies of it"
is "$(one fork '{"from":"ddddaaaaaaaaaaaaaaaa"}' | jq -r .error.code)" \
	snapshot_unknown "nor an id of no node's"
unknown='{"when":{"program":"ps"},"say":[{"ok":false,"error":{"code":"sandbox_unknown","message":"none"}}]}'
rules one "$none" "$unknown"
rules two "$unknown"
rules three "$none" "$unknown"
is "$(one exec '{"sandbox":"name","command":"true"}' | jq -r .error.code)" \
	sandbox_unknown "a sandbox's name that no node knows"
key() { # CODE
	echo '{"when":{"op":"key"},"say":[{"ok":false,"error":{"code":"'"$1"'","message":"no"}}]}'
}
rules three "$none" "$(key exists)" '{"when":{"op":"remove"},"say":[{"ok":true,"repeated":true}]}'
rules one "$none" "$(key not_found)"
rules two "$none" "$(key not_found)"
is "$(one fork '{"op":"remove","snapshot":"s","key":"k"}' | jq -r .repeated)" \
	true "one that was removed is, with its key, once more"
rules three "$none" "$unknown"
rules one "$none" "$unknown"
rules two '{"when":{"op":"inspect"},"say":[{"ok":false,"error":{"code":"busy","message":"later","retry_after_ms":7}}]}'
json_is "$(one run '{"snapshot":"s"}')" '["busy",7]' \
	"one whose node did not say whether it has it" \
	'[.error.code, .error.retry_after_ms]'
is "$(one exec '{"sandbox":"name","command":"true"}' | jq -r .error.code)" \
	busy "... and one that a node does not say whether it knows"
list='{"when":{"program":"fork","op":"list"},"say":[{"event":"snapshot","snapshot":"'
rules one "$list$a"'"},{"ok":true,"count":1}]}'
rules two "$list$b"'"},{"ok":true,"count":1}]}'
rules three '{"when":{"program":"fork"},"say":[{"ok":true,"count":0}]}'
echo '{"op":"list"}' | timeout 60 dsec-serve client fork >"$T/j"
is "$(jq -r '.snapshot // .count' "$T/j" | sort | tr '\n' ' ')" "2 $a $b " \
	"a list has those of all nodes"
json_is "$(tail -n 1 "$T/j")" '{"id":1,"ok":true,"count":2}' \
	"... and ends as a node's"

# --- what is refused --------------------------------------------------------------

full='{"when":{"program":"run"},"say":[{"ok":false,"error":{"code":"memory","message":"full","retry_after_ms":1}}]}'
rules one "$(made aaaa)"
rules two "$full"
rules three "$full"
is "$(one run '{"avoid":["aaaa"],"memory_limit_mb":64}' | jq -r .error.code)" \
	memory "a node that is to be avoided is, after others have refused"
is "$(asked one)" "" "... and is not asked"
is "$(one run '{"avoid":["aaaa",1]}' | jq -r .error.code)" bad_value \
	"nodes to avoid that are none"
is "$(jq -nc '{avoid:[range(17)|tostring]}' | timeout 60 dsec-serve client run |
	jq -r .error.code)" bad_value "... and too many"
is "$(one run "$(jq -nc '{memory_limit_mb:16,avoid:([range(15)|tostring] + ["aaaa"])}')" |
	jq -r .error.code)" memory "... sixteen, and those that refused"

# Field report 100.
rules one "$(key not_found)" "$(made aaaa)"
rules two "$(key not_found)" "$(made bbbb)"
rules three "$(key not_found)" "$(made cccc)"
# Less than what nodes have refused.
rec=$(one run '{"key":"k","again":true,"cpu_cores_limit":0.5}')
is "$(field "$rec" .ok)" true \
	"one that is asked for again is made where nobody knows it" || diag "$rec"
rules two "$(key no_space)" "$(made bbbb)"
is "$(one run '{"key":"k","again":true}' | jq -r .error.code)" no_space \
	"one that a node may have made, which cannot say so, is not made again"
rules one '{"when":{"program":"ps"},"say":[{"event":"record","record":{"ok":true,"sandbox":"'$a'"}},{"ok":true,"count":1,"failed":0}]}'
rules two '{"when":{"program":"ps"},"say":[{"ok":false,"error":{"code":"busy","message":"lists","retry_after_ms":5}}]}'
rules three '{"when":{"program":"ps"},"say":[{"ok":true,"count":0,"failed":0}]}'
json_is "$(one ps '{}' | tail -n 1)" '[false,"busy",1,1]' \
	"a list that lacks a node's is not called whole" \
	'[.ok, .error.code, .count, .failed]'
is "$(one drain '{"node":5}' | jq -r .error.code)" bad_value \
	"a node that is no name"

# --- who cancels -------------------------------------------------------------------

started='{"event":"started","exec":"e1","sandbox":"'$a'","streams":["stdout"]}'
bytes=$(head -c 131072 /dev/zero | tr '\0' x)
data='{"event":"data","stream":"stdout","data":"'$bytes'"}'
end='{"event":"eof","stream":"stdout"},{"ok":true,"exec":"e1","outcome":"exited","exit_code":3}'
rules one '{"when":{"program":"exec"},"say":['"$started,$data,$data,$data,$end"']}'
json_is "$(client untaken $a)" '["exited",3]' \
	"a command that has ended has its end, though its output is not taken" \
	'[.outcome, .exit_code]'
rules one '{"when":{"program":"exec"},"after":"'"$T/go"'","say":['"$started,$end"']}'
json_is "$(client cancelled $a)" true "one that has not begun yet is cancelled" \
	.cancelled
wait_for 20 has dsec_connections 0
ok $? "... and who asked for it has gone"
: >"$T/go"
wait_for 20 has dsec_requests_under_way 0
ok $? "what comes of it harms nobody" || diag "$(tail "$T/log")"

# The node has refused it when it is told, and another would take it.
held="${full%\}},\"after\":\"$T/go\"}"
for n in one two three; do
	rules $n "$held"
done
mkfifo "$T/word"
client given_up <"$T/word" >"$T/given-up" &
h=$!
exec 8>"$T/word"
anywhere() { # FILTER
	[ -n "$(jq -c "$1" "$D/one.asked" "$D/two.asked" "$D/three.asked")" ]
}
wait_for 20 anywhere 'select(.program == "run")'
echo >&8
wait_for 20 anywhere 'select(.cancel)'
ok $? "a node is told that a create is cancelled"
for n in one:aaaa two:bbbb three:cccc; do
	rules "${n%:*}" "$(made "${n#*:}")"
done
: >"$T/go"
wait "$h"
exec 8>&-
json_is "$(cat "$T/given-up")" '"cancelled"' "which has refused it: it is" \
	.error.code
anywhere 'select(.program == "run")'
is $? 1 "... and goes to no other"

# --- a control that starts ---------------------------------------------------------------

kill "$control"
wait "$control"
mkfifo "$T/report"
rules one "$(snap $a)" "$(key exists)" "$(made aaaa)" \
	'{"when":{"program":"ps"},"say":[{"ok":true,"sandbox":"'$a'"}]}' \
	'{"when":{"program":"report"},"after":"'"$T/report"'","say":[{"ok":true}]}'
for n in two:bbbb three:cccc; do
	rules "${n%:*}" "$none" "$(key not_found)" "$unknown" "$(made "${n#*:}")"
done
serve
heard() {
	rec=$(one run '{"key":"k","again":true}')
	[ -n "$(asked one 'select(.op == "key")')" ]
}
wait_for 20 heard
json_is "$rec" "\"$a\"" \
	"who knows the key is asked, though its code is not known yet" .sandbox
is "$(asked two 'select(.op != "key")')$(asked three 'select(.op != "key")')" \
	"" "... and no other"
json_is "$(one run '{"snapshot":"s"}')" '["node_away",1000]' \
	"from a snapshot of such a one none is made yet" \
	'[.error.code, .error.retry_after_ms]'
json_is "$(one exec '{"sandbox":"name","command":"true"}')" true \
	"what is done in a sandbox of such a one is" .ok
rules one
: >"$T/report"
wait_for 20 live 3
ok $? "its report makes it live"

# --- the placer ----------------------------------------------------------------------

real=$(readlink -f "$T/top/bin")/dsec-place
kill_placer() { kill "$(pgrep -P "$control" -f "$T/top/bin/dsec-place")"; }
mv "$real" "$real.kept"
for n in one:aaaa two:bbbb three:cccc; do
	rules "${n%:*}" "$(made "${n#*:}")"
done
kill_placer
for i in 1 2 3 4 5 6; do
	echo '{"task":"w'$i'","avoid":["bbbb","cccc"]}'
done | timeout 60 dsec-serve client run >"$T/made" &
runs=$!
wait_for 20 has dsec_requests_under_way 6
ok $? "six wait while there is no placer"
mv "$real.kept" "$real"
wait "$runs"
is "$(jq -r .ok "$T/made" | sort | uniq -c | tr -s ' ')" " 6 true" \
	"when there is one again they are made"
is "$(asked one .task | tr '\n' ' ')" '"w1" "w2" "w3" "w4" "w5" "w6" ' \
	"... in the order in which they came"

# One that ends with the first create that it is asked.
mv "$real" "$real.kept"
cat >"$real" <<-END
	#!/bin/sh
	if mkdir "$T/once"; then
		while read -r line; do
			case \$line in *'"op"'* | *'"ok"'*) ;; *) exit 1 ;; esac
		done
	fi
	exec "$real.kept"
END
chmod +x "$real"
kill_placer
is "$(one run '{}' | jq -r .ok)" true \
	"a create that a placer took along is placed by the next"
ok "$([ -d "$T/once" ]; echo $?)" "... which was another one"

# --- what is turned away, and who says which nodes there are ------------------------------

rules one '{"when":{"program":"exec"},"say":[{"ok":false,"error":{"code":"permission","message":"inside"}}]}'
one exec '{"sandbox":"'$a'","command":"x"}' >"$T/null"
is "$(client one '{"program":"hello","v":1,"token":"0123456789abcdef0"}' |
	jq -r .error.code)" permission "a token that is nobody's"
wait_for 20 test -s "$D/denied.jsonl"
is "$(jq -r .program "$D/denied.jsonl")" hello \
	"in its log is what it turned away itself"

# It is moved away, and the new one's name does not last.
if command -v strace >"$T/null"; then
	strace -f -e inject=fsync:error=EIO:when=1 -p "$control" \
		-o "$T/strace" 2>"$T/attached" &
	pids="$pids $!"
	wait_for 20 grep -q attached "$T/attached"
	mv "$D/denied.jsonl" "$D/denied.jsonl.1"
	kill -HUP "$control"
	wait_for 20 grep -q "sync '$D/'" "$T/log"
	ok $? "a log that cannot go on in a new file is told of"
	ok "$([ ! -e "$D/denied.jsonl" ]; echo $?)" "... and none is left"
	kill -HUP "$control"
	wait_for 20 test -s "$D/denied.jsonl"
	ok $? "... so that it goes on in one when it is told again"
	run dsec-serve audit verify "$D/denied.jsonl.1" "$D/denied.jsonl"
	is "$status" 0 "... as one log" || diag "$out"
else
	skip "a log that cannot go on in a new file" "no strace"
fi

stub peer dddd
rules peer '{"when":{"program":"nodes"},"say":[{"event":"node","name":"four","address":"127.0.0.9:1","code":""},{"ok":true,"count":1}]}'
jq --arg a "$address" '.control.peers = [{name:"peer",address:$a}]' \
	"$D/serve.json" >"$T/j"
cp "$T/j" "$D/serve.json"
knows() {
	timeout 20 dsec-serve client nodes </dev/null |
		jq -r '.name // empty' | grep -qx "$1"
}
wait_for 20 knows four
ok $? "a node that a peer says"
busy='{"ok":false,"error":{"code":"busy","message":"full","retry_after_ms":1}}'
rules peer '{"when":{"program":"nodes"},"end":true,"say":['"$busy"']}'
often() { [ "$(asked peer | wc -l)" -ge 10 ]; }
wait_for 40 often
ok $? "... which is busy the next times"
knows four
ok $? "... stays"
done_testing
