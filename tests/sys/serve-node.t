#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2013,SC2154 # words; status, out, err come from run
#
# The node daemon: socat is a client; streams; nobody blocks anybody; any of its
# processes may be killed or replaced and no sandbox and no command notices.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools socat jq python3
tree_new

here=$(dirname "$0")
dir=$T/serve
node='' address=''

# One of the daemon's processes, the youngest, by its role.
process() {
	for p in $(cat "/proc/$node/task/$node/children"); do
		case $(tr '\0' ' ' <"/proc/$p/cmdline") in
		"dsec-serve node-$1 ") echo "$p" ;;
		esac
	done | tail -1
}

coprocess() { # of the keeper, by its program
	for p in $(cat "/proc/$(process keeper)/task/$(process keeper)/children"); do
		case $(cat "/proc/$p/comm") in
		"$1") echo "$p" ;;
		esac
	done | tail -1
}

start_node() {
	: >"$T/ready"
	"$BIN/dsec-serve" node "$dir" --ready-fd 9 9>"$T/ready" 2>>"$T/log" &
	node=$!
	wait_for 20 test -s "$T/ready" || diag "$(cat "$T/log")"
	address=$(cut -d" " -f2 "$T/ready")
}

client() {
	timeout 100 python3 "$here/serve_client.py" "$dir" "$address" "$@" 2>&1
}

one() { # REQUEST [CLIENT]
	client "one${2:+@$2}" "$1"
}

# --- certificates and a client that is socat -------------------------------

run "$BIN/dsec-serve" init "$dir" --name n1 --host 127.0.0.1
is "$status" 0 'certificates are made'
"$BIN/dsec-serve" issue "$dir" --client limited >/dev/null
"$BIN/dsec-serve" issue "$dir" --client nobody >/dev/null
jq '.node.listen = ["127.0.0.1:0"] | .clients += [{"uri":"dsec://client/limited",
	"project":"root/rl", "operations":["run","exec","ps"]}]' \
	<"$dir/serve.json" >"$T/json" && cat "$T/json" >"$dir/serve.json"
