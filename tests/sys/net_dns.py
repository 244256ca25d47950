# SPDX-License-Identifier: Apache-2.0
"""A DNS client that says what it likes.

net_dns.py SERVER [udp|tcp] < lines of "NAME [TYPE]" or "raw HEX": a line of
what came for each: "RCODE [tc] [ede=N] [ADDRESS..]", "none" (no answer within
6 seconds), "closed" (TCP).  In NAME "\\xx" is a byte in hexadecimal.  Before a
line "within MS": " late" is added to what took longer.
"""
import re
import socket
import struct
import sys
import time

TYPES = {"A": 1, "NS": 2, "CNAME": 5, "SOA": 6, "PTR": 12, "MX": 15, "TXT": 16,
         "AAAA": 28, "SRV": 33, "SVCB": 64, "HTTPS": 65, "AXFR": 252,
         "ANY": 255}
RCODES = ["NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"]
server = sys.argv[1]
tcp = sys.argv[2:3] == ["tcp"]


def label(text):
    raw = re.sub(rb"\\(..)", lambda m: bytes([int(m.group(1), 16)]),
                 text.encode())
    return bytes([len(raw)]) + raw


def query(name, kind):
    q = b"".join(label(x) for x in name.rstrip(".").split(".") if x) + b"\0"
    return (b"\x12\x34\x01\x00\0\1\0\0\0\0\0\1" + q
            + struct.pack("!HH", TYPES[kind], 1)
            + b"\0\0\x29\x04\xd0\0\0\0\0\0\0")


def skip_name(msg, at):
    while msg[at]:
        if msg[at] >= 0xc0:
            return at + 2
        at += 1 + msg[at]
    return at + 1


def edes(data):
    out = []
    while len(data) >= 4:
        code, size = struct.unpack("!HH", data[:4])
        if code == 15:
            out.append("ede=%d" % struct.unpack("!H", data[4:6]))
        data = data[4 + size:]
    return out


def show(msg):
    _, flags, nq, na, nn, nr = struct.unpack("!HHHHHH", msg[:12])
    code = flags & 15
    out = [RCODES[code] if code < len(RCODES) else str(code)]
    if flags & 0x200:
        out.append("tc")
    at, addrs = 12, []
    for _ in range(nq):
        at = skip_name(msg, at) + 4
    for _ in range(na + nn + nr):
        at = skip_name(msg, at)
        kind, _, _, size = struct.unpack("!HHIH", msg[at:at + 10])
        data = msg[at + 10:at + 10 + size]
        at += 10 + size
        if kind == 1:
            addrs.append(socket.inet_ntoa(data))
        elif kind == 28:
            addrs.append(socket.inet_ntop(socket.AF_INET6, data))
        elif kind == 41:
            out += edes(data)
    return " ".join(out + sorted(addrs))


def ask_udp(msg):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(6)
    s.connect((server, 53))
    s.send(msg)
    try:
        return show(s.recv(4096))
    except socket.timeout:
        return "none"
    except OSError as e:
        return e.strerror


def read(s, n):
    out = b""
    while len(out) < n:
        more = s.recv(n - len(out))
        if not more:
            raise EOFError
        out += more
    return out


conn = None


def ask_tcp(msg):
    """On one connection for all."""
    global conn
    try:
        if not conn:
            conn = socket.create_connection((server, 53), timeout=6)
        conn.sendall(struct.pack("!H", len(msg)) + msg)
        return show(read(conn, struct.unpack("!H", read(conn, 2))[0]))
    except socket.timeout:
        return "none"
    except (EOFError, OSError):
        conn = None
        return "closed"


for line in sys.stdin:
    words = line.split()
    limit = 1e9
    if words[0] == "within":
        limit = int(words[1]) / 1000
        words = words[2:]
    if words[0] == "raw":
        m = bytes.fromhex("".join(words[1:]))
    else:
        m = query(words[0], words[1] if len(words) > 1 else "A")
    start = time.monotonic()
    got = ask_tcp(m) if tcp else ask_udp(m)
    if time.monotonic() - start > limit:
        got += " late"
    print(got, flush=True)
