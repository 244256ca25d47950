# SPDX-License-Identifier: Apache-2.0
"""Commands whose output is followed as it comes, and terminals."""
from __future__ import annotations

import asyncio
import time
from typing import (TYPE_CHECKING, Any, AsyncIterator, Dict, List, Optional,
                    Tuple, Union)

from ._transport import Channel, Lost
from ._wire import TAKEN_S, Guard, Line, backoff, new_key
from .errors import ConnectionLost, DSecError
from .types import (CommandResult, OutputChunk, bytes_field, bytes_of,
                    data_field)

if TYPE_CHECKING:
    from ._core import Core

__all__ = ["OutputStream", "Process"]

_HEAD = 64 * 1024
_INPUT = 256 * 1024
_KEPT = 32 << 20
_PIECE_KB = 96


class OutputStream:
    """One output stream of a command: an asynchronous iterator of bytes.

    Every byte is delivered once and in order, over lost connections too: what
    was written meanwhile comes from the recording.  ``lost_bytes`` counts
    those that the recording does not have (it keeps the first and the last
    32 MiB).  Who does not read slows the command down.
    """

    def __init__(self, process: "Process", name: str) -> None:
        self._process = process
        self.name = name
        self.position = 0
        self.lost_bytes = 0
        self.head = b""
        self._ended = False
        self._held = b""
        self._reading = asyncio.Lock()
        self._seen: Optional[Channel] = None
        self._gap = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[bytes]:
        while True:
            data = await self.read()
            if not data:
                return
            yield data

    async def read(self, *, timeout: Optional[float] = None) -> bytes:
        """Some bytes as soon as there are any; empty at the end.

        ``timeout``: seconds; DeadlineExceeded, and nothing is lost.
        """
        async with Guard(timeout, f"{self.name}"), self._reading:
            if self._held:
                data, self._held = self._held, b""
                return data
            return await self._more()

    async def readline(self, *, timeout: Optional[float] = None) -> bytes:
        """A line with its newline; the last may have none; empty at the
        end.  Lines over 1 MiB come in pieces.  ``timeout`` as for
        :meth:`read`."""
        async with Guard(timeout, f"a line of {self.name}"), self._reading:
            line = b""
            while True:
                try:
                    data = self._held or await self._more()
                except BaseException:
                    self._held = line  # for who asks next
                    raise
                self._held = b""
                at = data.find(b"\n")
                if at >= 0:
                    line, self._held = line + data[:at + 1], data[at + 1:]
                    return line
                line += data
                if not data or len(line) > 1 << 20:
                    return line

    async def read_all(self, *, timeout: Optional[float] = None) -> bytes:
        """All that is left of it; ``timeout`` is for all of it, and what was
        read is kept for the next call."""
        parts: List[bytes] = []
        async with Guard(timeout, f"the rest of {self.name}"), self._reading:
            try:
                while True:
                    data = self._held or await self._more()
                    self._held = b""
                    if not data:
                        return b"".join(parts)
                    parts.append(data)
            except BaseException:
                self._held = b"".join(parts)
                raise

    async def _more(self) -> bytes:
        while not self._ended:
            channel = self._process._channel
            try:
                data = await self._next(channel)
            except Lost:
                await self._process._reconnect(channel)
                continue
            if data:
                self._process._failing = None
                self.position += len(data)
                if len(self.head) < _HEAD:
                    self.head += data[:_HEAD - len(self.head)]
                return data
            self._ended = True
        return b""

    async def _next(self, channel: Channel) -> bytes:
        if channel is not self._seen:
            self._seen = channel
            self._gap = channel.gaps.get(self.name, 0)
        if self._gap and self.position >= _KEPT:
            # What comes now is from behind the part that was not kept.
            self.lost_bytes += self._gap
            self.position += self._gap
            self._gap = 0
        start = channel.offsets.get(self.name)
        if start is not None and self.position < start:
            return await self._recorded(start)
        data = await channel.read(self.name)
        if data or not self._process._attached:
            return data
        # We came late: what the recording has beyond that is ours as well.
        record = await channel.record()
        total = record.get(self.name + "_bytes")
        if isinstance(total, int) and self.position < total:
            return await self._recorded(total)
        return b""

    async def _recorded(self, end: int) -> bytes:
        data, at, after = await self._process._output(
            self.name, self.position, min(_PIECE_KB * 1024,
                                          end - self.position))
        if at > self.position:
            self.lost_bytes += at - self.position
            self.position = at
        if not data:
            gone = max(0, end - self.position) if after <= self.position else 0
            self.lost_bytes += gone
            self.position += gone
        return data


