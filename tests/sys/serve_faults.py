# SPDX-License-Identifier: Apache-2.0
"""What a cluster (share/demo/world.py) does when a node is gone, an answer is
lost, or what controls know is old.  FAULTS_BIG: more, and longer."""
import asyncio
import json
import os
import random
import signal
import tempfile
import time
import unittest
from statistics import median

from dsec import DSecClient, DSecRunArgs, RetryPolicy
from dsec._remote import RemoteTransport
from dsec._settings import remote_settings
from dsec.errors import NodeLost, NotFound
import serve_chaos
from serve_chaos import BOX, client, until

BIG = bool(os.environ.get("FAULTS_BIG"))


def setUpModule():
    serve_chaos.setUpModule()


def args(**how):
    return DSecRunArgs(**{**BOX, **how})


class Base(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        asyncio.get_running_loop().slow_callback_duration = 60
        self.world = serve_chaos.world
        self.dsec = await client().open()

    async def asyncTearDown(self):
        await self.dsec.stop(project="root", grace=0)
        await self.dsec.close()

    def live(self):
        """Of each node, the sandboxes that are there."""
        return {n.name: n.live() for n in self.world.nodes}

    async def all_live(self):
        await until("all nodes are live", 30, lambda: all(
            c.counted("dsec_node_state", state="live") == 4
            for c in self.world.controls))


    async def fresh_reports(self):
        """What a control knew of its nodes before is forgotten."""
        def asked():
            return [n.counted("dsec_requests_total", program="report")
                    for n in self.world.nodes]
        enough = [n + 2 * len(self.world.controls) for n in asked()]
        await until("new reports", 20, lambda: all(
            n >= m for n, m in zip(asked(), enough)))


class Lost(Base):
    async def test_lost(self):
        """field report 107: a node that is gone is node-lost, with infra"""
        world, victim = self.world, self.world.nodes[1]
        late, end_late = await self.late_reports(world.nodes[2])
        others = [n.report()["node"] for n in world.nodes if n is not victim]
        for c in world.controls:
            c.conf(limits={"lost_ms": 4000})
        try:
            box = await self.dsec.run_sandbox(args(extra={"avoid": others}))
            self.assertIn(box.id, self.live()[victim.name])
            await box.run(["sh", "-c", "echo kept >/tmp/kept"])
            waits = asyncio.ensure_future(box.wait(120))
            runs = asyncio.ensure_future(box.run(["sleep", "1000"]))
            await asyncio.sleep(0.3)
            victim.link(False)
            await until("it is lost", 40, lambda: all(
                c.counted("dsec_node_state", node=victim.name, state="lost")
                for c in world.controls))
            end = await waits
            self.assertEqual((end.outcome, end.infra), ("node-lost", True))
            for call in (runs, box.run(["true"]), box.files.read("/tmp/kept"),
                         box.pause("freeze"), box.stop()):
                with self.assertRaises(NodeLost) as told:
                    await call
                self.assertTrue(told.exception.infra)
                self.assertTrue(told.exception.new_sandbox)
            new = await self.dsec.run_sandbox(args())
            self.assertNotEqual(new.id[:4], box.id[:4])
        finally:
            victim.link(True)
            for c in world.controls:
                c.conf(limits={"lost_ms": 120000})
        self.assertEqual(late.reconnects, 0)
        await end_late()
        await self.all_live()
        self.assertEqual(await box.files.read_text("/tmp/kept"), "kept\n")

    async def late_reports(self, node):
        """A command on a node whose reports do not come any more: the way to
        it stays.  Ends with what is returned."""
        others = [n.report()["node"] for n in self.world.nodes if n is not node]
        box = await self.dsec.run_sandbox(args(extra={"avoid": others}))
        process = await box.start(["cat"], stdin=True)
        pid = await until("reports", 10, lambda: node.helper("dsec-admit"))
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()

        async def end():
            try:
                await asyncio.sleep(max(0, began + 13 - time.monotonic()))
                await process.write("still here")
                await process.close_stdin()
                self.assertEqual(await process.stdout.read_all(),
                                 b"still here")
                self.assertEqual(process.reconnects, 0)
            finally:
                os.kill(pid, signal.SIGCONT)
        return process, end


class Proxy:
    """Between a client and a control.  It drops what the control says, and
    breaks the connection when that has been said."""

    def __init__(self, control):
        self.host, self.port = control.address.split(":")
        self.left = self.dropped = 0
        self.mute = None
        self.tasks = set()

    async def open(self):
        self.server = await asyncio.start_server(self.serve, "10.213.0.1", 0)
        return "10.213.0.1:%d" % self.server.sockets[0].getsockname()[1]

    def spawn(self, work):
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def serve(self, reader, writer):
        up, down = await asyncio.open_connection(self.host, self.port)
        self.newest = here = [writer, down]
        self.spawn(self.copy(reader, down, here, False))
        self.spawn(self.copy(up, writer, here, True))

    async def copy(self, reader, writer, here, says):
        try:
            while True:
                data = await reader.read(65536)
                if not data:
                    break
                if says and self.mute is here:
                    self.last = time.monotonic()
                    self.dropped += 1
                    continue
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        for w in here:
            w.close()

    def arm(self, times):
        """The answers of this connection, and of those after it."""
        self.left = times
        self.connected()

    def connected(self):
        if self.left > 0:
            self.left -= 1
            self.mute = self.newest
            self.last = None
            self.spawn(self.cut(self.newest))

    async def cut(self, here):
        """When it has answered, whatever in how many pieces."""
        while self.last is None or time.monotonic() < self.last + 0.3:
            await asyncio.sleep(0.02)
        for w in here:
            w.close()

    def close(self):
        self.server.close()
        for w in self.newest:
            w.close()


class Deaf(RemoteTransport):
    """It tells the proxy when it has connected, before it asks anything."""

    proxy = None

    async def _connect(self, address):
        c = await super()._connect(address)
        self.proxy.connected()
        return c


class Replies(Base):
    LOST = 2  # of three tries

    async def asyncSetUp(self):
        await super().asyncSetUp()
        control = self.world.controls[0]
        self.proxy = Proxy(control)
        transport = Deaf(remote_settings(
            await self.proxy.open(), None, None, None, None,
            self.world.client, f"dsec://control/{control.name}"))
        transport.proxy = self.proxy
        self.deaf = await DSecClient(transport=transport, timeout=60,
                                     retry=RetryPolicy(lost_s=40)).open()
        self.box = await self.deaf.run_sandbox(args(task="box"))

    async def asyncTearDown(self):
        await self.deaf.close()
        self.proxy.close()
        await super().asyncTearDown()

    async def lossy(self, work):
        """A call whose first answers are lost."""
        before = self.proxy.dropped
        self.proxy.arm(self.LOST)
        result = await work
        self.assertEqual(self.proxy.left, 0)
        self.assertGreaterEqual(self.proxy.dropped - before, self.LOST)
        return result

    async def test_create(self):
        """field report 100: a create whose answers are lost makes one"""
        made = await self.lossy(self.deaf.run_sandbox(args(task="lost")))
        there = [s.sandbox for s in await self.dsec.sandboxes(task="lost")]
        self.assertEqual(there, [made.id])
        other = await self.deaf.run_sandbox(args(task="lost"))
        self.assertNotEqual(other.id, made.id)

    async def test_exec(self):
        """field report 100: a command whose answers are lost runs once"""
        command = "echo x >>/tmp/n; wc -l </tmp/n"
        got = [(await self.lossy(self.box.run_shell(command))).stdout
               for _ in range(2)]
        self.assertEqual(got, ["1\n", "2\n"])

    async def test_upload(self):
        """field report 100: a file whose answers are lost is there once"""
        with tempfile.TemporaryDirectory() as at:
            for text in ("first", "second"):
                with open(at + "/f", "w", encoding="utf-8") as f:
                    f.write(text)
                await self.lossy(self.box.files.upload(at, "/tmp/up"))
                self.assertEqual(
                    await self.box.files.read_text("/tmp/up/f"), text)
                await self.lossy(self.box.files.write("/tmp/short", text))
                self.assertEqual(
                    await self.box.files.read_text("/tmp/short"), text)

    async def test_fork(self):
        """field report 100: copies whose answers are lost are made once"""
        for n in (2, 4):
            copies = await self.lossy(self.box.fork(2, fs_only=True,
                                                    task="lost"))
            self.assertEqual(len({c.id for c in copies}), 2)
            there = await self.dsec.sandboxes(task="lost")
            self.assertEqual(len(there), n)

    async def test_remove(self):
        """field report 100: what is removed is so once, and stopped once"""
        await self.box.files.write("/tmp/f", "x")
        await self.lossy(self.box.files.remove("/tmp/f"))
        with self.assertRaises(NotFound):
            await self.lossy(self.box.files.remove("/tmp/f"))
        await self.box.files.write("/tmp/f", "y")
        end = await self.lossy(self.box.stop(grace=0))
        self.assertEqual(end.state, "stopped")


class Reports(Base):
    """What controls know is old, and nobody is overrun for it."""

    def signal(self, node, number):
        pid = node.helper("dsec-admit")
        if pid:
            os.kill(pid, number)
        return pid

    def attempts(self):
        """When each create was tried on which node, by its request."""
        found = {}
        for node in self.world.nodes:
            path = os.path.join(node.env["DSEC_LIB"], "serve", "audit.jsonl")
            with open(path, encoding="utf-8") as f:
                for line in map(json.loads, f):
                    if line.get("program") == "run":
                        found.setdefault(line.get("req"), []).append(
                            (line["at_ms"], node.name))
        return found

    def gaps(self, before):
        """ms between the tries of each request that is not in ``before``."""
        gaps = []
        for req, tried in self.attempts().items():
            if req not in before:
                tried.sort()
                self.assertLessEqual(len(tried), 5)
                self.assertEqual(len(tried), len({name for _, name in tried}),
                                 "one node was tried twice")
                gaps += [b[0] - a[0] for a, b in zip(tried, tried[1:])]
        return gaps

    async def test_refused(self):
        """field report 97: what a node refuses is tried elsewhere in 100 ms"""
        world = self.world
        before = set(self.attempts())
        closed = world.nodes[:3]
        gaps = []
        for _ in range(10):  # which two of four are looked at is chance
            if len(gaps) >= 3:
                break
            await self.all_live()
            await self.fresh_reports()
            for node in closed:
                await until("reports", 10, lambda n=node: self.signal(
                    n, signal.SIGSTOP))
                node.program("dsec-admit", "--drain")
            try:
                for _ in range(2):
                    box = await self.dsec.run_sandbox(args())
                    self.assertIn(box.id, self.live()[world.nodes[3].name])
            finally:
                for node in closed:
                    node.program("dsec-admit", "--undrain")
                    self.signal(node, signal.SIGCONT)
            gaps = self.gaps(before)
        print(f"# between tries: {sorted(gaps)} ms")
        self.assertGreaterEqual(len(gaps), 3)
        self.assertLess(median(gaps), 100)

    async def test_herd(self):
        """field report 97: the spread, and a node that comes back empty"""
        world = self.world
        await self.all_live()
        await until("reports that show none", 20, lambda: all(
            c.counted("dsec_sandboxes") == 0 for c in world.controls))
        async for made in self.dsec.run_many([args()] * 80, concurrency=40):
            self.assertIsNone(made.error)
        have = [len(ids) for ids in self.live().values()]
        print(f"# of 80, each node has {have}")
        self.assertEqual(sum(have), 80)
        self.assertLessEqual(max(have), 1.2 * 20)
        # One ends with all it has, and comes back.
        node = world.nodes[2]
        node.kill()
        node.program("dsec-pause", "--stop", "--grace", "0", "--project",
                     "root")
        node.start()
        await self.all_live()
        await until("a report that shows none", 20, lambda: all(
            c.counted("dsec_sandboxes", node=node.name) == 0
            for c in world.controls))
        async for made in self.dsec.run_many([args()] * 40, concurrency=40):
            self.assertIsNone(made.error)
        new = len(self.live()[node.name])
        # It is one of the two that are drawn every other time.
        print(f"# of 40 more, the empty one got {new}")
        self.assertGreaterEqual(new, 8)
        self.assertLessEqual(new, 32)

    async def test_storm(self):
        """field report 98: old reports, and the books are right in the end"""
        world, rng = self.world, random.Random(98)
        count, longest = (400, 30) if BIG else (80, 3)
        kept, sampled, on = [], 0, True

        async def hold_up(node):
            while on:
                self.signal(node, signal.SIGSTOP)
                await asyncio.sleep(rng.uniform(0, longest))
                self.signal(node, signal.SIGCONT)
                await asyncio.sleep(rng.uniform(0.2, 1.2))

        async def look():
            nonlocal sampled
            while on:
                for c in world.controls:
                    self.sane(c.metrics(), count)
                    sampled += 1
                await asyncio.sleep(0.2)

        async def one(number):
            async with gate:
                box = await self.dsec.run_sandbox(args(task="storm"))
                if number % 8 == 0:
                    kept.append(box.id)
                else:
                    await box.stop(grace=0)

        gate = asyncio.Semaphore(16)
        aside = [asyncio.ensure_future(w) for w in
                 [hold_up(n) for n in world.nodes] + [look()]]
        await asyncio.gather(*(one(i) for i in range(count)))
        on = False
        for task in aside[:-1]:
            task.cancel()
        await asyncio.wait(aside)
        aside[-1].result()
        for node in world.nodes:
            self.signal(node, signal.SIGCONT)
        self.assertGreater(sampled, 4)
        await self.reconciled(kept)

    def sane(self, metrics, most):
        for line in metrics.splitlines():
            if line.startswith(("dsec_sandboxes{", "dsec_claimed{")):
                value = float(line.rpartition(" ")[2])
                self.assertGreaterEqual(value, 0, line)
                if 'resource="sandboxes"' in line or "sandboxes{" in line:
                    self.assertLessEqual(value, most, line)

    async def reconciled(self, kept):
        """Reports are asked for each second; one may be under way."""
        live = self.live()
        self.assertEqual(sorted(i for ids in live.values() for i in ids),
                         sorted(kept))
        began = time.monotonic()
        await until("books that are right", 10, lambda: all(
            c.counted("dsec_claimed", node=n.name, resource="sandboxes")
            == len(live[n.name])
            for n in self.world.nodes for c in self.world.controls))
        print(f"# after {time.monotonic() - began:.1f} s")
        for n in self.world.nodes:
            self.assertEqual(n.report()["held"]["sandboxes"],
                             len(live[n.name]))


if __name__ == "__main__":
    unittest.main()
