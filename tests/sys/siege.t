#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a sandbox may do to those around it, seen from outside: groups 11 to 18
# of the escape list.  tests/sys/siege.c and hoard.c do it.
# shellcheck disable=SC2034,SC2317 # functions for wait_for; a counter
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq python3 timeout
helpers=$(cd "$BUILD/helpers" && pwd)
tree_new
leak_start
echo "$helpers" >"$DSEC_CONFIG/mounts.allow"
mounts="[{\"source\":\"$helpers\",\"target\":\"/opt\"}]"

# All that is ours ends by itself, whatever the sandbox does.
limit() {
	timeout -k 5 -s KILL "$@"
}

up() { # NAME FLAG...
	up_name=$1
	shift
	limit 30 dsec-run --detach --name "$up_name" --mount "$mounts" "$@" \
		</dev/null >"$T/up" 2>&1
	is "$(jq -r '.state?' "$T/up" 2>&1)" running "$up_name is up" ||
		diag "$(cat "$T/up")"
}

in_box() { # NAME ARGV...: raw
	in_name=$1
	shift
	limit 30 dsec-exec "$in_name" -- "$@" </dev/null 2>"$T/err"
}

start() { # NAME COMMAND: sets $exec; what it starts does not end by itself
	exec=$(limit 30 dsec-exec "$1" --detach --cmd "exec $2" \
		</dev/null | jq -r .exec)
}

said() { # NAME EXEC: its output so far
	limit 30 dsec-exec "$1" --op output --exec "$2" </dev/null |
		jq -r .data
}

says() { # NAME EXEC ERE
	said "$1" "$2" | grep -Eq -e "$3"
}

over() { # NAME EXEC: ends what lasts until it is told
	limit 30 dsec-exec "$1" --op signal --exec "$2" --signal USR1 \
		</dev/null >"$T/over" 2>&1
	limit 30 dsec-exec "$1" --op wait --exec "$2" </dev/null >"$T/wait"
}

stop() { # NAME
	limit 30 dsec-pause --stop --grace 0 "$1" </dev/null >"$T/stop" 2>&1
	is "$(jq -r '.state?' "$T/stop" 2>&1)" stopped "$1 is stopped" ||
		diag "$(cat "$T/stop")"
}

up neighbour --pids 64 --memory 128M

# --- 11: a fork bomb ----------------------------------------------------------

up bomb --pids 48 --memory 128M
start bomb '/opt/siege bomb'
wait_for 20 says bomb "$exec" '^11 bomb'
ok $? "a fork bomb goes off"
n=$(said bomb "$exec" | sed -n 's/^11 bomb	\([0-9]*\) EAGAIN$/\1/p')
[ "${n:-99}" -lt 48 ]
ok $? "and is held at ${n:-?} processes of 48"
ended() { # NAME EXEC
	limit 30 dsec-exec "$1" --op output --exec "$2" </dev/null |
		jq -e .ended >"$T/ended"
}
ended bomb "$exec"
isnt $? 0 "it still burns"
is "$(in_box neighbour echo alive)" alive "the neighbour goes on"
is "$(limit 30 dsec-run --rm -- echo new </dev/null)" new \
	"the node still makes sandboxes"
in_box bomb true
isnt $? 137 "a command for the full sandbox is answered"
says bomb "$exec" '^11 bomb'
ok $? "and its supervisor goes on"
stop bomb

# --- 11: everything in reach is killed ----------------------------------------

up killer --memory 128M
start killer 'sleep 1000'
victim=$exec
in_box killer sh -c 'kill -9 -1' || :
limit 30 dsec-exec killer --op wait --exec "$victim" </dev/null >"$T/wait"
is "$(jq -r .signal "$T/wait")" SIGKILL "kill -9 -1 ends what runs inside"
is "$(in_box killer echo alive)" alive "but not pid 1"
is "$(in_box neighbour echo alive)" alive "nor a neighbour"
is "$(in_box killer sh -c 'kill -9 1; ulimit -t 1; echo alive')" alive \
	"pid 1 is not ended from inside"
is "$(limit 30 dsec-ps --all </dev/null | jq -r 'select(.name == "killer") |
	.state')" running "so no end of a sandbox is forged"

# --- 11: who comes in is neither traced nor read ------------------------------

limit 30 dsec-exec killer --detach --cmd 'exec /opt/siege hunt' </dev/null \
	>"$T/hunt"