for c in limited nobody; do
	[ -e "$dir/$c.pem" ] || cp "$dir"/issued/*"$c"*.pem "$dir/$c.pem"
done
start_node # its lock, root and audit log stay
kill "$node"
wait "$node"
leak_start
start_node
like "$address" '^127\.0\.0\.1:[0-9]+$' 'it serves, and says where'

mkfifo "$T/in"
socat -t 10 - "OPENSSL:$address,cert=$dir/client.pem,key=$dir/client.key,cafile=$dir/ca.pem" \
	<"$T/in" >"$T/out" 2>"$T/socat" &
socat=$!
exec 8>"$T/in"
answered() { jq -e --argjson id "$1" 'select(.id == $id and has("ok"))' <"$T/out" >"$T/rec"; }
say() { # REQUEST with an id
	echo "$1" >&8
	wait_for 30 answered "$(field "$1" .id)" || diag "$(cat "$T/out" "$T/log")"
	cat "$T/rec"
}
rec=$(say '{"id":1,"program":"run","name":"a","task":"t"}')
json_is "$rec" '[true,"running"]' 'socat creates a sandbox' '[.ok,.state]'
a=$(field "$rec" .sandbox)
json_is "$(say '{"id":2,"program":"exec","sandbox":"a","command":"echo hello; exit 3"}')" \
	'[true,"hello\n",3]' 'runs a command' '[.ok,.stdout,.exit_code]'
json_is "$(say '{"id":3,"program":"pause","sandbox":"a","level":"freeze"}')" \
	'[true,"paused"]' 'pauses it' '[.ok,.state]'
json_is "$(say '{"id":4,"program":"run","name":"b","task":"t"}')" 'true' 'another' .ok
json_is "$(say '{"id":5,"program":"pause","task":"t","op":"resume"}')" \
	'[true,2,0]' 'resumes a task' '[.ok,.count,.failed]'
is "$(jq -s '[.[] | select(.id == 5 and .event == "record" and .record.ok)] | length' \
	<"$T/out")" 2 'with a record for each'
json_is "$(say '{"id":6,"program":"pause","sandbox":"b","op":"stop"}')" \
	'[true,"stopped"]' 'stops one' '[.ok,.state]'
exec 8>&-
wait "$socat"
is $? 0 'and ends with its input'

# Whoever asks the next thing when he has the answer to the first.
"$BIN/dsec-serve" client --server "$address" --cert "$dir/client.pem" \
	--key "$dir/client.key" --ca "$dir/ca.pem" exec <"$T/in" >"$T/out" \
	2>"$T/client" &
client=$!
exec 8>"$T/in"
json_is "$(say '{"id":1,"sandbox":"a","command":"echo one"}')" '"one\n"' \
	'dsec-serve client answers while its input is open' .stdout
json_is "$(say '{"id":2,"sandbox":"a","command":"echo two"}')" '"two\n"' \
	'one after another' .stdout
exec 8>&-
wait "$client"
is $? 0 'and ends with its input, too'

run socat -t 3 - "OPENSSL:$address,cafile=$dir/ca.pem,verify=0"
unlike "$out" hello 'without a certificate there is not even a greeting'

# --- who may what -----------------------------------------------------------

json_is "$(one '{"program":"exec","sandbox":"a","command":["true"]}' nobody)" \
	'"permission"' 'no binding, no access' .error.code
json_is "$(one '{"program":"exec","sandbox":"a","command":["true"]}' limited)" \
	'"sandbox_unknown"' 'what is outside of the project is not there' .error.code
json_is "$(one '{"program":"pause","sandbox":"a"}' limited)" \
	'"permission"' 'nor is an operation that was not given' .error.code
json_is "$(one '{"program":"run","name":"c","project":"root"}' limited)" \
	'"permission"' 'nor another project' .error.code
rec=$(one '{"program":"run","name":"c"}' limited)
json_is "$rec" 'true' 'within, all is well' .ok
json_is "$(one '{"program":"ps","sandbox":"c"}' limited)" '"root/rl"' \
	'in its own project' .project
json_is "$(one '{"program":"ps"}' limited)" '1' 'and lists that alone' .count
json_is "$(one '{"program":"exec","sandbox":"a","op":"put","path":"/x","source":"/etc/passwd"}')" \
	'"permission"' 'files of the node are nobody'"'"'s' .error.code
json_is "$(one '{"program":"exec","sandbox":"a","op":"hold"}')" \
	'"bad_value"' 'what is the supervisor'"'"'s alone is refused' .error.code
json_is "$(one '{"program":"run","within":"root","caller":"x"}')" \
	'"unknown_field"' 'a client does not say for whom it asks' .error.code
audited() { # PROGRAM: how often it is in the audit log
	jq -c --arg p "$1" 'select(.program == $p)' "$DSEC_LIB/serve/audit.jsonl" |
		wc -l
}
json_is "$(one '{"program":"net","sandbox":"a","denied":true}')" '[true,0]' \
	'what was refused of a network' '[.ok,.count]'
is "$(audited net)" 0 'is looked at'
json_is "$(one '{"program":"net","sandbox":"a","show":false,"deny_all":true}')" \
	'true' 'rules are changed' .ok
is "$(audited net)" 1 'and that is in the audit log, whatever else is said'
json_is "$(one '{"program":"ps","limit":1}')" '[1,true]' 'lists come in pages' \
	'[.count,has("next")]'
one '{"program":"pause","sandbox":"c","op":"stop"}' >/dev/null

# --- the worker is nobody ---------------------------------------------------

w=$(process worker)
like "$(cat "/proc/$w/status")" '^Seccomp:	2' 'few system calls'
like "$(cat "/proc/$w/status")" '^CapBnd:	0000000000000000' 'no capability, for good'
unlike "$(cat "/proc/$w/status")" '^Uid:	0' 'a user of its own'
is "$(ls -A "/proc/$w/root/")" '' 'and an empty root'
case $(uname -m) in
x86_64)
	# It waits for something, nearly always.
	injected() { "$BUILD/helpers/inject" "$w" >"$T/inject" 2>"$T/inject.err"; }
	wait_for 10 injected || diag "$(cat "$T/inject.err")"
	is "$(sed -n 's/^getpid //p' "$T/inject")" "done" \
		'who has taken it over can make system calls'
	is "$(sed '/^getpid /d; s/.* //' "$T/inject" | sort | uniq -c |
		tr -s ' \n' ' ')" ' 2 EAFNOSUPPORT 21 ENOSYS ' \
		'but opens, starts, traces, kills, connects to nothing' ||
		diag "$(cat "$T/inject")"
	json_is "$(one '{"program":"ping"}')" true 'it goes on' .ok
	is "$(process worker)" "$w" 'as the same'
	;;
*)
	skip 'what it cannot do' 'system calls are put in on x86_64 alone'
	;;
esac
is "$(find "/proc/$(process keeper)/fd" -lname 'socket:*' -exec readlink {} + |
	tr -d 'a-z:[]' | sort -u | while read -r i; do
	awk -v i="$i" '$10 == i' /proc/net/tcp /proc/net/tcp6
done)" '' 'the keeper has no socket of the network'

# --- streams ----------------------------------------------------------------

json_is "$(client bulk a 8)" '[true,8388608,true]' '8 MiB arrive as they were' \
	'[.same,.counted,.ok]'
rec=$(client slow a)
json_is "$rec" '[0,0,true]' 'a reader that takes nothing stops nobody' \
	'[.here,.there,.quick]'
json_is "$rec" 'true' 'and nobody keeps more for it than a window' '.window > 0 and .window <= 262144'
json_is "$(client echo a)" '[true,["tty"],true,0]' 'stdin, and a terminal with its size' \
	'[.stdin,.streams,.size,.exit_code]'
json_is "$(client files a)" '[true,true,true,true,"not_found"]' \
	'files of any size, and trees' '[.put,.read,.same,.tar,.missing]'
json_is "$(client port a)" '["HELLO",true,"not_found"]' 'a port inside' \
	'[.got,.ok,.none]'

e=$(client begin a 'i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done; sleep 1; echo end')
rec=$(client attach a "$e" 0 1000)
json_is "$rec" 'null' 'who leaves in the middle' .ok
sum=$({ seq 0 2999; echo end; } | sha256sum | cut -d' ' -f1)
json_is "$(client attach a "$e" 0)" "[\"$sum\",0]" 'finds all of it again' \
	'[.got.stdout.sha256,.exit_code]'
sum=$({ seq 0 2999; echo end; } | tail -c +1001 | sha256sum | cut -d' ' -f1)
json_is "$(client attach a "$e" 1000)" "[\"$sum\",0]" \
	'or from where it was, though the command has ended' \
	'[.got.stdout.sha256,.exit_code]'

# --- any process may die ----------------------------------------------------

long=$(client begin a 'sleep 1000')
box=$(one "{\"program\":\"ps\",\"sandbox\":\"$a\"}" | jq .supervisor_pid)

client hold a 3 >"$T/held" &
h=$!
wait_for 20 grep -q held "$T/held"
kill -9 "$(process keeper)"
wait "$h"
json_is "$(tail -1 "$T/held")" '[true,0,"done\n",[]]' \
	'a keeper that dies: streams go on, ends are found out' \
	'[.lines,.attached,.plain,.errors]'

client storm a 6 >"$T/storm" &
h=$!
sleep 1
for p in keeper worker keeper; do
	old=$(process "$p")
	[ -z "$old" ] || kill -9 "$old"
	renewed() { new=$(process "$p") && [ -n "$new" ] && [ "$new" != "$old" ]; }
	wait_for 10 renewed
	sleep 0.5
done
wait "$h"
json_is "$(cat "$T/storm")" '[true,[]]' 'keepers and workers die: no call comes to nothing' \
	'[.done,.failed]'

one '{"program":"exec","op":"stat","sandbox":"a","path":"/tmp"}' >/dev/null
kill -9 "$(coprocess dsec-exec)"
json_is "$(one '{"program":"exec","op":"stat","sandbox":"a","path":"/tmp"}')" \
	'"directory"' 'a coprocess that died is started again' .type
(
	for i in 1 2 3; do
		one "{\"program\":\"run\",\"name\":\"k$i\",\"key\":\"k$i\",\"task\":\"k\"}" &
	done
	wait
) >"$T/keyed" &
h=$!
launcher() { [ -n "$(coprocess dsec-run)" ]; }
wait_for 20 launcher
kill -9 "$(coprocess dsec-run)"
wait "$h"
is "$(jq -s 'map(select(.ok)) | length' <"$T/keyed")" 3 \
	'creates with a key survive their launcher' || diag "$(cat "$T/keyed")"
json_is "$(one '{"program":"ps","task":"k"}')" '3' 'and are made once' .count
one '{"program":"pause","task":"k","op":"stop","grace_ms":0}' >/dev/null

# Nothing of a keeper that is gone is used for what it had answered before (a
# build with SAN=address sees it).
client ended a <"$T/in" >"$T/ended" &
h=$!
exec 8>"$T/in"
wait_for 20 grep -q ended "$T/ended" || diag "$(cat "$T/ended")"
p=keeper old=$(process keeper) was=$(process worker)
kill -9 "$old"
wait_for 10 renewed
echo >&8
wait "$h"
exec 8>&-
json_is "$(tail -1 "$T/ended")" '[true,0]' \
	'a command that had ended before its keeper died has its end' '[.ok,.exit_code]'
json_is "$(one '{"program":"ps","sandbox":"a"}')" true 'the next one answers' .ok
is "$(process worker)" "$was" 'the same worker'

# One of before says once that it has no keeper, perhaps soon after it got one.
links() { # that the worker has at least so many ways, but to its clients
	for f in "/proc/$was/fd"/*; do
		readlink "$f"
	done | sed -n 's/socket:\[\(.*\)\]/\1/p' >"$T/inodes"
	[ "$(awk 'NR == FNR { a[$1]; next } $7 in a' "$T/inodes" /proc/net/unix |
		wc -l)" -ge "$1" ]
}
alone() { # as the worker would say
	python3 -c 'import ctypes, os, sys
pid = os.pidfd_open(int(sys.argv[1]))
fd = ctypes.CDLL(None).syscall(438, pid, 3, 0)
os.write(fd, b"{\"event\":\"alone\"}\n")' "$was"
}
n=1
while links $((n + 1)); do n=$((n + 1)); done
alone
wait_for 10 links $((n + 1))
alone
wait_for 10 links $((n + 2))
ok $? 'a worker that says but once that it has no keeper gets one'

# A keeper that takes no orders, more than a socket holds, stops nobody.
p=worker stuck=$(process keeper)
old=$(process worker)
kill -STOP "$stuck"
jq '.clients += [range(4000) | {uri:"dsec://client/x\(.)", project:"root/x/y/z",
	operations:["run","exec","file","connect","pause"]}]' <"$dir/serve.json" >"$T/json"
cp "$dir/serve.json" "$T/serve.json"
cat "$T/json" >"$dir/serve.json"
kill -HUP "$node"
reads() { grep -q 'reads its configuration' "$T/log"; }
wait_for 20 reads
kill -9 "$old"
wait_for 20 renewed
is "$(process worker | grep -cvx "$old") $(process keeper)" "1 $stuck" \
	'a worker is started again while a keeper takes no orders'
kill -CONT "$stuck"
json_is "$(one '{"program":"ps","sandbox":"a"}')" true 'which goes on when it can' .ok
is "$(process keeper)" "$stuck" 'as the same'
cat "$T/serve.json" >"$dir/serve.json"

# --- upgrade ----------------------------------------------------------------

# What is refused is refused while the old one is still there.
client hold a 3 >"$T/held" &
h=$!
wait_for 20 grep -q held "$T/held"
old=$(process worker)
run "$BIN/dsec-serve" check "$dir"
is "$status $(field "$out" '[.ok,.node,.control]|tostring')" '0 [true,true,true]' \
	'what is there can be checked' || diag "$err"
jq '.nod = {}' <"$T/serve.json" >"$dir/serve.json"
run "$BIN/dsec-serve" node "$dir" --upgrade
is "$status" 78 'an upgrade over a broken configuration is refused'
like "$err" "'nod'" 'with its mistake'
kill -USR2 "$node"
refused() { grep -q "\"refused\":$1" "$DSEC_RUN/serve/node.lock"; }
wait_for 20 refused 1
ok $? 'by the daemon, too' || diag "$(tail "$T/log")"
is "$(process worker)" "$old" 'which goes on with the processes it has'
cat "$T/serve.json" >"$dir/serve.json"
printf /bin/false >"$DSEC_RUN/serve/upgrade"
kill -USR2 "$node"
wait_for 20 refused 2
ok $? 'a program that cannot start takes nobody over' || diag "$(tail "$T/log")"
client storm a 4 >"$T/storm" &
s=$!
jq '.control.cert = "none.pem"' <"$T/serve.json" >"$dir/serve.json"
run "$BIN/dsec-serve" check "$dir"
like "$err" "none.pem" 'a certificate of the control is missing'
run "$BIN/dsec-serve" check "$dir" node
is "$status" 0 'which a node does not need' || diag "$err"
run "$BIN/dsec-serve" check "$dir" nobody
is "$status" 64 'nor anybody who is not there'
run "$BIN/dsec-serve" node "$dir" --upgrade
is "$status" 0 'an upgrade' || diag "$err"
cat "$T/serve.json" >"$dir/serve.json"
wait "$h"
json_is "$(tail -1 "$T/held")" '[true,0,"done\n",[]]' \
	'what runs over it ends as if nothing had been' \
	'[.lines,.attached,.plain,.errors]'
wait "$s"
json_is "$(cat "$T/storm")" '[true,[]]' 'and no call comes to nothing' '[.done,.failed]'
two() { [ "$(wc -w <"/proc/$node/task/$node/children")" -eq 2 ]; }
wait_for 10 two
ok $? 'the old ones have gone'

# One that knows nothing of a check.
cat >"$T/older" <<-END
	#!/bin/sh
	[ "\$1" != check ] || exit 64
	exec "$BIN/dsec-serve" "\$@"
END
chmod +x "$T/older"
generation() { grep -q "\"generation\":$1," "$DSEC_RUN/serve/node.lock"; }
printf %s "$T/older" >"$DSEC_RUN/serve/upgrade"
kill -USR2 "$node"
wait_for 20 generation 2
ok $? 'an upgrade to a program of before' || diag "$(tail "$T/log")"
wait_for 10 two
run "$BIN/dsec-serve" node "$dir" --upgrade
is "$status" 0 'and from it' || diag "$err"
wait_for 10 two

printf %s "$T/not-there" >"$DSEC_RUN/serve/upgrade"
kill -USR2 "$node"
failed() { grep -v 'hands over' "$T/log" | grep -q "$T/not-there"; }
wait_for 10 failed
ok $? 'an upgrade to what is not there fails'
p=worker old=$(process worker)
kill -9 "$old"
wait_for 10 renewed
json_is "$(one '{"program":"ping"}')" true 'and what it is goes on being started' .ok

# A keeper that waits for the audit log goes before it has it.
kill "$node"
wait "$node"
mkfifo "$T/locked"
flock "$DSEC_LIB/serve/audit.jsonl" cat "$T/locked" &
lock=$!
exec 8>"$T/locked"
start_node 8>&- # it holds nothing of the lock's
keeper=$(process keeper)
one '{"program":"run","deadline_ms":10000}' >"$T/waits" 8>&- &
h=$!
asked() { [ "$(one '{"program":"report"}' | jq .daemon.running)" = 2 ]; }
wait_for 20 asked
"$BIN/dsec-serve" node "$dir" --upgrade 8>&-
wait "$h"
json_is "$(cat "$T/waits")" '["busy",50]' 'who waited with it is told to ask again' \
	'[.error.code,.error.retry_after_ms]'
ended() { ! kill -0 "$keeper" 2>"$T/null"; }
wait_for 20 ended
ok $? 'and it ends'
exec 8>&-
wait "$lock"
json_is "$(one '{"program":"pause","sandbox":"a","op":"resume"}')" true \
	'the next one has the log' .ok

# --- drain, reload, end -----------------------------------------------------

json_is "$(one '{"program":"drain"}')" 'true' 'drained' .draining
json_is "$(one '{"program":"run"}')" '"draining"' 'it takes nothing new' .error.code
json_is "$(one '{"program":"exec","sandbox":"a","command":["true"]}')" '0' \
	'and goes on with what it has' .exit_code
json_is "$(one '{"program":"drain","on":false}')" 'false' 'and is opened again' .draining

jq 'del(.clients[1])' <"$dir/serve.json" >"$T/json" && cat "$T/json" >"$dir/serve.json"
gone() { one '{"program":"ps"}' limited | grep -q permission; }
wait_for 10 gone
ok $? 'a binding that is taken away is gone without restart'

kill -9 "$node"
wait "$node" 2>/dev/null
ended() { [ -z "$(pgrep -f "dsec-serve node-.*" -P "$node")" ]; }
wait_for 10 ended
start_node
json_is "$(one '{"program":"exec","op":"list-execs","sandbox":"a"}')" 'true' \
	'the whole daemon died: the command runs still' \
	".execs | map(select(.exec == \"$long\" and .running)) | length == 1"
is "$(one "{\"program\":\"ps\",\"sandbox\":\"$a\"}" | jq .supervisor_pid)" "$box" \
	'and so does the supervisor it had'
one '{"program":"pause","sandbox":"a","op":"stop","grace_ms":0}' >/dev/null

# An upgrade waits for a keeper that takes no orders; then comes the end.
keeper=$(process keeper) was=$(grep -c 'hands over' "$T/log")
kill -STOP "$keeper"
jq '.clients += [range(4000) | {uri:"dsec://client/x\(.)", project:"root/x/y/z",
	operations:["run","exec","file","connect","pause"]}]' <"$dir/serve.json" >"$T/json"
before=$(grep -c 'reads its configuration' "$T/log")
cat "$T/json" >"$dir/serve.json"
kill -HUP "$node"
reads() { [ "$(grep -c 'reads its configuration' "$T/log")" -gt "$before" ]; }
wait_for 20 reads
kill -USR2 "$node"
kill "$node"
ends() { grep -q 'ends by SIGTERM' "$T/log"; }
wait_for 20 ends
kill -CONT "$keeper"
ended() { grep -q '^State:.Z' "/proc/$node/status"; }
wait_for 20 ended || kill -9 "$node"
wait "$node"
is $? 0 'it ends when it is told to'
is "$(grep -c 'hands over' "$T/log")" "$was" 'and becomes nothing else then'
leak_check
done_testing
