# SPDX-License-Identifier: Apache-2.0
"""Calls: a transport with retries, deadlines and idempotency keys."""
from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import (Any, Awaitable, Callable, Coroutine, List, Optional,
                    Sequence, Set, Tuple, TypeVar)

from ._transport import Channel, Lost, Transport
from ._wire import (TAKEN_S, Guard, Line, OnEvent, backoff, ms, new_key,
                    one)
from .errors import (Busy, CapacityError, ConnectionLost, DeadlineExceeded,
                     DSecError, HelperLost, error_of)

T = TypeVar("T")
log = logging.getLogger("dsec")

# The other end keeps the deadline; we wait so much longer for its answer.
GRACE_S = 5.0


@dataclass
class RetryPolicy:
    """When a call is made again, by itself.

    Only calls that cannot act twice are: those that read, and those with an
    idempotency key, which every call that changes something has.  Times are
    seconds.
    """

    lost_s: float = 30.0
    """How long a lost connection or program, or a busy node, is tried
    again."""
    capacity_s: float = 0.0
    """How long a refusal for capacity is; 0: it is the caller's at once."""
    max_delay: float = 5.0
    """The longest pause between two attempts, unless the answer names a
    longer one."""


def was_lost(error: DSecError) -> bool:
    """It broke on the way, rather than being refused."""
    return isinstance(error, ConnectionLost) or error.code == "node_away"


