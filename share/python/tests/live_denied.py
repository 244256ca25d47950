# SPDX-License-Identifier: Apache-2.0
"""Who may what, and who may nothing any more: a certificate that is revoked
(report 101)."""
import asyncio
import os
import time
import unittest

import dsec
import daemon
from dsec import DSecClient
from live import REMOTE, Live, small

WHERE = os.path.basename(REMOTE or "").replace("-client.json", "")
BOUND = 2.0


class Denied(Live):
    async def asyncSetUp(self):
        await super().asyncSetUp()
        self.others = []

    async def asyncTearDown(self):
        for other in self.others:
            await other.close()
        await super().asyncTearDown()

    async def other(self, name, operations):
        """A client of its own project, when the daemon has read of it."""
        path = daemon.client(f"{name}-{WHERE}", WHERE, "root/rl", operations)
        other = await DSecClient(config=path, timeout=30).open()
        self.others.append(other)
        end = time.monotonic() + 20
        while True:
            try:
                await other.sandboxes()
                return other
            except dsec.PolicyDenied:
                self.assertLess(time.monotonic(), end)
                await asyncio.sleep(0.05)

    async def test_rights(self):
        """what a client may not is PolicyDenied, what is not its own unknown"""
        other = await self.other("some", ("run", "exec", "ps"))
        sb = await other.run_sandbox(small())
        self.made.append(self.client.sandbox(sb.id))
        self.assertTrue((await sb.run(["true"])).ok)
        self.assertEqual((await sb.info()).project, "root/rl")
        mine = await self.box()
        for call in (sb.pause("freeze"), sb.fork(fs_only=True),
                     sb.files.read("/etc/hostname"), sb.network.deny_all(),
                     other.run_sandbox(small(project="root/other"))):
            with self.assertRaises(dsec.PolicyDenied) as e:
                await call
            self.assertEqual((e.exception.code, e.exception.infra,
                              e.exception.retry), ("permission", False,
                                                   False))
        with self.assertRaises(dsec.NotFound):
            await other.sandbox(mine.id).run(["true"])
        self.assertEqual([i.sandbox for i in await other.sandboxes()],
                         [sb.id])

    async def late(self, worst):
        """How much later than it asked for this process is woken."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.02)
            worst[0] = max(worst[0], time.monotonic() - began - 0.02)

    async def test_revoked(self):
        """revoked: calls are denied and streams cut within 2 s (101)"""
        other = await self.other("gone", ("all",))
        sb = await other.run_sandbox(small())
        self.made.append(self.client.sandbox(sb.id))
        p = await sb.start("while sleep 0.02; do echo x; done", timeout=None)
        worst = [0.0]
        watch = asyncio.ensure_future(self.late(worst))

        async def read():
            while await p.stdout.readline():
                pass

        async def call():
            while True:
                await sb.run(["true"])

        self.assertEqual(await p.stdout.readline(), b"x\n")
        ends = [asyncio.ensure_future(self.end(work))
                for work in (read(), call())]
        await asyncio.sleep(0.2)
        self.assertFalse(any(e.done() for e in ends))
        await asyncio.get_running_loop().run_in_executor(
            None, daemon.tool, "revoke", daemon.SERVE,
            f"dsec://client/gone-{WHERE}")
        began = time.monotonic()
        for at, error in await asyncio.wait_for(asyncio.gather(*ends), 30):
            self.assertIs(type(error), dsec.PolicyDenied, error)
            self.assertEqual((error.retry, error.infra), (False, False))
            self.assertLess(at - began, BOUND + 2 * worst[0])
        watch.cancel()
        with self.assertRaises(dsec.PolicyDenied):
            await other.sandboxes()
        # Who is not revoked sees that the command goes on.
        again = self.client.sandbox(sb.id)
        self.assertTrue([c for c in await again.processes()
                         if c.exec_id == p.exec_id and c.running])

    async def end(self, work):
        try:
            await work
        except dsec.DSecError as e:
            return time.monotonic(), e
        return time.monotonic(), None


if __name__ == "__main__":
    unittest.main()
