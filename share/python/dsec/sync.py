# SPDX-License-Identifier: Apache-2.0
"""The same without asyncio.

    from dsec.sync import DSecClient
    from dsec import DSecRunArgs

    with DSecClient(local=True) as client:
        with client.run_sandbox(DSecRunArgs()) as sb:
            print(sb.run_shell("echo $((6 * 7))").stdout)

Every method has the arguments, results and errors of the class it stands for
(:class:`dsec.DSecClient` and so on); what yields there is an iterator here.
Calls may come from any thread; a KeyboardInterrupt cancels the call that is
waited for.
"""
from __future__ import annotations

import asyncio
import threading
from typing import (Any, AsyncIterator, Callable, Coroutine, Generic, Iterable,
                    Iterator, List, Mapping, Optional, Tuple, TypeVar, Union)

from . import client as aclient
from . import files as afiles
from . import process as aprocess
from . import sandbox as asandbox
from ._wire import Line
from .args import RunArgs
from .client import ManyResult
from .sandbox import Command
from .types import (CommandInfo, CommandResult, FileEntry, FileEvent,
                    OperationList, OperationResult, OutputChunk, SandboxEnd,
                    SandboxInfo, Snapshot)

__all__ = ["DSecClient", "Files", "Network", "Process", "Sandbox", "Session"]

T = TypeVar("T")


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever,
                                        name="dsec", daemon=True)
        self._thread.start()

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


A = TypeVar("A")


class _Wrapped(Generic[A]):
    def __init__(self, loop: _Loop, inner: A) -> None:
        self._loop = loop
        self.inner = inner
        """The object of :mod:`dsec` that this one stands for."""

    def __repr__(self) -> str:
        return repr(self.inner)


class Process(_Wrapped[aprocess.Process]):
    """As :class:`dsec.Process`."""

    @property
    def exec_id(self) -> str:
        return self.inner.exec_id

    @property
    def result(self) -> Optional[CommandResult]:
        return self.inner.result

    def stream(self) -> Iterator[OutputChunk]:
        return self._loop.iterate(self.inner.stream())

    def read(self, stream: str = "stdout") -> bytes:
        """Some bytes of a stream; empty at the end."""
        return self._loop.run(self._of(stream).read())

    def readline(self, stream: str = "stdout") -> bytes:
        """A line of a stream; empty at the end."""
        return self._loop.run(self._of(stream).readline())

    def read_all(self, stream: str = "stdout") -> bytes:
        """All that is left of a stream."""
        return self._loop.run(self._of(stream).read_all())

    def _of(self, stream: str) -> aprocess.OutputStream:
        if stream not in ("stdout", "stderr"):
            raise ValueError(f"no stream '{stream}'")
        return self.inner.stdout if stream == "stdout" else self.inner.stderr

    def write(self, data: Union[str, bytes]) -> None:
        self._loop.run(self.inner.write(data))

    def close_stdin(self) -> None:
        self._loop.run(self.inner.close_stdin())

    def resize(self, rows: int, cols: int) -> None:
        self._loop.run(self.inner.resize(rows, cols))

    def signal(self, signal: Union[str, int] = "SIGTERM") -> None:
        self._loop.run(self.inner.signal(signal))

    def kill(self) -> None:
        self._loop.run(self.inner.kill())

    def wait(self, timeout: Optional[float] = None) -> CommandResult:
        return self._loop.run(self.inner.wait(timeout))

    def detach(self) -> None:
        self._loop.run(self.inner.detach())

    def close(self) -> None:
        self._loop.run(self.inner.close())

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class Session(_Wrapped[asandbox.Session]):
    """As :class:`dsec.Session`."""

    @property
    def session_id(self) -> str:
        return self.inner.session_id

    def run(self, command: Command, **how: Any) -> CommandResult:
        return self._loop.run(self.inner.run(command, **how))

    def close(self) -> None:
        self._loop.run(self.inner.close())

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class Files(_Wrapped[afiles.Files]):
    """As :class:`dsec.Files`."""

    def read(self, path: afiles.Path, **how: Any) -> bytes:
        return self._loop.run(self.inner.read(path, **how))

    def read_text(self, path: afiles.Path, **how: Any) -> str:
        return self._loop.run(self.inner.read_text(path, **how))

    def write(self, path: afiles.Path, data: Union[str, bytes],
              **how: Any) -> None:
        self._loop.run(self.inner.write(path, data, **how))

    def list(self, path: afiles.Path, **how: Any) -> List[FileEntry]:
        return self._loop.run(self.inner.list(path, **how))

    def stat(self, path: afiles.Path, **how: Any) -> FileEntry:
        return self._loop.run(self.inner.stat(path, **how))

    def exists(self, path: afiles.Path, **how: Any) -> bool:
        return self._loop.run(self.inner.exists(path, **how))

    def mkdir(self, path: afiles.Path, **how: Any) -> None:
        self._loop.run(self.inner.mkdir(path, **how))

    def move(self, path: afiles.Path, to: afiles.Path, **how: Any) -> None:
        self._loop.run(self.inner.move(path, to, **how))

    def remove(self, path: afiles.Path, **how: Any) -> None:
        self._loop.run(self.inner.remove(path, **how))

    def upload(self, source: Any, path: afiles.Path, **how: Any) -> None:
        self._loop.run(self.inner.upload(source, path, **how))

    def download(self, path: afiles.Path, target: Any, **how: Any) -> None:
        self._loop.run(self.inner.download(path, target, **how))

    def watch(self, path: afiles.Path, **how: Any) -> Iterator[FileEvent]:
        return self._loop.iterate(self.inner.watch(path, **how))


