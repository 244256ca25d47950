# SPDX-License-Identifier: Apache-2.0
"""The credential broker between a client and an upstream, both of this test.

net_broker.py BROKER DIR: in a network namespace of its own, as root; prints TAP.
NET_BROKER_MIB: the size of the download that takes no memory (64).
"""
import array
import base64
import hashlib
import json
import os
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

BROKER, DIR = sys.argv[1:3]
SECRET = "sk-test-0123456789abcdefXYZ"
OTHER = "tok/en+with=signs-42"
BIG_MIB = int(os.environ.get("NET_BROKER_MIB", "64"))
BLOCK = os.urandom(1 << 16)
API = "198.51.100.10"
n = 0
seen = []  # requests as the upstream got them
lock = threading.Lock()


def ok(good, what):
    global n
    n += 1
    print("%sok %d - %s" % ("" if good else "not ", n, what), flush=True)
    return good


def is_(got, want, what):
    if not ok(got == want, what):
        print("# got %r, want %r" % (got, want), flush=True)


def run(*argv):
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


# --- the world ---------------------------------------------------------------

ZONE = {
    "api.test": API,
    "wrong.test": API,
    "private.test": "127.0.0.1",
    "meta.test": "169.254.169.254",
}


def dns():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("127.0.0.1", 53))
    while True:
        q, peer = s.recvfrom(2048)
        at, labels = 12, []
        while q[at]:
            labels.append(q[at + 1 : at + 1 + q[at]].decode())
            at += 1 + q[at]
        kind = struct.unpack(">H", q[at + 1 : at + 3])[0]
        question = q[12 : at + 5]
        addr = ZONE.get(".".join(labels))
        rcode = 0 if addr else 3
        a = b""
        if addr and kind == 1:
            a = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton(addr)
        s.sendto(
            q[:2]
            + struct.pack(">HHHHH", 0x8180 | rcode, 1, 1 if a else 0, 0, 0)
            + question
            + a,
            peer,
        )


def certificate():
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
         "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
         "/CN=api", "-addext",
         "subjectAltName=DNS:api.test,DNS:private.test", "-keyout",
         DIR + "/key.pem", "-out", DIR + "/cert.pem"],
        check=True, stderr=subprocess.DEVNULL)


def read_head(s, data=b""):
    while b"\r\n\r\n" not in data:
        more = s.recv(65536)
        if not more:
            return None, data
        data += more
    head, rest = data.split(b"\r\n\r\n", 1)
    return head, rest


def fields_of(head):
    out = []
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, value = line.split(":", 1)
        out.append((name.lower(), value.strip()))
    return out


def answer(s, body, more="", status="200 OK"):
    s.sendall(
        ("HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n"
         % (status, len(body), more)).encode() + body)


def chunk(s, data):
    s.sendall(b"%x\r\n%s\r\n" % (len(data), data))


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def dechunk(s, data):
    """The body that follows ${data} on s."""
    body = b""
    while True:
        while b"\r\n" not in data:
            data += s.recv(65536)
        size, data = data.split(b"\r\n", 1)
        size = int(size, 16)
        while len(data) < size + 2:
            more = s.recv(65536)
            if not more:
                raise EOFError(body)
            data += more
        body += data[:size]
        data = data[size + 2 :]
        if size == 0:
            return body, data


def body_of(s, fields, rest):
    d = dict(fields)
    if "transfer-encoding" in d:
        return dechunk(s, rest)[0]
    want = int(d.get("content-length", 0))
    while len(rest) < want:
        more = s.recv(65536)
        if not more:
            break
        rest += more
    return rest


