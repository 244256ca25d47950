#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# README.md on many machines and on Python, as it is written, in a network
# namespace that has its addresses: the commands in their order.  socat alone,
# with a client certificate, creates, runs, pauses and stops.  What it does to
# the machine itself (a user, units) is done in another way.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/net.sh
. "$(dirname "$0")/net.sh"
net_enter
need_tools socat jq python3 setpriv
tree_new
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
echo '{"cpu_overcommit":500}' >"$DSEC_CONFIG/node.json"
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
ip addr add 10.0.0.1/24 dev br0
ip addr add 10.0.0.2/24 dev br0
root=$PWD
D=$T/etc/serve
mkdir -p "$T/etc" "$T/home"
export DSEC_TLS="$D" DSEC_CLIENT="$D/client.json"

daemons='' n2_tree="DSEC_RUN=$T/n2/run DSEC_LIB=$T/n2/lib DSEC_CONFIG=$T/n2
	DSEC_CGROUP=$DSEC_CGROUP-2"
mkdir -p "$T/n2/run" "$T/n2/lib"
n2_gone() {
	find /sys/fs/cgroup -depth -type d -path "*/$DSEC_CGROUP-2*" \
		-exec rmdir {} + 2>"$T/null"
	[ -z "$(find /sys/fs/cgroup -type d -path "*/$DSEC_CGROUP-2*" 2>"$T/null")" ]
}
# shellcheck disable=SC2086,SC2317 # words; by the trap
end() {
	cd "$root" || exit 1
	env $n2_tree timeout 20 dsec-pause --stop --grace 0 --project root \
		</dev/null >"$T/null" 2>&1
	kill $daemons
	wait
	wait_for 10 n2_gone || diag "groups of the second node are left"
	tree_end "$1"
}
trap 'end $?' EXIT

# The commands of a section; an indented line whose quotes are open goes on.
section() { # SECTION
	awk -v s="## $1" '/^## / { on = $0 == s; next } on' "$root/README.md"
}
commands() { # SECTION
	section "$1" | awk '/^    / {
		line = line (line == "" ? "" : "\n") substr($0, 5)
		rest = line
		if (gsub(/\047/, "", rest) % 2 == 0) { print line; line = "" }
	}'
}
# A daemon as its unit has it.
unit() { # NAME
	exec=$(sed -n 's/^ExecStart=//p' "$root/share/systemd/$1.service" |
		sed "s|/usr/local/bin/||; s|/etc/dsec/serve|$D|")
	as=''
	grep -q '^User=dsec-serve$' "$root/share/systemd/$1.service" &&
		as='setpriv --reuid nobody --clear-groups --no-new-privs'
	: >"$T/ready"
	# shellcheck disable=SC2086 # words
	$as $exec --ready-fd 9 9>"$T/ready" >>"$T/$1.log" 2>&1 </dev/null &
	daemons="$daemons $!"
	wait_for 30 grep -q ready "$T/ready"
	ok $? "$1 serves: $(cat "$T/ready")" || diag "$(cat "$T/$1.log")"
}
live() { # N
	[ "$(dsec-serve client nodes </dev/null 2>"$T/null" |
		grep -c '"state":"live"')" -eq "$1" ]
}
answer() { # FILTER: of the record with ok in $out
	printf '%s\n' "$out" | jq -r "select(has(\"ok\")) | $1"
}

