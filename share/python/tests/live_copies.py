# SPDX-License-Identifier: Apache-2.0
"""Copies, snapshots and pauses to disk.  $SDK_IMAGE is an image that can be
checkpointed, or $SDK_NO_ENGINE says why there is none."""
import asyncio
import os
import time
import unittest

import dsec
from dsec import DSecRunArgs
from live import Live, small

WHY = os.environ.get("SDK_NO_ENGINE", "no engine was looked for")
engine = unittest.skipIf(WHY, WHY)
COUNT = ("i=0; while :; do i=$((i + 1)); echo $i >/tmp/n.new; "
         "mv /tmp/n.new /tmp/n; sleep 0.05; done")


async def count(sb):
    return int(await sb.files.read_text("/tmp/n"))


class Copies(Live):
    async def test_files(self):
        """copies of the files: each its own"""
        sb = await self.box()
        await sb.files.write("/tmp/a", "one")
        forks = await sb.fork(count=3, fs_only=True, labels={"try": "1"})
        self.made += forks
        self.assertEqual(len({f.id for f in forks}), 3)
        await forks[0].files.write("/tmp/a", "two")
        self.assertEqual([await f.files.read_text("/tmp/a") for f in forks],
                         ["two", "one", "one"])
        with self.assertRaises(dsec.DSecError):
            await sb.fork(count=2000)

    async def test_snapshot(self):
        """a snapshot outlives its source, and sandboxes are made from it"""
        sb = await self.box(task="sdk-snap", labels={"a": "b"})
        await sb.files.write("/tmp/a", "one")
        snap = await sb.snapshot("sdk-snap", fs_only=True)
        self.assertIn("sdk-snap", [s.name.split("/")[-1] for s in
                                   await self.client.snapshots()])
        with self.assertRaises(dsec.AlreadyExists):
            await sb.snapshot("sdk-snap", fs_only=True)
        await sb.files.write("/tmp/a", "two")
        again = await sb.snapshot("sdk-snap", fs_only=True, replace=True)
        self.assertNotEqual(snap.id, again.id)
        await sb.stop(grace=0)
        made = await self.client.fork_snapshot("sdk-snap", 2)
        made.append(await self.client.run_sandbox(DSecRunArgs(
            snapshot="sdk-snap", name="sdk-from-snap",
            command="cat /tmp/a; sleep 600")))
        self.made += made
        self.assertEqual([await m.files.read_text("/tmp/a") for m in made],
                         ["two"] * 3)
        self.assertEqual((await made[2].info()).task, "sdk-snap")
        async for data in made[2].logs(follow=True):
            self.assertEqual(data, b"two")
            break
        # What is the snapshot's own is refused by name.
        with self.assertRaises(dsec.BadRequest) as e:
            await self.client.run_sandbox(DSecRunArgs(
                snapshot="sdk-snap", memory_limit_mb=64))
        self.assertIn("memory_limit_mb", str(e.exception))
        await self.client.remove_snapshot("sdk-snap")
        for gone in (self.client.remove_snapshot("sdk-snap"),
                     self.client.fork_snapshot("sdk-snap"),
                     self.client.run_sandbox(DSecRunArgs(
                         snapshot="sdk-snap"))):
            with self.assertRaises(dsec.NotFound):
                await gone

    async def test_unsupported(self):
        """memory of an image that cannot be checkpointed: refused by name"""
        sb = await self.box()
        with self.assertRaises(dsec.Unsupported):
            await sb.fork(count=2)
        with self.assertRaises(dsec.Unsupported):
            await sb.pause("disk")
        self.assertTrue((await sb.run(["true"])).ok)

    async def counter(self, **more):
        sb = await self.box(image=os.environ["SDK_IMAGE"], **more)
        p = await sb.start(COUNT, timeout=None)
        await p.detach()
        await self.goes_on(sb, 0)
        return sb, p.exec_id

    async def goes_on(self, sb, at):
        """Its counter gets beyond ``at``."""
        end = time.monotonic() + 60
        while (not await sb.files.exists("/tmp/n") or await count(sb) <= at):
            self.assertLess(time.monotonic(), end)
            await asyncio.sleep(0.02)

    @engine
    async def test_memory(self):
        """four copies with memory: what ran goes on in each"""
        sb, exec_id = await self.counter(task="sdk-fork")
        at = await count(sb)
        forks = await sb.fork(count=4, name="sdk-copy", timeout=240)
        self.made += forks
        self.assertEqual(len({f.id for f in forks} | {sb.id}), 5)
        self.assertEqual([(await f.info()).name for f in forks],
                         [f"sdk-copy-{i}" for i in range(4)])
        for box in forks + [sb]:
            self.assertGreaterEqual(await count(box), at)
            self.assertTrue([c for c in await box.processes()
                             if c.exec_id == exec_id and c.running])
        now = [await count(f) for f in forks]
        for f, n in zip(forks, now):
            await self.goes_on(f, n)
        # They go apart, one by one.
        await forks[0].signal(exec_id, "KILL")
        p = await forks[0].attach(exec_id)
        self.assertEqual((await p.wait(30)).signal, "SIGKILL")
        await self.goes_on(forks[1], await count(forks[1]))
        r = await self.client.stop_task("sdk-fork", grace=0)
        self.assertEqual(len(r.check()), 5)

    @engine
    async def test_warm(self):
        """a snapshot with memory: what ran goes on, beside a new command"""
        sb, exec_id = await self.counter()
        await sb.snapshot("sdk-warm", timeout=240)
        await sb.stop(grace=0)
        one, = await self.client.fork_snapshot("sdk-warm", timeout=240)
        self.made.append(one)
        other = await self.client.run_sandbox(DSecRunArgs(
            snapshot="sdk-warm", command=["echo", "new"]), timeout=240)
        self.made.append(other)
        for box in (one, other):
            await self.goes_on(box, await count(box))
            self.assertTrue([c for c in await box.processes()
                             if c.exec_id == exec_id and c.running])
        await self.client.remove_snapshot("sdk-warm")

    @engine
    async def test_disk(self):
        """a task that is paused to disk goes on where it was"""
        boxes = [await self.counter(task="sdk-disk") for _ in range(2)]
        r = await self.client.pause_task("sdk-disk", "disk", timeout=240)
        self.assertEqual({x.level for x in r.check()}, {"disk"})
        self.assertEqual([(await b.info()).state for b, _ in boxes],
                         ["paused"] * 2)
        r = await self.client.resume_task("sdk-disk", timeout=240)
        self.assertEqual(len(r.check()), 2)
        for sb, exec_id in boxes:
            await self.goes_on(sb, await count(sb))
            await sb.pause("disk", timeout=240)
            self.assertTrue((await sb.run(["true"], deadline=240)).ok)
            await self.goes_on(sb, await count(sb))


if __name__ == "__main__":
    unittest.main()