def serve_path(s, path, fields, rest):
    d = dict(fields)
    if path == "/v1/hello":
        answer(s, b"hello", "X-Up: 1\r\nAlt-Svc: h3=\":443\"\r\n")
    elif path == "/v1/upload":
        if d.get("expect"):
            s.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = body_of(s, fields, rest)
        answer(s, hashlib.sha256(body).hexdigest().encode())
    elif path == "/v1/early":
        answer(s, b"too much", status="413 Too Much")
    elif path == "/v1/echo":
        answer(s, json.dumps(fields).encode())
    elif path == "/v1/echo-head":
        answer(s, b"x", "X-Echo: %s\r\n" % d["x-api-key"])
    elif path == "/v1/echo64":
        answer(s, base64.b64encode(("me:" + d["x-api-key"]).encode()))
    elif path == "/v1/echo-split":
        s.sendall(CHUNKED)
        for i in range(0, len(SECRET), 3):
            chunk(s, SECRET[i : i + 3].encode())
            time.sleep(0.02)
        chunk(s, b"")
    elif path == "/v1/almost":
        s.sendall(CHUNKED)
        chunk(s, b"it begins with " + SECRET[:9].encode())
        time.sleep(0.05)
        chunk(s, b"... and ends " + SECRET[:7].encode())
        chunk(s, b"")
    elif path == "/v1/begins":
        s.sendall(CHUNKED)
        for piece in (SECRET[:3], SECRET[3:5], " and no more"):
            chunk(s, piece.encode())
            time.sleep(0.05)
        chunk(s, b"")
    elif path == "/v1/sse":
        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                  b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(30):
            chunk(s, b"data: %.6f\n\n" % time.time())
            time.sleep(0.1)
        chunk(s, b"")
    elif path == "/v1/big":
        s.sendall(CHUNKED)
        for i in range(BIG_MIB * 17):
            chunk(s, BLOCK[i % 997 :])
        chunk(s, b"")
    elif path == "/v1/gzip":
        answer(s, b"\x1f\x8b" + os.urandom(20), "Content-Encoding: gzip\r\n")
    elif path == "/v1/redirect":
        answer(s, b"", "Location: https://elsewhere.test/\r\n", "302 Found")
    elif path == "/v1/cut":
        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nten bytes.")
    elif path == "/v1/close":
        s.sendall(b"HTTP/1.1 200 OK\r\n\r\nall to the end")
        s.unwrap()
    elif path == "/v1/two":
        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200"
                  b" OK\r\nContent-Length: 4\r\n\r\nevil")
    elif path == "/v1/both":
        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
                  b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    elif path == "/v1/ws":
        s.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                  b"Connection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n")
        s.sendall(rest)
        while True:
            data = s.recv(65536)
            if not data:
                break
            if data == b"say it":
                data = SECRET.encode()
            s.sendall(data)
    else:
        answer(s, b"no such path", status="404 Not Found")


def serve_one(ctx, raw):
    try:
        s = ctx.wrap_socket(raw, server_side=True)
        head, rest = read_head(s)
        if head is None:
            return
        line = head.split(b"\r\n")[0].decode()
        fields = fields_of(head)
        with lock:
            seen.append((line, fields))
        serve_path(s, line.split()[1].split("?")[0], fields, rest)
        s.close()
    except (OSError, ssl.SSLError, EOFError):
        pass
    finally:
        raw.close()


def upstream(addr, port):
    ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ctx.load_cert_chain(DIR + "/cert.pem", DIR + "/key.pem")
    s = socket.create_server((addr, port), backlog=64)
    while True:
        raw, _ = s.accept()
        threading.Thread(target=serve_one, args=(ctx, raw), daemon=True).start()


# --- the broker --------------------------------------------------------------


def write(name, text, mode=0o600):
    with open(os.open(DIR + "/" + name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
                      mode), "w") as f:
        f.write(text)


def endpoint(host, **more):
    return dict({
        "upstream": "https://%s:8443" % host,
        "paths": ["/v1/"],
        "headers": {"X-Api-Key": {"file": DIR + "/secret"}},
    }, **more)


