# SPDX-License-Identifier: Apache-2.0
"""What one listing of an nft table has more than another, as input of nft.

	net-delta.py BEFORE AFTER >DELTA
"""

import re
import sys


def blocks(path):
    """The sets, maps, chains and objects of the one table, in order."""
    found, name, lines = {}, None, []
    for line in open(path):
        line = line.rstrip("\n")
        if re.match(r"\t\w+ \S+ \{$", line):
            name, lines = line.strip()[:-2], []
        elif line == "\t}":
            found[name] = lines
            name = None
        elif name:
            lines.append(line)
    return found


def elements(lines):
    text = " ".join(line.strip() for line in lines)
    m = re.search(r"elements = \{ (.*) \}", text)
    return re.split(r",\s+", m.group(1)) if m else []


def main():
    before, after = blocks(sys.argv[1]), blocks(sys.argv[2])
    print("table inet dsec {")
    for name, lines in after.items():
        if name not in before:
            print(f"\t{name} {{", *lines, "\t}", sep="\n")
    print("}")
    for name, lines in after.items():
        kind, word = name.split()
        if name not in before or kind not in ("set", "map"):
            continue
        old = set(elements(before[name]))
        new = [el for el in elements(lines) if el not in old]
        if new:
            print(f"add element inet dsec {word} {{ {', '.join(new)} }}")


main()