class Network(_Wrapped[asandbox.Network]):
    """As :class:`dsec.Network`."""

    def phase(self, name: str) -> Line:
        return self._loop.run(self.inner.phase(name))

    def replace(self, rules: Mapping[str, Any]) -> Line:
        return self._loop.run(self.inner.replace(rules))

    def merge(self, rules: Mapping[str, Any]) -> Line:
        return self._loop.run(self.inner.merge(rules))

    def deny_all(self) -> Line:
        return self._loop.run(self.inner.deny_all())

    def show(self) -> Line:
        return self._loop.run(self.inner.show())

    def explain(self, to: str) -> Line:
        return self._loop.run(self.inner.explain(to))


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

    def run(self, command: Command, **how: Any) -> CommandResult:
        return self._loop.run(self.inner.run(command, **how))

    def run_shell(self, command: str, **how: Any) -> CommandResult:
        return self._loop.run(self.inner.run_shell(command, **how))

    def start(self, command: Command, **how: Any) -> Process:
        return Process(self._loop,
                       self._loop.run(self.inner.start(command, **how)))

    def stream(self, command: Command, **how: Any) -> Iterator[OutputChunk]:
        return self._loop.iterate(self.inner.stream(command, **how))

    def pty(self, command: Command = ("/bin/sh",), **how: Any) -> Process:
        return Process(self._loop,
                       self._loop.run(self.inner.pty(command, **how)))

    def attach(self, exec_id: str, **how: Any) -> Process:
        return Process(self._loop,
                       self._loop.run(self.inner.attach(exec_id, **how)))

    def processes(self) -> List[CommandInfo]:
        return self._loop.run(self.inner.processes())

    def signal(self, exec_id: str,
               signal: Union[str, int] = "SIGTERM") -> None:
        self._loop.run(self.inner.signal(exec_id, signal))

    def session(self, **how: Any) -> Session:
        return Session(self._loop, self._loop.run(self.inner.session(**how)))

    def logs(self, exec_id: str = "e0", **how: Any) -> Iterator[bytes]:
        return self._loop.iterate(self.inner.logs(exec_id, **how))

    def forward(self, port: int, **how: Any) -> Tuple[str, int]:
        """A port of this machine that leads to one inside, until the client
        is closed: host and port."""
        made = self._loop.run(self.inner.forward(port, **how))
        return made.host, made.port

    def pause(self, level: Optional[str] = None,
              **how: Any) -> OperationResult:
        return self._loop.run(self.inner.pause(level, **how))

    def resume(self, **how: Any) -> OperationResult:
        return self._loop.run(self.inner.resume(**how))

    def stop(self, **how: Any) -> OperationResult:
        return self._loop.run(self.inner.stop(**how))

    def wait(self, timeout: Optional[float] = None) -> SandboxEnd:
        return self._loop.run(self.inner.wait(timeout))

    def info(self) -> SandboxInfo:
        return self._loop.run(self.inner.info())

    def fork(self, count: int = 1, **how: Any) -> List["Sandbox"]:
        return [Sandbox(self._loop, s)
                for s in self._loop.run(self.inner.fork(count, **how))]

    def snapshot(self, name: str, **how: Any) -> Snapshot:
        return self._loop.run(self.inner.snapshot(name, **how))

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exc: Any) -> None:
        self._loop.run(self.inner.__aexit__(*exc))


