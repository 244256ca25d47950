# SPDX-License-Identifier: Apache-2.0
"""dsec-serve over TLS (PROTOCOL.md section 11): lines, and streams of bytes
with credit."""
from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import ssl
import tarfile
import time
from collections import deque
from typing import (Any, Callable, Deque, Dict, List, Optional, Sequence, Set,
                    Tuple)

from . import _tar
from ._port import port_streams
from ._settings import RemoteSettings, check_peer, tls_context
from ._transport import Channel, Lost, Transport
from ._wire import (DATA_MAX, READ_LIMIT, WINDOW, Guard, Line, OnEvent,
                    Pending, decode, encode, one, split_address)
from .errors import (Busy, ConnectionLost, DeadlineExceeded, DSecError,
                     FileError, PolicyDenied, ProtocolError, error_of)
from .types import bytes_field, bytes_of

log = logging.getLogger("dsec")

_CONNECT_S = 10.0
_PING_S = 30.0
_CUT_S = 90.0
_REQUESTS = 960
_CHUNK = 64 * 1024
_PAGE = 1000  # records of a list that one request asks for
_DENIALS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")


def _is_denial(error: Exception) -> bool:
    """One of us two does not accept the other's certificate: revoked,
    expired, of another authority.  Trying again does not change that."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return True
    reason = getattr(error, "reason", None) or ""
    return (isinstance(error, ssl.SSLError) and "ALERT" in reason
            and any(word in reason for word in _DENIALS))


class _Stream:
    """One way of bytes towards us."""

    def __init__(self) -> None:
        self.chunks: Deque[bytes] = deque()
        self.open = 0  # without credit from us
        self.taken = 0  # of them, passed on
        self.ended = False
        self.wake = asyncio.Event()


class Connection:
    """One connection; it is never used again once it is ``lost``."""

    def __init__(self, reader: asyncio.StreamReader,
                 writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()
        self._next = 1
        self.pending: Dict[int, Pending] = {}
        self.channels: Dict[int, "RemoteChannel"] = {}
        self.slots = asyncio.Semaphore(_REQUESTS)
        self.lost: Optional[Lost] = None
        self.hello: Line = {}
        self._heard = time.monotonic()
        self._tasks: Set["asyncio.Task[None]"] = set()

    def begin(self) -> None:
        for work in (self._read(), self._keep_alive()):
            self.spawn(work)

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def new_id(self) -> int:
        number = self._next
        self._next += 1
        return number

    async def send(self, line: bytes, data: bytes = b"") -> None:
        async with self._sending:
            if self._writer.transport.is_closing():
                self.die("the connection broke")
            if self.lost is not None:
                raise self.lost
            try:
                self._writer.write(line + data if data else line)
                await self._writer.drain()
            except (OSError, RuntimeError) as e:
                self.die(f"the connection broke: {e}")
                raise Lost(f"the connection broke: {e}") from None

    def post(self, line: Line) -> None:
        """Something short that nobody waits for."""
        if self.lost is None and not self._writer.transport.is_closing():
            try:
                self._writer.write(encode(line))
            except (OSError, RuntimeError):
                pass

    async def read_line(self) -> Line:
        try:
            line = await self._reader.readline()
        except ValueError:
            raise ProtocolError("a line is too long") from None
        if not line.endswith(b"\n"):
            raise Lost("the server closed the connection")
        self._heard = time.monotonic()
        return decode(line)

    async def _read(self) -> None:
        why = "the connection ended"
        try:
            while True:
                line = await self.read_line()
                await self._take(line)
        except (Lost, DSecError, OSError, asyncio.IncompleteReadError) as e:
            why = str(e)
        finally:
            self.die(why)

    async def _take(self, line: Line) -> None:
        if line.get("program") == "ping":
            answer: Line = {"ok": True}
            if "id" in line:
                answer["id"] = line["id"]
            self.post(answer)
            return
        number = line.get("id")
        event = line.get("event")
        if event == "data":
            await self._take_data(line, number)
            return
        if not isinstance(number, int):
            error = line.get("error")
            if line.get("ok") is False and isinstance(error, dict):
                raise Lost(f"the server refused: {error.get('code')}: "
                           f"{error.get('message')}")
            return
        channel = self.channels.get(number)
        if channel is not None and event in ("eof", "credit"):
            channel.take_control(line)
            return
        pending = self.pending.get(number)
        if pending is not None and pending.take(line):
            self.pending.pop(number, None)

    async def _take_data(self, line: Line, number: Any) -> None:
        size = line.get("bytes")
        if (not isinstance(size, int) or isinstance(size, bool)
                or not 0 <= size <= DATA_MAX):
            raise ProtocolError("a frame announces what it must not")
        data = await self._reader.readexactly(size) if size else b""
        self._heard = time.monotonic()
        channel = self.channels.get(number) if isinstance(number, int) else None
        stream = line.get("stream")
        if channel is not None and isinstance(stream, str):
            channel.take_data(stream, data)

    async def _keep_alive(self) -> None:
        pinged = False
        while True:
            quiet = time.monotonic() - self._heard
            if quiet >= _CUT_S:
                self.die("the server is silent")
                return
            if quiet >= _PING_S and not pinged:
                self.post({"program": "ping"})
                pinged = True
            elif quiet < _PING_S:
                pinged = False
            await asyncio.sleep(min(_PING_S / 3, 10.0))

    def die(self, why: str) -> None:
        if self.lost is not None:
            return
        self.lost = Lost(why)
        pending, self.pending = self.pending, {}
        for p in pending.values():
            p.lose(Lost(why))
        for channel in list(self.channels.values()):
            channel.lose(self.lost)
        self._writer.close()

    async def close(self) -> None:
        self.die("the client is closed")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ask(self, fields: Line, on_event: Optional[OnEvent],
                  orphan: Optional[OnEvent]) -> Line:
        """One request and its one final record."""
        async with self.slots:
            number = self.new_id()
            line = encode({"id": number, **fields})
            pending = Pending(one, on_event, orphan)
            self.pending[number] = pending
            kept = False
            try:
                await self.send(line)
                return (await pending.done)[-1]
            except asyncio.CancelledError:
                self.post({"id": self.new_id(), "cancel": number})
                kept = pending.abandon() and number in self.pending
                raise
            finally:
                if not kept:
                    self.pending.pop(number, None)


class RemoteChannel(Channel):
    """The streams of one request."""

    def __init__(self, connection: Connection) -> None:
        self._c = connection
        self._number = connection.new_id()
        self._in: Dict[str, _Stream] = {}
        self._names: List[str] = []
        self._credit = WINDOW
        self._room = asyncio.Event()
        self._started: "asyncio.Future[Line]" = (
            asyncio.get_running_loop().create_future())
        self._final: "asyncio.Future[Line]" = (
            asyncio.get_running_loop().create_future())
        self._out: Optional[str] = None
        self._lost: Optional[Lost] = None
        self.offsets = {}
        self.gaps: Dict[str, int] = {}

    async def open(self, fields: Line) -> Optional[Line]:
        """Send the request; None when its streams are there, else its final
        record: there is nothing to stream."""
        pending = Pending(one, self._event)
        self._c.channels[self._number] = self
        self._c.pending[self._number] = pending
        pending.done.add_done_callback(self._done)
        try:
            await self._c.send(encode({"id": self._number, **fields}))
            await asyncio.wait([self._started, self._final],
                               return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._hang_up()
            raise
        if not self._started.done():
            return self._final.result()
        return None

    def _done(self, done: "asyncio.Future[List[Line]]") -> None:
        if self._final.done():
            return
        if done.cancelled():
            self._final.set_exception(Lost("cancelled"))
        elif done.exception() is not None:
            self._final.set_exception(done.exception() or Lost("lost"))
        else:
            self._final.set_result(done.result()[-1])
        if self._final.exception() is None:
            # No byte comes after the final record.
            for stream in self._in.values():
                stream.ended = True
                stream.wake.set()
            self._room.set()

    def _event(self, line: Line) -> None:
        if line.get("event") not in ("started", "connected"):
            return
        names = line.get("streams")
        self._names = [s for s in names or [] if isinstance(s, str)]
        self.exec_id = str(line.get("exec") or "")
        offsets: Dict[str, int] = {}
        for name in self._names:
            if name in ("stdout", "stderr", "tty", "socket"):
                self._in[name] = self._in.get(name) or _Stream()
            if name in ("stdin", "tty", "socket"):
                self._out = name
            at, gap = line.get(name + "_offset"), line.get(name + "_lost")
            if isinstance(at, int):
                offsets[name] = at
            if isinstance(gap, int):
                self.gaps[name] = gap
        self.offsets = offsets
        if not self._started.done():
            self._started.set_result(line)

    @property
    def has_input(self) -> bool:
        return self._out is not None

    def take_data(self, name: str, data: bytes) -> None:
        stream = self._in.get(name)
        if stream is None or stream.ended:
            return
        stream.open += len(data)
        if stream.open > WINDOW:
            raise ProtocolError(f"more than {WINDOW} bytes without credit")
        if data:
            stream.chunks.append(data)
            stream.wake.set()

    def take_control(self, line: Line) -> None:
        name = str(line.get("stream"))
        if line.get("event") == "eof":
            stream = self._in.get(name)
            if stream is not None:
                stream.ended = True
                stream.wake.set()
            return
        more = line.get("bytes")
        if name == self._out and isinstance(more, int) and more > 0:
            self._credit = min(WINDOW, self._credit + more)
            self._room.set()

    def lose(self, why: Lost) -> None:
        self._lost = why
        for stream in self._in.values():
            stream.wake.set()
        self._room.set()

    async def read(self, stream: str) -> bytes:
        s = self._in.get(stream)
        if s is None and stream == "stdout":
            s = self._in.get("tty")
            stream = "tty"
        if s is None:
            return b""
        while not s.chunks:
            if s.ended:
                return b""
            if self._lost is not None:
                raise self._lost
            s.wake.clear()
            await s.wake.wait()
        data = s.chunks.popleft()
        s.taken += len(data)
        if s.taken >= _CHUNK and not s.ended:
            self._c.post({"id": self._number, "event": "credit",
                          "stream": stream, "bytes": s.taken})
            s.open -= s.taken
            s.taken = 0
        return data

    async def write(self, data: bytes) -> None:
        if self._out is None:
            raise BrokenPipeError("it takes no input")
        at = 0
        while at < len(data):
            while self._credit <= 0:
                if self._lost is not None:
                    raise self._lost
                if self._final.done():
                    raise BrokenPipeError("nobody reads any more")
                self._room.clear()
                await self._room.wait()
            if self._final.done():
                raise BrokenPipeError("nobody reads any more")
            piece = data[at:at + min(self._credit, _CHUNK)]
            at += len(piece)
            self._credit -= len(piece)
            await self._c.send(encode(
                {"id": self._number, "event": "data", "stream": self._out,
                 "bytes": len(piece)}), piece)

    async def close_stdin(self) -> None:
        if self._out is None or self._final.done():
            return
        if self._out == "tty":
            await self.write(b"\x04")
            return
        await self._c.send(encode({"id": self._number, "event": "eof",
                                   "stream": self._out}))

    async def final(self) -> Line:
        return await asyncio.shield(self._final)

    async def record(self) -> Line:
        line = await self.final()
        if line.get("ok") is not True:
            error = error_of(line)
            if isinstance(error, (Busy, ConnectionLost)):
                # Of the way to it, not of the command: it may be taken again.
                raise Lost(str(error))
            raise error
        return line

    def _hang_up(self) -> None:
        self._c.channels.pop(self._number, None)
        pending = self._c.pending.pop(self._number, None)
        if pending is not None:
            self._c.post({"id": self._number, "event": "leave"})
            pending.lose(Lost("let go"))
        elif not self._final.done():
            self._final.set_exception(Lost("let go"))
        if self._final.done() and not self._final.cancelled():
            self._final.exception()

    async def close(self) -> None:
        self._hang_up()
        self.lose(Lost("let go"))
        await asyncio.sleep(0)
        if self._final.done() and not self._final.cancelled():
            self._final.exception()


def _away(final: Line) -> List[Line]:
    """A failure for each node that could not be asked, and may have some of
    what was asked for: what one had that is lost is lost with it."""
    names = final.get("missing")
    lost = final.get("lost")
    return [{"ok": False, "node": str(name), "error": {
        "code": "node_away", "infra": True, "retry_after_ms": 1000,
        "message": f"node {name} cannot be reached now"}}
            for name in (names if isinstance(names, list) else [])
            if not isinstance(lost, list) or name not in lost]


class RemoteTransport(Transport):
    """A connection to one of several addresses, made again when it is lost."""

    direct = False

    def __init__(self, settings: RemoteSettings,
                 context: Optional[ssl.SSLContext] = None,
                 plain: bool = False) -> None:
        self._settings = settings
        self._plain = plain  # for tests of the wire alone
        self._context = None if plain else context or tls_context(settings)
        self._order = list(settings.addresses)
        random.shuffle(self._order)
        self._connection: Optional[Connection] = None
        self._attempt: "Optional[asyncio.Task[Connection]]" = None
        self._closed = False
        self.peer = ""
        self.connects = 0

    async def open(self) -> None:
        try:
            await self._connected()
        except Lost as e:
            raise ConnectionLost(str(e)) from None

    async def close(self) -> None:
        self._closed = True
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    @property
    def hello(self) -> Line:
        """What the server said of itself."""
        return self._connection.hello if self._connection else {}

    def orphans(self) -> int:
        c = self._connection
        if c is None or c.lost is not None:
            return 0
        return sum(p.abandoned for p in c.pending.values())

    async def _connected(self) -> Connection:
        if self._closed:
            raise RuntimeError("the client is closed")
        if self._connection is not None and self._connection.lost is None:
            return self._connection
        # Whoever needs one waits for the same attempt, and learns how it went.
        if self._attempt is None:
            self._attempt = asyncio.get_running_loop().create_task(
                self._reach())
            self._attempt.add_done_callback(self._attempted)
        return await asyncio.shield(self._attempt)

    def _attempted(self, attempt: "asyncio.Task[Connection]") -> None:
        self._attempt = None
        if not attempt.cancelled():
            attempt.exception()

    async def _reach(self) -> Connection:
        """Whichever answers first, in their order.  Lost; PolicyDenied."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
            # The next one first: this one has just failed us.
            self._order = self._order[1:] + self._order[:1]
        why: List[str] = []
        denied = False
        for address in list(self._order):
            try:
                async with Guard(_CONNECT_S, "the connection"):
                    self._connection = await self._connect(address)
                self.connects += 1
                return self._connection
            except (OSError, ssl.SSLError, Lost, DeadlineExceeded,
                    ProtocolError) as e:
                denied = denied or _is_denial(e)
                why.append(f"{address}: {e}")
                self._order = self._order[1:] + self._order[:1]
        if denied:
            raise PolicyDenied("; ".join(why))
        raise Lost("; ".join(why), sent=False)

    async def _connect(self, address: str) -> Connection:
        host, port = split_address(address)
        reader, writer = await asyncio.open_connection(
            host, port, ssl=self._context, limit=READ_LIMIT)
        c = Connection(reader, writer)
        try:
            if not self._plain:
                self.peer = check_peer(writer.get_extra_info("peercert"),
                                       self._settings.peer)
            c.hello = await c.read_line()
            if c.hello.get("ok") is False:
                raise error_of(c.hello)
            if c.hello.get("event") != "hello" or c.hello.get("v") != 1:
                raise ProtocolError("the server speaks another protocol")
            c.begin()
            if self._settings.token:
                answer = await c.ask({"program": "hello", "v": 1,
                                      "token": self._settings.token}, None,
                                     None)
                if answer.get("ok") is not True:
                    raise error_of(answer)
        except BaseException:
            await c.close()
            # How the transport ended is asked for, or asyncio complains.
            writer.transport.abort()
            with contextlib.suppress(Exception):
                await writer.wait_closed()
            raise
        return c

    async def exchange(self, program: str, fields: Line,
                       on_event: Optional[OnEvent] = None,
                       last: Callable[[List[Line]], bool] = one,
                       orphan: Optional[OnEvent] = None) -> List[Line]:
        parts, final = await self._asked(program, fields, on_event, orphan)
        if parts or (final.get("ok") is True and "failed" in final):
            return parts
        return [final]

    async def _asked(self, program: str, fields: Line,
                     given: Optional[OnEvent],
                     orphan: Optional[OnEvent] = None) -> Tuple[
                         List[Line], Line]:
        """The records that came as events, and the final one."""
        parts: List[Line] = []

        def hear(line: Line) -> None:
            record = line.get("record")
            if line.get("event") == "record" and isinstance(record, dict):
                parts.append(record)
            elif given is not None:
                given(line)

        def late(line: Line) -> None:
            for record in parts + [line]:
                if orphan is not None:
                    orphan(record)
            parts.clear()

        c = await self._connected()
        final = await c.ask({"program": program, **fields}, hear,
                            late if orphan is not None else None)
        return parts, final

    async def select(self, program: str, fields: Line,
                     on_event: Optional[OnEvent] = None) -> List[Line]:
        if program != "ps" or "op" in fields:
            page, final = await self._asked(program, fields, on_event)
            if page or (final.get("ok") is True and "failed" in final):
                return page + _away(final)
            return [final]
        records: List[Line] = []
        fields = {**fields, "limit": _PAGE}
        while True:
            page, final = await self._asked(program, fields, on_event)
            if _away(final):  # a part would be taken for all
                return _away(final)[:1]
            if final.get("ok") is not True and not page:
                return [final]
            records += page
            if not final.get("next"):
                return records
            fields["after"] = final["next"]

    async def channel(self, fields: Line, streams: Sequence[str]) -> Channel:
        c = await self._connected()
        channel = RemoteChannel(c)
        ask: Line = {"program": "exec", **fields, "attach": list(streams)}
        ended = await channel.open(ask)
        if ended is not None:
            if ended.get("ok") is not True:
                await channel.close()
                raise error_of(ended)
            channel.exec_id = str(ended.get("exec") or "")
        return channel

    async def connect(self, sandbox: str, port: int) -> Tuple[
            asyncio.StreamReader, asyncio.StreamWriter]:
        c = await self._connected()
        channel = RemoteChannel(c)
        ended = await channel.open({"program": "exec", "op": "connect",
                                    "sandbox": sandbox, "port": port})
        if ended is not None:
            await channel.close()
            raise error_of(ended)
        return port_streams(c, channel)

    async def upload(self, fields: Line, source: str) -> Line:
        ask, _, name = _split_name(fields)
        ask.pop("key", None)  # the exact name: a second time does no harm
        if not os.path.lexists(source):
            raise FileError(f"no such file: {source}", code="not_found")
        channel = await self._file({**ask, "op": "put"})
        try:
            refused = await _pump_out(channel, source, name)
            await channel.close_stdin()
            record = await channel.record()
        except BrokenPipeError:
            refused = []
            record = await channel.record()  # it says why
        finally:
            await channel.close()
        return _with_refused(record, refused)

    async def download(self, fields: Line, target: str) -> Line:
        into, name = os.path.split(os.path.abspath(target))
        ask = {k: v for k, v in fields.items() if k != "key"}
        channel = await self._file({**ask, "op": "get",
                                    **bytes_field("name", name)})
        try:
            refused = await _pump_in(channel, into, name)
            final = await channel.final()
        finally:
            await channel.close()
        error = final.get("error")
        if final.get("ok") is not True and not (
                isinstance(error, dict)
                and error.get("code") == "refused_entries"):
            raise error_of(final)
        return _with_refused(final, refused)

    async def _file(self, fields: Line) -> RemoteChannel:
        channel = RemoteChannel(await self._connected())
        ended = await channel.open({"program": "file", **fields})
        if ended is not None:
            await channel.close()
            raise error_of(ended)
        return channel


