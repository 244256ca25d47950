#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A change of policy is stored and put in force, or nothing has changed: with a
# helper that refuses when it is told to (net_stub.py).
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq python3
tree_new

mkdir -p "$DSEC_RUN/net"
python3 "$(dirname "$0")/net_stub.py" "$DSEC_RUN/net/ctl.sock" "$T/log" \
	"$T/refuse" 2>"$T/stub.err" &
STUB=$!
stub_end() {
	kill "$STUB" 2>/dev/null
	wait "$STUB" 2>/dev/null
}
end=0
trap 'end=$?; stub_end; tree_end $end' EXIT
wait_for 10 test -S "$DSEC_RUN/net/ctl.sock"

PHASES='{"setup":{"allow":[{"domain":"*.a.test"}]},"agent":{"allow":[{"domain":"b.test","ports":[8080]}]},"grade":{}}'
run dsec-run --detach --name p --phase setup --phases "$PHASES" --task t
is "$status" 0 "a sandbox with phases" || diag "$err"
id=$(field "$out" .sandbox)
is "$(field "$out" .network)" names "its strength is told"
SPEC=$DSEC_LIB/sb/$id/spec.json
is "$(jq -r '"\(.phase) \(.network) \(.policies | keys | join(","))"' "$SPEC")" \
	"setup names agent,grade,setup" "spec.json has them"
is "$(jq -r 'select(.op=="attach") | .hash' "$T/log" | tail -n 1)" \
	"$(jq -r .policy.hash "$SPEC")" "the helper was told its policy"

# --- phases -------------------------------------------------------------------
run dsec-net p --phase agent
is "$status" 0 "a switch" || diag "$out"
json_is "$out" '{"ok":true,"phase":"agent","network":"names","changed":true,"cut":0}' \
	"its record" 'del(.id,.sandbox,.hash)'
is "$(field "$out" .hash)" "$(jq -r .policy.hash "$SPEC")" "its hash is stored"
is "$(jq -r 'select(.op=="policy") | .hash' "$T/log" | tail -n 1)" \
	"$(field "$out" .hash)" "and in force"
run dsec-net p --phase agent
is "$(field "$out" .changed)" false "the same again changes nothing"
cp "$SPEC" "$T/before"
run dsec-net p --phase nosuch
is "$status" 65 "a phase that was not given"
like "$out" 'agent, grade, setup|setup, agent, grade' "names those that were"
cmp -s "$SPEC" "$T/before"
ok $? "nothing has changed"

# --- what the helper refuses ---------------------------------------------------
refused() { # CODE ARGS..
	refused_code=$1
	shift
	run dsec-net p "$@"
	is "$(field "$out" '.ok, .error.code' | tr '\n' ' ')" \
		"false $refused_code " "$refused_code: $*"
	cmp -s "$SPEC" "$T/before"
	ok $? "... and nothing has changed"
}
for code in unsupported configuration no_memory; do
	echo $code >"$T/refuse"
	refused $code --phase grade
	refused $code --deny-all
	refused $code --replace '{"allow":[{"domain":"c.test","ports":[8080]}]}'
done
rm "$T/refuse"
is "$(jq -r 'select(.op=="attach") | .hash' "$T/log" | wc -l)" 1 \
	"nothing was attached anew meanwhile"

# --- what it cannot be ---------------------------------------------------------
refused unsupported --replace '{"allow":[{"cidr":"203.0.113.0/24"}]}'
refused unsupported --merge '{"allow":[{"domain":"a.test","proto":"udp"}]}'
refused bad_value --merge '{"default":"allow"}'
refused bad_value --replace '{"allows":[]}'
refused bad_value --merge '{"pipy":true}'
refused unknown_field --merge '{"allow":[{"domain":"a.test","port":1}]}'
refused unsupported \
	--replace '{"allow":[{"domain":"a.test","ports":["1-65"]}]}'

