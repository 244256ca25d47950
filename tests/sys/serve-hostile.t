#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2013,SC2154 # words; status, out, err come from run
#
# Who is let in by a node and its control, confined to a project, and means no
# good: whatever is asked of both has the same, defined answer.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq python3 openssl
tree_new

here=$(dirname "$0")
dir=$T/serve
node='' control='' address='' caddress=''
canary=canary-$$-not-to-be-found-inside
token=0123456789abcdef0123456789abcdef
export PYTHONDONTWRITEBYTECODE=1

start() { # ROLE [COMMAND...] in front of it
	role=$1
	shift
	: >"$T/ready"
	"$@" "$BIN/dsec-serve" "$role" "$dir" --ready-fd 9 9>"$T/ready" 2>>"$T/log.$role" &
	started=$!
	wait_for 20 test -s "$T/ready" || diag "$(cat "$T/log.$role")"
	case $role in
	node) node=$started address=$(cut -d" " -f2 "$T/ready") ;;
	control) control=$started caddress=$(cut -d" " -f2 "$T/ready") ;;
	esac
}

conf() { # FILTER of serve.json
	jq "$@" <"$dir/serve.json" >"$T/json" && cat "$T/json" >"$dir/serve.json"
}

hostile() { # ADDRESS SCENARIO [ARGUMENT...]
	to=$1
	shift
	timeout 280 python3 "$here/serve_hostile.py" "$dir" "$to" "$@"
}

one() { # REQUEST [CLIENT]
	hostile "$address" "records@${2:-client}" "$1" | tail -n 1
}

audit=$DSEC_LIB/serve/audit.jsonl
denied() { # FILTER of entries that say no
	jq -c "select(.decision == \"deny\" and $1)" <"$audit"
}

# What the audit log is on can be filled.
mkdir -p "$DSEC_LIB/serve"
mount -t tmpfs -o size=2m,mode=700 none "$DSEC_LIB/serve" || exit 1
dsec-serve init "$dir" --name n1 --host 127.0.0.1 >/dev/null
for c in limited other nobody; do
	dsec-serve issue "$dir" --client "$c" >/dev/null
done
conf --arg t "$(printf %s "$token" | sha256sum | cut -d' ' -f1)" --arg c "$canary" '
	.node.listen = ["127.0.0.1:0"] | .control.listen = ["127.0.0.1:0"] |
	.clients[0].comment = $c | .clients += [
	{uri:"dsec://client/limited", project:"root/rl", operations:["run","exec",
		"file","connect","pause","fork","net","ps","img","img-write","report"]},
	{uri:"dsec://client/other", project:"root/x", operations:["all"]},
	{token_sha256:$t, project:"root/ci", operations:["run","exec","ps"]}]'
start node
conf --arg a "$address" '.control.nodes = [{name:"n1", address:$a}]'
start control
live() { hostile "$caddress" codes@client <"$T/nodes" | grep -q '^ok'; }
echo '{"program":"report"}' >"$T/nodes"
wait_for 20 live
rec=$(one '{"program":"run","name":"secret","task":"st","key":"k1"}' other)
json_is "$rec" true "somebody has a sandbox" .ok
theirs=$(field "$rec" .sandbox)
rec=$(one '{"program":"run","name":"mine","task":"mt","key":"k1"}' limited)
json_is "$rec" '[true,null]' "a key is the caller's own" '[.ok,.repeated]'
mine=$(field "$rec" .sandbox)
json_is "$(one '{"program":"run","name":"mine","task":"mt","key":"k1"}' limited)" \
	"[\"$mine\",true]" "whose it is repeats" '[.sandbox,.repeated]'
json_is "$(one '{"program":"run","name":"m2","task":"mt","key":"k1"}' limited)" \
	'"key '"'k1'"' was used for a different request"' \
	"and is told it by its own name" .error.message

# --- what is another's, by every name ----------------------------------------

