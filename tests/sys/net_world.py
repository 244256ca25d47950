# SPDX-License-Identifier: Apache-2.0
"""The world of network tests: a DNS server, HTTP, HTTPS, echo on many ports.

usage: net_world.py DIR       (inside the world's network namespace)

DIR/cert.pem and key.pem are what HTTPS shows; DIR/ready is made when
everything listens.  Everything that arrives is a JSON line in DIR/dns.log or
DIR/world.log, so that a test can say what never came.
"""
import asyncio
import base64
import hashlib
import ipaddress
import json
import os
import ssl
import struct
import sys
import time

DIR = sys.argv[1]
DNS = "198.51.100.53"
A, NS, CNAME, SOA, TXT, AAAA, HTTPS = 1, 2, 5, 6, 16, 28, 65
NXDOMAIN = 3

# name: records as (type, data, ttl); *.x any depth below x
ZONE = {
    "allowed.test": [(A, "198.51.100.10", 60)],
    "*.allowed.test": [(A, "198.51.100.10", 60)],
    "other.test": [(A, "198.51.100.11", 60)],
    "shared.test": [(A, "198.51.100.10", 60)],  # the same address
    "six.test": [(AAAA, "2001:db8:1::10", 60)],
    "both.test": [(A, "198.51.100.10", 60), (AAAA, "2001:db8:1::10", 60)],
    "private.test": [(A, "10.1.2.3", 60)],
    "loopback.test": [(A, "127.0.0.1", 60)],
    "metadata.test": [(A, "169.254.169.254", 60)],
    "node.test": [(A, "203.0.113.1", 60)],
    "mapped.test": [(AAAA, "::ffff:10.0.0.1", 60)],
    "nat64.test": [(AAAA, "64:ff9b::a00:1", 60)],
    "mixed.test": [(A, "10.1.2.3", 60), (A, "198.51.100.10", 60)],
    "alias.test": [(CNAME, "allowed.test", 60)],
    "toprivate.test": [(CNAME, "private.test", 60)],
    "short.test": [(A, "198.51.100.10", 0)],
    "dead.test": [(A, "198.51.100.99", 60)],  # nobody is there
    "closed.test": [(A, "198.51.100.12", 60)],
    "text.test": [(TXT, "hello", 60)],
    "svc.test": [(HTTPS, "", 60)],
}
for host in ("pypi", "npm", "git", "ws", "db", "api"):
    ZONE[host + ".test"] = [(A, "198.51.100.10", 60)]
    ZONE["*." + host + ".test"] = [(A, "198.51.100.10", 60)]
# a test's own names: {"name": [["A", "198.51.100.20", 60]]}
TYPES = {"A": A, "AAAA": AAAA, "CNAME": CNAME, "TXT": TXT}
rotation = 0


def log(into, **what):
    what["at_ms"] = int(time.time() * 1000)
    line = json.dumps(what) + "\n"
    fd = os.open(os.path.join(DIR, into), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, line.encode())
    os.close(fd)


def find(name):
    try:
        with open(os.path.join(DIR, "zone.json")) as f:
            own = json.load(f)
    except OSError:
        own = {}
    if name in own:
        return [(TYPES[t], d, ttl) for t, d, ttl in own[name]]
    if name == "many.test":  # a thousand, sixteen at a time
        global rotation
        rotation += 16
        return [(A, "198.51.100.%d" % (100 + (rotation + i) % 150), 0)
                for i in range(16)]
    if name in ZONE:
        return ZONE[name]
    parts = name.split(".")
    for i in range(1, len(parts)):
        wild = "*." + ".".join(parts[i:])
        if wild in ZONE:
            return ZONE[wild]
    return None


def pack_name(name):
    out = b""
    for label in name.split("."):
        out += bytes([len(label)]) + label.encode()
    return out + b"\0"


def rdata(rtype, data):
    if rtype in (A, AAAA):
        return ipaddress.ip_address(data).packed
    if rtype == CNAME:
        return pack_name(data)
    if rtype == TXT:
        return bytes([len(data)]) + data.encode()
    return struct.pack("!H", 1) + pack_name("") + b""  # HTTPS, mode 1


def record(name, rtype, data, ttl):
    d = rdata(rtype, data)
    return pack_name(name) + struct.pack("!HHIH", rtype, 1, ttl, len(d)) + d


def answer(query, how):
    """The reply to a query, and None where it should hang."""
    qid, _, nq = struct.unpack("!HHH", query[:6])
    pos, labels = 12, []
    while query[pos]:
        labels.append(query[pos + 1:pos + 1 + query[pos]].decode("latin-1"))
        pos += 1 + query[pos]
    qtype = struct.unpack("!H", query[pos + 1:pos + 3])[0]
    question = query[12:pos + 5]
    name = ".".join(labels).lower()
    log("dns.log", name=name, type=qtype, over=how)
    if name.endswith("hang.test"):
        return None
    records, rcode, at = [], 0, name
    for _ in range(8):
        found = find(at)
        if found is None:
            rcode = NXDOMAIN if at == name else 0
            break
        got = [r for r in found if r[0] in (qtype, CNAME)]
        records += [record(at, *r) for r in got]
        alias = [r[1] for r in got if r[0] == CNAME]
        if not alias or qtype == CNAME:
            break
        at = alias[0]
    flags = 0x8580 | rcode
    if how == "udp" and name == "truncated.test":
        return struct.pack("!HHHHHH", qid, flags | 0x200, 1, 0, 0, 0) + question
    if name == "truncated.test":
        records, flags = [record(name, A, "198.51.100.10", 60)], 0x8580
    return (struct.pack("!HHHHHH", qid, flags, 1, len(records), 0, 0) +
            question + b"".join(records))