def configure(secret=SECRET, more={}):
    write("secret", secret + "\n")
    write("other", OTHER)
    write("net.json", json.dumps({
        "dns": ["127.0.0.1"],
        "exceptions": [{"cidr": API, "ports": [8443], "proto": "tcp"}]}))
    write("broker.json", json.dumps({
        "ca": DIR + "/cert.pem",
        "endpoints": {
            "api": endpoint("api.test"),
            "bearer": endpoint("api.test", headers={
                "Authorization": {"file": DIR + "/other", "prefix": "Bearer "},
                "X-Version": {"value": "7"}}),
            "base": dict(endpoint("api.test"),
                         upstream="https://api.test:8443/v1",
                         paths=["/hello"], methods=["GET"]),
            "wrong": endpoint("wrong.test"),
            "private": endpoint("private.test"),
            "meta": endpoint("meta.test"),
            "gone": endpoint("nowhere.test"),
            "closed": dict(endpoint("api.test"),
                           upstream="https://api.test:9"),
            **more}}))


class Broker:
    def __init__(self, **env):
        self.sock, theirs = socket.socketpair(socket.AF_UNIX,
                                              socket.SOCK_SEQPACKET)
        ready, wr = os.pipe()
        self.proc = subprocess.Popen(
            [BROKER, "--sock", str(theirs.fileno()), "--ready", str(wr),
             "--config", DIR, "--lib", DIR],
            pass_fds=(theirs.fileno(), wr), env=dict(os.environ, **env),
            stderr=open(DIR + "/log", "a"))
        theirs.close()
        os.close(wr)
        self.said = os.read(ready, 400).decode()
        os.close(ready)

    def hand(self, *names, sandbox="abcd"):
        ours, theirs = socket.socketpair()
        msg = "".join(w + "\n" for w in (sandbox,) + names).encode()
        self.sock.sendmsg([msg], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                   array.array("i", [theirs.fileno()]))])
        theirs.close()
        ours.settimeout(20)
        return ours

    def workers(self):
        with open("/proc/%d/task/%d/children" % ((self.proc.pid,) * 2)) as f:
            return [int(pid) for pid in f.read().split()]

    def worker(self):
        return self.workers()[0]

    def reload(self):
        """True: there is a new worker; False: there is none within 2 s."""
        before = set(self.workers())
        self.proc.send_signal(signal.SIGHUP)
        for _ in range(100):
            if set(self.workers()) - before:
                return True
            time.sleep(0.02)
        return False


def status_of(pid):
    with open("/proc/%d/status" % pid) as f:
        return dict(line.split(":", 1) for line in f)


def kb(pid, key="VmRSS"):
    return int(status_of(pid)[key].split()[0])


# --- the client --------------------------------------------------------------


class Answer:
    def __init__(self, s, head=False, rest=b""):
        raw, rest = read_head(s, rest)
        self.whole, self.body, self.rest = False, b"", b""
        self.status, self.fields = 0, {}
        if raw is None:
            return
        self.status = int(raw.split()[1])
        self.fields = dict(fields_of(raw))
        self.raw = raw
        if head or self.status < 200:
            self.whole, self.rest = True, rest
            return
        try:
            if "transfer-encoding" in self.fields:
                self.body, self.rest = dechunk(s, rest)
                self.whole = True
            else:
                want = int(self.fields.get("content-length", 0))
                self.body = body_of(s, self.fields.items(), rest)
                self.whole = len(self.body) >= want
                self.body, self.rest = self.body[:want], self.body[want:]
        except EOFError as e:
            self.body = e.args[0]


def req(path, method="GET", more="", host="broker.internal"):
    return ("%s %s HTTP/1.1\r\nHost: %s\r\n%s\r\n"
            % (method, path, host, more)).encode()


def ask(b, path, names=("api",), body=b"", **more):
    s = b.hand(*names)
    s.sendall(req(path, **more) + body)
    a = Answer(s, head=more.get("method") == "HEAD")
    s.close()
    return a


def path_of(end=""):
    return DIR + "/audit/broker.jsonl" + end


def audit(end=""):
    with open(path_of(end)) as f:
        return [json.loads(line) for line in f]


def last_use(want=None):
    for _ in range(100):
        lines = audit()
        if lines and (want is None or lines[-1]["outcome"] == want):
            break
        time.sleep(0.02)
    return lines[-1]


