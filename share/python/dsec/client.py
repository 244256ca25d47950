# SPDX-License-Identifier: Apache-2.0
"""The entry point."""
from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import (Any, AsyncIterator, Awaitable, Callable, Dict, Generic,
                    Iterable, List, Mapping, Optional, Sequence, TypeVar,
                    Union)

from . import sandbox as sandbox_
from ._core import Core, RetryPolicy
from ._local import LocalTransport
from ._transport import Transport
from ._wire import Line
from .args import RunArgs
from .errors import (BadRequest, DSecError, NotFound, Unsupported, error_of)
from .sandbox import Sandbox
from .types import (CommandResult, OperationList, OperationResult,
                    SandboxInfo, Snapshot)

__all__ = ["DSecClient", "ManyResult"]

T = TypeVar("T")


@dataclass
class ManyResult(Generic[T]):
    """What became of one of :meth:`DSecClient.run_many`.

    ``index``: its place among the arguments.  ``value``: what the work
    answered, None where ``error`` says why there is none.
    """

    index: int
    args: RunArgs
    sandbox: Optional[str]
    value: Optional[T]
    error: Optional[BaseException]

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def infra(self) -> bool:
        """The platform is to blame: mask the sample."""
        return isinstance(self.error, DSecError) and self.error.infra