class Process:
    """A command that was started, or attached to.

    ``exec_id`` is its name, with which :meth:`Sandbox.attach` takes it up
    again from anywhere.  Read ``stdout`` and ``stderr`` (both, or one with the
    other left out when it was started), or leave them to :meth:`wait`.
    Leaving an ``async with`` block kills a command that still runs;
    :meth:`detach` first, and it does not.
    """

    def __init__(self, core: "Core", sandbox: str, channel: Channel,
                 streams: Tuple[str, ...], attached: bool, tty: bool) -> None:
        self._core = core
        self.sandbox = sandbox
        self.exec_id = channel.exec_id
        self._channel = channel
        self._attached = attached
        self._streams = streams
        self._tty = tty
        self.reconnects = 0
        # Since when nothing but losses came, and how often.
        self._failing: Optional[float] = None
        self._attempt = 0
        self._attached_at = 0.0
        self._lock = asyncio.Lock()
        self._writing = asyncio.Lock()
        self.result: Optional[CommandResult] = None
        self.stdout = OutputStream(self, "stdout")
        self.stderr = OutputStream(self, "stderr")
        if "stdout" not in streams:
            self.stdout._ended = True
        if "stderr" not in streams:
            self.stderr._ended = True

    async def _reconnect(self, broken: Channel) -> None:
        async with self._lock:
            if self._channel is not broken:
                return
            await broken.close()
            now = time.monotonic()
            patience = self._core.retry.lost_s
            if (self._failing is None
                    or now - self._attached_at > min(patience, TAKEN_S)):
                self._failing, self._attempt = now, 0
            end = self._failing + patience
            while True:
                self._attempt += 1
                try:
                    channel = await self._attach()
                    if self._attempt > 1 and time.monotonic() > end:
                        await channel.close()
                        raise Lost("it is lost again and again")
                    break
                except Lost as lost:
                    error: DSecError = ConnectionLost(str(lost))
                except DSecError as e:
                    if self._core.patience(e, True) <= 0:
                        raise
                    error = e
                delay = max(backoff(self._attempt), error.retry_after or 0)
                if time.monotonic() + delay > end:
                    raise error
                await asyncio.sleep(delay)
            self._attached = True
            self._attached_at = time.monotonic()
            self.reconnects += 1
            self._channel = channel

    async def _attach(self) -> Channel:
        fields: Line = {"op": "attach", "sandbox": self.sandbox,
                        "exec": self.exec_id}
        for stream in (self.stdout, self.stderr):
            if stream.name in self._streams:
                fields[stream.name + "_offset"] = stream.position
        return await self._core.transport.channel(fields, self._streams)

    async def _output(self, stream: str, offset: int,
                      limit: int) -> Tuple[bytes, int, int]:
        record = await self._core.ask(
            "exec", {"op": "output", "sandbox": self.sandbox,
                     "exec": self.exec_id, "stream": stream, "offset": offset,
                     "limit": max(1, limit)}, timeout=self._core.timeout)
        at = record.get("offset")
        after = record.get("next")
        return (bytes_of(record, "data"), at if isinstance(at, int) else offset,
                after if isinstance(after, int) else offset)

    async def stream(self) -> AsyncIterator[OutputChunk]:
        """Both streams, as bytes come, until both have ended."""
        queue: "asyncio.Queue[Union[OutputChunk, BaseException, None]]" = (
            asyncio.Queue(1))

        async def pump(stream: OutputStream) -> None:
            end: Optional[BaseException] = None
            try:
                async for data in stream:
                    await queue.put(OutputChunk(stream.name, data))
            except Exception as e:
                end = e
            await queue.put(end)

        tasks = [asyncio.ensure_future(pump(s))
                 for s in (self.stdout, self.stderr)]
        try:
            left = len(tasks)
            while left:
                item = await queue.get()
                if isinstance(item, OutputChunk):
                    yield item
                elif item is not None:
                    raise item
                else:
                    left -= 1
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def write(self, data: Union[str, bytes], *,
                    timeout: Optional[float] = None) -> None:
        """To its stdin or terminal, as fast as it takes it.

        BrokenPipeError: nobody reads.  ConnectionLost: what was written to a
        terminal while its connection broke may have arrived or not.
        DeadlineExceeded after ``timeout`` seconds: a part of it was taken.
        """
        if isinstance(data, str):
            data = data.encode()
        async with Guard(timeout, "the input"):
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        channel = self._channel
        try:
            if channel.has_input:
                await channel.write(data)
                return
        except Lost as lost:
            raise ConnectionLost(f"its input is gone: {lost}") from None
        async with self._writing:
            for at in range(0, len(data), _INPUT):
                await self._input(data[at:at + _INPUT], False)

    async def _input(self, data: bytes, close: bool) -> None:
        """A piece with a key of its own: it arrives once."""
        fields: Line = {"op": "input", "sandbox": self.sandbox,
                        "exec": self.exec_id, **data_field("data", data)}
        if close:
            fields["close"] = True
        try:
            await self._core.ask("exec", fields, keyed=True)
        except DSecError as e:
            if e.code in ("bad_value", "exec_unknown"):
                raise BrokenPipeError("nobody reads its stdin") from None
            raise

    async def close_stdin(self, *, timeout: Optional[float] = None) -> None:
        """The end of its input (of a terminal: Ctrl-D)."""
        async with Guard(self._core.time(timeout), "the end of the input"):
            if self._channel.has_input:
                await self._channel.close_stdin()
                return
            async with self._writing:
                await self._input(b"", True)

    async def resize(self, rows: int, cols: int, *,
                     timeout: Optional[float] = None) -> None:
        """The size of its terminal, in characters."""
        await self._core.ask("exec", {
            "op": "resize", "sandbox": self.sandbox, "exec": self.exec_id,
            "rows": rows, "cols": cols}, timeout=self._core.time(timeout))

    async def signal(self, signal: Union[str, int] = "SIGTERM", *,
                     timeout: Optional[float] = None) -> None:
        """A signal to every process of it.  NotFound: it has ended."""
        await self._core.ask("exec", {
            "op": "signal", "sandbox": self.sandbox, "exec": self.exec_id,
            "signal": str(signal)}, timeout=self._core.time(timeout))

    async def kill(self, *, timeout: Optional[float] = None) -> None:
        """SIGKILL; fine for one that has ended."""
        try:
            await self.signal("SIGKILL", timeout=timeout)
        except DSecError as e:
            if e.code not in ("exec_unknown", "not_found", "stopped"):
                raise

    async def wait(self, timeout: Optional[float] = None) -> CommandResult:
        """Until it has ended.  Output that nobody reads is passed over; the
        result has the first 64 KiB of each stream all the same.

        DeadlineExceeded after ``timeout`` seconds; it runs on.
        SandboxDied, SandboxStopped: there will be no result.
        """
        if self.result is not None:
            return self.result
        async with Guard(timeout, f"the wait for {self.exec_id}"):
            drains = [asyncio.ensure_future(self._drain(s))
                      for s in (self.stdout, self.stderr)]
            try:
                record = await self._final()
                await asyncio.gather(*drains)
            finally:
                for task in drains:
                    task.cancel()
                await asyncio.gather(*drains, return_exceptions=True)
        self.result = self._result(record)
        return self.result

    async def _drain(self, stream: OutputStream) -> None:
        if stream._reading.locked():
            return  # somebody reads it
        async for _ in stream:
            pass

    async def _final(self) -> Line:
        while True:
            channel = self._channel
            try:
                return await channel.record()
            except Lost:
                await self._reconnect(channel)

    def _result(self, record: Line) -> CommandResult:
        record = {"sandbox": self.sandbox, **record}
        whole = True
        for stream in (self.stdout, self.stderr):
            if stream.name in self._streams:
                record.pop(stream.name, None)
                record.pop(stream.name + "_b64", None)
                record.update(bytes_field(stream.name, stream.head))
                total = record.get(stream.name + "_bytes")
                whole = whole and total in (None, len(stream.head))
        record["truncated"] = not whole
        return CommandResult.of(record)

    async def detach(self) -> None:
        """Let go; the command goes on, and so does its recording."""
        await self._channel.close()

    async def close(self) -> None:
        """Kill it if it still runs, and let go."""
        if self.result is None:
            try:
                await self.kill()
            except DSecError:
                pass
        await self._channel.close()

    async def __aenter__(self) -> "Process":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.close()


