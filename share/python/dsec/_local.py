# SPDX-License-Identifier: Apache-2.0
"""On this machine: the programs as long-lived filters, and the supervisors'
sockets (PROTOCOL.md section 6) for streams of bytes."""
from __future__ import annotations

import asyncio
import array
import logging
import os
import re
import shutil
import signal
import socket
from collections import deque
from typing import (Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence,
                    Set, Tuple)

from ._transport import Channel, Lost, Transport
from ._wire import (READ_LIMIT, WINDOW, Line, OnEvent, Pending, backoff, decode,
                    encode, one)
from .errors import DSecError, NodeError, Unsupported, error_of

log = logging.getLogger("dsec")

_ID = re.compile(r"[a-z2-7]{20}\Z")
_CLOSE_S = 5.0
_MSG_CMSG_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000)
# What a filter is started with, and how many requests it has at once.  One
# more than we ever give it, so that it reads the line of a cancel.
_CPUS = os.cpu_count() or 1
_FILTERS: Dict[str, Tuple[List[str], int]] = {
    "run": ([], max(4, 2 * _CPUS)),
    "one-shot": ([], 200),
    "exec": ([], 2000),
    "pause": ([], 500),
    "fork": ([], 64),
    "net": ([], 64),
    "img": ([], 16),
    "wait": (["--wait"], 4000),
}
_PROGRAM = {"one-shot": "run", "wait": "ps"}
_NO_JOBS = {"fork", "img", "wait"}


async def _end(proc: asyncio.subprocess.Process, grace: float) -> None:
    """Wait so many seconds for its end, then bring it about.

    Not by proc.kill(): that may reap it, and its watcher finds nothing.
    """
    for patience, what in ((grace, signal.SIGTERM), (1.0, signal.SIGKILL)):
        if proc.returncode is not None:
            return
        if patience > 0:
            await asyncio.wait([asyncio.ensure_future(proc.wait())],
                               timeout=patience)
        if proc.returncode is None:
            try:
                os.kill(proc.pid, what)
            except ProcessLookupError:
                pass
    await proc.wait()


