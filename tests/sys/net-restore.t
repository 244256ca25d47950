#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The network of what is paused to disk, forked, started from a snapshot or
# recovered: the policy it had (field report 82), in force before anything runs,
# and none of its source's connections.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/net.sh
. "$(dirname "$0")/net.sh"
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
need_tools jq busybox
net_enter
tree_new
net_world
why=$(checkpoint_why)
[ -z "$why" ] || { net_end; plan_skip_all "$why"; }
matrix_image || plan_skip_all "no image"

NAMES='{"allow":[{"domain":"allowed.test","ports":[7,80]}]}'
ROUTED='{"allow":[{"domain":"allowed.test","ports":[80]},
	{"cidr":"198.51.100.10/32","ports":[7]}]}'

# A connection that is used all the time, and how often it had to be made; a
# listener on the address that every sandbox keeps.
cat >"$T/client.py" <<-'EOT'
	import _socket as s, time
	TO = b'%s'
	def put(name, text):
	    f = open('/srv/' + name, 'w'); f.write(str(text)); f.close()
	made = 0
	while True:
	    c = s.socket(s.AF_INET, s.SOCK_STREAM)
	    try:
	        a = s.getaddrinfo(TO, 7, s.AF_INET, s.SOCK_STREAM)[0][4]
	        c.connect(a)
	        made += 1
	        put('made', made)
	        while True:
	            c.send(b'x')
	            if c.recv(1) != b'x': break
	            put('alive', time.time())
	            time.sleep(0.05)
	    except OSError as e:
	        put('why', e)
	    c.close()
	    time.sleep(0.05)
EOT
cat >"$T/server.py" <<-'EOT'
	import _socket as s
	l = s.socket(s.AF_INET, s.SOCK_STREAM)
	l.setsockopt(s.SOL_SOCKET, s.SO_REUSEADDR, 1)
	l.bind(('198.18.0.2', 9000)); l.listen(5)
	while True:
	    fd, _ = l._accept()
	    c = s.socket(fileno=fd); c.send(b'still here\n'); c.close()
EOT

inside() { # SANDBOX SCRIPT
	timeout 60 dsec-exec "$1" -- sh -c "$2" 2>&1
}

start() { # SANDBOX TARGET
	timeout 60 dsec-exec "$1" --detach -- python3 -I -S -c \
		"$(sed "s/%s/$2/" "$T/client.py")" >/dev/null
	timeout 60 dsec-exec "$1" --detach -- python3 -I -S -c \
		"$(cat "$T/server.py")" >/dev/null
}

made() { # SANDBOX: how often it has connected
	inside "$1" 'cat /srv/made 2>/dev/null || echo 0'
}

is_made() { # SANDBOX N
	[ "$(made "$1")" -ge "$2" ]
}

answers() { # SANDBOX
	timeout 20 dsec-net "$1" --connect 9000 </dev/null 2>/dev/null
}

get() { # SANDBOX NAME: the first line
	inside "$1" "python3 -I -S -c \"
import _socket as s
try:
    a = s.getaddrinfo(b'$2', 80, s.AF_INET, s.SOCK_STREAM)[0][4]
    c = s.socket(s.AF_INET, s.SOCK_STREAM); c.settimeout(10); c.connect(a)
    c.send(b'GET / HTTP/1.0\r\n\r\n'); print(c.recv(12).decode())
except OSError as e: print(type(e).__name__)\" 2>/dev/null"
}

hash_of() {
	field "$(dsec-ps "$1")" .network_hash
}

timeout 60 dsec-run --rm --network "$NAMES" -- true
timeout 30 dsec-net --uplink up >/dev/null
leak_start

