#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What comes back from a checkpoint is as it was, but for who it is: identity,
# hooks, mounts, limits; and nothing is left of a restore that failed.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
need_root
need_tools jq busybox
tree_new
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"
mkdir "$T/shared"
echo from the node >"$T/shared/file"
echo "$T/shared" >"$DSEC_CONFIG/mounts.allow"
matrix_image || plan_skip_all "no image"

inside() { # SANDBOX SCRIPT
	timeout 30 dsec-exec "$1" -- sh -c "$2" 2>&1
}

stop() {
	timeout 30 dsec-pause --stop "$@" >/dev/null
}

# --- one that has all of it
run timeout 30 dsec-run --image root/matrix:1 --name source --hostname first \
	--pids 40 --memory 64M -e GREETING=hello \
	--mount '[{"source":"'"$T/shared"'","target":"/shared"}]' --detach -- \
	sh -c 'i=0; while :; do i=$((i+1)); echo $i; echo $i >/tmp/m; mv /tmp/m /tmp/n; sleep 0.1; done'
is "$status" 0 "the source runs"
s=$(field "$out" .sandbox)
inside "$s" 'mkdir -p /etc/dsec/fork.d /var/lib/dbus && cd /etc/dsec/fork.d &&
	echo 0123456789abcdef0123456789abcdef >/etc/machine-id &&
	ln -s ../../../etc/machine-id /var/lib/dbus/machine-id &&
	printf "%s\n" "#!/bin/sh" "exec >/tmp/told" "cat | wc -c" \
		"echo \$DSEC_FORK \$GREETING; id -u; a=\$(cat /tmp/n)" \
		"sleep 0.5; [ \$a = \$(cat /tmp/n) ] && echo still" >10-first &&
	printf "#!/bin/sh\nexit 3\n" >20-bad && echo junk >30-junk &&
	printf "#!/bin/sh\necho no >/tmp/not-run\n" >40-not && chmod 755 [123]*' ||
	diag "the image's hooks were not made"
timeout 30 dsec-exec "$s" --detach --tty -- sh -c \
	'while read -r x; do echo "got $x"; done' >/dev/null

# --- a copy
run timeout 60 dsec-fork "$s" --hostname second
is "$status" 0 "it is forked"
f=$(field "$out" .sandbox)
json_is "$out" '{"reset":["id","uid-range","connections","hostname",
	"machine-id"],"not_reset":["boot-id","address-layout","random-state"],
	"memory":"private"}' "the record says what is new" \
	'{reset,not_reset,memory}'
# Without a pool the copied files are warned of too.
is "$(field "$out" '.warnings[] | select(test("copied file by file") | not)')" \
	"/etc/dsec/fork.d/20-bad: ended with status 3
/etc/dsec/fork.d/30-junk: '/etc/dsec/fork.d/30-junk' cannot be executed: Exec format error" \
	"and which hooks failed"
is "$(inside "$f" 'cat /tmp/told')" "32
1 hello
0
still" "a hook has a seed, the environment and root, while all else stands"
is "$(inside "$f" 'cat /tmp/not-run')" \
	"cat: can't open '/tmp/not-run': No such file or directory" \
	"what is not executable is no hook"
id=$(inside "$f" 'cat /etc/machine-id')
[ "${#id}" = 32 ] && [ "$id" != 0123456789abcdef0123456789abcdef ]
ok $? "its machine id is new"
is "$(inside "$s" 'cat /etc/machine-id')" 0123456789abcdef0123456789abcdef \
	"the source's is not"
is "$(inside "$s" hostname) $(inside "$f" hostname)" "first second" \
	"each has its own host name"
is "$(inside "$f" 'cat /shared/file; echo x >/shared/file')" "from the node
sh: can't create /shared/file: Read-only file system" \
	"a directory of the node is there, read-only as it was"
a=$(inside "$f" 'cat /tmp/n')
wait_for 10 sh -c "[ \"\$(timeout 10 dsec-exec $f -- cat /tmp/n)\" -gt $a ]"
ok $? "its command goes on"
like "$(inside "$f" 'cat /proc/1/environ')" "Permission denied" \
	"its pid 1 cannot be read"
pid=$(dsec-ps "$f" | jq .init_pid)
isnt "$(dsec-ps "$f" | jq .uid_base)" "$(dsec-ps "$s" | jq .uid_base)" \
	"its uid range is its own"
is "$(nsenter -t "$pid" -U cat /proc/sys/user/max_user_namespaces)" 0 \
	"no user namespace can be made in it"
is "$(cat "/proc/$pid/oom_score_adj")" \
	"$(cat "/proc/$(dsec-ps "$s" | jq .init_pid)/oom_score_adj")" \
	"the node's memory killer likes both the same"