cat >"$T/asked" <<E
sandbox_unknown {"program":"exec","sandbox":"$theirs","command":["id"]}
sandbox_unknown {"program":"exec","sandbox":"secret","command":["id"]}
sandbox_unknown {"program":"exec","sandbox":"${theirs%??}","command":["id"]}
sandbox_unknown {"program":"exec","op":"attach","sandbox":"$theirs","exec":"e0","attach":true}
sandbox_unknown {"program":"exec","op":"output","sandbox":"$theirs","exec":"e0"}
sandbox_unknown {"program":"exec","op":"input","sandbox":"$theirs","exec":"e0","data":"x"}
sandbox_unknown {"program":"exec","op":"signal","sandbox":"$theirs","exec":"e0","signal":"KILL"}
sandbox_unknown {"program":"exec","op":"session","sandbox":"$theirs","session":"s"}
sandbox_unknown {"program":"exec","op":"connect","sandbox":"$theirs","port":22}
sandbox_unknown {"program":"file","op":"read","sandbox":"secret","path":"/etc/passwd"}
sandbox_unknown {"program":"pause","sandbox":"$theirs"}
sandbox_unknown {"program":"fork","sandbox":"$theirs"}
sandbox_unknown {"program":"net","sandbox":"$theirs","replace":{}}
sandbox_unknown {"program":"img","op":"pack","sandbox":"$theirs"}
sandbox_unknown {"program":"ps","sandbox":"$theirs"}
sandbox_unknown {"program":"ps","op":"wait","sandbox":"secret"}
bad_value {"program":"ps","sandbox":""}
bad_value {"program":"ps","sandbox":5}
bad_value {"program":"ps","sandbox":["$theirs"]}
bad_value {"program":"pause","sandbox":"","task":"st"}
bad_value {"program":"net","sandbox":{"a":1},"task":"st","show":true}
bad_value {"program":"run","project":"root/rl/../x"}
bad_value {"program":"run","project":["root/x"]}
bad_value {"program":"run","image":{"name":"root/x/py"}}
permission {"program":"run","project":"root/rl2"}
permission {"program":"run","project":"root"}
permission {"program":"run","image":"root/x/py"}
permission {"program":"run","image":"root/rl2/py"}
permission {"program":"run","layers":["root/rl/a","root/x/py"]}
permission {"program":"run","snapshot":"root/x/s"}
permission {"program":"run","rm":true}
mount_denied {"program":"run","mounts":[{"source":"/etc","target":"/m"}]}
permission {"program":"fork","from":"root/x/s"}
permission {"program":"pause","project":"root"}
permission {"program":"ps","project":"root/x"}
permission {"program":"img","op":"ls","match":"root/x"}
permission {"program":"img","op":"ls","digests":true}
permission {"program":"img","op":"ls","store":"/"}
permission {"program":"img","op":"rm","name":"root/x/py"}
permission {"program":"img","op":"prune"}
permission {"program":"exec","op":"put","sandbox":"mine","path":"/x","source":"/etc/shadow"}
permission {"program":"exec","op":"get","sandbox":"mine","path":"/etc","target":"/etc"}
permission {"program":"drain"}
unknown_field {"program":"ps","within":"root"}
unknown_field {"program":"ps","caller":"dsec://client/client"}
permission {"program":"img","op":"pull","source":"docker://127.0.0.1:1/x","as":"root/x/py:1"}
unknown_field {"program":"ps","req":"x"}
not_found {"program":"run","op":"key","key":"k2"}
unsupported {"program":"sh"}
bad_value {"program":"exec","op":"hold","sandbox":"mine"}
ok {"program":"pause","sandbox":null,"task":"st","op":"stop"}
ok {"program":"ps","sandbox":null,"task":"st"}
ok {"program":"exec","sandbox":"mine","command":["true"],"in":{"sandbox":"$theirs"}}
E
one '{"program":"run","op":"key","key":"k2"}' other >/dev/null
cut -d' ' -f2- <"$T/asked" >"$T/requests"
for at in "$address" "$caddress"; do
	hostile "$at" codes@limited <"$T/requests" >"$T/codes"
	ok $? "a node and a control are asked for what is another's"
	diff "$T/asked" "$T/codes" >"$T/diff" || diag "$(cat "$T/diff")"
	is "$(cat "$T/diff")" '' "and have the answer that they should have"
done
# Where the node has things is not theirs to know, nor what else it has.
ln -s /etc/shadow "$T/ln"
for source in /etc/shadow /etc/no-such "$T/ln" "$DSEC_LIB/../lib" "$DSEC_LIB"; do
	one "{\"program\":\"run\",\"mounts\":[{\"source\":\"$source\",\"target\":\"/m\"}]}" \
		limited | jq -r '.error | .code + " " + .message'
done >"$T/told"
is "$(sort -u "$T/told" | grep -v "plain path")" \
	"mount_denied the source of '/m' is not in a directory that mounts.allow lists" \
	"of a directory that is not to be had they learn nothing" || diag "$(cat "$T/told")"
for req in '{"program":"run","image":"root/none:1"}' \
	'{"program":"run","layers":["root/none:1"]}' \
	'{"program":"img","op":"inspect","name":"root/none:1"}'; do
	one "$req" limited | jq -c .error
