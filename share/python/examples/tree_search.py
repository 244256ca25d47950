# SPDX-License-Identifier: Apache-2.0
"""Tree search with forks: every state of the search is a sandbox, and trying
an action is a copy of it.  The best few live on, the others are stopped.

Here a state is a number in a file, and the goal is to get from 1 to 19 by the
actions below; it could as well be a repository and a server with its memory.

    python3 tree_search.py          # this machine, as root

With DSEC_IMAGE, an image that can be checkpointed, the copies have memory.
"""
import asyncio
import os
from dataclasses import dataclass
from typing import List

import dsec
from dsec import DSecClient, DSecRunArgs, Sandbox

GOAL, BEAM, DEPTH = 19, 2, 5
ACTIONS = {"double": "x*2", "add three": "x+3", "square": "x*x"}


@dataclass
class Node:
    sb: Sandbox
    value: int
    path: List[str]

    def score(self) -> float:
        return -abs(GOAL - self.value)


async def fork(sb: Sandbox, count: int) -> List[Sandbox]:
    try:
        return await sb.fork(count=count)
    except dsec.Unsupported:
        return await sb.fork(count=count, fs_only=True)


async def act(parent: Node, sb: Sandbox, action: str) -> Node:
    r = await sb.run_shell(
        f"x=$(cat /tmp/state); echo $(({ACTIONS[action]})) | tee /tmp/state",
        check=True)
    return Node(sb, int(r.stdout), parent.path + [action])


async def expand(node: Node) -> List[Node]:
    copies = await fork(node.sb, len(ACTIONS))
    children = await asyncio.gather(*(
        act(node, sb, action) for sb, action in zip(copies, ACTIONS)))
    await node.sb.stop(grace=0)
    return children


async def search(client: DSecClient) -> Node:
    root = await client.run_sandbox(DSecRunArgs(
        image=os.environ.get("DSEC_IMAGE"), task="tree-search",
        memory_limit_mb=64, cpu_cores_limit=0.5,
        ttl_absolute=600))
    await root.files.write("/tmp/state", "1")
    beam = [Node(root, 1, [])]
    for depth in range(DEPTH):
        tried = [child for node in beam for child in await expand(node)]
        tried.sort(key=Node.score, reverse=True)
        best = tried[0]
        print(f"depth {depth + 1}: {[n.value for n in tried]}", flush=True)
        if best.value == GOAL:
            return best
        beam, rest = tried[:BEAM], tried[BEAM:]
        await asyncio.gather(*(n.sb.stop(grace=0) for n in rest))
    raise SystemExit("not found")


async def main() -> None:
    async with DSecClient(local="DSEC_SERVER" not in os.environ) as client:
        try:
            found = await search(client)
            print(f"found {found.value}: {', '.join(found.path)}")
        finally:
            await client.stop_task("tree-search", grace=0)


asyncio.run(main())