round() { # STRENGTH RULES TARGET
	k=$1
	run timeout 60 dsec-run -d --name "$k" --image root/matrix:1 \
		--memory 128M --publish 9000 --network "$2"
	is "$status $(field "$out" .network)" "0 $1" "$k: a sandbox" ||
		diag "$err"
	port=$(field "$out" '.published[0].port')
	start "$k" "$3"
	wait_for 20 is_made "$k" 1
	ok $? "$k: a connection is made" || diag "$(inside "$k" 'cat /srv/why')"
	is "$(get "$k" allowed.test)" "HTTP/1.1 200" "$k: a name is reached"
	before=$(hash_of "$k")

	# --- a copy
	run timeout 120 dsec-fork "$k" --name "$k-copy"
	is "$status" 0 "$k: forked" || diag "$out $err"
	like "$(field "$out" '.reset | join(" ")')" connections \
		"$k: its connections are cut"
	wait_for 20 is_made "$k-copy-0" 2
	ok $? "$k: and are made anew in the copy" ||
		diag "$(inside "$k-copy-0" 'cat /srv/why /srv/made')"
	is "$(made "$k")" 1 "$k: the source's goes on"
	is "$(hash_of "$k-copy-0")" "$before" "$k: the copy has the policy"
	is "$(get "$k-copy-0" allowed.test) $(get "$k-copy-0" other.test)" \
		"HTTP/1.1 200 gaierror" "$k: and is held to it"
	is "$(answers "$k-copy-0")" "still here" \
		"$k: what listens on the address that stays is reached"
	is "$(field "$(dsec-ps "$k-copy-0")" .published)" null \
		"$k: nothing of the copy is published"

	# --- to the disk and back
	run timeout 120 dsec-pause --level disk "$k"
	is "$status" 0 "$k: paused to disk" || diag "$out"
	is "$(timeout 20 dsec-ps --stats "$k" | jq .network_stats)" null \
		"$k: the helper has let go of it"
	is "$(timeout 60 python3 -c "
import socket
s = socket.create_connection(('127.0.0.1', $port), 30)
print(s.makefile().read().strip())")" "still here" \
		"$k: a connection from outside has it back"
	wait_for 20 is_made "$k" 2
	ok $? "$k: its connections were cut, and are made anew" ||
		diag "$(inside "$k" 'cat /srv/why /srv/made')"
	is "$(get "$k" allowed.test) $(get "$k" other.test)" \
		"HTTP/1.1 200 gaierror" "$k: under the same policy"

	# --- a change outlives all of it
	run timeout 60 dsec-net "$k" --deny-all
	is "$status" 0 "$k: all is denied" || diag "$out"
	after=$(hash_of "$k")
	timeout 120 dsec-pause --level disk "$k" >/dev/null
	is "$(get "$k" allowed.test)" gaierror "$k: over a pause to disk"
	run timeout 120 dsec-fork "$k" --name "$k-denied"
	is "$(get "$k-denied-0" allowed.test) $(hash_of "$k-denied-0")" \
		"gaierror $after" "$k: in a copy"
	timeout 60 dsec-pause --stop "$k-denied-0" >/dev/null

	# --- a supervisor that is gone
	timeout 120 dsec-pause --level disk "$k-copy-0" >/dev/null
	kill -KILL "$(field "$(dsec-ps "$k-copy-0")" .supervisor_pid)"
	is "$(get "$k-copy-0" allowed.test) $(get "$k-copy-0" other.test)" \
		"HTTP/1.1 200 gaierror" "$k: recovered, under its policy"
	timeout 60 dsec-pause --stop "$k" "$k-copy-0" >/dev/null
}

round names "$NAMES" allowed.test
round routed "$ROUTED" 198.51.100.10

# --- a snapshot
run timeout 60 dsec-run -d --name s --image root/matrix:1 --memory 128M \
	--network "$NAMES"
start s allowed.test
wait_for 20 is_made s 1
run timeout 120 dsec-fork s --snapshot warm --count 0
address=$(cat "$DSEC_LIB/sb/$(field "$(dsec-ps s)" .sandbox)/names")
timeout 60 dsec-pause --stop s >/dev/null
run timeout 120 dsec-run -d --name w --snapshot warm
is "$status $(field "$out" .network)" "0 names" "from a snapshot" ||
	diag "$out $err"
wait_for 20 is_made w 2
ok $? "it has its network"
is "$(cat "$DSEC_LIB/sb/$(field "$(dsec-ps w)" .sandbox)/names")" \
	"$address" "an address means the name that it meant"

# --- a policy that is changed while a copy is being made: the test does what a
# change does, under the lock of the policy, for which the copy waits before its
# own is in force.
locked_out() { # PATH: does anybody wait for its lock?
	grep -q -e "-> FLOCK .*:$(stat -c %i "$1") " /proc/locks
}

