# SPDX-License-Identifier: Apache-2.0
"""Errors, arguments, results and lines, without any server."""
import ast
import asyncio
import glob
import inspect
import os
import re
import time
import unittest

import dsec
from dsec import _core, _wire, errors, sync, types
from dsec._transport import Channel
from dsec.errors import error_of


def record(code, **more):
    return {"ok": False, "id": 1, "sandbox": "s",
            "error": {"code": code, "message": "m", **more}}


class Errors(unittest.TestCase):
    def test_kinds(self):
        """eight kinds are eight types with infra and retry (report 107)"""
        def ended(outcome, **more):
            return types.CommandResult.of(
                {"sandbox": "s", "outcome": outcome, **more}).error()
        kinds = [
            (ended("exited", exit_code=1), dsec.CommandFailed, False, False),
            (ended("timeout"), dsec.CommandTimeout, False, False),
            (ended("oom"), dsec.CommandOutOfMemory, False, False),
            (ended("died", infra=True), dsec.SandboxDied, True, True),
            (ended("node-lost", infra=True), dsec.NodeLost, True, True),
            (ended("quota"), dsec.QuotaExceeded, False, False),
            (ended("policy"), dsec.PolicyDenied, False, False),
            (error_of(record("bad_value")), dsec.BadRequest, False, False)]
        for error, cls, infra, retry in kinds:
            self.assertIs(type(error), cls)
            self.assertEqual((error.infra, error.retry), (infra, retry), cls)
        self.assertEqual(len({type(k[0]) for k in kinds}), 8)
        self.assertIsNone(ended("exited", exit_code=0))

    def test_table(self):
        """every code of PROTOCOL.md has its class"""
        try:
            with open("PROTOCOL.md") as f:
                text = f.read()
        except OSError:
            self.skipTest("PROTOCOL.md is not here")
        part = text[text.index("## 5. "):text.index("## 6. ")]
        codes = re.findall(r"^\| `([a-z_]+)` \| \d+ \|", part, re.M)
        self.assertGreater(len(codes), 50)
        self.assertEqual([c for c in codes if c not in errors._CLASSES], [])

    def test_record(self):
        """code, seconds, infra and record arrive; strange ones do no harm"""
        e = error_of(record("memory", retry_after_ms=1500))
        self.assertEqual((e.code, e.retry_after, e.sandbox), ("memory", 1.5,
                                                              "s"))
        e = error_of(record("new_code", retry_after_ms=10, infra=True))
        self.assertEqual((type(e), e.retry, e.infra), (dsec.DSecError, True,
                                                       True))
        for odd in ({}, {"error": 1}, {"error": {"retry_after_ms": "x"}},
                    {"error": {"retry_after_ms": True, "infra": 1}}):
            e = error_of(odd)
            self.assertEqual((e.code, e.retry_after), ("internal", None))
        self.assertIsInstance(error_of(record("stopped", infra=True)),
                              dsec.SandboxDied)
        self.assertNotIsInstance(error_of(record("stopped")), dsec.SandboxDied)


def public(cls):
    """The methods and properties that a class of ours has."""
    return {name: value for c in cls.__mro__ for name, value in vars(c).items()
            if c.__module__.startswith("dsec") and not name.startswith("_")}


def arguments(function):
    return [(p.name, p.kind, p.default)
            for p in inspect.signature(function).parameters.values()]


class Surface(unittest.TestCase):
    PAIRS = ["DSecClient", "Sandbox", "Session", "Files", "Network", "Process",
             "OutputStream", "Forward"]
    # Their length is what they are about, or is a total of such calls.
    NO_TIMEOUT = {"DSecClient.open", "DSecClient.close", "DSecClient.sandbox",
                  "Sandbox.forward", "Process.detach", "Process.close",
                  "Process.stream", "Forward.close"}

    def test_sync(self):
        """dsec.sync has every method of dsec, with the same arguments"""
        for name in self.PAIRS:
            one, other = getattr(dsec, name), getattr(sync, name)
            for attr, value in public(one).items():
                with self.subTest(f"{name}.{attr}"):
                    self.assertTrue(hasattr(other, attr))
                    mine = getattr(other, attr)
                    if not callable(value):
                        continue
                    self.assertEqual(arguments(value), arguments(mine))
                    self.assertFalse(inspect.iscoroutinefunction(mine))
                    self.assertFalse(inspect.isasyncgenfunction(mine))
            for attr, value in vars(sync).items():
                self.assertFalse(inspect.iscoroutinefunction(value), attr)
        self.assertEqual(arguments(dsec.DSecClient),
                         arguments(sync.DSecClient))

    def test_attributes(self):
        """and every attribute that its objects are made with"""
        for name in self.PAIRS:
            text = inspect.getsource(getattr(dsec, name).__init__)
            for attr in re.findall(r"self\.([a-z]\w*)(?::[^=\n]*)? = ", text):
                made = inspect.getsource(getattr(sync, name))
                self.assertRegex(made, rf"def {attr}\(|self\.{attr} = ",
                                 f"{name}.{attr}")

    def test_timeouts(self):
        """whatever waits takes a timeout, a deadline, or has its own end"""
        for name in self.PAIRS:
            for attr, value in public(getattr(dsec, name)).items():
                if not (inspect.iscoroutinefunction(value)
                        or inspect.isasyncgenfunction(value)):
                    continue
                takes = {a[0] for a in arguments(value)}
                self.assertTrue(takes & {"timeout", "deadline"}
                                or f"{name}.{attr}" in self.NO_TIMEOUT,
                                f"{name}.{attr}")

    def test_documented(self):
        """every public class and method says what it does"""
        for module in (dsec, sync):
            for name in module.__all__:
                value = getattr(module, name)
                if not inspect.isclass(value):
                    continue
                self.assertTrue(value.__doc__, name)
                for attr, method in public(value).items():
                    if callable(method) and not isinstance(method, type):
                        self.assertTrue(
                            method.__doc__ or attr in ("close", "of", "check",
                                                       "backend_name"),
                            f"{name}.{attr}")


