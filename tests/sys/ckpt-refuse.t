#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What cannot be checkpointed is refused before anything is touched, with the
# process and the reason; what will not be as it was is warned of.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
need_root
need_tools jq busybox
tree_new
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"

mkdir -p "$T/root/bin" "$T/root/tmp" "$T/root/etc"
cp "$(command -v busybox)" "$T/root/bin/busybox"
for tool in sh cat ls echo mkdir sleep kill touch; do
	ln -s busybox "$T/root/bin/$tool"
done
cp "${BUILD:?}/helpers/oddity" "$T/root/bin/oddity"
printf 'root:x:0:0:root:/root:/bin/sh\n' >"$T/root/etc/passwd"
run timeout 60 dsec-img import "dir:$T/root" --as root/odd:1 --kind base
ok "$status" "an image" || diag "$err"

create() { # JSON
	printf '%s\n' "$1" | timeout 30 dsec-run >"$T/created" 2>"$T/.err"
	jq -r .sandbox "$T/created"
}

init_of() {
	dsec-ps "$1" </dev/null | jq -r .init_pid
}

# A command in the sandbox, which is $e, until it says WORD.
begin() { # WORD ARG...
	word=$1
	shift
	e=$(timeout 20 dsec-exec "$s" --detach -- "$@" </dev/null | jq -r .exec)
	wait_for 20 said "$word"
}

said() {
	timeout 20 dsec-exec "$s" --op output --exec "$e" </dev/null 2>/dev/null |
		jq -r '.data // ""' | grep -Eq "$1"
}

end() {
	timeout 20 dsec-exec "$s" --op signal --exec "$e" --signal KILL \
		</dev/null >/dev/null 2>&1
	wait_for 10 ended
}

# shellcheck disable=SC2317 # by wait_for
ended() {
	timeout 20 dsec-exec "$s" --op list-execs </dev/null |
		jq -e --arg e "$e" 'all(.execs[]; .exec != $e or .running != true)' \
			>/dev/null
}


# What is there now is refused for REASON, and the sandbox runs on.
refused() { # REASON WHAT
	run timeout 60 dsec-pause --level disk "$s"
	is "$status $(field "$out" .error.code)" "1 not_checkpointable" "$2"
	like "$(field "$out" .error.message)" "$1" "$2: the reason"
	is "$(dsec-ps "$s" </dev/null | jq -r .state)" running "$2: it runs on"
	[ ! -e "$DSEC_LIB/sb/$s/ckpt" ] && [ ! -e "$DSEC_LIB/sb/$s/ckpt.new" ]
	ok $? "$2: nothing is left of the try"
}

# --- shapes
s=$(create '{"image":"host"}')
refused "image .?host" "image host"
run timeout 30 dsec-pause --stop "$s"
for profile in sealed nested; do
	s=$(create '{"image":"root/odd:1","profile":"'$profile'"}')
	refused "profile" "profile $profile"
	run timeout 30 dsec-pause --stop "$s"
done

# --- descriptors that came from elsewhere
s=$(create '{"image":"root/odd:1","memory_limit_mb":64}')
in=/proc/$(init_of "$s")/root
for kind in io_uring fanotify userfaultfd perf bpf seccomp netns file socket \
	vsock; do
	begin hears /bin/oddity take /tmp/s
	run timeout 10 "$BUILD/helpers/oddity" give "$in/tmp/s" $kind
	if [ "$out" != ready ]; then
		skip "a descriptor of kind $kind" "${out:-it could not be sent}"
		end
		continue
	fi
	wait_for 10 said ready
	case $kind in
	userfaultfd) reason='kind that cannot be checkpointed: .userfaultfd' ;;
	perf) reason='kind that cannot be checkpointed: .perf_event' ;;
	bpf) reason='kind that cannot be checkpointed: bpf-map' ;;
	seccomp) reason='kind that cannot be checkpointed: seccomp notify' ;;
	netns) reason='namespace open that is not the sandbox' ;;
	file) reason='file open that lies outside' ;;
	socket) reason='another network namespace' ;;
	vsock) reason='socket of family 40' ;;
	*) reason="kind that cannot be checkpointed: .$kind" ;;
	esac
	refused "^process [0-9]+ .'oddity'. .*$reason" "a descriptor of kind $kind"
	end
done

# --- a connection from outside
begin hears /bin/oddity meet /tmp/s
"$BUILD/helpers/oddity" call "$in/tmp/s" >/dev/null 2>&1 &
caller=$!
wait_for 10 said ready
refused "'oddity'.*unix socket whose peer is not in the sandbox" \
	"a unix socket from outside"
