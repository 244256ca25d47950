# SPDX-License-Identifier: Apache-2.0
"""Calls while daemons are killed: none fails, none acts twice, no output is
lost.  $SDK_REMOTE is the client.json of a control, $SDK_SERVE its directory,
$SDK_NODE_LOG has the process ids of the node's parts."""
import asyncio
import os
import re
import signal
import subprocess
import time
import unittest

from dsec import DSecClient, DSecRunArgs, RetryPolicy

CALLS = int(os.environ.get("SDK_CALLS", "240"))


class Chaos(unittest.IsolatedAsyncioTestCase):
    def start_control(self):
        self.control = subprocess.Popen(
            ["dsec-serve", "control", os.environ["SDK_SERVE"]],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)

    async def asyncSetUp(self):
        asyncio.get_running_loop().slow_callback_duration = 5
        self.start_control()
        self.client = DSecClient(config=os.environ["SDK_REMOTE"], timeout=120,
                                 retry=RetryPolicy(lost_s=60))
        end = time.monotonic() + 20
        while True:
            try:
                await self.client.open()
                break
            except Exception:
                self.assertLess(time.monotonic(), end)
                await asyncio.sleep(0.1)
        self.sb = await self.client.run_sandbox(DSecRunArgs(
            memory_limit_mb=128, cpu_cores_limit=1, task="chaos"))

    async def asyncTearDown(self):
        try:
            await self.client.stop_task("chaos", grace=0)
            await self.client.close()
        finally:
            self.control.kill()
            self.control.wait()

    def part(self, name):
        with open(os.environ["SDK_NODE_LOG"]) as f:
            found = re.findall(rf"{name} (\d+)", f.read())
        return int(found[-1])

    def kill(self, name):
        if name == "control":
            self.control.kill()
            self.control.wait()
            self.start_control()
        else:
            os.kill(self.part(name), signal.SIGKILL)

    async def test_calls(self):
        """commands and files while each daemon is killed: every one, once"""
        done = 0
        gate = asyncio.Semaphore(24)

        async def call(i):
            nonlocal done
            async with gate:
                if i % 8 == 7:
                    await self.sb.files.write(f"/tmp/f{i}", str(i))
                else:
                    r = await self.sb.run(
                        ["sh", "-c", "echo $0 >>/tmp/ran; echo $0", str(i)])
                    self.assertEqual(r.stdout, f"{i}\n", r)
                done += 1

        calls = asyncio.gather(*(call(i) for i in range(CALLS)))
        for n, name in enumerate(("worker", "control", "keeper", "control",
                                  "worker"), 1):
            while done < CALLS * n // 7 and not calls.done():
                await asyncio.sleep(0.01)
            self.assertFalse(calls.done(), "the calls were too few")
            self.kill(name)
        await calls
        ran = (await self.sb.files.read_text("/tmp/ran")).split()
        want = [str(i) for i in range(CALLS) if i % 8 != 7]
        self.assertEqual(sorted(ran), sorted(want))
        names = {e.name for e in await self.sb.files.list("/tmp")}
        self.assertLessEqual({f"f{i}" for i in range(7, CALLS, 8)}, names)

    async def test_output(self):
        """output of a command while each daemon is killed: every byte, once"""
        n = 200
        p = await self.sb.start(
            f"i=0; while [ $i -lt {n} ]; do echo line $i; i=$((i+1)); "
            "sleep 0.02; done; exit 7")
        lines = []
        kills = {n // 6: "worker", n // 3: "control", n // 2: "keeper"}
        while True:
            line = await p.stdout.readline()
            if not line:
                break
            lines.append(line.decode())
            if len(lines) in kills:
                self.kill(kills.pop(len(lines)))
        self.assertEqual(lines, [f"line {i}\n" for i in range(n)])
        self.assertEqual((await p.wait(60)).exit_code, 7)
        self.assertGreaterEqual(p.reconnects, 1)

    async def test_creates(self):
        """sandboxes while each daemon is killed: as many as were asked for"""
        names = [f"chaos-{i}" for i in range(12)]

        async def make(name):
            return await self.client.run_sandbox(DSecRunArgs(
                name=name, task="chaos", memory_limit_mb=32,
                cpu_cores_limit=0.1))
        calls = asyncio.gather(*(make(name) for name in names))
        for name in ("control", "worker", "control"):
            await asyncio.sleep(0.15)
            self.kill(name)
        made = await calls
        there = await self.client.sandboxes(task="chaos")
        self.assertEqual(sorted(s.name for s in there if s.name), sorted(names))
        self.assertEqual({s.id for s in made} | {self.sb.id},
                         {s.sandbox for s in there})


if __name__ == "__main__":
    unittest.main()
