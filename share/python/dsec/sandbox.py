# SPDX-License-Identifier: Apache-2.0
"""A sandbox, and the shells in it."""
from __future__ import annotations

import asyncio
from typing import (TYPE_CHECKING, Any, AsyncIterator, Dict, List, Mapping,
                    Optional, Sequence, Tuple, Union)

from . import process as process_
from ._wire import Line, copies, ms
from .errors import (DSecError, NotFound, PartialFailure, SandboxStopped,
                     error_of)
from .files import Files
from .process import Process
from .types import (CommandInfo, CommandResult, DeniedAttempt, OperationResult,
                    OutputChunk, SandboxEnd, SandboxInfo, Snapshot, bytes_of,
                    data_field)

if TYPE_CHECKING:
    from ._core import Core

__all__ = ["Forward", "Network", "Sandbox", "Session"]

Command = Union[str, Sequence[str]]
_DEFAULT: Any = object()


class _Commands:
    """What sandboxes and sessions both run."""

    _core: "Core"
    id: str

    def _command(self, command: Command, cwd: Optional[str],
                 env: Optional[Mapping[str, str]], user: Optional[str],
                 timeout: Any, grace: Optional[float]) -> Line:
        fields: Line = {"op": "exec", "sandbox": self.id}
        fields["command"] = (command if isinstance(command, str)
                             else list(command))
        if cwd is not None:
            fields["cwd"] = cwd
        if env:
            fields["env"] = dict(env)
        if user is not None:
            fields["user"] = user
        limit = self._core.command_timeout if timeout is _DEFAULT else timeout
        if limit is not None:
            fields["timeout_ms"] = ms(limit)
        if grace is not None:
            fields["grace_ms"] = max(0, int(grace * 1000))
        return fields

    async def _run(self, fields: Line, check: bool,
                   deadline: Optional[float]) -> CommandResult:
        record = await self._core.ask("exec", fields, keyed=True,
                                      timeout=deadline)
        result = CommandResult.of(record)
        if result.outcome in ("died", "supervisor-lost", "node-lost"):
            result.check()  # never a result: nobody knows what it did
        return result.check() if check else result


class Session(_Commands):
    """A shell that keeps its directory, variables and functions.

    Commands run one after another.  ``async with`` closes it.
    """

    def __init__(self, core: "Core", sandbox: str, session: str) -> None:
        self._core = core
        self.id = sandbox
        self.session_id = session

    async def run(self, command: Command, *, timeout: Any = _DEFAULT,
                  grace: Optional[float] = None,
                  env: Optional[Mapping[str, str]] = None,
                  step: Optional[int] = None, inline_kb: Optional[int] = None,
                  check: bool = False,
                  deadline: Optional[float] = None) -> CommandResult:
        """Run a command in the shell: a string is evaluated by it, so that
        ``cd`` and variables stay; a list is a program with arguments.

        As :meth:`Sandbox.run`.  NotFound (``session_unknown``): the shell has
        ended; a command that ended it says so in
        ``result.record["session_ended"]``.
        """
        fields = self._command(command, None, env, None, timeout, grace)
        fields["session"] = self.session_id
        if step is not None:
            fields["step"] = step
        if inline_kb is not None:
            fields["inline_kb"] = inline_kb
        return await self._run(fields, check, deadline)

    async def close(self, *, timeout: Optional[float] = None) -> None:
        """End the shell; fine for one that has ended."""
        try:
            await self._core.ask(
                "exec", {"op": "close-session", "sandbox": self.id,
                         "session": self.session_id},
                timeout=self._core.time(timeout))
        except (NotFound, SandboxStopped):
            pass

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.close()


