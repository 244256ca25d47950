# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, by kind.

Every failure is a :class:`DSecError`.  Its ``code`` is the word of PROTOCOL.md
section 5, ``retry`` says whether the same call may succeed later,
``retry_after`` after how many seconds, and ``infra`` whether the platform, not
what ran in the sandbox, is to blame: a trainer masks such a sample.

===================  ==========================================  =====  =====
kind                 class                                       infra  retry
===================  ==========================================  =====  =====
command failed       :class:`CommandFailed`                      no     no
command timed out    :class:`CommandTimeout`                     no     no
out of memory        :class:`CommandOutOfMemory`                 no     no
sandbox died         :class:`SandboxDied`                        yes    new
node lost            :class:`NodeLost`                           yes    new
quota                :class:`QuotaExceeded`                      no     no
denied by policy     :class:`PolicyDenied`                       no     no
bad request          :class:`BadRequest`                         no     no
no room now          :class:`CapacityError`, :class:`Busy`       yes    yes
connection lost      :class:`ConnectionLost`                     yes    yes
===================  ==========================================  =====  =====

"new": a retry in the same sandbox is of no use, in a new sandbox it is; their
``retry`` is True and ``new_sandbox`` too.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Type

if TYPE_CHECKING:
    from .types import CommandResult

__all__ = [
    "AlreadyExists", "BadRequest", "Busy", "CapacityError", "CommandError",
    "CommandFailed", "CommandKilled", "CommandNotStarted",
    "CommandOutOfMemory", "CommandTimeout", "ConnectionLost", "DSecError",
    "DeadlineExceeded", "FileError", "HelperLost", "NodeError", "NodeLost",
    "NotFound", "PartialFailure", "PolicyDenied", "ProtocolError",
    "QuotaExceeded", "RequestCancelled", "SandboxDied", "SandboxStopped",
    "Unsupported", "error_of",
]


class DSecError(Exception):
    """A call that failed.

    ``code``: the word of PROTOCOL.md section 5 (or of section 5's outcomes).
    ``message``: for people.
    ``retry``: the same call may succeed later.
    ``retry_after``: seconds until then, None where nothing is known.
    ``infra``: the platform is to blame; mask the sample.
    ``new_sandbox``: only a new sandbox can help.
    ``sandbox``: the sandbox's id, where there is one.
    ``record``: the whole record that said so; empty where none did.
    """

    default_code = "internal"
    default_infra = False
    default_retry = False
    new_sandbox = False

    def __init__(self, message: str, *, code: Optional[str] = None,
                 retry_after: Optional[float] = None,
                 infra: Optional[bool] = None, retry: Optional[bool] = None,
                 record: Optional[Mapping[str, Any]] = None) -> None:
        self.code: str = code or self.default_code
        self.message = message
        self.retry_after = retry_after
        self.infra: bool = bool(infra) or self.default_infra
        self.retry: bool = self.default_retry if retry is None else retry
        self.record: Dict[str, Any] = dict(record or {})
        sandbox = self.record.get("sandbox")
        self.sandbox: Optional[str] = (
            sandbox if isinstance(sandbox, str) else None)
        super().__init__(message)

    def __str__(self) -> str:
        where = f" (sandbox {self.sandbox})" if self.sandbox else ""
        return f"{self.code}: {self.message}{where}"


class BadRequest(DSecError):
    """The request itself is wrong; repeating it cannot help."""
    default_code = "bad_value"


class Unsupported(DSecError):
    """This node or release cannot do it; the message names what is missing."""
    default_code = "unsupported"


class NotFound(DSecError):
    """No such sandbox, command, session, image, snapshot, user or file."""
    default_code = "not_found"


class AlreadyExists(DSecError):
    """The name is taken."""
    default_code = "exists"


class FileError(DSecError):
    """A file is not of the kind that the operation needs."""
    default_code = "not_regular"


class CapacityError(DSecError):
    """Admission refused: no room now.  ``code`` says what is short: memory,
    cpu, pressure, disk, count, draining."""
    default_code = "memory"
    default_infra = True
    default_retry = True


class Busy(DSecError):
    """Another operation holds it, or too much is under way."""
    default_code = "busy"
    default_infra = True
    default_retry = True


class PolicyDenied(DSecError):
    """Not permitted: by the operator, by the caller's rights, or a policy."""
    default_code = "permission"


class QuotaExceeded(DSecError):
    """A limit of the sandbox on disk, use or memory is reached."""
    default_code = "quota"


class SandboxStopped(DSecError):
    """The sandbox has ended, or is just ending."""
    default_code = "stopped"
    new_sandbox = True


class SandboxDied(SandboxStopped):
    """The sandbox ended though nobody asked: its supervisor or its pid 1."""
    default_code = "supervisor_lost"
    default_infra = True
    default_retry = True


class NodeLost(SandboxDied):
    """The node of the sandbox is gone, and the sandbox with it."""
    default_code = "node-lost"


