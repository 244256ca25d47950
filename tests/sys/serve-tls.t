#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Who is let in by dsec-serve, and what becomes of who is not, says too much, or
# nothing (field report 101): certificates that are wrong, expired, revoked, foreign; long lines,
# slow ones; half-open connections; two thousand that are idle.
. "$(dirname "$0")/../tap.sh"
need_tools python3 openssl jq socat
tree_new

D=$T/serve
F=$T/foreign
here=$(dirname "$0")

client() { # WHAT [ARG...]
	timeout 280 python3 "$here/serve_tls.py" "$D" "$port" "$@"
}

# --- certificates ------------------------------------------------------------

run dsec-serve init "$D" --user no-such-user
like "$err" "no user 'no-such-user'" "a user who is not there is told of"
ok "$([ ! -e "$D" ]; echo $?)" "before anything is made"
run dsec-serve init "$D" --name c1
is "$status" 0 "an authority is made" || diag "$err"
json_is "$(printf '%s\n' "$out" | jq -s '[.[].identity]')" \
	'["dsec://node/c1","dsec://control/c1","dsec://client/admin"]' \
	"and a certificate of each kind"
is "$(stat -c %a "$D/ca.key" "$D/client.key" | sort -u)" 600 "keys are secret"
run dsec-serve init "$D"
isnt "$status" 0 "it is made once"
dsec-serve init "$F" --name f1 >/dev/null
dsec-serve issue "$D" --client bob >/dev/null
dsec-serve issue "$D" --client late --days 0 >/dev/null
run dsec-serve issue "$D" --client ../x
is "$status" 65 "a name is a name"
issued=$(ls "$D/issued")
run dsec-serve issue "$D" --client bob
like "$err" "'bob.pem' is there already" "no certificate takes another's place"
is "$(ls "$D/issued")" "$issued" "and none is issued that nobody has"
echo mine >"$T/eve.key"
run dsec-serve issue "$D" --client eve --out "$T/eve"
like "$err" "'$T/eve.key' is there already" "no key another's place"
is "$(cat "$T/eve.key") $(ls "$D/issued")" "mine $issued" "and nothing is done"
run dsec-serve issue "$D" --client eve --out no-such-dir/eve
is "$status $(ls "$D/issued")" "1 $issued" "nor is one for nowhere"
is "$(openssl verify -CAfile "$D/ca.pem" "$D/bob.pem")" "$D/bob.pem: OK" \
	"others can check them"

file=$(dsec-serve issue "$D" --client gone | jq -r .file)
is "$(dsec-serve revoke "$D" "$file" | jq -r '"\(.did) \(.identity)"')" \
	"revoked dsec://client/gone" "one is revoked by the name it was told by"
mkdir "$T/here" "$D/below"
dsec-serve issue "$D" --client twice >/dev/null
dsec-serve issue "$D" --client other --out "$T/here/twice" >/dev/null
dsec-serve issue "$D" --client below --out "$D/below/one" >/dev/null
revoke() { (cd "$T/here" && dsec-serve revoke "$D" "$1"); }
run revoke twice.pem
is "$status $out" "64 " "not by one that two files have"
like "$err" "give its whole path" "which is said"
is "$(revoke "$D/twice.pem" | jq -r .identity)" dsec://client/twice \
	"a whole path is one file"
is "$(revoke below/one.pem | jq -r .identity)" dsec://client/below \
	"a path that is not here is the directory's"

# --- a daemon -----------------------------------------------------------------

