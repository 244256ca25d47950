#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ports from outside: published ones and the relay by id.  Field report 95.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq curl python3
tree_new
leak_start

# shellcheck disable=SC2317 # by wait_for
echoes() { # PORT: does anybody answer there?
	timeout 10 python3 -c "
import socket
s = socket.create_connection(('127.0.0.1', $1), 5)
s.sendall(b'x'); assert s.recv(2) == b'x'" 2>/dev/null
}

port_of() { # RECORD N
	field "$1" ".published[$2].port"
}

code() { # URL [CURL OPTION...]
	code_url=$1
	shift
	curl -s -m 10 -o /dev/null -w '%{http_code}' "$@" "$code_url"
}

serve() { # SANDBOX PORT ADDRESS
	timeout 20 dsec-exec "$1" --detach -- python3 -c "
import http.server, socket, sys
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        b = b'served by $3'
        self.send_response(200)
        self.send_header('Content-Length', str(len(b)))
        self.end_headers()
        self.wfile.write(b)
    def log_message(self, *a): pass
class S(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ':' in '$3' else socket.AF_INET
S(('$3', $2), H).serve_forever()" >/dev/null
}

is_code() { # URL CODE
	[ "$(code "$1")" = "$2" ]
}

# --- report 95: whatever address it is bound to
run timeout 30 dsec-run -d --name s --publish 8001 --publish 0:8002 \
	--publish 127.0.0.1:0:8003 --publish '[::1]:0:8004'
is "$status" 0 "a sandbox with published ports" || diag "$err"
rec=$out
is "$(field "$out" '[.published[] | .inner] | join(" ")')" \
	"8001 8002 8003 8004" "the record says which"
is "$(field "$out" '[.published[] | .address] | join(" ")')" \
	"127.0.0.1 127.0.0.1 127.0.0.1 ::1" "and where"
is "$(field "$out" '[.published[] | select(.port > 0)] | length')" 4 \
	"with the ports that were free"
a=http://127.0.0.1:$(port_of "$rec" 0)/
run curl -s -m 10 -i "$a"
like "$out" "^HTTP/1.1 502" "before it starts: 502"
like "$out" "nothing listens on port 8001 in sandbox .* yet" "with a hint"
serve s 8001 127.0.0.1
serve s 8002 ::1
serve s 8003 0.0.0.0
serve s 8004 ::
wait_for 20 is_code "$a" 200
ok $? "a late start is reached then"
for i in 1 2; do
	wait_for 20 is_code "http://127.0.0.1:$(port_of "$rec" $i)/" 200
done
wait_for 20 is_code "http://[::1]:$(port_of "$rec" 3)/" 200
is "$(curl -s -m 10 "$a") $(curl -s -m 10 \
	"http://127.0.0.1:$(port_of "$rec" 1)/") $(curl -s -m 10 \
	"http://127.0.0.1:$(port_of "$rec" 2)/") $(curl -s -m 10 \
	"http://[::1]:$(port_of "$rec" 3)/")" \
	"served by 127.0.0.1 served by ::1 served by 0.0.0.0 served by ::" \
	"all addresses of a service are reached"
run timeout 10 python3 -c "
import socket
s = socket.create_connection(('127.0.0.1', $(port_of "$rec" 0)))
s.close()
s = socket.create_connection(('127.0.0.1', $(port_of "$rec" 0)), 5)
s.sendall(b'GET / HTTP/1.0\r\n\r\n')
print(len(s.makefile('rb').read()) > 20)"
is "$out" True "one that says nothing is no trouble to the next"

# --- the relay by id
run timeout 10 sh -c 'printf "GET / HTTP/1.0\r\n\r\n" |
	dsec-net s --connect 8001'
like "$out" "served by 127.0.0.1" "a connection by name and port" ||
	diag "$err"
run timeout 10 dsec-net s --connect 8009
isnt "$status" 0 "nothing listens there"
like "$err" "nothing listens on port 8009" "is what it says"

# --- pauses
timeout 20 dsec-pause s >/dev/null
is "$(field "$(dsec-ps s)" .state)" paused "paused"
is "$(code "$a")" 200 "a connection resumes it"
is "$(field "$(dsec-ps s)" .state)" running "it runs"
timeout 20 dsec-pause s >/dev/null
run timeout 10 sh -c 'printf "GET / HTTP/1.0\r\n\r\n" |
	dsec-net s --connect 8001'
like "$out" "served by 127.0.0.1" "so does one by id"

# --- much, half-closes, the slow, over a change of the supervisor's program
cat >"$T/echo.py" <<-'EOT'
	import socket, threading, time
	def echo(c):
	    n = 0
	    while True:
	        b = c.recv(65536)
	        if not b: break
	        n += len(b)
	        c.sendall(b)
	    c.sendall(b'|%d' % n)
	    c.close()
	s = socket.create_server(('127.0.0.1', 8101))
	while True:
	    c, _ = s.accept()
	    threading.Thread(target=echo, args=(c,), daemon=True).start()