class Network:
    """``sandbox.network``: what it may reach (PROTOCOL.md section 10).

    A change is in force when its call returns, and cuts what it denies.
    Unsupported: the rules need more than the sandbox was launched with.
    """

    def __init__(self, core: "Core", sandbox: str) -> None:
        self._core = core
        self._sandbox = sandbox

    async def _ask(self, timeout: Optional[float], keyed: bool,
                   **fields: Any) -> Line:
        return await self._core.ask(
            "net", {"sandbox": self._sandbox, **fields}, keyed=keyed,
            timeout=self._core.time(timeout))

    async def phase(self, name: str, *,
                    timeout: Optional[float] = None) -> Line:
        """Switch to a phase that was given at launch."""
        return await self._ask(timeout, True, phase=name)

    async def replace(self, rules: Mapping[str, Any], *,
                      timeout: Optional[float] = None) -> Line:
        """These rules in place of those in force; ``{}`` denies all."""
        return await self._ask(timeout, True, replace=dict(rules))

    async def merge(self, rules: Mapping[str, Any], *,
                    timeout: Optional[float] = None) -> Line:
        """These rules beside those in force."""
        return await self._ask(timeout, True, merge=dict(rules))

    async def deny_all(self, *, timeout: Optional[float] = None) -> Line:
        """Let it reach nothing."""
        return await self._ask(timeout, True, deny_all=True)

    async def show(self, *, timeout: Optional[float] = None) -> Line:
        """Every rule that holds."""
        return await self._ask(timeout, False, show=True)

    async def explain(self, to: str, *,
                      timeout: Optional[float] = None) -> Line:
        """Which rule decides about ``NAME:PORT``, and a try from inside:
        ``allowed``, ``by``, ``attempt``."""
        return await self._ask(timeout, False, explain=to)

    async def denied(self, *, timeout: Optional[float] = None
                     ) -> List[DeniedAttempt]:
        """What it tried and was refused, the oldest first; also of one that
        has ended, while that is kept."""
        lines = await self._core.events(
            "net", {"sandbox": self._sandbox, "denied": True}, "denied",
            timeout=self._core.time(timeout))
        return [DeniedAttempt.of(line) for line in lines]


class Forward:
    """A port of this machine that leads to one inside; ``async with`` or
    :meth:`close` ends it."""

    def __init__(self, server: "asyncio.base_events.Server") -> None:
        self._server = server
        address = server.sockets[0].getsockname()
        self.host: str = address[0]
        self.port: int = address[1]

    async def close(self) -> None:
        self._server.close()
        await asyncio.sleep(0)

    async def __aenter__(self) -> "Forward":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.close()


