# SPDX-License-Identifier: Apache-2.0
"""Pauses to disk, the way back, and their failures."""
import json
import os
import random
import shutil
import signal
import subprocess
import threading

from box import Box, LIB, RUN, death, is_, is_gone, ok, read_all, until
from ckpt import COUNTER, LIBEXEC, claim, code, counts, groups, new, take

# There and back: what runs goes on, who is connected stays so.
sb = new(name="one", ttl_running_stop=600)
b, w, c = Box(sb), Box(sb), Box(sb)
w.send(op="watch")
w.recv()
count = b.start(COUNTER, attach=["stdout"])
cat = b.start("cat; echo end", stdin="pipe", attach=["stdout"])
kept = b.start("read x; echo got $x", stdin="pipe", detach=True)
tty = b.start("stty size; read x; echo is $x; sleep 600", tty=True, rows=30,
              cols=90, attach=["stdout"])
limited = b.start("sleep 3; echo late", timeout_ms=2000, attach=["stdout"])
session = c.call(op="session")["session"]
b2 = Box(sb)
b2.run("cd /srv; x=5", session=session)
job = b2.start("sleep 1; echo $x $PWD", session=session, attach=["stdout"])
os.write(cat["_fd"]["stdin"], b"before ")
is_(take(cat["_fd"]["stdout"], 7), b"before ", "a pipe from a client")
is_(take(tty["_fd"]["stdout"], 7), b"30 90\r\n", "a terminal")
ok(counts(count["_fd"]["stdout"], 3), "a counter")
generation = c.call(op="inspect")["generation"]
r = c.call(op="pause", level="disk", timeout=60)
ok(r["ok"] and r["state"] == "paused" and r["level"] == "disk" and
   r["bytes"] > 0 and r["frozen_ms"] > 0, "it is on the disk", r)
is_((w.recv()["level"], w.recv()["level"]), ("freeze", "disk"),
    "a watcher sees it go")
is_(groups(sb), [], "its groups are gone")
ok("memory_limit_mb" not in claim(sb), "it claims no memory")
s = c.state()
ok(s["level"] == "disk" and "init_pid" not in s, "state.json says so", s)
os.write(cat["_fd"]["stdin"], b"meanwhile ")
pid = s["supervisor_pid"]
os.kill(pid, signal.SIGHUP)
is_(c.call(op="inspect")["level"], "disk", "an upgrade does not wake it")
is_(code(c.call(op="wait", exec=count["exec"], timeout_ms=1)), "deadline",
    "nor does a wait")
is_(c.call(op="pause")["level"], "disk", "it goes no higher")
is_(b2.out(["echo", "x"]), b"x\n", "a command brings it back")
is_(c.call(op="inspect")["generation"], generation + 1, "as a new generation")
is_(c.state()["supervisor_pid"], pid, "of the same supervisor")
is_(w.recv()["state"], "running", "a watcher sees it come")
ok(groups(sb) and "memory_limit_mb" in claim(sb), "it has its share again")
ok(not os.path.exists(f"{LIB}/sb/{sb}/ckpt"), "the checkpoint is gone")
ok(counts(count["_fd"]["stdout"], 20), "the counter goes on, without a gap")
os.write(cat["_fd"]["stdin"], b"after ")
is_(take(cat["_fd"]["stdout"], 16), b"meanwhile after ",
    "a client's pipe is the same")
os.close(cat["_fd"]["stdin"])
is_(read_all(cat["_fd"]["stdout"]), b"end\n", "and ends with the client's end")
is_(b.final(cat["id"])["exit_code"], 0, "its end is reported")
c.call(op="input", exec=kept["exec"], data="this\n", close=True)
r = c.call(op="wait", exec=kept["exec"])
with open(f"{LIB}/sb/{sb}/out/{kept['exec']}.stdout", "rb") as f:
    is_((r["exit_code"], f.read()), (0, b"got this\n"),
        "the supervisor's pipe is the same")
again = c.next_of(c.send(op="attach", exec=tty["exec"], attach=["stdout"]),
                  False)
os.write(again["_fd"]["tty"], b"ok\n")
is_(take(tty["_fd"]["stdout"], 11), b"ok\r\nis ok\r\n",
    "a terminal, attached anew")
is_((read_all(job["_fd"]["stdout"]), b2.final(job["id"])["exit_code"]),
    (b"5 /srv\n", 0), "a session's command")
is_(b2.run("echo $x", session=session)["stdout"], b"5\n", "and what it knows")
is_(b.final(limited["id"])["outcome"], "timeout", "a timeout stood still")

# Many at once, twice; every level; a stop wakes nothing.
for level in ("reclaim", "disk"):
    r = c.call(op="pause", level=level, timeout=60)
    ok(r["ok"] and r["level"] == level, f"paused: {level}", r)
    many = [Box(sb) for _ in range(10)]
    for x in many:
        x.send(op="exec", command=["echo", "y"], attach=["stdout"])
    is_([read_all(x.recv(60)["_fd"]["stdout"]) for x in many], [b"y\n"] * 10,
        f"ten share the resume from {level}")