class _Filter:
    """One program: started with the first request, and again when it died."""

    def __init__(self, name: str, path: str, env: Mapping[str, str]) -> None:
        args, self._most = _FILTERS[name]
        self._argv = [path] + args
        if name not in _NO_JOBS:
            self._argv += ["--jobs", str(self._most + 8)]
        self.name = name
        self._env = dict(env)
        self._proc: Optional[asyncio.subprocess.Process] = None
        self._tasks: Set["asyncio.Task[None]"] = set()
        self._pending: Dict[int, Pending] = {}
        self._next = 1
        self._slots = asyncio.Semaphore(self._most)
        self._starting = asyncio.Lock()
        self._closed = False
        self._deaths = 0
        self._stderr: Deque[str] = deque(maxlen=20)
        self.restarts = 0

    def orphans(self) -> int:
        return sum(p.abandoned for p in self._pending.values())

    @property
    def pid(self) -> Optional[int]:
        return self._proc.pid if self._proc is not None else None

    async def _start(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._closed:
                raise RuntimeError("the client is closed")
            if self._proc is not None:
                return self._proc
            if self._deaths:
                self.restarts += 1
                await asyncio.sleep(backoff(self._deaths, 0.02, 2.0))
            try:
                proc = await asyncio.create_subprocess_exec(
                    *self._argv, stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE, env=self._env,
                    limit=READ_LIMIT, start_new_session=True)
            except OSError as e:
                raise NodeError(f"cannot start {self._argv[0]}: {e.strerror}",
                                code="configuration") from None
            self._proc = proc
            for work in (self._read(proc), self._complain(proc)):
                task = asyncio.get_running_loop().create_task(work)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            return proc

    async def _complain(self, proc: asyncio.subprocess.Process) -> None:
        assert proc.stderr is not None
        while True:
            try:
                line = await proc.stderr.readline()
            except ValueError:
                continue  # longer than the limit: dropped
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            self._stderr.append(text)
            log.debug("%s: %s", self.name, text)

    async def _read(self, proc: asyncio.subprocess.Process) -> None:
        assert proc.stdout is not None
        why = "it ended"
        try:
            while True:
                line = await proc.stdout.readline()
                if not line:
                    break
                self._take(decode(line))
        except (DSecError, ValueError, ConnectionError) as e:
            why = str(e)
        finally:
            await self._dead(proc, why)

    def _take(self, line: Line) -> None:
        self._deaths = 0
        number = line.get("id")
        if not isinstance(number, int):
            return
        pending = self._pending.get(number)
        if pending is not None and pending.take(line):
            self._pending.pop(number, None)

    async def _dead(self, proc: asyncio.subprocess.Process, why: str) -> None:
        if self._proc is proc:
            self._proc = None
            self._deaths += 1
        lost, self._pending = self._pending, {}
        said = f": {self._stderr[-1]}" if self._stderr else ""
        for pending in lost.values():
            pending.lose(Lost(f"dsec-{self.name}: {why}{said}"))
        await _end(proc, 1.0)

    async def _send(self, proc: asyncio.subprocess.Process,
                    line: bytes) -> None:
        assert proc.stdin is not None
        try:
            proc.stdin.write(line)
            await proc.stdin.drain()
        except (ConnectionError, RuntimeError):
            pass  # the reader sees its end, and says so

    async def ask(self, fields: Line, on_event: Optional[OnEvent],
                  last: Callable[[List[Line]], bool],
                  orphan: Optional[OnEvent]) -> List[Line]:
        async with self._slots:
            proc = await self._start()
            number = self._next
            self._next += 1
            line = encode({"id": number, **fields})
            pending = Pending(last, on_event, orphan)
            self._pending[number] = pending
            kept = False
            try:
                await self._send(proc, line)
                if self._proc is not proc:
                    pending.lose(Lost(f"dsec-{self.name}: it ended"))
                return await pending.done
            except asyncio.CancelledError:
                self._cancel(proc, number)
                kept = pending.abandon() and number in self._pending
                raise
            finally:
                if not kept:
                    self._pending.pop(number, None)

    def _cancel(self, proc: asyncio.subprocess.Process, number: int) -> None:
        """Its answer, when it comes, is nobody's."""
        if self._proc is not proc or proc.stdin is None:
            return
        ask = self._next
        self._next += 1
        try:
            proc.stdin.write(encode({"id": ask, "cancel": number}))
        except (ConnectionError, RuntimeError):
            pass

    async def close(self) -> None:
        self._closed = True
        proc = self._proc
        if proc is not None:
            if proc.stdin is not None:
                proc.stdin.close()
            await _end(proc, _CLOSE_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Ctl:
    """A connection to a supervisor: one request, records, descriptors."""

    def __init__(self, path: str) -> None:
        self._sock = socket.socket(socket.AF_UNIX,
                                   socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._sock.setblocking(False)
        self._path = path
        self._buf = b""
        self._fds: Deque[int] = deque()
        self._lines: Deque[Line] = deque()

    async def request(self, fields: Line) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(self._sock, self._path)
        except OSError as e:
            self.close()
            raise Lost(f"no supervisor: {e.strerror}", sent=False) from None
        try:
            await loop.sock_sendall(self._sock, encode(fields))
        except OSError as e:
            raise Lost(f"the supervisor went away: {e.strerror}") from None

    def _receive(self) -> bool:
        """Take in what is there; False at the end."""
        room = socket.CMSG_SPACE(16 * array.array("i").itemsize)
        data, ancillary, _, _ = self._sock.recvmsg(65536, room,
                                                   _MSG_CMSG_CLOEXEC)
        for level, kind, body in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                got = array.array("i")
                got.frombytes(body[:len(body) - len(body) % got.itemsize])
                self._fds.extend(got)
        if not data:
            return False
        self._buf += data
        *lines, self._buf = self._buf.split(b"\n")
        for line in lines:
            if line.strip():
                self._lines.append(decode(line))
        return True

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: "asyncio.Future[None]" = loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)
        loop.add_reader(self._sock, wake)
        try:
            await ready
        finally:
            loop.remove_reader(self._sock)

    async def next(self) -> Tuple[Line, Dict[str, int]]:
        """A record and the descriptors that came with it, by name."""
        while not self._lines:
            try:
                if not self._receive():
                    raise Lost("the supervisor went away")
            except BlockingIOError:
                await self._readable()
            except OSError as e:
                raise Lost(f"the supervisor went away: {e}") from None
        line = self._lines.popleft()
        names = line.get("fds")
        fds: Dict[str, int] = {}
        for name in names if isinstance(names, list) else []:
            if not self._fds:
                for fd in fds.values():
                    os.close(fd)
                raise Lost("a descriptor did not come")
            fds[str(name)] = self._fds.popleft()
        return line, fds

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.popleft())
        self._sock.close()


class _LocalChannel(Channel):
    def __init__(self, ctl: _Ctl, request: Line) -> None:
        self._ctl = ctl
        self._request = request
        self._readers: Dict[str, asyncio.StreamReader] = {}
        self._transports: List[asyncio.BaseTransport] = []
        self._writer: Optional[asyncio.StreamWriter] = None
        self._tty = False
        self._final: "Optional[asyncio.Task[Line]]" = None
        self.offsets = {}

    async def open(self) -> None:
        try:
            await self._ctl.request(self._request)
            line, fds = await self._ctl.next()
            if "ok" in line:
                self._ended(line)
                return
            self.exec_id = str(line.get("exec") or "")
            self.offsets = {
                s: int(line[s + "_offset"]) for s in ("stdout", "stderr")
                if isinstance(line.get(s + "_offset"), int)}
            for name, fd in fds.items():
                await self._adopt(name, fd)
            self._final = asyncio.get_running_loop().create_task(
                self._wait_final())
        except BaseException:
            await self.close()
            raise

    def _ended(self, line: Line) -> None:
        """There is nothing to attach to: it has ended, or was refused."""
        if line.get("ok") is not True:
            raise error_of(line)
        self.exec_id = str(line.get("exec") or "")
        done: "asyncio.Future[Line]" = (
            asyncio.get_running_loop().create_future())
        done.set_result(line)
        self._final = asyncio.ensure_future(_value(done))

    @property
    def has_input(self) -> bool:
        return self._writer is not None

    async def _adopt(self, name: str, fd: int) -> None:
        loop = asyncio.get_running_loop()
        if name in ("stdout", "stderr"):
            reader = asyncio.StreamReader(limit=WINDOW // 2)
            transport, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader),
                os.fdopen(fd, "rb", 0))
            self._readers[name] = reader
            self._transports.append(transport)
        elif name in ("stdin", "tty"):
            self._tty = name == "tty"
            dummy = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(dummy)
            pipe, _ = await loop.connect_write_pipe(
                lambda: protocol, os.fdopen(fd, "wb", 0))
            self._writer = asyncio.StreamWriter(pipe, protocol, None, loop)
        else:
            os.close(fd)

    async def _wait_final(self) -> Line:
        while True:
            line, fds = await self._ctl.next()
            for fd in fds.values():
                os.close(fd)
            if "ok" in line:
                return line

    async def read(self, stream: str) -> bytes:
        reader = self._readers.get(stream)
        return b"" if reader is None else await reader.read(65536)

    async def write(self, data: bytes) -> None:
        if self._writer is None:
            raise BrokenPipeError("the command has no stdin")
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (ConnectionError, RuntimeError):
            raise BrokenPipeError("nobody reads its stdin") from None

    async def close_stdin(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if self._tty:
            writer.write(b"\x04")
            self._writer = writer
            return
        writer.close()

    async def record(self) -> Line:
        assert self._final is not None
        line = await asyncio.shield(self._final)
        if line.get("ok") is not True:
            raise error_of(line)
        return line

    async def close(self) -> None:
        for transport in self._transports:
            transport.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._final is not None and not self._final.done():
            self._final.cancel()
            await asyncio.gather(self._final, return_exceptions=True)
        elif self._final is not None and not self._final.cancelled():
            self._final.exception()
        self._ctl.close()


async def _value(f: "asyncio.Future[Line]") -> Line:
    return await f


class LocalTransport(Transport):
    """The programs of this machine; needs the rights that they need."""

    def __init__(self, bin_dir: Optional[str], env: Mapping[str, str]) -> None:
        self._env = {**os.environ, **env}
        self._bin = bin_dir
        self._filters: Dict[str, _Filter] = {}

    def _path(self, program: str) -> str:
        name = "dsec-" + program
        where = self._bin if self._bin is not None else self._env.get("PATH")
        path = shutil.which(name, path=where)
        if path is None:
            raise NodeError(
                f"{name} is not in PATH: install dsec, or give bin_dir"
                if self._bin is None else f"{name} is not in {self._bin}",
                code="configuration")
        return path

    async def open(self) -> None:
        self._path("run")

    async def close(self) -> None:
        filters, self._filters = list(self._filters.values()), {}
        await asyncio.gather(*(f.close() for f in filters))

    def _filter(self, name: str) -> _Filter:
        if name not in _FILTERS:
            raise Unsupported(f"a local client has no program '{name}'")
        if name not in self._filters:
            path = self._path(_PROGRAM.get(name, name))
            self._filters[name] = _Filter(name, path, self._env)
        return self._filters[name]

    def pids(self) -> Dict[str, Optional[int]]:
        """The programs that run, for tests and for the curious."""
        return {n: f.pid for n, f in self._filters.items()}

    async def exchange(self, program: str, fields: Line,
                       on_event: Optional[OnEvent] = None,
                       last: Callable[[List[Line]], bool] = one,
                       orphan: Optional[OnEvent] = None) -> List[Line]:
        if program == "file":
            program = "exec"
        if program == "ps" and fields.get("op") == "wait":
            fields = {k: v for k, v in fields.items() if k != "op"}
            program = "wait"
        elif program in ("ps", "report"):
            return await self.select(program, fields)
        if program == "run" and (fields.get("rm") or fields.get("wait")):
            program = "one-shot"
        return await self._filter(program).ask(fields, on_event, last, orphan)

    def orphans(self) -> int:
        return sum(f.orphans() for f in self._filters.values())

    async def select(self, program: str, fields: Line,
                     on_event: Optional[OnEvent] = None) -> List[Line]:
        """A process of its own: where its records end, they are all there."""
        args: List[str] = []
        fields = dict(fields)
        if program == "ps":
            args = ["--json"] + _ps_flags(fields)
        elif program == "report":
            program, args = "admit", ["--report"]
        stdin = b"" if args else encode({"id": 1, **fields})
        proc = await asyncio.create_subprocess_exec(
            self._path(program), *args, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=self._env, limit=READ_LIMIT, start_new_session=True)
        try:
            records = await _all_records(proc, stdin, on_event)
        finally:
            await _end(proc, 0)
        return records

    def _run_dir(self) -> str:
        return self._env.get("DSEC_RUN") or "/run/dsec"

    async def _ctl(self, sandbox: str, make: Callable[[_Ctl], Any]) -> Any:
        """``make`` with a connection; where there is no supervisor, a program
        of ours is asked first, which starts one or says what became of it."""
        if not _ID.match(sandbox):
            raise Lost("no id", sent=False)
        path = os.path.join(self._run_dir(), "sb", sandbox, "ctl.sock")
        for attempt in range(2):
            try:
                return await make(_Ctl(path))
            except Lost as e:
                if e.sent or attempt:
                    raise
            first = (await self.exchange(
                "exec", {"op": "list-execs", "sandbox": sandbox}))[0]
            if first.get("ok") is not True:
                raise error_of(first)
        raise Lost("no supervisor", sent=False)

    async def channel(self, fields: Line, streams: Sequence[str]) -> Channel:
        request: Line = {"id": 1, **fields, "attach": list(streams)}
        for key in ("sandbox", "inline_kb", "stdout_offset", "stderr_offset"):
            request.pop(key, None)

        async def make(ctl: _Ctl) -> Channel:
            channel = _LocalChannel(ctl, request)
            await channel.open()
            return channel
        got: Channel = await self._ctl(str(fields["sandbox"]), make)
        return got

    async def connect(self, sandbox: str, port: int) -> Tuple[
            asyncio.StreamReader, asyncio.StreamWriter]:
        async def make(ctl: _Ctl) -> Tuple[asyncio.StreamReader,
                                           asyncio.StreamWriter]:
            try:
                await ctl.request({"id": 1, "op": "connect", "port": port})
                line, fds = await ctl.next()
                if "ok" in line or "socket" not in fds:
                    raise error_of(line)
                sock = socket.socket(fileno=fds["socket"])
                sock.setblocking(False)
                reader, writer = await asyncio.open_connection(sock=sock)
            except BaseException:
                ctl.close()
                raise
            # The request stands for the connection: it ends with it.
            _after(writer, ctl)
            return reader, writer
        got: Tuple[asyncio.StreamReader, asyncio.StreamWriter] = (
            await self._ctl(sandbox, make))
        return got

    async def upload(self, fields: Line, source: str) -> Line:
        return (await self.exchange(
            "exec", {"op": "put", "source": os.path.abspath(source),
                     **fields}))[0]

    async def download(self, fields: Line, target: str) -> Line:
        return (await self.exchange(
            "exec", {"op": "get", "target": os.path.abspath(target),
                     **fields}))[0]


def _after(writer: asyncio.StreamWriter, ctl: _Ctl) -> None:
    async def wait() -> None:
        try:
            await writer.wait_closed()
        except OSError:
            pass
        finally:
            ctl.close()
    task = asyncio.get_running_loop().create_task(wait())
    _BACKGROUND.add(task)
    task.add_done_callback(_BACKGROUND.discard)


_BACKGROUND: Set["asyncio.Task[None]"] = set()


def _ps_flags(fields: Line) -> List[str]:
    args: List[str] = []
    for flag in ("all", "stats"):
        if fields.get(flag):
            args.append("--" + flag)
    for flag in ("task", "project"):
        if fields.get(flag):
            args += ["--" + flag, str(fields[flag])]
    for key, value in (fields.get("labels") or {}).items():
        args += ["--label", f"{key}={value}"]
    if fields.get("sandbox"):
        args += ["--", str(fields["sandbox"])]
    return args


async def _all_records(proc: asyncio.subprocess.Process, stdin: bytes,
                       on_event: Optional[OnEvent]) -> List[Line]:
    assert proc.stdin and proc.stdout and proc.stderr
    said = asyncio.ensure_future(proc.stderr.read())
    try:
        try:
            proc.stdin.write(stdin)
            await proc.stdin.drain()
            proc.stdin.close()
        except ConnectionError:
            pass
        records: List[Line] = []
        while True:
            line = await proc.stdout.readline()
            if not line:
                break
            record = decode(line)
            if "ok" in record:
                records.append(record)
            elif on_event is not None:
                on_event(record)
            elif "event" not in record:
                records.append(record)
        status = await proc.wait()
        if status < 0 or (status != 0 and not records):
            text = (await said).decode("utf-8", "replace").strip()
            raise Lost(text or f"it ended with status {status}")
        return records
    finally:
        said.cancel()
        await asyncio.gather(said, return_exceptions=True)
