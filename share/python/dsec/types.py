# SPDX-License-Identifier: Apache-2.0
"""What calls answer with.  Each keeps the whole record as ``record``."""
from __future__ import annotations

import base64
import binascii
import os
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Union

from .errors import (CommandFailed, CommandKilled, CommandOutOfMemory,
                     CommandTimeout, DSecError,
                     PartialFailure, PolicyDenied, QuotaExceeded, error_of)

__all__ = [
    "CommandInfo", "CommandResult", "DeniedAttempt", "FileEntry", "FileEvent",
    "OperationList", "OperationResult", "OutputChunk", "Record", "SandboxEnd",
    "SandboxInfo", "Snapshot",
]

Record = Dict[str, Any]
_SHORT = 100 * 1024


def bytes_of(record: Mapping[str, Any], key: str) -> bytes:
    """Bytes that are text under ``key`` or base64 under ``key_b64``."""
    text = record.get(key)
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    coded = record.get(key + "_b64")
    if isinstance(coded, str):
        try:
            return base64.b64decode(coded, validate=True)
        except (binascii.Error, ValueError):
            return b""
    return b""


def path_of(record: Mapping[str, Any], key: str) -> str:
    """A path; bytes that are not UTF-8 become surrogates, as os.fsdecode()
    does it."""
    return bytes_of(record, key).decode("utf-8", "surrogateescape")


def bytes_field(key: str, value: Union[str, bytes]) -> Record:
    """The field of a request for a path or data: text, or base64."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
            return {key: value}
        except UnicodeEncodeError:
            value = os.fsencode(value)
    try:
        return {key: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {key + "_b64": base64.b64encode(value).decode("ascii")}


def data_field(key: str, data: bytes) -> Record:
    """The same for content, of which text may be six times as long in a line:
    what is not short is base64."""
    if len(data) <= _SHORT:
        return bytes_field(key, data)
    return {key + "_b64": base64.b64encode(data).decode("ascii")}


def _int(record: Mapping[str, Any], key: str) -> int:
    value = record.get(key)
    return value if isinstance(value, int) else 0


def _opt_int(record: Mapping[str, Any], key: str) -> Optional[int]:
    value = record.get(key)
    return value if isinstance(value, int) else None


def _str(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else ""


@dataclass
class CommandResult:
    """How a command ended (PROTOCOL.md section 3).

    ``outcome`` is ``exited``, ``signalled``, ``timeout``, ``oom``, ``killed``,
    ``policy`` or ``quota``; ``exit_code`` is there for ``exited``, ``signal``
    where one ended it.  ``stdout_bytes`` and ``stderr_bytes`` hold the
    beginning of its output, ``truncated`` says that there was more.
    Times are milliseconds, ``max_rss_kb`` is KiB.
    """

    sandbox: str
    exec_id: str
    outcome: str
    exit_code: Optional[int]
    signal: Optional[str]
    stdout_bytes: bytes
    stderr_bytes: bytes
    truncated: bool
    duration_ms: int
    cpu_ms: int
    max_rss_kb: int
    infra: bool
    repeated: bool
    """It was run before, by the same step or key, and not again."""
    record: Record = field(repr=False)

    @classmethod
    def of(cls, record: Record) -> "CommandResult":
        return cls(
            sandbox=_str(record, "sandbox"), exec_id=_str(record, "exec"),
            outcome=_str(record, "outcome"),
            exit_code=_opt_int(record, "exit_code"),
            signal=_str(record, "signal") or None,
            stdout_bytes=bytes_of(record, "stdout"),
            stderr_bytes=bytes_of(record, "stderr"),
            truncated=record.get("truncated") is True,
            duration_ms=_int(record, "duration_ms"),
            cpu_ms=_int(record, "cpu_ms"),
            max_rss_kb=_int(record, "max_rss_kb"),
            infra=record.get("infra") is True,
            repeated=record.get("repeated") is True, record=record)

    @property
    def stdout(self) -> str:
        """Output as text; what is not UTF-8 is replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Error output as text; what is not UTF-8 is replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """It exited by itself, with status 0."""
        return self.outcome == "exited" and self.exit_code == 0

    def error(self) -> Optional[DSecError]:
        """The exception that this result amounts to, None where it is ok."""
        if self.ok:
            return None
        if self.outcome == "exited":
            return CommandFailed(f"exit status {self.exit_code}", self)
        if self.outcome == "signalled":
            return CommandFailed(f"ended by {self.signal}", self)
        if self.outcome == "timeout":
            return CommandTimeout("its time was up", self)
        if self.outcome == "oom":
            return CommandOutOfMemory("the memory limit was reached", self)
        if self.outcome == "quota":
            return QuotaExceeded("the command ended at a quota",
                                 record=self.record)
        if self.outcome == "policy":
            return PolicyDenied("a policy ended the command",
                                code="policy", record=self.record)
        if self.outcome in ("died", "supervisor-lost", "node-lost"):
            return lost_error(self.outcome, self.record)
        if self.infra:
            return DSecError(f"ended as {self.outcome}", code=self.outcome,
                             infra=True, record=self.record)
        return CommandKilled(f"ended as {self.outcome or 'unknown'}", self)

    def check(self) -> "CommandResult":
        """Itself if it is :attr:`ok`; else raise what :meth:`error` says:
        CommandFailed, CommandTimeout, CommandOutOfMemory, CommandKilled,
        QuotaExceeded, PolicyDenied."""
        error = self.error()
        if error is not None:
            raise error
        return self