hunt=$(jq -r .exec "$T/hunt")
wait_for 10 says killer "$hunt" 'ready'
ok $? "a hunter waits inside"
good=0
for i in 1 2 3 4 5 6; do
	in_box killer true && good=$((good + 1))
	limit 30 dsec-exec killer --op read --path /etc/passwd </dev/null |
		jq -e .ok >"$T/ok" && good=$((good + 1))
done
is $good 12 "commands and file operations work meanwhile"
over killer "$hunt"
said killer "$hunt" >"$T/prey"
like "$(cat "$T/prey")" 'prey	ours 0 environ 0 fds 0 $' \
	"nothing of ours was seen"
seen=$(sed -n 's/^11 hunt seen	//p' "$T/prey")
[ "${seen:-0}" -ge 4 ]
ok $? "though ${seen:-0} processes were met"

# --- 11: nor can it hold up whom it meets --------------------------------------

for signal in 19 9 14; do
	limit 30 dsec-exec killer --detach --cmd \
		"exec /opt/siege ambush $signal" </dev/null >"$T/ambush"
	ambush=$(jq -r .exec "$T/ambush")
	wait_for 10 says killer "$ambush" 'ready'
	# A stopped one takes its two seconds; a killed one may be met anywhere.
	n=12
	[ $signal != 19 ] || n=5
	for i in $(seq $n); do
		limit 4 dsec-exec killer --timeout 1 --grace 0.1 --cmd true \
			</dev/null 2>"$T/err"
	done >"$T/rec"
	is "$(jq -c 'has("ok")' "$T/rec" | grep -c true)" $n \
		"$n commands are answered under signal $signal"
	unlike "$(cat "$T/rec")" supervisor_lost "and none ends their supervisor"
	over killer "$ambush"
	is "$(jq -r .outcome "$T/wait")" exited "the ambush ends" ||
		diag "$(cat "$T/rec" "$T/over" "$T/wait")"
	isnt "$(said killer "$ambush" | sed -n 's/^11 ambush hit	//p')" 0 \
		"it hit somebody"
	is "$(in_box killer echo alive)" alive "and nothing is worse for it" ||
		diag "$(cat "$T/err")"
done

# --- 12: the sandbox's programs are its own; ours are not among them ----------

in_box killer sh -c 'echo /tmp/evil.so >/etc/ld.so.preload'
in_box killer true
like "$(cat "$T/err")" 'evil.so' "ld.so.preload reaches the sandbox's programs"
in_box killer sh -c 'echo "#!/nowhere" >/tmp/sh && chmod 755 /tmp/sh &&
	ln -s /tmp /tmp/bin && mv /bin /bin.old && ln -s /tmp /bin'
is $? 0 "/bin is replaced"
limit 30 dsec-exec killer --op write --path /tmp/w --data x </dev/null \
	>"$T/rec" 2>"$T/err"
is "$(jq -r .ok "$T/rec")$(cat "$T/err")" true "our write is untouched by both"
limit 30 dsec-exec killer --op read --path /tmp/w </dev/null >"$T/rec" \
	2>"$T/err"
is "$(jq -r .data "$T/rec")$(cat "$T/err")" x "and so is our read"
stop killer

# --- 14: what runs out --------------------------------------------------------

up hoarder --memory 256M --shm 32M
start hoarder '/opt/hoard take'
wait_for 60 says hoarder "$exec" '^14 hoard	held'
ok $? "one sandbox takes all it can"
said hoarder "$exec" | grep '^14' >"$T/hoard"
diag "$(tr '\n\t' ';=' <"$T/hoard")"
of() { sed -n "s|^14 $1	||p" "$T/hoard"; }
is "$(of 'space of /dev/shm')" 32 "/dev/shm ends at its size"
[ "$(of 'inodes of /dev/shm')" -le 8192 ]
ok $? "and at its inodes"
[ "$(of inotify)" -gt 0 ] && [ "$(of terminals)" -gt 0 ]
ok $? "inotify and terminals were to be had"
[ "$(of terminals)" -le 64 ]
ok $? "terminals end at 64"
is "$(of keys)" -1 "keys are not to be had at all"
in_box neighbour /opt/hoard share >"$T/share"
unlike "$(cat "$T/share")" '	[^o]' "the neighbour gets its share of everything" ||
	diag "$(cat "$T/share")"
is "$(grep -c '	ok$' "$T/share")" 11 "of all eleven"
ended hoarder "$exec"
isnt $? 0 "while all is held"
stop hoarder

