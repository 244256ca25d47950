# SPDX-License-Identifier: Apache-2.0
"""The remote client against a server that misbehaves as it is told."""
import asyncio
import io
import json
import os
import shutil
import socket
import ssl
import subprocess
import tarfile
import tempfile
import threading
import time
import unittest

import dsec
from dsec import DSecClient, DSecRunArgs, RetryPolicy, _core
from dsec.types import bytes_of
from dsec._remote import RemoteTransport
from dsec._settings import RemoteSettings, remote_settings
from fake import HELLO, Drop, FakeServer, fail

ID = "ab2c" + "a" * 16


class Fake(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        asyncio.get_running_loop().slow_callback_duration = 5
        self.undo = []

    async def asyncTearDown(self):
        for undo in reversed(self.undo):
            await undo()

    async def server(self, handle, **how):
        server = await FakeServer(handle, **how).start()
        self.undo.append(server.stop)
        return server

    async def client(self, *servers, timeout=10, **policy):
        transport = RemoteTransport(RemoteSettings(
            [s if isinstance(s, str) else s.address for s in servers],
            "", "", ""), plain=True)
        transport._order = list(transport._settings.addresses)
        client = DSecClient(transport=transport, timeout=timeout,
                            retry=RetryPolicy(**{"lost_s": 5, "max_delay": 0.1,
                                                 **policy}))
        self.undo.append(client.close)
        return client


class Keyed:
    """What a real server does with keys; drops the first answers."""

    def __init__(self, lose):
        self.lose = lose
        self.done = {}
        self.acted = []

    async def __call__(self, conn, req):
        key = req.get("key")
        again = key in self.done
        if not again:
            self.acted.append((req["program"], req.get("op")))
            self.done[key] = {"sandbox": ID, "exec": "e1", "outcome": "exited",
                              "exit_code": 0, "stdout": str(len(self.acted)),
                              "index": 0}
        if self.lose > 0:
            self.lose -= 1
            raise Drop
        return {**self.done[key], "repeated": again}


class LostReplies(Fake):
    async def test_each(self):
        """a lost reply acts once: create, exec, write, move, fork, net (100)"""
        calls = [
            lambda c, sb: c.run_sandbox(DSecRunArgs()),
            lambda c, sb: sb.run(["date"]),
            lambda c, sb: sb.files.write("/a", "x"),
            lambda c, sb: sb.files.move("/a", "/b"),
            lambda c, sb: sb.files.remove("/b"),
            lambda c, sb: sb.fork(),
            lambda c, sb: sb.snapshot("s"),
            lambda c, sb: sb.network.deny_all(),
            lambda c, sb: sb.session(),
        ]
        for call in calls:
            for lose in (1, 3):
                act = Keyed(lose)
                server = await self.server(act)
                client = await self.client(server)
                await call(client, client.sandbox(ID))
                self.assertEqual(len(act.acted), 1)
                keys = [r["key"] for r in server.requests]
                self.assertEqual((len(keys), len(set(keys))), (lose + 1, 1))
                self.assertEqual(len(server.conns), lose + 1)

    async def test_attach(self):
        """an attach whose answer is lost is made again"""
        lose = 2

        async def handle(conn, req):
            nonlocal lose
            if lose > 0:
                lose -= 1
                raise Drop
            return {"exec": "e1", "outcome": "exited", "exit_code": 0}
        client = await self.client(await self.server(handle))
        p = await client.sandbox(ID).attach("e1")
        self.assertEqual((await p.wait(5)).exit_code, 0)
        client._core.retry.lost_s = 0
        lose = 1
        with self.assertRaises(dsec.ConnectionLost):
            await client.sandbox(ID).attach("e1")

    async def test_events(self):
        """events of an attempt that broke off are not told twice"""
        lose = True

        async def handle(conn, req):
            nonlocal lose
            for n in range(3):
                await conn.send({"id": req["id"], "event": req["event"],
                                 "snapshot": f"s{n}", "why": f"w{n}"})
            if lose:
                lose = False
                await asyncio.sleep(0.05)
                raise Drop
            lose = True
            return {"count": 3}

        async def told(conn, req):
            event = "denied" if req["program"] == "net" else "snapshot"
            return await handle(conn, {**req, "event": event})
        client = await self.client(await self.server(told))
        self.assertEqual([s.id for s in await client.snapshots()],
                         ["s0", "s1", "s2"])
        self.assertEqual(
            [d.why for d in await client.sandbox(ID).network.denied()],
            ["w0", "w1", "w2"])

    async def test_pages(self):
        """a long list is asked for in pages"""
        ids = [f"ab2c{n:016d}" for n in range(2500)]

        async def handle(conn, req):
            begin = ids.index(req["after"]) + 1 if "after" in req else 0
            page = ids[begin:begin + req["limit"]]
            for i in page:
                await conn.send({"id": req["id"], "event": "record",
                                 "record": {"sandbox": i, "ok": True}})
            more = begin + len(page) < len(ids)
            return {"count": len(page), "failed": 0,
                    **({"next": page[-1]} if more else {})}
        server = await self.server(handle)
        client = await self.client(server)
        self.assertEqual([i.sandbox for i in await client.sandboxes()], ids)
        self.assertEqual(len(server.requests), 3)

    async def test_missing(self):
        """a list that lacks a node's is asked for again, and never taken for all"""
        away = 2

        async def handle(conn, req):
            nonlocal away
            if away > 0:
                away -= 1
                return {"count": 0, "failed": 0, "missing": ["n1"]}
            await conn.send({"id": req["id"], "event": "record",
                             "record": {"sandbox": ID, "ok": True}})
            return {"count": 1, "failed": 0}
        client = await self.client(await self.server(handle))
        self.assertEqual([i.sandbox for i in await client.sandboxes()], [ID])
        away = 1
        client._core.retry.lost_s = 0
        with self.assertRaises(dsec.Busy) as raised:
            await client.sandboxes()
        self.assertEqual((raised.exception.code, raised.exception.infra),
                         ("node_away", True))

    async def test_missing_part(self):
        """an operation on many says which node could not be asked"""
        async def handle(conn, req):
            await conn.send({"id": req["id"], "event": "record",
                             "record": {"sandbox": ID, "ok": True}})
            return {**fail("node_away", infra=True), "count": 1, "failed": 1,
                    "missing": ["n1"]}
        client = await self.client(await self.server(handle))
        r = await client.pause_task("t")
        self.assertEqual([(i.sandbox, i.ok) for i in r],
                         [(ID, True), (None, False)])
        self.assertEqual(r[1].error.code, "node_away")

    async def test_new_call(self):
        """a new call has a new key and never an old result (100)"""
        act = Keyed(2)
        client = await self.client(await self.server(act))
        sb = client.sandbox(ID)
        self.assertEqual((await sb.run(["a"])).stdout, "1")
        self.assertEqual((await sb.run(["a"])).stdout, "2")
        self.assertEqual((await sb.run(["a"])).stdout, "3")
        self.assertEqual(len(act.acted), 3)

    async def test_no_end(self):
        """a server that never answers again is an infra failure, in time"""
        async def handle(conn, req):
            raise Drop
        client = await self.client(await self.server(handle), lost_s=0.3)
        began = time.monotonic()
        with self.assertRaises(dsec.ConnectionLost) as e:
            await client.sandbox(ID).run(["a"])
        self.assertTrue(e.exception.infra and e.exception.retry)
        self.assertLess(time.monotonic() - began, 4)

    async def test_helper_lost(self):
        """helper_lost and busy are tried again after the time they name"""
        seen = []

        async def handle(conn, req):
            seen.append(time.monotonic())
            if len(seen) == 1:
                return fail("helper_lost", retry_after_ms=150, infra=True)
            if len(seen) == 2:
                return fail("busy", retry_after_ms=100)
            return {"outcome": "exited", "exit_code": 0}
        client = await self.client(await self.server(handle))
        self.assertTrue((await client.sandbox(ID).run(["a"])).ok)
        self.assertGreaterEqual(seen[1] - seen[0], 0.145)
        self.assertGreaterEqual(seen[2] - seen[1], 0.095)

    async def test_capacity(self):
        """no room: the caller's at once, or waited for as long as it is told"""
        n = 0

        async def handle(conn, req):
            nonlocal n
            n += 1
            return (fail("memory", retry_after_ms=20) if n % 4
                    else {"sandbox": ID})
        server = await self.server(handle)
        client = await self.client(server)
        with self.assertRaises(dsec.CapacityError) as e:
            await client.run_sandbox(DSecRunArgs())
        self.assertEqual((e.exception.retry_after, e.exception.retry, n),
                         (0.02, True, 1))
        client = await self.client(server, capacity_s=5)
        await client.run_sandbox(DSecRunArgs())
        self.assertEqual(n, 4)

    async def test_storm(self):
        """600 calls over connections that break: each acts once"""
        asyncio.get_running_loop().set_debug(False)  # a trace of every future
        acted = {}
        n = 0

        async def handle(conn, req):
            nonlocal n
            n += 1
            acted[req["key"]] = acted.get(req["key"]) or len(acted) + 1
            if n % 97 == 0:
                raise Drop
            return {"outcome": "exited", "exit_code": 0,
                    "stdout": req["command"][0]}
        client = await self.client(await self.server(handle), lost_s=20)
        sb = client.sandbox(ID)
        rs = await asyncio.gather(*(sb.run([str(i)]) for i in range(600)))
        self.assertEqual([r.stdout for r in rs], [str(i) for i in range(600)])
        self.assertEqual(len(acted), 600)

    async def test_lost_anew(self):
        """what is lost after a while under way is lost anew"""
        asked = 0

        async def handle(conn, req):
            nonlocal asked
            asked += 1
            await asyncio.sleep(0.15)
            if asked < 7:
                raise Drop
            return {"sandbox": ID, "state": "stopped", "outcome": "exited",
                    "infra": False}
        client = await self.client(await self.server(handle), lost_s=0.5)
        self.addCleanup(setattr, _core, "TAKEN_S", _core.TAKEN_S)
        _core.TAKEN_S = 0.1
        end = await client.sandbox(ID).wait(30)
        self.assertEqual((end.outcome, asked), ("exited", 7))


def running(exec_id="e1"):
    """A server's handler for a command whose output a test makes."""
    def wrap(body):
        async def handle(conn, req):
            if req.get("op") == "exec":
                return {"sandbox": ID, "exec": exec_id}
            if req.get("op") == "attach":
                start = {s + "_offset": req[s + "_offset"]
                         for s in ("stdout", "stderr") if s + "_offset" in req}
                await conn.send({"id": req["id"], "event": "started",
                                 "exec": exec_id,
                                 "streams": ["stdout", "stderr"], **start})
            return await body(conn, req)
        return handle
    return wrap


class Streams(Fake):
    async def test_slow_reader(self):
        """a reader that stands still holds up its stream and nothing else"""
        size = 4 << 20

        @running()
        async def handle(conn, req):
            if req.get("op") != "attach":
                return {"outcome": "exited", "exit_code": 0}
            await conn.data(req["id"], "stdout", bytes(size))
            await conn.eof(req["id"], "stdout")
            await conn.eof(req["id"], "stderr")
            return {"outcome": "exited", "exit_code": 0,
                    "stdout_bytes": size, "stderr_bytes": 0}
        server = await self.server(handle)
        client = await self.client(server)
        sb = client.sandbox(ID)
        p = await sb.start(["x"])
        await asyncio.sleep(0.2)
        for _ in range(20):
            self.assertTrue((await sb.files._core.ask(
                "net", {"sandbox": ID, "show": True}, timeout=5))["ok"])
        conn = server.conns[0]
        self.assertEqual(conn.unacked[(server.requests[1]["id"], "stdout")],
                         256 * 1024)
        self.assertEqual(len(await p.stdout.read_all()), size)
        self.assertLessEqual(conn.most_unacked, 256 * 1024)
        self.assertTrue((await p.wait(5)).ok)
        self.assertEqual(len(server.conns), 1)

    async def test_greedy_server(self):
        """a server that sends beyond the credit is cut off"""
        @running()
        async def handle(conn, req):
            for _ in range(20):
                await conn.send({"id": req["id"], "event": "data",
                                 "stream": "stdout", "bytes": 65536},
                                bytes(65536))
            await asyncio.sleep(10)
        server = await self.server(handle)
        client = await self.client(server, lost_s=0.2)
        p = await client.sandbox(ID).start(["x"])
        await asyncio.sleep(0.2)
        self.assertFalse(server.conns[0].alive)
        await p.detach()

    async def test_reconnect(self):
        """output goes on where it broke off, no byte twice, none lost"""
        text = b"".join(b"line %d\n" % i for i in range(60000))
        cuts = [1000, 200000, 200001, 300000]

        @running()
        async def handle(conn, req):
            at = req["stdout_offset"]
            end = next((c for c in cuts if c > at), None)
            await conn.data(req["id"], "stdout", text[at:end])
            if end is not None:
                cuts.remove(end)
                await asyncio.sleep(0.02)
                raise Drop
            await conn.eof(req["id"], "stdout")
            await conn.eof(req["id"], "stderr")
            return {"outcome": "exited", "exit_code": 0,
                    "stdout_bytes": len(text), "stderr_bytes": 0}
        server = await self.server(handle)
        other = await self.server(handle)
        client = await self.client(server, other)
        p = await client.sandbox(ID).start(["x"])
        got = await p.stdout.read_all()
        self.assertEqual(got == text, True)
        self.assertTrue((await p.wait(5)).ok)
        self.assertEqual(p.reconnects, 4)
        starts = [r for s in (server, other) for r in s.requests
                  if r.get("op") == "exec"]
        self.assertEqual(len(starts), 1)

    async def test_lost_end(self):
        """a stream without its final record never reads as success"""
        @running()
        async def handle(conn, req):
            await conn.data(req["id"], "stdout",
                            b"half"[req["stdout_offset"]:])
            await conn.eof(req["id"], "stdout")
            await conn.eof(req["id"], "stderr")
            await asyncio.sleep(0.02)
            raise Drop
        client = await self.client(await self.server(handle), lost_s=0.3)
        p = await client.sandbox(ID).start(["x"])
        with self.assertRaises(dsec.ConnectionLost):
            # Each attach succeeds and is cut again: waiting has to end.
            await p.wait(5)

    async def test_gone(self):
        """a sandbox that died while we were away says so"""
        n = 0

        @running()
        async def handle(conn, req):
            nonlocal n
            n += 1
            if n == 1:
                raise Drop
            return fail("stopped", infra=True)

        client = await self.client(await self.server(handle))
        p = await client.sandbox(ID).start(["x"])
        with self.assertRaises(dsec.SandboxDied) as e:
            await p.wait(5)
        self.assertTrue(e.exception.infra)

    async def test_input(self):
        """input goes in pieces with keys: none twice over lost replies"""
        got, keys, n = [], set(), 0

        @running()
        async def handle(conn, req):
            nonlocal n
            if req.get("op") == "input":
                n += 1
                if req["key"] not in keys:
                    keys.add(req["key"])
                    got.append(bytes_of(req, "data").decode())
                if n % 2:
                    raise Drop
                return {}
            if req.get("op") == "signal":
                return {}
            await asyncio.sleep(30)
        client = await self.client(await self.server(handle))
        async with await client.sandbox(ID).start(["x"], stdin=True) as p:
            await p.write("a" * 600000)
            await p.write("end")
            await p.close_stdin()
        self.assertEqual("".join(got), "a" * 600000 + "end")

    async def test_pty(self):
        """a terminal is one stream both ways"""
        async def handle(conn, req):
            if req.get("op") == "exec":
                self.assertEqual((req["tty"], req["rows"]), (True, 30))
                return {"exec": "e1"}
            n = req["id"]
            await conn.send({"id": n, "event": "started", "exec": "e1",
                             "streams": ["tty"]})
            while True:
                data = await conn.take(n, "tty")
                await conn.data(n, "tty", data.upper())
                if b"q" in data:
                    break
            await conn.eof(n, "tty")
            return {"outcome": "exited", "exit_code": 0}
        client = await self.client(await self.server(handle))
        p = await client.sandbox(ID).pty(rows=30)
        await p.write("abc")
        self.assertEqual(await p.stdout.read(), b"ABC")
        await p.write("q")
        self.assertEqual(await p.stdout.read_all(), b"Q")
        self.assertTrue((await p.wait(5)).ok)

    async def test_port(self):
        """a port inside: both ways, half-closed, 2 MiB, refused"""
        async def handle(conn, req):
            if req["port"] == 1:
                return fail("not_found")
            n = req["id"]
            await conn.send({"id": n, "event": "started",
                             "streams": ["socket"]})
            while True:
                data = await conn.take(n, "socket")
                if not data:
                    break
                await conn.data(n, "socket", data)
            await conn.eof(n, "socket")
            await asyncio.sleep(30)
        server = await self.server(handle)
        client = await self.client(server)
        sb = client.sandbox(ID)
        with self.assertRaises(dsec.NotFound):
            await sb.connect(1)
        reader, writer = await sb.connect(80)
        data = os.urandom(2 << 20)

        async def send():
            for at in range(0, len(data), 100000):
                writer.write(data[at:at + 100000])
                await writer.drain()
            writer.write_eof()
        sending = asyncio.ensure_future(send())
        got = b""
        while True:
            piece = await reader.read(1 << 16)
            if not piece:
                break
            got += piece
        await sending
        self.assertTrue(got == data)
        writer.close()
        for _ in range(100):
            if server.left:
                break
            await asyncio.sleep(0.01)
        self.assertEqual(server.left, [server.requests[-1]["id"]])


class Frames(Fake):
    async def broken(self, *lines):
        server = await self.server(None, greeting=list(lines))
        client = await self.client(server, lost_s=0)
        with self.assertRaises(dsec.DSecError) as e:
            await client.open()
        return e.exception

    async def test_hello(self):
        """what is no hello is refused, at once and by type"""
        for line in (b"\n", b"[]\n", b"{}\n", b"nonsense\n", b"\xff\n",
                     b'{"event":"hello","v":2}\n', b"{" + b" " * (3 << 20),
                     b'{"v":NaN}\n', b"[" * 100000 + b"\n"):
            self.assertIsInstance(await self.broken(line), dsec.DSecError)
        e = await self.broken(json.dumps(fail("permission")).encode() + b"\n")
        self.assertIsInstance(e, dsec.PolicyDenied)

    async def test_frames(self):
        """frames that announce what they must not end the connection"""
        hello = json.dumps(HELLO).encode() + b"\n"
        bad = [{"bytes": -1}, {"bytes": 1 << 20}, {"bytes": "1"},
               {"bytes": True}, {}]
        for more in bad:
            server = await self.server(Keyed(9), greeting=[hello, json.dumps(
                {"id": 1, "event": "data", "stream": "stdout",
                 **more}).encode() + b"\n"])
            client = await self.client(server, lost_s=0)
            with self.assertRaises(dsec.ConnectionLost):
                await client.sandbox(ID).run(["a"])
        # Those for nobody are passed over.
        server = await self.server(Keyed(0), greeting=[
            hello, b'{"id":77,"event":"data","stream":"x","bytes":3}\nabc',
            b'{"id":77,"event":"eof","stream":"x"}\n', b'{"id":78,"ok":true}\n',
            b'{"event":"strange","more":1}\n', b'{"program":"ping"}\n'])
        client = await self.client(server)
        self.assertTrue((await client.sandbox(ID).run(["a"])).ok)
        self.assertEqual(server.pongs, 1)

    async def test_too_long(self):
        """a request that is no line is refused here"""
        client = await self.client(await self.server(Keyed(0)))
        sb = client.sandbox(ID)
        with self.assertRaises(dsec.BadRequest) as e:
            await sb.run(["a" * (1 << 20)])
        self.assertEqual(e.exception.code, "too_large")
        with self.assertRaises(dsec.BadRequest):
            await sb.run(["\ud800"])
        with self.assertRaises(dsec.BadRequest):
            await sb.run(["a"], env={"x": object()})


class Calls(Fake):
    async def test_addresses(self):
        """of several addresses the next is used when one does not answer"""
        dead = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = dead.sockets[0].getsockname()[1]
        dead.close()
        a, b = await self.server(Keyed(0)), await self.server(Keyed(0))
        client = await self.client(f"127.0.0.1:{port}", a, b)
        sb = client.sandbox(ID)
        self.assertTrue((await sb.run(["a"])).ok)
        self.assertEqual((len(a.conns), len(b.conns)), (1, 0))
        await a.stop()
        self.assertTrue((await sb.run(["a"])).ok)
        self.assertEqual(len(b.conns), 1)

    async def test_cancel(self):
        """a cancelled call cancels its request"""
        async def handle(conn, req):
            await asyncio.sleep(30)
        server = await self.server(handle)
        client = await self.client(server)
        task = asyncio.ensure_future(client.sandbox(ID).run(["a"]))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        while not server.cancels:
            await asyncio.sleep(0.01)
        self.assertEqual(server.cancels, [server.requests[0]["id"]])

    async def test_orphan(self):
        """what a cancelled create or fork made all the same is stopped"""
        go = asyncio.Event()

        async def handle(conn, req):
            if req["program"] == "pause":
                return {"state": "stopped", "sandbox": req["sandbox"]}
            await go.wait()
            if req["program"] == "run":
                return {"sandbox": ID}
            for i in range(3):
                await conn.send({"id": req["id"], "event": "record", "record":
                                 {"ok": True, "sandbox": f"copy{i}",
                                  "index": i}})
            return {"count": 3, "failed": 0}
        server = await self.server(handle)
        server.deaf = True
        client = await self.client(server)
        for call, gone in ((client.run_sandbox(DSecRunArgs()), {ID}),
                           (client.sandbox(ID).fork(3),
                            {"copy0", "copy1", "copy2"})):
            server.requests.clear()
            server.cancels.clear()
            go.clear()
            task = asyncio.ensure_future(call)
            while not server.requests:
                await asyncio.sleep(0.01)
            task.cancel()
            while not server.cancels:
                await asyncio.sleep(0.01)
            go.set()
            end = time.monotonic() + 5
            stopped = set()
            while stopped != gone:
                self.assertLess(time.monotonic(), end)
                await asyncio.sleep(0.01)
                stopped = {r["sandbox"] for r in server.requests
                           if r["program"] == "pause" and r["op"] == "stop"}

    async def test_just_made(self):
        """cancelled as its answer comes, or after a lost one: stopped, too"""
        for lose in (0, 1):
            act = Keyed(lose)
            server = await self.server(act)
            client = await self.client(server)
            if lose:
                client._core.retry.max_delay = 30
                client._core._delay = lambda error, attempt: 1.0
            task = asyncio.ensure_future(client.run_sandbox(DSecRunArgs()))
            while not server.requests:
                await asyncio.sleep(0)
            if lose:
                await asyncio.sleep(0.2)  # until it waits to ask again
            else:
                c = client._core.transport._connection
                pending, = c.pending.values()
                take = pending.take

                def taken(line):
                    try:
                        return take(line)
                    finally:
                        task.cancel()
                pending.take = taken
            if lose:
                task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            end = time.monotonic() + 10
            while ("pause", "stop") not in act.acted:
                self.assertLess(time.monotonic(), end)
                await asyncio.sleep(0.01)
            self.assertEqual(act.acted.count(("run", None)), 1)

    async def test_deadline(self):
        """a server that says nothing: the deadline and a little more"""
        async def handle(conn, req):
            self.assertLessEqual(req["deadline_ms"], 200)
            await asyncio.sleep(30)
        client = await self.client(await self.server(handle), timeout=0.2)
        was, _core.GRACE_S = _core.GRACE_S, 0.2
        try:
            began = time.monotonic()
            with self.assertRaises(dsec.DeadlineExceeded):
                await client.run_sandbox(DSecRunArgs())
            self.assertLess(time.monotonic() - began, 3)
        finally:
            _core.GRACE_S = was

    async def test_many(self):
        """a record for each sandbox, and which failed"""
        async def handle(conn, req):
            if req.get("task") == "none":
                return {"count": 0, "failed": 0}
            for i in range(3):
                rec = {"ok": True, "sandbox": f"box{i}", "state": "paused",
                       "index": i}
                if i == 2:
                    rec.update(fail("supervisor_lost", infra=True))
                await conn.send({"id": req["id"], "event": "record",
                                 "record": rec})
            return {**fail("supervisor_lost"), "count": 3, "failed": 1}
        client = await self.client(await self.server(handle))
        r = await client.pause_task("job", "freeze")
        self.assertEqual([x.sandbox for x in r], ["box0", "box1", "box2"])
        self.assertEqual(list(r.sandboxes()), ["box0", "box1"])
        self.assertIsInstance(r.failed[0].error, dsec.SandboxDied)
        with self.assertRaises(dsec.PartialFailure) as e:
            r.check()
        self.assertTrue(e.exception.infra)
        self.assertEqual(await client.pause_task("none"), [])
        with self.assertRaises(dsec.PartialFailure) as e:
            await client.sandbox(ID).fork(3)
        self.assertEqual([b.id for b in e.exception.done], ["box0", "box1"])

    async def test_refused(self):
        """a request that is refused as a whole is its error"""
        async def handle(conn, req):
            return fail("permission")
        client = await self.client(await self.server(handle))
        for call in (client.pause_task("job"), client.sandboxes(),
                     client.sandbox(ID).fork(3), client.get(ID),
                     client.run_sandbox(DSecRunArgs())):
            with self.assertRaises(dsec.PolicyDenied):
                await call


def tar_of(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, value in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.mode = 0o6755
            if kind == tarfile.REGTYPE:
                info.size = len(value)
                tar.addfile(info, io.BytesIO(value))
            else:
                info.linkname = value
                tar.addfile(info)
    return out.getvalue()


class Files(Fake):
    def temp(self):
        t = tempfile.TemporaryDirectory()

        async def undo():
            t.cleanup()
        self.undo.append(undo)
        return t.name

    async def fetch(self, data, name="x", final=None):
        async def handle(conn, req):
            self.assertEqual((req["program"], req["op"], req["name"]),
                             ("file", "get", name))
            n = req["id"]
            await conn.send({"id": n, "event": "started",
                             "streams": ["stdout"]})
            await conn.data(n, "stdout", data)
            await conn.eof(n, "stdout")
            return final or {}
        client = await self.client(await self.server(handle))
        t = self.temp()
        os.mkdir(t + "/in")
        error = None
        try:
            await client.sandbox(ID).files.download("/x", f"{t}/in/{name}")
        except dsec.DSecError as e:
            error = e
        return t, error

    async def test_download(self):
        """a tree comes out, without set-ID bits"""
        t, error = await self.fetch(tar_of(
            ("x", tarfile.DIRTYPE, ""), ("x/a", tarfile.REGTYPE, b"one"),
            ("x/b", tarfile.SYMTYPE, "/etc/passwd"),
            ("x/c", tarfile.LNKTYPE, "x/a")))
        self.assertIsNone(error)
        with open(t + "/in/x/a", "rb") as f:
            self.assertEqual(f.read(), b"one")
        st = os.stat(t + "/in/x/a")
        self.assertEqual((st.st_mode & 0o7777, st.st_nlink), (0o755, 2))
        self.assertEqual(os.readlink(t + "/in/x/b"), "/etc/passwd")

    async def test_hostile(self):
        """nothing is written outside the target whatever the stream says"""
        for bad in [
                [("../y", tarfile.REGTYPE, b"1")],
                [("/tmp/dsec-evil", tarfile.REGTYPE, b"1")],
                [("y", tarfile.REGTYPE, b"1")],
                [("x/../../y", tarfile.REGTYPE, b"1")],
                [("x", tarfile.SYMTYPE, ".."), ("x/y", tarfile.REGTYPE, b"1")],
                [("x", tarfile.DIRTYPE, ""), ("x/l", tarfile.SYMTYPE, "../.."),
                 ("x/l/y", tarfile.REGTYPE, b"1")],
                [("x", tarfile.LNKTYPE, "../secret")],
                [("x", tarfile.DIRTYPE, ""),
                 ("x/l", tarfile.SYMTYPE, "../../secret"),
                 ("x/m", tarfile.LNKTYPE, "x/l")],
                [("x", tarfile.CHRTYPE, "")], [("x", tarfile.FIFOTYPE, "")]]:
            t, error = await self.fetch(tar_of(*bad))
            self.assertIsInstance(error, dsec.FileError, bad)
            self.assertEqual(error.code, "refused_entries")
            self.assertEqual(os.listdir(t), ["in"])
            self.assertLessEqual(set(os.listdir(t + "/in")), {"x"})
            self.assertFalse(os.path.exists("/tmp/dsec-evil"))

    async def test_damaged(self):
        """a stream that is cut short or is no archive is an error"""
        whole = tar_of(("x", tarfile.REGTYPE, bytes(100000)))
        for data in (whole[:50000], b"nonsense" * 1000):
            t, error = await self.fetch(data)
            self.assertIsInstance(error, dsec.FileError)
            self.assertEqual(os.listdir(t + "/in"), [])
        t, error = await self.fetch(b"", final=fail("not_found"))
        self.assertIsInstance(error, dsec.NotFound)

    async def test_upload(self):
        """a tree goes in; a server that stops reading says why"""
        got = b""

        async def handle(conn, req):
            nonlocal got
            self.assertEqual((req["path"], req["name"], req.get("key")),
                             ("/srv", "tree", None))
            n = req["id"]
            await conn.send({"id": n, "event": "started",
                             "streams": ["stdin"]})
            if req.get("user"):
                return fail("quota")
            while True:
                data = await conn.take(n, "stdin")
                if not data:
                    return {"entries": 3}
                got += data
        client = await self.client(await self.server(handle))
        t = self.temp()
        os.makedirs(t + "/src/deep")
        with open(t + "/src/deep/x", "wb") as f:
            f.write(os.urandom(3 << 20))
        os.mkfifo(t + "/src/fifo")
        files = client.sandbox(ID).files
        with self.assertRaises(dsec.FileError) as e:
            await files.upload(t + "/src", "/srv/tree")
        self.assertEqual([r["path"] for r in e.exception.record["refused"]],
                         ["tree/fifo"])
        with tarfile.open(fileobj=io.BytesIO(got)) as tar:
            self.assertEqual(tar.getnames(), ["tree", "tree/deep",
                                              "tree/deep/x"])
        with self.assertRaises(dsec.QuotaExceeded):
            await files.upload(t + "/src", "/srv/tree", user="u")
        with self.assertRaises(dsec.FileError):
            await files.upload(t + "/none", "/srv/tree")


@unittest.skipUnless(shutil.which("openssl"), "needs openssl")
class Tls(Fake):
    """Certificates as dsec-serve init makes them."""

    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.at = cls.dir.name
        for ca in ("ca", "other"):
            cls.key(ca)
            cls.openssl("req", "-x509", "-key", f"{ca}.key", "-subj",
                        f"/CN={ca}", "-days", "2", "-out", f"{ca}.pem")
        for name, ca, uri, usage in [
                ("control", "ca", "dsec://control/c1", "serverAuth,clientAuth"),
                ("client", "ca", "dsec://client/me", "clientAuth"),
                ("posing", "ca", "dsec://client/me", "serverAuth"),
                ("none", "ca", "https://x/y", "serverAuth"),
                ("foreign", "other", "dsec://control/c1", "serverAuth")]:
            cls.make(name, ca, uri, usage)
        cls.make("elsewhere", "ca", "dsec://control/c2", "serverAuth",
                 "127.0.0.9")

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    @classmethod
    def openssl(cls, *args):
        subprocess.run(["openssl", *args], cwd=cls.at, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    @classmethod
    def key(cls, name):
        cls.openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout",
                    "-out", f"{name}.key")

    @classmethod
    def make(cls, name, ca, uri, usage, ip="127.0.0.1"):
        cls.key(name)
        cls.openssl("req", "-new", "-key", f"{name}.key", "-subj",
                    f"/CN={name}", "-out", f"{name}.csr")
        with open(f"{cls.at}/{name}.ext", "w") as f:
            f.write(f"subjectAltName=URI:{uri},IP:{ip}\n"
                    f"extendedKeyUsage={usage}\n")
        cls.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem",
                    "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "2",
                    "-extfile", f"{name}.ext", "-out", f"{name}.pem")

    def tls_context(self, name):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(f"{self.at}/{name}.pem",
                                f"{self.at}/{name}.key")
        context.load_verify_locations(f"{self.at}/ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    async def tls_server(self, name):
        context = self.tls_context(name)
        server = await FakeServer(Keyed(0)).start(ssl=context)
        self.undo.append(server.stop)
        return server

    async def tls_client(self, server, name="client", **more):
        client = DSecClient(
            addresses=server.address, certificate=f"{self.at}/{name}.pem",
            key=f"{self.at}/{name}.key", ca=f"{self.at}/ca.pem",
            retry=RetryPolicy(lost_s=0), timeout=10, **more)
        self.undo.append(client.close)
        return client

    async def test_good(self):
        """TLS 1.3 both ways, to a control; a token goes with the hello"""
        server = await self.tls_server("control")
        client = await self.tls_client(server, token="t" * 32)
        await client.open()
        self.assertEqual(client._core.transport.peer, "dsec://control/c1")
        self.assertTrue((await client.sandbox(ID).run(["a"])).ok)
        self.assertEqual(server.requests[0]["token"], "t" * 32)
        self.assertNotIn("ttt", repr(client._core.transport._settings))

    async def test_peer(self):
        """who must answer may be said by name, whatever its host"""
        server = await self.tls_server("elsewhere")
        client = await self.tls_client(server, peer="dsec://control/c2")
        self.assertTrue((await client.sandbox(ID).run(["a"])).ok)
        client = await self.tls_client(server, peer="dsec://control/c1")
        with self.assertRaises(dsec.PolicyDenied):
            await client.open()

    async def test_bad(self):
        """a client, a stranger, another host: not a server of ours"""
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        for name in ("posing", "none", "foreign", "client", "elsewhere"):
            server = await self.tls_server(name)
            client = await self.tls_client(server)
            with self.assertRaises(dsec.PolicyDenied):
                await client.open()
            self.assertEqual(server.requests, [])

    async def test_refused(self):
        """a certificate that the server does not take: denied, at once (101)"""
        # Not asyncio's: it closes without the alert that says why.
        class Server:
            def __init__(self, context):
                self.sock = socket.create_server(("127.0.0.1", 0))
                self.address = "127.0.0.1:%d" % self.sock.getsockname()[1]
                self.context = context

            def serve(self):
                while True:
                    try:
                        conn, _ = self.sock.accept()
                        self.context.wrap_socket(conn, server_side=True)
                    except ssl.SSLError:
                        pass
                    except OSError:
                        return
        server = Server(self.tls_context("control"))
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            client = await self.tls_client(server, "foreign")
            client._core.retry.lost_s = 30
            began = time.monotonic()
            with self.assertRaises(dsec.PolicyDenied) as e:
                await client.sandbox(ID).run(["a"])
            self.assertEqual((e.exception.retry, e.exception.infra),
                             (False, False))
            self.assertLess(time.monotonic() - began, 10)
        finally:
            server.sock.shutdown(socket.SHUT_RDWR)
            server.sock.close()
            thread.join()

    async def test_files(self):
        """settings come from a file beside its certificates, or the caller"""
        with open(f"{self.at}/client.json", "w") as f:
            json.dump({"addresses": ["[::1]:7", "h"], "ca": "ca.pem",
                       "certificate": "client.pem", "key": "client.key"}, f)
        s = remote_settings(None, None, None, None, None,
                            f"{self.at}/client.json")
        self.assertEqual((s.addresses, s.ca), (["[::1]:7", "h"],
                                               f"{self.at}/ca.pem"))
        with self.assertRaises(dsec.BadRequest):
            DSecClient()
        with self.assertRaises(dsec.BadRequest):
            DSecClient(addresses="h:1", certificate="/none", key="/none",
                       ca="/none")


if __name__ == "__main__":
    unittest.main()