done >"$T/told"
is "$(jq -r .code "$T/told" | sort -u)" image_unknown "an image that is not there"
is "$(grep -cF -e "$T" -e "$DSEC_LIB" "$T/told")" 0 "is told without the way to the store" ||
	diag "$(cat "$T/told")"
# What was asked for itself is told as it was: of a guess nothing is learnt.
for path in "$DSEC_RUN-other" "/mnt$DSEC_RUN"; do
	like "$(one '{"program":"run","mounts":[{"source":"/etc/shadow","target":"'"$path"'"}]}' \
		limited | jq -r .error.message)" "'$path'" \
		"a path of a mount that has letters of the node's"
done
for path in "$DSEC_LIB/x" "$DSEC_LIB"; do
	like "$(one '{"program":"file","op":"stat","sandbox":"mine","path":"'"$path"'"}' \
		limited | jq -r .error.message)" "'$path'" \
		"one inside that the node has, too"
done
json_is "$(one "{\"program\":\"ps\",\"sandbox\":\"$theirs\"}" other)" '"running"' \
	"nothing of it was done" .state
is "$(hostile "$address" records@limited '{"program":"ps","sandbox":null}' |
	jq -r 'select(.sandbox) | .name')" mine "a list has what is one's own"
for at in "$address" "$caddress"; do
	is "$(hostile "$at" records@limited '{"program":"report"}' |
		jq -c 'select(has("memory_total_mb")) | [has("tasks"), has("projects")]')" \
		'[false,false]' "a report does not say who else is there"
done

# --- the audit log ------------------------------------------------------------

is "$(denied '.who == "dsec://client/limited" and .code == "permission" and
	.project == "root/rl2" and .req == null' | wc -l)" 1 \
	"what was refused is in the audit log"
one '{"program":"run"}' nobody >/dev/null
is "$(denied '.who == "dsec://client/nobody" and .program == "run"' | wc -l)" 1 \
	"also of who has no binding at all"
n=$(wc -l <"$audit")
one '{"program":"net","sandbox":"mine","show":null,"explain":null,"replace":{}}' \
	limited >/dev/null
is "$(tail -n +$((n + 1)) "$audit" | jq -r '[.program, .decision] | join(" ")')" \
	'net allow' "a change is in it, however it was put"
one '{"program":"exec","op":"a\",\"who\":\"dsec://client/x\"}\n{\"seq\":1","sandbox":"mine"}' \
	limited >/dev/null
one '{"program":"run","task":"t\n{\"seq\":9}\u0007\u001b[2J","name":"x y"}' limited >/dev/null
run dsec-serve audit verify "$audit"
is "$status" 0 "words with newlines forge no line" || diag "$out"
is "$(LC_ALL=C tr -d '\n\040-\176' <"$audit" | wc -c)" 0 "nor does a byte of them control"

# --- lines and streams ---------------------------------------------------------

for at in "$address" "$caddress"; do
	json_is "$(hostile "$at" odd@limited)" '{"nul":"bad_record end",
		"raw_nul":"bad_record end","utf8":"bad_record end",
		"deep":"bad_record end","twice":"bad_record end",
		"number":"bad_record end","float":"bad_record end",
		"array":"bad_record end","junk":"bad_record end",
		"long":"unsupported","ids":7}' "lines that are none end a connection"
	json_is "$(hostile "$at" large@limited)" '["too_large","ok"]' \
		"one that grows on its way is refused" '[.grown,.after]'
	json_is "$(hostile "$at" streams@limited mine)" '{"none":"ok",
		"credit":"bad_record","minus":"bad_record","huge":"bad_value",
		"id":"bad_value","name":"bad_value","ended":"bad_record",
		"window":"bad_record","other":"ok"}' \
		"bytes and credit that nobody gave end it, and nobody else's"
	json_is "$(hostile "$at" pretend@limited mine)" \
		'{"stdout":true,"stderr":true,"exit_code":7,"plain":true,"plain_code":8}' \
		"output that looks like the daemon's is output"
done
json_is "$(hostile "$address" many@limited mine 1030)" '[6,"busy",true,1024]' \
	"no more than 1,024 requests, which can be cancelled" \
	'[.refused,.code,.later,.ended]'
one '{"program":"run","name":"heavy"}' limited >/dev/null
json_is "$(hostile "$address" heavy@limited heavy 60)" '["busy","ok"]' \
	"nor more memory than is given to them" '[.refused,.other]'
one '{"program":"pause","sandbox":"heavy","op":"stop","grace_ms":0}' limited >/dev/null
json_is "$(hostile "$address" half 600)" '[true,true]' \
	"connections without a handshake keep nobody out" '[.ok,.quick]'