# Leases: inner root is the owner of what read-only layers hold for root.
cat >"$T/lease.py" <<'PY'
import fcntl, sys
for name in sys.argv[1:]:
    try:
        fcntl.fcntl(open(name), fcntl.F_SETLEASE, fcntl.F_WRLCK)
        print("leased")
    except OSError as e:
        print(e.errno)
PY
cp "$T/lease.py" "$T/mine"
is "$(python3 "$T/lease.py" "$T/mine")" leased "outside a file can be leased"
is "$(limit 30 dsec-run --rm -- python3 -c "$(cat "$T/lease.py")" \
	/usr/bin/factor /etc/passwd </dev/null | tr '\n' ' ')" "13 13 " \
	"inside none, so that none makes its neighbours wait"

# --- 15: a command that does not read holds nobody up --------------------------

head -c 1000000 /dev/zero >"$T/big"
limit 20 dsec-run --rm --ttl 1 -- sleep 1000 <"$T/big" 2>"$T/err"
is $? 137 "ttl ends a command that does not read its input"
like "$(cat "$T/err")" ttl_absolute "and says so"

# --- 16: addresses of the host --------------------------------------------------

cat >"$T/listen.py" <<'PY'
import socket, sys, os
t, name = sys.argv[1:]
u = socket.socket(socket.AF_UNIX); u.bind(t + "/host.sock"); u.listen()
a = socket.socket(socket.AF_UNIX); a.bind("\0" + name); a.listen()
i = socket.socket(); i.bind(("0.0.0.0", 0)); i.listen()
os.chmod(t + "/host.sock", 0o777)
with open(t + "/port.new", "w") as f:
    f.write(str(i.getsockname()[1]))
os.rename(t + "/port.new", t + "/port")
sys.stdin.read()
PY
mkfifo "$T/listen"
python3 "$T/listen.py" "$T" "dsec-siege-$$" <"$T/listen" &
listener=$!
exec 9>"$T/listen"
wait_for 10 test -s "$T/port"
port=$(cat "$T/port")
set -- "unix:$T/host.sock" "abstract:dsec-siege-$$" "tcp:127.0.0.1:$port" \
	"tcp:169.254.169.254:80" "tcp:1.1.1.1:53" vsock:1
"$helpers/siege" reach "$1" "$2" "$3" >"$T/reach"
is "$(grep -c '	ok$' "$T/reach")" 3 "the host's addresses answer the host"
for profile in default sealed nested; do
	limit 30 dsec-run --rm --profile $profile --mount "$mounts" -- \
		/opt/siege reach "$@" </dev/null >"$T/reach" 2>&1
	is "$(cut -f 2 "$T/reach" | tr '\n' ' ')" \
		"ENOENT ECONNREFUSED ECONNREFUSED ENETUNREACH ENETUNREACH EAFNOSUPPORT " \
		"$profile: none is reached from inside"
done
exec 9>&-
wait $listener

# --- 17, 18 ---------------------------------------------------------------------

if [ -x /usr/bin/su ]; then
	limit 30 dsec-run --rm --user user --cwd / -- sh -c \
		'id -u; su -c "echo root"; echo "su $?"' </dev/null \
		>"$T/su" 2>&1
	like "$(cat "$T/su")" '^1000$' "as a user"
	like "$(cat "$T/su")" '^su [1-9]' "su fails"
	unlike "$(cat "$T/su")" '^root$' "and runs nothing"
fi
# Files of the writable layer have the ids of the inside on disk, too: what is
# setuid root there must be out of reach of the node's other users.
in_box neighbour sh -c 'cp /bin/true /root/evil && chmod 6755 /root /root/evil'
chmod 755 "$DSEC_LIB"
evil=$(find "$DSEC_LIB" -path '*/root/evil')
like "$(ls -ln "$evil")" '^-rws.* 0  *0 ' "a setuid file of the layer"
python3 -c 'import os, sys
os.setgroups([]); os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
os.execv(sys.argv[1], sys.argv[1:])' "$evil" 2>"$T/err"
isnt $? 0 "is not executed by a user of the node"
like "$(cat "$T/err")" 'Permission denied' "for want of permission"
chmod 700 "$DSEC_LIB"

limit 30 dsec-exec neighbour --timeout 0.5 --grace 0.1 --cmd \
	'trap "" TERM; kill -STOP $$; sleep 60' </dev/null >"$T/rec"
is "$(jq -r .outcome "$T/rec")" timeout "a stopped command does not stop time"
in_box neighbour /opt/siege inside >"$T/inside"
like "$(cat "$T/inside")" '^18 clock_settime	EPERM' "nor can it be set"
stop neighbour

leak_check "nothing is left"
done_testing
