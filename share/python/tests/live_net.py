# SPDX-License-Identifier: Apache-2.0
"""Network rules, phases, why not, and what was refused; in the small world of
tests/sys/net.sh, where allowed.test and other.test answer."""
import asyncio
import time
import unittest

import dsec
from live import Live, small

PHASES = {"setup": {"allow": [{"domain": "allowed.test"},
                              {"domain": "other.test"}]},
          "agent": {"allow": [{"domain": "other.test"}]}, "grade": {}}


class Networks(Live):
    async def reaches(self, sb, name):
        """Does a plain HTTP request get an answer?"""
        r = await sb.run(["curl", "-s", "-m", "10", f"http://{name}/x"])
        return r.ok and '"path"' in r.stdout

    async def test_phases(self):
        """phases: what each allows, for one sandbox and for a task"""
        one, two = await asyncio.gather(*(
            self.box(task="sdk-phases", phases=PHASES, phase="setup")
            for _ in range(2)))
        self.assertEqual((await one.network.show())["network"], "names")
        self.assertTrue(await self.reaches(one, "allowed.test"))
        self.assertEqual((await one.network.phase("agent"))["phase"], "agent")
        self.assertFalse(await self.reaches(one, "allowed.test"))
        self.assertTrue(await self.reaches(one, "other.test"))
        self.assertTrue(await self.reaches(two, "allowed.test"))
        r = await self.client.set_phase("grade", task="sdk-phases")
        self.assertEqual(set(r.check().sandboxes()), {one.id, two.id})
        for sb in (one, two):
            self.assertFalse(await self.reaches(sb, "other.test"))
        with self.assertRaises(dsec.BadRequest):
            await one.network.phase("holiday")
        self.assertEqual(await self.client.set_phase("grade", task="sdk-no"),
                         [])

    async def test_rules(self):
        """rules are merged, replaced, explained; what was refused is told"""
        sb = await self.box(network_rules={
            "allow": [{"domain": "allowed.test"}]})
        self.assertTrue(await self.reaches(sb, "allowed.test"))
        self.assertFalse(await self.reaches(sb, "other.test"))
        told = await sb.network.explain("other.test:80")
        self.assertEqual((told["allowed"], told["attempt"]["outcome"],
                          told["agrees"]), (False, "not_resolved", True))
        denied = [d for d in await sb.network.denied()
                  if d.name == "other.test"]
        self.assertEqual({d.why for d in denied}, {"name"})
        self.assertLess(abs(denied[0].at_ms / 1000 - time.time()), 300)
        await sb.network.merge({"allow": [{"domain": "other.test"}]})
        self.assertTrue(await self.reaches(sb, "other.test"))
        told = await sb.network.explain("other.test:80")
        self.assertEqual((told["allowed"], told["attempt"]["outcome"]),
                         (True, "connected"))
        await sb.network.replace({"allow": [{"domain": "other.test"}]})
        self.assertFalse(await self.reaches(sb, "allowed.test"))
        with self.assertRaises(dsec.Unsupported):  # needs a link
            await sb.network.merge({"allow": [{"cidr": "198.51.100.0/24"}]})
        with self.assertRaises(dsec.BadRequest) as e:
            await sb.network.replace({"allow": [{"domain": "x.test",
                                                 "ports": [0]}]})
        self.assertIn("allow[0].ports[0]", str(e.exception))

    async def test_cut(self):
        """deny_all cuts a connection that is open"""
        sb = await self.box(network_rules={
            "allow": [{"domain": "allowed.test", "ports": [7]}]})
        program = ("import socket\ns = socket.create_connection("
                   "('allowed.test', 7))\ns.sendall(b'a')\n"
                   "print(s.recv(1), flush=True)\ntry:\n  print(s.recv(1))\n"
                   "except OSError: print('reset')\n")
        async with await sb.start(["python3", "-c", program]) as p:
            self.assertEqual(await p.stdout.readline(timeout=60), b"b'a'\n")
            changed = await sb.network.deny_all()
            self.assertEqual((changed["changed"], changed["cut"]), (True, 1))
            self.assertIn(await p.stdout.readline(timeout=20),
                          (b"b''\n", b"reset\n"))
        self.assertFalse(await self.reaches(sb, "allowed.test"))

    async def test_pause(self):
        """rules hold over a pause, and a change resumes"""
        sb = await self.box(network_rules={
            "allow": [{"domain": "allowed.test"}]})
        await sb.pause("freeze")
        await sb.network.merge({"allow": [{"domain": "other.test"}]})
        self.assertEqual((await sb.info()).state, "running")
        self.assertTrue(await self.reaches(sb, "other.test"))
        self.assertTrue(await self.reaches(sb, "allowed.test"))


if __name__ == "__main__":
    unittest.main()