# --- replace and merge ----------------------------------------------------------
run dsec-net p --deny-all
is "$(field "$out" '"\(.ok) \(.phase)"')" "true null" "deny all: no phase is in force"
is "$(jq -c .policy.compiled.allow "$SPEC")" '[]' "nothing is allowed"
run dsec-net p --merge '{"allow":[{"domain":"c.test","ports":[8080]}]}'
is "$(jq -c '[.policy.compiled | .default, .allow[].domain]' "$SPEC")" '["deny","c.test"]' \
	"one rule merged into nothing allows that alone"
run dsec-net p --merge '{}'
is "$(jq -c '[.policy.compiled | .default, .allow[].domain]' "$SPEC")" '["deny","c.test"]' \
	"an empty merge changes nothing"
run dsec-net p --replace '{}'
is "$(jq -c .policy.compiled.allow "$SPEC")" '[]' "an empty replacement denies all"
run dsec-net p --phase agent
run dsec-net p --merge '{"allow":[{"domain":"d.test","ports":[8080]}]}'
is "$(jq -c '[.phase, .policy.compiled.allow[].domain]' "$SPEC")" '[null,"b.test","d.test"]' \
	"merging adds to the phase that was in force"
is "$(jq -c '[.policies.agent.compiled.allow[].domain]' "$SPEC")" '["b.test"]' \
	"which stays what it was"
run dsec-net p --merge '{"allow":[{"domain":"d.test","ports":[9090]}]}'
is "$status" 0 "a port that nobody listened on" || diag "$out"
like "$(jq -c 'select(.op=="attach") | .fds' "$T/log" | tail -n 1)" tcp9090 \
	"gets its listener"

# --- many -----------------------------------------------------------------------
for n in 1 2 3 4; do
	echo "{\"task\":\"t\",\"phase\":\"setup\",\"phases\":$PHASES,\"labels\":{\"n\":\"$n\"}}"
done | dsec-run >"$T/more"
is "$(jq -s 'map(select(.ok)) | length' "$T/more")" 4 "four more"
run dsec-net --task t --phase grade
is "$status $(printf '%s\n' "$out" | jq -r 'select(.phase=="grade") | .sandbox' | sort -u | wc -l)" \
	"0 5" "a phase of a task"
