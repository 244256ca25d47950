# SPDX-License-Identifier: Apache-2.0
# The quickstart's task: judge a candidate's roman(n) by a unit-test suite.
# The candidate's source is in the environment, as a rollout's answer would be.
import os
import unittest

scope = {}
exec(compile(os.environ["CANDIDATE"], "candidate.py", "exec"), scope)
roman = scope.get("roman")

CASES = {1: "I", 3: "III", 4: "IV", 5: "V", 9: "IX", 14: "XIV", 40: "XL",
         90: "XC", 400: "CD", 944: "CMXLIV", 1994: "MCMXCIV", 3999: "MMMCMXCIX"}
VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def value(text):
    total = 0
    for c, after in zip(text, text[1:] + " "):
        v = VALUES[c]
        total += -v if VALUES.get(after, 0) > v else v
    return total


class Known(unittest.TestCase):
    pass


for n, want in CASES.items():
    setattr(Known, f"test_{n:04}",
            lambda self, n=n, want=want: self.assertEqual(roman(n), want))


class Rules(unittest.TestCase):
    def test_round_trip(self):
        for n in range(1, 4000, 7):
            self.assertEqual(value(roman(n)), n)

    def test_no_four_in_a_row(self):
        for n in range(1, 4000, 7):
            for c in "IXC":
                self.assertNotIn(c * 4, roman(n))

    def test_refuses_zero(self):
        self.assertRaises(ValueError, roman, 0)

    def test_refuses_negative(self):
        self.assertRaises(ValueError, roman, -7)


unittest.main(argv=["task"], verbosity=0)
