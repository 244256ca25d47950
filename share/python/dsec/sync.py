# SPDX-License-Identifier: Apache-2.0
"""The same without asyncio: an event loop in a thread does the work.

    from dsec.sync import DSecClient
    with DSecClient(local=True) as client:
        with client.run_sandbox(DSecRunArgs()) as sb:
            print(sb.run_shell("echo $((6 * 7))").stdout)

Every class has the methods and arguments of the one it stands for
(:class:`dsec.DSecClient` and so on); what yields there is an iterator here.
Calls may come from any thread; a KeyboardInterrupt cancels the call that is
waited for.
"""
from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import (TYPE_CHECKING, Any, AsyncIterator, Awaitable, Callable,
                    Coroutine, Generic, Iterable, Iterator, List, Optional,
                    Tuple, TypeVar)

from . import client as aclient
from . import files as afiles
from . import process as aprocess
from . import sandbox as asandbox
from ._wire import Guard, Line
from .args import RunArgs
from .client import ManyResult
from .types import CommandResult

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec
    P = ParamSpec("P")

__all__ = ["Connection", "DSecClient", "Files", "Forward", "Network",
           "OutputStream", "Process", "Sandbox", "Session"]

A = TypeVar("A")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever,
                                        name="dsec", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a call of dsec.sync inside of its own loop")
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        end = object()

        async def step() -> Any:
            try:
                return await source.__anext__()
            except StopAsyncIteration:
                return end

        async def close() -> None:
            aclose = getattr(source, "aclose", None)
            if aclose is not None:
                await aclose()
        try:
            while True:
                item = self.run(step())
                if item is end:
                    return
                yield item
        finally:
            self.run(close())

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        if not self._thread.is_alive():
            self._loop.close()


class _Wrapped(Generic[A]):
    def __init__(self, loop: _Loop, inner: A) -> None:
        self._loop = loop
        self.inner = inner
        """The object of :mod:`dsec` that this one stands for."""

    def __repr__(self) -> str:
        return repr(self.inner)


# A method of a class above from one of the class it stands for, with its
# arguments and its documentation.

def _call(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
          ) -> Callable[Concatenate[Any, P], R]:
    """What is awaited there is waited for here."""
    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **how: P.kwargs) -> R:
        done: R = self._loop.run(method(self.inner, *args, **how))
        return done
    return call


def _each(method: Callable[Concatenate[Any, P], AsyncIterator[R]]
          ) -> Callable[Concatenate[Any, P], Iterator[R]]:
    """What is iterated over with ``async for`` there."""
    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **how: P.kwargs) -> Iterator[R]:
        items: Iterator[R] = self._loop.iterate(
            method(self.inner, *args, **how))
        return items
    return call


def _made(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
          make: Callable[[_Loop, R], S]
          ) -> Callable[Concatenate[Any, P], S]:
    """What answers with an object there does so with one of ours."""
    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **how: P.kwargs) -> S:
        return make(self._loop,
                    self._loop.run(method(self.inner, *args, **how)))
    return call


class OutputStream(_Wrapped[aprocess.OutputStream]):
    """As :class:`dsec.OutputStream`; an iterator of bytes."""

    read = _call(aprocess.OutputStream.read)
    readline = _call(aprocess.OutputStream.readline)
    read_all = _call(aprocess.OutputStream.read_all)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def position(self) -> int:
        return self.inner.position

    @property
    def lost_bytes(self) -> int:
        return self.inner.lost_bytes

    @property
    def head(self) -> bytes:
        return self.inner.head

    def __iter__(self) -> Iterator[bytes]:
        return self._loop.iterate(self.inner.__aiter__())


