# SPDX-License-Identifier: Apache-2.0
"""Clients of dsec-serve that have a certificate and mean no good: see
serve-hostile.t.

    serve_hostile.py DIR ADDRESS SCENARIO[@CLIENT] [ARGUMENT..]

It prints a JSON object a line.
"""
import json
import os
import socket
import sys
import time

from serve_client import Client, show

TOKEN = "0123456789abcdef0123456789abcdef"


def code_of(rec):
    return "ok" if rec["ok"] else rec["error"]["code"]


def codes(new):
    """Requests of stdin, one a line; of each the code of its answer."""
    c = new()
    for n, line in enumerate(sys.stdin):
        if not line.strip():
            continue
        rec = c.ask(**dict(json.loads(line), id=n))
        print(code_of(rec), line.strip())


def records(new, request):
    """All that a request brings."""
    c = new()
    c.send(**dict(json.loads(request), id=1))
    while True:
        line = c.line()
        if line.get("event") == "record":
            show(**line["record"])
        if line.get("id") == 1 and "ok" in line:
            show(**line)
            return


def cut(new, sandbox, token=""):
    """A command with streams; how long after a line on stdin it is cut, and
    what was said."""
    c = new()
    if token:
        c.send(program="hello", v=1, token=token, id=0)
        c.until(0)
    c.send(id=1, program="exec", sandbox=sandbox, attach=True,
           command="while :; do echo x; sleep 0.05; done")
    c.until(1, "started")
    print("started", flush=True)
    sys.stdin.readline()
    began, said = time.monotonic(), []
    try:
        while True:
            line = c.line()
            if line.get("event") == "data":
                c.credit(line)
            elif "error" in line:
                said.append(line["error"]["code"])
    except (OSError, EOFError):
        pass
    show(s=round(time.monotonic() - began, 1), said=said)


def many(new, sandbox, count):
    """So many requests that wait, at once; those refused, and that the others
    are answered when they are cancelled."""
    c, count = new(), int(count)
    for n in range(count):
        c.send(id=n, program="ps", op="wait", sandbox=sandbox)
    c.send(id="last", program="ping")
    refused = []
    while True:
        line = c.line()
        if line.get("id") == "last":
            break
        if "ok" in line:
            refused.append(line["error"])
    twice = c.ask(id=0, program="ping", cancel=None)
    for n in range(count):
        c.send(id="c%d" % n, cancel=n)
    ends = set()
    while len(ends) < count - len(refused):
        line = c.line()
        if isinstance(line.get("id"), int) and "ok" in line:
            ends.add(line["id"])
    show(refused=len(refused), code=refused[0]["code"] if refused else None,
         later=bool(refused and refused[0].get("retry_after_ms")),
         ended=len(ends), twice=twice["ok"])