class DeadlineExceeded(DSecError):
    """The call's ``timeout`` passed before it was done."""
    default_code = "deadline"


class RequestCancelled(DSecError):
    """Somebody cancelled the request."""
    default_code = "cancelled"


class NodeError(DSecError):
    """The node failed: a full disk, a system call, a mistake of ours."""
    default_code = "internal"
    default_infra = True


class ConnectionLost(DSecError):
    """The other end went away and could not be reached again in time.  What
    was asked may or may not have been done."""
    default_code = "connection_lost"
    default_infra = True
    default_retry = True


class HelperLost(ConnectionLost):
    """A program that the request needed died; it is started anew."""
    default_code = "helper_lost"


class ProtocolError(ConnectionLost):
    """The other end said something that it must not."""
    default_code = "protocol"


class CommandNotStarted(DSecError):
    """The command could not be run: no such program, not executable, no such
    working directory."""
    default_code = "command_not_found"


class CommandError(DSecError):
    """A command ran and did not end well; ``result`` is its record."""
    default_code = "exited"

    def __init__(self, message: str, result: "CommandResult") -> None:
        super().__init__(message, code=result.outcome, infra=result.infra,
                         record=result.record)
        self.result = result


class CommandFailed(CommandError):
    """It ended by itself with a status other than 0, or by a signal."""


class CommandTimeout(CommandError):
    """Its time was up; everything it started was killed."""
    default_code = "timeout"


class CommandOutOfMemory(CommandError):
    """The sandbox's memory limit was reached."""
    default_code = "oom"


class CommandKilled(CommandError):
    """It was ended on request, or the sandbox was stopped under it."""
    default_code = "killed"


class PartialFailure(DSecError):
    """Of many, some failed.  ``done``: what was made, ``failures``: why the
    others were not."""
    default_code = "partial"

    def __init__(self, message: str, done: List[Any],
                 failures: List[DSecError]) -> None:
        super().__init__(message,
                         infra=any(f.infra for f in failures),
                         retry=all(f.retry for f in failures),
                         code=failures[0].code if failures else None)
        self.done = done
        self.failures = failures


_CLASSES: Dict[str, Type[DSecError]] = {}


def _table(cls: Type[DSecError], words: str) -> None:
    for word in words.split():
        _CLASSES[word] = cls


_table(BadRequest, "usage bad_record too_large unknown_field missing_field "
       "bad_value bad_path key_conflict args_too_long memory_too_small "
       "user_unknown bad_archive")
_table(Unsupported, "unsupported incompatible not_checkpointable")
_table(NotFound, "sandbox_unknown exec_unknown session_unknown image_unknown "
       "snapshot_unknown not_found")
_table(AlreadyExists, "exists name_taken image_in_use")
_table(FileError, "is_directory not_directory not_empty not_regular read_only "
       "refused_entries")
_table(CapacityError, "memory cpu pressure disk count draining isolation")
_table(Busy, "busy node_away")
_table(PolicyDenied, "permission mount_denied not_root policy")
_table(QuotaExceeded, "quota oom")
_table(SandboxStopped, "stopped one_shot ttl_idle ttl_absolute ttl_paused")
_table(SandboxDied, "supervisor_lost supervisor-lost died")
_table(NodeLost, "node_lost node-lost")
_table(DeadlineExceeded, "deadline")
_table(RequestCancelled, "cancelled")
_table(HelperLost, "helper_lost")
_table(ConnectionLost, "connection_lost")
_table(ProtocolError, "protocol")
_table(CommandNotStarted, "command_not_found command_not_executable cwd")
_table(NodeError, "timeout image_damaged checkpoint_damaged engine no_space "
       "no_fds no_memory io system configuration stdout_lost internal "
       "audit_damaged")


def error_of(record: Mapping[str, Any]) -> DSecError:
    """The exception of a record with ``"ok": false``.

    A code that this release does not know becomes a plain DSecError whose
    ``retry`` follows ``retry_after_ms``.
    """
    said = record.get("error")
    error: Mapping[str, Any] = said if isinstance(said, dict) else {}
    code = str(error.get("code") or "internal")
    message = str(error.get("message") or "no reason given")
    after = error.get("retry_after_ms")
    retry_after: Optional[float] = None
    if isinstance(after, (int, float)) and not isinstance(after, bool):
        retry_after = max(0.0, after / 1000)
    infra = error.get("infra") is True
    cls = _CLASSES.get(code, DSecError)
    if cls is SandboxStopped and infra:
        # It ended, and the platform is why: that is another kind.
        cls = NodeLost if "node-lost" in message else SandboxDied
    retry: Optional[bool] = None
    if cls is DSecError or cls is CapacityError:
        # What no waiting can make fit has no time to wait for.
        retry = retry_after is not None
    return cls(message, code=code, retry_after=retry_after, infra=infra,
               retry=retry, record=record)
