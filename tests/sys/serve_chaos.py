# SPDX-License-Identifier: Apache-2.0
"""Calls of the SDK to a cluster (share/demo/world.py) while all that it is made
of is killed, cut off or replaced; sandboxes go on (field report 52).
CHAOS_CALLS: how many calls."""
import asyncio
import atexit
import json
import os
import signal
import time
import unittest
from collections import Counter

from dsec import DSecClient, DSecRunArgs, RetryPolicy
from dsec.errors import ConnectionLost, DSecError, NotFound
from world import World, stop_by_signal, wait_until

CALLS = int(os.environ.get("CHAOS_CALLS", "300"))
BRIEF = CALLS < 1000
JOBS_AT_ONCE = 8
CALLS_OF_A_JOB = 14
HELPERS = (("dsec-run",), ("dsec-exec",), ("dsec-pause",), ("dsec-fork",),
           ("dsec-net",), ("dsec-ps", "--wait"), ("dsec-img",),
           ("dsec-admit",))
BOX = {"memory_limit_mb": 32, "cpu_cores_limit": 0.1, "pids_limit": 64}

world = None


def setUpModule():
    """One cluster for all that is run in this process."""
    global world
    if world is not None:
        return
    stop_by_signal()
    world = World(nodes=4, controls=2)
    atexit.register(world.tidy)
    world.__enter__()
    wait_until("controls see all nodes", 60, lambda: all(
        c.counted("dsec_node_state", state="live") == 4
        for c in world.controls))


async def until(what, seconds, test):
    """The first true answer of test()."""
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        found = test()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        if began > end:
            raise AssertionError(f"{what}: not within {seconds} s")
        await asyncio.sleep(0.02)