class Sandbox(_Commands):
    """A sandbox.  Made by :meth:`DSecClient.run_sandbox`, found by
    :meth:`DSecClient.get`.

    ``id``: 20 characters, the same for life.  ``record``: what its launch (or
    the listing) said.  ``async with`` stops it at the end.

    Calls that concern a command take ``timeout`` in seconds, the limit of the
    command itself (the client's ``command_timeout`` where it is not given,
    None: no limit), which stands still while the sandbox is paused, and
    ``deadline``, after which the call is given up and the command killed
    whatever happened.  Other calls take the client's ``timeout``.

    All of them may raise SandboxStopped, SandboxDied and NodeLost (it is gone),
    NotFound (it never was, or is long gone), Busy, ConnectionLost (after the
    retries of the client's policy), PolicyDenied and BadRequest.  A paused
    sandbox is resumed first.
    """

    def __init__(self, core: "Core", record: Line) -> None:
        self._core = core
        self.record = record
        self.id: str = str(record["sandbox"])
        self.files = Files(core, self.id)
        self.network = Network(core, self.id)

    def __repr__(self) -> str:
        name = self.record.get("name")
        return f"<Sandbox {self.id}{' ' + repr(name) if name else ''}>"

    # --- commands -------------------------------------------------------------

    async def run(self, command: Command, *, timeout: Any = _DEFAULT,
                  grace: Optional[float] = None, cwd: Optional[str] = None,
                  env: Optional[Mapping[str, str]] = None,
                  user: Optional[str] = None,
                  stdin: Union[None, str, bytes] = None,
                  step: Optional[int] = None, leave: bool = False,
                  inline_kb: Optional[int] = None, check: bool = False,
                  deadline: Optional[float] = None) -> CommandResult:
        """Run a command to its end; its record.

        A list is passed on exactly, a string goes to /bin/sh.  ``grace``:
        seconds between SIGTERM and SIGKILL at the timeout.  ``inline_kb``: how
        much of each output stream the result holds, in KiB, 64 by default, 512
        at most.  ``step``: the number of a trajectory's step; repeated, it
        answers the first one's result and runs nothing.  ``leave``: what it
        leaves behind lives on.  ``check``: raise what :meth:`CommandResult.
        check` raises.

        A status other than 0, a timeout or an out-of-memory end is a result;
        CommandNotStarted: there is no such program or directory.
        SandboxDied: the sandbox ended under it.  Cancelling the call kills
        the command.
        """
        fields = self._command(command, cwd, env, user, timeout, grace)
        if step is not None:
            fields["step"] = step
        if leave:
            fields["leave"] = True
        if inline_kb is not None:
            fields["inline_kb"] = inline_kb
        if stdin is not None:
            return await self._run_with(fields, stdin, check, deadline)
        return await self._run(fields, check, deadline)

    async def run_shell(self, command: str, *, timeout: Any = _DEFAULT,
                        grace: Optional[float] = None,
                        cwd: Optional[str] = None,
                        env: Optional[Mapping[str, str]] = None,
                        user: Optional[str] = None,
                        stdin: Union[None, str, bytes] = None,
                        step: Optional[int] = None, leave: bool = False,
                        inline_kb: Optional[int] = None, check: bool = False,
                        deadline: Optional[float] = None) -> CommandResult:
        """:meth:`run` with a line for /bin/sh."""
        if not isinstance(command, str):
            raise TypeError("run_shell() takes a string; run() takes a list")
        return await self.run(
            command, timeout=timeout, grace=grace, cwd=cwd, env=env, user=user,
            stdin=stdin, step=step, leave=leave, inline_kb=inline_kb,
            check=check, deadline=deadline)

    async def _run_with(self, fields: Line, stdin: Union[str, bytes],
                        check: bool, deadline: Optional[float]
                        ) -> CommandResult:
        """Its input goes in pieces that each have a key: none is lost or
        given twice, whatever happens to the connection."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        inline = fields.pop("inline_kb", None)
        ask: Line = {**fields, "stdin": "pipe", "detach": True}
        exec_id = str((await self._core.ask(
            "exec", ask, keyed=True, timeout=self._core.timeout)).get("exec"))
        feed = asyncio.ensure_future(self._feed(exec_id, data))
        end: Line = {"op": "attach", "sandbox": self.id, "exec": exec_id}
        if inline is not None:
            end["inline_kb"] = inline
        done = False
        try:
            record = await self._core.ask("exec", end, timeout=deadline)
            done = True
        finally:
            feed.cancel()
            await asyncio.gather(feed, return_exceptions=True)
            if not done:
                self._core.background(self._kill(exec_id))
        result = CommandResult.of(record)
        return result.check() if check or result.infra else result

    async def _feed(self, exec_id: str, data: bytes) -> None:
        try:
            at = 0
            while True:
                piece = data[at:at + 256 * 1024]
                at += len(piece)
                fields: Line = {"op": "input", "sandbox": self.id,
                                "exec": exec_id, **data_field("data", piece)}
                if at >= len(data):
                    fields["close"] = True
                await self._core.ask("exec", fields, keyed=True)
                if at >= len(data):
                    return
        except DSecError:
            pass  # it reads no more: how it ends says the rest

    async def _kill(self, exec_id: str) -> None:
        await self._core.ask(
            "exec", {"op": "signal", "sandbox": self.id, "exec": exec_id,
                     "signal": "SIGKILL"}, timeout=self._core.timeout)

    async def start(self, command: Command, *, timeout: Any = _DEFAULT,
                    grace: Optional[float] = None, cwd: Optional[str] = None,
                    env: Optional[Mapping[str, str]] = None,
                    user: Optional[str] = None, stdin: bool = False,
                    step: Optional[int] = None, leave: bool = False,
                    streams: Tuple[str, ...] = ("stdout", "stderr")
                    ) -> Process:
        """Start a command and follow it.  ``stdin``: it has one, to be written
        to.  ``streams``: which of its outputs are followed; all is recorded."""
        fields = self._command(command, cwd, env, user, timeout, grace)
        if stdin:
            fields["stdin"] = "pipe"
        if step is not None:
            fields["step"] = step
        if leave:
            fields["leave"] = True
        return await process_.start(self._core, fields, tuple(streams))

    async def stream(self, command: Command, *, timeout: Any = _DEFAULT,
                     grace: Optional[float] = None, cwd: Optional[str] = None,
                     env: Optional[Mapping[str, str]] = None,
                     user: Optional[str] = None, step: Optional[int] = None,
                     leave: bool = False,
                     streams: Tuple[str, ...] = ("stdout", "stderr")
                     ) -> AsyncIterator[OutputChunk]:
        """Run a command and yield its output as it comes.  A command that
        did not end well is raised at the end, as by
        :meth:`CommandResult.check`; leaving early kills it."""
        process = await self.start(
            command, timeout=timeout, grace=grace, cwd=cwd, env=env, user=user,
            step=step, leave=leave, streams=streams)
        async with process:
            async for chunk in process.stream():
                yield chunk
            (await process.wait()).check()

    async def pty(self, command: Command = ("/bin/sh",), *, rows: int = 24,
                  cols: int = 80, timeout: Any = None,
                  cwd: Optional[str] = None,
                  env: Optional[Mapping[str, str]] = None,
                  user: Optional[str] = None) -> Process:
        """A command with a terminal of ``rows`` by ``cols``; what it shows is
        ``stdout``, keys go to :meth:`Process.write`."""
        fields = self._command(command, cwd, env, user, timeout, None)
        fields.update({"tty": True, "rows": rows, "cols": cols})
        return await process_.start(self._core, fields, ("stdout",))

    async def attach(self, exec_id: str,
                     streams: Tuple[str, ...] = ("stdout", "stderr"), *,
                     timeout: Optional[float] = None) -> Process:
        """Take up a command again: all of its output from the beginning,
        then what comes.  NotFound: there is no such command."""
        channel = await self._core.channel(
            {"op": "attach", "sandbox": self.id, "exec": exec_id,
             **process_.from_start(streams)}, streams, timeout)
        channel.exec_id = exec_id
        return Process(self._core, self.id, channel, tuple(streams), True,
                       False)

    async def processes(self, *, timeout: Optional[float] = None
                        ) -> List[CommandInfo]:
        """Commands that run here, and those that ended."""
        record = await self._core.ask(
            "exec", {"op": "list-execs", "sandbox": self.id},
            timeout=self._core.time(timeout))
        execs = record.get("execs")
        return [CommandInfo.of(e) for e in execs or [] if isinstance(e, dict)]

    async def signal(self, exec_id: str,
                     signal: Union[str, int] = "SIGTERM", *,
                     timeout: Optional[float] = None) -> None:
        """A signal to every process of a command."""
        await self._core.ask(
            "exec", {"op": "signal", "sandbox": self.id, "exec": exec_id,
                     "signal": str(signal)}, timeout=self._core.time(timeout))

    async def session(self, *, shell: Optional[str] = None,
                      cwd: Optional[str] = None,
                      env: Optional[Mapping[str, str]] = None,
                      user: Optional[str] = None,
                      timeout: Optional[float] = None) -> Session:
        """Open a shell that keeps its state."""
        fields: Line = {"op": "session", "sandbox": self.id}
        if shell is not None:
            fields["shell"] = shell
        if cwd is not None:
            fields["cwd"] = cwd
        if env:
            fields["env"] = dict(env)
        if user is not None:
            fields["user"] = user
        record = await self._core.ask("exec", fields, keyed=True,
                                      timeout=self._core.time(timeout))
        return Session(self._core, self.id, str(record.get("session")))

    async def logs(self, exec_id: str = "e0", *, stream: str = "stdout",
                   offset: int = 0, follow: bool = False, poll: float = 0.2,
                   timeout: Optional[float] = None) -> AsyncIterator[bytes]:
        """What a command wrote, from its recording; ``e0`` is the first one.

        ``follow``: until it has ended, looking again every ``poll`` seconds;
        else what there is now.  A part in the middle that was not kept (over
        64 MiB) is passed over.  ``timeout``: seconds for each look.
        """
        while True:
            record = await self._core.ask(
                "exec", {"op": "output", "sandbox": self.id, "exec": exec_id,
                         "stream": stream, "offset": offset,
                         "limit": 96 * 1024}, timeout=self._core.time(timeout))
            data = bytes_of(record, "data")
            after = record.get("next")
            moved = isinstance(after, int) and after > offset
            if isinstance(after, int):
                offset = max(offset, after)
            if data:
                yield data
            elif moved:
                continue
            elif record.get("ended") is True or not follow:
                return
            else:
                await asyncio.sleep(poll)

    # --- ports ----------------------------------------------------------------

    @property
    def published(self) -> List[Dict[str, Any]]:
        """Ports of the node that lead to it: ``address``, ``port``,
        ``inner``."""
        ports = self.record.get("published")
        return [p for p in ports or [] if isinstance(p, dict)]

    async def connect(self, port: int, *, timeout: Optional[float] = None
                      ) -> Tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP connection to a port inside, whatever its network rules.
        NotFound: nothing listens there."""
        return await self._core.connect(self.id, port, timeout)

    async def forward(self, port: int, *, host: str = "127.0.0.1",
                      local_port: int = 0) -> Forward:
        """A port of this machine that leads there, a free one for 0."""
        async def relay(reader: asyncio.StreamReader,
                        writer: asyncio.StreamWriter) -> None:
            try:
                inner = await self.connect(port)
            except DSecError:
                writer.close()
                return
            try:
                await asyncio.gather(_copy(reader, inner[1]),
                                     _copy(inner[0], writer))
            finally:
                writer.close()
                inner[1].close()
        return Forward(await asyncio.start_server(relay, host, local_port))

    # --- life -----------------------------------------------------------------

    async def _life(self, op: str, timeout: Optional[float],
                    **fields: Any) -> OperationResult:
        record = await self._core.ask(
            "pause", {"sandbox": self.id, "op": op, **fields},
            timeout=self._core.time(timeout))
        return OperationResult.of(record)

    async def pause(self, level: Optional[str] = None, *,
                    timeout: Optional[float] = None) -> OperationResult:
        """Pause it.  ``level``: ``freeze`` (CPU), ``reclaim`` (memory too, as
        far as there is swap; the default), ``disk`` (all but its writable
        layer).  Unsupported: ``disk`` is not possible here, with the reason;
        it runs on."""
        if level is None:
            return await self._life("pause", timeout)
        return await self._life("pause", timeout, level=level)

    async def resume(self, *, timeout: Optional[float] = None
                     ) -> OperationResult:
        """Let it run on.  Any other call does that too."""
        return await self._life("resume", timeout)

    async def stop(self, *, grace: float = 2.0,
                   timeout: Optional[float] = None) -> OperationResult:
        """End it, ``grace`` seconds after a first signal; the result says how
        it ended, also for one that had ended already."""
        return await self._life("stop", timeout,
                                grace_ms=max(0, int(grace * 1000)))

    async def wait(self, timeout: Optional[float] = None) -> SandboxEnd:
        """Until it has ended.  DeadlineExceeded after ``timeout`` seconds."""
        record = await self._core.ask(
            "ps", {"op": "wait", "sandbox": self.id}, timeout=timeout)
        return SandboxEnd.of(record)

    async def info(self, *, timeout: Optional[float] = None) -> SandboxInfo:
        """Its state, limits and what it uses now."""
        records = await self._core.call("ps", {"sandbox": self.id},
                                        timeout=self._core.time(timeout))
        if not records:
            raise NotFound(f"no sandbox {self.id}", code="sandbox_unknown")
        if records[0].get("ok") is False:
            raise error_of(records[0])
        return SandboxInfo.of(records[0])

    # --- copies ---------------------------------------------------------------

    async def fork(self, count: int = 1, *, name: Optional[str] = None,
                   fs_only: bool = False, task: Optional[str] = None,
                   labels: Optional[Mapping[str, str]] = None,
                   hostname: Optional[str] = None,
                   ttl_running_stop: Optional[int] = None,
                   ttl_absolute: Optional[int] = None,
                   ttl_paused: Optional[int] = None,
                   snapshot: Optional[str] = None,
                   timeout: Optional[float] = None) -> List["Sandbox"]:
        """``count`` copies with memory and processes, or with ``fs_only`` of
        its files.  ``name``: they are NAME-0, NAME-1..; ``snapshot``: keep
        what they are made from, under this name; ttls in seconds.

        PartialFailure: some could not be made; ``done`` has those that were.
        Unsupported: this node cannot copy memory.
        """
        return await fork(self._core, {"sandbox": self.id}, count, timeout,
                          name=name, fs_only=fs_only or None, task=task,
                          labels=dict(labels) if labels else None,
                          hostname=hostname, ttl_running_stop=ttl_running_stop,
                          ttl_absolute=ttl_absolute, ttl_paused=ttl_paused,
                          snapshot=snapshot)

    async def snapshot(self, name: str, *, replace: bool = False,
                       fs_only: bool = False,
                       timeout: Optional[float] = None) -> Snapshot:
        """Keep it as it stands, under a name, whatever becomes of it.
        AlreadyExists, unless ``replace``."""
        fields: Line = {"sandbox": self.id, "snapshot": name}
        if replace:
            fields["replace"] = True
        if fs_only:
            fields["fs_only"] = True
        record = await self._core.ask(
            "fork", fields, keyed=True,
            timeout=self._core.time(timeout))
        return Snapshot.of(record)

    async def __aenter__(self) -> "Sandbox":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        try:
            await self.stop(grace=0)
        except (SandboxStopped, NotFound):
            pass


async def _copy(reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            data = await reader.read(65536)
            if not data:
                break
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except ConnectionError:
        writer.close()


async def fork(core: "Core", what: Line, count: int,
               timeout: Optional[float], **given: Any) -> List[Sandbox]:
    """Copies of a sandbox or snapshot, in their order."""
    fields = {**what, "count": count,
              **{k: v for k, v in given.items() if v is not None}}
    records = await core.call(
        "fork", fields, keyed=True, last=copies(count),
        timeout=core.time(timeout),
        orphan=core.stop_orphan)
    made = [r for r in records if r.get("ok") is True and r.get("sandbox")]
    made.sort(key=lambda r: int(r.get("index") or 0))
    done = [Sandbox(core, r) for r in made]
    failures = [error_of(r) for r in records if r.get("ok") is not True]
    if failures:
        if not done and len(failures) == 1:
            raise failures[0]
        raise PartialFailure(f"{len(failures)} of {count} copies failed: "
                             f"{failures[0]}", done, failures)
    return done