class Process(_Wrapped[aprocess.Process]):
    """As :class:`dsec.Process`."""

    def __init__(self, loop: _Loop, inner: aprocess.Process) -> None:
        super().__init__(loop, inner)
        self.stdout = OutputStream(loop, inner.stdout)
        self.stderr = OutputStream(loop, inner.stderr)

    @property
    def sandbox(self) -> str:
        return self.inner.sandbox

    @property
    def exec_id(self) -> str:
        return self.inner.exec_id

    @property
    def result(self) -> Optional[CommandResult]:
        return self.inner.result

    @property
    def reconnects(self) -> int:
        return self.inner.reconnects

    stream = _each(aprocess.Process.stream)
    write = _call(aprocess.Process.write)
    close_stdin = _call(aprocess.Process.close_stdin)
    resize = _call(aprocess.Process.resize)
    signal = _call(aprocess.Process.signal)
    kill = _call(aprocess.Process.kill)
    wait = _call(aprocess.Process.wait)
    detach = _call(aprocess.Process.detach)
    close = _call(aprocess.Process.close)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class Session(_Wrapped[asandbox.Session]):
    """As :class:`dsec.Session`."""

    @property
    def id(self) -> str:
        return self.inner.id

    @property
    def session_id(self) -> str:
        return self.inner.session_id

    run = _call(asandbox.Session.run)
    close = _call(asandbox.Session.close)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class Files(_Wrapped[afiles.Files]):
    """As :class:`dsec.Files`."""

    read = _call(afiles.Files.read)
    read_text = _call(afiles.Files.read_text)
    write = _call(afiles.Files.write)
    list = _call(afiles.Files.list)
    stat = _call(afiles.Files.stat)
    exists = _call(afiles.Files.exists)
    mkdir = _call(afiles.Files.mkdir)
    move = _call(afiles.Files.move)
    remove = _call(afiles.Files.remove)
    upload = _call(afiles.Files.upload)
    download = _call(afiles.Files.download)
    watch = _each(afiles.Files.watch)


class Network(_Wrapped[asandbox.Network]):
    """As :class:`dsec.Network`."""

    phase = _call(asandbox.Network.phase)
    replace = _call(asandbox.Network.replace)
    merge = _call(asandbox.Network.merge)
    deny_all = _call(asandbox.Network.deny_all)
    show = _call(asandbox.Network.show)
    explain = _call(asandbox.Network.explain)
    denied = _call(asandbox.Network.denied)


