# SPDX-License-Identifier: Apache-2.0
"""Files of a sandbox, confined to its root whatever links it holds."""
from __future__ import annotations

import asyncio
import os
import stat as stat_
import tempfile
from typing import (TYPE_CHECKING, AsyncIterator, List, Optional, Union)

from ._wire import Line
from .errors import FileError, NotFound
from .types import FileEntry, FileEvent, bytes_field, bytes_of, data_field

if TYPE_CHECKING:
    from ._core import Core

__all__ = ["Files"]

Path = Union[str, bytes]
_PIECE = 512 * 1024
_INLINE = 384 * 1024


class Files:
    """``sandbox.files``.  Paths are text, or bytes where they are not UTF-8;
    ``user`` is who does it, the sandbox's own where it is not given.

    What all may raise: NotFound, FileError, PolicyDenied (not permitted),
    QuotaExceeded (disk), SandboxStopped, BadRequest.  Every call takes
    ``timeout`` in seconds, the client's where it is None.
    """

    def __init__(self, core: "Core", sandbox: str) -> None:
        self._core = core
        self._sandbox = sandbox

    def _fields(self, op: str, path: Path, user: Optional[str]) -> Line:
        fields: Line = {"op": op, "sandbox": self._sandbox,
                        **bytes_field("path", path)}
        if user is not None:
            fields["user"] = user
        return fields

    async def read(self, path: Path, *, offset: int = 0,
                   limit: Optional[int] = None, user: Optional[str] = None,
                   timeout: Optional[float] = None) -> bytes:
        """The bytes of a file, from ``offset`` on, ``limit`` at most.

        It is read in pieces of 512 KiB: one that changes meanwhile may come
        from two states of it.
        """
        parts: List[bytes] = []
        while limit is None or limit > 0:
            want = _PIECE if limit is None else min(_PIECE, limit)
            record = await self._core.ask(
                "file", {**self._fields("read", path, user),
                         "offset": offset, "limit": want},
                timeout=self._core.time(timeout))
            data = bytes_of(record, "data")
            parts.append(data)
            offset += len(data)
            limit = None if limit is None else limit - len(data)
            size = record.get("size")
            if not data or (isinstance(size, int) and offset >= size):
                break
        return b"".join(parts)

    async def read_text(self, path: Path, *, user: Optional[str] = None,
                        timeout: Optional[float] = None) -> str:
        """The same as text; UnicodeDecodeError where it is not UTF-8."""
        data = await self.read(path, user=user, timeout=timeout)
        return data.decode()

    async def write(self, path: Path, data: Union[str, bytes], *,
                    mode: Optional[int] = None, parents: bool = False,
                    user: Optional[str] = None,
                    timeout: Optional[float] = None) -> None:
        """Replace a file: whoever reads it sees the old content or the new.

        ``mode``: permissions of a new file, such as 0o644.  ``parents``: make
        missing directories.  Any size: what does not fit a line is uploaded.
        """
        raw = data.encode() if isinstance(data, str) else data
        if len(raw) > _INLINE:
            await self._write_large(path, raw, mode, parents, user, timeout)
            return
        fields = {**self._fields("write", path, user),
                  **data_field("data", raw)}
        if mode is not None:
            fields["mode"] = f"{mode:04o}"
        if parents:
            fields["parents"] = True
        await self._core.ask("file", fields, timeout=self._core.time(timeout),
                             keyed=True)

    async def _write_large(self, path: Path, data: bytes, mode: Optional[int],
                           parents: bool, user: Optional[str],
                           timeout: Optional[float]) -> None:
        if not parents:
            up: Path
            if isinstance(path, str):
                up = os.path.dirname(path)
            else:
                up = os.path.dirname(path)
            if up:
                await self.list(up, limit=1, user=user, timeout=timeout)
        loop = asyncio.get_running_loop()
        name = await loop.run_in_executor(None, _spill, data, mode)
        try:
            await self.upload(name, path, user=user, timeout=timeout)
        finally:
            os.unlink(name)

    async def list(self, path: Path, *, depth: int = 1,
                   limit: Optional[int] = None, user: Optional[str] = None,
                   timeout: Optional[float] = None) -> List[FileEntry]:
        """Entries of a directory, sorted; ``depth`` levels; 10000 unless
        ``limit`` says otherwise."""
        fields = {**self._fields("list", path, user), "depth": depth}
        if limit is not None:
            fields["limit"] = limit
        record = await self._core.ask("file", fields,
                                      timeout=self._core.time(timeout))
        entries = record.get("entries")
        return [FileEntry.of(e) for e in entries or [] if isinstance(e, dict)]

    async def stat(self, path: Path, *, user: Optional[str] = None,
                   timeout: Optional[float] = None) -> FileEntry:
        """One entry; a last link is not followed."""
        record = await self._core.ask("file", self._fields("stat", path, user),
                                      timeout=self._core.time(timeout))
        return FileEntry.of(record)

    async def exists(self, path: Path, *, user: Optional[str] = None,
                     timeout: Optional[float] = None) -> bool:
        """Is there something of that name?"""
        try:
            await self.stat(path, user=user, timeout=timeout)
        except NotFound as e:
            if e.code != "not_found":
                raise
            return False
        except FileError as e:
            if e.code != "not_directory":
                raise
            return False
        return True

    async def mkdir(self, path: Path, *, mode: Optional[int] = None,
                    parents: bool = False, user: Optional[str] = None,
                    timeout: Optional[float] = None) -> None:
        """Make a directory.  AlreadyExists, unless ``parents``."""
        fields = self._fields("mkdir", path, user)
        if mode is not None:
            fields["mode"] = f"{mode:04o}"
        if parents:
            fields["parents"] = True
        await self._core.ask("file", fields, timeout=self._core.time(timeout),
                             keyed=True)

    async def move(self, path: Path, to: Path, *, user: Optional[str] = None,
                   timeout: Optional[float] = None) -> None:
        """Rename, also to another file system of the sandbox."""
        await self._core.ask(
            "file", {**self._fields("move", path, user),
                     **bytes_field("to", to)},
            timeout=self._core.time(timeout), keyed=True)

    async def remove(self, path: Path, *, recursive: bool = False,
                     user: Optional[str] = None,
                     timeout: Optional[float] = None) -> None:
        """Remove a file, an empty directory, or with ``recursive`` a tree."""
        fields = self._fields("remove", path, user)
        if recursive:
            fields["recursive"] = True
        await self._core.ask("file", fields, timeout=self._core.time(timeout),
                             keyed=True)

    async def upload(self, source: Union[str, "os.PathLike[str]"],
                     path: Path, *, user: Optional[str] = None,
                     timeout: Optional[float] = None) -> None:
        """A file or tree of this machine to exactly ``path`` inside.

        Links stay links, modes and times are kept, owners are not.  FileError
        (``refused_entries``): what cannot be copied; ``record["refused"]`` has
        the list, the rest is there.
        """
        await self._transfer("put", os.fspath(source), path, user, timeout)

    async def download(self, path: Path,
                       target: Union[str, "os.PathLike[str]"], *,
                       user: Optional[str] = None,
                       timeout: Optional[float] = None) -> None:
        """A file or tree from inside to exactly ``target`` on this machine.

        Nothing is written outside it whatever the sandbox sends; what is
        refused is reported as for :meth:`upload`.
        """
        await self._transfer("get", os.fspath(target), path, user, timeout)

    async def _transfer(self, op: str, host: str, path: Path,
                        user: Optional[str], timeout: Optional[float]) -> None:
        fields = self._fields(op, path, user)
        fields.pop("op")
        await self._core.transfer(op, fields, host, timeout)

    async def watch(self, path: Path, *, recursive: bool = False,
                    user: Optional[str] = None,
                    timeout: Optional[float] = None
                    ) -> AsyncIterator[FileEvent]:
        """Changes below ``path`` as they happen; the first is ``watching``.

        It ends after ``timeout`` seconds (None: never), or when the iterator
        is closed.
        """
        fields = self._fields("watch", path, user)
        if recursive:
            fields["recursive"] = True
        if timeout is not None:
            fields["timeout_ms"] = max(1, int(timeout * 1000))
        queue: "asyncio.Queue[Optional[Line]]" = asyncio.Queue()

        async def work() -> None:
            try:
                await self._core.ask("file", fields, repeatable=False,
                                     on_event=queue.put_nowait)
            finally:
                queue.put_nowait(None)

        task = asyncio.ensure_future(work())
        try:
            while True:
                event = await queue.get()
                if event is None:
                    await task
                    return
                yield FileEvent.of(event)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _spill(data: bytes, mode: Optional[int]) -> str:
    fd, name = tempfile.mkstemp(prefix="dsec-write-")
    with os.fdopen(fd, "wb") as f:
        f.write(data)
        os.fchmod(fd, stat_.S_IMODE(0o644 if mode is None else mode))
    return name
