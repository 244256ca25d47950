# SPDX-License-Identifier: Apache-2.0
"""dsec: isolated, stateful sandboxes for RL rollouts and code-running agents.

    import asyncio
    from dsec import DSecClient, DSecRunArgs

    async def main():
        async with DSecClient(local=True) as client:
            async with await client.run_sandbox(DSecRunArgs()) as sb:
                print((await sb.run_shell("echo $((6 * 7))")).stdout)

    asyncio.run(main())

:mod:`dsec.sync` is the same without asyncio.  :mod:`dsec.errors` has the
kinds of failures.
"""
from . import errors
from ._core import RetryPolicy
from .args import ContainerArgs, DSecRunArgs, MicroVMArgs, RunArgs, VMArgs
from .client import DSecClient, ManyResult
from .errors import *  # noqa: F401,F403
from .files import Files
from .process import OutputStream, Process
from .sandbox import Forward, Network, Sandbox, Session
from .types import (CommandInfo, CommandResult, DeniedAttempt, FileEntry,
                    FileEvent, OperationList, OperationResult, OutputChunk,
                    SandboxEnd, SandboxInfo, Snapshot)

__version__ = "0.1.0"

__all__ = [
    "CommandInfo", "CommandResult", "ContainerArgs", "DSecClient",
    "DSecRunArgs", "DeniedAttempt", "FileEntry", "FileEvent", "Files",
    "Forward", "ManyResult", "MicroVMArgs", "Network", "OperationList", "OperationResult",
    "OutputChunk", "OutputStream", "Process", "RetryPolicy", "RunArgs",
    "Sandbox", "SandboxEnd", "SandboxInfo", "Session", "Snapshot", "VMArgs",
]
__all__ += errors.__all__
