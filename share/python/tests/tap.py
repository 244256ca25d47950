# SPDX-License-Identifier: Apache-2.0
"""Run unittest modules and say how it went as TAP.

    python3 tap.py MODULE...
"""
import logging
import os
import sys
import time
import traceback
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]
# Standard error is for what should not be; to wait is what many of them want.
logging.getLogger("dsec").setLevel(logging.ERROR)


class TapResult(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.n = 0

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def say(self, good, test, note="", why=None):
        self.n += 1
        name = test.shortDescription() or str(test)
        print(f"{'ok' if good else 'not ok'} {self.n} - {name}{note}",
              flush=True)
        took = time.monotonic() - self.began
        if took > 3:
            print(f"# that took {took:.1f} s", flush=True)
        if why is not None:
            text = "".join(traceback.format_exception(*why))
            for line in text.rstrip().split("\n"):
                print("# " + line, flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.say(True, test)

    def addError(self, test, err):
        super().addError(test, err)
        self.say(False, test, why=err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say(False, test, why=err)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say(True, test, f" # SKIP {reason}")


def main():
    suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:])
    result = TapResult()
    suite.run(result)
    print(f"1..{result.n}")
    sys.exit(0 if result.wasSuccessful() else 1)


main()
