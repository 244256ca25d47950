# SPDX-License-Identifier: Apache-2.0
"""A client of dsec-serve for its tests: lines and streams, nothing clever.

    serve_client.py DIR ADDRESS SCENARIO [ARGUMENT..]

DIR has ca.pem, client.pem and client.key.  It prints a JSON object a line.
"""
import hashlib
import json
import socket
import ssl
import sys
import time


class Client:
    def __init__(self, directory, address, name="client"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(directory + "/ca.pem")
        context.load_cert_chain("%s/%s.pem" % (directory, name),
                                "%s/%s.key" % (directory, name))
        context.check_hostname = False
        host, port = address.rsplit(":", 1)
        self.sock = context.wrap_socket(
            socket.create_connection((host, int(port)), 20))
        self.sock.settimeout(120)
        self.buf = b""
        self.hello = self.line()

    def send(self, **request):
        self.sock.sendall(json.dumps(request).encode() + b"\n")

    def raw(self, data):
        self.sock.sendall(data)

    def more(self):
        data = self.sock.recv(262144)
        if not data:
            raise EOFError("the connection has ended")
        self.buf += data

    def line(self):
        while b"\n" not in self.buf:
            self.more()
        text, self.buf = self.buf.split(b"\n", 1)
        line = json.loads(text)
        if line.get("event") == "data":
            while len(self.buf) < line["bytes"]:
                self.more()
            line["data"] = self.buf[:line["bytes"]]
            self.buf = self.buf[line["bytes"]:]
        return line

    def credit(self, line):
        self.send(id=line["id"], event="credit", stream=line["stream"],
                  bytes=line["bytes"])

    def until(self, number, event=None):
        """The final record of a request, or an event of it."""
        while True:
            line = self.line()
            if line.get("id") == number and (
                    "ok" in line if event is None else
                    line.get("event") == event):
                return line

    def ask(self, **request):
        request.setdefault("id", 1)
        self.send(**request)
        return self.until(request["id"])

    def follow(self, number, rest=0.0, stop=None):
        """Take the streams of a request, giving credit; its final record and
        what came, as sizes and digests."""
        got = {}
        while True:
            line = self.line()
            if line.get("id") != number:
                continue
            if line.get("event") == "data":
                one = got.setdefault(line["stream"], [0, hashlib.sha256()])
                one[0] += len(line["data"])
                one[1].update(line["data"])
                self.credit(line)
                if rest:
                    time.sleep(rest)
                if stop and one[0] >= stop:
                    return None, got
            elif "ok" in line:
                return line, got


def show(**what):
    print(json.dumps(what), flush=True)


def sums(got):
    return {k: {"bytes": v[0], "sha256": v[1].hexdigest()}
            for k, v in got.items()}


def bulk(new, sandbox, mib):
    """So much output, and its hash beside the one made inside."""
    c = new()
    script = ("head -c %s /dev/urandom >/tmp/data; cat /tmp/data; "
              "sha256sum </tmp/data >&2" % (int(mib) << 20))
    c.send(id=1, program="exec", sandbox=sandbox, command=script, attach=True)
    began = time.time()
    said, total, digest, final = b"", 0, hashlib.sha256(), None
    while final is None:
        line = c.line()
        if line.get("event") == "data" and line["stream"] == "stdout":
            total += len(line["data"])
            digest.update(line["data"])
            c.credit(line)
        elif line.get("event") == "data":
            said += line["data"]
            c.credit(line)
        elif "ok" in line:
            final = line
    show(same=said.split()[0].decode() == digest.hexdigest(), bytes=total,
         counted=final.get("stdout_bytes"), ok=final["ok"],
         s=round(time.time() - began, 2))


def slow(new, sandbox):
    """One that takes nothing stops nobody, on its own connection or another."""
    c, other = new(), new()
    c.send(id=1, program="exec", sandbox=sandbox, attach=True,
           command="head -c 3000000 /dev/zero")
    c.until(1, "started")
    began = time.time()
    c.send(id=2, program="exec", sandbox=sandbox, command=["true"])
    got, here = 0, None
    while here is None:
        line = c.line()
        if line.get("event") == "data":
            got += line["bytes"]
        elif line.get("id") == 2 and "ok" in line:
            here = line
    there = other.ask(program="exec", sandbox=sandbox, command=["true"])
    s = time.time() - began
    # What it has not taken is at most a window of the stream.
    c.sock.settimeout(2)
    try:
        while True:
            line = c.line()
            if line.get("event") == "data":
                got += line["bytes"]
    except OSError:
        pass
    show(here=here.get("exit_code"), there=there.get("exit_code"),
         quick=s < 20, window=got)


def echo(new, sandbox):
    """stdin, and a terminal."""
    c = new()
    c.send(id=1, program="exec", sandbox=sandbox, attach=True, stdin="pipe",
           command=["sha256sum"])
    c.until(1, "started")
    data = bytes(range(256)) * 4000
    digest, at, room = hashlib.sha256(data).hexdigest(), 0, 262144
    while at < len(data):
        n = min(65536, room, len(data) - at)
        if n == 0:
            room += c.until(1, "credit")["bytes"]
            continue
        c.raw(json.dumps({"id": 1, "event": "data", "stream": "stdin",
                          "bytes": n}).encode() + b"\n" + data[at:at + n])
        at, room = at + n, room - n
    c.send(id=1, event="eof", stream="stdin")
    out, final = b"", None
    while final is None:
        line = c.line()
        if line.get("event") == "data":
            out += line["data"]
        elif "ok" in line and line["id"] == 1:
            final = line
    c.send(id=2, program="exec", sandbox=sandbox, attach=True, tty=True,
           rows=33, cols=99, command=["sh", "-c", "read x; stty size; tty"])
    started = c.until(2, "started")
    c.raw(json.dumps({"id": 2, "event": "data", "stream": "tty",
                      "bytes": 2}).encode() + b"\nx\n")
    tty, end = b"", None
    while end is None:
        line = c.line()
        if line.get("event") == "data":
            tty += line["data"]
        elif "ok" in line:
            end = line
    show(stdin=out.split()[0].decode() == digest, streams=started["streams"],
         size=b"33 99" in tty, exit_code=end.get("exit_code"))


def files(new, sandbox):
    """Files as streams, and a port."""
    c = new()
    data = b"some bytes\n" * 30000
    c.send(id=1, program="file", op="write", sandbox=sandbox, attach=True,
           path="/tmp/streamed", size=len(data))
    c.until(1, "started")
    at, room = 0, 262144
    while at < len(data):
        n = min(65536, room, len(data) - at)
        if n == 0:
            room += c.until(1, "credit")["bytes"]
            continue
        c.raw(json.dumps({"id": 1, "event": "data", "stream": "stdin",
                          "bytes": n}).encode() + b"\n" + data[at:at + n])
        at, room = at + n, room - n
    c.send(id=1, event="eof", stream="stdin")
    put = c.until(1)
    c.send(id=2, program="file", op="read", sandbox=sandbox, attach=True,
           path="/tmp/streamed")
    final, got = c.follow(2)
    c.send(id=3, program="file", op="get", sandbox=sandbox, path="/tmp")
    tar, tgot = c.follow(3)
    bad = c.ask(id=4, program="file", op="get", sandbox=sandbox,
                path="/no/such")
    show(put=put["ok"], read=final["ok"],
         same=got["stdout"][1].hexdigest() == hashlib.sha256(data).hexdigest(),
         tar=tar["ok"] and tgot["stdout"][0] > len(data),
         missing=bad.get("error", {}).get("code"))


def port(new, sandbox):
    c = new()
    c.send(id=1, program="exec", sandbox=sandbox, command=[
        "python3", "-c",
        "import socket; s=socket.create_server(('127.0.0.1', 8080));"
        "print('up', flush=True); c,_=s.accept(); d=c.recv(99);"
        "c.sendall(d.upper()); c.close()"], attach=True)
    while True:
        line = c.line()
        if line.get("event") == "data" and b"up" in line["data"]:
            break
    c.send(id=2, program="exec", op="connect", sandbox=sandbox, port=8080)
    started = c.until(2, "started")
    c.raw(b'{"id":2,"event":"data","stream":"socket","bytes":5}\nhello')
    got = b""
    while True:
        line = c.line()
        if line.get("id") == 2 and line.get("event") == "data":
            got += line["data"]
        elif line.get("id") == 2 and line.get("event") == "eof":
            break
    c.send(id=2, event="eof", stream="socket")
    final = c.until(2)
    none = c.ask(id=3, program="exec", op="connect", sandbox=sandbox,
                 port=8081)
    show(streams=started["streams"], got=got.decode(), ok=final["ok"],
         none=none.get("error", {}).get("code"))


def begin(new, sandbox, script):
    """Start a command, detached; its name."""
    print(new().ask(program="exec", sandbox=sandbox, command=script,
                    detach=True)["exec"])


def attach(new, sandbox, exec_id, offset, stop="0"):
    c = new()
    c.send(id=1, program="exec", op="attach", sandbox=sandbox, exec=exec_id,
           attach=True, stdout_offset=int(offset))
    final, got = c.follow(1, stop=int(stop))
    show(got=sums(got), ok=final["ok"] if final else None,
         exit_code=final.get("exit_code") if final else None,
         error=(final or {}).get("error", {}).get("code"))


def hold(new, sandbox, seconds):
    """A request that waits, an attached command and an ordinary one, while
    somebody else kills processes; how each ended."""
    c = new()
    c.send(id=1, program="ps", op="wait", sandbox=sandbox, deadline_ms=60000)
    c.send(id=2, program="exec", sandbox=sandbox, attach=True,
           command="i=0; while [ $i -lt %s ]; do echo $i; sleep 0.2;"
                   " i=$((i+1)); done" % (int(seconds) * 5))
    c.send(id=3, program="exec", sandbox=sandbox,
           command="sleep %s; echo done" % seconds)
    c.until(2, "started")
    print("held", flush=True)
    ends, out = {}, b""
    while 2 not in ends or 3 not in ends:
        line = c.line()
        if line.get("event") == "data":
            out += line["data"]
            c.credit(line)
        elif "ok" in line:
            ends[line["id"]] = line
    want = "".join("%d\n" % i for i in range(int(seconds) * 5)).encode()
    show(lines=out == want, attached=ends[2].get("exit_code"),
         plain=ends[3].get("stdout"),
         errors=[e["error"]["code"] for e in ends.values()
                 if not e["ok"]])


def reach(new):
    """A connection, though one may be cut that is just being made."""
    for _ in range(100):
        try:
            return new()
        except (OSError, EOFError):
            time.sleep(0.1)
    return new()


def storm(new, sandbox, seconds):
    """Calls one after another, each again as its answer says; how many came
    to nothing."""
    end, done, again, failed = time.time() + float(seconds), 0, 0, []
    c, n = reach(new), 0
    while time.time() < end:
        n += 1
        key = "storm-%d" % n
        for attempt in range(60):
            try:
                rec = c.ask(id=n * 100 + attempt, program="exec", key=key,
                            sandbox=sandbox, command="echo %d" % n)
            except (OSError, EOFError):
                again += 1
                c = reach(new)
                continue
            if rec["ok"]:
                break
            wait = rec["error"].get("retry_after_ms", 0)
            again += 1
            if not wait:
                break
            time.sleep(wait / 1000)
        if rec["ok"] and rec["stdout"] == "%d\n" % n:
            done += 1
        else:
            failed.append(rec)
    show(done=done > 0, calls=done, again=again, failed=failed[:3])


def rounds(new, sandbox, count, *argv):
    """The same command so often, one after another: its median."""
    c, took = new(), []
    for n in range(int(count) + 3):
        began = time.perf_counter()
        rec = c.ask(id=n, program="exec", sandbox=sandbox, command=list(argv))
        took.append(time.perf_counter() - began)
        if not rec["ok"]:
            raise SystemExit(json.dumps(rec))
    took = sorted(took[3:])
    show(p50_ms=round(took[len(took) // 2] * 1000, 3))


def idle(new, count):
    """So many connections that say nothing, until our input ends."""
    held = [new() for _ in range(int(count))]
    show(held=len(held))
    sys.stdin.read()


def one(new, text):
    request = json.loads(text)
    show(**new().ask(**request))


def data(number, stream, text):
    return json.dumps({"id": number, "event": "data", "stream": stream,
                       "bytes": len(text)}).encode() + b"\n" + text


def beside(new, held, *texts):
    """Requests (a list) that take their time; when a line is read from stdin,
    others, one after another.  Those that were answered, then the first ones;
    and how many of these came too early."""
    c, held = new(), json.loads(held)
    ends = {}
    for n, request in enumerate(held):
        c.send(id=n, **request)
    sys.stdin.readline()
    for n, text in enumerate(texts):
        number = 100 + n
        c.send(id=number, **json.loads(text))
        while number not in ends:
            line = c.line()
            if "ok" in line and "id" in line:
                ends[line["id"]] = line
    show(others=[ends[100 + n] for n in range(len(texts))],
         early=[n for n in range(len(held)) if n in ends])
    while len(ends) < len(held) + len(texts):
        line = c.line()
        if "ok" in line and "id" in line:
            ends[line["id"]] = line
    show(held=[ends[n] for n in range(len(held))])


def attached(new, sandbox, count):
    """An attached command that counts; what came of it over what others do.
    "go" is said when it has begun."""
    c = new()
    c.send(id=1, program="exec", sandbox=sandbox, attach=True, command=(
        "i=0; while [ $i -lt %s ]; do echo $i; sleep 0.05; i=$((i+1)); done"
        % count))
    c.until(1, "started")
    out, final, said = b"", None, False
    while final is None:
        line = c.line()
        if line.get("event") == "data":
            out += line["data"]
            c.credit(line)
        elif "ok" in line and line.get("id") == 1:
            final = line
        if out and not said:
            print("go", flush=True)
            said = True
    want = "".join("%d\n" % i for i in range(int(count))).encode()
    show(same=out == want, exit_code=final.get("exit_code"), got=len(out),
         error=final.get("error", {}).get("code"))


def typed(new, sandbox):
    """A terminal; a line is typed, "go" said, and another one typed when a
    line is read from stdin.  What was shown, and what was told."""
    c = new()
    c.send(id=1, program="exec", sandbox=sandbox, attach=True, tty=True,
           command="while read x; do echo got-$x; [ $x = end ] && exit 7;"
                   " done")
    started = c.until(1, "started")
    shown, events, final = b"", [], None

    def see(text):
        nonlocal shown, final
        while text not in shown and final is None:
            line = c.line()
            if line.get("event") == "data":
                shown += line["data"]
                c.credit(line)
            elif "ok" in line and line.get("id") == 1:
                final = line
            elif line.get("id") == 1:
                events.append(line["event"])
    c.raw(data(1, "tty", b"one\n"))
    see(b"got-one")
    print("go", flush=True)
    sys.stdin.readline()
    c.raw(data(1, "tty", b"two\n"))
    see(b"got-two")
    c.raw(data(1, "tty", b"end\n"))
    see(b"\0")
    show(shown=[w for w in shown.decode().split() if w.startswith("got")],
         events=[e for e in events if e not in ("credit", "eof")],
         streams=started["streams"],
         exit_code=final.get("exit_code"),
         error=final.get("error", {}).get("code"))


def twice(new, text):
    """The same request again on one connection, when a line is read."""
    c, request = new(), json.loads(text)
    show(**c.ask(id=1, **request))
    sys.stdin.readline()
    show(**c.ask(id=2, **request))


def untaken(new, sandbox):
    """An attached command whose output is not taken, cancelled; its end."""
    c = new()
    c.send(id=1, program="exec", sandbox=sandbox, command="x", attach=True)
    got = 0
    while got < 196608:
        got += len(c.line().get("data", b""))
    c.send(id=2, cancel=1)
    show(**c.until(1))


def ended(new, sandbox):
    """An attached command that has ended, but for output that is not taken;
    cancelled when a line is read."""
    c, other = new(), new()
    c.send(id=1, program="exec", sandbox=sandbox, attach=True,
           command="head -c 300000 /dev/zero")
    exec_id = c.until(1, "started")["exec"]
    other.ask(program="exec", op="wait", sandbox=sandbox, exec=exec_id)
    other.ask(program="ps", sandbox=sandbox)
    print("ended", flush=True)
    sys.stdin.readline()
    c.send(id=2, cancel=1)
    show(**c.until(1))


def cancelled(new, sandbox):
    """An attached command that is cancelled, and not waited for."""
    c = new()
    c.send(id=1, program="exec", sandbox=sandbox, command="x", attach=True)
    c.send(id=2, cancel=1)
    show(**c.until(2))


def given_up(new):
    """A create that is cancelled at a word, and its end."""
    c = new()
    c.send(id=1, program="run")
    sys.stdin.readline()
    c.send(id=2, cancel=1)
    show(**c.until(1))


def main():
    directory, address, scenario, *rest = sys.argv[1:]
    name = "client"
    if "@" in scenario:
        scenario, name = scenario.split("@")
    globals()[scenario](lambda: Client(directory, address, name), *rest)


if __name__ == "__main__":
    main()