def lost_error(outcome: str, record: Mapping[str, Any]) -> DSecError:
    """The error of a sandbox that ended so, though nobody asked."""
    said = {"code": outcome, "infra": True,
            "message": f"the sandbox ended: {outcome}"}
    return error_of({**record, "error": said})


@dataclass
class OutputChunk:
    """Bytes of a command's output as they came."""

    stream: str
    """``stdout`` or ``stderr``."""
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


@dataclass
class CommandInfo:
    """A command of a sandbox, running or ended."""

    exec_id: str
    running: bool
    outcome: str
    exit_code: Optional[int]
    session: Optional[str]
    step: Optional[int]
    record: Record = field(repr=False)

    @classmethod
    def of(cls, record: Record) -> "CommandInfo":
        return cls(_str(record, "exec"), record.get("running") is True,
                   _str(record, "outcome"), _opt_int(record, "exit_code"),
                   _str(record, "session") or None, _opt_int(record, "step"),
                   record)


@dataclass
class FileEntry:
    """A file of a sandbox.  ``type``: file, directory, symlink, fifo, socket,
    char, block; ``size`` in bytes, ``mtime_ms`` since 1970, ``mode`` in
    octal digits."""

    name: str
    type: str
    size: int
    mode: str
    uid: int
    gid: int
    mtime_ms: int
    target: Optional[str]
    record: Record = field(repr=False)

    @classmethod
    def of(cls, record: Record) -> "FileEntry":
        link = "target" in record or "target_b64" in record
        return cls(path_of(record, "name"), _str(record, "type"),
                   _int(record, "size"), _str(record, "mode"),
                   _int(record, "uid"), _int(record, "gid"),
                   _int(record, "mtime_ms"),
                   path_of(record, "target") if link else None, record)


@dataclass
class FileEvent:
    """A change below a watched path: ``watching`` first, then ``created``,
    ``modified``, ``removed``, ``moved``; ``overflow``: some were lost."""

    event: str
    name: str
    to: Optional[str]

    @classmethod
    def of(cls, record: Record) -> "FileEvent":
        moved = "to" in record or "to_b64" in record
        return cls(_str(record, "event"), path_of(record, "name"),
                   path_of(record, "to") if moved else None)


