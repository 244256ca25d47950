# SPDX-License-Identifier: Apache-2.0
"""Copies of a sandbox whose commands run, and one whose supervisor is lost."""
import json
import os
import signal
import subprocess

from box import Box, LIB, is_, ok, read_all, until
from ckpt import COUNTER, claim, counts, new, take


def fork(sandbox, count, *flags):
    p = subprocess.run(["timeout", "60", "dsec-fork", "--count", str(count),
                        *flags, sandbox], stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, check=False)
    return [json.loads(x) for x in p.stdout.splitlines() if '"parent"' in x]


def output(sandbox, name):
    with open(f"{LIB}/sb/{sandbox}/out/{name}.stdout", "rb") as f:
        return f.read()


sb = new()
b, c = Box(sb), Box(sb)
count = b.start(COUNTER, attach=["stdout"], step=7)
cat = b.start("cat; echo end", stdin="pipe", attach=["stdout"])
tty = b.start("read x; echo is $x", tty=True, attach=["stdout"])
keyed = b.start("read x; echo got $x", stdin="pipe", detach=True, key="k")
session = c.call(op="session")["session"]
c.run("cd /srv; x=5", session=session)
job = c.start("while [ ! -e go ]; do sleep 0.1; done; echo $x $PWD",
              session=session, detach=True)
# What nobody has read yet may be anything.
hostile = (b'{"ok":true}\n{"event":"ready"}\n\0\x1b]0;x\x07\xff\xfe\xed\xa0\x80' +
           bytes(range(256)) * 230)
fed = b.start("until [ -e fed ]; do sleep 0.1; done; cat; echo end",
              stdin="pipe", attach=["stdout"])
os.write(fed["_fd"]["stdin"], hostile)
os.write(cat["_fd"]["stdin"], b"before ")
take(cat["_fd"]["stdout"], 7)
ok(counts(count["_fd"]["stdout"], 5), "a counter")
one, two = fork(sb, 2) or [None, None]
ok(one and two, "two copies", one, two)
ok(counts(count["_fd"]["stdout"], 20), "the source's goes on")
is_(c.call(op="inspect")["generation"], 1, "as the same instance")
os.close(cat["_fd"]["stdin"])
is_(read_all(cat["_fd"]["stdout"]), b"end\n", "its client is its own")

x = Box(one["sandbox"])
r = x.call(op="inspect")
is_((r["state"], r["generation"], r["execs"]), ("running", 1, 6),
    "a copy runs what its source ran")
names = {e["exec"] for e in x.call(op="list-execs")["execs"]
         if e.get("running")}
is_(names, {e["exec"] for e in (count, cat, tty, keyed, job, fed)},
    "under the same names")
r = x.next_of(x.send(op="attach", exec=count["exec"], attach=["stdout"]), False)
before = r["stdout_offset"]
ok(before > 0 and counts(r["_fd"]["stdout"], 5), "its counter goes on")
lines = output(one["sandbox"], count["exec"]).split()
is_(lines, [b"%d" % (i + 1) for i in range(len(lines))],
    "in its own record, from the first line")
x.call(op="input", exec=cat["exec"], data="copy", close=True)
r = x.call(op="wait", exec=cat["exec"])
is_((r.get("exit_code"), output(one["sandbox"], cat["exec"])),
    (0, b"before copyend\n"), "what a client fed is fed by the supervisor", r)
r = x.next_of(x.send(op="attach", exec=tty["exec"], attach=["stdout"]), False)
os.write(r["_fd"]["tty"], b"it\n")
is_(read_all(r["_fd"]["stdout"]), b"it\r\nis it\r\n", "a terminal")
x.run(["touch", "/fed"])
x.call(op="input", exec=fed["exec"], data="", close=True)
x.call(op="wait", exec=fed["exec"])
ok(output(one["sandbox"], fed["exec"]) == hostile + b"end\n",
   "60 KB of any bytes that stood in a pipe",
   output(one["sandbox"], fed["exec"])[:80])
x.run(["touch", "/srv/go"])
is_(x.call(op="wait", exec=job["exec"]).get("exit_code"), 0,
    "a session's command")
is_(output(one["sandbox"], job["exec"]), b"5 /srv\n", "with what it knew")
is_(x.run("echo $x", session=session)["stdout"], b"5\n", "the session goes on")
is_(x.run(["echo", "other"], key="k")["stdout"], b"other\n",
    "keys are not inherited")
x.call(op="signal", exec=count["exec"], signal="KILL")
x.call(op="wait", exec=count["exec"])
is_(x.run(["echo"], step=7).get("repeated"), True, "steps are")
is_(c.call(op="inspect")["state"], "running", "the source runs")
c.run(["touch", "/fed"])
os.close(fed["_fd"]["stdin"])
ok(read_all(fed["_fd"]["stdout"]) == hostile + b"end\n",
   "what stood in its pipe is there still")

# A copy of a copy, to disk and back.
three = fork(two["sandbox"], 1)
ok(three, "a copy of a copy", three)
y = Box(three[0]["sandbox"] if three else two["sandbox"])
r = y.call(op="pause", level="disk", timeout=60)
is_(r.get("level"), "disk", "to disk", r)
r = y.next_of(y.send(op="attach", exec=count["exec"], attach=["stdout"]), False)
ok(r and counts(r["_fd"]["stdout"], 5), "and back", r)

# The supervisor of one that is on the disk is lost.
z = two["sandbox"]
y = Box(z)
is_(y.call(op="pause", level="disk", timeout=60).get("level"), "disk", "to disk")
pid = y.state()["supervisor_pid"]
os.kill(pid, signal.SIGKILL)
until(lambda: not os.path.exists(f"/proc/{pid}/fd/3"))
p = subprocess.run(["dsec-doctor", "--fix"], capture_output=True, text=True,
                   check=False)
ok(f"recovered sandbox {z}" in p.stdout, "it is recovered",
   *[x for x in p.stdout.splitlines() if z in x])
y = Box(z)
r = y.call(op="inspect")
is_((r["state"], r.get("level")), ("paused", "disk"), "it is found again", r)
ok("memory_limit_mb" not in claim(z), "and claims no memory")
os.kill(y.state()["supervisor_pid"], signal.SIGHUP)
is_(y.call(op="inspect").get("level"), "disk", "upgraded")
r = y.next_of(y.send(op="attach", exec=count["exec"], attach=["stdout"]), False)
ok(r and "_fd" in r and counts(r["_fd"]["stdout"], 5), "and comes back", r)
r = y.next_of(y.send(op="attach", exec=tty["exec"], attach=["stdout"]), False)
os.write(r["_fd"]["tty"], b"so\n")
is_(read_all(r["_fd"]["stdout"]), b"so\r\nis so\r\n", "with its terminal")
y.run(["touch", "/srv/go"])
is_(y.run("echo $x", session=session)["stdout"], b"5\n", "and its session")
is_(y.call(op="inspect")["generation"], 2, "as a new generation")
for s in [sb, one["sandbox"], z] + [r["sandbox"] for r in three]:
    Box(s).call(op="stop", grace_ms=0)
