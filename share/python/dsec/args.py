# SPDX-License-Identifier: Apache-2.0
"""What a sandbox is made from: a class per backend.

The fields are those of PROTOCOL.md section 2, with the same names and units:
``_mb`` is MiB, the ``ttl`` fields are seconds.  None leaves a field to its
default.  What a backend cannot do is refused by the node, by name
(:class:`~dsec.errors.Unsupported`, :class:`~dsec.errors.BadRequest`); nothing
is ignored.
"""
from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

__all__ = ["ContainerArgs", "DSecRunArgs", "MicroVMArgs", "RunArgs", "VMArgs"]

Command = Union[str, Sequence[str]]


@dataclass(repr=False)
class RunArgs:
    """What every backend takes.  Use one of the classes below."""

    image: Optional[str] = None
    """Name (``root/py:3.12``) or digest of an image or environment; ``host``,
    this node's own /usr, where none is given."""
    layers: Optional[Sequence[str]] = None
    """Layers on top of it, the later hiding the earlier; 16 in all."""
    snapshot: Optional[str] = None
    """Start from a snapshot instead; most other fields are the snapshot's
    then."""
    name: Optional[str] = None
    """Unique among live sandboxes; 64 bytes."""
    command: Optional[Command] = None
    """The first command, exec ``e0``: a list is passed on exactly, a string
    goes to /bin/sh."""
    env: Optional[Mapping[str, str]] = None
    """Environment of all commands, added to the image's."""
    cwd: Optional[str] = None
    """Working directory of commands."""
    init_user: Optional[str] = None
    """Who commands run as: ``user`` or ``user:group`` of the image."""
    hostname: Optional[str] = None
    cpu_cores_limit: Optional[float] = None
    """CPUs; 0.01 and up, 1 by default."""
    memory_limit_mb: Optional[int] = None
    """MiB; 16 and up, 512 by default."""
    disk_limit_mb: Optional[int] = None
    """MiB of the writable layer; needs a pool that can enforce it."""
    ttl_running_stop: Optional[int] = None
    """Seconds without activity after which it is stopped."""
    ttl_absolute: Optional[int] = None
    """Seconds after its creation after which it is stopped."""
    ttl_paused: Optional[int] = None
    """Seconds it may stay paused."""
    network_rules: Optional[Mapping[str, Any]] = None
    """What it may reach (PROTOCOL.md section 10): ``{"pypi": True}``.
    Nothing, where it is not given."""
    phases: Optional[Mapping[str, Mapping[str, Any]]] = None
    """Named network rules, to switch between."""
    phase: Optional[str] = None
    """The phase in which it begins."""
    publish: Optional[Sequence[str]] = None
    """Ports the node listens on for it: ``8080``, ``9000:80``."""
    labels: Optional[Mapping[str, str]] = None
    project: Optional[str] = None
    """A path of names that begins with ``root``."""
    task: Optional[str] = None
    """The task that it is paused, resumed and stopped with."""
    user: Optional[str] = None
    """The person or agent it is for."""
    qos: Optional[str] = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields that this release of the package does not know, as they are."""

    def __repr__(self) -> str:
        said = ((f.name, getattr(self, f.name)) for f in fields(self))
        return (type(self).__name__ + "("
                + ", ".join(f"{k}={v!r}" for k, v in said if v not in (None, {}))
                + ")")

    def backend_name(self) -> str:
        raise NotImplementedError

    def request(self) -> Dict[str, Any]:
        """The create request: what is not None, and the backend's name."""
        req: Dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in ("extra", "backend") or value is None:
                continue
            req[f.name] = _plain(value)
        backend = self.backend_name()
        if self.snapshot is None or backend != "container":
            req["backend"] = backend  # else it is the snapshot's
        for key, value in self.extra.items():
            if key in req:
                raise ValueError(f"extra: '{key}' is a field of its own")
            req[key] = value
        return req


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


@dataclass(repr=False)
class ContainerArgs(RunArgs):
    """A Linux container: namespaces, a uid range, limits of its own."""

    pids_limit: Optional[int] = None
    """Processes and threads; 1024 by default."""
    shm_mb: Optional[int] = None
    """MiB of /dev/shm; 64 by default."""
    profile: Optional[str] = None
    """``default``, ``sealed`` or ``nested``."""
    mounts: Optional[List[Dict[str, str]]] = None
    """Read-only host directories, ``{"source": .., "target": ..}``, that the
    operator allowed."""
    tty: Optional[bool] = None
    """The first command gets a terminal."""

    def backend_name(self) -> str:
        return "container"


@dataclass(repr=False)
class MicroVMArgs(RunArgs):
    """A microVM.  Nodes without that backend refuse it by name."""

    def backend_name(self) -> str:
        return "microvm"


@dataclass(repr=False)
class VMArgs(RunArgs):
    """A full virtual machine.  Nodes without that backend refuse it by
    name."""

    def backend_name(self) -> str:
        return "vm"


@dataclass(repr=False)
class DSecRunArgs(ContainerArgs):
    """One class for scripts that choose the backend by a string.

    It has the fields of :class:`ContainerArgs`; one that the chosen backend
    does not have is refused by the node.
    """

    backend: str = "container"
    """``container``, ``microvm`` or ``vm``."""

    def backend_name(self) -> str:
        return self.backend