kill "$caller"
wait "$caller" 2>/dev/null
end

# --- who was brought in from outside
nsenter -t "$(init_of "$s")" -m -p -n sleep 100 >/dev/null 2>&1 &
stranger=$!
inner=
for _ in 1 2 3 4 5 6 7 8 9 10; do
	inner=$(pgrep -P "$stranger" sleep) && break
	sleep 0.1
done
group=$(cut -d: -f3- "/proc/$(init_of "$s")/cgroup" | tail -n 1)
top=$(awk '$9=="cgroup2"||$10=="cgroup2"||/ - cgroup2 /{print $5;exit}' \
	/proc/self/mountinfo)
if [ -n "$inner" ] && echo "$inner" >"$top$group/cgroup.procs" 2>/dev/null; then
	refused "parent outside of the sandbox" "a process that was brought in"
	kill "$inner"
else
	skip "a process that was brought in" "it could not be"
fi
kill "$stranger" 2>/dev/null
wait "$stranger" 2>/dev/null

# --- what processes do to each other, and to files
begin 'ready|cannot' /bin/oddity traced
if said ready; then
	refused "is traced by a debugger" "a traced process"
else
	skip "a traced process" "the profile does not let it"
fi
end
begin ready /bin/oddity unnamed /tmp/w
refused "watched by inotify has no name" "a watched file without a name"
end
begin ready /bin/oddity linked /tmp/l
refused "'oddity'.* whose name was removed while another" \
	"an open file with another name"
end

begin ready /bin/oddity connecting
refused "'oddity'.* has a TCP connection that is not made yet" \
	"a connection without an answer"
end
begin ready /bin/oddity headless
refused "'oddity'.* has threads that run on after its first" \
	"a process without its first thread"
end
ended
ok $? "it can be killed, for all that"
begin ready /bin/oddity spawning
refused "'oddity'.* waits for a child that has not begun" \
	"a process that waits for its vfork()"
ok "$(field "$out" '.error.retry_after_ms // 0 | if . > 0 then 0 else 1 end')" \
	"it may be tried again"
end
begin ready /bin/oddity spawning 1
run timeout 60 dsec-pause --level disk "$s"
is "$status $(field "$out" .level)" "0 disk" \
	"one that is over soon is waited for" || diag "$out"
run timeout 60 dsec-pause --resume "$s"
is "$(field "$out" .state)" running "and it comes back" || diag "$out"
in=/proc/$(init_of "$s")/root
end
begin ready /bin/oddity watching /proc/self/status
refused "'oddity'.* watches by inotify what cannot be found again" \
	"a watched file of /proc"
end
begin ready /bin/oddity deep /tmp
refused "'oddity'.* (path is|path that is) too long" "a file at a long path"
end

# --- names are not to be believed
cp_name=$(printf 'a\033]0;b\\n')
timeout 20 dsec-exec "$s" -- sh -c \
	'cat /bin/oddity >"/tmp/$1"; chmod 755 "/tmp/$1" 2>/dev/null ||
	busybox chmod 755 "/tmp/$1"' sh "$cp_name" </dev/null >/dev/null 2>&1
begin hears "/tmp/$cp_name" take /tmp/s
run timeout 10 "$BUILD/helpers/oddity" give "$in/tmp/s" file
wait_for 10 said ready
run timeout 60 dsec-pause --level disk "$s"
is "$(field "$out" .error.code)" not_checkpointable "a process of a bad name"
printf '%s' "$out" | LC_ALL=C grep -q '[^ -~]'
is "$?" 1 "its name is printed as plain text"
unlike "$(field "$out" .error.message)" "$(printf '\033')" "nor after decoding"
end

# --- warnings
begin ready /bin/oddity ticks
tick=$e
begin ready /bin/oddity events /tmp
event=$e
begin ready /bin/oddity backlog
run timeout 60 dsec-pause --level disk "$s"
is "$(field "$out" .ok)" true "what can be, is" || diag "$out"
like "$(field "$out" '.warnings[]')" "'oddity'.*periodic timer" \
	"a tick that was not read is warned of"
like "$(field "$out" '.warnings[]')" "'oddity'.*events of inotify" \
	"events that were not read are warned of"
like "$(field "$out" '.warnings[]')" "'oddity'.*connections.* not accepted" \
	"a connection that waits is warned of"
: "$tick" "$event"
run timeout 30 dsec-pause --stop "$s"
is "$status" 0 "it can be stopped"
done_testing