def test_start(b):
    is_(b.said, "ok", "it serves")
    st = status_of(b.worker())
    ok("0" not in st["Uid"].split(), "not as root")
    is_(st["CapEff"].strip(), "0000000000000000", "without capabilities")
    is_(st["NoNewPrivs"].strip(), "1", "and gets none")
    is_(st["Seccomp"].strip(), "2", "its system calls are filtered")
    st = status_of(b.proc.pid)
    is_([int(st[k], 16) for k in ("CapEff", "CapPrm", "CapBnd")],
        [1 << 2 | 1 << 6 | 1 << 7] * 2 + [0],
        "who starts it can read files and start it, and no more")
    ok(int(st.get("VmLck", "0 kB").split()[0]) > 0, "its memory is locked")
    with open("/proc/%d/cmdline" % b.worker()) as f:
        ok(SECRET not in f.read(), "its command line tells nothing")


def test_plain(b):
    a = ask(b, "/api/v1/hello?x=1", more=(
        "Authorization: Bearer mine\r\nCookie: a=b\r\nX-API-KEY: mine\r\n"
        "Proxy-Authorization: x\r\nAccept-Encoding: gzip\r\nRange: bytes=1-\r\n"
        "Connection: X-Hop\r\nX-Hop: 1\r\nX-Keep: yes\r\n"))
    is_((a.status, a.body), (200, b"hello"), "an answer")
    is_(a.fields.get("x-up"), "1", "with its fields")
    ok("alt-svc" not in a.fields, "but for one that leads elsewhere")
    line, fields = seen[-1]
    is_(line, "GET /v1/hello?x=1 HTTP/1.1", "the request of the upstream")
    names = [k for k, _ in fields]
    d = dict(fields)
    is_(d.get("x-api-key"), SECRET, "has the credential")
    is_(names.count("x-api-key"), 1, "once")
    is_(d.get("host"), "api.test:8443", "and its host")
    is_(d.get("x-keep"), "yes", "and what else was said")
    is_(d.get("accept-encoding"), "identity", "in plain")
    for name in ("authorization", "cookie", "proxy-authorization", "x-hop",
                 "range"):
        ok(name not in d, "without " + name)
    use = last_use("ok")
    is_((use["sandbox"], use["endpoint"], use["path"], use["status"]),
        ("abcd", "api", "/api/v1/hello", 200), "the use is written down")
    a = ask(b, "/bearer/v1/hello", ("api", "bearer"))
    d = dict(seen[-1][1])
    is_((d.get("authorization"), d.get("x-version")), ("Bearer " + OTHER, "7"),
        "other headers")
    a = ask(b, "/base/hello", ("base",))
    is_(a.body, b"hello", "an upstream with a path")
    a = ask(b, "/api/v1/hello", method="HEAD")
    is_((a.status, a.fields.get("content-length")), (200, "5"), "HEAD")
    a = ask(b, "/api/v1/redirect")
    is_((a.status, a.fields.get("location")),
        (302, "https://elsewhere.test/"), "a redirect is passed on")
    a = ask(b, "/api/v1/close")
    is_((a.whole, a.body), (True, b"all to the end"), "an answer to the end")
    s = b.hand("api")
    s.sendall(req("/api/v1/hello") * 3)
    got, rest = [], b""
    for _ in range(3):
        a = Answer(s, rest=rest)
        rest = a.rest
        got.append(a.body)
    is_(got, [b"hello"] * 3, "three requests at once on one connection")
    s.close()