def _split_name(fields: Line) -> Tuple[Line, bytes, str]:
    """``path`` as the directory, and the name in it."""
    ask = dict(fields)
    path = bytes_of(fields, "path").rstrip(b"/") or b"/"
    for key in ("path", "path_b64"):
        ask.pop(key, None)
    up, name = os.path.split(path)
    if name in (b"", b".", b".."):
        up, name = path, b"."
        ask.update(bytes_field("path", path))
    else:
        ask.update(bytes_field("path", up or b"."))
        ask.update(bytes_field("name", name))
    return ask, up, name.decode("utf-8", "surrogateescape")


def _with_refused(record: Line, refused: List[Dict[str, Any]]) -> Line:
    if not refused:
        return record
    old = record.get("refused")
    return {**record, "ok": False,
            "refused": refused + (old if isinstance(old, list) else []),
            "error": {"code": "refused_entries", "infra": False,
                      "message": f"{len(refused)} entries were refused or "
                                 f"left out, the first: "
                                 f"{refused[0]['path']}: "
                                 f"{refused[0]['message']}"}}


async def _pump_out(channel: RemoteChannel, source: str,
                    name: str) -> List[Dict[str, Any]]:
    """Pack in a thread, send from here, as fast as it is taken."""
    loop = asyncio.get_running_loop()
    read_fd, write_fd = os.pipe()

    def pack() -> List[Dict[str, Any]]:
        with os.fdopen(write_fd, "wb") as out:
            try:
                return _tar.pack(source, name, out)
            except BrokenPipeError:
                return []

    packing = loop.run_in_executor(None, pack)
    try:
        while True:
            data = await loop.run_in_executor(None, os.read, read_fd, _CHUNK)
            if not data:
                break
            await channel.write(data)
    finally:
        os.close(read_fd)
        refused = await packing
    return refused