class Forward(_Wrapped[asandbox.Forward]):
    """As :class:`dsec.Forward`."""

    @property
    def host(self) -> str:
        return self.inner.host

    @property
    def port(self) -> int:
        return self.inner.port

    close = _call(asandbox.Forward.close)

    def __enter__(self) -> "Forward":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class Connection:
    """A connection to a port inside, in place of asyncio's two streams.

    ``timeout`` of each call is in seconds, None for ever: DeadlineExceeded.
    """

    def __init__(self, loop: _Loop, streams: Tuple[
            asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._loop = loop
        self._reader, self._writer = streams

    def _wait(self, work: Awaitable[T], timeout: Optional[float]) -> T:
        async def guarded() -> T:
            async with Guard(timeout, "the connection"):
                return await work
        return self._loop.run(guarded())

    def read(self, limit: int = 65536, *,
             timeout: Optional[float] = None) -> bytes:
        """Some bytes, ``limit`` at most; empty at the end."""
        return self._wait(self._reader.read(limit), timeout)

    def readline(self, *, timeout: Optional[float] = None) -> bytes:
        """A line; empty at the end."""
        return self._wait(self._reader.readline(), timeout)

    def write(self, data: bytes, *, timeout: Optional[float] = None) -> None:
        """All of it.  ConnectionError where nobody takes it."""
        async def send() -> None:
            self._writer.write(data)
            await self._writer.drain()
        self._wait(send(), timeout)

    def write_eof(self) -> None:
        """The end of what we send; reading goes on."""
        async def end() -> None:
            self._writer.write_eof()
        self._loop.run(end())

    def close(self) -> None:
        async def end() -> None:
            self._writer.close()
        self._loop.run(end())

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


def _boxes(loop: _Loop, made: List[asandbox.Sandbox]) -> List["Sandbox"]:
    return [Sandbox(loop, s) for s in made]


class Sandbox(_Wrapped[asandbox.Sandbox]):
    """As :class:`dsec.Sandbox`."""

    def __init__(self, loop: _Loop, inner: asandbox.Sandbox) -> None:
        super().__init__(loop, inner)
        self.files = Files(loop, inner.files)
        self.network = Network(loop, inner.network)

    @property
    def id(self) -> str:
        return self.inner.id

    @property
    def record(self) -> Line:
        return self.inner.record

    @property
    def published(self) -> List[Line]:
        return self.inner.published

    run = _call(asandbox.Sandbox.run)
    run_shell = _call(asandbox.Sandbox.run_shell)
    start = _made(asandbox.Sandbox.start, Process)
    stream = _each(asandbox.Sandbox.stream)
    pty = _made(asandbox.Sandbox.pty, Process)
    attach = _made(asandbox.Sandbox.attach, Process)
    processes = _call(asandbox.Sandbox.processes)
    signal = _call(asandbox.Sandbox.signal)
    session = _made(asandbox.Sandbox.session, Session)
    logs = _each(asandbox.Sandbox.logs)
    connect = _made(asandbox.Sandbox.connect, Connection)
    forward = _made(asandbox.Sandbox.forward, Forward)
    pause = _call(asandbox.Sandbox.pause)
    resume = _call(asandbox.Sandbox.resume)
    stop = _call(asandbox.Sandbox.stop)
    wait = _call(asandbox.Sandbox.wait)
    info = _call(asandbox.Sandbox.info)
    fork = _made(asandbox.Sandbox.fork, _boxes)
    snapshot = _call(asandbox.Sandbox.snapshot)

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exc: Any) -> None:
        self._loop.run(self.inner.__aexit__(*exc))


class DSecClient(_Wrapped[aclient.DSecClient]):
    """As :class:`dsec.DSecClient`, with the same arguments."""

    @functools.wraps(aclient.DSecClient.__init__)
    def __init__(self, **how: Any) -> None:
        super().__init__(_Loop(), aclient.DSecClient(**how))

    def open(self) -> "DSecClient":
        """Be ready.  ConnectionLost, NodeError, BadRequest, PolicyDenied."""
        self._loop.run(self.inner.open())
        return self

    def close(self) -> None:
        """End; sandboxes and their commands go on."""
        if self._loop.closed:
            return
        try:
            self._loop.run(self.inner.close())
        finally:
            self._loop.close()

    def __enter__(self) -> "DSecClient":
        try:
            return self.open()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc: Any) -> None:
        self.close()

    @property
    def local(self) -> bool:
        return self.inner.local

    run_sandbox = _made(aclient.DSecClient.run_sandbox, Sandbox)
    run_once = _call(aclient.DSecClient.run_once)

    def run_many(self, args: Iterable[RunArgs],
                 work: Optional[Callable[[Sandbox], T]] = None, *,
                 concurrency: int = 16, stop: bool = True,
                 timeout: Optional[float] = None) -> Iterator[ManyResult[T]]:
        """As :meth:`dsec.DSecClient.run_many`; ``work`` is an ordinary
        function and runs in a thread, at most ``concurrency`` at once."""
        if concurrency < 1:
            raise ValueError("concurrency: at least 1")
        return self._run_many(args, work, concurrency, stop, timeout)

    def _run_many(self, args: Iterable[RunArgs],
                  work: Optional[Callable[[Sandbox], Any]], concurrency: int,
                  stop: bool, timeout: Optional[float]
                  ) -> Iterator[ManyResult[Any]]:
        async def in_thread(box: asandbox.Sandbox) -> Any:
            assert work is not None
            return await asyncio.get_running_loop().run_in_executor(
                pool, work, Sandbox(self._loop, box))
        with ThreadPoolExecutor(concurrency) as pool:
            results = self._loop.iterate(self.inner.run_many(
                args, in_thread if work is not None else None,
                concurrency=concurrency, stop=stop, timeout=timeout))
            for r in results:
                if isinstance(r.value, asandbox.Sandbox):
                    r.value = Sandbox(self._loop, r.value)
                yield r

    get = _made(aclient.DSecClient.get, Sandbox)

    def sandbox(self, sandbox: str) -> Sandbox:
        """A sandbox by its id, without looking whether it is there."""
        return Sandbox(self._loop, self.inner.sandbox(sandbox))

    sandboxes = _call(aclient.DSecClient.sandboxes)
    pause = _call(aclient.DSecClient.pause)
    resume = _call(aclient.DSecClient.resume)
    stop = _call(aclient.DSecClient.stop)
    set_phase = _call(aclient.DSecClient.set_phase)
    pause_task = _call(aclient.DSecClient.pause_task)
    resume_task = _call(aclient.DSecClient.resume_task)
    stop_task = _call(aclient.DSecClient.stop_task)
    pause_project = _call(aclient.DSecClient.pause_project)
    resume_project = _call(aclient.DSecClient.resume_project)
    stop_project = _call(aclient.DSecClient.stop_project)
    fork_snapshot = _made(aclient.DSecClient.fork_snapshot, _boxes)
    snapshots = _call(aclient.DSecClient.snapshots)
    remove_snapshot = _call(aclient.DSecClient.remove_snapshot)

    @functools.wraps(aclient.DSecClient.request)
    def request(self, program: str, *, timeout: Optional[float] = None,
                on_event: Optional[Callable[[Line], None]] = None,
                **fields: Any) -> Line:
        return self._loop.run(self.inner.request(
            program, timeout=timeout, on_event=on_event, **fields))