# --- inside, as root (field report 108: files, words and sockets of the platform) --

inside() { # SHELL, as root in mine
	one "$(jq -nc --arg c "$1" '{program:"exec", sandbox:"mine", command:$c,
		inline_kb:512}')" limited | jq -r .stdout
}
# shellcheck disable=SC2016 # the sandbox's shell has them; its own words are no find
inside 'for p in /proc/[0-9]*; do
		[ $p = /proc/$$ ] || cat $p/environ $p/cmdline | tr "\0" "\n"
	done
	cat /proc/self/mountinfo /proc/net/unix /proc/net/tcp
	find / -xdev \( -name serve.json -o -name ca.key -o -name audit.jsonl \
		-o -name "*.sock" \) 2>/dev/null
	for d in /etc /run /tmp /var /root /home /dev/shm /opt /srv; do
		grep -rl -e '"$canary -e $token"' $d
	done
	stat -c %n '"$dir/* $DSEC_RUN/* $DSEC_LIB/*"' 2>/dev/null
	echo end' >"$T/inside"
like "$(cat "$T/inside")" '^end$' "root inside looks for what is the platform's"
is "$(grep -acF -e "$canary" -e "$token" -e "$dir" -e "$DSEC_RUN" -e serve.json \
	-e ca.key -e audit.jsonl "$T/inside")" 0 \
	"and finds no file, socket, word or path of it" || diag "$(cat "$T/inside")"
port=${address##*:}
is "$(inside "exec 3<>/dev/tcp/127.0.0.1/$port" && inside \
	"bash -c 'exec 3<>/dev/tcp/127.0.0.1/$port && echo reached'")" '' \
	"nor does it reach the daemon"

# --- what each process is ---------------------------------------------------------

of() { # PID KEY
	sed -n "s/^$2:[[:space:]]*//p" "/proc/$1/status"
}
processes() { # ROLE
	for p in $(cat "/proc/$node/task/$node/children"); do
		case $(tr '\0' ' ' <"/proc/$p/cmdline") in
		"dsec-serve node-$1 ") echo "$p" ;;
		esac
	done
}
w=$(processes worker) k=$(processes keeper)
is "$(of "$w" CapEff) $(of "$w" CapPrm) $(of "$w" CapBnd) $(of "$w" Seccomp) $(of \
	"$w" NoNewPrivs) $(of "$w" Groups)" \
	'0000000000000000 0000000000000000 0000000000000000 2 1 ' \
	"the worker has no capability, no group, few system calls"
isnt "$(of "$w" Uid | cut -f1)" 0 "and is not root"
is "$(of "$w" Uid | tr '\t' '\n' | sort -u | wc -l)" 1 "nor was it"
is "$(of "$k" Seccomp) $(of "$control" NoNewPrivs)" '0 1' \
	"a control can become nothing more"
is "$(for p in "$node" "$k" "$w" "$control"; do
	tr '\0' '\n' <"/proc/$p/cmdline"
	tr '\0' '\n' <"/proc/$p/environ"
done | grep -cF -e "$canary" -e "$token" -e 'PRIVATE KEY')" 0 \
	"no secret is in an argument or the environment"
is "$(grep -cF -e "$token" -e 'PRIVATE KEY' "$T/log.node" "$T/log.control" |
	cut -d: -f2 | sort -u)" 0 "nor in a log"
cp -r "$dir" "$T/open"
jq '.node.metrics = "0.0.0.0:0" | .control.metrics = "0.0.0.0:0"' <"$dir/serve.json" >"$T/open/serve.json"
run timeout 10 dsec-serve control "$T/open"
is "$status" 78 "metrics are for the loopback alone"

# --- certificates ------------------------------------------------------------------

make_cert() { # NAME SAN EKU [DAYS]
	openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
		-keyout "$dir/$1.key" -subj "/CN=$1" -out "$T/csr" 2>/dev/null
	printf 'subjectAltName=%s\nextendedKeyUsage=%s\n' "$2" "$3" >"$T/ext"
	openssl x509 -req -in "$T/csr" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" \
		-set_serial "0x$(openssl rand -hex 15)" -days "${4:-1}" \
		-extfile "$T/ext" -out "$dir/$1.pem" 2>/dev/null
}
make_cert right 'URI:dsec://client/limited' clientAuth
make_cert eku 'URI:dsec://client/limited' serverAuth
make_cert none 'DNS:limited' clientAuth
make_cert two 'URI:dsec://client/limited,URI:dsec://client/other' clientAuth
make_cert odd 'URI:dsec://client/limited,URI:dsec://Client/other' clientAuth
make_cert path 'URI:dsec://client/limited/../other' clientAuth
make_cert kind 'URI:dsec://node/limited' clientAuth
make_cert past 'URI:dsec://client/limited' clientAuth 0
is "$(for c in right eku none two odd path kind past; do
	printf '%s ' "$(hostile "$address" hello@$c)$(hostile "$caddress" hello@$c)"