class Core:
    """What client and sandboxes share."""

    def __init__(self, transport: Transport, retry: RetryPolicy,
                 timeout: float, command_timeout: Optional[float]) -> None:
        self.transport = transport
        self.retry = retry
        self.timeout = timeout
        self.command_timeout = command_timeout
        self._background: Set["asyncio.Task[Any]"] = set()
        self._told = float("-inf")  # when that somebody waits

    def background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Something that nobody waits for, but close() does, a while."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        end = time.monotonic() + GRACE_S
        while ((self._background or self.transport.orphans())
               and time.monotonic() < end):
            if self._background:
                await asyncio.wait(set(self._background),
                                   timeout=end - time.monotonic())
            else:
                await asyncio.sleep(0.02)
        for task in list(self._background):
            task.cancel()
        await self.transport.close()

    def _delay(self, error: DSecError, attempt: int) -> float:
        delay = backoff(attempt, most=self.retry.max_delay)
        return max(delay, error.retry_after or 0.0)

    def _tell(self, error: DSecError, since: float, until: float) -> None:
        """Who waits for what cannot be reached learns why: not at once, and
        not with each of many calls."""
        if (was_lost(error) and until >= max(since + TAKEN_S,
                                             self._told + self.retry.lost_s)):
            self._told = until
            log.warning("trying again: %s", error)

    def patience(self, error: DSecError, repeatable: bool) -> float:
        """Seconds for which this failure is worth another attempt."""
        if isinstance(error, CapacityError):
            return self.retry.capacity_s if error.retry else 0.0
        if isinstance(error, (Busy, HelperLost)):
            return self.retry.lost_s
        if isinstance(error, ConnectionLost):
            return self.retry.lost_s if repeatable else 0.0
        return 0.0

    async def call(self, program: str, fields: Line, *,
                   timeout: Optional[float] = None, keyed: bool = False,
                   repeatable: bool = True,
                   on_event: Optional[OnEvent] = None,
                   last: Callable[[List[Line]], bool] = one,
                   orphan: Optional[OnEvent] = None,
                   select: bool = False) -> List[Line]:
        """The final records of a request.

        ``keyed``: it changes something and gets a key of its own.  A single
        record that is not ok is raised; of several the caller looks at each.
        """
        if keyed and "key" not in fields:
            fields = {**fields, "key": new_key()}
        began = time.monotonic()
        end = None if timeout is None else began + timeout
        failing: Optional[float] = None
        attempt = 0
        unsure = False  # it may have been done, and nobody told us
        while True:
            attempt += 1
            tried = time.monotonic()
            error: DSecError
            try:
                records = await self._once(program, fields, end, on_event,
                                           last, orphan, select)
            except asyncio.CancelledError:
                if unsure and orphan is not None:
                    self.background(self._resolve(program, fields, last,
                                                  orphan))
                raise
            except Lost as lost:
                error = ConnectionLost(str(lost))
                again = repeatable or not lost.sent
                unsure = unsure or lost.sent
            else:
                if len(records) != 1 or records[0].get("ok") is not False:
                    return records
                if select and records[0].get("sandbox"):
                    return records
                error = error_of(records[0])
                again = repeatable or not isinstance(error, HelperLost)
            # Of one that may have been made a control asks the nodes first.
            if (program == "run" and "key" in fields
                    and not self.transport.direct):
                fields = {**fields, "again": True}
            now = time.monotonic()
            if failing is None or (was_lost(error) and now - tried > TAKEN_S):
                failing, attempt = now, 1
            delay = self._delay(error, attempt)
            self._tell(error, failing, now + delay)
            if not again or now + delay > failing + self.patience(error, again):
                raise error
            if end is not None and now + delay > end:
                raise error
            try:
                await asyncio.sleep(delay)
            except asyncio.CancelledError:
                if unsure and orphan is not None:
                    self.background(self._resolve(program, fields, last,
                                                  orphan))
                raise

    async def _resolve(self, program: str, fields: Line,
                       last: Callable[[List[Line]], bool],
                       orphan: OnEvent) -> None:
        """What a call made that was given up while nobody knew whether it
        had: the same key answers that."""
        for record in await self.call(program, fields, last=last,
                                      timeout=self.timeout):
            orphan(record)

    async def _once(self, program: str, fields: Line, end: Optional[float],
                    on_event: Optional[OnEvent],
                    last: Callable[[List[Line]], bool],
                    orphan: Optional[OnEvent], select: bool) -> List[Line]:
        left: Optional[float] = None
        if end is not None:
            left = end - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded("the time was up before it was asked")
            if program != "ps" or fields.get("op") == "wait":
                fields = {**fields, "deadline_ms": ms(left)}
        guard = None if left is None else left + GRACE_S
        async with Guard(guard, f"'{program}'"):
            if select:
                return await self.transport.select(program, fields, on_event)
            return await self.transport.exchange(program, fields, on_event,
                                                 last, orphan)

    def stop_orphan(self, record: Line) -> None:
        """A sandbox whose maker was cancelled: nobody knows of it but us."""
        sandbox = record.get("sandbox")
        if record.get("ok") is not True or not isinstance(sandbox, str):
            return
        self.background(self.call(
            "pause", {"sandbox": sandbox, "op": "stop", "grace_ms": 0},
            timeout=self.timeout))

    async def _again(self, work: Callable[[], Awaitable[T]],
                     timeout: Optional[float], what: str) -> T:
        """``work`` until it succeeds, as the policy says."""
        end: Optional[float] = None
        attempt = 0
        async with Guard(timeout, what):
            while True:
                attempt += 1
                tried = time.monotonic()
                error: DSecError
                try:
                    return await work()
                except Lost as lost:
                    error = ConnectionLost(str(lost))
                except DSecError as e:
                    error = e
                now = time.monotonic()
                if end is None or (was_lost(error) and now - tried > TAKEN_S):
                    end, attempt = now + self.retry.lost_s, 1
                delay = self._delay(error, attempt)
                self._tell(error, end - self.retry.lost_s, now + delay)
                if (self.patience(error, True) <= 0
                        or time.monotonic() + delay > end):
                    raise error
                await asyncio.sleep(delay)

    async def connect(self, sandbox: str, port: int,
                      timeout: Optional[float]) -> Tuple[
            asyncio.StreamReader, asyncio.StreamWriter]:
        """To a port inside; nothing has been said on it yet, so again."""
        return await self._again(
            lambda: self.transport.connect(sandbox, port), self.time(timeout),
            "the connection")

    async def channel(self, fields: Line, streams: Sequence[str],
                      timeout: Optional[float]) -> Channel:
        """An attach, which does no harm a second time."""
        return await self._again(
            lambda: self.transport.channel(fields, streams),
            self.time(timeout), "the attach")

    async def transfer(self, op: str, fields: Line, host: str,
                       timeout: Optional[float]) -> Line:
        """put and get: exact names, so a second time does no harm."""
        if op == "put":
            fields = {**fields, "key": new_key()}

        async def once() -> Line:
            if op == "put":
                record = await self.transport.upload(fields, host)
            else:
                record = await self.transport.download(fields, host)
            if record.get("ok") is not True:
                raise error_of(record)
            return record
        return await self._again(once, timeout, f"'{op}'")

    async def ask(self, program: str, fields: Line, **how: Any) -> Line:
        """The same with one record."""
        return (await self.call(program, fields, **how))[0]

    async def events(self, program: str, fields: Line, event: str,
                     **how: Any) -> List[Line]:
        """The same; the events of that name, of which the record has the
        ``count``.  Those of an attempt that was made again come first."""
        found: List[Line] = []

        def on_event(line: Line) -> None:
            if line.get("event") == event:
                found.append(line)
        record = await self.ask(program, fields, on_event=on_event, **how)
        count = record.get("count")
        if not isinstance(count, int) or count > len(found):
            return found
        return found[len(found) - count:]

    def time(self, timeout: Optional[float]) -> float:
        """Seconds for a call: its own, or the client's."""
        return self.timeout if timeout is None else timeout
