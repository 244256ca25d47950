#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A network helper that enforces nothing: net_stub.py SOCKET LOG REFUSE

It answers as PROTOCOL.md wants it and writes each request to LOG.  While there
is a file REFUSE, it refuses policies with the code that stands in it.
"""
import array
import json
import os
import socket
import sys
import threading

path, log_path, refuse = sys.argv[1:4]
known = {}
log = open(log_path, "a", buffering=1)


def answer(req):
    op, sandbox = req.get("op"), req.get("sandbox")
    if op == "attach":
        ports = [int(n[3:]) for n in req["fds"]
                 if n.startswith("tcp") and n != "tcp53"]
        was = known.get(sandbox, {"ports": []})["ports"]
        known[sandbox] = {"hash": req["hash"],
                          "ports": sorted(set(ports) | set(was))}
        return {}
    if op in ("policy", "ports") and sandbox not in known:
        return {"error": {"code": "sandbox_unknown", "message": "not here"}}
    if op == "policy" and os.path.exists(refuse):
        code = open(refuse).read().strip()
        return {"error": {"code": code, "message": "the stub refuses"}}
    if op == "policy":
        known[sandbox]["hash"] = req["hash"]
        return {"cut": 0}
    if op == "ports":
        return {"ports": known[sandbox]["ports"]}
    if op == "detach":
        known.pop(sandbox, None)
    if op == "list":
        return {"sandboxes": sorted(known)}
    if op == "stats":
        return {"sandboxes": {k: {"hash": v["hash"]}
                              for k, v in known.items()
                              if sandbox in (None, k)}}
    return {}


def serve(conn):
    held, text = [], b""
    while True:
        data, anc, _, _ = conn.recvmsg(1 << 16, socket.CMSG_SPACE(4 * 256))
        for _, kind, fds in anc:
            if kind == socket.SCM_RIGHTS:
                got = array.array("i")
                got.frombytes(fds[:len(fds) - len(fds) % got.itemsize])
                held.extend(got)
        if not data:
            break
        text += data
        while b"\n" in text:
            line, text = text.split(b"\n", 1)
            req = json.loads(line)
            log.write(json.dumps({k: req.get(k) for k in
                                  ("op", "sandbox", "hash", "fds")}) + "\n")
            rec = answer(req)
            rec["ok"] = "error" not in rec
            conn.sendall((json.dumps(rec) + "\n").encode())
    for fd in held:
        os.close(fd)


listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(64)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],),
                     daemon=True).start()
