# SPDX-License-Identifier: Apache-2.0
"""Bulk evaluation: many candidates, each judged by a test-suite in a sandbox
of its own, so many at a time.  What the candidate did is told from what the
platform did, which is tried again and, if that does not help, masked.

    python3 bulk_eval.py            # this machine, as root
"""
import asyncio
import os
import sys
from typing import Dict, Iterator, List, Optional, Tuple

import dsec
from dsec import DSecClient, DSecRunArgs, RetryPolicy, Sandbox

SUITE = '''
import sys, unittest
from candidate import roman

CASES = {1: "I", 4: "IV", 9: "IX", 40: "XL", 90: "XC", 944: "CMXLIV",
         1994: "MCMXCIV", 3999: "MMMCMXCIX"}

class Roman(unittest.TestCase):
    def test_known(self):
        for n, want in CASES.items():
            self.assertEqual(roman(n), want)

    def test_refuses(self):
        self.assertRaises(ValueError, roman, 0)

unittest.main(verbosity=0)
'''
TABLE = '''
T = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"),
     (90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"),
     (4, "IV"), (1, "I")]
'''
CANDIDATES = {
    "right": TABLE + '''
def roman(n):
    if n < 1: raise ValueError(n)
    s = ""
    for v, c in T:
        while n >= v: s, n = s + c, n - v
    return s
''',
    "takes zero": TABLE + '''
def roman(n):
    s = ""
    for v, c in T:
        while n >= v: s, n = s + c, n - v
    return s
''',
    "no subtraction": "def roman(n): return 'I' * n",
    "does not parse": "def roman(n) return 1",
    "loops for ever": "def roman(n):\n    while True: pass",
    "eats memory": "def roman(n):\n    x = []\n    while 1: x.append('x' * 9**6)",
    "says it passed": "import os\nprint('OK')\nos._exit(1)",
}
# A verdict, and whether the sample may be learnt from.
Verdict = Tuple[str, bool]


async def judge(sb: Sandbox, candidate: str) -> Verdict:
    await asyncio.gather(sb.files.write("/tmp/suite.py", SUITE),
                         sb.files.write("/tmp/candidate.py", candidate))
    try:
        # Only an endless one runs out of that, on a busy machine too.
        await sb.run(["python3", "suite.py"], cwd="/tmp", timeout=20, grace=0,
                     check=True)
        return "pass", True
    except dsec.CommandError as e:
        return e.result.outcome if e.code != "exited" else "fail", True


async def main() -> None:
    names = list(CANDIDATES)

    def specs() -> Iterator[DSecRunArgs]:
        for name in names:
            yield DSecRunArgs(memory_limit_mb=96, cpu_cores_limit=0.5,
                              task="bulk-eval", ttl_absolute=600,
                              labels={"candidate": name.replace(" ", "-")})

    verdicts: Dict[str, Optional[Verdict]] = dict.fromkeys(names)
    # A full node is waited for: a refusal says when to come again.
    async with DSecClient(local="DSEC_SERVER" not in os.environ,
                          retry=RetryPolicy(capacity_s=300)) as client:
        async def work(sb: Sandbox) -> Verdict:
            labels = (await sb.info()).labels
            return await judge(sb, CANDIDATES[labels["candidate"].replace(
                "-", " ")])

        async for r in client.run_many(specs(), work, concurrency=4):
            if r.value is not None:
                verdicts[names[r.index]] = r.value
            elif r.infra:
                verdicts[names[r.index]] = ("masked", False)
            else:
                print(f"{names[r.index]}: {r.error}", file=sys.stderr)
            print(f"{names[r.index]:16} {verdicts[names[r.index]]}",
                  flush=True)
    kinds: List[str] = sorted(v[0] for v in verdicts.values() if v)
    print("summary:", *kinds)


asyncio.run(main())