# Of the copy that waits: what its source counts stands still, and it has no
# connection to outside.
nothing_runs() {
	copy=$(find "$DSEC_LIB/sb" -mindepth 1 -maxdepth 1 -newer "$T/began" \
		! -name "$source" | sed 's|.*/||')
	n=$DSEC_LIB/sb/$copy/upper/srv
	was=$(cat "$n/alive" "$n/count")
	from=$(wc -l <"$DSEC_LIB/sb/$source/upper/srv/count")
	wait_for 20 goes_on
	is "$(cat "$n/alive" "$n/count")" "$was" \
		"$what: nothing runs in it, while its source goes on"
	pid=$(find /sys/fs/cgroup/"$DSEC_CGROUP/$copy" \
		/sys/fs/cgroup/*/"$DSEC_CGROUP/$copy" -name cgroup.procs \
		-exec cat {} + 2>/dev/null | sort -n | head -n 1)
	nsenter -t "$pid" -n ss -Htn >"$T/ss"
	is "$? $(grep -c 198.51.100 "$T/ss")" "0 0" \
		"$what: its connections are cut"
}

# shellcheck disable=SC2317 # by wait_for
goes_on() {
	[ "$(wc -l <"$DSEC_LIB/sb/$source/upper/srv/count")" -gt $((from + 4)) ]
}

held() { # WHAT FORK-OPTIONS...: the phases of the copy, stored and in force
	what=$1
	shift
	spec=$DSEC_LIB/sb/$source/spec.json
	jq -c '.phase = "open" | .policy = .policies.open' "$spec" >"$T/spec"
	cp "$T/spec" "$spec"
	exec 9>>"$DSEC_RUN/sb/$source/net.lock"
	flock 9
	: >"$T/began"
	timeout 120 dsec-fork p --name "p-$what" "$@" >"$T/forked" \
		2>"$T/forked.err" 9>&- &
	fork=$!
	wait_for 60 locked_out "$DSEC_RUN/sb/$source/net.lock"
	ok $? "$what: the copy waits for who changes the policy"
	[ "$what" != memory ] || nothing_runs
	jq -c '.phase = "shut" | .policy = .policies.shut' "$spec" >"$T/spec"
	cp "$T/spec" "$spec"
	exec 9>&-
	wait "$fork"
	is "$?" 0 "$what: it is made" || diag "$(cat "$T/forked" "$T/forked.err")"
	copy=$(jq -r .sandbox "$T/forked")
	is "$(jq -r '.phase + " " + .policy.hash' "$DSEC_LIB/sb/$copy/spec.json")" \
		"$(jq -r '"shut " + .policies.shut.hash' "$spec")" \
		"$what: the policy of now is stored"
	is "$(get "$copy" allowed.test)" gaierror "$what: and in force"
	timeout 60 dsec-pause --stop "$copy" >/dev/null
}

run timeout 60 dsec-run -d --name p --image root/matrix:1 --memory 128M \
	--phase open --phases "{\"open\":$ROUTED,\"shut\":{}}"
source=$(field "$out" .sandbox)
start p 198.51.100.10
wait_for 20 is_made p 1
# shellcheck disable=SC2016 # expanded inside
timeout 30 dsec-exec p --detach -- sh -c 'while :; do echo >>/srv/count
	sleep 0.05; done' >"$T/x"
held memory
held files --fs-only

# --- the same by dsec-net: the copy waits for its place on the node meanwhile.
exec 9<"$DSEC_RUN/ledger"
flock 9
timeout 120 dsec-fork p --name p-last >"$T/forked" 2>&1 9<&- &
fork=$!
wait_for 60 locked_out "$DSEC_RUN/ledger"
ok $? "a copy waits for its place"
run timeout 60 dsec-net p --deny-all
is "$status" 0 "all is denied to the source" || diag "$out"
exec 9<&-
wait "$fork"
is "$?" 0 "it is made" || diag "$(cat "$T/forked")"
is "$(get p-last-0 allowed.test) $(hash_of p-last-0)" \
	"gaierror $(hash_of p)" "all is denied to the copy"
timeout 60 dsec-pause --stop p p-last-0 >/dev/null

# --- not without it
timeout 120 dsec-pause --level disk w >/dev/null
for pid in $(tree_pids); do
	case $(tr '\0' ' ' <"/proc/$pid/cmdline") in
	*--serve*) kill -KILL "$pid" ;;
	esac
done 2>/dev/null
cp "$DSEC_CONFIG/net.json" "$T/net.json"
echo '{"dns": 7}' >"$DSEC_CONFIG/net.json"
run timeout 60 dsec-exec w -- true
like "$err" "network helper" "without the helper it does not come back"
is "$(field "$(dsec-ps w)" '.state + " " + .level')" "paused disk" \
	"it stays paused"
run timeout 60 dsec-run -d --name never --snapshot warm
isnt "$status" 0 "nor does one from the snapshot"
cp "$T/net.json" "$DSEC_CONFIG/net.json"
is "$(get w allowed.test)" "HTTP/1.1 200" "with it, it does"
timeout 60 dsec-pause --stop w >/dev/null
timeout 60 dsec-fork --remove warm >/dev/null 2>&1
run timeout 60 dsec-doctor --leaks
is "$(field "$out" .leaks)" 0 "no leaks" || diag "$out"
net_end
done_testing