async def _pump_in(channel: RemoteChannel, into: str,
                   name: str) -> List[Dict[str, Any]]:
    """Receive here, unpack in a thread."""
    loop = asyncio.get_running_loop()
    try:
        extractor = _tar.Extractor(into, name)
    except OSError as e:
        raise FileError(f"{into}: {e.strerror}", code="not_found") from None
    read_fd, write_fd = os.pipe()

    def unpack() -> None:
        with os.fdopen(read_fd, "rb") as source:
            try:
                extractor.run(source)
            except tarfile.ReadError as e:
                if "empty" not in str(e):
                    raise

    unpacking = loop.run_in_executor(None, unpack)
    try:
        try:
            while True:
                data = await channel.read("stdout")
                if not data:
                    break
                await loop.run_in_executor(None, _write_all, write_fd, data)
        except BrokenPipeError:
            pass  # its own failure is the reason
        finally:
            os.close(write_fd)
        await unpacking
    except tarfile.TarError as e:
        raise FileError(f"the stream is damaged: {e}",
                        code="bad_archive") from None
    except OSError as e:
        raise FileError(f"{into}/{name}: {e.strerror}", code="io") from None
    finally:
        await asyncio.gather(unpacking, return_exceptions=True)
        extractor.close()
    return extractor.refused


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]
