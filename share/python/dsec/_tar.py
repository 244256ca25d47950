# SPDX-License-Identifier: Apache-2.0
"""Trees as tar streams.  What comes from a sandbox is hostile: nothing is
written outside the one name that was asked for, whatever the stream says."""
from __future__ import annotations

import os
import stat
import tarfile
from typing import IO, Any, Dict, List, Optional

ENTRIES_MAX = 2_000_000
BYTES_MAX = 1 << 40
_TOLD_MAX = 1000

Refused = List[Dict[str, Any]]


def pack(source: str, name: str, out: IO[bytes]) -> Refused:
    """``source`` under ``name`` to ``out``; what was left out."""
    refused: Refused = []
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT,
                      dereference=False, encoding="utf-8",
                      errors="surrogateescape") as tar:
        _add(tar, source, name, refused)
    return refused


def _add(tar: tarfile.TarFile, path: str, name: str, refused: Refused) -> None:
    st = os.lstat(path)
    if not (stat.S_ISREG(st.st_mode) or stat.S_ISDIR(st.st_mode)
            or stat.S_ISLNK(st.st_mode)):
        _tell(refused, name, "not_regular", "a device, FIFO or socket")
        return
    info = tar.gettarinfo(path, name)
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode &= 0o777
    if info.isreg():
        with open(path, "rb") as f:
            tar.addfile(info, f)
        return
    tar.addfile(info)
    if info.isdir():
        for entry in sorted(os.listdir(path)):
            _add(tar, os.path.join(path, entry), name + "/" + entry, refused)


def _tell(refused: Refused, path: str, code: str, message: str) -> None:
    if len(refused) < _TOLD_MAX:
        refused.append({"path": path, "code": code, "message": message})


class _Bad(Exception):
    pass


class Extractor:
    """Unpack a stream whose only top is ``name`` into the directory
    ``into``."""

    def __init__(self, into: str, name: str) -> None:
        self._root = os.open(into, os.O_RDONLY | os.O_DIRECTORY
                             | os.O_CLOEXEC)
        self._name = name
        self.refused: Refused = []
        self.entries = 0
        self.bytes = 0

    def close(self) -> None:
        os.close(self._root)

    def run(self, source: IO[bytes]) -> None:
        """All of it.  tarfile.TarError, OSError (a full disk)."""
        late: List[tarfile.TarInfo] = []
        with tarfile.open(fileobj=source, mode="r|", encoding="utf-8",
                          errors="surrogateescape") as tar:
            for member in tar:
                # They are not kept: there may be any number of them.
                setattr(tar, "members", [])
                self.entries += 1
                if self.entries > ENTRIES_MAX:
                    raise tarfile.TarError("too many entries")
                try:
                    self._one(tar, member)
                    if member.isdir():
                        late.append(member)
                except _Bad as e:
                    _tell(self.refused, member.name, "refused_entries", str(e))
                except FileExistsError as e:
                    _tell(self.refused, member.name, "exists", str(e.strerror))
        # A directory without write permission would refuse its own entries.
        for member in reversed(late):
            self._finish_dir(member)

    def _parts(self, name: str) -> List[str]:
        if name.startswith("/") or "\0" in name:
            raise _Bad("an absolute name")
        parts = [p for p in name.split("/") if p not in ("", ".")]
        if ".." in parts:
            raise _Bad("a name with '..'")
        if not parts or parts[0] != self._name:
            raise _Bad("outside of what was asked for")
        return parts

    def _parent(self, parts: List[str]) -> int:
        """The directory of its name, entered step by step, through no link."""
        fd = os.dup(self._root)
        for part in parts[:-1]:
            try:
                deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY
                                 | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            except OSError:
                raise _Bad("below what is no directory") from None
            finally:
                os.close(fd)
            fd = deeper
        return fd

    def _one(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = self._parts(member.name)
        parent = self._parent(parts)
        try:
            if member.isdir():
                self._dir(parts[-1], parent)
            elif member.isreg():
                self._file(tar, member, parts[-1], parent)
            elif member.issym():
                self._clear(parts[-1], parent)
                os.symlink(member.linkname, parts[-1], dir_fd=parent)
            elif member.islnk():
                self._link(member, parts[-1], parent)
            else:
                raise _Bad("a device or FIFO")
        finally:
            os.close(parent)

    def _clear(self, name: str, parent: int) -> None:
        try:
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):
            raise _Bad("a directory is in its place") from None

    def _dir(self, name: str, parent: int) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            st = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(st.st_mode):
                raise _Bad("a file is in its place") from None

    def _file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str,
              parent: int) -> None:
        self.bytes += member.size
        if self.bytes > BYTES_MAX:
            raise tarfile.TarError("too many bytes")
        source = tar.extractfile(member)
        if source is None:
            raise _Bad("it has no content")
        # Whole under its name, or not there.
        tmp = f".dsec-{os.getpid()}-{self.entries}"
        fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                     | os.O_CLOEXEC, 0o600, dir_fd=parent)
        try:
            with os.fdopen(fd, "wb") as out:
                while True:
                    data = source.read(1 << 18)
                    if not data:
                        break
                    out.write(data)
                out.flush()
                os.fchmod(out.fileno(), member.mode & 0o777)
                os.utime(out.fileno(), (member.mtime, member.mtime))
            try:
                os.rename(tmp, name, src_dir_fd=parent, dst_dir_fd=parent)
            except (IsADirectoryError, NotADirectoryError):
                raise _Bad("a directory is in its place") from None
        except BaseException:
            try:
                os.unlink(tmp, dir_fd=parent)
            except OSError:
                pass
            raise

    def _link(self, member: tarfile.TarInfo, name: str, parent: int) -> None:
        parts = self._parts(member.linkname)
        where = self._parent(parts)
        try:
            st = os.stat(parts[-1], dir_fd=where, follow_symlinks=False)
            if not stat.S_ISREG(st.st_mode):
                raise _Bad("a hard link to what is no file")
            self._clear(name, parent)
            os.link(parts[-1], name, src_dir_fd=where, dst_dir_fd=parent,
                    follow_symlinks=False)
        except FileNotFoundError:
            raise _Bad("a hard link to nothing") from None
        finally:
            os.close(where)

    def _finish_dir(self, member: tarfile.TarInfo) -> None:
        fd: Optional[int] = None
        try:
            parts = self._parts(member.name)
            parent = self._parent(parts)
            try:
                fd = os.open(parts[-1], os.O_RDONLY | os.O_DIRECTORY
                             | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            finally:
                os.close(parent)
            os.fchmod(fd, member.mode & 0o777)
            os.utime(fd, (member.mtime, member.mtime))
        except (OSError, _Bad):
            pass
        finally:
            if fd is not None:
                os.close(fd)
