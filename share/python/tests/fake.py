# SPDX-License-Identifier: Apache-2.0
"""A server that speaks PROTOCOL.md section 11 and does as a test tells it."""
import asyncio
import json

WINDOW = 256 * 1024


class Drop(Exception):
    """Cut the connection here."""


class Conn:
    def __init__(self, server, reader, writer):
        self.server, self.reader, self.writer = server, reader, writer
        self.tasks = {}
        self.credit = {}
        self.inputs = {}
        self.unacked = {}
        self.most_unacked = 0
        self.room = asyncio.Event()
        self.gone = set()
        self.alive = True

    async def send(self, obj, data=b""):
        self.writer.write(json.dumps(obj).encode() + b"\n" + data)
        await self.writer.drain()

    async def data(self, number, stream, data):
        """As the contract wants it: never beyond the credit."""
        key = (number, stream)
        at = 0
        while at < len(data):
            while self.unacked.get(key, 0) >= WINDOW:
                self.room.clear()
                await self.room.wait()
            piece = data[at:at + min(WINDOW - self.unacked.get(key, 0), 65536)]
            at += len(piece)
            self.unacked[key] = self.unacked.get(key, 0) + len(piece)
            self.most_unacked = max(self.most_unacked, self.unacked[key])
            await self.send({"id": number, "event": "data", "stream": stream,
                             "bytes": len(piece)}, piece)

    async def eof(self, number, stream):
        await self.send({"id": number, "event": "eof", "stream": stream})

    def input(self, number, stream):
        return self.inputs.setdefault((number, stream), asyncio.Queue())

    async def take(self, number, stream):
        """Bytes from the client, acknowledged; empty at the end."""
        data = await self.input(number, stream).get()
        if data:
            await self.send({"id": number, "event": "credit",
                             "stream": stream, "bytes": len(data)})
        return data

    def cut(self):
        self.alive = False
        self.writer.transport.abort()

    async def run(self):
        try:
            for line in self.server.greeting:
                self.writer.write(line)
            while True:
                line = await self.reader.readline()
                if not line:
                    return
                obj = json.loads(line)
                event = obj.get("event")
                number = obj.get("id")
                if event == "data":
                    data = await self.reader.readexactly(obj["bytes"])
                    self.input(number, obj["stream"]).put_nowait(data)
                elif event == "eof":
                    self.input(number, obj["stream"]).put_nowait(b"")
                elif event == "credit":
                    key = (number, obj["stream"])
                    assert 0 < obj["bytes"] <= self.unacked[key], obj
                    self.unacked[key] -= obj["bytes"]
                    self.room.set()
                elif event == "leave":
                    self.server.left.append(number)
                    task = self.tasks.pop(number, None)
                    if task:
                        self.gone.add(number)
                        task.cancel()
                elif "ok" in obj:
                    self.server.pongs += 1
                elif "cancel" in obj:
                    self.server.cancels.append(obj["cancel"])
                    task = self.tasks.get(obj["cancel"])
                    if task and not self.server.deaf:
                        task.cancel()
                    await self.send({"id": number, "ok": True,
                                     "cancelled": task is not None})
                elif obj.get("program") == "ping":
                    await self.send({"ok": True})
                else:
                    self.server.requests.append(obj)
                    task = asyncio.ensure_future(self.answer(obj))
                    self.tasks[number] = task
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.alive = False
            for task in self.tasks.values():
                task.cancel()
            self.writer.close()

    async def answer(self, req):
        try:
            rec = await self.server.handle(self, req)
        except Drop:
            self.cut()
            return
        except ConnectionError:
            return
        except asyncio.CancelledError:
            rec = fail("cancelled")
        finally:
            self.tasks.pop(req["id"], None)
        if rec is not None and self.alive and req["id"] not in self.gone:
            await self.send({"id": req["id"], "ok": True, **rec})


def fail(code, **more):
    return {"ok": False, "error": {"code": code, "message": "as told",
                                   "infra": False, **more}}


HELLO = {"event": "hello", "v": 1, "role": "control", "name": "fake",
         "capabilities": []}


class FakeServer:
    def __init__(self, handle, greeting=None):
        self.handle = handle
        self.greeting = greeting or [json.dumps(HELLO).encode() + b"\n"]
        self.requests = []
        self.cancels = []
        self.left = []
        self.conns = []
        self.pongs = 0
        self.deaf = False

    async def start(self, ssl=None, port=0):
        self.server = await asyncio.start_server(
            self._client, "127.0.0.1", port, ssl=ssl, limit=2 << 20)
        self.port = self.server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        return self

    async def _client(self, reader, writer):
        conn = Conn(self, reader, writer)
        self.conns.append(conn)
        await conn.run()

    async def stop(self):
        self.server.close()
        for conn in self.conns:
            conn.cut()
        await asyncio.sleep(0.01)