run dsec-net --label n=3 --phase agent
is "$(printf '%s\n' "$out" | jq -r .sandbox)" "$(jq -r 'select(.id==3) | .sandbox' "$T/more")" "of a label"
jq -c '{id:.id, sandbox}' "$T/more" | dsec-net --phase setup >"$T/out"
is "$(jq -s 'map(select(.phase=="setup" and .ok)) | length' "$T/out")" 4 "requests of a pipe"
{
	echo '{"id":"a","sandbox":"p","phase":"setup"}'
	echo '{"id":"b","sandbox":"p","phase":"nosuch"}'
	echo '{"id":"c","sandbox":"p","phase":"agent","key":"k"}'
	echo '{"id":"d","sandbox":"p","phase":"agent","key":"k"}'
	echo '{"id":"e","sandbox":"p","phase":"grade","key":"k"}'
} | dsec-net >"$T/out"
is "$?" 1 "some of several fail"
is "$(jq -r '"\(.id) \(.ok) \(.repeated // .error.code // "")"' "$T/out" | tr '\n' ';')" \
	'a true ;b false bad_value;c true ;d true true;e false key_conflict;' \
	"those of one sandbox in their order; a key is done once"

# --- other states ----------------------------------------------------------------
dsec-pause p --freeze >"$T/out"
run dsec-net p --phase setup
is "$status $(dsec-ps p | jq -r .state)" "0 running" "one that is paused is resumed"
dsec-pause p --freeze >"$T/out"
run dsec-net p --show
is "$(field "$out" '"\(.phase) \(.network) \(.in_force)"') $(dsec-ps p | jq -r .state)" \
	"setup names true paused" "looking at it does not" || diag "$status $out $err"
like "$(field "$out" '.rules[] | "\(.does) \(.domain) \(.ports)"')" '^allow \*\.a\.test \[80,443\]' \
	"its rules"
is "$(field "$out" '[.implicit[] | select(.cidr=="169.254.0.0/16") | .does] | join(",")')" deny \
	"and those that nobody wrote"
dsec-pause p --resume >"$T/out"

# The caller is killed at any moment: what is stored is one of both, whole.
bad=0
for n in $(seq 30); do
	dsec-net p --phase "$([ $((n % 2)) = 0 ] && echo agent || echo setup)" >/dev/null 2>&1 &
	pid=$!
	sleep "0.0$((n % 10))"
	kill -9 "$pid" 2>/dev/null
	wait "$pid" 2>/dev/null
	phase=$(jq -r .phase "$SPEC") || bad=$((bad + 1))
	[ "$(jq -r .policy.hash "$SPEC")" = "$(jq -r ".policies.$phase.hash" "$SPEC")" ] ||
		bad=$((bad + 1))
done 2>/dev/null
is "$bad" 0 "a caller that is killed leaves one policy or the other"
run dsec-net p --phase agent
is "$status" 0 "and no lock"

run dsec-fork --fs-only --count 1 p
copy=$(printf '%s\n' "$out" | jq -r 'select(.parent) | .sandbox')
is "$(jq -r '"\(.phase) \(.policy.hash) \(.network)"' "$DSEC_LIB/sb/$copy/spec.json")" \
	"$(jq -r '"\(.phase) \(.policy.hash) \(.network)"' "$SPEC")" "a copy inherits the changed policy"
run dsec-net "$copy" --phase grade
is "$status $(jq -r .phase "$SPEC")" "0 agent" "and changes alone"

# --- one-shots -------------------------------------------------------------------
dsec-run --rm --phase setup --phases "$PHASES" -- sleep 30 >"$T/out" 2>&1 &
oneshot=$!
wait_for 10 sh -c 'dsec-ps | jq -e "select(.kind == \"one-shot\")" >/dev/null'
one=$(dsec-ps | jq -r 'select(.kind == "one-shot") | .sandbox')
run dsec-net "$one" --phase agent
is "$status $(jq -r .phase "$DSEC_LIB/sb/$one/spec.json")" "0 agent" "a one-shot has phases too" ||
	diag "$out"
kill "$oneshot"
wait "$oneshot"

# --- stuck ----------------------------------------------------------------------
(exec 9>"$DSEC_RUN/sb/$id/net.lock" && flock 9 && echo >"$T/locked" && exec sleep 5) &
locker=$!
wait_for 5 test -e "$T/locked"
run timeout 4 dsec-net p --phase agent --deadline 300ms
is "$status $(field "$out" .error.code)" "75 deadline" "a deadline while another has its lock"
kill "$locker"
wait "$locker"
wait_for 5 sh -c "[ \"\$(jq -r .phase '$SPEC')\" = agent ]"
ok $? "what was begun goes on"

# --- none -------------------------------------------------------------------------
run dsec-run --detach --name n
is "$(field "$out" .network)" none "a sandbox without rules"
run dsec-net n --deny-all
is "$status" 0 "is denied all, again" || diag "$out"
run dsec-net n --replace '{"allow":[{"domain":"a.test"}]}'
is "$(field "$out" .error.code)" unsupported "and can be given nothing"
run dsec-net n --show
is "$(field "$out" '"\(.network) \(.implicit | length) \(.rules | length)"')" "none 1 0" "which is shown"
run dsec-net n --explain a.test:443
is "$(field "$out" '"\(.allowed) \(.attempt.outcome) \(.agrees)"')" "false no_resolver true" \
	"and explained"

# --- no helper ----------------------------------------------------------------------
stub_end
cp "$SPEC" "$T/before"
echo '{"pool":"nonsense"}' >"$DSEC_CONFIG/net.json"
run dsec-net p --phase grade
is "$(field "$out" .ok)" false "no helper, and none that could be started"
cmp -s "$SPEC" "$T/before"
ok $? "nothing has changed"
rm "$DSEC_CONFIG/net.json"
dsec-pause --stop --project root >/dev/null
done_testing
