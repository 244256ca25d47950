# SPDX-License-Identifier: Apache-2.0
"""Eight kinds of failure of real sandboxes are eight types (report 107): who
trains on the results can tell the platform's faults from those of what ran."""
import asyncio
import os
import shutil
import signal
import subprocess
import unittest

import dsec
from live import Live, small

POOL = os.environ.get("SDK_NO_POOL", "no pool was made")
# What a trainer does: the class, is the platform to blame, is a retry of use.
KINDS = {
    "failed": (dsec.CommandFailed, False, False),
    "timeout": (dsec.CommandTimeout, False, False),
    "oom": (dsec.CommandOutOfMemory, False, False),
    "died": (dsec.SandboxDied, True, True),
    "node lost": (dsec.NodeLost, True, True),
    "quota": (dsec.QuotaExceeded, False, False),
    "policy": (dsec.PolicyDenied, False, False),
    "bad request": (dsec.BadRequest, False, False),
}


class Typed(Live):
    async def kind(self, name, work):
        cls, infra, retry = KINDS[name]
        with self.assertRaises(dsec.DSecError) as e:
            await work
        with self.subTest(name):
            self.assertIs(type(e.exception), cls, e.exception)
            self.assertEqual((e.exception.infra, e.exception.retry),
                             (infra, retry), e.exception)
            self.assertTrue(e.exception.code and e.exception.message)
            # A retry is of use in a new sandbox alone, and it says so.
            self.assertEqual(e.exception.new_sandbox, retry)
        return e.exception


class Kinds(Typed):
    async def test_commands(self):
        """failed, timeout, out of memory: the command's own, no retry (107)"""
        sb = await self.box()
        e = await self.kind("failed", sb.run_shell("echo why; exit 9",
                                                   check=True))
        self.assertEqual((e.result.exit_code, e.result.stdout), (9, "why\n"))
        await self.kind("failed", sb.run_shell("kill -KILL $$", check=True))
        await self.kind("timeout", sb.run(["sleep", "60"], timeout=0.2,
                                          grace=0, check=True))
        eat = "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done"
        await self.kind("oom", sb.run_shell(eat, check=True, timeout=60))
        # A following reader learns the same.
        with self.assertRaises(dsec.CommandTimeout):
            async for _ in sb.stream("echo a; sleep 60", timeout=0.3, grace=0):
                pass
        self.assertTrue((await sb.run(["true"])).ok)

    async def test_requests(self):
        """a bad request, and one that is not permitted (107)"""
        sb = await self.box()
        await self.kind("bad request", sb.run(["true"],
                                              user="no such user:"))
        await self.kind("bad request", self.client.run_sandbox(
            small(extra={"colour": "red"})))
        await self.kind("policy", self.client.run_sandbox(
            small(mounts=[{"source": "/root", "target": "/mnt"}])))

    async def test_died(self):
        """a sandbox whose supervisor is killed: the platform's, a new one (107)"""
        sb = await self.box()
        pid = (await sb.info()).record["supervisor_pid"]
        running = asyncio.ensure_future(sb.run(["sleep", "60"]))
        followed = await sb.start(["sleep", "61"])
        while sum(c.running for c in await sb.processes()) < 2:
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        await self.kind("died", running)
        await self.kind("died", followed.wait(60))
        await self.kind("died", sb.run(["true"]))
        await followed.close()

    async def test_node_lost(self):
        """a node that went down: its sandboxes are lost, and said to be (107)"""
        sb = await self.box()
        record = (await sb.info()).record
        for pid in (record["supervisor_pid"], record["init_pid"]):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(f"{os.environ['DSEC_RUN']}/sb/{sb.id}")
        subprocess.run(["dsec-doctor", "--fix", "--json", "--only", "dead"],
                       check=False, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)
        await self.kind("node lost", sb.run(["true"]))
        end = await sb.wait(20)
        self.assertEqual((end.outcome, end.infra), ("node-lost", True))


@unittest.skipIf(POOL, POOL)
class Quota(Typed):
    async def test_quota(self):
        """a disk limit: of the sandbox's own doing, no retry (107)"""
        sb = await self.box(disk_limit_mb=32)
        e = await self.kind("quota", sb.files.write("/root/big",
                                                    os.urandom(40 << 20)))
        self.assertEqual(e.sandbox, sb.id)
        await sb.run_shell("rm -f /root/big* /root/.dsec*")
        await sb.files.write("/root/small", b"x" * 1000)
        r = await sb.run(["dd", "if=/dev/zero", "of=/root/big", "bs=1M",
                          "count=40"])
        self.assertFalse(r.ok or r.infra)


if __name__ == "__main__":
    unittest.main()
