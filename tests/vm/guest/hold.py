# SPDX-License-Identifier: Apache-2.0
# hold.py KIND MB CHILDREN: memory in a sandbox, "random" or "compressible", no
# page like another, that is known by its sum; children share it.  Makes the
# FIFOs /srv/ask and /srv/answer when it is ready, and sleeps.  Whatever is
# written to the one is answered in the other with "MB same", if every process
# still has what it had.
import os
import sys
import zlib

kind, mb, children = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
memory = bytearray(mb << 20)
page = os.urandom(4096 - 8) if kind == "random" else b"many alike " * 372
for at in range(0, mb << 20, 4096):
    memory[at:at + 4096] = at.to_bytes(8, "little") + page[:4096 - 8]
want = zlib.crc32(memory)
ends = []
for _ in range(children):
    ours, theirs = os.pipe(), os.pipe()
    if os.fork() == 0:
        while os.read(ours[0], 1):
            os.write(theirs[1], b"%d" % (zlib.crc32(memory) == want))
        os._exit(0)
    ends.append((ours[1], theirs[0]))
os.mkfifo("/srv/answer")
os.mkfifo("/srv/ask")
while True:
    open("/srv/ask").read()
    same = zlib.crc32(memory) == want
    for ask, answer in ends:
        os.write(ask, b"?")
        same = os.read(answer, 1) == b"1" and same
    with open("/srv/answer", "w") as file:
        file.write("%d %s\n" % (mb, "same" if same else "different"))