ok(counts(count["_fd"]["stdout"], 5), "the counter goes on")
c.call(op="pause")
r = c.call(op="pause", level="disk", timeout=60)
is_(r.get("level"), "disk", "from frozen to disk", r)
h = Box(sb)
h.send(op="hold")
is_(h.recv(60)["level"], "freeze", "a hold has it back first, to hold it")
h.sock.close()
ok(until(lambda: c.call(op="inspect")["state"] == "running"), "and lets it run")
is_(c.call(op="pause", level="disk", timeout=60).get("level"), "disk", "again")
x = c.send(op="stop")
is_(c.final(x)["state"], "stopped", "a stop of what is on the disk")
is_(b.final(count["id"])["outcome"], "killed", "its commands are told")
ok(is_gone(sb) and not os.path.exists(f"{LIB}/sb/{sb}"), "nothing of it is left")


def fake(name, body):
    """A dsec-ckpt that is ours for some verbs; the directory of it."""
    path = f"{os.environ['DSEC_LIB']}/../{name}"
    shutil.copytree(LIBEXEC, path)
    with open(f"{path}/dsec-ckpt", "w", encoding="utf-8") as f:
        f.write(f"#!/bin/sh\nreal={LIBEXEC}/dsec-ckpt\n{body}\n"
                'exec "$real" "$@"\n')
    return os.path.abspath(path)


def new_with(libexec, **spec):
    os.environ["DSEC_LIBEXEC"] = libexec
    sandbox = new(**spec)
    del os.environ["DSEC_LIBEXEC"]
    return sandbox


# A worker that hangs, is killed, fails, says nonsense.
flag = f"{os.environ['DSEC_LIB']}/../mode"
lib = fake("fake", f"""
case $1$(cat {flag}) in
dumphang) echo '{{"event":"ready"}}'; sleep 600 & wait ;;
dumpdie) echo '{{"event":"ready"}}'; read x; kill -KILL $$ ;;
dumpagain)
	echo x >>{flag}.tries
	[ $(wc -l <{flag}.tries) -gt 3 ] || {{
		echo '{{"ok":false,"error":{{"code":"busy","message":"m","retry_after_ms":20}}}}'
		exit 1
	}} ;;
pssslow) sleep 50 & wait ;;
dumpnonsense) echo nonsense; exit 0 ;;
dumpnone) echo '{{"ok":false,"error":{{"code":"unsupported","message":"m"}}}}'; exit 69 ;;
restoredie) exit 1 ;;
esac""")


def mode(word):
    with open(flag, "w", encoding="utf-8") as f:
        f.write(word)


mode("ok")
sb = new_with(lib)
b, c = Box(sb), Box(sb)
count = b.start(COUNTER, attach=["stdout"])
for word, want in (("die", "system"), ("nonsense", "system"),
                   ("none", "unsupported")):
    mode(word)
    is_(code(c.call(op="pause", level="disk")), want, f"a worker: {word}")
    is_(c.call(op="inspect")["state"], "running", "it runs on")
    is_(c.call(op="pause", level="reclaim").get("level"), "reclaim",
        "another level works")
    is_(c.call(op="resume")["state"], "running", "and back")
mode("hang")
x = c.send(op="pause", level="disk")
other = Box(sb)
ok(until(lambda: other.call(op="inspect")["state"] == "paused"), "it is frozen")
y = other.send(op="exec", command=["echo", "z"], attach=["stdout"])
is_(b.call(op="list-execs")["ok"], True, "others are answered meanwhile")
c.send(op="cancel", cancel=x)
is_(code(c.final(x)), "cancelled", "a pause is taken back")
is_(read_all(other.next_of(y, False)["_fd"]["stdout"]), b"z\n",
    "who waited is served")
ok(counts(count["_fd"]["stdout"], 5), "the counter goes on")
is_(code(c.call(op="pause", level="disk", deadline_ms=300)), "deadline",
    "or by its deadline")
ok(until(lambda: b.call(op="inspect")["state"] == "running"), "it runs")

# A fork that is ended while the snapshot is taken.
for word, flags, end in (("deadline", ["--deadline", "500ms"], None),
                         ("cancelled", [], signal.SIGINT),
                         ("cancelled", ["--fs-only"], signal.SIGTERM)):
    p = subprocess.Popen(["dsec-fork", *flags, sb], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE)
    ok(until(lambda: b.call(op="inspect")["state"] == "paused"), "it is copied")
    if end:
        p.send_signal(end)
    is_(code(json.loads(p.communicate(timeout=20)[0])), word,
        f"a fork is taken back: {word} {flags}")
    is_(b.call(op="inspect")["state"], "running", "its source runs by then")
    is_([x for x in os.listdir(f"{LIB}/snap") if x != "name"], [],
        "and nothing of it is left")