class DSecClient(_Wrapped[aclient.DSecClient]):
    """As :class:`dsec.DSecClient`, with the same arguments."""

    def __init__(self, **how: Any) -> None:
        super().__init__(_Loop(), aclient.DSecClient(**how))

    def open(self) -> "DSecClient":
        self._loop.run(self.inner.open())
        return self

    def close(self) -> None:
        if self._loop._loop.is_closed():
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

    def run_sandbox(self, args: RunArgs, **how: Any) -> Sandbox:
        return Sandbox(self._loop,
                       self._loop.run(self.inner.run_sandbox(args, **how)))

    def run_once(self, args: RunArgs, **how: Any) -> CommandResult:
        return self._loop.run(self.inner.run_once(args, **how))

    def run_many(self, args: Iterable[RunArgs],
                 work: Callable[[Sandbox], T], *, concurrency: int = 16,
                 stop: bool = True, timeout: Optional[float] = None
                 ) -> Iterator[ManyResult[T]]:
        """As :meth:`dsec.DSecClient.run_many`; ``work`` is an ordinary
        function and runs in a thread, at most ``concurrency`` at once."""
        async def in_thread(box: asandbox.Sandbox) -> T:
            return await asyncio.get_running_loop().run_in_executor(
                pool, work, Sandbox(self._loop, box))
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(concurrency) as pool:
            yield from self._loop.iterate(self.inner.run_many(
                args, in_thread, concurrency=concurrency, stop=stop,
                timeout=timeout))

    def get(self, sandbox: str) -> Sandbox:
        return Sandbox(self._loop, self._loop.run(self.inner.get(sandbox)))

    def sandboxes(self, **how: Any) -> List[SandboxInfo]:
        return self._loop.run(self.inner.sandboxes(**how))

    def pause(self, **how: Any) -> OperationList:
        return self._loop.run(self.inner.pause(**how))

    def resume(self, **how: Any) -> OperationList:
        return self._loop.run(self.inner.resume(**how))

    def stop(self, **how: Any) -> OperationList:
        return self._loop.run(self.inner.stop(**how))

    def pause_task(self, task: str, level: Optional[str] = None,
                   **how: Any) -> OperationList:
        return self._loop.run(self.inner.pause_task(task, level, **how))

    def resume_task(self, task: str, **how: Any) -> OperationList:
        return self._loop.run(self.inner.resume_task(task, **how))

    def stop_task(self, task: str, **how: Any) -> OperationList:
        return self._loop.run(self.inner.stop_task(task, **how))

    def pause_project(self, project: str, level: Optional[str] = None,
                      **how: Any) -> OperationList:
        return self._loop.run(self.inner.pause_project(project, level, **how))

    def resume_project(self, project: str, **how: Any) -> OperationList:
        return self._loop.run(self.inner.resume_project(project, **how))

    def stop_project(self, project: str, **how: Any) -> OperationList:
        return self._loop.run(self.inner.stop_project(project, **how))

    def fork_snapshot(self, snapshot: str, count: int = 1,
                      **how: Any) -> List[Sandbox]:
        return [Sandbox(self._loop, s) for s in self._loop.run(
            self.inner.fork_snapshot(snapshot, count, **how))]

    def snapshots(self, project: Optional[str] = None) -> List[Snapshot]:
        return self._loop.run(self.inner.snapshots(project))

    def request(self, program: str, **how: Any) -> Line:
        return self._loop.run(self.inner.request(program, **how))

    def remove_snapshot(self, snapshot: str,
                        project: Optional[str] = None) -> None:
        self._loop.run(self.inner.remove_snapshot(snapshot, project))
