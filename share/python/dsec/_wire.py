# SPDX-License-Identifier: Apache-2.0
"""Lines, keys and deadlines: what both transports share."""
from __future__ import annotations

import asyncio
import json
import random
import secrets
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type
from types import TracebackType

from .errors import BadRequest, DeadlineExceeded, ProtocolError

LINE_MAX = 1 << 20
"""Bytes of a line without its newline."""
DATA_MAX = 256 * 1024
"""Bytes that one frame may announce."""
WINDOW = 256 * 1024
"""Bytes of a stream that may be without credit."""
READ_LIMIT = LINE_MAX + 2
TAKEN_S = 5.0
"""An attempt that was lost only after so many seconds had been taken: what is
lost then is lost anew."""

Line = Dict[str, Any]
OnEvent = Callable[[Line], None]


def encode(obj: Mapping[str, Any]) -> bytes:
    """A line with its newline; BadRequest where it cannot be one."""
    try:
        text = json.dumps(obj, ensure_ascii=False, separators=(",", ":"),
                          allow_nan=False).encode("utf-8")
    except UnicodeEncodeError as e:
        raise BadRequest(f"a request is not UTF-8: {e}",
                         code="bad_record") from None
    except (TypeError, ValueError) as e:
        raise BadRequest(f"a request cannot be written: {e}",
                         code="bad_value") from None
    if len(text) > LINE_MAX:
        raise BadRequest(f"a request has {len(text)} bytes, {LINE_MAX} at "
                         "most", code="too_large")
    return text + b"\n"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def decode(line: bytes) -> Line:
    """The object of a line; ProtocolError where it is none."""
    if len(line) > LINE_MAX + 1:
        raise ProtocolError("a line is too long")
    try:
        obj = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise ProtocolError(f"a line is no JSON: {e}") from None
    if not isinstance(obj, dict):
        raise ProtocolError("a line is no object")
    return obj


def new_key() -> str:
    """An idempotency key: a new one for every call that a caller makes."""
    return "py-" + secrets.token_hex(16)


def ms(seconds: float) -> int:
    """Milliseconds, at least 1."""
    return max(1, int(seconds * 1000))


class Guard:
    """``async with Guard(seconds):`` ends what is inside with
    DeadlineExceeded when the time is up; None is for ever."""

    def __init__(self, seconds: Optional[float], what: str = "it") -> None:
        self._seconds = seconds
        self._what = what
        self._task: Optional["asyncio.Task[Any]"] = None
        self._handle: Optional[asyncio.TimerHandle] = None
        self._fired = False

    def _fire(self) -> None:
        self._fired = True
        if self._task is not None:
            self._task.cancel()

    async def __aenter__(self) -> "Guard":
        if self._seconds is not None:
            self._task = asyncio.current_task()
            loop = asyncio.get_running_loop()
            self._handle = loop.call_later(max(0.0, self._seconds),
                                           self._fire)
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]],
                        exc: Optional[BaseException],
                        tb: Optional[TracebackType]) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._fired and kind is asyncio.CancelledError:
            uncancel = getattr(self._task, "uncancel", None)
            if uncancel is not None:
                uncancel()
            raise DeadlineExceeded(
                f"{self._what} was not done in {self._seconds:.3f} s"
            ) from None


def backoff(attempt: int, base: float = 0.05, most: float = 5.0) -> float:
    """Seconds before attempt ``attempt`` (from 1): doubling, half of it
    random."""
    full = min(most, base * (1 << min(attempt - 1, 16)))
    return full * (0.5 + random.random() / 2)


class Pending:
    """A request that waits: its records, and its end.

    One whose caller has gone (:meth:`abandon`) still hands its good records
    to ``orphan``: what they made belongs to nobody now.
    """

    def __init__(self, last: Callable[[List[Line]], bool],
                 on_event: Optional[OnEvent] = None,
                 orphan: Optional[OnEvent] = None) -> None:
        self.records: List[Line] = []
        self.done: "asyncio.Future[List[Line]]" = (
            asyncio.get_running_loop().create_future())
        self._last = last
        self._on_event = on_event
        self._orphan = orphan
        self.abandoned = False

    def take(self, line: Line) -> bool:
        """A line of it; True when it was the last."""
        if "ok" not in line:
            if self._on_event is not None and (self.abandoned
                                               or not self.done.done()):
                try:
                    self._on_event(line)
                except Exception as e:  # the caller's own mistake
                    self.lose(e)
                    return True
            return False
        self.records.append(line)
        if self.abandoned and self._orphan is not None:
            self._orphan(line)
        if not self._last(self.records):
            return False
        if not self.done.done():
            self.done.set_result(self.records)
        return True

    def abandon(self) -> bool:
        """The caller is gone; True where the answer matters all the same.
        It may just have come, and the caller not have been told."""
        self.abandoned = True
        if self._orphan is None:
            return False
        for line in self.records:
            self._orphan(line)
        return True

    def lose(self, why: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(why)
            self.done.exception()  # nobody may be waiting any more


def one(records: List[Line]) -> bool:
    """Most requests have one record."""
    return True


def copies(count: int) -> Callable[[List[Line]], bool]:
    """A record per copy, or one without an index: the request as a whole."""
    def last(records: List[Line]) -> bool:
        return len(records) >= max(1, count) or "index" not in records[-1]
    return last


def split_address(text: str, port: int = 7443) -> Tuple[str, int]:
    """HOST, HOST:PORT, [V6]:PORT."""
    if "/" in text:
        raise BadRequest(f"'{text}' is no HOST:PORT")
    host, sep, tail = text.rpartition(":")
    if text.startswith("["):
        inner, _, tail = text[1:].partition("]")
        host, sep, tail = inner, tail[:1], tail[1:]
        if not sep:
            return host, port
    elif not sep or ":" in host:
        return text, port
    if not tail.isascii() or not tail.isdigit() or not 0 < int(tail) < 65536:
        raise BadRequest(f"'{text}' is no HOST:PORT")
    return host, int(tail)