@dataclass
class DeniedAttempt:
    """Something that a sandbox tried to reach and was refused (PROTOCOL.md
    section 10).  ``at_ms``: milliseconds since 1970.  ``why``: ``name``,
    ``address``, ``port``, ``private``, ``limit`` and so on.  ``more``: how many
    before it were not written down."""

    at_ms: int
    name: Optional[str]
    address: Optional[str]
    port: Optional[int]
    proto: Optional[str]
    why: str
    more: int
    record: Record = field(repr=False)

    @classmethod
    def of(cls, record: Record) -> "DeniedAttempt":
        return cls(_int(record, "at_ms"), _str(record, "name") or None,
                   _str(record, "addr") or None, _opt_int(record, "port"),
                   _str(record, "proto") or None, _str(record, "why"),
                   _int(record, "n"), record)


@dataclass
class SandboxInfo:
    """A sandbox as ``dsec-ps`` tells of it (PROTOCOL.md section 4)."""

    sandbox: str
    name: Optional[str]
    state: str
    """creating, running, paused, stopping, stopped."""
    level: Optional[str]
    """Of one that is paused: freeze, reclaim, disk."""
    outcome: Optional[str]
    infra: bool
    task: Optional[str]
    project: Optional[str]
    labels: Dict[str, str]
    record: Record = field(repr=False)

    @classmethod
    def of(cls, record: Record) -> "SandboxInfo":
        labels = record.get("labels")
        return cls(_str(record, "sandbox"), _str(record, "name") or None,
                   _str(record, "state"), _str(record, "level") or None,
                   _str(record, "outcome") or None,
                   record.get("infra") is True, _str(record, "task") or None,
                   _str(record, "project") or None,
                   dict(labels) if isinstance(labels, dict) else {}, record)


@dataclass
class SandboxEnd:
    """How a sandbox ended."""

    sandbox: str
    outcome: str
    infra: bool
    record: Record = field(repr=False)

    @classmethod
    def of(cls, record: Record) -> "SandboxEnd":
        return cls(_str(record, "sandbox"), _str(record, "outcome"),
                   record.get("infra") is True, record)


@dataclass
class Snapshot:
    """A snapshot that sandboxes can be made from.  ``bytes`` of its memory's
    files."""

    id: str
    name: str
    bytes: int
    record: Record = field(repr=False)

    @classmethod
    def of(cls, record: Record) -> "Snapshot":
        return cls(_str(record, "snapshot"), _str(record, "name"),
                   _int(record, "bytes"), record)


@dataclass
class OperationResult:
    """What became of one sandbox of a task or project operation; without
    ``sandbox``, of a node that could not be asked (``node_away``)."""

    sandbox: Optional[str]
    ok: bool
    state: Optional[str]
    level: Optional[str]
    outcome: Optional[str]
    error: Optional[DSecError]
    record: Record = field(repr=False)

    @classmethod
    def of(cls, record: Record) -> "OperationResult":
        ok = record.get("ok") is True
        return cls(_str(record, "sandbox") or None, ok,
                   _str(record, "state") or None,
                   _str(record, "level") or None,
                   _str(record, "outcome") or None,
                   None if ok else error_of(record), record)


class OperationList(List[OperationResult]):
    """A record per sandbox of an operation on many, and per node that could
    not be asked."""

    @property
    def failed(self) -> List[OperationResult]:
        return [r for r in self if not r.ok]

    @property
    def ok(self) -> bool:
        return not self.failed

    def sandboxes(self) -> Iterator[str]:
        """Ids of those it was done to."""
        return (r.sandbox for r in self if r.ok and r.sandbox)

    def check(self) -> "OperationList":
        """Itself if all went well; else raise PartialFailure."""
        errors = [r.error for r in self if r.error is not None]
        if errors:
            raise PartialFailure(
                f"{len(errors)} of {len(self)} failed: {errors[0]}",
                list(self.sandboxes()), errors)
        return self
