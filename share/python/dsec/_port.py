# SPDX-License-Identifier: Apache-2.0
"""A stream of a connection in the shape of a socket."""
from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Optional, Tuple

from ._transport import Lost
from ._wire import WINDOW

if TYPE_CHECKING:
    from ._remote import Connection, RemoteChannel


class PortTransport(asyncio.Transport):
    def __init__(self, c: Connection, channel: RemoteChannel,
                 protocol: asyncio.StreamReaderProtocol) -> None:
        super().__init__()
        self._channel = channel
        self._protocol = protocol
        self._queue: "asyncio.Queue[Optional[bytes]]" = asyncio.Queue()
        self._held = 0
        self._paused = False
        self._go = asyncio.Event()
        self._go.set()
        self._closing = False
        self._eof = False
        c.spawn(self._receive())
        c.spawn(self._transmit())

    async def _receive(self) -> None:
        error: Optional[Exception] = None
        try:
            while True:
                await self._go.wait()
                data = await self._channel.read("socket")
                if not data:
                    self._protocol.eof_received()
                    break
                self._protocol.data_received(data)
        except Lost as e:
            error = ConnectionResetError(str(e))
        if error is not None and not self._closing:
            self._end(error)

    async def _transmit(self) -> None:
        try:
            while True:
                data = await self._queue.get()
                if data is None:
                    await self._channel.close_stdin()
                    continue
                await self._channel.write(data)
                self._held -= len(data)
                if self._paused and self._held < WINDOW // 2:
                    self._paused = False
                    self._protocol.resume_writing()
        except (Lost, OSError):
            pass

    def _end(self, error: Optional[Exception]) -> None:
        self._closing = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._protocol.connection_lost, error)

    def write(self, data: Any) -> None:
        if self._closing or self._eof or not data:
            return
        self._queue.put_nowait(bytes(data))
        self._held += len(data)
        if self._held > WINDOW and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._eof:
            self._eof = True
            self._queue.put_nowait(None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._go.clear()

    def resume_reading(self) -> None:
        self._go.set()

    def is_reading(self) -> bool:
        return self._go.is_set()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._channel._c.spawn(self._finish())

    async def _finish(self) -> None:
        """What was written is sent first."""
        end = time.monotonic() + 5
        while self._held > 0 and time.monotonic() < end:
            await asyncio.sleep(0.01)
        await self._channel.close()
        self._protocol.connection_lost(None)

    def abort(self) -> None:
        self.close()


def port_streams(c: Connection, channel: RemoteChannel) -> Tuple[
        asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=WINDOW)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport = PortTransport(c, channel, protocol)
    protocol.connection_made(transport)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
