# SPDX-License-Identifier: Apache-2.0
"""The client against real sandboxes.  tests/sys/sdk-local.t makes the tree that
they live in; tests/sys/sdk-remote.t puts dsec-serve between, whose client.json
is $SDK_REMOTE then."""
import asyncio
import os
import re
import signal
import socket
import tempfile
import time
import unittest
import urllib.request

import dsec
from dsec import ContainerArgs, DSecClient, DSecRunArgs

MB = 1 << 20
REMOTE = os.environ.get("SDK_REMOTE")
HOW = {"config": REMOTE} if REMOTE else {"local": True}


def local_only(test):
    """Of a local client alone."""
    return None if REMOTE else test


def small(**more):
    return DSecRunArgs(**{"memory_limit_mb": 64, "cpu_cores_limit": 0.2,
                          "ttl_absolute": 600, **more})


class Live(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        asyncio.get_running_loop().slow_callback_duration = 5
        self.client = await DSecClient(timeout=60, **HOW).open()
        self.made = []

    async def asyncTearDown(self):
        for sb in self.made:
            await sb.stop(grace=0)
        await self.client.close()

    async def box(self, **more):
        sb = await self.client.run_sandbox(small(**more))
        self.made.append(sb)
        return sb


class Commands(Live):
    async def test_run(self):
        """commands: output, status, arguments as they are, environment"""
        sb = await self.box()
        self.assertEqual((await sb.run_shell("echo $((6*7))")).stdout, "42\n")
        r = await sb.run(["printf", "%s|", "a b", "$x", "'\""])
        self.assertEqual(r.stdout, "a b|$x|'\"|")
        r = await sb.run_shell("echo $A; pwd; exit 3", env={"A": "b"},
                               cwd="/tmp")
        self.assertEqual((r.stdout, r.exit_code, r.ok), ("b\n/tmp\n", 3,
                                                         False))
        with self.assertRaises(dsec.CommandFailed) as e:
            r.check()
        self.assertEqual((e.exception.infra, e.exception.result), (False, r))
        r = await sb.run(["printf", r"\377\376"])
        self.assertEqual(r.stdout_bytes, b"\xff\xfe")

    async def test_stdin(self):
        """standard input of 3 MiB, more than a pipe holds, and none"""
        sb = await self.box()
        data = os.urandom(3 * MB)
        r = await sb.run(["wc", "-c"], stdin=data)
        self.assertEqual(r.stdout.strip(), str(len(data)))
        self.assertEqual((await sb.run(["cat"], stdin="")).stdout, "")
        r = await sb.run(["true"], stdin=data)
        self.assertTrue(r.ok)
        r = await sb.run(["wc", "-c"], stdin="\x01" * 300000)
        self.assertEqual(r.stdout.strip(), "300000")

    async def test_many_at_once(self):
        """60 commands at once through one program"""
        sb = await self.box(cpu_cores_limit=1)
        rs = await asyncio.gather(*(sb.run(["echo", str(i)])
                                    for i in range(60)))
        self.assertEqual([r.stdout for r in rs],
                         [f"{i}\n" for i in range(60)])

    async def test_named(self):
        """what a node cannot do is refused by name"""
        for args in (dsec.MicroVMArgs(), dsec.VMArgs(),
                     DSecRunArgs(backend="microvm")):
            with self.assertRaises(dsec.DSecError) as e:
                await self.client.run_sandbox(args)
            # A control knows no more than that no node has that backend.
            self.assertRegex(str(e.exception),
                             args.backend_name() + "|1 backend")
        with self.assertRaises(dsec.BadRequest) as e:
            await self.client.run_sandbox(small(extra={"colour": "red"}))
        self.assertEqual(e.exception.code, "unknown_field")
        self.assertIn("colour", str(e.exception))
        with self.assertRaises(dsec.NotFound):
            await self.client.run_sandbox(small(image="root/none:1"))
        with self.assertRaises(dsec.NotFound):
            await self.client.get("nobody")
        sb = await self.box()
        with self.assertRaises(dsec.CommandNotStarted):
            await sb.run(["no-such-program"])

    async def test_cancel(self):
        """a cancelled call's command is killed, a cancelled launch leaves none"""
        sb = await self.box()
        task = asyncio.ensure_future(sb.run(["sleep", "987"]))
        while not any(c.running for c in await sb.processes()):
            await asyncio.sleep(0.01)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        end = time.monotonic() + 10
        while any(c.running for c in await sb.processes()):
            self.assertLess(time.monotonic(), end)
            await asyncio.sleep(0.01)
        outcome = (await sb.processes())[-1].outcome
        self.assertEqual(outcome, "killed")
        before = {i.sandbox for i in await self.client.sandboxes()}
        for delay in (0, 0.002, 0.005, 0.01, 0.02, 0.05):
            task = asyncio.ensure_future(self.client.run_sandbox(small()))
            await asyncio.sleep(delay)
            task.cancel()
            try:
                self.made.append(await task)
                before.add(self.made[-1].id)
            except asyncio.CancelledError:
                pass
        end = time.monotonic() + 20
        while {i.sandbox for i in await self.client.sandboxes()} - before:
            self.assertLess(time.monotonic(), end)
            await asyncio.sleep(0.05)

    async def test_deadline(self):
        """a deadline ends a call and its command"""
        sb = await self.box()
        with self.assertRaises(dsec.DeadlineExceeded):
            await sb.run(["sleep", "60"], deadline=0.3)
        self.assertFalse(any(c.running for c in await sb.processes()))

    @local_only
    async def test_program_dies(self):
        """a killed program is started anew; what ran is not run twice"""
        sb = await self.box()
        await sb.run(["true"])
        transport = self.client._core.transport
        task = asyncio.ensure_future(sb.run_shell(
            "echo x >>/tmp/runs; sleep 1; wc -l </tmp/runs"))
        while not await sb.files.exists("/tmp/runs"):
            await asyncio.sleep(0.02)
        os.kill(transport.pids()["exec"], signal.SIGKILL)
        r = await task
        self.assertEqual(r.stdout.strip(), "1")
        self.assertTrue(r.repeated)
        os.kill(transport.pids()["run"], signal.SIGKILL)
        other = await self.box()
        self.assertTrue((await other.run(["true"])).ok)

    async def test_steps(self):
        """a repeated step answers its record and runs nothing"""
        sb = await self.box()
        for _ in range(2):
            r = await sb.run_shell("echo x >>/tmp/n; wc -l </tmp/n", step=1)
            self.assertEqual(r.stdout.strip(), "1")
        self.assertTrue(r.repeated)

    async def test_session(self):
        """a session keeps directory and variables"""
        sb = await self.box()
        async with await sb.session(env={"A": "1"}) as s:
            await s.run("cd /tmp; B=2; f() { echo $A$B; }")
            self.assertEqual((await s.run("pwd; f")).stdout, "/tmp\n12\n")
            with self.assertRaises(dsec.CommandTimeout):
                await s.run("sleep 60", timeout=0.2, grace=0, check=True)
        with self.assertRaises(dsec.NotFound):
            await s.run("true")


class Streams(Live):
    async def test_follow(self):
        """output comes as it is written, on both streams"""
        sb = await self.box()
        async with await sb.start(
                "echo one; echo two >&2; read x; echo got $x",
                stdin=True) as p:
            self.assertEqual(await p.stdout.readline(), b"one\n")
            self.assertEqual(await p.stderr.readline(), b"two\n")
            await p.write("hello\n")
            self.assertEqual(await p.stdout.readline(), b"got hello\n")
            r = await p.wait(30)
        self.assertEqual((r.outcome, r.exit_code, r.stdout, r.stderr),
                         ("exited", 0, "one\ngot hello\n", "two\n"))
        chunks = [c async for c in sb.stream("echo a; echo b >&2")]
        self.assertEqual({(c.stream, c.text) for c in chunks},
                         {("stdout", "a\n"), ("stderr", "b\n")})
        with self.assertRaises(dsec.CommandFailed):
            async for _ in sb.stream("exit 4"):
                pass

    async def test_big(self):
        """48 MiB arrive whole, and a slow reader loses nothing"""
        sb = await self.box(cpu_cores_limit=1)
        n = 48 * MB
        async with await sb.start(["head", "-c", str(n), "/dev/zero"]) as p:
            got = 0
            await asyncio.sleep(0.3)
            async for data in p.stdout:
                got += len(data)
            self.assertTrue((await p.wait()).ok)
        self.assertEqual((got, p.stdout.lost_bytes), (n, 0))

    async def test_attach(self):
        """a command is taken up again, with all that it wrote"""
        sb = await self.box()
        p = await sb.start("i=0; while [ $i -lt 2000 ]; do echo $i; "
                           "i=$((i+1)); done; read x; echo end", stdin=False)
        await p.detach()
        q = await sb.attach(p.exec_id)
        text = await q.stdout.read_all()
        self.assertEqual(text.decode().split("\n")[:-1],
                         [str(i) for i in range(2000)] + ["end"])
        self.assertTrue((await q.wait(30)).ok)
        # One that has ended is shown in the same way.
        q = await sb.attach(p.exec_id)
        self.assertEqual(await q.stdout.read_all(), text)
        await q.detach()
        logs = b"".join([d async for d in sb.logs(p.exec_id)])
        self.assertEqual(logs, text)
        with self.assertRaises(dsec.NotFound):
            await sb.attach("e999")

    @local_only
    async def test_broken(self):
        """a connection that breaks in the middle loses no byte"""
        sb = await self.box()
        p = await sb.start("i=0; while [ $i -lt 300 ]; do echo $i; "
                           "i=$((i+1)); [ $((i % 100)) != 0 ] || sleep 0.3; "
                           "done")
        lines = [await p.stdout.readline() for _ in range(50)]
        p._channel._ctl._sock.shutdown(2)
        for t in p._channel._transports:
            t.close()
        p._channel._readers["stdout"].set_exception(
            dsec._transport.Lost("cut by the test"))
        lines += [x + b"\n" for x in
                  (await p.stdout.read_all()).split(b"\n")[:-1]]
        self.assertEqual(lines, [b"%d\n" % i for i in range(300)])
        self.assertTrue((await p.wait(30)).ok)
        self.assertEqual(p.reconnects, 1)

    async def test_pty(self):
        """a terminal: its size, its echo, its end"""
        sb = await self.box()
        async with await sb.pty(["/bin/sh"], rows=30, cols=90) as p:
            await p.write("stty size; tty >/dev/null && echo is-$((1+1))\n")
            seen = b""
            while b"is-2" not in seen:
                data = await p.stdout.read()
                self.assertTrue(data, seen)
                seen += data
            self.assertIn(b"30 90", seen)
            await p.resize(40, 100)
            await p.write("stty size; exit 5\n")
            seen = await p.stdout.read_all()
            self.assertIn(b"40 100", seen)
            self.assertEqual((await p.wait(30)).exit_code, 5)

    @local_only
    async def test_lost_start(self):
        """a start whose answer was lost is found by its key, and followed"""
        sb = await self.box()
        core, both = self.client._core, ("stdout", "stderr")
        fields = {"op": "exec", "sandbox": sb.id, "key": "lost-start",
                  "command": "echo x >>/tmp/n; sleep 0.3; cat /tmp/n"}
        first = await core.transport.channel(fields, both)
        await first.close()
        again = await dsec.process._join(core, fields, both)
        self.assertEqual(again.exec_id, first.exec_id)
        await again.close()
        p = await sb.attach(first.exec_id)
        self.assertEqual(await p.stdout.read_all(), b"x\n")
        await p.detach()
        # Over a network every start goes that way, input too.
        core.transport.direct = False
        async with await sb.start("while read x; do echo got $x; done; exit 3",
                                  stdin=True) as p:
            await p.write("one\n")
            self.assertEqual(await p.stdout.readline(), b"got one\n")
            await p.write("two\n")
            await p.close_stdin()
            self.assertEqual(await p.stdout.read_all(), b"got two\n")
            self.assertEqual((await p.wait(30)).exit_code, 3)
            with self.assertRaises(BrokenPipeError):
                await p.write("three")
        async with await sb.pty() as p:
            await p.write("echo $((40+2)); exit\n")
            self.assertIn(b"42", await p.stdout.read_all())

    async def test_leave_kills(self):
        """leaving a block ends its command; detach() does not"""
        sb = await self.box()
        async with await sb.start(["sleep", "600"]) as p:
            pass
        r = await (await sb.attach(p.exec_id)).wait(30)
        self.assertIn(r.outcome, ("killed", "signalled"))
        async with await sb.start(["sleep", "600"]) as p:
            with self.assertRaises(dsec.DeadlineExceeded):
                await p.wait(0.1)
            await p.signal("TERM")
            self.assertEqual((await p.wait(30)).signal, "SIGTERM")


class FilesTest(Live):
    async def test_files(self):
        """write, read, list, stat, move, remove, odd names, large files"""
        sb = await self.box()
        f = sb.files
        await f.write("/tmp/a/b", "text", parents=True, mode=0o600)
        self.assertEqual(await f.read_text("/tmp/a/b"), "text")
        self.assertEqual((await f.stat("/tmp/a/b")).mode, "0600")
        await f.write(b"/tmp/a/\xff", b"\x00\xff")
        self.assertEqual(await f.read(b"/tmp/a/\xff"), b"\x00\xff")
        self.assertEqual([e.name for e in await f.list("/tmp/a")],
                         ["b", "\udcff"])
        self.assertEqual(await f.read("/tmp/a/\udcff"), b"\x00\xff")
        await f.move("/tmp/a/b", "/tmp/a/c")
        self.assertFalse(await f.exists("/tmp/a/b"))
        self.assertFalse(await f.exists("/tmp/a/c/d"))
        with self.assertRaises(dsec.NotFound):
            await f.read("/tmp/none")
        with self.assertRaises(dsec.FileError):
            await f.read("/tmp")
        with self.assertRaises(dsec.AlreadyExists):
            await f.mkdir("/tmp/a")
        for text in ("\x01" * 380000, "\\\"" * 190000):
            await f.write("/tmp/odd", text)
            self.assertTrue(await f.read_text("/tmp/odd") == text)
        data = os.urandom(5 * MB + 17)
        await f.write("/tmp/large", data, mode=0o640)
        self.assertEqual(await f.read("/tmp/large"), data)
        self.assertEqual((await f.stat("/tmp/large")).mode, "0640")
        self.assertEqual(await f.read("/tmp/large", offset=MB, limit=700000),
                         data[MB:MB + 700000])
        await f.write("/tmp/empty", b"")
        self.assertEqual(await f.read("/tmp/empty"), b"")
        await f.remove("/tmp/a", recursive=True)
        self.assertFalse(await f.exists("/tmp/a"))

    async def test_trees(self):
        """trees in and out"""
        sb = await self.box()
        with tempfile.TemporaryDirectory() as t:
            os.makedirs(t + "/in/deep")
            with open(t + "/in/deep/x", "w") as f:
                f.write("x")
            os.symlink("deep/x", t + "/in/link")
            await sb.files.upload(t + "/in", "/tmp/tree")
            await sb.files.download("/tmp/tree", t + "/out")
            with open(t + "/out/deep/x") as f:
                self.assertEqual(f.read(), "x")
            self.assertEqual(os.readlink(t + "/out/link"), "deep/x")

    async def test_watch(self):
        """changes are told as they happen"""
        began = time.monotonic()
        sb = await self.box()
        seen = []
        async for event in sb.files.watch("/tmp", timeout=30):
            seen.append((event.event, event.name))
            if event.event == "watching":
                await sb.files.write("/tmp/new", "1")
            elif "new" in (event.name, event.to):
                break
        self.assertIn(seen[-1][0], ("created", "moved"))
        self.assertLess(time.monotonic() - began, 25)


class Life(Live):
    async def test_pause(self):
        """pause, resume, resumed by use, stop, wait, how it ended"""
        sb = await self.box(name="sdk-life", labels={"a": "b"})
        self.assertEqual((await self.client.get("sdk-life")).id, sb.id)
        r = await sb.pause("freeze")
        self.assertEqual((r.state, r.level), ("paused", "freeze"))
        self.assertEqual((await sb.info()).state, "paused")
        self.assertTrue((await sb.run(["true"])).ok)
        self.assertEqual((await sb.info()).state, "running")
        await sb.pause()
        self.assertEqual((await sb.resume()).state, "running")
        waiting = asyncio.ensure_future(sb.wait(30))
        r = await sb.stop(grace=0)
        self.assertEqual(r.state, "stopped")
        self.assertEqual(((await waiting).outcome, (await waiting).infra),
                         ("killed", False))
        with self.assertRaises(dsec.SandboxStopped) as e:
            await sb.run(["true"])
        self.assertNotIsInstance(e.exception, dsec.SandboxDied)
        self.assertFalse(e.exception.infra)
        with self.assertRaises(dsec.DeadlineExceeded):
            await (await self.box()).wait(0.2)

    async def test_task(self):
        """task and project operations: a result per sandbox"""
        boxes = await asyncio.gather(*(
            self.box(task="sdk-job", project="root/sdk/a") for _ in range(3)))
        other = await self.box(task="sdk-other")
        ids = {b.id for b in boxes}
        r = await self.client.pause_task("sdk-job", "freeze")
        self.assertEqual(set(r.check().sandboxes()), ids)
        states = {i.sandbox: i.state for i in await self.client.sandboxes()}
        self.assertEqual({states[i] for i in ids}, {"paused"})
        self.assertEqual(states[other.id], "running")
        self.assertEqual(len(await self.client.resume_project("root/sdk")), 3)
        self.assertEqual(len(await self.client.sandboxes(task="sdk-job",
                                                         stats=True)), 3)
        r = await self.client.stop_task("sdk-job", grace=0)
        self.assertEqual(set(r.sandboxes()), ids)
        self.assertEqual(await self.client.pause_task("sdk-none"), [])
        with self.assertRaises(dsec.BadRequest):
            await self.client.stop()

    async def test_many(self):
        """run_many: bounded, lazy, failures are results, nothing stays"""
        running, most, taken = 0, 0, 0

        def specs():
            nonlocal taken
            for i in range(10):
                taken += 1
                yield small(image="root/none:1" if i == 4 else None)

        async def work(sb):
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                r = await sb.run(["echo", "x"])
                return r.stdout
            finally:
                running -= 1

        results = []
        async for r in self.client.run_many(specs(), work, concurrency=3):
            results.append(r)
            self.assertLessEqual(taken, len(results) + 3)
        self.assertEqual(sorted(r.index for r in results), list(range(10)))
        self.assertEqual({r.index for r in results if not r.ok}, {4})
        self.assertEqual({r.value for r in results if r.ok}, {"x\n"})
        self.assertLessEqual(most, 3)
        async for r in self.client.run_many([small(), small()]):
            self.made.append(r.value)
            self.assertTrue((await r.value.run(["true"])).ok)

    async def test_capacity(self):
        """no room is a CapacityError that says whether waiting helps"""
        huge = small(memory_limit_mb=16000000)
        with self.assertRaises(dsec.CapacityError) as e:
            await self.client.run_sandbox(huge)
        self.assertEqual(e.exception.code, "memory")
        self.assertTrue(e.exception.infra)
        # More than the node has: waiting is of no use, and it says so.
        self.assertFalse(e.exception.retry)

    async def test_request(self):
        """requests that have no method of their own"""
        report = await self.client.request("report")
        self.assertIn("memory_mb", str(report))
        with self.assertRaises(dsec.NotFound) as e:
            await self.client.request("img", op="inspect", name="root/no:1")
        self.assertEqual(e.exception.code, "image_unknown")
        with self.assertRaises(dsec.DSecError):
            await self.client.request("no-such-program")

    async def test_one_shot(self):
        """one command in a sandbox that is gone afterwards"""
        r = await self.client.run_once(small(command="echo $((1+2))"))
        self.assertEqual(r.stdout, "3\n")

    async def test_container_args(self):
        """arguments of containers: limits that can be seen inside"""
        sb = await self.client.run_sandbox(ContainerArgs(
            memory_limit_mb=64, pids_limit=77, shm_mb=8, hostname="sdk",
            env={"A": "b"}, command="echo first; sleep 600"))
        self.made.append(sb)
        r = await sb.run_shell("hostname; echo $A; df -m /dev/shm | "
                               "awk 'END { print $2 }'")
        self.assertEqual(r.stdout, "sdk\nb\n8\n")
        async for data in sb.logs(follow=True):
            self.assertEqual(data, b"first\n")
            break
        self.assertTrue([c for c in await sb.processes()
                         if c.exec_id == "e0" and c.running])


class Ports(Live):
    SERVER = ("import socket\ns=socket.socket()\n"
              "s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1)\n"
              "s.bind(('127.0.0.1',7000))\ns.listen(8)\nprint('up',flush=True)\n"
              "while 1:\n c,_=s.accept()\n"
              " while 1:\n  d=c.recv(65536)\n  if not d: break\n"
              "  c.sendall(d.upper())\n c.close()\n")

    async def test_ports(self):
        """a connection to a port inside, and a forwarded one"""
        sb = await self.box()
        with self.assertRaises(dsec.NotFound):
            await sb.connect(7000)
        async with await sb.start(["python3", "-c", self.SERVER]) as p:
            self.assertEqual(await p.stdout.readline(), b"up\n")
            reader, writer = await sb.connect(7000)
            writer.write(b"abc")
            self.assertEqual(await reader.readexactly(3), b"ABC")
            writer.write_eof()
            self.assertEqual(await reader.read(), b"")
            writer.close()
            async with await sb.forward(7000) as f:
                reader, writer = await asyncio.open_connection(f.host, f.port)
                writer.write(b"x" * MB)
                writer.write_eof()
                got = b""
                while True:
                    data = await reader.read(MB)
                    if not data:
                        break
                    got += data
                self.assertEqual(got, b"X" * MB)
                writer.close()

    async def test_http(self):
        """HTTP over the wire: through a connection, and a published port"""
        sb = await self.box(publish=["0:8000"], cpu_cores_limit=1)
        await sb.files.write("/tmp/www/page", "x" * 100000, parents=True)
        async with await sb.start(
                ["python3", "-u", "-m", "http.server", "8000", "--bind",
                 "127.0.0.1", "--protocol", "HTTP/1.1"], cwd="/tmp/www") as p:
            self.assertIn(b"Serving HTTP", await p.stdout.readline(timeout=60))
            reader, writer = await sb.connect(8000, timeout=20)
            for path, status in (("page", b"200"), ("page", b"200"),
                                 ("none", b"404")):  # and it is kept open
                writer.write(f"GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                self.assertEqual(head.split()[1], status)
                size = int(re.search(rb"(?i)content-length: (\d+)",
                                     head).group(1))
                body = await reader.readexactly(size)
                self.assertEqual(body == b"x" * 100000, path == "page")
            writer.close()
            port, = sb.published
            self.assertEqual(port["inner"], 8000)
            url = f"http://{port['address']}:{port['port']}/page"
            got = await asyncio.get_running_loop().run_in_executor(
                None, lambda: urllib.request.urlopen(url, timeout=20).read())
            self.assertEqual(len(got), 100000)


class Networks(Live):
    async def test_rules(self):
        """network rules are shown and explained"""
        sb = await self.box(network_rules={})
        shown = await sb.network.show()
        self.assertEqual(shown["network"], "none")
        told = await sb.network.explain("example.org:443")
        self.assertFalse(told["allowed"])
        with self.assertRaises(dsec.Unsupported):
            await sb.network.merge({"pypi": True})


class Sync(unittest.TestCase):
    def test_sync(self):
        """the same without asyncio: results, iterators, threads, errors"""
        from dsec.sync import DSecClient as SyncClient
        with SyncClient(timeout=60, **HOW) as client:
            with client.run_sandbox(small(task="sdk-sync")) as sb:
                self.assertEqual(sb.run_shell("echo 1").stdout, "1\n")
                sb.files.write("/tmp/a", "b")
                self.assertEqual(sb.files.read_text("/tmp/a"), "b")
                with sb.session() as s:
                    s.run("x=5")
                    self.assertEqual(s.run("echo $x").stdout, "5\n")
                self.assertEqual(
                    [c.text for c in sb.stream(["echo", "c"])], ["c\n"])
                with sb.start("read x; echo $x", stdin=True) as p:
                    with self.assertRaises(dsec.DeadlineExceeded):
                        p.stdout.readline(timeout=0.05)
                    p.write("y\n", timeout=20)
                    self.assertEqual(p.stdout.readline(), b"y\n")
                    self.assertEqual(list(p.stdout), [])
                    self.assertTrue(p.wait(20).ok)
                with self.assertRaises(dsec.CommandFailed):
                    sb.run(["false"], check=True)
                with self.assertRaises(dsec.NotFound):
                    client.get("nobody")
                client.pause_task("sdk-sync", "freeze").check()
                self.assertEqual(sb.info().state, "paused")
                copy, = sb.fork(fs_only=True)
                self.assertEqual(copy.files.read_text("/tmp/a"), "b")
                copy.stop(grace=0)
            results = list(client.run_many(
                [small() for _ in range(3)],
                lambda sb: sb.run(["echo", sb.id]).stdout.strip(),
                concurrency=2))
            self.assertEqual({r.value for r in results},
                             {r.sandbox for r in results})
            result, = client.run_many([small()])
            with result.value as sb:
                self.assertTrue(client.get(sb.id).run(["true"]).ok)
                self.assertTrue(client.sandbox(sb.id).run(["true"]).ok)
                self.assertEqual(sb.network.denied(), [])
                self.ports(sb)
        with self.assertRaises(RuntimeError):
            client.get("x")

    def ports(self, sb):
        with sb.start(["python3", "-c", Ports.SERVER]) as p:
            self.assertEqual(p.stdout.readline(timeout=60), b"up\n")
            with sb.connect(7000) as c:
                c.write(b"abc\n")
                self.assertEqual(c.readline(timeout=20), b"ABC\n")
                with self.assertRaises(dsec.DeadlineExceeded):
                    c.read(timeout=0.05)
                c.write(b"d")
                self.assertEqual(c.read(timeout=20), b"D")
                c.write_eof()
                self.assertEqual(c.read(timeout=20), b"")
            with sb.forward(7000) as f, socket.create_connection(
                    (f.host, f.port)) as s:
                s.sendall(b"x")
                self.assertEqual(s.recv(10), b"X")


if __name__ == "__main__":
    unittest.main()
