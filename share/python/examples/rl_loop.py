# SPDX-License-Identifier: Apache-2.0
"""An RL loop that is preempted: a trainer is killed in the middle of its
rollouts, its sandboxes are paused by task, resumed later, and a new trainer
goes on.

Each step of a trajectory has its number.  The new trainer replays from step 0:
what ran before is answered from the record and not run again, so its policy
sees the same observations and arrives where the old one was.

    python3 rl_loop.py              # this machine, as root
"""
import asyncio
import os
import signal
import sys
from typing import Dict, List

import dsec
from dsec import DSecClient, DSecRunArgs, Sandbox

TASK = "rl-loop"
ROLLOUTS = 3
# The environment: a number to be found.  It logs each step that really ran.
STEP = """
echo $1 >>/tmp/steps
secret=$(cat /tmp/secret)
if [ $1 -lt $secret ]; then echo low
elif [ $1 -gt $secret ]; then echo high
else echo found; fi
sleep 0.2
"""


def client() -> DSecClient:
    return DSecClient(local="DSEC_SERVER" not in os.environ)


async def rollout(sb: Sandbox) -> Dict[str, int]:
    """The policy halves what is left; any deterministic one will do."""
    low, high, step, replayed = 0, 1000, 0, 0
    while True:
        guess = (low + high) // 2
        r = await sb.run(["sh", "-c", STEP, "step", str(guess)], step=step,
                         timeout=60, check=True)
        replayed += r.repeated
        print(f"{sb.record.get('name')} step {step}: {guess} is "
              f"{r.stdout.strip()}{' (replayed)' if r.repeated else ''}",
              flush=True)
        if r.stdout == "found\n":
            return {"answer": guess, "steps": step + 1, "replayed": replayed}
        if r.stdout == "low\n":
            low = guess + 1
        else:
            high = guess - 1
        step += 1


async def trainer() -> None:
    """Takes up the task's sandboxes where they are, makes what is missing."""
    async with client() as c:
        there = {i.name: i.sandbox for i in await c.sandboxes(task=TASK)}
        boxes: List[Sandbox] = []
        for i in range(ROLLOUTS):
            name = f"{TASK}-{i}"
            if name in there:
                boxes.append(await c.get(there[name]))
                continue
            sb = await c.run_sandbox(DSecRunArgs(
                name=name, task=TASK, memory_limit_mb=64,
                cpu_cores_limit=0.5, ttl_paused=3600))
            await sb.files.write("/tmp/secret", str(137 * (i + 1)))
            boxes.append(sb)
        results = await asyncio.gather(*map(rollout, boxes),
                                       return_exceptions=True)
        for sb, result in zip(boxes, results):
            if isinstance(result, dsec.DSecError):
                # What the platform did is no lesson for the policy.
                verb = "mask" if result.infra else "learn from"
                print(f"{verb} {sb.id}: {result}")
                sys.exit(1)
            if isinstance(result, BaseException):
                raise result
            log = await sb.files.read_text("/tmp/steps")
            print(f"result {result} ran {len(log.split())}", flush=True)
        await c.stop_task(TASK, grace=0)


async def preempted() -> None:
    """What a job launcher does around the trainer."""
    me = [sys.executable, os.path.abspath(__file__), "--trainer"]
    first = await asyncio.create_subprocess_exec(
        *me, stdout=asyncio.subprocess.PIPE)
    assert first.stdout is not None
    try:
        while b"step 3" not in await first.stdout.readline():
            assert not first.stdout.at_eof(), "the trainer ended too early"
    finally:
        first.send_signal(signal.SIGKILL)
        await first.communicate()
    async with client() as c:
        paused = (await c.pause_task(TASK)).check()
        print(f"preempted: {len(paused)} sandboxes paused")
        resumed = (await c.resume_task(TASK)).check()
        print(f"goes on: {len(resumed)} sandboxes resumed", flush=True)
    second = await asyncio.create_subprocess_exec(*me)
    assert await second.wait() == 0, "the second trainer failed"


asyncio.run(trainer() if "--trainer" in sys.argv else preempted())