token=0123456789abcdef0123456789abcdef
sum=$(printf %s "$token" | sha256sum | cut -d' ' -f1)
conf() { # LIMITS
	jq --argjson limits "$1" --arg sum "$sum" \
		'.control.listen = ["127.0.0.1:0"] | .control.nodes = [] |
		.clients = [.clients[0], {token_sha256:$sum, project:"root/ci",
			operations:["ps"]}] | .limits = $limits' \
		"$D/serve.json" >"$D/.new" && mv "$D/.new" "$D/serve.json"
}
pid='' port=''
start() { # LIMITS
	conf "$1"
	mkfifo "$T/ready"
	dsec-serve control "$D" --ready-fd 3 3>"$T/ready" 2>>"$T/log" &
	pid=$!
	read -r ready address <"$T/ready"
	rm "$T/ready"
	port=${address##*:}
	is "$ready" ready "it serves on ${address%:*}"
}
stop() {
	kill "$pid"
	wait "$pid"
	is $? 0 "it ends in order"
}
# shellcheck disable=SC2154 # s is set there
trap 's=$?; kill "$pid" 2>/dev/null; tree_end "$s"' EXIT

start '{"line_ms":500,"handshake_ms":1000,"ping_ms":300,"idle_ms":900}'

is "$(client once client)" hello "a client is let in"
like "$(client once none)" '^refused' "nobody without a certificate"
like "$(client once late)" '^refused' "nobody with one that has expired"
like "$(client once node)" '^refused' "no node"
like "$(client once client "$F")" '^refused' "nobody of another authority"
is "$(client old)" refused "nobody with an older TLS"
is "$(printf '{"program":"ps"}\n' | DSEC_CERT=$D/bob.pem DSEC_KEY=$D/bob.key \
	DSEC_CA=$D/ca.pem dsec --server "127.0.0.1:$port" ps 2>&1 |
	jq -r .error.code)" permission "who has no binding may nothing"
DSEC_TOKEN=$token DSEC_CERT=$D/bob.pem DSEC_KEY=$D/bob.key DSEC_CA=$D/ca.pem \
	run dsec --server "127.0.0.1:$port" ps
is "$status $out$err" "0 " "but by a token that has one"
DSEC_TOKEN=$token DSEC_CERT=$D/bob.pem DSEC_KEY=$D/bob.key DSEC_CA=$D/ca.pem \
	run dsec --server "127.0.0.1:$port" run -- true
is "$status" 77 "no more than that"
DSEC_TOKEN=${token}x DSEC_CERT=$D/bob.pem DSEC_KEY=$D/bob.key \
	DSEC_CA=$D/ca.pem run dsec --server "127.0.0.1:$port" ps
isnt "$status" 0 "a token of nobody's is no use"
run dsec-serve client --server "127.0.0.1:$port" --cert "$D/client.pem" \
	--key "$D/client.key" --ca "$D/ca.pem" --peer dsec://control/c2 ps
isnt "$status" 0 "a client knows whom it wants"
like "$err" 'dsec://control/c1' "and says who was there"

is "$(printf '{"id":1,"program":"ping"}\n' |
	socat -t 5 - "OPENSSL:localhost:$port,cafile=$D/ca.pem,cert=$D/client.pem,key=$D/client.key" |
	tail -n 1)" '{"id":1,"ok":true}' "socat is a client"

# --- lines --------------------------------------------------------------------

is "$(client big | grep -v ping | tr '\n' ' ')" "error too_large " \
	"a line that is too long ends it"
is "$(printf 'GET / HTTP/1.1\r\n\r\n' | client say | head -n 1)" \
	"error bad_record" "so does what is no record"
is "$(printf '{"id":1,"event":"data","stream":"stdin","bytes":0}\n' |
	client say | head -n 1)" "error bad_value" "and bytes without a number"
out=$(printf '{"program":"pi' | client say)
is "$(printf '%s\n' "$out" | grep -v ping | head -n 1)" "error timeout" \
	"a line that does not end is cut off"
ms=$(printf '%s\n' "$out" | sed -n 's/^after \(.*\) ms/\1/p')
ok $((ms < 400 || ms > 4000)) "in time ($ms ms)"
ms=$(client quiet | sed 's/[^0-9]//g')
ok $((ms < 800 || ms > 5000)) "a handshake that does not come, too ($ms ms)"
like "$(client quiet 'no TLS at all, this')" 'cut after [0-9]{1,3} ms' \
	"and one that is none, at once"
