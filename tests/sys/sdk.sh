# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154
#
# For the tests of the Python SDK: its own tests as checks of ours, and daemons
# of dsec-serve on ports of their own.  Sourced after tap.sh and tree_new.
#
#   sdk_tests WHERE TEST...  run them; WHERE is local, node or control
#   sdk_examples WHERE       run the examples, and look at what they say
#   sdk_image                after matrix.sh: an image that can be checkpointed is
#                            SDK_IMAGE, or SDK_NO_ENGINE says why there is none
#   sdk_pool                 SDK_NO_POOL says why there is none, or is empty
#   sdk_init                 an authority and a client, in $SDK_SERVE
#   sdk_live N               the control sees so many nodes
#   sdk_start ROLE           it serves; sdk_stop ROLE, sdk_stop_all
#   sdk_warm                 a node has had its first sandboxes

sdk=$PWD/share/python
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$sdk SDK_SERVE=$T/serve
export PYTHONDONTWRITEBYTECODE PYTHONPATH SDK_SERVE
# shellcheck disable=SC2034 # by eval
SDK_node='' SDK_control=''

sdk_need() {
	need_root
	need_tools python3 jq
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
		plan_skip_all "needs Python 3.9"
}

# What a program says as TAP, counted on in ours.
sdk_tap() { # FILE
	while IFS= read -r sdk_line; do
		case $sdk_line in
		"ok "* | "not ok "*)
			sdk_said=${sdk_line#* - }
			case $sdk_line in
			*"# SKIP "*) skip "$sdk_where: ${sdk_said%% # SKIP*}" \
				"${sdk_line#*# SKIP }" ;;
			"ok "*) ok 0 "$sdk_where: $sdk_said" ;;
			*) ok 1 "$sdk_where: $sdk_said" ;;
			esac ;;
		"#"*) printf '%s\n' "$sdk_line" ;;
		esac
	done <"$1"
}

# Who the client is: SDK_REMOTE for the tests, DSEC_SERVER for the examples.
sdk_as() { # WHERE
	sdk_where=$1
	if [ "$1" = local ]; then
		unset SDK_REMOTE DSEC_CLIENT DSEC_SERVER
	else
		SDK_REMOTE=$SDK_SERVE/$1-client.json
		DSEC_CLIENT=$SDK_REMOTE
		DSEC_SERVER=$(jq -r '.addresses[0]' "$SDK_REMOTE")
		export SDK_REMOTE DSEC_CLIENT DSEC_SERVER
	fi
}

sdk_tests() { # WHERE TEST...
	sdk_as "$1"
	shift
	for sdk_test; do
		timeout "${SDK_SECONDS:-240}" python3 "$sdk/tests/tap.py" \
			"$sdk_test" >"$T/tap" 2>"$T/err" </dev/null
		status=$?
		sdk_tap "$T/tap"
		is "$status $(cat "$T/err")" "0 " \
			"$sdk_where: $sdk_test ends well" ||
			diag "$(tail -n 40 "$T/err")"
	done
}

sdk_example() { # WHERE NAME
	sdk_as "$1"
	timeout 120 python3 "$sdk/examples/$2.py" >"$T/out" 2>"$T/err" </dev/null
	status=$?
	is "$status" 0 "$1: examples/$2.py" || diag "$(cat "$T/out" "$T/err")"
	out=$(cat "$T/out")
}

sdk_examples() { # WHERE
	sdk_example "$1" quickstart
	like "$out" '^42$' "quickstart: a command"
	like "$out" "^timeout after .* fault: False" "a timeout with its kind"
	like "$out" "copy 0.*copy 1" "copies that differ"
	like "$out" '^paused: 3$' "a task of three"
	sdk_example "$1" rl_loop
	like "$out" '^preempted: 3 ' "rl_loop: paused when its trainer was killed"
	like "$out" 'step 0: 500 .*replayed' "the next trainer replays"
	is "$(printf '%s\n' "$out" | grep '^result' | tr -d "{}',:" |
		awk '{ if ($3 != 137 * NR || $5 != $NF || $7 < 3) print }
			END { print NR }')" 3 \
		"right answers, and no step ran twice" || diag "$out"
	sdk_example "$1" tree_search
	like "$out" '^found 19: ' "tree_search: it gets there"
	sdk_example "$1" bulk_eval
	like "$out" '^summary: fail fail fail fail oom pass timeout$' \
		"bulk_eval: each judged in its own way" || diag "$out"
	is "$(dsec-ps </dev/null)" "" "no example leaves a sandbox"
}

