#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Real clients in a sandbox, against real servers of a world of the test's own:
# pip and npm with an index each, git, curl with HTTP/2, a WebSocket, a database.
. "$(dirname "$0")/../tap.sh"
. "$(dirname "$0")/net.sh"
net_enter
need_tools curl git python3
tree_new
net_world
WWW=$W/www

# shellcheck disable=SC2317 # through run
inside() { # SANDBOX COMMAND: a shell command, within 60 s
	dsec-exec --timeout 60 "$1" -- sh -c "$2"
}

# --- servers ------------------------------------------------------------------

index_npm() {
	mkdir -p "$WWW/npm" "$T/tiny/package"
	echo '{"name":"tiny","version":"1.0.0","main":"index.js"}' \
		>"$T/tiny/package/package.json"
	echo 'module.exports = 42' >"$T/tiny/package/index.js"
	tar -czf "$WWW/npm/tiny-1.0.0.tgz" -C "$T/tiny" package
	jq -n --arg url https://npm.test/www/npm/tiny-1.0.0.tgz '{name: "tiny",
		"dist-tags": {latest: "1.0.0"}, versions: {"1.0.0": {name: "tiny",
		version: "1.0.0", dist: {tarball: $url}}}}' >"$WWW/npm/tiny"
}

repository() {
	git init -q "$T/repo"
	echo hello >"$T/repo/file"
	git -C "$T/repo" add file
	git -C "$T/repo" -c user.name=t -c user.email=t@test commit -qm first
	git clone -q --bare "$T/repo" "$WWW/repo.git"
	git -C "$WWW/repo.git" update-server-info
}

wheel "$WWW/simple" tiny
index_npm
repository
jq -n '{dns: ["198.51.100.53"], mirrors: {
	pypi: [{domain: "pypi.test", ports: [443]}],
	npm: [{domain: "npm.test", ports: [443]}]}}' >"$DSEC_CONFIG/net.json"

# What a node makes once and keeps.
dsec-net --serve --background >/dev/null
run dsec-net --uplink up
ok $status "a way to the world for packets" || diag "$out"
leak_start

# --- package indexes: one allowed, the other not --------------------------------

run dsec-run --name pkg --memory 1G \
	--network '{"pypi": true, "npm": false}'
json_is "$out" '"names"' "rules by the names of services" .network
run dsec-exec --cp "$W/ca.pem" pkg:/tmp/ca.pem
ok $status "it has the certificate" || diag "$out $err"
if [ -e /usr/bin/pip3 ]; then
	run inside pkg 'cd /tmp && /usr/bin/pip3 -q install --no-input --target t \
		--cert ca.pem --index-url https://pypi.test/www/simple tiny &&
		PYTHONPATH=t python3 -c "import tiny; print(tiny.answer)"'
	is "$out" 42 "pip installs from its index" || diag "$err"
else
	skip "pip installs from its index" "no pip3 in /usr"
fi
npm_install='cd /tmp && npm install --no-audit --no-fund --no-update-notifier \
	--fetch-retries 0 --cafile ca.pem --registry https://npm.test/www/npm/ \
	tiny && node -p "require(\"tiny\")"'
if [ -e /usr/bin/npm ]; then
	run inside pkg "$npm_install"
	isnt "$status" 0 "npm does not reach its own"
	like "$out$err" 'ENOTFOUND|EAI_AGAIN' "at once, and with the reason"
	run dsec-net pkg --merge '{"npm": true}'
	ok $status "a rule more"
	run inside pkg "$npm_install"
	isnt "$status" 0 "does not beat a false one"
	run dsec-net pkg --replace '{"npm": true}'
	ok $status "other rules"
	run inside pkg "$npm_install"
	is "$(echo "$out" | tail -n 1)" 42 "npm installs then" || diag "$out $err"
else
	skip "npm" "no npm in /usr"
fi
is "$(dns_saw registry.test)" 0 "nobody asked for other names"

# --- git, HTTP/2, a WebSocket, by names -----------------------------------------

nsenter -t "$NET_WORLD" -n nghttpd -a 198.51.100.10 -d "$WWW" 9443 \
	"$W/key.pem" "$W/cert.pem" >"$W/h2.log" 2>&1 &
