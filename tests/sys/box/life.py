# SPDX-License-Identifier: Apache-2.0
"""Life: pause, stop, limits of time, deaths."""
import json
import os
import signal
import subprocess
import time

from box import Box, LIB, death, is_, is_gone, make, ok, read_all, until


def code(rec):
    return (rec or {}).get("error", {}).get("code")


# Pause and resume.
sb = make(labels={"a": "b"})
b, w = Box(sb), Box(sb)
w.send(op="watch")
is_(w.recv()["state"], "running", "watch says how it is")
before = b.call(op="inspect")
is_(b.call(op="pause")["state"], "paused", "pause")
is_(b.state()["level"], "freeze", "state.json has the level")
is_(b.call(op="pause")["state"], "paused", "again is fine")
r = b.call(op="inspect")
is_(r["state"], "paused", "inspect does not resume")
is_({k: r.get(k) for k in ("labels", "image", "created_ms", "generation")},
    {k: before.get(k) for k in ("labels", "image", "created_ms", "generation")},
    "a pause changes nothing else")
is_(b.out(["echo", "x"]), b"x\n", "any operation resumes")
is_(b.call(op="inspect")["state"], "running", "it runs")
is_(code(b.call(op="pause", level="disk")), "not_checkpointable",
    "the image of the host cannot go to disk")
is_(code(b.call(op="pause", level="deep")), "bad_value", "no such level")
for _ in range(50):
    b.call(op="pause")
    b.call(op="resume")
is_(b.call(op="resume")["state"], "running", "50 times and once more")
c = [Box(sb) for _ in range(5)]
b.call(op="pause")
for x in c:
    x.send(op="exec", command=["echo", "y"], attach=["stdout"])
is_([read_all(x.recv()["_fd"]["stdout"]) for x in c], [b"y\n"] * 5,
    "many at once share a resume")

# Timers stand still while it is paused.
r = b.start("sleep 0.5; echo done", timeout_ms=1500, attach=["stdout"])
other = Box(sb)
other.call(op="pause")
time.sleep(1.6)
other.call(op="resume")
is_(read_all(r["_fd"]["stdout"]), b"done\n", "a pause is no time of a timeout")
r = b.final(r["id"])
ok(r["outcome"] == "exited" and r["duration_ms"] < 1500, "nor of a duration", r)
r = b.start(["sleep", "10"], timeout_ms=400)
other.call(op="pause")
time.sleep(0.6)
other.call(op="resume")
is_(b.final(r["id"])["outcome"], "timeout", "afterwards it runs on")

# Stop: grace, records, the last word, nothing left.
r = b.start("trap 'echo bye; exit 3' TERM; echo on; while :; do sleep 0.02; "
            "done", attach=["stdout"])
os.read(r["_fd"]["stdout"], 10)
other.send(op="stop", grace_ms=5000, id="s")
is_(read_all(r["_fd"]["stdout"]), b"bye\n", "SIGTERM first")
e = b.final(r["id"])
is_((e["outcome"], e["exit_code"]), ("killed", 3), "the command's record", e)
r = other.final("s")
is_((r["state"], r["outcome"]), ("stopped", "killed"), "stop is answered", r)
last = None
while (r := w.recv()) is not None:
    last = r
is_((last["state"], last["ok"]), ("stopped", True), "watchers hear the end")
ok(is_gone(sb), "it is taken apart")
ok(not os.path.exists(f"{LIB}/sb/{sb}"), "its files too")
d = death(sb)
is_((d["outcome"], d["infra"], d["spec"]["labels"]), ("killed", False,
                                                     {"a": "b"}),
    "how it ended is kept", d)

# Stop of what is frozen, and of what will not.
sb = make(name="again")
b = Box(sb)
r = b.start(["sleep", "100"])
b.call(op="pause")
t = time.monotonic()
is_(Box(sb).call(op="stop")["state"], "stopped", "stop of a frozen one")
ok(time.monotonic() - t < 2, "takes no grace")
is_(b.final(r["id"])["outcome"], "killed", "its command was killed")
sb2 = make(name="again")
ok(sb2 != sb, "the name is free at once")
b = Box(sb2)
r = b.start("trap '' TERM; (setsid sh -c \"trap '' TERM; sleep 100\" &) ; "
            "echo on; while :; do sleep 0.1; done", attach=["stdout"])
os.read(r["_fd"]["stdout"], 10)
t = time.monotonic()
is_(Box(sb2).call(op="stop", grace_ms=400)["state"], "stopped",
    "stop of those who ignore it")
ok(0.3 < time.monotonic() - t < 3, "after the grace")
ok(is_gone(sb2), "gone")

# Deaths.
sb = make()
b = Box(sb)
r = b.start(["sleep", "100"])
s = b.call(op="list-execs") and b.state()
os.kill(s["init_pid"], signal.SIGKILL)
e = b.final(r["id"])
is_((e["outcome"], e["infra"]), ("died", True), "pid 1 died", e)
ok(is_gone(sb), "the sandbox is gone with it")
is_(death(sb)["outcome"], "died", "and its death is on record")
sb = make()
b = Box(sb)
b.call(op="exec", command=["sleep", "4711"], detach=True)
s = b.state()
os.kill(s["supervisor_pid"], signal.SIGKILL)
ok(until(lambda: not os.path.exists(f"/proc/{s['init_pid']}") or
         "(zombie)" in open(f"/proc/{s['init_pid']}/status",
                            encoding="utf-8").read()),
   "a supervisor's death ends its sandbox")