out=$(printf '{"id":1,"program":"ping"}\n' | client say)
is "$(printf '%s\n' "$out" | sed 's/[0-9]* ms//' | tr '\n' ';')" \
	'{"id": 1, "ok": true};ping;after ;' \
	"who is silent is asked, then cut"
stop

# --- what changes ---------------------------------------------------------------

start '{}'
mkfifo "$T/go"
client revoked bob <"$T/go" >"$T/revoked" 2>&1 &
other=$!
exec 4>"$T/go"
wait_for 60 test -s "$T/revoked"
is "$(cat "$T/revoked")" resumed "a session is resumed"
run dsec-serve revoke "$D" dsec://client/bob
is "$status" 0 "a certificate is revoked by what it is for" || diag "$err"
echo go >&4
wait "$other"
is "$(tail -n +2 "$T/revoked" | tr '\n' ' ')" 'cut in time refused ' \
	"its connection is cut, and not resumed"
like "$(client once bob)" '^refused' "nor is another let in"
DSEC_CERT=$D/bob.pem DSEC_KEY=$D/bob.key DSEC_CA=$D/ca.pem \
	run dsec --server "127.0.0.1:$port" ps
is "$status" 77 "a client is told so"
like "$err" "^dsec-serve: 127.0.0.1:$port: the peer refused this certificate: revoked" \
	"and why"
DSEC_CERT=$F/client.pem DSEC_KEY=$F/client.key DSEC_CA=$D/ca.pem \
	run dsec --server "127.0.0.1:$port" ps
is "$status" 77 "so is one of another authority"
like "$err" 'certificate: of an authority that it does not know' "and why"
told() { grep -q 'handshake was refused: .*dsec://client/bob is revoked' "$T/log"; }
wait_for 10 told
ok $? "the operator, too" || diag "$(cat "$T/log")"
is "$(client once client)" hello "others are"
exec 4>&-

client serial <"$T/go" >"$T/serial" 2>&1 &
other=$!
exec 4>"$T/go"
wait_for 60 test -s "$T/serial"
run dsec-serve renew "$D"
is "$(printf '%s\n' "$out" | jq -r 'select(.file == "control.pem").did')" \
	kept "a certificate that is good for long is kept"
run dsec-serve renew "$D" --all
is "$(printf '%s\n' "$out" | jq -r 'select(.file == "control.pem").did')" \
	renewed "or renewed"
is "$(printf '%s\n' "$out" | jq -r 'select(.file == "bob.pem").did')" \
	revoked "but for one that is revoked"
echo go >&4
wait "$other"
is "$(tail -n +2 "$T/serial" | tr '\n' ';')" \
	'another certificate;old connection True;' \
	"it is taken over, and connections go on"
exec 4>&-

echo nonsense >"$D/.new" && mv "$D/.new" "$D/crl.pem"
kill -HUP "$pid"
wait_for 20 grep -q 'not taken over' "$T/log"
ok $? "a list that is none is not taken over"
like "$(client once bob)" '^refused' "and the one before holds"
stop

# --- many, and greedy -------------------------------------------------------------

rm "$D/crl.pem"
run dsec-serve revoke "$D" dsec://client/bob "$D/no-such.pem"
isnt "$status" 0 "of two, one cannot be revoked"
like "$out" '"did":"revoked"' "the other is said to be"
openssl crl -in "$D/crl.pem" -noout -text >"$T/crl"
like "$(cat "$T/crl")" 'Serial Number' "and is on the list"
start '{"stall_ms":2000}'
out=$(client idle "$pid" 2000)
diag "$(printf '%s\n' "$out" | head -n 1)"
is "$(printf '%s\n' "$out" | tail -n +2 | tr '\n' ' ')" 'small flat serves ' \
	"two thousand idle connections"
is "$(client greedy | tr '\n' ' ')" 'held back serves ' \
	"who reads nothing is held back"
stop
done_testing
