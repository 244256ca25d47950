# SPDX-License-Identifier: Apache-2.0
"""A client of the supervisor's socket, and checks that tap.sh counts.

Every check is a line on standard output: its status (0 is good), a blank and
what it is; lines with '#' are comments.
"""
import array
import json
import os
import select
import socket
import subprocess
import sys
import time

RUN = os.environ["DSEC_RUN"]
LIB = os.environ["DSEC_LIB"]


def ok(good, what, *seen):
    print(0 if good else 1, what)
    if not good:
        for s in seen:
            print("#", repr(s)[:600])
    sys.stdout.flush()
    return good


def is_(got, want, what, *seen):
    return ok(got == want, what, "got", got, "want", want, *seen)


def make(**spec):
    """A new sandbox; its id."""
    p = subprocess.run(["dsec-run"], input=json.dumps(spec) + "\n",
                       capture_output=True, text=True)
    rec = json.loads(p.stdout)
    if not rec["ok"]:
        raise RuntimeError(rec)
    return rec["sandbox"]


def until(fn, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if fn():
            return True
        time.sleep(0.02)
    return bool(fn())


def is_gone(sandbox):
    return until(lambda: not os.path.exists(f"{RUN}/sb/{sandbox}"))


def death(sandbox):
    for hour in os.listdir(f"{LIB}/dead"):
        path = f"{LIB}/dead/{hour}/{sandbox}.json"
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                return json.load(f)
    return {}


def read_all(fd, limit=None):
    """To the end of file, or ${limit} bytes; closes it at the end."""
    parts, n = [], 0
    while limit is None or n < limit:
        data = os.read(fd, 1 << 17)
        if not data:
            os.close(fd)
            break
        parts.append(data)
        n += len(data)
    return b"".join(parts)


class Box:
    """One connection to a supervisor."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(f"{RUN}/sb/{sandbox}/ctl.sock")
        self.buf = b""
        self.fds = []
        self.kept = []
        self.last = 0

    def send(self, **req):
        self.last += 1
        req.setdefault("id", self.last)
        self.sock.sendall(json.dumps(req).encode() + b"\n")
        return req["id"]

    def recv(self, timeout=60):
        """The next record; descriptors under "_fd" by name; None at the end."""
        self.sock.settimeout(timeout)
        while b"\n" not in self.buf:
            data, anc, _, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(64))
            for _, _, raw in anc:
                fds = array.array("i")
                fds.frombytes(raw[:len(raw) // 4 * 4])
                self.fds += list(fds)
            if not data:
                return None
            self.buf += data
        line, self.buf = self.buf.split(b"\n", 1)
        rec = json.loads(line)
        if "fds" in rec:
            rec["_fd"] = {name: self.fds.pop(0) for name in rec["fds"]}
        return rec

    def next_of(self, request, final, timeout=60):
        """The next (final) record of a request; others are kept for theirs."""
        for i, rec in enumerate(self.kept):
            if rec.get("id") == request and ("ok" in rec or not final):
                return self.kept.pop(i)
        while True:
            rec = self.recv(timeout)
            if rec is None:
                return None
            if rec.get("id") == request and ("ok" in rec or not final):
                return rec
            self.kept.append(rec)

    def final(self, request, timeout=60):
        return self.next_of(request, True, timeout)

    def call(self, timeout=60, **req):
        return self.final(self.send(**req), timeout)

    def start(self, command, **req):
        """Start it; the event "started", or the failure."""
        request = self.send(op="exec", command=command, **req)
        return self.next_of(request, False)

    def run(self, command, data=None, timeout=60, **req):
        """Run it to its end; the record with "stdout" and "stderr" (bytes)."""
        req.setdefault("attach", ["stdout", "stderr"])
        rec = self.start(command, **req)
        if rec is None or "ok" in rec:
            return rec
        fds = rec["_fd"]
        if "tty" in fds:
            os.close(fds["tty"])
        if "stdin" in fds:
            if data:
                os.write(fds["stdin"], data)
            os.close(fds["stdin"])
        out = {name: [] for name in ("stdout", "stderr")}
        live = {fds[n]: n for n in out if n in fds}
        while live:
            ready = select.select(list(live), [], [], timeout)[0]
            if not ready:
                raise TimeoutError(command)
            for fd in ready:
                part = os.read(fd, 1 << 17)
                if part:
                    out[live[fd]].append(part)
                else:
                    os.close(fd)
                    del live[fd]
        rec = self.final(rec["id"], timeout)
        rec.update({k: b"".join(v) for k, v in out.items()})
        return rec

    def out(self, command, **req):
        return self.run(command, **req).get("stdout")

    def state(self):
        with open(f"{RUN}/sb/{self.sandbox}/state.json", encoding="utf-8") as f:
            return json.load(f)

    def recording(self, name):
        path = f"{LIB}/sb/{self.sandbox}/out/{name}"
        if not os.path.exists(path):
            return None
        with open(path, "rb") as f:
            return f.read()
