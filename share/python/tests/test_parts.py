# SPDX-License-Identifier: Apache-2.0
"""Errors, arguments, results and lines, without any server."""
import asyncio
import re
import unittest

import dsec
from dsec import _wire, errors, types
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
        with self.assertRaises(ValueError):
            dsec.ContainerArgs(name="a", extra={"name": "b"}).request()


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
        for bad in ("h:", "h:x", "h:0", "h:99999", "[::1]:"):
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