sdk_image() {
	SDK_NO_ENGINE=$(checkpoint_why) SDK_IMAGE=''
	if [ -z "$SDK_NO_ENGINE" ]; then
		SDK_IMAGE=root/sdk:1
		matrix_image "$SDK_IMAGE" || SDK_NO_ENGINE="no image to test with"
	fi
	export SDK_IMAGE SDK_NO_ENGINE
}

sdk_warm() {
	for sdk_image in host ${SDK_IMAGE-}; do
		dsec-run --detach --image "$sdk_image" -- true >"$T/warm" \
			</dev/null
		dsec-pause --stop "$(jq -r .sandbox "$T/warm")" >"$T/null" \
			</dev/null
	done
}

# Disk limits need a pool; it stays as long as the tree.
sdk_pool() {
	SDK_NO_POOL="no pool of btrfs can be made here"
	if command -v mkfs.btrfs >"$T/null" 2>&1; then
		run dsec-doctor --fix --json --only node --only pool \
			--pool-size 300M
		[ "$(field "$out" .features.pool)" != btrfs ] || SDK_NO_POOL=''
	fi
	export SDK_NO_POOL
}

# Ports that are free now; each daemon keeps its own over restarts.
sdk_init() {
	dsec-serve init "$SDK_SERVE" --name n1 >"$T/init"
	ok $? "certificates and configuration" || diag "$(cat "$T/init")"
	python3 - "$SDK_SERVE" <<-'END'
	import json, socket, sys
	ports = []
	for _ in range(2):
	    s = socket.socket()
	    s.bind(("127.0.0.1", 0))
	    ports.append((s, "127.0.0.1:%d" % s.getsockname()[1]))
	node, control = (p for _, p in ports)
	with open(sys.argv[1] + "/serve.json") as f:
	    conf = json.load(f)
	conf["node"]["listen"] = [node]
	conf["control"]["listen"] = [control]
	conf["control"]["nodes"] = [{"name": "n1", "address": node}]
	with open(sys.argv[1] + "/serve.json", "w") as f:
	    json.dump(conf, f)
	for name, address in (("node", node), ("control", control)):
	    with open(sys.argv[1] + "/client.json") as f:
	        client = json.load(f)
	    client["addresses"] = [address]
	    with open("%s/%s-client.json" % (sys.argv[1], name), "w") as f:
	        json.dump(client, f)
	END
}

sdk_start() { # ROLE
	: >"$T/ready-$1"
	dsec-serve "$1" "$SDK_SERVE" --ready-fd 9 9>"$T/ready-$1" \
		>>"$T/$1.log" 2>&1 </dev/null &
	eval "SDK_$1=$!"
	wait_for 30 grep -q ready "$T/ready-$1"
	ok $? "the $1 serves" || diag "$(cat "$T/$1.log")"
}

# The control sees so many nodes.
sdk_live() { # N
	wait_for 30 sdk_is_live "$1"
	ok $? "the control has its nodes" || diag "$(cat "$T/nodes")"
}
sdk_is_live() { # N
	DSEC_CLIENT=$SDK_SERVE/control-client.json DSEC_SERVER='' \
		dsec-serve client nodes </dev/null >"$T/nodes" 2>&1
	[ "$(grep -c '"state":"live"' "$T/nodes")" -eq "$1" ]
}

sdk_stop() { # ROLE
	eval "sdk_pid=\$SDK_$1 SDK_$1=''"
	[ -n "$sdk_pid" ] || return 0
	kill "$sdk_pid"
	wait "$sdk_pid"
}

sdk_stop_all() {
	sdk_stop control
	sdk_stop node
}
