# SPDX-License-Identifier: Apache-2.0
"""What tests of the network helper run inside a sandbox's namespace.

usage: net_client.py MODE ARGS...     one line of outcome on standard output

Outcomes: what came back, or one of reset, refused, unreachable, closed,
timeout; modes that measure print JSON.
"""
import json
import os
import select
import socket
import ssl
import struct
import sys
import time

LIMIT_S = 15


def resolve(name, qtype=1):
    """The address of a name by the helper's DNS, or None."""
    q = struct.pack("!HHHHHH", 0x1234, 0x100, 1, 0, 0, 0)
    for label in name.split("."):
        q += bytes([len(label)]) + label.encode()
    q += b"\0" + struct.pack("!HH", qtype, 1)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(5)
    s.connect(("198.18.0.1", 53))
    for _ in range(3):  # no answer or SERVFAIL: once more
        s.send(q)
        try:
            a = s.recv(2048)
        except OSError:
            continue
        if a[3] & 15 != 2:
            break
    else:
        return None
    at = a.find(b"\xc0\x0c\0\x01\0\x01", 12)
    return socket.inet_ntoa(a[at + 12:at + 16]) if at > 0 else None


def address(name):
    if name[0].isdigit():
        return name
    addr = resolve(name)
    if not addr:
        print("unknown")
        raise SystemExit(0)
    return addr


def word(e):
    if isinstance(e, ConnectionResetError) or isinstance(e, BrokenPipeError):
        return "reset"
    if isinstance(e, ConnectionRefusedError):
        return "refused"
    if isinstance(e, (TimeoutError, socket.timeout)):
        return "timeout"
    if isinstance(e, ssl.SSLError):
        return "tls " + (e.reason or str(e))
    if isinstance(e, OSError) and e.errno in (101, 113):
        return "unreachable"
    return "%s" % e


def connect(name, port, limit=LIMIT_S):
    s = socket.socket()
    s.settimeout(limit)
    s.connect((address(name), int(port)))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def end_of(s):
    """How a connection ends that should get nothing."""
    try:
        got = s.recv(4096)
        return "closed" if not got else "data"
    except OSError as e:
        return word(e)


def mode_echo(name, port, text="hello"):
    s = connect(name, port)
    s.sendall(text.encode())
    s.shutdown(socket.SHUT_WR)
    got = b""
    while True:
        more = s.recv(4096)
        if not more:
            break
        got += more
    return got.decode() or "closed"


def mode_probe(name, port):
    """Connect, say nothing, and see."""
    return end_of(connect(name, port))


def mode_quick(name, port):
    """The same, and was it within a second?  A reset may come while it still
    connects."""
    addr, t = address(name), time.monotonic()
    try:
        r = end_of(connect(addr, port))
    except OSError as e:
        r = word(e)
    return r + (" soon" if time.monotonic() - t < 1 else " late")


def mode_tls(name, port, sni, ca=None):
    c = ssl.create_default_context(cafile=ca)
    c.check_hostname = False
    if not ca:
        c.verify_mode = ssl.CERT_NONE
    s = connect(name, port)
    t = c.wrap_socket(s, server_hostname=sni or None)
    t.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    got = t.recv(15)
    return got.decode("latin-1")[:12]


def hello(sni, padding=0):
    """A ClientHello, over as many records as it needs."""
    ext = b""
    if sni is not None:
        n = sni.encode()
        entry = b"\0" + struct.pack("!H", len(n)) + n
        body = struct.pack("!H", len(entry)) + entry
        ext += struct.pack("!HH", 0, len(body)) + body
    if padding:
        ext = struct.pack("!HH", 21, padding) + b"\0" * padding + ext
    body = (b"\x03\x03" + b"r" * 32 + b"\0" + struct.pack("!H", 2) +
            b"\x13\x01" + b"\x01\0" + struct.pack("!H", len(ext)) + ext)
    msg = b"\x01" + struct.pack("!I", len(body))[1:] + body
    out = b""
    while msg:
        part, msg = msg[:8192], msg[8192:]
        out += b"\x16\x03\x01" + struct.pack("!H", len(part)) + part
    return out


def mode_hello(name, port, kind, sni="allowed.test"):
    """A hand-made hello; `passed` when the server's answer arrives."""
    s = connect(name, port)
    if kind == "none":
        data = hello(None)
    elif kind == "garbage":
        data = b"\x16\x03\x01\x00\x40" + os.urandom(64)
    elif kind == "large":
        data = hello(sni, 15800)
    elif kind == "huge":
        data = hello(sni, 20000)
    else:
        data = hello(sni)
    try:
        if kind == "bytes":
            for b in data:
                s.send(bytes([b]))
        elif kind == "slow":
            t = time.monotonic()
            for b in data:
                s.send(bytes([b]))
                if select.select([s], [], [], 0.5)[0]:
                    break
            r = end_of(s)
            return "%s after %d" % (r, round(time.monotonic() - t))
        elif kind == "end":
            s.sendall(data[:20])
            s.shutdown(socket.SHUT_WR)
        else:
            s.sendall(data)
        return {"data": "passed", "closed": "passed"}.get(r := end_of(s), r)
    except OSError as e:
        return word(e)


