#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cluster of two controls and four nodes on this machine, and what it does
with a burst of creates: how they are spread, what a node refuses is made
elsewhere, and nothing stays behind.

With a command after --, that runs in the cluster instead, such as
    cluster.py -- sh -c 'dsec --server 10.213.0.11:7443 run -- uname -n'
Needs root; takes away all it made when it ends, by Ctrl-C too.
"""
from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import List

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))
sys.dont_write_bytecode = True

# pylint: disable=wrong-import-position
from dsec import DSecClient, DSecRunArgs, RetryPolicy  # noqa: E402
from world import (Member, World, WorldError,  # noqa: E402
                   stop_by_signal, wait_until)

SPREAD = 1.20  # the fullest node, against their mean
SMALL = 8      # sandboxes of the node that has little room
BOX = DSecRunArgs(task="burst", memory_limit_mb=16, cpu_cores_limit=0.1,
                  pids_limit=64)


class Show:
    """What is told to whom watches: results on stdout, progress on a
    terminal."""

    def __init__(self) -> None:
        self.bad = 0
        self.bar = sys.stderr.isatty()

    def say(self, text: str = "") -> None:
        self.progress("")
        print(text, flush=True)

    def check(self, good: bool, text: str) -> None:
        self.bad += not good
        self.say(f"  {'ok' if good else 'NOT OK'}: {text}")

    def progress(self, text: str) -> None:
        if self.bar:
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()


async def burst(world: World, show: Show, creates: int,
                parallel: int) -> List[float]:
    """Through all controls at once; how long each create took."""
    took: List[float] = []
    failed: List[str] = []
    clients = [DSecClient(config=world.client, addresses=[c.address],
                          retry=RetryPolicy(capacity_s=60))
               for c in world.controls]
    await asyncio.gather(*(client.open() for client in clients))
    late = asyncio.ensure_future(surprise(world.nodes[-1]))
    gate = asyncio.Semaphore(parallel)
    began = time.monotonic()

    async def one(client: DSecClient) -> None:
        async with gate:
            start = time.monotonic()
            try:
                await client.run_sandbox(BOX)
                took.append(time.monotonic() - start)
            except Exception as e:  # pylint: disable=broad-except
                failed.append(str(e))
        show.progress(f"  {len(took) + len(failed)} of {creates} in "
                      f"{time.monotonic() - began:.0f} s")

    await asyncio.gather(*(one(clients[i % len(clients)])
                           for i in range(creates)))
    seconds = time.monotonic() - began
    await late
    await asyncio.gather(*(client.close() for client in clients))
    show.check(not failed,
               f"{len(took)} of {creates} made in {seconds:.1f} s, "
               f"{len(took) / seconds:.0f} a second"
               + (f"; {failed[0]}" if failed else ""))
    return sorted(took)


def refusals(node: Member) -> int:
    """How many creates it has turned away because it is full."""
    return int(node.counted("dsec_requests_total", program="run",
                            code="count"))


async def surprise(small: Member) -> None:
    """It has less room than the controls believe, and its reports, which
    would tell them, are held up until it has refused somebody."""
    reporter = wait_until("reports", 10, lambda: small.helper("dsec-admit"))
    os.kill(reporter, signal.SIGSTOP)
    try:
        small.node_conf(max_sandboxes=SMALL)
        end = time.monotonic() + 4
        while refusals(small) == 0 and time.monotonic() < end:
            await asyncio.sleep(0.05)
    finally:
        os.kill(reporter, signal.SIGCONT)


def judge(world: World, show: Show, took: List[float], creates: int) -> None:
    """Where they are, against what is promised."""
    small = world.nodes[-1]
    live = {n.name: len(n.live()) for n in world.nodes}
    held = {n.name: n.report()["held"]["sandboxes"] for n in world.nodes}
    refused = {n.name: refusals(n) for n in world.nodes}
    show.say("  node  sandboxes  claims  refused")
    for name, count in live.items():
        show.say(f"  {name:4}  {count:9}  {held[name]:6}  {refused[name]:7}")
    if took:
        show.say(f"  half of the creates took up to {took[len(took) // 2]:.2f}"
                 f" s, the slowest {took[-1]:.2f} s")
    others = [live[n.name] for n in world.nodes if n is not small]
    mean = sum(others) / len(others)
    show.check(max(others) <= SPREAD * mean,
               f"balance: the fullest of the others has {max(others)}, "
               f"{max(others) / mean:.2f} of their mean {mean:.1f} "
               f"({SPREAD:.2f} is allowed)")
    show.check(live[small.name] <= SMALL and refused[small.name] > 0,
               f"{small.name} holds {live[small.name]} and no more than "
               f"{SMALL}; it refused {refused[small.name]}, which were made "
               "elsewhere")
    show.check(sum(live.values()) == creates,
               f"{sum(live.values())} sandboxes: none was made twice")
    show.check(live == held, "each node has as many claims as sandboxes")


async def stop(world: World, show: Show) -> None:
    """All of the task, through a control; then look at every node."""
    began = time.monotonic()
    async with DSecClient(config=world.client) as client:
        ended = await client.stop_task("burst", grace=0, timeout=300)
    show.check(ended.ok, f"{len(ended)} stopped by their task in "
               f"{time.monotonic() - began:.1f} s")

    def empty() -> bool:
        return all(not any(n.report()["held"].values()) and not n.live()
                   for n in world.nodes)
    try:
        wait_until("claims go", 30, empty)
    except WorldError:
        pass
    show.check(empty(), "no claim is left on any node")


def await_reports(world: World) -> None:
    wait_until("controls see all nodes", 30, lambda: all(
        c.counted("dsec_node_state", state="live") == len(world.nodes)
        for c in world.controls))
    # The placer of each hears of a node with its next report at the latest.
    wait_until("controls have reports of all nodes", 30, lambda: all(
        n.counted("dsec_requests_total", program="report")
        >= 3 * len(world.controls) for n in world.nodes))


async def demonstrate(world: World, show: Show, creates: int,
                      parallel: int) -> None:
    small = world.nodes[-1]
    show.say(f"\nA burst of {creates} creates, {parallel} at a time, through "
             f"{len(world.controls)} controls.\nAs it begins {small.name} is "
             f"told to hold {SMALL} at most, and its reports are held up:\n"
             "no control knows until it has refused one.")
    took = await burst(world, show, creates, parallel)
    judge(world, show, took, creates)
    show.say("\nThe end of all of them.")
    await stop(world, show)


def command(world: World, argv: List[str]) -> int:
    """Something else, in the cluster's place."""
    env = dict(os.environ, DSEC_CLIENT=world.client,
               DSEC_SERVER=world.controls[0].address,
               PATH=f"{os.path.dirname(world.bin('dsec'))}:"
                    f"{os.environ.get('PATH', '')}",
               PYTHONPATH=os.path.join(HERE, "..", "python"))
    # Ctrl-C is for what it runs, which decides whether it ends.
    signal.signal(signal.SIGINT, lambda *_: None)
    return subprocess.call(argv, env=env)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--creates", type=int, default=500)
    parser.add_argument("--parallel", type=int, default=64,
                        help="creates under way at a time")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--controls", type=int, default=2)
    parser.add_argument("command", nargs="*")
    args = parser.parse_args()
    if min(args.creates, args.parallel, args.controls) < 1 or args.nodes < 2:
        parser.error("too few")
    show = Show()
    stop_by_signal()
    try:
        with World(nodes=args.nodes, controls=args.controls) as world:
            show.say("\n".join(
                f"{m.role:7} {m.name}  {m.address}" for m in world.members)
                + f"\n(namespaces of their own; files below {world.base} and "
                f"{world.run})")
            await_reports(world)
            if args.command:
                return command(world, args.command)
            asyncio.run(demonstrate(world, show, args.creates, args.parallel))
        show.say("\nThe cluster is gone.")
    except WorldError as e:
        print(f"cluster: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        show.say("\nEnded before its time; the cluster is gone.")
        return 130
    return 1 if show.bad else 0


if __name__ == "__main__":
    sys.exit(main())
