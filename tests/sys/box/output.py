# SPDX-License-Identifier: Apache-2.0
"""Output: recordings, readers of every temper, endless writers."""
import os

import subprocess

import time

from box import Box, is_, make, ok, read_all, until

MIB = 1 << 20
SB = make(memory_limit_mb=64)
b = Box(SB)
pid = b.call(op="inspect")["supervisor_pid"]

def private_kb():
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
        return sum(int(line.split()[1]) for line in f
                   if line.startswith(("Private_Dirty", "Anonymous")))

# Every byte once, whatever it is.
r = b.run("head -c 3000000 /dev/urandom | tee /tmp/r; md5sum </tmp/r >&2",
          attach=["stdout", "stderr"])
md5 = subprocess.run(["md5sum"], input=r["stdout"], capture_output=True,
                     check=True).stdout
is_(r["stderr"], md5, "a reader gets every byte")
is_(subprocess.run(["md5sum"], input=b.recording(r["exec"] + ".stdout"),
                   capture_output=True, check=True).stdout, md5,
    "so does the recording")
r = b.run(["sh", "-c", r"printf '\342'; sleep 0.02; printf '\202'; sleep 0.02;"
           r" printf '\254\377'"])
is_(r["stdout"], b"\xe2\x82\xac\xff", "a character in pieces")
r = b.run("exit 0")
is_(b.recording(r["exec"] + ".stdout"), None, "no output, no file")

# An endless writer, nobody listening.
before = private_kb()
r = b.call(op="exec", command="yes 0123456789abcde | head -c 200000000",
           detach=True)
r = b.call(op="wait", exec=r["exec"], timeout=60)
is_((r["stdout_bytes"], r["truncated"]), (200000000, True),
    "all is counted, and called truncated", r)
is_(len(b.recording(r["exec"] + ".stdout")), 32 * MIB, "32 MiB from the start")
ring = b.recording(r["exec"] + ".stdout.tail")
start = r["stdout_tail_start"]
is_(start, (200000000 - 32 * MIB) % (32 * MIB), "where the tail begins")
ok(len(ring) == 32 * MIB and
   (ring[start:] + ring[:start]).endswith(b"cde\n" * 1) and
   (ring[start:] + ring[:start])[-64:] == b"0123456789abcde\n" * 4,
   "32 MiB up to the end")
t = time.monotonic()
r = b.run(["yes"], attach=[], timeout_ms=500)
ok(r["outcome"] == "timeout" and time.monotonic() - t < 5,
   "yes ends by its timeout", r)
r = b.run(["cat", "/dev/zero"], attach=[], timeout_ms=300)
is_(r["outcome"], "timeout", "one without lines too")
ok(private_kb() - before < 200, "memory stays flat", private_kb(), before)
is_(b.out(["echo", "alive"]), b"alive\n", "the sandbox is not hurt by it")

# A slow reader slows the writer, and loses nothing.
r = b.start("for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero; done",
            attach=["stdout"])
fd = r["_fd"]["stdout"]
n = len(read_all(fd, 1000))
time.sleep(0.3)
ok(b.call(op="list-execs")["execs"][0].get("running"), "it waits for a reader")
n += len(read_all(fd))
r = b.final(r["id"])
is_((n, r["stdout_bytes"]), (6000000, 6000000), "which gets it all", r)

# One that stops holds nobody up for ever; one that is gone not at all.
r = b.start("i=0; while [ $i -lt 40 ]; do head -c 100000 /dev/zero; "
            "i=$((i+1)); sleep 0.01; done; head -c 3000000 /dev/zero",
            attach=["stdout"])
name, first = r["exec"], r["_fd"]["stdout"]
c, d, e = Box(SB), Box(SB), Box(SB)
c.send(op="attach", exec=name, attach=["stdout"])
second = c.recv()
d.send(op="attach", exec=name, attach=["stdout"])
gone = d.recv()["_fd"]["stdout"]
e.send(op="attach", exec=name, attach=["stdout"], lossy=True)
lossy = e.recv()["_fd"]["stdout"]
os.close(gone)
got = len(read_all(first))  # the others do not read
r = b.final(r["id"])
is_((got, r["stdout_bytes"]), (7000000, 7000000),
    "a good reader gets all beside a stopped and a gone one", r)
n = len(read_all(second["_fd"]["stdout"]))
ok(0 < n + second["stdout_offset"] < 7000000, "the stopped one was cut off", n)
ok(len(read_all(lossy)) < 7000000, "the lossy one missed some")
is_(c.final(1)["stdout_bytes"], 7000000, "and is told how much there was")
is_(b.out(["echo", "on"]), b"on\n", "a new reader works")

# To come back: attach while it runs, and afterwards.
r = b.call(op="exec", command="echo early; sleep 0.5; echo late", detach=True)
until(lambda: b.call(op="list-execs")["execs"][0]["stdout_bytes"] == 6)
c.send(op="attach", exec=r["exec"], attach=["stdout"], id="a")
s = c.recv()
is_((s["stdout_offset"], read_all(s["_fd"]["stdout"])), (6, b"late\n"),
    "attach says what came before")
is_(c.final("a")["outcome"], "exited", "and has the record")
is_(c.call(op="attach", exec=r["exec"])["stdout_bytes"], 11, "afterwards too")

# No room for the recording: the writer does not notice.
b.run("true")
r = b.call(op="exec", command="sleep 0.3; head -c 5000000 /dev/zero; exit 4",
           detach=True)
full = f"{os.environ['DSEC_LIB']}/sb/{SB}/out/{r['exec']}.stdout"
os.symlink("/dev/full", full)  # not followed: the same as no room
r = b.call(op="wait", exec=r["exec"])
is_((r["exit_code"], r["stdout_bytes"], r["truncated"], r["stdout_kept"]),
    (4, 5000000, True, 0), "a recording that fails stops nobody", r)

# Many short ones lose no line.
bad = 0
for i in range(30):
    r = b.run("i=0; while [ $i -lt 50 ]; do echo line $i; i=$((i+1)); done; "
              "exit 3")
    bad += r["stdout"].count(b"\n") != 50 or r["exit_code"] != 3
is_(bad, 0, "30 short ones: every line and the status")
ok(private_kb() - before < 200, "memory is still flat", private_kb(), before)

# Ended, and its reader does not read on: that holds up no stop.
slow = b.start(["head", "-c", "1500000", "/dev/zero"], attach=["stdout"])
ok(until(lambda: not b.call(op="list-execs")["execs"][0].get("running")),
   "it ended while its reader had not taken all")
is_(Box(SB).call(timeout=5, op="stop", grace_ms=0)["state"], "stopped",
    "stop beside a reader that does not read")