async def start(core: "Core", fields: Line, streams: Tuple[str, ...]
                ) -> Process:
    """Start a command so that a lost answer does not start it twice."""
    fields = {**fields, "key": new_key()}
    sandbox = str(fields["sandbox"])
    tty = fields.get("tty") is True
    end = time.monotonic() + core.retry.lost_s
    attempt = 0
    sent = not core.transport.direct
    while True:
        attempt += 1
        error: DSecError
        try:
            if sent:
                channel = await _join(core, fields, streams)
            else:
                channel = await core.transport.channel(fields, streams)
            return Process(core, sandbox, channel, streams, sent, tty)
        except Lost as lost:
            sent = sent or lost.sent
            error = ConnectionLost(str(lost))
        except DSecError as e:
            if core.patience(e, True) <= 0:
                raise
            error = e
        delay = max(backoff(attempt), error.retry_after or 0.0)
        if time.monotonic() + delay > end:
            raise error
        await asyncio.sleep(delay)


async def _join(core: "Core", fields: Line,
                streams: Tuple[str, ...]) -> Channel:
    """It may run already: the same key finds its name, then we attach."""
    ask: Dict[str, Any] = {**fields, "detach": True}
    record = await core.ask("exec", ask, timeout=core.timeout)
    return await core.transport.channel(
        {"op": "attach", "sandbox": fields["sandbox"],
         "exec": record.get("exec"), **from_start(streams)}, streams)


def from_start(streams: Tuple[str, ...]) -> Line:
    """An attach that wants all there was."""
    return {stream + "_offset": 0 for stream in streams}
