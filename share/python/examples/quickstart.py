# SPDX-License-Identifier: Apache-2.0
"""A sandbox, a command, files, a shell that keeps its state, copies, and a
task that is paused and resumed.

    python3 quickstart.py           # this machine, as root
    DSEC_SERVER=host:port DSEC_CLIENT=client.json python3 quickstart.py

With DSEC_IMAGE, an image that can be checkpointed, the copies have memory.
"""
import asyncio
import os
from typing import List

import dsec
from dsec import DSecClient, DSecRunArgs, Sandbox


async def copies(sb: Sandbox, count: int) -> List[Sandbox]:
    try:
        return await sb.fork(count=count)
    except dsec.Unsupported as e:
        # Memory needs a checkpoint engine and an image of the store.
        print(f"without memory, for {e.message}")
        return await sb.fork(count=count, fs_only=True)


async def main() -> None:
    async with DSecClient(local="DSEC_SERVER" not in os.environ) as client:
        args = DSecRunArgs(backend="container", cpu_cores_limit=0.5,
                           image=os.environ.get("DSEC_IMAGE"),
                           memory_limit_mb=128, ttl_running_stop=300,
                           task="quickstart")
        async with await client.run_sandbox(args) as sb:
            print((await sb.run_shell("python3 -c 'print(6*7)'")).stdout)

            await sb.files.write("/tmp/work/data", "three\ntwo\none\n",
                                 parents=True)
            async with await sb.session(cwd="/tmp/work") as shell:
                await shell.run("sorted() { sort data; }")
                print((await shell.run("sorted")).stdout)

            try:
                await sb.run(["sleep", "60"], timeout=0.5, check=True)
            except dsec.CommandTimeout as e:
                print(f"{e.result.outcome} after {e.result.duration_ms} ms; "
                      f"the platform's fault: {e.infra}")

            forks = await copies(sb, 2)
            for i, fork in enumerate(forks):
                await fork.files.write("/tmp/work/data", f"copy {i}\n")
            print([await fork.files.read_text("/tmp/work/data")
                   for fork in forks])

            paused = await client.pause_task("quickstart", "freeze")
            print(f"paused: {len(paused.check())}")
            await client.resume_task("quickstart")
            await client.stop_task("quickstart", grace=0)


asyncio.run(main())