def is_there(pid):
    """A process that has not ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def client(**how):
    return DSecClient(config=world.client, timeout=180, retry=RetryPolicy(
        lost_s=90, capacity_s=90, max_delay=2), **how)


class Killer:
    """What is done to the cluster, and how often it was."""

    def __init__(self):
        self.done = Counter()
        self.turn = 0

    def node(self):
        """Each in turn."""
        self.turn += 1
        return world.nodes[self.turn % len(world.nodes)]

    async def kill(self, name, find):
        """SIGKILL to the process that find() tells; it must have been there,
        and be gone then."""
        pid = await until(f"{name} runs", 30, find)
        os.kill(pid, signal.SIGKILL)
        await until(f"{name} ends", 10, lambda: not is_there(pid))
        self.done[name] += 1

    async def part(self, role):
        node = self.node()
        await self.kill(role, lambda: node.part(role))

    async def helper(self, words):
        """On whichever node it has been needed."""
        self.turn += 1
        order = world.nodes[self.turn % 4:] + world.nodes[:self.turn % 4]
        await self.kill(" ".join(words), lambda: next(
            filter(None, (n.helper(*words) for n in order)), 0))

    async def placer(self):
        self.turn += 1
        control = world.controls[self.turn % 2]
        await self.kill("dsec-place", lambda: control.helper("dsec-place"))

    async def daemon(self, member):
        """With the init system that starts it again."""
        name = "control" if member.role == "control" else "starter"
        pid = member.process.pid
        assert is_there(pid)
        member.kill()
        assert not is_there(pid)
        self.done[name] += 1
        member.start()

    async def control(self):
        self.turn += 1
        await self.daemon(world.controls[self.turn % 2])

    async def starter(self):
        await self.daemon(self.node())

    async def upgrade(self, by_signal):
        node = self.node()
        before = generation(node)
        if by_signal:
            os.kill(node.process.pid, signal.SIGUSR2)
        else:
            node.program("dsec-serve", "node", node.dir, "--upgrade")
        await until("the upgrade", 20, lambda: generation(node) > before)
        self.done["upgrade"] += 1

    async def partition(self, seconds):
        node = self.node()
        node.link(False)
        await asyncio.sleep(seconds)
        node.link(True)
        self.done["partition"] += 1

    def plan(self, rounds):
        """All of it, so often."""
        once = [lambda w=w: self.helper(w) for w in HELPERS]
        once[1:1] = [self.control, lambda: self.part("worker"), self.starter]
        once[6:6] = [self.control, lambda: self.part("keeper"), self.placer]
        once[11:11] = [lambda: self.upgrade(True), self.control,
                       lambda: self.part("worker")]
        once += [lambda: self.upgrade(False), lambda: self.part("keeper"),
                 self.starter, lambda: self.partition(7 if BRIEF else 13)]
        return once * rounds


def generation(node):
    path = os.path.join(node.env["DSEC_RUN"], "serve", "node.lock")
    with open(path, encoding="utf-8") as f:
        try:
            return json.load(f)["generation"]
        except ValueError:
            return -1  # it is being written


class Calls:
    """Jobs of many calls each, every answer of which is looked at."""

    def __init__(self, dsec):
        self.dsec = dsec
        self.done = Counter()
        self.failed = []
        self.forks = 0

    @property
    def count(self):
        return sum(self.done.values())

    async def call(self, kind, work):
        try:
            return await work
        except Exception as e:
            self.failed.append(f"{kind}: {type(e).__name__}: {e}")
            raise
        finally:
            self.done[kind] += 1

    def same(self, got, want, what):
        if got != want:
            self.failed.append(f"{what}: {got!r:.200} is not {want!r:.200}")

    async def command(self, sb, token, number):
        """It leaves its token in the sandbox, and says so much."""
        r = await self.call("exec", sb.run(
            ["sh", "-c", 'echo "$0" >>/tmp/ran; seq "$1"; echo "$0" >&2; '
             'exit "$2"', token, str(number), str(number % 7)]))
        want = "".join(f"{i + 1}\n" for i in range(number))
        self.same((r.stdout, r.stderr, r.exit_code),
                  (want, token + "\n", number % 7), f"command {token}")

    async def follow(self, sb, token):
        """Its output as it comes, and its input as it goes."""
        p = await self.call("start", sb.start(
            ["sh", "-c", 'echo "$0" >>/tmp/ran; i=0; while [ $i -lt 40 ]; do '
             'echo line $i; i=$((i+1)); sleep 0.02; done', token]))
        data = await self.call("stream", p.stdout.read_all())
        self.same(data.decode(), "".join(f"line {i}\n" for i in range(40)),
                  f"stream {token}")
        r = await self.call("end", p.wait())
        self.same(r.exit_code, 0, f"end {token}")

    async def feed(self, sb, token):
        text = "".join(f"{token} {i}\n" for i in range(2000))
        r = await self.call("input", sb.run(["cat"], stdin=text))
        self.same(r.stdout, text, f"input {token}")

    async def files(self, sb, token):
        text = token * 1000
        await self.call("write", sb.files.write("/tmp/f", text))
        self.same(await self.call("read", sb.files.read_text("/tmp/f")), text,
                  f"file {token}")
        await self.call("remove", sb.files.remove("/tmp/f"))
        self.same(await self.call("list", sb.files.exists("/tmp/f")), False,
                  f"removed {token}")

    async def pause(self, sb, _token):
        await self.call("pause", sb.pause("freeze"))
        await self.call("resume", sb.resume())

    async def fork(self, sb, token):
        copy, = await self.call("fork", sb.fork(1, fs_only=True,
                                                task="copies"))
        self.forks += 1
        r = await self.call("exec", copy.run(["cat", "/tmp/ran"]))
        self.same(token.split(".")[0] in r.stdout, True, f"copy of {token}")
        await self.call("stop", copy.stop(grace=0))

    async def others(self, sb, _token):
        """Of the node's other programs, each."""
        await self.call("net", sb.network.show())
        await self.call("img", self.images())

    async def images(self):
        """There is none, and the program says so.  A request as it is has no
        key, so that its caller decides whether it is made again."""
        while True:
            try:
                return await self.dsec.request("img", op="ls")
            except NotFound as e:
                return self.same(e.code, "image_unknown", "images")
            except ConnectionLost:
                pass

    async def job(self, number):
        sb = await self.call("create", self.dsec.run_sandbox(DSecRunArgs(
            task="chaos", labels={"job": str(number)}, **BOX)))
        end = asyncio.ensure_future(self.call("wait", sb.wait(170)))
        tokens = [f"{number}.{i}" for i in range(5)]
        for i in range(3):
            await self.command(sb, tokens[i], 50 + 997 * (number + i) % 3000)
        await (self.follow, self.feed)[number % 2](sb, tokens[3])
        await self.files(sb, tokens[0])
        await (self.pause, self.fork)[number // 2 % 2](sb, tokens[0])
        await self.others(sb, tokens[0])
        want = tokens[:3] + ([] if number % 2 else tokens[3:4])
        ran = await self.call("read", sb.files.read_text("/tmp/ran"))
        self.same(ran.split(), want, f"commands of job {number}, once each")
        await self.call("stop", sb.stop(grace=0))
        await end

    async def all(self, jobs):
        gate = asyncio.Semaphore(JOBS_AT_ONCE)

        async def one(number):
            async with gate:
                try:
                    await self.job(number)
                except DSecError:
                    pass  # it has been counted
        await asyncio.gather(*(one(i) for i in range(jobs)))


class Chaos(unittest.IsolatedAsyncioTestCase):
    maxDiff = None

    async def asyncSetUp(self):
        asyncio.get_running_loop().slow_callback_duration = 60
        self.dsec = await client().open()

    async def asyncTearDown(self):
        await self.dsec.close()

    async def test_1_calls(self):
        """no call fails, acts twice or loses output, whatever is killed"""
        calls, killer = Calls(self.dsec), Killer()
        jobs = max(1, CALLS // CALLS_OF_A_JOB)
        plan = killer.plan(max(1, CALLS // 1300))
        work = asyncio.ensure_future(calls.all(jobs))
        try:
            for n, deed in enumerate(plan, 1):
                while (calls.count < CALLS * n // (len(plan) + 2)
                       and not work.done()):
                    await asyncio.sleep(0.01)
                self.assertFalse(work.done(), f"the calls were too few: "
                                 f"{calls.count}, {calls.failed}")
                await deed()
            await work
        finally:
            work.cancel()
            print(f"# {calls.count} calls: {dict(calls.done)}")
            print(f"# done to them: {dict(killer.done)}")
            for line in calls.failed[:20]:
                print(f"# {line}")
        self.assertEqual(calls.failed, [])
        self.assertGreaterEqual(calls.count, CALLS * 9 // 10)
        for words in HELPERS:
            self.assertGreaterEqual(killer.done[" ".join(words)], 1)
        for name in ("control", "worker", "keeper", "starter", "dsec-place",
                     "upgrade", "partition"):
            self.assertGreaterEqual(killer.done[name], 1, name)
        await self.judge(jobs, calls.forks)

    async def judge(self, jobs, forks):
        """What was made: one for each key; nothing of it is left."""
        made = Counter()
        for node in world.nodes:
            for r in node.program("dsec-ps", "--all"):
                made[(r.get("task"), r.get("labels", {}).get("job"))] += 1
        twice = {k: v for k, v in made.items()
                 if v > 1 and k[0] == "chaos"}
        self.assertEqual(twice, {}, "sandboxes that were made twice")
        self.assertEqual(sum(k[0] == "chaos" for k in made), jobs)
        for node in world.nodes:
            log = os.path.join(node.env["DSEC_LIB"], "serve", "audit.jsonl")
            said = node.program("dsec-serve", "audit", "verify", log)
            self.assertTrue(said[0]["ok"], said)
        left = [r for n in world.nodes for r in n.program("dsec-ps")]
        self.assertEqual([r for r in left if r.get("task") == "copies"], [],
                         "copies that were made twice")
        await until("all have ended", 30, lambda: not any(
            n.live() for n in world.nodes))
        await until("claims are given back", 30, lambda: not any(
            any(n.report()["held"].values()) for n in world.nodes))


if __name__ == "__main__":
    unittest.main()