class Oldest(unittest.TestCase):
    """Python 3.9 is enough."""
    LATER = {
        "asyncio": {"timeout", "timeout_at", "TaskGroup", "Runner", "Barrier"},
        "typing": {"ParamSpec", "Concatenate", "TypeAlias", "TypeGuard",
                   "Self", "Never", "Unpack", "NotRequired", "Required",
                   "LiteralString", "assert_never", "override"},
        "itertools": {"pairwise", "batched"}, "datetime": {"UTC"},
        "enum": {"StrEnum"}, "types": {"NoneType", "UnionType"},
        "hashlib": {"file_digest"}, "inspect": {"get_annotations"},
        "builtins": {"aiter", "anext", "ExceptionGroup", "BaseExceptionGroup",
                     "EncodingWarning"},
        "tomllib": {"*"},
    }

    def problems(self, tree):
        modules = set(self.LATER)
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(
                    node.test):
                node.body = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                found = {a.name for a in node.names}
                yield from found & self.LATER[node.module]
            elif isinstance(node, ast.Import):
                yield from {a.name for a in node.names} & {"tomllib"}
            elif (isinstance(node, ast.Attribute)
                  and isinstance(node.value, ast.Name)
                  and node.attr in self.LATER.get(node.value.id, ())):
                yield f"{node.value.id}.{node.attr}"
            elif (isinstance(node, ast.Name)
                  and node.id in self.LATER["builtins"]):
                yield node.id
            elif isinstance(node, ast.keyword) and node.arg in (
                    "slots", "kw_only", "strict"):
                yield f"{node.arg}="

    def test_oldest(self):
        """syntax and library names of Python 3.9 alone"""
        here = os.path.dirname(dsec.__file__)
        names = (glob.glob(here + "/*.py")
                 + glob.glob(here + "/../examples/*.py"))
        self.assertGreater(len(names), 15)
        for name in names:
            with open(name, encoding="utf-8") as f:
                tree = ast.parse(f.read(), name, feature_version=(3, 9))
            self.assertIn("from __future__ import annotations"
                          if "/dsec/_" in name and "__init__" not in name
                          else "import", ast.unparse(tree))
            self.assertEqual(list(self.problems(tree)), [], name)
        bad = ast.parse("import asyncio\nasyncio.timeout(1)\nzip(strict=True)\n"
                        "from typing import Self\nanext(x)")
        self.assertEqual(len(list(self.problems(bad))), 4)


class Accumulation(unittest.TestCase):
    """Output in many small pieces (report 5)."""

    def cost(self, pieces):
        """Processor seconds for so many lines of 64 bytes, by each way of
        reading them."""
        class Source(Channel):
            offsets = {}

            def __init__(self):
                self.left = pieces

            async def read(self, stream):
                self.left -= 1
                return b"x" * 63 + b"\n" if self.left >= 0 else b""

            async def write(self, data):
                pass

            close_stdin = record = close = write

        async def main():
            ways = []
            for way in ("read_all", "readline"):
                p = dsec.Process(None, "s", Source(), ("stdout",), False, False)
                began = time.process_time()
                if way == "read_all":
                    size = len(await p.stdout.read_all())
                else:
                    size = 0
                    while True:
                        line = await p.stdout.readline()
                        if not line:
                            break
                        size += len(line)
                ways.append(time.process_time() - began)
                self.assertEqual((size, p.stdout.position),
                                 (64 * pieces, 64 * pieces))
                self.assertEqual(len(p.stdout.head), 64 * 1024)
            return ways
        return asyncio.run(main())

    def test_linear(self):
        """what reading costs grows with the output, not with its square (5)"""
        for one, eight in zip(self.cost(10000), self.cost(80000)):
            self.assertLess(eight, 24 * one)