def mode_hellos(name, port, count):
    """Each with a long name of its own below NAME; how many passed."""
    addr = address(name)
    return sum(
        mode_hello(addr, port, "", "%033d.%s" % (i, name)) == "passed"
        for i in range(int(count))
    )


def mode_hang(name, port, below, count, go, end):
    """Hellos that name what nobody answers for; how many wait until END."""
    addr, all = address(name), []
    for i in range(int(count)):
        s = connect(addr, port)
        all.append(s)
        try:
            s.sendall(hello("%d.%s" % (i, below)))
        except OSError:  # refused that fast
            pass
    open(go, "w").close()
    while not os.path.exists(end):
        time.sleep(0.02)
    poll = select.poll()
    for s in all:
        poll.register(s, select.POLLIN)
    return str(len(all) - len(poll.poll(0)))


def mode_half(name, port, count):
    """Clients that send, shut down and read to the end, 100 at a time."""
    addr, left, good = address(name), int(count), 0
    while left > 0:
        n = min(left, 100)
        left -= n
        all = []
        for _ in range(n):
            s = socket.socket()
            s.settimeout(LIMIT_S)
            s.connect((addr, int(port)))
            s.sendall(b"x" * 100)
            s.shutdown(socket.SHUT_WR)
            all.append(s)
        for s in all:
            got = 0
            while True:
                more = s.recv(4096)
                if not more:
                    break
                got += len(more)
            good += got == 100
            s.close()
    return str(good)


def mode_hold(name, port, count, go, end):
    """Idle connections from when ${go} is made until ${end} is."""
    addr, all = address(name), []
    for _ in range(int(count)):
        s = socket.socket()
        s.settimeout(LIMIT_S)
        s.connect((addr, int(port)))
        s.sendall(b"x")
        all.append(s)
    good = sum(s.recv(1) == b"x" for s in all)
    open(go, "w").close()
    while not os.path.exists(end):
        time.sleep(0.02)
    for s in all:
        s.sendall(b"y")
    good += sum(s.recv(1) == b"y" for s in all)
    return str(good)


def mode_many(name, port, count):
    """Connections at once: how many of them answer."""
    addr, all, good = address(name), [], 0
    for _ in range(int(count)):
        s = socket.socket()
        s.settimeout(LIMIT_S)
        try:
            s.connect((addr, int(port)))
        except OSError:  # refused that fast
            continue
        all.append(s)
    for s in all:
        try:
            s.sendall(b"x")
            good += s.recv(1) == b"x"
        except OSError:
            pass
    return str(good)


def mode_get(name, port, size):
    """Send ${size} bytes to an echo and take them back; MB a second."""
    s = connect(name, port)
    size, sent, got, t = int(size), 0, 0, time.monotonic()
    data = b"z" * 65536
    s.setblocking(False)
    while got < size:
        r, w, _ = select.select([s], [s] if sent < size else [], [], LIMIT_S)
        if w:
            try:
                sent += s.send(data[:min(len(data), size - sent)])
            except BlockingIOError:
                pass
            if sent == size:
                s.shutdown(socket.SHUT_WR)
        if r:
            more = s.recv(1 << 20)
            if not more:
                break
            got += len(more)
        if not r and not w:
            break
    return json.dumps({"got": got, "s": round(time.monotonic() - t, 3)})


def mode_stream(name, port, ready, log):
    """Stream both ways until cut; a line with when the last byte passed and
    when the end was seen, in ms of the monotonic clock."""
    s = connect(name, port)
    s.setblocking(False)
    last = end = 0
    why = ""
    while not why:
        r, w, _ = select.select([s], [s], [], LIMIT_S)
        try:
            if r:
                if not s.recv(1 << 16):
                    why = "closed"
                else:
                    last = time.monotonic() * 1000
                    if not os.path.exists(ready):
                        open(ready, "w").close()
            if w:
                s.send(b"s" * 4096)
        except BlockingIOError:
            pass
        except OSError as e:
            why = word(e)
        time.sleep(0.001)
    end = time.monotonic() * 1000
    with open(log, "w") as f:
        json.dump({"last_ms": last, "end_ms": end, "why": why}, f)
    return why


def main():
    try:
        print(globals()["mode_" + sys.argv[1]](*sys.argv[2:]))
    except OSError as e:
        print(word(e))


main()
