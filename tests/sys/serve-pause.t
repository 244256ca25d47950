#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sandboxes on the disk, from afar: a supervisor that is long in coming back
# stops nobody else's requests; attached commands and terminals go on over it.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq busybox python3
tree_new
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
matrix_why=$(checkpoint_why)
[ -z "$matrix_why" ] || plan_skip_all "$matrix_why"
matrix_image || plan_skip_all "no image could be made"

here=$(dirname "$0")
D=$T/serve
node=''
finish() {
	rm -f "$T/hold"
	exec 8>&- 2>/dev/null
	kill "$node" 2>/dev/null
	wait
	tree_end "$1"
}
trap 'finish $?' EXIT

# Supervisors that come back wait while there is $T/hold.
libexec=${DSEC_LIBEXEC:-$(dirname "$BIN")/libexec/dsec}
cp -r "$libexec" "$T/libexec"
rm "$T/libexec/dsec-box"
cat >"$T/libexec/dsec-box" <<-EOF
	#!/bin/sh
	case \$* in --state*)
		: >"$T/comes"
		while [ -e "$T/hold" ]; do sleep 0.1; done ;;
	esac
	exec "$libexec/dsec-box" "\$@"
EOF
chmod +x "$T/libexec/dsec-box"

dsec-serve init "$D" --name one >/dev/null
jq '.node.listen = ["127.0.0.1:0"]' "$D/serve.json" >"$T/j" &&
	cp "$T/j" "$D/serve.json"
: >"$T/ready"
DSEC_LIBEXEC=$T/libexec "$BIN/dsec-serve" node "$D" --ready-fd 9 9>"$T/ready" \
	2>>"$T/log" &
node=$!
wait_for 30 test -s "$T/ready" || diag "$(cat "$T/log")"
read -r _ address <"$T/ready"

client() {
	timeout 100 python3 "$here/serve_client.py" "$D" "$address" "$@"
}
one() { client one "$1"; }
make() { # NAME
	one "{\"program\":\"run\",\"name\":\"$1\",\"memory_limit_mb\":256,
		\"image\":\"root/matrix:1\"}"
}
rec=$(make a)
json_is "$rec" true "a sandbox" .ok || { diag "$rec"; exit 1; }
b=$(make b)
json_is "$b" true "another" .ok
box=$(one '{"program":"ps","sandbox":"b"}' | jq .supervisor_pid)
pause_b='{"program":"pause","sandbox":"b","level":"disk"}'
json_is "$(one "$pause_b")" '["paused","disk"]' "it is paused to disk" \
	'[.state,.level]'

# --- a supervisor that is long in coming ------------------------------------------

kill -KILL "$box"
gone() { ! kill -0 "$box" 2>/dev/null; }
wait_for 20 gone
: >"$T/hold"
mkfifo "$T/in"
client beside '[{"program":"exec","sandbox":"b","command":["echo","back"]},
	{"program":"exec","op":"list-execs","sandbox":"b"},
	{"program":"pause","op":"resume","sandbox":"b"}]' \
	'{"program":"exec","sandbox":"a","command":["echo","hi"]}' \
	'{"program":"exec","op":"list-execs","sandbox":"a"}' \
	'{"program":"pause","sandbox":"a","level":"freeze"}' \
	'{"program":"pause","sandbox":"a","op":"resume"}' \
	<"$T/in" >"$T/beside" &
one=$!
exec 8>"$T/in"
wait_for 30 test -e "$T/comes"
ok $? "it gets a supervisor again, which takes its time" || diag "$(cat "$T/log")"
echo on >&8
wait_for 60 test -s "$T/beside"
rm "$T/hold"
wait $one
exec 8>&-
json_is "$(head -n 1 "$T/beside")" '[[true,"hi\n"],[true,null],[true,"paused"],
	[true,"running"]]' "others' requests are answered meanwhile" \
	'.others | map([.ok, .stdout // .state])'
json_is "$(head -n 1 "$T/beside")" '[]' "and it is not back yet" .early
json_is "$(sed -n 2p "$T/beside")" '["back\n",true,"running"]' \
	"then its own are" '.held | map(.stdout // .state // .ok)' ||
	diag "$(cat "$T/beside")"

# --- attached over the disk ----------------------------------------------------------

client attached b 100 >"$T/attached" &
one=$!
begun() { grep -q go "$1"; }
wait_for 30 begun "$T/attached"
json_is "$(one "$pause_b")" '"disk"' "paused under an attached command" '.level // .'
json_is "$(one '{"program":"pause","op":"resume","sandbox":"b"}')" \
	'"running"' "and resumed" '.state // .'
wait $one
json_is "$(tail -n 1 "$T/attached")" '{"same":true,"exit_code":0,"got":290,"error":null}' \
	"its output is whole, and its end told"

client typed b <"$T/in" >"$T/typed" &
one=$!
exec 8>"$T/in"
wait_for 30 begun "$T/typed"
json_is "$(one "$pause_b")" '"disk"' "paused under a terminal" '.level // .'
echo on >&8
wait $one
json_is "$(tail -n 1 "$T/typed")" '{"shown":["got-one","got-two","got-end"],
	"events":["reattached"],"streams":["tty"],"exit_code":7,"error":null}' \
	"what is typed resumes it, and it goes on"
exec 8>&-
one '{"program":"pause","op":"stop","project":"root","grace_ms":0}' >/dev/null
done_testing