NET_PIDS="$! $NET_PIDS"
run dsec-run --name dev --network '{"allow": [{"domain": "git.test"},
	{"domain": "ws.test"}, {"domain": "api.test", "ports": [443, 9443]}]}'
ok $status "rules by domains"
run dsec-exec --cp "$W/ca.pem" dev:/tmp/ca.pem
ok $status "it has the certificate" || diag "$out $err"
run inside dev 'git -c http.sslCAInfo=/tmp/ca.pem clone -q \
	https://git.test/www/repo.git /tmp/repo && cat /tmp/repo/file'
is "$out" hello "git clones over HTTPS" || diag "$err"
if command -v nghttpd >/dev/null; then
	wait_for 10 in_world sh -c 'ss -tln | grep -q :9443'
	run inside dev 'curl -sS --cacert /tmp/ca.pem --http2 -o /dev/null \
		-w "%{http_version} %{http_code}" \
		https://api.test:9443/simple/tiny/index.html'
	is "$out" "2 200" "curl speaks HTTP/2" || diag "$err"
else
	skip "curl speaks HTTP/2" "no nghttpd"
fi
websocket='
import base64, os, socket, ssl, sys
ctx = ssl.create_default_context(cafile="/tmp/ca.pem")
s = ctx.wrap_socket(socket.create_connection(("ws.test", 443), 10),
                    server_hostname="ws.test")
s.sendall(b"GET /ws HTTP/1.1\r\nHost: ws.test\r\nUpgrade: websocket\r\n"
          b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
          b"Sec-WebSocket-Key: " + base64.b64encode(os.urandom(16)) +
          b"\r\n\r\n")
f = s.makefile("rb")
assert b"101" in f.readline()
while f.readline().strip():
    pass
for word in (b"one", b"two"):
    mask = os.urandom(4)
    s.sendall(bytes([0x81, 0x80 | len(word)]) + mask +
              bytes(b ^ mask[i % 4] for i, b in enumerate(word)))
    head = f.read(2)
    print(f.read(head[1]).decode(), flush=True)
    if len(sys.argv) > 1 and word == b"one":
        f.read(1)  # until it is cut
'
run inside dev "python3 -c '$websocket'"
is "$out" "one
two" "a WebSocket carries both ways" || diag "$err"

# --- an open WebSocket when the policy becomes stricter ---------------------------

dsec-exec --timeout 60 dev -- python3 -c "$websocket" wait \
	>"$T/ws.out" 2>"$T/ws.err" &
ws=$!
wait_for 20 grep -q one "$T/ws.out"
ok $? "a WebSocket is open"
run dsec-net dev --replace '{"allow": [{"domain": "git.test"}]}'
ok $status "the policy becomes stricter"
is "$(field "$out" .cut)" 1 "one connection is cut"
wait "$ws"
isnt "$?" 0 "its client is told"

# --- a database, by its address ----------------------------------------------------

if command -v redis-server >/dev/null; then
	nsenter -t "$NET_WORLD" -n redis-server --bind 198.51.100.10 --port 6379 \
		--save '' --protected-mode no --dir "$T" >"$W/redis.log" 2>&1 &
	NET_PIDS="$! $NET_PIDS"
	run dsec-run --name db --network '{"allow": [{"cidr": "198.51.100.10/32",
		"proto": "tcp", "ports": [6379]}]}'
	json_is "$out" '"routed"' "rules by addresses" .network
	wait_for 10 in_world redis-cli -h 198.51.100.10 ping >/dev/null
	run inside db 'redis-cli -h 198.51.100.10 set k v &&
		redis-cli -h 198.51.100.10 get k'
	is "$out" "OK
v" "a database client talks with its server" || diag "$err"
	run inside db 'curl -sS -m 10 http://198.51.100.10/'
	isnt "$status" 0 "and with nothing else there"
	dsec-pause db --stop >/dev/null
else
	skip "a database client" "no redis-server"
fi

dsec-pause pkg dev --stop >/dev/null
leak_check
net_end
done_testing