def test_denied(b):
    before = len(seen)
    cases = [
        ("/bearer/v1/hello", {}, "an endpoint of others"),
        ("/nothing/v1/hello", {}, "one that is not there"),
        ("/api", {}, "no path"),
        ("/api/v2/hello", {}, "another path"),
        ("/api/v1/../v2/x", {}, "one out of it"),
        ("/api/v1/%2e%2e/x", {}, "one out of it in code"),
        ("/api//v1/hello", {}, "an empty segment"),
        ("/api/v1/hello", {"method": "DELETE"}, "another method"),
        ("/api/v1/hello", {"host": "api.test"}, "another host"),
    ]
    for path, more, what in cases:
        a = ask(b, path, **more)
        is_(a.status, 403, what)
    raw = [
        (req("/api/v1/upload", "POST",
             "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), 400,
         "a length and chunks"),
        (req("/api/v1/upload", "POST",
             "Content-Length: 5\r\nContent-Length: 5\r\n"), 400, "two lengths"),
        (req("/api/v1/hello").replace(b"\r\n", b"\n"), 400, "bare LF"),
        (req("/api/v1/hello", more="X: 1\r\n folded\r\n"), 400, "a folded line"),
        (req("/api/v1/hello", more="Host: broker.internal\r\n"), 400,
         "two hosts"),
        (req("http://api.test/v1/hello"), 400, "a whole URL"),
        (b"CONNECT api.test:443 HTTP/1.1\r\nHost: broker.internal\r\n\r\n", 400,
         "CONNECT"),
        (b"GET /api/v1/hello HTTP/1.0\r\n\r\n", 505, "HTTP/1.0"),
        (b"\x16\x03\x01\x02\x00\x01\x00\n", 400, "TLS"),
        (req("/api/v1/hello", more="X: " + "a" * 40000 + "\r\n"), 431,
         "a long head"),
    ]
    for data, status, what in raw:
        s = b.hand("api")
        s.sendall(data)
        is_(Answer(s).status, status, what)
        s.close()
    is_(len(seen), before, "nothing of it went upstream")
    is_(last_use("denied")["outcome"], "denied", "it is written down")


def test_upload(b):
    data = os.urandom(3 << 20)
    want = hashlib.sha256(data).hexdigest().encode()
    a = ask(b, "/api/v1/upload", method="POST", body=data,
            more="Content-Length: %d\r\n" % len(data))
    is_(a.body, want, "3 MiB with their length")
    parts = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in
                     (data[i : i + 70001] for i in range(0, len(data), 70001)))
    a = ask(b, "/api/v1/upload", method="POST", body=parts + b"0\r\n\r\n",
            more="Transfer-Encoding: chunked\r\n")
    is_(a.body, want, "in chunks")
    s = b.hand("api")
    s.sendall(req("/api/v1/upload", "POST",
                  "Expect: 100-continue\r\nContent-Length: 5\r\n"))
    a = Answer(s)
    is_(a.status, 100, "told to continue")
    s.sendall(b"hello")
    a = Answer(s, rest=a.rest)
    is_(a.body, hashlib.sha256(b"hello").hexdigest().encode(), "and does")
    s.close()
    s = b.hand("api")
    s.sendall(req("/api/v1/early", "POST", "Content-Length: 1000000\r\n"))
    s.sendall(b"x" * 1000)
    a = Answer(s)
    is_((a.status, a.body), (413, b"too much"), "an answer before the end")
    is_(a.fields.get("connection"), "close", "ends the connection")
    s.close()
    a = ask(b, "/api/v1/upload", method="POST", body=b"5\nhello",
            more="Transfer-Encoding: chunked\r\n")
    is_(a.status, 400, "malformed chunks")


def test_echo(b):
    for path, what in (("echo", "in a body"), ("echo-head", "in a header"),
                       ("echo64", "in base64"), ("echo-split", "in pieces")):
        s = b.hand("api")
        s.sendall(req("/api/v1/" + path))
        got = b""
        while True:
            data = s.recv(65536)
            if not data:
                break
            got += data
        s.close()
        ok(SECRET.encode() not in got and b"abcdefXYZ" not in got and
           SECRET[:4].encode() not in got, "the secret " + what)
        ok(b"Transfer-Encoding" not in got or
           not got.endswith(b"0\r\n\r\n"), "is no whole answer")
        is_(last_use("blocked")["outcome"], "blocked", "and written down")
    a = ask(b, "/api/v1/almost")
    is_(a.body, ("it begins with %s... and ends %s"
                 % (SECRET[:9], SECRET[:7])).encode(),
        "what only begins like it passes")
    is_(ask(b, "/api/v1/begins").body, (SECRET[:5] + " and no more").encode(),
        "in small pieces too")
    is_(ask(b, "/api/v1/gzip").status, 502, "what cannot be read does not")