done)" "hellohello $(printf 'refusedrefused %.0s' 1 2 3 4 5 6 7)" \
	"one identity, of a client, for now: or no greeting"

# --- what is taken away (field report 101) --------------------------------------------

mkfifo "$T/go"
follow() { # ADDRESS CLIENT SANDBOX [TOKEN]
	hostile "$1" "cut@$2" "$3" "${4:-}" <"$T/go" >"$T/cut" &
	follower=$!
	exec 4>"$T/go"
	wait_for 30 grep -q started "$T/cut"
}
gone() { # WHAT: after it was taken away
	echo go >&4
	wait "$follower"
	exec 4>&-
	json_is "$(tail -n 1 "$T/cut")" '["permission",true]' "$1" '[.said[0], .s <= 2]' ||
		diag "$(cat "$T/cut")"
}
rec=$(one '{"program":"run","name":"tokens","project":"root/ci"}')
cp "$dir/serve.json" "$T/whole"
follow "$address" nobody tokens "$token"
conf 'del(.clients[] | select(.token_sha256))'
gone "a token is taken away: its open stream is cut on a node"
is "$(denied '.op == "cut" and (.who | endswith("nobody"))' | wc -l)" 1 \
	"and the audit log has it"
for at in "$address" "$caddress"; do
	cat "$T/whole" >"$dir/serve.json"
	again() { hostile "$at" records@limited '{"program":"exec","sandbox":"mine","command":["true"]}' | grep -q '"exit_code": 0'; }
	wait_for 20 again
	follow "$at" limited mine
	conf '(.clients[] | select(.uri == "dsec://client/limited") | .operations) = ["ps"]'
	gone "a binding is made narrower: what it does not have is cut"
done
cat "$T/whole" >"$dir/serve.json"
wait_for 20 again
follow "$caddress" limited mine
conf '(.clients[] | select(.uri == "dsec://client/limited") | .project) = "root/rl/below"'
gone "or its project is"
cat "$T/whole" >"$dir/serve.json"
wait_for 20 again

# --- nothing is left ------------------------------------------------------------------

json_is "$(hostile "$address" flat@limited mine "$node,$k,$w" "${FLAT_REQUESTS:-200}" \
	"${FLAT_CONNECTIONS:-50}")" '[[0,0,0],true]' \
	"requests and connections leave no descriptor and no memory" \
	'[.fds, .kib < 4096]'

# More than it can do at once (field report 106; in full: tests/rounds/serve-flood.t).
json_is "$(hostile "$address" flood@limited mine 10 100)" '[true,true,true,"ok"]' \
	"a flood: each is done, or refused with a time to come back" \
	'[.all,.hinted,.stopped,.after]'

# --- an audit log that cannot be written -----------------------------------------------

is "$(one '{"program":"run","name":"before"}' limited | jq -c .ok)" true "the disk has room"
dd if=/dev/zero of="$DSEC_LIB/serve/fill" bs=4k 2>/dev/null
n=0
full() { # its last page may have room for some lines, and as many sandboxes
	n=$((n + 1))
	one "{\"program\":\"run\",\"name\":\"full-$n\",\"cpu_cores_limit\":0.1}" \
		limited | grep -q '"code": "no_space"'
}
wait_for 60 full
ok $? "none: nothing is done that cannot be written down"
json_is "$(one '{"program":"ps","sandbox":"mine"}' limited)" true "who looks is served" .ok
rm "$DSEC_LIB/serve/fill"
json_is "$(one '{"program":"run","name":"later"}' limited)" true "with room, all goes on" .ok
json_is "$(hostile "$address" records@limited '{"program":"ps"}' |
	jq -sc --arg n "full-$n" 'map(select(.name == $n)) | length')" 0 "what was refused was not done"
kill -9 "$k"
printf '{"seq":1,"at' >>"$audit"
again() { one '{"program":"exec","sandbox":"mine","command":["true"]}' limited | grep -q '"exit_code": 0'; }
wait_for 30 again
run dsec-serve audit verify "$audit"
json_is "$out" true "and the log is whole, a torn end told" .ok
is "$(jq -c 'select(.torn_before) | .torn_before' <"$audit")" 12 "and how long it was"
kill "$control" "$node"
wait "$control" "$node"

done_testing