class DSecClient:
    """Sandboxes, on this machine or on a cluster.

    ``local=True`` runs the programs of this machine (as root, as they need
    it).  Otherwise ``addresses`` (HOST:PORT, several for several controls, of
    which one that answers is used), ``certificate``, ``key`` and ``ca`` (PEM
    files) lead to dsec-serve; where they are not given they come from the
    environment: ``DSEC_SERVER`` (comma-separated), ``DSEC_CERT``, ``DSEC_KEY``,
    ``DSEC_CA``, ``DSEC_TOKEN``; ``config`` (or ``DSEC_CLIENT``, or client.json
    in ``DSEC_TLS`` or /etc/dsec/serve) names a JSON file that has them.  The
    server's certificate must be for the host that is connected to, or for
    the identity ``peer`` (``DSEC_PEER``), such as ``dsec://control/c1``.

    ``timeout``: seconds for calls that are not commands.  ``command_timeout``:
    the limit of commands that name none; None for no limit.  ``retry``: when
    calls are made again by themselves; while nobody answers, commands too,
    for its ``lost_s`` (30) seconds.

    Local clients: ``bin_dir`` has the programs (else PATH), ``env`` is added
    to their environment (``DSEC_RUN``, ``DSEC_LIB``...).

    Use it with ``async with``; it belongs to one event loop.
    """

    def __init__(self, *, local: bool = False,
                 addresses: Union[None, str, Sequence[str]] = None,
                 certificate: Optional[str] = None, key: Optional[str] = None,
                 ca: Optional[str] = None, token: Optional[str] = None,
                 config: Optional[str] = None, peer: Optional[str] = None,
                 timeout: float = 120.0,
                 command_timeout: Optional[float] = 3600.0,
                 retry: Optional[RetryPolicy] = None,
                 bin_dir: Optional[str] = None,
                 env: Optional[Mapping[str, str]] = None,
                 transport: Optional[Transport] = None) -> None:
        if transport is None and local:
            transport = LocalTransport(bin_dir, dict(env or {}))
        elif transport is None:
            from ._remote import RemoteTransport
            from ._settings import remote_settings
            transport = RemoteTransport(remote_settings(
                addresses, certificate, key, ca, token, config, peer))
        self.local = local
        self._core = Core(transport, retry or RetryPolicy(), timeout,
                          command_timeout)

    async def open(self) -> "DSecClient":
        """Be ready.  ConnectionLost, NodeError, BadRequest."""
        await self._core.transport.open()
        return self

    async def close(self) -> None:
        """End; sandboxes and their commands go on."""
        await self._core.close()

    async def __aenter__(self) -> "DSecClient":
        return await self.open()

    async def __aexit__(self, *exc: Any) -> None:
        await self.close()

    # --- sandboxes ------------------------------------------------------------

    async def run_sandbox(self, args: RunArgs, *,
                          timeout: Optional[float] = None) -> Sandbox:
        """Make a sandbox; it is ready when this returns.

        CapacityError: no room now (after ``retry.capacity_s``); NotFound: no
        such image; AlreadyExists: the name is taken; Unsupported, BadRequest:
        a field that the backend or node cannot do.  A lost answer makes no
        second one, and a cancelled call leaves none.
        """
        record = await self._core.ask(
            "run", args.request(), keyed=True, timeout=self._core.time(timeout),
            orphan=self._core.stop_orphan)
        return Sandbox(self._core, record)

    async def run_once(self, args: RunArgs, *,
                       timeout: Optional[float] = None,
                       deadline: Optional[float] = None) -> CommandResult:
        """One command in a sandbox of its own, which is gone when it ended;
        ``args.command``, or the image's own.  ``timeout``: seconds for the
        command (``ttl_absolute``)."""
        fields: Line = {**args.request(), "rm": True}
        limit = self._core.command_timeout if timeout is None else timeout
        if not self._core.transport.direct:
            return await self._run_and_stop(args, limit, deadline)
        if limit is not None and "ttl_absolute" not in fields:
            fields["ttl_absolute"] = max(1, int(limit))
        record = await self._core.ask("run", fields, keyed=True,
                                      timeout=deadline)
        return CommandResult.of(record)

    async def _run_and_stop(self, args: RunArgs, limit: Optional[float],
                            deadline: Optional[float]) -> CommandResult:
        """A server keeps no one-shots: it has nobody to ask about them."""
        command, args = args.command, replace(args, command=None)
        if command is None:
            raise Unsupported("from afar, run_once() needs a command")
        box = await self.run_sandbox(args)
        try:
            return await box.run(command, timeout=limit, deadline=deadline)
        finally:
            self._core.stop_orphan({**box.record, "ok": True})

    async def run_many(self, args: Iterable[RunArgs],
                       work: Optional[Callable[[Sandbox], Awaitable[T]]] = None,
                       *, concurrency: int = 16, stop: bool = True,
                       timeout: Optional[float] = None
                       ) -> AsyncIterator[ManyResult[T]]:
        """A sandbox for each of ``args``, at most ``concurrency`` at a time;
        results as they come.

        ``work`` is awaited with each sandbox, which is stopped afterwards
        (unless ``stop`` is false).  Without ``work`` the sandboxes stay:
        ``value`` is the Sandbox.  ``args`` may be any iterable, also an
        endless one: it is read no faster than there is room.  What fails is
        a result with ``error``; the others go on.  Leaving the iterator
        cancels what is under way.
        """
        if concurrency < 1:
            raise ValueError("concurrency: at least 1")
        source = enumerate(args)
        running: Dict["asyncio.Task[ManyResult[T]]", int] = {}
        more = True
        try:
            while more or running:
                while more and len(running) < concurrency:
                    try:
                        index, one = next(source)
                    except StopIteration:
                        more = False
                        break
                    job = asyncio.get_running_loop().create_task(
                        self._one(index, one, work, stop, timeout))
                    running[job] = index
                if not running:
                    break
                done, _ = await asyncio.wait(
                    list(running), return_when=asyncio.FIRST_COMPLETED)
                for job in sorted(done, key=lambda j: running[j]):
                    del running[job]
                    yield job.result()
        finally:
            for job in running:
                job.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _one(self, index: int, args: RunArgs,
                   work: Optional[Callable[[Sandbox], Awaitable[T]]],
                   stop: bool, timeout: Optional[float]) -> ManyResult[T]:
        box: Optional[Sandbox] = None
        value: Any = None
        error: Optional[BaseException] = None
        try:
            box = await self.run_sandbox(args, timeout=timeout)
            value = box if work is None else await work(box)
        except Exception as e:
            error = e
        finally:
            if box is not None and work is not None and stop:
                self._core.background(self._core.call(
                    "pause", {"sandbox": box.id, "op": "stop", "grace_ms": 0},
                    timeout=self._core.timeout))
        return ManyResult(index, args, box.id if box else None, value, error)

    async def get(self, sandbox: str, *,
                  timeout: Optional[float] = None) -> Sandbox:
        """A sandbox by its id or name.  NotFound."""
        records = await self._core.call("ps", {"sandbox": sandbox},
                                        timeout=self._core.time(timeout))
        if not records:
            raise NotFound(f"no sandbox '{sandbox}'", code="sandbox_unknown")
        if records[0].get("ok") is False:
            raise error_of(records[0])
        return Sandbox(self._core, records[0])

    def sandbox(self, sandbox: str) -> Sandbox:
        """A sandbox by its id, without looking whether it is there."""
        return Sandbox(self._core, {"sandbox": sandbox})

    async def sandboxes(self, *, task: Optional[str] = None,
                        project: Optional[str] = None,
                        labels: Optional[Mapping[str, str]] = None,
                        all: bool = False, stats: bool = False,
                        timeout: Optional[float] = None) -> List[SandboxInfo]:
        """What runs; ``all``: what ended too, while that is kept; ``stats``:
        with what each uses now.  While a node cannot be asked it is tried
        again, then :class:`Busy` raised: a part is never given for all."""
        fields: Line = _selector(task, project, labels, needed=False)
        if all:
            fields["all"] = True
        if stats:
            fields["stats"] = True
        records = await self._core.call("ps", fields, select=True,
                                        timeout=self._core.time(timeout))
        return [SandboxInfo.of(r) for r in records if r.get("sandbox")]

    # --- many at once -----------------------------------------------------------

    async def pause(self, *, task: Optional[str] = None,
                    project: Optional[str] = None,
                    labels: Optional[Mapping[str, str]] = None,
                    level: Optional[str] = None,
                    timeout: Optional[float] = None) -> OperationList:
        """Pause all that a task, a project's subtree and labels have in
        common; a result for each.  Levels as :meth:`Sandbox.pause`."""
        fields = _selector(task, project, labels)
        if level is not None:
            fields["level"] = level
        return await self._many("pause", fields, timeout)

    async def resume(self, *, task: Optional[str] = None,
                     project: Optional[str] = None,
                     labels: Optional[Mapping[str, str]] = None,
                     timeout: Optional[float] = None) -> OperationList:
        """Let them run on."""
        return await self._many("resume", _selector(task, project, labels),
                                timeout)

    async def stop(self, *, task: Optional[str] = None,
                   project: Optional[str] = None,
                   labels: Optional[Mapping[str, str]] = None,
                   grace: float = 2.0,
                   timeout: Optional[float] = None) -> OperationList:
        """End them, ``grace`` seconds after a first signal."""
        fields = _selector(task, project, labels)
        fields["grace_ms"] = max(0, int(grace * 1000))
        return await self._many("stop", fields, timeout)

    async def set_phase(self, phase: str, *, task: Optional[str] = None,
                        project: Optional[str] = None,
                        labels: Optional[Mapping[str, str]] = None,
                        timeout: Optional[float] = None) -> OperationList:
        """Switch them to a phase of their network rules that was given at
        launch, as :meth:`Network.phase`."""
        fields = _selector(task, project, labels)
        fields["phase"] = phase
        return await self._each("net", fields, timeout)

    async def _many(self, op: str, fields: Line,
                    timeout: Optional[float]) -> OperationList:
        return await self._each("pause", {**fields, "op": op}, timeout)

    async def _each(self, program: str, fields: Line,
                    timeout: Optional[float]) -> OperationList:
        records = await self._core.call(program, fields, select=True,
                                        timeout=self._core.time(timeout))
        return OperationList(OperationResult.of(r) for r in records
                             if r.get("sandbox") or r.get("node"))

    async def pause_task(self, task: str, level: Optional[str] = None, *,
                         timeout: Optional[float] = None) -> OperationList:
        """Pause every sandbox of a task."""
        return await self.pause(task=task, level=level, timeout=timeout)

    async def resume_task(self, task: str, *,
                          timeout: Optional[float] = None
                          ) -> OperationList:
        """Resume every sandbox of a task."""
        return await self.resume(task=task, timeout=timeout)

    async def stop_task(self, task: str, *, grace: float = 2.0,
                        timeout: Optional[float] = None) -> OperationList:
        """Stop every sandbox of a task."""
        return await self.stop(task=task, grace=grace, timeout=timeout)

    async def pause_project(self, project: str, level: Optional[str] = None, *,
                            timeout: Optional[float] = None) -> OperationList:
        """Pause every sandbox of a project and of those below it."""
        return await self.pause(project=project, level=level, timeout=timeout)

    async def resume_project(self, project: str, *,
                             timeout: Optional[float] = None
                             ) -> OperationList:
        """Resume every sandbox of a project and of those below it."""
        return await self.resume(project=project, timeout=timeout)

    async def stop_project(self, project: str, *, grace: float = 2.0,
                           timeout: Optional[float] = None) -> OperationList:
        """Stop every sandbox of a project and of those below it."""
        return await self.stop(project=project, grace=grace, timeout=timeout)

    # --- snapshots --------------------------------------------------------------

    async def fork_snapshot(self, snapshot: str, count: int = 1, *,
                            name: Optional[str] = None,
                            task: Optional[str] = None,
                            labels: Optional[Mapping[str, str]] = None,
                            project: Optional[str] = None,
                            timeout: Optional[float] = None) -> List[Sandbox]:
        """``count`` sandboxes from a snapshot, as :meth:`Sandbox.fork`."""
        return await sandbox_.fork(
            self._core, {"from": snapshot}, count, timeout, name=name,
            task=task, labels=dict(labels) if labels else None,
            project=project)

    async def snapshots(self, project: Optional[str] = None, *,
                        timeout: Optional[float] = None) -> List[Snapshot]:
        """Snapshots of the node, of a control's nodes all; or of a project
        and those below it."""
        fields: Line = {"op": "list"}
        if project is not None:
            fields["project"] = project
        return [Snapshot.of(line) for line in await self._core.events(
            "fork", fields, "snapshot", timeout=self._core.time(timeout))]

    async def remove_snapshot(self, snapshot: str,
                              project: Optional[str] = None, *,
                              timeout: Optional[float] = None) -> None:
        """Remove a snapshot.  Busy while something is made from it; NotFound
        (``snapshot_unknown``)."""
        fields: Line = {"op": "remove", "snapshot": snapshot}
        if project is not None:
            fields["project"] = project
        await self._core.ask("fork", fields, keyed=True,
                             timeout=self._core.time(timeout))

    # --- anything else ----------------------------------------------------------

    async def request(self, program: str, *, timeout: Optional[float] = None,
                      on_event: Optional[Callable[[Line], None]] = None,
                      **fields: Any) -> Line:
        """A request of PROTOCOL.md as it is, for what has no method here:
        ``request("img", op="ls", on_event=print)``, ``request("report")``, of
        a control ``request("nodes", on_event=print)``.  Its final record;
        give a ``key`` to what changes something."""
        records = await self._core.call(
            program, fields, timeout=self._core.time(timeout), on_event=on_event,
            repeatable="key" in fields)
        return records[0] if records else {}


def _selector(task: Optional[str], project: Optional[str],
              labels: Optional[Mapping[str, str]],
              needed: bool = True) -> Line:
    fields: Line = {}
    if task is not None:
        fields["task"] = task
    if project is not None:
        fields["project"] = project
    if labels:
        fields["labels"] = dict(labels)
    if needed and not fields:
        raise BadRequest("give a task, a project or labels",
                         code="missing_field")
    return fields