def refusals(sandbox):
    """Lines about them, and how many they stand for."""
    lines = [u for u in audit()
             if u["outcome"] == "denied" and u.get("sandbox") == sandbox]
    return len(lines), sum(u.get("n", 1) for u in lines)


def until(fn):
    for _ in range(500):
        if fn():
            return True
        time.sleep(0.02)
    return False


def test_hidden(b):
    boxes = ("loud", "noisy", "quiet")
    for sandbox, times in zip(boxes, (60, 60, 1)):
        for _ in range(times):
            s = b.hand("api", sandbox=sandbox)
            s.sendall(req("/nothing/x"))
            Answer(s)
            s.close()
    is_(refusals("quiet"), (1, 1), "a refusal after many of two others is told")
    ok(until(lambda: refusals("loud")[1] == 60 and refusals("noisy")[1] == 60),
       "of theirs the number")
    ok(refusals("loud")[0] < 60, "in fewer lines")


def wait_log(text):
    def there():
        with open(DIR + "/log") as f:
            return text in f.read()
    return until(there)


def ask_as(b, sandbox, end=""):
    """A request, and that it is in the file."""
    s = b.hand("api", sandbox=sandbox)
    s.sendall(req("/api/v1/hello"))
    is_(Answer(s).body, b"hello", "a request of " + sandbox)
    s.close()
    ok(until(lambda: sandbox in users(end)), "which is told")


def users(end=""):
    return sorted(u.get("sandbox", "") for u in audit(end))


def test_moved(b):
    """Who has begun before, and ends after, is in the new file too."""
    s = b.hand("api", sandbox="tunnel")
    s.sendall(req("/api/v1/ws", more=(
        "Connection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n")))
    is_(Answer(s).status, 101, "a long one")
    old = b.worker()
    os.rename(path_of(), path_of(".1"))
    ask_as(b, "before", ".1")
    ok(not os.path.exists(path_of()), "it is written to where it was moved")
    ok(b.reload(), "until SIGHUP")
    ok(old in b.workers(), "with the long one under way")
    ask_as(b, "after")
    s.close()
    ok(until(lambda: len(audit()) == 2), "both are in the new file")
    is_(users(), ["after", "tunnel"], "once")
    ok(not {"after", "tunnel"} & set(users(".1")), "and not in the old one")
    write("broker.json", "{")
    os.rename(path_of(), path_of(".2"))
    ok(not b.reload(), "with a wrong configuration")
    ask_as(b, "wrong")
    configure()
    ok(b.reload(), "which is mended")


def test_full(b):
    os.rename(path_of(), path_of(".3"))
    os.mknod(path_of(), 0o600 | 0o020000, os.makedev(1, 7))
    ok(b.reload(), "a full disk")
    for _ in range(3):
        is_(ask(b, "/api/v1/hello").body, b"hello", "a request that is not told")
    ok(wait_log("are not written down: write 'audit/broker.jsonl': No space"),
       "the log says so")
    os.unlink(path_of())
    ok(b.reload(), "room again")
    ask_as(b, "room")
    ok(until(lambda: sum(u.get("lost", 0) for u in audit()) +
                     users().count("abcd") == 3), "and how many were not")


def test_failures(b):
    is_(ask(b, "/wrong/v1/hello", ("wrong",)).status, 502,
        "a certificate of somebody else")
    ok("hostname" in last_use("failed")["why"].lower(), "is told")
    before = len(seen)
    is_(ask(b, "/private/v1/hello", ("private",)).status, 502,
        "an upstream at 127.0.0.1")
    is_(last_use("denied")["outcome"], "denied", "is denied")
    is_(ask(b, "/meta/v1/hello", ("meta",)).status, 502, "the metadata service")
    is_(len(seen), before, "nothing was sent there")
    is_(ask(b, "/gone/v1/hello", ("gone",)).status, 502, "no such name")
    is_(ask(b, "/gone/v1/hello", ("gone",)).status, 502, "nor again")
    is_(ask(b, "/closed/v1/hello", ("closed",)).status, 502, "nobody listens")
    a = ask(b, "/api/v1/cut")
    is_((a.status, a.whole), (200, False), "an answer that is cut off")
    is_(ask(b, "/api/v1/both").status, 502, "an answer of two lengths")
    s = b.hand("api")
    s.sendall(req("/api/v1/two") + req("/api/v1/hello"))
    a = Answer(s)
    second = Answer(s, rest=a.rest)
    is_((a.body, second.body), (b"ok", b"hello"),
        "what follows an answer belongs to nobody")
    s.close()