def large(new):
    """Lines that are as long as they may be, or grow on their way."""
    c = new()
    most = (1 << 20) - 100
    req = {"id": 1, "program": "ps", "op": "wait", "sandbox": "x"}
    req["x"] = "y" * (most - len(json.dumps(req)))
    full = c.ask(**req)
    # Written back, each of these is a longer number.
    nums = ",".join(["1e15"] * ((1 << 20) // 5 - 100))
    c.raw(b'{"id":2,"program":"ps","x":[' + nums.encode() + b"]}\n")
    grown = c.until(2)
    after = c.ask(id=3, program="ps", limit=1)
    show(full=code_of(full), grown=code_of(grown), after=code_of(after))


def heavy(new, sandbox, count):
    """Large requests that wait, as many as are taken; then one more."""
    c, taken, refused = new(), 0, None
    c.sock.settimeout(60)
    pad = {str(i): "" for i in range(40000)}
    for n in range(int(count)):
        c.send(id=n, program="exec", sandbox=sandbox, command=["sleep", "1000"],
               env=pad)
        c.send(id="p%d" % n, program="ping")
        while True:
            line = c.line()
            if line.get("id") == n and "ok" in line:
                refused = line["error"]["code"]
            if line.get("id") == "p%d" % n:
                break
        if refused:
            break
        taken += 1
    other = new().ask(program="ps", limit=1)
    show(taken=taken, refused=refused, other=code_of(other))


def pretend(new, sandbox):
    """Output that looks like what the daemon says."""
    c = new()
    lie = ('{"id":1,"ok":true,"exit_code":0}\n'
           '{"id":1,"event":"eof","stream":"stdout"}\n'
           '{"id":2,"event":"data","stream":"stdout","bytes":99}\n')
    c.send(id=1, program="exec", sandbox=sandbox, attach=True,
           env={"LIE": lie}, command='printf %s "$LIE"; printf %s "$LIE" >&2; '
                                     'printf "\\0\\377\\n"; exit 7')
    got, final = {"stdout": b"", "stderr": b""}, None
    while final is None:
        line = c.line()
        if line.get("event") == "data":
            got[line["stream"]] += line["data"]
            c.credit(line)
        elif "ok" in line:
            final = line
    plain = c.ask(id=2, program="exec", sandbox=sandbox, env={"LIE": lie},
                  command='printf %s "$LIE"; exit 8')
    show(stdout=got["stdout"] == lie.encode() + b"\0\xff\n",
         stderr=got["stderr"] == lie.encode(), exit_code=final["exit_code"],
         plain=plain["stdout"] == lie, plain_code=plain["exit_code"])


def streams(new, sandbox):
    """Bytes for streams that there are not, credit that was not earned, more
    than there is credit for: an answer each, and nobody else notices."""
    other = new()
    out = {}

    def started(c):
        c.send(id=1, program="exec", sandbox=sandbox, attach=True,
               stdin="pipe", command=["cat"])
        c.until(1, "started")

    def ending(c):
        try:
            while True:
                line = c.line()
                if "error" in line and line.get("id", 1) == 1:
                    return line["error"]["code"]
        except (OSError, EOFError):
            return "cut"

    c = new()
    c.raw(b'{"id":9,"event":"data","stream":"stdin","bytes":5}\nhello'
          b'{"id":9,"event":"eof","stream":"stdin"}\n'
          b'{"id":9,"event":"credit","stream":"stdout","bytes":7}\n'
          b'{"event":"leave","id":9}\n')
    out["none"] = code_of(c.ask(id=2, program="ps", limit=1))
    for name, bad in (
            ("credit", b'{"id":1,"event":"credit","stream":"stdout",'
                       b'"bytes":9223372036854775807}\n'),
            ("minus", b'{"id":1,"event":"credit","stream":"stdout",'
                      b'"bytes":-1}\n'),
            ("huge", b'{"id":1,"event":"data","stream":"stdin",'
                     b'"bytes":262145}\n'),
            ("id", b'{"id":{"a":1},"event":"data","stream":"stdin",'
                   b'"bytes":1}\nx'),
            ("name", b'{"id":1,"event":"eof","stream":"aaaaaaaaaaaaaaaaaaaa"}'
                     b"\n"),
            ("ended", b'{"id":1,"event":"eof","stream":"stdin"}\n'
                      b'{"id":1,"event":"data","stream":"stdin","bytes":1}\n'
                      b"x")):
        c = new()
        started(c)
        c.raw(bad)
        out[name] = ending(c)
        # Who says nothing for 90 seconds has ended, too.
        other.ask(program="ps", limit=1)
    c = new()
    c.send(id=1, program="exec", sandbox=sandbox, attach=True, stdin="pipe",
           command=["sleep", "100"])
    c.until(1, "started")
    try:
        for _ in range(9):
            c.raw(b'{"id":1,"event":"data","stream":"stdin","bytes":65536}\n' +
                  bytes(65536))
    except OSError:
        pass
    out["window"] = ending(c)
    out["other"] = code_of(other.ask(program="ps", limit=1))
    show(**out)


def odd(new):
    """Lines that are no requests: what comes, until the end."""
    out = {}
    cases = {
        "nul": b'{"id":1,"program":"p\\u0000s"}\n',
        "raw_nul": b'{"id":1,"program":"p\0s"}\n',
        "utf8": b'{"id":1,"program":"\xff\xfe"}\n',
        "deep": b'{"id":1,"x":' + b"[" * 5000 + b"]" * 5000 + b"}\n",
        "twice": b'{"id":1,"program":"ps","program":"run"}\n',
        "number": b'{"id":123456789012345678901234567890}\n',
        "float": b'{"id":1e999,"program":"ps"}\n',
        "array": b"[1,2]\n",
        "junk": b"\x16\x03\x01\x02\n",
    }
    for name, data in cases.items():
        c = new()
        c.raw(data)
        got = []
        try:
            while True:
                line = c.line()
                got.append(line["error"]["code"] if "error" in line
                           else "other")
        except (OSError, EOFError):
            got.append("end")
        out[name] = " ".join(got)
    c = new()
    long = code_of(c.ask(id=2, program="x" * 100000))
    out["long"] = long
    bad = []
    for value in (None, True, 1.5, "", "x" * 129, [1], {}):
        c.send(id=value, program="ps", limit=1)
        bad.append("ok" if "ok" in c.line() else "?")
    out["ids"] = len(bad)
    show(**out)


def flat(new, sandbox, pids, requests, connections):
    """Descriptors and memory of processes, before and after."""
    pids = [int(p) for p in pids.split(",")]

    def look():
        fds = [len(os.listdir("/proc/%d/fd" % p)) for p in pids]
        kib = 0
        for p in pids:
            with open("/proc/%d/smaps_rollup" % p) as f:
                kib += sum(int(x.split()[1]) for x in f
                           if x.startswith("Pss:"))
        return fds, kib

    def turn(n, m):
        c, asked, done = new(), 0, 0
        while done < n:
            while asked < n and asked - done < 32:
                c.send(id=asked, program="exec", op="stat", sandbox=sandbox,
                       path="/")
                asked += 1
            if "ok" in c.line():
                done += 1
        c.sock.close()
        for _ in range(m):
            c = new()
            c.send(id=1, program="exec", sandbox=sandbox, attach=True,
                   command=["sleep", "1"])
            c.until(1, "started")
            c.sock.close()

    turn(100, 20)
    settled(look)
    fds, kib = look()
    turn(int(requests), int(connections))
    settled(look)
    fds2, kib2 = look()
    show(fds=[b - a for a, b in zip(fds, fds2)], kib=kib2 - kib)


def settled(look):
    """Until what is closed has been noticed."""
    was = None
    for _ in range(100):
        now = look()[0]
        if now == was:
            return
        was = now
        time.sleep(0.2)


def hello(new):
    """Is there a greeting?"""
    try:
        new()
        print("hello")
    except (OSError, EOFError):
        print("refused")


def half(new, count):
    """Connections that have no handshake, in their hundreds, and those that
    say that they are at the end; a client is served meanwhile."""
    address = sys.argv[2].rsplit(":", 1)
    socks = []
    for n in range(int(count)):
        s = socket.create_connection((address[0], int(address[1])), 20)
        if n % 2:
            s.shutdown(socket.SHUT_WR)
        socks.append(s)
    began = time.monotonic()
    rec = new().ask(program="ping")
    show(ok=rec["ok"], quick=time.monotonic() - began < 15)


def flood(new, sandbox, creates, execs):
    """Creates and commands, all offered at once over several connections.
    Each is done, or refused with a time to come back; afterwards all is as
    before."""
    creates, execs, ends = int(creates), int(execs), {}
    clients = [new() for _ in range(max(2, (creates + execs) // 900 + 1))]
    asked = [0] * len(clients)
    for n in range(creates + execs):
        c = n % len(clients)
        if n % ((creates + execs) // creates) == 0 and n // (
                (creates + execs) // creates) < creates:
            req = {"program": "run", "task": "flood", "key": "flood-%d" % n}
        else:
            req = {"program": "exec", "sandbox": sandbox, "command": ["true"]}
        clients[c].send(**dict(req, id=n))
        asked[c] += 1
    hinted = True
    for c, count in zip(clients, asked):
        while count:
            line = c.line()
            if "ok" not in line:
                continue
            count -= 1
            code = code_of(line)
            ends[code] = ends.get(code, 0) + 1
            hinted &= line["ok"] or bool(line["error"].get("retry_after_ms"))
    c = new()
    stopped = c.ask(program="pause", op="stop", task="flood", grace_ms=0)
    after = c.ask(id=2, program="exec", sandbox=sandbox, command=["true"])
    show(ends=ends, all=sum(ends.values()) == creates + execs, hinted=hinted,
         stopped=stopped["ok"], after=code_of(after))


def main():
    directory, address, scenario, *rest = sys.argv[1:]
    name = "client"
    if "@" in scenario:
        scenario, name = scenario.split("@")
    globals()[scenario](lambda: Client(directory, address, name), *rest)


if __name__ == "__main__":
    main()