class Args(unittest.TestCase):
    def test_request(self):
        """arguments become the fields of the request, the backend by name"""
        a = dsec.DSecRunArgs(image="root/py:3.12", cpu_cores_limit=1,
                             memory_limit_mb=1024, ttl_running_stop=300,
                             network_rules={"pypi": True}, layers=("a", "b"))
        self.assertEqual(a.request(), {
            "backend": "container", "image": "root/py:3.12",
            "cpu_cores_limit": 1, "memory_limit_mb": 1024,
            "ttl_running_stop": 300, "network_rules": {"pypi": True},
            "layers": ["a", "b"]})
        self.assertEqual(dsec.MicroVMArgs().request(), {"backend": "microvm"})
        self.assertEqual(dsec.VMArgs(extra={"x": 1}).request(),
                         {"backend": "vm", "x": 1})
        self.assertEqual(dsec.DSecRunArgs(backend="vm").request(),
                         {"backend": "vm"})
        self.assertEqual(dsec.DSecRunArgs(snapshot="s").request(),
                         {"snapshot": "s"})
        self.assertEqual(dsec.VMArgs(snapshot="s").request(),
                         {"snapshot": "s", "backend": "vm"})
        with self.assertRaises(ValueError):
            dsec.ContainerArgs(name="a", extra={"name": "b"}).request()

    def test_repr(self):
        """what is shown of them is what was given"""
        self.assertEqual(repr(dsec.DSecRunArgs(name="a", pids_limit=0)),
                         "DSecRunArgs(name='a', pids_limit=0, "
                         "backend='container')")
        self.assertEqual(repr(dsec.VMArgs()), "VMArgs()")


class Causes(unittest.TestCase):
    def test_files(self):
        """an error about a file or program names it"""
        here = os.path.abspath(__file__)
        for given, named in ((dict(ca="/nowhere/ca"), "/nowhere/ca"),
                             (dict(ca=here), here)):
            settings = {"addresses": "h:1", "certificate": "c.pem",
                        "key": "k.pem", **given}
            with self.assertRaisesRegex(dsec.BadRequest, named):
                dsec.DSecClient(**settings)
        with self.assertRaisesRegex(dsec.BadRequest, "no ca"):
            dsec.DSecClient(addresses="h:1", certificate="c", key="k")

        async def nowhere():
            async with dsec.DSecClient(local=True, bin_dir="/nowhere"):
                pass
        with self.assertRaisesRegex(dsec.NodeError, "dsec-run.*/nowhere"):
            asyncio.run(nowhere())

    def test_told(self):
        """who waits long for an answer is told why, once"""
        tell = _core.Core(None, _core.RetryPolicy(lost_s=20), 1, 1)._tell
        error = dsec.ConnectionLost("gone")
        with self.assertLogs("dsec", "WARNING") as logs:
            for until in range(101, 104):  # not at once
                tell(error, 100, until)
            for until in range(110, 129):  # of many calls
                for since in range(100, 104):
                    tell(error, since, until)
                    tell(dsec.Busy("much to do"), since, until)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("gone", logs.output[0])


class Lines(unittest.TestCase):
    def test_lines(self):
        """lines are checked both ways"""
        self.assertEqual(_wire.encode({"a": "ü"}), '{"a":"ü"}\n'.encode())
        for bad in ({"a": "\udc80"}, {"a": float("nan")}, {"a": b""},
                    {"a": "x" * (1 << 20)}):
            with self.assertRaises(dsec.BadRequest):
                _wire.encode(bad)
        for bad in (b"", b"[1]", b"1", b"{", b'{"a":NaN}', b"\xff",
                    b"[" * 200000):
            with self.assertRaises(dsec.ProtocolError):
                _wire.decode(bad)

    def test_bytes(self):
        """bytes are text or base64, and come back"""
        for value in (b"", b"text", b"\xff\x00", "ü", "\udcff"):
            got = types.bytes_of(types.bytes_field("x", value), "x")
            want = (value if isinstance(value, bytes)
                    else value.encode("utf-8", "surrogateescape"))
            self.assertEqual(got, want)
        self.assertEqual(types.bytes_of({"x_b64": "!"}, "x"), b"")

    def test_addresses(self):
        """HOST:PORT in its forms"""
        for text, want in (("h:1", ("h", 1)), ("h", ("h", 7443)),
                           ("[::1]:2", ("::1", 2)), ("[::1]", ("::1", 7443)),
                           ("::1", ("::1", 7443))):
            self.assertEqual(_wire.split_address(text), want)
        for bad in ("h:", "h:x", "h:0", "h:99999", "[::1]:",
                    "https://h:1"):
            with self.assertRaises(dsec.BadRequest):
                _wire.split_address(bad)

    def test_guard(self):
        """a guard ends what is late, and only that"""
        async def main():
            async with _wire.Guard(5):
                await asyncio.sleep(0)
            with self.assertRaises(dsec.DeadlineExceeded):
                async with _wire.Guard(0.01):
                    await asyncio.sleep(5)
            await asyncio.sleep(0)  # nothing is left of it

            async def outer():
                async with _wire.Guard(5):
                    await asyncio.sleep(5)
            task = asyncio.ensure_future(outer())
            await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
