# SPDX-License-Identifier: Apache-2.0
# hold.py KIND MB CHILDREN: memory in a sandbox, "random" or "compressible", that
# is known by its sum; children share it.  It sleeps until something is written
# to the FIFO /srv/ask, and answers "MB same" into /srv/answer if every process
# still has what it had.
import os
import sys
import zlib

kind, mb, children = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
memory = bytearray(mb << 20)
for at in range(0, mb << 20, 1 << 20):
    if kind == "random":
        memory[at:at + (1 << 20)] = os.urandom(1 << 20)
    else:
        memory[at:at + (1 << 20)] = b"".join(
            (b"page %d of many alike" % n).ljust(64, b".") * 64
            for n in range(at >> 12, (at >> 12) + 256))
want = zlib.crc32(memory)
ends = []
for _ in range(children):
    ours, theirs = os.pipe(), os.pipe()
    if os.fork() == 0:
        while os.read(ours[0], 1):
            os.write(theirs[1], b"%d" % (zlib.crc32(memory) == want))
        os._exit(0)
    ends.append((ours[1], theirs[0]))
os.mkfifo("/srv/ask")
open("/srv/ready", "w").close()
while True:
    open("/srv/ask").read()
    same = zlib.crc32(memory) == want
    for ask, answer in ends:
        os.write(ask, b"?")
        same = os.read(answer, 1) == b"1" and same
    with open("/srv/answer.tmp", "w") as file:
        file.write("%d %s\n" % (mb, "same" if same else "different"))
    os.rename("/srv/answer.tmp", "/srv/answer")