def chunks(f, rest):
    """Size and hash of a chunked body, which is not kept."""
    size, h = 0, hashlib.sha256()

    def take(n):
        nonlocal rest
        data, rest = rest[:n], rest[n:]
        return data if len(data) == n else data + f.read(n - len(data))

    while True:
        line = b""
        while not line.endswith(b"\r\n"):
            byte = take(1)
            if not byte:
                return size, None
            line += byte
        n = int(line, 16)
        h.update(take(n))
        take(2)
        size += n
        if n == 0:
            return size, h.hexdigest()


def test_stream(b):
    s = b.hand("api")
    s.sendall(req("/api/v1/sse"))
    delays, data = [], b""
    while not data.endswith(b"\r\n0\r\n\r\n"):
        more = s.recv(65536)
        now = time.time()
        if not more:
            break
        for line in more.split(b"\n"):
            if line.startswith(b"data: "):
                delays.append(now - float(line[6:]))
        data += more
    s.close()
    is_(len(delays), 30, "30 events, one by one")
    delays.sort()
    if not ok(delays[len(delays) * 9 // 10] < 0.05, "without delay"):
        print("# %r" % delays)
    pid = b.worker()
    before = kb(pid)
    s = b.hand("api")
    s.sendall(req("/api/v1/big"))
    head, rest = read_head(s)
    size, got = chunks(s.makefile("rb"), rest)
    s.close()
    want, sent = hashlib.sha256(), 0
    for i in range(BIG_MIB * 17):
        want.update(BLOCK[i % 997 :])
        sent += len(BLOCK) - i % 997
    is_((size, got), (sent, want.hexdigest()),
        "%d MiB, as they were sent" % (sent >> 20))
    after = kb(pid)
    if not ok(after - before < 1024, "in constant memory") or BIG_MIB > 64:
        print("# %d, %d kB" % (before, after))


def test_websocket(b):
    s = b.hand("api")
    s.sendall(req("/api/v1/ws", more=(
        "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Extensions: permessage-deflate\r\n")))
    a = Answer(s)
    is_((a.status, a.fields.get("upgrade")), (101, "websocket"), "an upgrade")
    ok("sec-websocket-extensions" not in dict(seen[-1][1]),
       "without compression")
    s.sendall(b"\x81\x02hi")
    is_(s.recv(100), b"\x81\x02hi", "bytes pass both ways")
    s.sendall(b"say it")
    got = b""
    while True:
        data = s.recv(100)
        if not data:
            break
        got += data
    ok(SECRET.encode() not in got, "the secret does not")
    s.close()


def test_limits(b):
    conns = [b.hand("api") for _ in range(70)]
    time.sleep(0.3)
    open_ = sum(not select.select([s], [], [], 0)[0] for s in conns)
    is_(open_, 64, "so many connections of one sandbox")
    other = b.hand("api", sandbox="efgh")
    other.sendall(req("/api/v1/hello"))
    is_(Answer(other).body, b"hello", "another one has its own")
    for box in "ijk":
        conns += [b.hand("api", sandbox=box) for _ in range(70)]
    last = b.hand("api", sandbox="last")
    last.sendall(req("/api/v1/hello"))
    is_(Answer(last).body, b"hello", "and the fifth, when four take all they can")
    for s in conns + [other, last]:
        s.close()


def credential(b, path="/api/v1/hello", names=("api",)):
    """What the upstream is shown."""
    before = len(seen)
    ask(b, path, names)
    return dict(seen[-1][1]).get("x-api-key") if len(seen) > before else None


def test_reload(b):
    stream, idle = b.hand("api"), b.hand("api")
    stream.sendall(req("/api/v1/sse"))
    idle.sendall(req("/api/v1/hello"))
    is_(Answer(idle).body, b"hello", "a connection that waits")
    head, data = read_head(stream)
    ok(head, "and one that streams")
    first = b.worker()
    new = "sk-next-" + "0123456789"
    configure(new, {"more": endpoint("api.test", paths=["/v1/hello"])})
    is_(credential(b), SECRET, "what the files say counts")
    ok(b.reload(), "from SIGHUP on")
    is_(idle.recv(100), b"", "what waits is closed")
    idle.close()
    is_(credential(b), new, "the new credential is used")
    is_(credential(b, "/more/v1/hello", ("api", "more")), new,
        "a new endpoint is there")
    ok(first in b.workers(), "the old worker")
    while not data.endswith(b"\r\n0\r\n\r\n"):
        got = stream.recv(65536)
        if not got:
            break
        data += got
    is_(data.count(b"data: "), 30, "ends what it began")
    stream.close()
    for _ in range(100):
        if first not in b.workers():
            break
        time.sleep(0.05)
    is_(len(b.workers()), 1, "and goes")
    write("broker.json", '{"endpoints": {"api": {}}}')
    ok(not b.reload(), "what cannot be read starts nobody")
    is_(credential(b), new, "and changes nothing")
    with open(DIR + "/log") as f:
        ok("broker.json is as it was: " in f.read(), "which is told")
    configure()
    ok(b.reload(), "mended")
    is_(credential(b), SECRET, "it counts again")


def test_system():
    """The certificates of the system, which are read before the filter."""
    os.mkdir(DIR + "/certs")
    run("cp", DIR + "/cert.pem", DIR + "/certs/test.pem")
    run("openssl", "rehash", DIR + "/certs")
    with open(DIR + "/broker.json") as f:
        conf = json.load(f)
    del conf["ca"]
    write("broker.json", json.dumps(conf))
    b = Broker(SSL_CERT_DIR=DIR + "/certs", SSL_CERT_FILE="/dev/null")
    is_(b.said, "ok", "without certificates of its own")
    is_(ask(b, "/api/v1/hello").body, b"hello", "those of the system count")
    b.sock.close()
    is_(b.proc.wait(10), 0, "and it ends")


def test_restart(b):
    pid = b.worker()
    os.kill(pid, 9)
    for _ in range(200):
        try:
            if b.worker() != pid:
                break
        except IndexError:
            pass
        time.sleep(0.05)
    is_(ask(b, "/api/v1/hello").body, b"hello",
        "a worker that was killed is started anew")
    b.sock.close()
    is_(b.proc.wait(10), 0, "it ends when nobody needs it")
    with open(DIR + "/audit/broker.jsonl") as f:
        ok(SECRET not in f.read(), "the audit does not have the secret")
    is_(os.stat(DIR + "/audit/broker.jsonl").st_mode & 0o777, 0o600,
        "and is root's alone")


def main():
    run("ip", "link", "set", "lo", "up")
    run("ip", "addr", "add", API + "/32", "dev", "lo")
    certificate()
    configure()
    for target, args in ((dns, ()), (upstream, (API, 8443)),
                         (upstream, ("127.0.0.1", 8443))):
        threading.Thread(target=target, args=args, daemon=True).start()
    time.sleep(0.2)
    b = Broker()
    for test in (test_start, test_plain, test_denied, test_upload, test_echo,
                 test_hidden, test_failures, test_stream, test_websocket, test_limits,
                 test_reload, test_moved, test_full, test_restart):
        test(b)
    test_system()
    os.chmod(DIR + "/secret", 0o644)
    bad = Broker()
    ok("root alone" in bad.said, "a secret that others can read is refused")
    is_(bad.proc.wait(10), 78, "at once")
    print("1..%d" % n, flush=True)


main()