is "$(cat /sys/fs/cgroup/*/"$DSEC_CGROUP/$f"/pids.max \
	/sys/fs/cgroup/"$DSEC_CGROUP/$f"/pids.max 2>/dev/null)" 40 \
	"its limits are those of the source"

# --- a copy of the copy, and that one on the disk and back
run timeout 60 dsec-fork "$f"
is "$status" 0 "a copy is forked"
g=$(field "$out" .sandbox)
isnt "$(inside "$g" 'cat /etc/machine-id')" "$id" "into yet another"
run timeout 60 dsec-pause --disk "$g"
is "$status" 0 "that one goes to the disk"
is "$(inside "$g" 'cat /proc/sys/kernel/hostname')" second "and comes back"
[ "$(inside "$g" 'cat /tmp/n')" -gt "$a" ]
ok $? "where it was"

# --- a restore that fails leaves it on the disk
inside "$g" 'echo text >/tmp/held; tail -f /tmp/held >/dev/null 2>&1 &' || :
timeout 30 dsec-exec "$g" --detach -- tail -f /tmp/held >/dev/null
wait_for 10 sh -c "timeout 10 dsec-exec $g -- ps | grep -q 'tail -f'"
run timeout 60 dsec-pause --disk "$g"
is "$status" 0 "on the disk again"
held=$DSEC_LIB/sb/$g/upper/tmp/held
cp -p "$held" "$T/held"
echo more >>"$held"
run timeout 60 dsec-pause --resume "$g"
is "$status $(field "$out" .error.code) $(field "$out" .error.infra)" \
	"71 engine true" "a file that changed meanwhile: it does not resume"
like "$(field "$out" .error.message)" "Unable to open" \
	"and the engine says why"
is "$(dsec-ps "$g" | jq -r .level)" disk "it is on the disk still"
cat "$T/held" >"$held"
run timeout 60 dsec-pause --resume "$g"
is "$status $(field "$out" .state)" "0 running" "with the file as it was, it does"
stop "$g" "$f"

# --- killed in the middle: nothing of it stays
run timeout 60 dsec-fork "$s" --snapshot kept
is "$status" 0 "a snapshot is made"
stop "$s"
leak_start
for n in 0.05 0.2 0.4; do
	timeout 60 dsec-run --snapshot kept --detach >"$T/killed" 2>/dev/null &
	maker=$!
	wait_for 10 pgrep -f "dsec-ckpt restore --from $DSEC_LIB/snap" >/dev/null
	sleep "$n"
	pgrep -f "dsec-ckpt restore --from $DSEC_LIB/snap" |
		xargs -r kill -9 2>/dev/null
	wait "$maker"
	made=$(jq -r 'select(.ok)|.sandbox' "$T/killed")
	[ -z "$made" ] || stop "$made"
done
is "$(dsec-ps | jq -r .sandbox)" "" "restores that were killed left no sandbox"
leak_check "nor anything else"

# --- a node whose dsec-init is another one
mkdir "$T/libexec"
for x in "$BIN"/../libexec/dsec/*; do
	cp "$x" "$T/libexec/"
done
printf x >>"$T/libexec/dsec-init"
run env DSEC_LIBEXEC="$T/libexec" timeout 60 dsec-run --snapshot kept --detach
is "$status" 0 "a snapshot of another release's pid 1"
i=$(field "$out" .sandbox)
is "$(inside "$i" 'stat -c %s /dev/dsec-init')" \
	"$(stat -c %s "$BIN/../libexec/dsec/dsec-init")" "runs on with that one"
stop "$i"

# --- memory that may be merged, where the node is one tenant's
printf '{"single_tenant":true}\n' >"$DSEC_CONFIG/node.json"
run timeout 60 dsec-run --snapshot kept --detach
i=$(field "$out" .sandbox)
if [ "$(field "$out" .memory)" = ksm ]; then
	ksm=$(cat "/proc/$(dsec-ps "$i" | jq .init_pid)/ksm_stat")
	case $ksm in
	*ksm_merge_any*)
		like "$ksm" "ksm_merge_any: yes" \
			"a node of one tenant merges memory"
		;;
	*) # Whether it merges is seen where it does: tests/vm/guest/ksm.t.
		skip "a node of one tenant merges memory" \
			"this kernel does not say who has asked for it"
		;;
	esac
else
	skip "a node of one tenant merges memory" "$(field "$out" .memory)"
fi
stop "$i"
run timeout 30 dsec-fork --remove kept
is "$(find "$DSEC_LIB/sb" "$DSEC_RUN/sb" -mindepth 1 | wc -l)" 0 \
	"nothing of them is left"
done_testing
