#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Names of nodes and peers in serve.json: a resolver that does not answer stops
# nobody, and a name is looked up anew when the connection is made anew.
# shellcheck disable=SC2154 # status, out, err come from run
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq python3 unshare ip

# A resolver and a hosts file of its own.
if [ -z "$OWN_NET" ]; then
	OWN_NET=1 exec unshare -mn "$0"
fi
tree_new

D=$T/serve
c1='' c2='' dns=''
finish() {
	for p in "$c1" "$c2" "$dns"; do kill "$p"; done 2>/dev/null
	wait
	tree_end "$1"
}
trap 'finish $?' EXIT

ip link set lo up
echo 'hosts: files dns' >"$T/nsswitch.conf"
echo 'nameserver 127.0.0.1' >"$T/resolv.conf"
echo '127.0.0.1 moves.example' >"$T/hosts"
for f in nsswitch.conf resolv.conf hosts; do
	[ -e "/etc/$f" ] || plan_skip_all "there is no /etc/$f here"
	mount --bind "$T/$f" "/etc/$f"
done
python3 -c 'import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 53))
print("silent", flush=True)
time.sleep(300)' >"$T/dns" &
dns=$!
wait_for 20 test -s "$T/dns"

serve() { # DIR LOG
	: >"$T/ready"
	dsec-serve control "$1" --ready-fd 9 9>"$T/ready" 2>>"$T/log-$2" &
	served=$!
	wait_for 30 test -s "$T/ready" || diag "$(tail "$T/log-$2")"
	read -r _ address <"$T/ready"
}

dsec-serve init "$D" --name one >/dev/null
mkdir "$T/other"
dsec-serve issue "$D" --control other --out "$T/other/control" >/dev/null
cp "$D/ca.pem" "$D/crl.pem" "$T/other"
jq '.control = {listen:["127.0.0.1:7440"],
	nodes:[{name:"slow",address:"nowhere.example:7444"}],
	peers:[{name:"other",address:"moves.example:7441"}]}' \
	"$D/serve.json" >"$T/j"
cp "$T/j" "$D/serve.json"
other() { # ADDRESS NODE
	jq --arg a "$1:7441" --arg n "$2" '.name = "other" | del(.node) |
		.control = {listen:[$a], nodes:([range(300)] |
			map({name:"many\(.)",address:"127.0.0.9:1"}) +
			[{name:$n,address:"127.0.0.9:1"}])}' \
		"$T/j" >"$T/other/serve.json"
}

serve "$D" c1
c1=$served
export DSEC_SERVER="$address" DSEC_CA="$D/ca.pem" DSEC_CERT="$D/client.pem" \
	DSEC_KEY="$D/client.key"
asked() { pgrep -P "$c1" -x dsec-lookup >/dev/null; }
wait_for 20 asked
ok $? "a process of its own asks for a name" || diag "$(cat "$T/log-c1")"
for i in 1 2 3; do
	run timeout 3 dsec-serve client nodes
	is "$status $(printf '%s\n' "$out" | jq -r '.state // empty')" "0 away" \
		"it answers meanwhile ($i)"
done
wait_for 30 grep -q "'nowhere.example:7444' was not resolved" "$T/log-c1"
ok $? "what is not answered is given up, and said" || diag "$(cat "$T/log-c1")"

knows() {
	timeout 20 dsec-serve client nodes </dev/null |
		jq -r '.name // empty' | grep -qx "$1"
}
other 127.0.0.1 here
serve "$T/other" c2
c2=$served
wait_for 30 knows here
ok $? "a name is found" || diag "$(cat "$T/log-c1" "$T/log-c2")"
kill "$c2"
wait "$c2"
echo '127.0.0.2 moves.example' >"$T/hosts"
other 127.0.0.2 there
serve "$T/other" c2
c2=$served
wait_for 30 knows there
ok $? "and found again where it has moved" || diag "$(cat "$T/log-c1")"
gone() { ! knows here; }
wait_for 30 gone
ok $? "a node that its peer does not name any more has vanished"
unlike "$(cat "$T/log-c1")" 'node (many[0-9]*|there) is not in the conf' \
	"those that it names stay"
kill "$c1"
wait "$c1"
is $? 0 "it ends in order"
c1=''
done_testing
