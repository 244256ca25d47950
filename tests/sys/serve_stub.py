# SPDX-License-Identifier: Apache-2.0
"""A node, or a control, that says what a test wants: see serve-stub.t.

    serve_stub.py DIR NAME CODE

DIR has ca.pem, NAME.pem and NAME.key, whose server it is, on a free port of
127.0.0.1 that it prints.  NAME.rules, read anew for each request, has a line
for each kind of request that it does not answer with "ok" alone:

    {"when":{"program":"run"},"say":[RECORD..],"after":FIFO}

"when" is in the request, and the first that fits holds; it waits until
somebody opens FIFO, if there is one.  The bytes of an event "data" are under
"data"; with "end":true the connection ends.  What it is asked is added to
NAME.asked; "report" it answers as a node, with CODE.
"""
import asyncio
import json
import ssl
import sys

DIR, NAME, CODE = sys.argv[1:4]
BASE = "%s/%s" % (DIR, NAME)
ROOM = {"memory_mb": 100000, "cpu_cores": 1000, "disk_mb": 0, "pids": 1000000,
        "sandboxes": 1000}
REPORT = {"ok": True, "node": CODE, "name": NAME, "v": 1,
          "backends": ["container"], "capabilities": [], "labels": {},
          "isolation": "none", "memory_total_mb": 100000,
          "memory_available_mb": 90000, "limit": ROOM,
          "held": dict.fromkeys(ROOM, 0)}


def rule(request):
    with open(BASE + ".rules") as f:
        for line in f:
            one = json.loads(line)
            if one["when"].items() <= request.items():
                return one
    report = request.get("program") == "report"
    return {"say": [REPORT if report else {"ok": True}]}


def wait_for(fifo):
    with open(fifo):
        pass


class Window:
    """What has been sent and not been taken; there is room for 256 KiB."""
    def __init__(self):
        self.sent = 0
        self.more = asyncio.Event()

    async def send(self, size):
        while self.sent + size > 262144:
            self.more.clear()
            await self.more.wait()
        self.sent += size

    def taken(self, line):
        self.sent -= line["bytes"]
        self.more.set()


async def answer(writer, request, window):
    one = rule(request)
    if "after" in one:
        await asyncio.get_running_loop().run_in_executor(None, wait_for,
                                                         one["after"])
    for record in one["say"]:
        data = record.pop("data", "").encode()
        line = dict(record, **({"bytes": len(data)} if data else {}))
        if "id" in request:
            line["id"] = request["id"]
        await window.send(len(data))
        writer.write(json.dumps(line).encode() + b"\n" + data)
    if one.get("end"):
        writer.close()


async def serve(reader, writer):
    tasks, windows = set(), {}
    async for line in reader:
        request = json.loads(line)
        if request.get("program") not in ("report", "ping"):
            with open(BASE + ".asked", "ab", 0) as f:
                f.write(line)
        if request.get("event") == "credit":
            windows[request["id"]].taken(request)
        if "program" in request:
            window = windows[request.get("id")] = Window()
            task = asyncio.ensure_future(answer(writer, request, window))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


async def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(DIR + "/ca.pem")
    context.load_cert_chain(BASE + ".pem", BASE + ".key")
    context.verify_mode = ssl.CERT_REQUIRED
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    print("127.0.0.1:%d" % server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
