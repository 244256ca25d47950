# SPDX-License-Identifier: Apache-2.0
"""What a client needs of a transport: requests, and streams of bytes."""
from __future__ import annotations

import abc
import asyncio
from typing import Callable, List, Mapping, Optional, Sequence, Tuple

from ._wire import Line, OnEvent, one


class Lost(Exception):
    """The other end went away with a request under way; it may have been
    done.  ``sent``: whether the request had left us at all."""

    def __init__(self, message: str, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Channel(abc.ABC):
    """The streams of one command that was started or attached to."""

    exec_id: str = ""
    offsets: Mapping[str, int]
    """Of each stream: how many bytes were written before what we get."""
    gaps: Mapping[str, int] = {}
    """Of each stream: how many bytes in the middle are in no recording."""

    @property
    def has_input(self) -> bool:
        """write() is of use; else input goes in requests of its own."""
        return True

    @abc.abstractmethod
    async def read(self, stream: str) -> bytes:
        """Some bytes; empty at the end.  Lost."""

    @abc.abstractmethod
    async def write(self, data: bytes) -> None:
        """To its stdin or terminal, as fast as it takes it.  Lost;
        BrokenPipeError where nobody reads."""

    @abc.abstractmethod
    async def close_stdin(self) -> None:
        """The end of its input."""

    @abc.abstractmethod
    async def record(self) -> Line:
        """Its final record, when it has ended.  Lost."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Let go; the command goes on."""


class Transport(abc.ABC):
    """How requests get to the programs and records back."""

    direct = True
    """Starting a command and following it is one request; else two, so that
    following can end without the command."""

    @abc.abstractmethod
    async def open(self) -> None:
        """Be ready for requests.  DSecError."""

    @abc.abstractmethod
    async def close(self) -> None:
        """End, whatever is under way."""

    def orphans(self) -> int:
        """Requests whose caller is gone and whose answer matters."""
        return 0

    @abc.abstractmethod
    async def exchange(self, program: str, fields: Line,
                       on_event: Optional[OnEvent] = None,
                       last: Callable[[List[Line]], bool] = one,
                       orphan: Optional[OnEvent] = None) -> List[Line]:
        """Send a request, answer its final records.  Lost.  When it is
        cancelled, so is the request; records that come all the same go to
        ``orphan``."""

    @abc.abstractmethod
    async def select(self, program: str, fields: Line,
                     on_event: Optional[OnEvent] = None) -> List[Line]:
        """The same for a request about many sandboxes: a record of each."""

    @abc.abstractmethod
    async def channel(self, fields: Line, streams: Sequence[str]) -> Channel:
        """An exec or attach whose streams we get.  Lost, DSecError."""

    @abc.abstractmethod
    async def connect(self, sandbox: str, port: int) -> Tuple[
            asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP connection to a port inside.  Lost, DSecError."""

    @abc.abstractmethod
    async def upload(self, fields: Line, source: str) -> Line:
        """A file or tree of ours into the sandbox; the final record."""

    @abc.abstractmethod
    async def download(self, fields: Line, target: str) -> Line:
        """The reverse."""
