#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2013,SC2154 # words; status, out, err come from run
#
# Who is let in by a node and its control, confined to a project, and means no
# good: whatever is asked of both has the same, defined answer (field report
# 101; 106 and 108 in part).
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
	timeout 100 python3 "$here/serve_hostile.py" "$dir" "$to" "$@"
}

one() { # REQUEST [CLIENT]
	hostile "$address" "records@${2:-client}" "$1" | tail -n 1
}

audit=$DSEC_LIB/serve/audit.jsonl
denied() { # FILTER of entries that say no
	jq -c "select(.decision == \"deny\" and $1)" <"$audit"
}

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
unknown_field {"program":"ps","as":"dsec://client/client"}
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

done_testing