# --- many machines -------------------------------------------------------------
commands 'Many machines' | sed "s|/etc/dsec/serve|$D|g" >"$T/commands"
[ "$(wc -l <"$T/commands")" -ge 18 ]
ok $? "there are commands: $(wc -l <"$T/commands")"
control='' n=0
# In this shell: they set a variable and change the directory.
exec 5<"$T/commands"
while IFS= read -r line <&5; do
	n=$((n + 1))
	line=${line%%  #*}
	case $line in
	share/demo/*) continue ;; # has a test of its own
	useradd*)
		is "$line" 'useradd --system dsec-serve' "a user"
		continue
		;;
	systemctl*)
		for name in $(printf '%s\n' "$line" | grep -o 'dsec-serve-[a-z]*'); do
			unit "$name"
		done
		wait_for 30 live 1
		ok $? "the control has its node"
		continue
		;;
	*' init '*) line=$(printf '%s\n' "$line" | sed 's/--user dsec-serve/--user nobody/') ;;
	cd\ * | control=*)
		eval "$line"
		ok $? "$line"
		export control
		continue
		;;
	esac
	run timeout 120 sh -c "$line"
	is "$status" 0 "$line" || diag "$out $err"
	case $line in
	*'"program":"run"'*) is "$(answer .state)" running "socat creates" ;;
	*'"program":"exec"'*) is "$(answer .stdout)" 42 "runs" ;;
	*'"level":"freeze"'*) is "$(answer .state)" paused "pauses" ;;
	*'"op":"stop"'*) is "$(answer .state)" stopped "stops" ;;
	*' run --name a'*) is "$(answer .stdout)" 42 "a command runs" ;;
	*' exec a '*) is "$out" "$(uname -r)" "in the same sandbox" ;;
	*' pause --task '*) is "$(printf '%s\n' "$out" | jq -s length)" 1 \
		"a record for each" ;;
	*'.control.nodes'*)
		: >"$T/ready"
		# shellcheck disable=SC2086 # words
		env $n2_tree dsec-serve node "$D/n2" --ready-fd 9 9>"$T/ready" \
			>>"$T/n2.log" 2>&1 </dev/null &
		daemons="$daemons $!"
		wait_for 30 live 2
		ok $? "then the control has two" || diag "$(cat "$T/n2.log")"
		;;
	esac
done
exec 5<&-
[ "$n" -ge 18 ]
ok $? "all of them were tried ($n)"

alice() {
	DSEC_CLIENT=$D/alice/client.json timeout 60 dsec-serve client "$@" \
		</dev/null
}
may() { alice ps >"$T/null" 2>&1; }
wait_for 20 may
ok $? "alice may list"
run alice pause --task job-42
is "$status" 77 "and not pause"

# --- Python ---------------------------------------------------------------------
cd "$T/home" || exit 1
commands Python | grep '^python3\|^rl/' |
	sed "s|/usr/local/share/dsec/python|$root/share/python|; s|  *#.*||" \
		>"$T/commands"
[ "$(wc -l <"$T/commands")" -eq 2 ]
ok $? "it is installed in two steps"
if /usr/bin/python3 -m venv "$T/probe" >"$T/null" 2>&1; then
	while IFS= read -r line; do
		run timeout 120 env PATH="/usr/bin:$PATH" PIP_NO_INDEX=1 \
			PIP_DISABLE_PIP_VERSION_CHECK=1 sh -c "$line"
		is "$status" 0 "$line" || diag "$out $err"
	done <"$T/commands"
	run rl/bin/python3 -c 'import dsec, os; print(dsec.__version__,
		os.path.exists(os.path.dirname(dsec.__file__) + "/py.typed"))'
	is "$out" "$(sed -n 's/^version = "\(.*\)"/\1/p' \
		"$root/share/python/pyproject.toml") True" "with its version and types"
	python=rl/bin/python3
else
	skip "installed" "no venv in /usr"
	python=python3 PYTHONPATH=$root/share/python
	export PYTHONPATH
fi

section Python | awk '/^    import/ { on = 1 } /^[^ ]/ { on = 0 }
	on { print substr($0, 5) }' >"$T/local.py"
sed 's/DSecClient(local=True)/DSecClient()/' "$T/local.py" >"$T/remote.py"
isnt "$(cat "$T/local.py")" "$(cat "$T/remote.py")" "there is an example"
why=$(checkpoint_why)
cd "$root" || exit 1
if [ -z "$why" ] && matrix_image root/py:3.12; then
	cd "$T/home" || exit 1
	run timeout 240 "$python" "$T/local.py"
	is "$status $(printf '%s\n' "$out" | head -n 1)" "0 42" \
		"it runs on this machine" || diag "$out $err"
	kill "${daemons##* }" # the other node does not have the image
	daemons=${daemons% *}
	wait_for 30 live 1
	run timeout 240 "$python" "$T/remote.py"
	is "$status $(printf '%s\n' "$out" | head -n 1)" "0 42" \
		"and through the control" || diag "$out $err"
else
	skip "the example" "${why:-no image to test with}"
fi
is "$(dsec-ps </dev/null | jq -c 'select(.state != "stopped")')" "" \
	"nothing is left running"
done_testing
