#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients of dsec-serve that do what they should not: see serve-tls.t.

    serve_tls.py DIR PORT WHAT [ARG...]

Each WHAT prints a line or two that the test looks at.
"""
import json
import os
import socket
import ssl
import sys
import time

DIR, PORT, WHAT, ARGS = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]


def context(name="client", dir=DIR):
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.check_hostname = False
    c.load_verify_locations(os.path.join(DIR, "ca.pem"))
    if name:
        c.load_cert_chain(os.path.join(dir, name + ".pem"),
                          os.path.join(dir, name + ".key"))
    return c


def tcp():
    return socket.create_connection(("127.0.0.1", PORT), timeout=20)


def connect(name="client", dir=DIR, session=None, c=None):
    s = (c or context(name, dir)).wrap_socket(tcp(), session=session)
    s.settimeout(20)
    return s


def lines(s):
    """What comes until the end, as objects."""
    got = b""
    try:
        while True:
            part = s.recv(65536)
            if not part:
                break
            got += part
    except (ssl.SSLError, ConnectionError) as e:
        got += json.dumps({"broken": type(e).__name__}).encode() + b"\n"
    return [json.loads(x) for x in got.split(b"\n") if x]


def tell(objs):
    for o in objs:
        if o.get("event") == "hello":
            print("hello")
        elif "broken" in o:
            print("broken")
        elif "error" in o:
            print("error", o["error"]["code"])
        elif o.get("program") == "ping":
            print("ping")
        else:
            print(json.dumps(o))


def wait_hello(s):
    got = b""
    while b"\n" not in got:
        part = s.recv(65536)
        if not part:
            raise ConnectionError("no hello")
        got += part
    return got


def once():
    """A handshake, and what is said: hello, or refused."""
    name, dir = ARGS[0], ARGS[1] if len(ARGS) > 1 else DIR
    try:
        s = connect(None if name == "none" else name, dir)
        wait_hello(s)
        print("hello")
    except (ssl.SSLError, ConnectionError) as e:
        print("refused", e)


def say():
    """Bytes of stdin, then what comes until the end."""
    s = connect()
    wait_hello(s)
    start = time.monotonic()
    data = sys.stdin.buffer.read()
    try:
        s.sendall(data)
    except (ssl.SSLError, ConnectionError):
        pass
    tell(lines(s))
    print("after", int(1000 * (time.monotonic() - start)), "ms")


def big():
    s = connect()
    wait_hello(s)
    try:
        s.sendall(b'{"program":"' + b"x" * (1100 * 1024))
    except (ssl.SSLError, ConnectionError):
        pass
    tell(lines(s))


def quiet():
    """TCP without TLS: how long until it is cut."""
    s = tcp()
    s.sendall(ARGS[0].encode() if ARGS else b"")
    start = time.monotonic()
    try:
        while s.recv(4096):
            pass
    except ConnectionError:
        pass
    print("cut after", int(1000 * (time.monotonic() - start)), "ms")


def old():
    c = context()
    c.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        wait_hello(connect(c=c))
        print("hello")
    except (ssl.SSLError, ConnectionError):
        print("refused")


def revoked():
    """Open and ask for a session; when a line comes on stdin (revoked),
    say how long until the connection is cut and whether it can be resumed."""
    c = context(ARGS[0])
    s = connect(c=c)
    wait_hello(s)
    session = s.session
    again = connect(c=c, session=session)
    wait_hello(again)
    print("resumed" if again.session_reused else "not resumed", flush=True)
    again.close()
    sys.stdin.readline()
    start = time.monotonic()
    end = lines(s)
    print("cut" if len(end) <= 1 else "not cut")
    print("in", "time" if time.monotonic() - start < 2.5 else "vain")
    try:
        again = connect(c=c, session=session)
        wait_hello(again)
        print("let in")
    except (ssl.SSLError, ConnectionError):
        print("refused")


def serial():
    """The server's certificate, before and after a line on stdin, and whether
    the first connection is still good."""
    s = connect()
    wait_hello(s)
    first = s.getpeercert()["serialNumber"]
    print("open", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if connect().getpeercert()["serialNumber"] != first:
            print("another certificate")
            break
        time.sleep(0.1)
    s.sendall(b'{"id":7,"program":"ping"}\n')
    print("old connection", json.loads(s.recv(4096)).get("ok"))


def rss(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        for x in f:
            if x.startswith("Pss:"):
                return int(x.split()[1])
    return 0


def idle():
    """COUNT connections of process PID, twice; KiB of each, and how much more
    there is the second time."""
    pid, count = int(ARGS[0]), int(ARGS[1])
    c = context()
    first = connect(c=c)
    wait_hello(first)
    before = rss(pid)
    sizes = []
    for _ in range(2):
        socks = []
        for _ in range(count):
            # Resumed, which is the same for the server but for the time.
            s = connect(c=c, session=first.session)
            wait_hello(s)
            socks.append(s)
        sizes.append(rss(pid))
        for s in socks:
            s.close()
        del socks, s
        time.sleep(0.3)
    each = (sizes[0] - before) / count
    more = sizes[1] - sizes[0]
    print(f"each {each:.1f} KiB, {more} KiB more the second time")
    print("small" if each <= 40 else "large")
    print("flat" if more <= 0.1 * (sizes[0] - before) + 1024 else "grows")
    s = connect(c=c)
    s.sendall(b'{"id":7,"program":"ping"}\n')
    wait_hello(s)
    print("serves")


def greedy():
    """Asks for much and reads nothing: it is cut, others are served."""
    s = connect()
    wait_hello(s)
    s.settimeout(0.2)
    line = b'{"id":"' + b"p" * 100 + b'","program":"ping"}\n'
    sent = 0
    try:
        while sent < 200 << 20:
            sent += s.send(line * 500)
    except socket.timeout:
        print("held back")
    except (ssl.SSLError, ConnectionError):
        print("cut")
    o = connect()
    o.sendall(b'{"id":7,"program":"ping"}\n')
    wait_hello(o)
    print("serves")


{f.__name__: f for f in (once, say, big, quiet, old, revoked, serial, idle,
                         greedy)}[WHAT]()
