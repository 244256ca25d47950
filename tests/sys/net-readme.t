#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# README.md on networks, as it is written, in a small world of its own: the
# commands in their order, those within its sentences too.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
# shellcheck source=tests/sys/net.sh
. "$(dirname "$0")/net.sh"
net_enter
need_tools jq curl python3
tree_new
trap 'net_end; tree_end $?' EXIT
net_world

# What the world has of the names that README uses, and a mirror of pypi.
at=198.51.100.10
jq -n --arg at $at '[range(4) | ["api", "docs", "git", "x"][.] + ".example.org"
	| {key: ., value: [["A", $at, 60]]}] | from_entries' >"$W/zone.json"
jq -n '{dns: ["198.51.100.53"],
	mirrors: {pypi: [{domain: "pypi.test", ports: [443]}]}}' \
	>"$DSEC_CONFIG/net.json"
wheel "$W/www/simple" six
printf '[global]\nindex-url = https://pypi.test/www/simple\ncert = /etc/ca.pem\n' \
	>"$T/pip.conf"

# --- what README says ---------------------------------------------------------
section=$(awk '/^## / { on = $0 == "## Network"; next } on' \
	"$(dirname "$0")/../../README.md")
# An indented line whose quotes are open goes on in the next.
printf '%s\n' "$section" | awk '/^    / {
		line = line (line == "" ? "" : " ") substr($0, 5)
		rest = line
		if (gsub(/\047/, "", rest) % 2 == 0) { print line; line = "" }
	}' >"$T/commands"
printf '%s\n' "$section" | grep -v '^    ' | tr '\n' ' ' |
	grep -o '`dsec-[^`]*`' | tr -d '`' >"$T/inline"
[ "$(wc -l <"$T/commands")" -ge 8 ] && [ "$(wc -l <"$T/inline")" -ge 3 ]
ok $? "there are commands: $(wc -l <"$T/commands"), $(wc -l <"$T/inline") in sentences"

# What the HTTP server of NAME answers in SANDBOX: its path, or "".
get() { # SANDBOX NAME
	dsec-exec "$1" -- curl -s -m 5 "http://$2/x" 2>/dev/null |
		jq -r .path 2>/dev/null
}
# --- in sentences, that which others need -------------------------------------
while read -r line; do
	case $line in
	*' --connect '*) continue ;; # its sandbox is to come
	esac
	run timeout 60 sh -c "$line"
	is "$status" 0 "$line" || diag "$out $err"
	case $line in
	*--services) like "$out" '"service":"pypi"' "lists the names" ;;
	*--uplink*) is "$(field "$out" .up)" true "there is a way out" ;;
	esac
done <"$T/inline"

# --- the examples ---------------------------------------------------------------
while read -r line; do
	case $line in
	id=*)
		eval "$line"
		export id
		isnt "$id" '' "$line"
		for file in "$T/pip.conf" "$W/ca.pem"; do
			dsec-exec --cp "$file" "$id:/etc/${file##*/}" >"$T/out"
		done
		continue
		;;
	*' pip '*)
		[ -e /usr/bin/pip ] || { skip "$line" "no pip in /usr" && continue; }
		;;
	*' -- ...') line="${line%...}true" ;;
	*' --follow')
		timeout 60 sh -c "$line" >"$T/follow" 2>&1 &
		follow=$!
		wait_for 10 grep -q '"name":"git.example.org"' "$T/follow"
		ok $? "$line" || diag "$(cat "$T/follow")"
		continue
		;;
	esac
	run timeout 120 sh -c "$line"
	is "$status" 0 "$line" || diag "$out $err"
	case $line in
	*' pip '*) is "$(world_saw '.sni=="pypi.test"' | sed 's/[1-9].*/some/')" \
		some "from the mirror" ;;
	*'"cidr"'*) is "$(field "$out" .network)" routed "over a route" ;;
	*--phases*) is "$(field "$out" '"\(.network) \(.ok)"')" "names true" \
		"without a link" ;;
	*'ep --phase agent'*) is "$(get ep api.example.org) $(get ep docs.example.org)" \
		"/x " "what the phase says is reached" ;;
	*'--task t17'*) is "$(get ep api.example.org)" '' "grade reaches nothing" ;;
	*--merge*) is "$(get ep docs.example.org) $(get ep api.example.org)" \
		"/x " "the rule that was added" ;;
	*--explain*) is "$(field "$out" '"\(.allowed) \(.attempt.outcome) \(.agrees)"')" \
		"false not_resolved true" "says why not, and has tried" ;;
	esac
done <"$T/commands"
for verb in --show --deny-all "--replace {}"; do
	# shellcheck disable=SC2086 # two words
	run dsec-net ep $verb
	is "$status" 0 "$verb, which it names" || diag "$out"
done

# --- into the sandbox -------------------------------------------------------------
cat >"$T/serve" <<-'END'
	import socket
	s = socket.create_server(("127.0.0.1", 22))
	print("ready", flush=True)
	while True:
	    c = s.accept()[0]
	    c.sendall(c.recv(100).upper())
	    c.close()
END
dsec-exec --cp "$T/serve" ep:/tmp/serve >"$T/out"
dsec-exec ep -- python3 /tmp/serve >"$T/served" 2>&1 &
served=$!
wait_for 10 grep -q ready "$T/served" || diag "$(cat "$T/served")"
connect=$(grep ' --connect ' "$T/inline")
is "$(echo hello | timeout 20 sh -c "$connect")" HELLO "$connect"
like "$section" '--publish 8080' "and --publish"
run dsec-run --detach --name pub --publish 8080
is "$(field "$out" '.published[0] | "\(.port > 0) \(.inner)"')" "true 8080" \
	"makes the node listen for it"

dsec-pause --stop --project root >"$T/out"
wait "$follow"
is "$? $(tail -n 1 "$T/follow" | jq .ok)" "0 true" "--follow ends with its sandbox"
wait "$served"
run dsec-net --uplink down
is "$status" 0 "and the way out is taken down"
done_testing