EOT
run timeout 30 dsec-run -d --name e --publish 8101 --ttl-idle 60
e=$(port_of "$out" 0)
timeout 20 dsec-exec e --detach -- python3 -c "$(cat "$T/echo.py")" >/dev/null
wait_for 20 echoes "$e"
supervisor=$(field "$(dsec-ps e)" .supervisor_pid)
cat >"$T/many.py" <<-'EOT'
	import os, signal, socket, sys, threading, time
	port, boss = int(sys.argv[1]), int(sys.argv[2])
	def dial():
	    for i in range(100):
	        s = socket.create_connection(('127.0.0.1', port), 20)
	        s.sendall(b'hello')
	        try:
	            if s.recv(5) == b'hello': return s, 5
	        except OSError: pass
	        time.sleep(0.1)
	    sys.exit('no echo')
	def half(size, out, pace=0):
	    s, n = dial()
	    s.settimeout(30)
	    def send():
	        left = size
	        while left:
	            left -= s.send(b'x' * min(left, 65536))
	        s.shutdown(socket.SHUT_WR)
	    t = threading.Thread(target=send); t.start()
	    got = b''; total = 0
	    while True:
	        b = s.recv(65536)
	        if not b: break
	        total += len(b); got = (got + b)[-20:]
	        if pace: time.sleep(pace)
	    t.join()
	    out.append(got.endswith(b'|%d' % (size + n)) and
	               total == size + len(b'|%d' % (size + n)))
	slow = socket.create_connection(('127.0.0.1', port), 20)
	slow.setblocking(False)
	n = 0
	end = time.time() + 10
	while time.time() < end:
	    try: n += slow.send(b'y' * 65536)
	    except BlockingIOError:
	        if n and time.time() > end - 9: break
	        time.sleep(0.05)
	print('stuck', 0 < n < 64 << 20)
	out = []
	ts = [threading.Thread(target=half, args=(4 << 20, out)) for i in range(8)]
	t0 = time.time()
	for t in ts: t.start()
	time.sleep(0.2)
	for i in range(3):
	    os.kill(boss, signal.SIGHUP)
	    time.sleep(0.2)
	for t in ts: t.join()
	print('whole', out.count(True), len(out))
EOT
run timeout 100 python3 "$T/many.py" "$e" "$supervisor"
like "$out" "^stuck True" "who reads nothing is held up, and not in memory"
like "$out" "^whole 8 8" \
	"others get all of it, half-closed, while the supervisor's program changes" ||
	diag "$out $err"
is "$(field "$(dsec-ps e)" .supervisor_pid)" "$supervisor" "which it survives"

# --- it counts as activity, and not longer
cat >"$T/hold.py" <<-'EOT'
	import socket, sys, time
	s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20)
	s.sendall(b'hello'); s.recv(5)
	time.sleep(12)
	s.sendall(b'again'); print(s.recv(5).decode())
EOT
run timeout 30 dsec-run -d --name i --publish 8101 --ttl-idle 10
i=$(port_of "$out" 0)
timeout 20 dsec-exec i --leave -- sh -c 'setsid python3 -c "$0" \
	>/dev/null 2>&1 </dev/null &' "$(cat "$T/echo.py")" >/dev/null
wait_for 10 echoes "$i"
run timeout 60 python3 "$T/hold.py" "$i"
is "$out" again "a connection keeps an idle sandbox" || diag "$err"
gone() { ! dsec-ps i >/dev/null 2>&1 ||
	[ "$(field "$(dsec-ps i)" .state)" = stopped ]; }
wait_for 25 gone
ok $? "and when it is over it ends"

# --- bounds
cat >"$T/bounds.py" <<-'EOT'
	import socket, sys
	port = int(sys.argv[1]); ok = 0; no = 0; held = []
	for i in range(300):
	    try:
	        s = socket.create_connection(('127.0.0.1', port), 10)
	        s.sendall(b'hello')
	        if s.recv(5) == b'hello': ok += 1; held.append(s)
	        else: no += 1
	    except OSError: no += 1
	print(ok <= 256, ok > 200, no >= 44)
EOT
run timeout 60 python3 "$T/bounds.py" "$e"
is "$out" "True True True" "as many as there may be, the rest is reset" ||
	diag "$err"
sleepless() { [ "$(field "$(dsec-ps --stats e)" .relays)" -lt 3 ]; }
wait_for 10 sleepless
ok $? "all are given up when their clients are gone"

# --- refusals
run timeout 20 dsec-run -d --publish "$e:80"
isnt "$status" 0 "a port that is in use"
is "$(field "$out" .error.code)" busy "is busy"
run timeout 20 dsec-run -d --publish 203.0.113.77:0:80
is "$(field "$out" .error.code)" bad_value "an address of another machine"
run timeout 20 dsec-run -d --publish nonsense
is "$(field "$out" .error.code)" bad_value "no port at all"
run timeout 20 dsec-run -d --publish 80 \
	--network '{"allow":[{"domain":"example.org"}]}'
is "$(field "$out" .error.code)" bad_value "a port that the policy has inside"
run timeout 20 dsec-run --rm --publish 80 -- true
is "$status" 125 "a one-shot has none"

run timeout 30 dsec-pause --stop s e
is "$status" 0 "they are stopped"
is "$(code "$a")" 000 "and nobody listens any more"
leak_check
done_testing