class DnsUdp(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        try:
            reply = answer(data, "udp")
        except (IndexError, struct.error):
            return
        if reply:
            self.transport.sendto(reply, addr)


async def dns_tcp(reader, writer):
    try:
        while True:
            size = struct.unpack("!H", await reader.readexactly(2))[0]
            reply = answer(await reader.readexactly(size), "tcp")
            if reply:
                writer.write(struct.pack("!H", len(reply)) + reply)
                await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, IndexError):
        pass
    writer.close()


class EchoUdp(asyncio.DatagramProtocol):
    def __init__(self, port):
        self.port = port

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        log("world.log", proto="udp", port=self.port, peer=addr[0],
            bytes=len(data))
        self.transport.sendto(data, addr)


def logged(port):
    async def echo(reader, writer):
        peer = writer.get_extra_info("peername")[0]
        here = writer.get_extra_info("sockname")[0]
        log("world.log", proto="tcp", port=port, peer=peer, addr=here)
        try:
            while True:
                data = await reader.read(65536)
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()
    return echo


async def websocket(headers, reader, writer):
    magic = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(magic.encode()).digest()).decode()
    writer.write(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                  "Connection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n"
                  % accept).encode())
    while True:
        head = await reader.readexactly(2)
        size = head[1] & 127
        if size == 126:
            size = struct.unpack("!H", await reader.readexactly(2))[0]
        mask = await reader.readexactly(4)
        data = await reader.readexactly(size)
        data = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
        if head[0] & 15 == 8:
            break
        writer.write(bytes([0x81, len(data)] if len(data) < 126 else
                           [0x81, 126, len(data) >> 8, len(data) & 255]) + data)
        await writer.drain()


async def serve_file(path, writer):
    """What lies in DIR/www, for package indexes and repositories."""
    root = os.path.realpath(os.path.join(DIR, "www"))
    full = os.path.realpath(os.path.join(root, path.lstrip("/")))
    if os.path.isdir(full):
        full = os.path.join(full, "index.html")
    if not full.startswith(root) or not os.path.isfile(full):
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        return
    with open(full, "rb") as f:
        body = f.read()
    kind = "text/html" if full.endswith(".html") else (
        "application/json" if full.endswith(".json")
        else "application/octet-stream")
    writer.write(("HTTP/1.1 200 OK\r\nContent-Type: %s\r\n"
                  "Content-Length: %d\r\n\r\n" % (kind, len(body))).encode())
    writer.write(body)


async def respond(method, path, headers, reader, writer):
    """One request; false ends the connection."""
    size = int(headers.get("content-length", 0))
    if path.startswith("/ws"):
        await websocket(headers, reader, writer)
        return False
    body = await reader.readexactly(size) if size else b""
    if path.startswith("/www/"):
        await serve_file(path[5:].partition("?")[0], writer)
    elif path.startswith("/stream"):  # ten events a second
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\n")
        for i in range(30):
            event = ("data: %d %f\n\n" % (i, time.time())).encode()
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(0.1)
        writer.write(b"0\r\n\r\n")
    elif path.startswith("/bytes/"):
        left = int(path[7:])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % left)
        while left > 0:
            writer.write(b"x" * min(left, 65536))
            left -= 65536
            await writer.drain()
    elif path.startswith("/redirect"):
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://other.test/\r\n"
                     b"Content-Length: 0\r\n\r\n")
    else:  # what came
        text = json.dumps({"method": method, "path": path, "headers": headers,
                           "body": body.decode("latin-1")}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(text) + text)
    await writer.drain()
    return True


async def http(reader, writer):
    tls = writer.get_extra_info("ssl_object")
    sni = getattr(tls, "sni", None)
    here = writer.get_extra_info("sockname")
    try:
        while True:
            line = await reader.readline()
            if not line.strip():
                break
            method, path, _ = line.decode("latin-1").split(" ", 2)
            headers = {}
            while True:
                line = (await reader.readline()).decode("latin-1").strip()
                if not line:
                    break
                key, _, value = line.partition(":")
                headers[key.lower()] = value.strip()
            log("world.log", proto="https" if tls else "http", addr=here[0],
                port=here[1], host=headers.get("host"), sni=sni, path=path,
                peer=writer.get_extra_info("peername")[0])
            if not await respond(method, path, headers, reader, writer):
                break
    except (asyncio.IncompleteReadError, ConnectionError, ValueError,
            KeyError, ssl.SSLError):
        pass
    writer.close()


async def main():
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(DnsUdp, local_addr=(DNS, 53))
    await asyncio.start_server(dns_tcp, DNS, 53)
    for port in (7, 5432, 8443, 53):
        for addr in ("198.51.100.10", "198.51.100.11", "2001:db8:1::10"):
            await asyncio.start_server(logged(port), addr, port)
            await loop.create_datagram_endpoint(
                lambda p=port: EchoUdp(p), local_addr=(addr, port))
    await asyncio.start_server(logged(22), "198.51.100.10", 22)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(os.path.join(DIR, "cert.pem"),
                        os.path.join(DIR, "key.pem"))
    tls.sni_callback = lambda s, name, ctx: setattr(s, "sni", name)
    for addr in ("198.51.100.10", "198.51.100.11", "2001:db8:1::10"):
        await asyncio.start_server(http, addr, 80)
        await asyncio.start_server(http, addr, 443, ssl=tls)
    with open(os.path.join(DIR, "ready"), "w"):
        pass
    await asyncio.Event().wait()


asyncio.run(main())