subprocess.run(["dsec-doctor", "--fix", "--only", "dead"], check=False,
               stdout=subprocess.DEVNULL)
ok(is_gone(sb), "which is buried")
e = death(sb)
is_((e["outcome"], e["infra"]), ("supervisor-lost", True), "and on record", e)

# Limits of time.
sb = make(ttl_running_stop=1)
b = Box(sb)
is_(b.run(["sleep", "1.5"])["outcome"], "exited", "a command is no idleness")
t = time.monotonic()
ok(is_gone(sb) and time.monotonic() - t > 0.7, "then it is idle")
is_(death(sb)["outcome"], "ttl_idle", "ttl_running_stop")
sb = make(ttl_absolute=1)
r = Box(sb).run(["sleep", "100"])
is_(r["outcome"], "ttl_absolute", "ttl_absolute ends commands", r)
ok(is_gone(sb) and death(sb)["outcome"] == "ttl_absolute", "and the sandbox")
sb = make(ttl_paused=1)
Box(sb).call(op="pause")
ok(is_gone(sb), "paused too long")
is_(death(sb)["outcome"], "ttl_paused", "ttl_paused")

# The first command.
sb = make(command="echo first; exit 4")
is_(Box(sb).call(op="wait", exec="e0")["exit_code"], 4, "the spec's command")
sb2 = make(command=["nosuch"])
b = Box(sb2)
is_(code(b.call(op="wait", exec="e0")), "command_not_found",
    "one that cannot start")
is_(b.out(["echo", "alive"]), b"alive\n", "leaves a sandbox")
for sb in (sb, sb2):
    Box(sb).call(op="stop", grace_ms=0)


# An upgrade while all is under way.
sb = make(ttl_running_stop=600)
b, c = Box(sb), Box(sb)
pid = b.call(op="inspect")["supervisor_pid"]


def upgrade():
    def started():
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            stat = f.read()
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as f:
            return "--state" in f.read() and stat
    os.kill(pid, signal.SIGHUP)
    time.sleep(0.05)
    until(started)
    Box(sb).call(op="inspect")


session = b.call(op="session")["session"]
b.run("cd /tmp; X=9", session=session)
long = b.start("i=0; while [ $i -lt 20 ]; do echo $i; i=$((i+1)); sleep 0.05; "
               "done; exit 5", attach=["stdout"], step=7, key="k")
c.send(op="attach", exec=long["exec"], attach=["stdout"], id="at")
at = c.recv()
ses = c.start("sleep 0.5; echo $X in $PWD", session=session, id="ses",
              attach=["stdout"])
cat = b.start(["cat"], stdin="pipe", attach=["stdout"], id="cat")
tty = b.start('read x; echo "tty:$x"', tty=True, attach=["stdout"], id="tty")
w = Box(sb)
w.send(op="watch")
w.recv()
c.sock.sendall(b'{"op":"inspect","id":"half')
upgrade()
upgrade()
c.sock.sendall(b' a line"}\n')
fd = cat["_fd"]
os.write(fd["stdin"], b"through\n")
is_(os.read(fd["stdout"], 100), b"through\n", "a pipe goes on")
os.close(fd["stdin"])
is_(b.call(op="input", exec=tty["exec"], data="hello\n")["ok"], True, "input")
os.close(tty["_fd"]["tty"])
ok(b"tty:hello" in read_all(tty["_fd"]["stdout"]), "a terminal goes on")
want = b"".join(b"%d\n" % i for i in range(20))
is_(read_all(long["_fd"]["stdout"]), want, "a reader got every byte once")
is_(at["stdout_offset"] + len(read_all(at["_fd"]["stdout"])), len(want),
    "so did a second one")
is_(read_all(ses["_fd"]["stdout"]), b"9 in /tmp\n", "a session goes on")
got = {}
while len(got) < 3:
    r = c.recv()
    got[r["id"]] = r
is_((got["at"]["exit_code"], got["ses"]["exit_code"],
     got["half a line"]["state"]), (5, 0, "running"),
    "those who waited, and half a request", got)
is_(b.run(["x"], step=7)["repeated"], True, "steps are known")
is_(b.run("echo $X", session=session)["stdout"], b"9\n", "the session too")
r = b.start(["sleep", "5"], timeout_ms=700)
c.call(op="pause")
upgrade()
is_(c.call(op="inspect")["state"], "paused", "paused it stays paused")
time.sleep(0.8)
is_(c.call(op="resume")["state"], "running", "resume")
is_(b.final(r["id"])["outcome"], "timeout", "timeouts go on")
is_([w.recv()["state"] for _ in range(2)], ["paused", "running"],
    "watchers go on")
c.call(op="stop", grace_ms=0)
ok(is_gone(sb), "and it ends like any")

# Clients that leave at once, in the middle of what they are told.
sb = make()
for _ in range(30):
    for lines in ([{"op": "exec", "command": ["true"], "attach": ["stdout"]}],
                  [{"op": "watch"}, {"op": "watch"}, {"op": "pause"},
                   {"op": "exec", "command": ["true"]}]):
        b = Box(sb)
        b.sock.sendall(b"".join(json.dumps(x).encode() + b"\n"
                                for x in lines))
        b.sock.close()
b = Box(sb)
is_(b.run(["echo", "here"])["stdout"], b"here\n",
    "clients that left harmed nobody")
b.call(op="stop", grace_ms=0)
