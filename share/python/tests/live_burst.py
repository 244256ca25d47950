# SPDX-License-Identifier: Apache-2.0
"""More at once than a control takes (report 106): it says so and when to come
again, what it took goes on, and afterwards all is as before."""
import asyncio
import os
import time
import unittest

import daemon
import dsec
from dsec import DSecClient, DSecRunArgs, RetryPolicy
from live import REMOTE

CALLS = int(os.environ.get("SDK_BURST", "500"))
CREATES = 24


class Burst(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        loop = asyncio.get_running_loop()
        loop.slow_callback_duration = 5
        loop.set_debug(False)
        self.control = daemon.Control(requests=12, requests_all=16)
        self.clients = [await self.client(lost_s=240).open()
                        for _ in range(3)]
        end = time.monotonic() + 30
        while True:  # until it has seen its node
            try:
                self.sb = await self.clients[0].run_sandbox(self.args())
                break
            except dsec.CapacityError:
                self.assertLess(time.monotonic(), end)
                await asyncio.sleep(0.05)

    def client(self, **policy):
        return DSecClient(config=REMOTE, addresses=self.control.address,
                          timeout=300, retry=RetryPolicy(**policy))

    def args(self, **more):
        return DSecRunArgs(memory_limit_mb=32, cpu_cores_limit=0.2,
                           task="burst", ttl_absolute=600, **more)

    async def asyncTearDown(self):
        try:
            await self.clients[0].stop_task("burst", grace=0)
        finally:
            for client in self.clients:
                await client.close()
            self.control.close()

    def count_busy(self):
        """Every answer that asks to come again, of all clients."""
        seen = []
        for client in self.clients:
            core = client._core
            delay = core._delay

            def counted(error, attempt, delay=delay):
                seen.append(error)
                return delay(error, attempt)
            core._delay = counted
        return seen

    async def test_burst(self):
        """a burst of creates and commands: busy, later, all done, once (106)"""
        lines = 100
        p = await self.sb.start(
            f"i=0; while [ $i -lt {lines} ]; do echo $i; i=$((i+1)); "
            "sleep 0.05; done")
        followed = asyncio.ensure_future(p.stdout.read_all())
        seen = self.count_busy()

        async def one(i):
            client = self.clients[i % 3]
            if i % (CALLS // CREATES) == 0:
                sb = await client.run_sandbox(self.args(name=f"burst-{i}"))
                return sb.id
            r = await client.sandbox(self.sb.id).run(
                ["sh", "-c", "echo $0 >>/tmp/ran; echo $0", str(i)])
            return r.stdout
        results = await asyncio.gather(*(one(i) for i in range(CALLS)))
        wanted = [i for i in range(CALLS) if i % (CALLS // CREATES)]
        self.assertEqual([results[i] for i in wanted],
                         [f"{i}\n" for i in wanted])
        ran = (await self.sb.files.read_text("/tmp/ran")).split()
        self.assertEqual(sorted(map(int, ran)), wanted)
        there = {i.sandbox for i in
                 await self.clients[0].sandboxes(task="burst")}
        self.assertEqual(there, {self.sb.id} | {
            r for i, r in enumerate(results) if i not in set(wanted)})
        busy = [e for e in seen if type(e) is dsec.Busy]
        self.assertGreater(len(busy), 10)
        self.assertEqual(
            {(e.code, e.retry, e.infra, bool(e.retry_after)) for e in busy},
            {("busy", True, True, True)})
        # What had been accepted before went on, and kept its connection.
        self.assertEqual(await followed,
                         b"".join(b"%d\n" % i for i in range(lines)))
        self.assertEqual(p.reconnects, 0)
        # Now that it is over nobody is turned away.
        seen.clear()
        for _ in range(10):
            self.assertTrue((await self.sb.run(["true"])).ok)
        self.assertEqual(seen, [])

    async def test_at_once(self):
        """who does not wait is told: busy, infra, and when (106)"""
        async with self.client(lost_s=0) as client:
            sb = client.sandbox(self.sb.id)
            held = [asyncio.ensure_future(sb.run(["sleep", "30"]))
                    for _ in range(40)]
            done, _ = await asyncio.wait(
                held, return_when=asyncio.FIRST_EXCEPTION, timeout=60)
            for task in held:
                task.cancel()
            ends = await asyncio.gather(*held, return_exceptions=True)
        errors = [e for e in ends if isinstance(e, dsec.DSecError)]
        self.assertTrue(errors)
        for e in errors:
            self.assertIs(type(e), dsec.Busy, e)
            self.assertTrue(e.infra and e.retry and e.retry_after > 0)


if __name__ == "__main__":
    unittest.main()
