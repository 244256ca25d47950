#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python SDK over TLS: the tests of sdk-local.t with a node of dsec-serve
# between, and through a control; daemons that are killed meanwhile.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools python3 jq
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
	plan_skip_all "needs Python 3.9"
tree_new
echo '{"cpu_overcommit":500}' >"$DSEC_CONFIG/node.json"
sdk=$PWD/share/python
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$sdk
export PYTHONDONTWRITEBYTECODE PYTHONPATH

# What a program says as TAP, counted on in ours.
while_tap() { # FILE
	while IFS= read -r line; do
		case $line in
		"ok "* | "not ok "*)
			said=${line#* - }
			case $line in
			*"# SKIP "*) skip "${said%% # SKIP*}" "${line#*# SKIP }" ;;
			"ok "*) ok 0 "$said" ;;
			*) ok 1 "$said" ;;
			esac ;;
		"#"*) printf '%s\n' "$line" ;;
		esac
	done <"$1"
}

D=$T/serve
dsec-serve init "$D" --name n1 >"$T/init"
ok $? "certificates and configuration" || diag "$(cat "$T/init")"
python3 - "$D" <<'END'
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

# shellcheck disable=SC2317 # by the trap
serve_end() {
	[ -z "${control-}" ] || kill "$control"
	[ -z "${node-}" ] || kill "$node"
	wait
	tree_end "$1"
}
trap 'serve_end $?' EXIT
start() { # ROLE
	mkfifo "$T/ready-$1"
	dsec-serve "$1" "$D" --ready-fd 3 3>"$T/ready-$1" 2>"$T/$1.log" &
	pid=$!
	timeout 20 cat "$T/ready-$1" >"$T/ready" &
	ready=$!
	wait_for 20 grep -q ready "$T/ready"
	ok $? "the $1 serves" || diag "$(cat "$T/$1.log")"
	kill "$ready" 2>"$T/null"
}
live() { # ROLE TEST...
	SDK_REMOTE=$D/$1-client.json
	export SDK_REMOTE
	shift
	timeout 200 python3 "$sdk/tests/tap.py" "$@" >"$T/tap" 2>"$T/err"
	status=$?
	while_tap "$T/tap"
	is "$status" 0 "the tests end well" || diag "$(tail -n 40 "$T/err")"
}

dsec-run --detach -- true >"$T/warm" </dev/null
dsec-pause --stop "$(jq -r .sandbox "$T/warm")" >"$T/null"
start node
node=$pid
# shellcheck disable=SC2086 # a list of words
live node ${SDK_TESTS-live}
start control
control=$pid
# shellcheck disable=SC2086 # a list of words
live control ${SDK_TESTS-live.Streams live.Life}
kill "$control"
control=''
# Calls while daemons are killed; it starts controls of its own.
SDK_SERVE=$D SDK_NODE_LOG=$T/node.log
export SDK_SERVE SDK_NODE_LOG
live control "${SDK_CHAOS-live_chaos}"
done_testing