ok(counts(count["_fd"]["stdout"], 5), "the counter goes on")

# How much memory it has: the supervisor does not wait for the kernel.
r = b.call(op="inspect", pss=True)
ok(r.get("pss_bytes", 0) > 0 and r["rss_bytes"] >= r["pss_bytes"] and
   r["pids"] > 1, "an inspect with its memory", r)
mode("slow")
x = c.send(op="inspect", pss=True)
y = other.send(op="inspect", pss=True)
r = b.call(op="inspect")
ok(r["ok"] and "pss_bytes" not in r, "others are answered meanwhile")
for r in (c.final(x), other.final(y)):
    ok(r["ok"] and r["pids"] > 1 and "pss_bytes" not in r,
       "without it where that takes long", r)

# What passes by itself is tried again.
mode("again")
again = Box(new_with(lib))
is_(again.call(op="pause", level="disk", timeout=60).get("level"), "disk",
    "a dump that may be tried again is")
with open(f"{flag}.tries", encoding="utf-8") as f:
    is_(len(f.readlines()), 4, "so many times")
is_(again.call(op="stop").get("state"), "stopped", "and that was it")
mode("hang")

x = c.send(op="pause", level="disk")
ok(until(lambda: other.call(op="inspect")["state"] == "paused"), "once more")
y = other.send(op="exec", command=["true"])
is_(b.call(op="stop")["state"], "stopped", "a stop does not wait for it")
is_((code(c.final(x)), code(other.final(y))), ("stopped", "stopped"),
    "those that wait are told")
ok(is_gone(sb), "gone")

# Its time on the disk, and elsewhere, is limited.
for level in ("reclaim", "disk"):
    b = Box(new(ttl_paused=2))
    is_(b.call(op="pause", level=level, timeout=60).get("level"), level,
        "paused for two seconds")
    b.send(op="watch")
    while b.recv()["state"] != "stopped":
        pass
    is_(death(b.sandbox).get("outcome"), "ttl_paused", "and not for longer")

# No room for the checkpoint.
sb = new()
b, c = Box(sb), Box(sb)
count = b.start(COUNTER, attach=["stdout"])
os.makedirs(f"{LIB}/sb/{sb}/ckpt.new", exist_ok=True)
small = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none",
                        f"{LIB}/sb/{sb}/ckpt.new"], check=False).returncode == 0
r = c.call(op="pause", level="disk", timeout=60)
ok(not small or not r["ok"], "a pause without room", r)
if small:
    subprocess.run(["umount", f"{LIB}/sb/{sb}/ckpt.new"], check=True)
is_(c.call(op="inspect")["state"], "running", "it runs on")
ok(counts(count["_fd"]["stdout"], 5), "really")
is_(c.call(op="pause", level="disk", timeout=60).get("level"), "disk",
    "with room it works")

# A checkpoint that cannot be restored: it stays, and may be tried again.
image = f"{LIB}/sb/{sb}/ckpt/img"
os.rename(image, image + "-away")
is_(c.call(op="resume", timeout=60)["ok"], False, "a resume that fails")
r = c.call(op="inspect")
is_((r["state"], r["level"], groups(sb)), ("paused", "disk", []),
    "it is still paused")
ok("memory_limit_mb" not in claim(sb), "and claims nothing")
os.rename(image + "-away", image)
is_(c.call(op="resume", timeout=60).get("state"), "running", "tried again")
ok(counts(count["_fd"]["stdout"], 5), "the counter goes on")

# No room for it on the node.
c.call(op="pause", level="disk", timeout=60)
with open(f"{RUN}/draining", "w", encoding="utf-8"):
    pass
is_(code(c.call(op="exec", command=["true"])), "draining",
    "admission has a word")
is_(c.call(op="inspect")["level"], "disk", "it waits")
os.unlink(f"{RUN}/draining")
is_(c.call(op="resume", timeout=60).get("state"), "running", "until it may")

# Without a gap, with commands and a stop at random.
random.seed(48)
bad = []


def storm(sandbox, loops, stop_at):
    box = Box(sandbox)
    for i in range(loops):
        level = random.choice(["freeze", "freeze", "freeze", "reclaim", "disk"])
        asks = [box.send(op="pause", level=level)]
        if random.random() < 0.3:
            asks.append(box.send(op="exec", command=["true"]))
        asks.append(box.send(op="resume"))
        if i == stop_at:
            asks.append(box.send(op="stop", grace_ms=0))
        for a in asks:
            rec = box.final(a, 60)
            if i < stop_at and not rec["ok"]:
                bad.append(rec)
        if i == stop_at:
            return


all_sb = [sb] + [new() for _ in range(2)]
t = [threading.Thread(target=storm, args=(x, 25, random.randint(15, 24)))
     for x in all_sb]
for x in t:
    x.start()
for x in t:
    x.join(100)
is_(bad, [], "pauses, resumes and commands without a gap")
ok(all(is_gone(x) for x in all_sb), "and a stop in between")
