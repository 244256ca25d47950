# SPDX-License-Identifier: Apache-2.0
"""System calls of the daemons that fail while requests run: serve-inject.t.

    serve_inject.py DIR NODE CONTROL NODE-PID CONTROL-PID GROUP...

DIR has the certificates, NODE and CONTROL are addresses.  A line of TAP for
each case of the groups.
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from serve_client import Client

DIR, NODE, CONTROL = sys.argv[1:4]
NODE_PID, CONTROL_PID = int(sys.argv[4]), int(sys.argv[5])
failed = count = 0


def check(good, what, *told):
    global failed, count
    count += 1
    print("%s %d - %s" % ("ok" if good else "not ok", count, what), flush=True)
    if not good:
        failed += 1
        for one in told:
            print("#", one, flush=True)


# --- processes ---------------------------------------------------------------

def children(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
        return [int(p) for p in f.read().split()]


def words(pid):
    try:
        with open("/proc/%d/cmdline" % pid) as f:
            return f.read().replace("\0", " ")
    except OSError:
        return ""


def process(name):
    """One of the daemons' processes, the youngest, by what it is."""
    if name in ("node", "control"):
        return NODE_PID if name == "node" else CONTROL_PID
    if name == "launcher":
        return children(process("dsec-run"))[-1]
    if name in ("keeper", "worker"):
        of, want = NODE_PID, "node-" + name
    else:
        of = CONTROL_PID if name == "dsec-place" else process("keeper")
        want = name
    found = []
    for pid in children(of):
        with open("/proc/%d/comm" % pid) as f:
            if want in words(pid) or f.read().strip() == want:
                found.append(pid)
    return found[-1]


def open_files():
    """How many each of the daemons has, but for connections and their like."""
    pids = [CONTROL_PID, NODE_PID, process("keeper"), process("worker")]
    kinds = {}
    for pid in pids:
        for fd in os.listdir("/proc/%d/fd" % pid):
            try:
                to = os.readlink("/proc/%d/fd/%s" % (pid, fd))
            except OSError:
                continue
            kind = pid, re.sub(r"[0-9]+", "N", to)
            kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def settled():
    """... when those that we have left are closed."""
    now, same = open_files(), 0
    while same < 10:
        time.sleep(0.1)
        was, now = now, open_files()
        same = same + 1 if was == now else 0
    return now


class Inject:
    """strace on a process, until the block ends.  How: "CALLS HOW; ...", and
    the path of a file where only calls on it are meant."""

    def __init__(self, name, how, path=None):
        self.pid = process(name)
        self.log = tempfile.NamedTemporaryFile("r")
        faults = [one.split() for one in how.split(";")]
        self.argv = ["strace", "-qq", "-o", self.log.name, "-p", str(self.pid),
                     "-e", "trace=" + ",".join(calls for calls, _ in faults)]
        for calls, what in faults:
            if what != "count":
                self.argv += ["-e", "inject=%s:%s" % (calls, what)]
        self.argv += ["-P", path] if path else []

    def __enter__(self):
        # That it is attached shows in the process's own state.
        self.strace = subprocess.Popen(self.argv, stderr=subprocess.PIPE)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with open("/proc/%d/status" % self.pid) as f:
                if not re.search(r"^TracerPid:\s+0$", f.read(), re.M):
                    return self
            time.sleep(0.01)
        raise RuntimeError("strace does not attach: %s" % self.argv)

    def __exit__(self, *why):
        self.strace.send_signal(signal.SIGTERM)
        self.strace.wait(20)
        self.strace.stderr.close()

    def hits(self):
        self.log.seek(0)
        return sum("(INJECTED)" in line or "killed by" in line
                   for line in self.log)

    def calls(self):
        self.log.seek(0)
        return [line.split("(")[0] for line in self.log if "(" in line]


# --- requests ----------------------------------------------------------------

def answer(c, number, seconds=30):
    """A final record, or what is wrong with there being none."""
    c.sock.settimeout(seconds)
    try:
        return c.until(number)
    except (OSError, EOFError) as e:
        return {"none": repr(e)}


def is_typed(rec):
    """Done, or a failure that says the node is at fault or when to try again."""
    if rec.get("ok") is True:
        return True
    e = rec.get("error", {})
    return bool(e.get("code")) and e["code"] != "internal" and (
        e.get("infra") is True or e.get("retry_after_ms", 0) > 0)


PAD = {"PAD%d" % i: "x" * 100000 for i in range(3)}
BOX = {"program": "run", "memory_limit_mb": 64, "task": "inject"}
serial = 0


def requests():
    """What is asked while a call fails; with names that are new."""
    global serial
    serial += 1
    return [dict(BOX, id="run", key="k%d" % serial, name="n%d" % serial),
            {"id": "exec", "program": "exec", "sandbox": "standing",
             "command": ["echo", "hi"], "env": PAD},
            {"id": "file", "program": "file", "op": "read", "attach": True,
             "sandbox": "standing", "path": "/etc/passwd"},
            {"id": "ps", "program": "ps", "sandbox": "standing"},
            {"id": "report", "program": "report"}]


def ask_all(c, asked):
    got = {}
    try:
        for one in asked:
            c.send(**one)
        c.sock.settimeout(40)
        while len(got) < len(asked):
            line = c.line()
            if "ok" in line and "id" in line:
                got[line["id"]] = line
            elif line.get("event") == "data":
                c.credit(line)
    except (OSError, EOFError) as e:
        got["none"] = {"none": repr(e)}
    return got


def after(address, asked):
    """The same again: the launch is made once, and all is served."""
    c = Client(DIR, address)
    for one in asked:
        end = time.monotonic() + 30
        while True:
            rec = c.ask(**one) if one["id"] != "file" else c.ask(
                **{k: v for k, v in one.items() if k != "attach"})
            wait = rec.get("error", {}).get("retry_after_ms", 0)
            if rec["ok"] or not wait or time.monotonic() > end:
                break
            time.sleep(wait / 1000)
        if not rec["ok"]:
            return rec
    c.send(id="list", program="ps", task="inject")
    names = []
    while True:
        line = c.line()
        if line.get("event") == "record":
            names.append(line["record"].get("name"))
        elif line.get("id") == "list":
            break
    if names != [asked[0]["name"]]:
        return {"names": names}
    return c.ask(id="stop", program="pause", op="stop", grace_ms=0,
                 sandbox=names[0])


def case(address, name, how, path=None, asked=None, ends=False, during=None):
    what = "%s: %s" % (name, how)
    c = Client(DIR, address)
    asked = asked or requests()
    with Inject(name, how, path) as i:
        if during:
            during(i)
        got = ask_all(c, asked)
    hits = i.hits()
    # Without memory for an answer a connection ends.
    if ends:
        got.pop("none", None)
    wrong = [g for g in got.values() if not is_typed(g)]
    check(hits > 0 and (ends or len(got) == len(asked)) and not wrong,
          what + ": typed answers", "%d were injected" % hits,
          *[json.dumps(g)[:300] for g in wrong])
    print("#  %d hits: %s" % (hits, ", ".join(sorted(
        "%s %s" % (k, "ok" if g.get("ok") else g.get("error", g).get("code"))
        for k, g in got.items() if not k.startswith("big")))), flush=True)
    rec = after(address, asked[:5])
    check(rec.get("ok") is True, what + ": and then all is done, once", rec)


def no_memory(address, name):
    """Requests that need more of it than it has."""
    big = [{"id": "big%d" % i, "program": "exec", "sandbox": "standing",
            "command": ["true"], "env": dict(PAD, N=str(i))}
           for i in range(30)]
    others = [Client(DIR, address) for _ in range(40)]

    def fill(i):
        """Others begin lines, until what it had kept free is used up."""
        for c in others:
            if i.hits():
                break
            c.sock.settimeout(1)
            try:
                c.raw(b'{"x":"' + b"x" * 900000)
            except OSError:
                pass
    case(address, name, "mmap,mremap error=ENOMEM; brk retval=0",
         asked=requests() + big, ends=True,
         during=fill if name != "keeper" else None)


def no_accept(address, name, how):
    """Who connects waits, who is here is served, and nothing spins."""
    what = "%s: %s" % (name, how)
    c = Client(DIR, address)
    with Inject(name, how) as i:
        new = socket.create_connection(address.split(":"), 20)
        began = time.monotonic()
        ok = c.ask(id="x", program="ps", sandbox="standing")["ok"]
        time.sleep(max(0, began + 1 - time.monotonic()))
        rate = len(i.calls()) / (time.monotonic() - began)
    check(ok and i.hits() > 0, what + ": who is here is served")
    check(rate < 40, what + ": it does not spin", "%.0f calls a second" % rate)
    new.close()
    check(Client(DIR, address).ask(program="ping")["ok"],
          what + ": who comes later too")


def relinked(address, how):
    """A keeper is gone, and the way to the next cannot be made at once."""
    c = Client(DIR, address)
    worker, end = process("worker"), time.monotonic() + 20
    with Inject("node", how) as i:
        # It sees that its keeper is gone when the way could not be made.
        os.kill(worker, signal.SIGSTOP)
        os.kill(process("keeper"), signal.SIGKILL)
        while not i.hits() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(worker, signal.SIGCONT)
        rec = c.ask(id="x", program="ps", sandbox="standing")
    check(i.hits() > 0 and rec["ok"], "node: %s: a worker finds the next "
          "keeper" % how, "%d were injected" % i.hits(), rec)


def no_spin(address, name, how):
    """A program's pipe that is ready and cannot be written to."""
    what = "%s: %s" % (name, how)
    c = Client(DIR, address)
    with Inject(name, how) as i:
        c.send(id="x", program="report")
        time.sleep(1)
    calls = len(i.calls())
    check(0 < calls < 40, what + ": it does not spin", calls)
    check(answer(c, "x").get("ok"), what + ": then it is answered")


def get(watch, path):
    with urllib.request.urlopen("http://%s/%s" % (watch, path),
                                timeout=10) as f:
        return f.status


def crowd(address, name, key):
    """More connections than it has descriptors for (see FILES)."""
    with open(DIR + "/serve.json", encoding="utf-8") as f:
        watch = json.load(f)[key]["metrics"]
    pid, files = process(name), int(os.environ["FILES"])
    with open("/proc/%d/limits" % pid) as f:
        check(re.search(r"Max open files +%d " % files, f.read()),
              name + " has few descriptors")
    old, here, let_go = Client(DIR, address), [], threading.Event()

    def one():
        here.append(Client(DIR, address))
        let_go.wait()
        here[-1].sock.close()

    many = [threading.Thread(target=one) for _ in range(files)]
    for t in many:
        t.start()
    end = time.monotonic() + 15
    while (len(os.listdir("/proc/%d/fd" % pid)) < files - 66 and
           time.monotonic() < end):
        time.sleep(0.05)
    with Inject(name, "accept4,epoll_wait,fcntl count") as i:
        time.sleep(1)
    check(len(i.calls()) < 400, name + ": full, it does not spin", i.calls())
    check(files // 4 < len(here) < files, name + ": some wait", len(here))
    print("# %d of %d are served, %d calls a second" %
          (len(here), files, len(i.calls())), flush=True)
    answers = ask_all(old, requests())
    check(all(a.get("ok") for a in answers.values()) and len(answers) == 5,
          name + ": who was there is served, with streams", answers)
    check(get(watch, "healthz") == 200 and get(watch, "readyz") == 200,
          name + ": its health is told")
    let_go.set()
    for t in many:
        t.join(30)
    check(len(here) == files, name + ": with room, all are", len(here))
    old.ask(program="pause", op="stop", task="inject", grace_ms=0)


CHANGES = ("mkdir,mkdirat,rename,renameat,renameat2,symlink,symlinkat,link,"
           "linkat,unlink,unlinkat,write,pwrite64,ftruncate,clone,clone3")


def killed(address, name, path=None):
    """It dies at each of the calls that change something."""
    asked = requests()[:1]
    with Inject(name, CHANGES + " count", path) as i:
        ask_all(Client(DIR, address), asked)
    after(address, asked)
    total, calls = 0, i.calls()
    for call in sorted(set(calls)):
        for n in range(1, calls.count(call) + 1):
            asked = requests()[:1]
            with Inject(name, "%s signal=KILL:when=%d" % (call, n), path) as i:
                got = ask_all(Client(DIR, address), asked)
            total += i.hits()
            rec = after(address, asked)
            if not rec.get("ok") or not all(map(is_typed, got.values())):
                check(False, "%s killed at %s %d" % (name, call, n), got, rec)
    check(total > 0, "%s was killed at each of %d calls" % (name, len(calls)),
          calls)


def drain_killed(address):
    """dsec-admit dies at each of the calls that say that it is drained."""
    c = Client(DIR, address)
    ask_all(c, requests()[4:])
    with Inject("dsec-admit", CHANGES + " count") as i:
        c.ask(program="drain")
    calls = i.calls()
    c.ask(program="drain", on=False)
    for n, call in enumerate(calls):
        with Inject("dsec-admit", "%s signal=KILL:when=%d" % (
                call, calls[:n + 1].count(call))):
            got = c.ask(program="drain")
        drained = c.ask(program="report").get("draining")
        if not is_typed(got) or drained is not True:
            check(False, "dsec-admit killed at %s %d" % (call, n), got, drained)
        if not c.ask(program="drain", on=False)["ok"]:
            check(False, "drained for good")
    check(calls, "dsec-admit was killed at each of %d calls" %
          len(calls), calls)
    check(after(address, requests()).get("ok"), "and all is served")


AUDIT = os.path.join(os.environ["DSEC_LIB"], "serve", "audit.jsonl")
EINTR = "error=EINTR:when=1..9+2"
GROUPS = {
    "keeper": [
        (case, NODE, "keeper", "openat error=EMFILE"),
        (case, NODE, "keeper", "socket error=EMFILE:when=1..20"),
        (case, NODE, "keeper", "epoll_ctl error=ENOSPC"),
        (case, NODE, "keeper", "clone error=ENOMEM"),
        (case, NODE, "keeper", "write error=ENOMEM:when=1..20"),
        (no_spin, NODE, "keeper", "write error=ENOMEM"),
        (case, NODE, "keeper", "epoll_wait " + EINTR),
        (no_memory, NODE, "keeper"),
    ],
    "audit": [
        (case, NODE, "keeper", "write error=ENOSPC", AUDIT),
        (case, NODE, "keeper", "write error=EIO:when=1+2", AUDIT),
        (case, NODE, "dsec-audit", "fdatasync error=EIO"),
        (case, NODE, "dsec-audit", "fdatasync signal=KILL"),
    ],
    "worker": [
        (no_accept, NODE, "worker", "accept4 error=EMFILE"),
        (no_accept, NODE, "worker", "accept4 error=ENFILE"),
        (no_accept, NODE, "worker", "accept4 error=EPERM"),
        (no_accept, NODE, "worker", "epoll_ctl error=ENOSPC"),
        (no_memory, NODE, "worker"),
        (relinked, NODE, "socketpair error=EMFILE:when=2"),
        (case, NODE, "worker", "sendmsg error=ENOMEM:when=1..5"),
        (case, NODE, "worker", "recvmsg,sendmsg " + EINTR),
        (case, NODE, "worker", "epoll_wait " + EINTR),
    ],
    "programs": [
        (case, NODE, "launcher", "openat error=EMFILE"),
        (case, NODE, "launcher", "openat error=ENOSPC:when=3+4"),
        (case, NODE, "launcher", "rename,renameat,renameat2 error=ENOSPC"),
        (case, NODE, "launcher", "mkdir,mkdirat error=ENOSPC"),
        (case, NODE, "launcher", "write error=EIO:when=1"),
        (case, NODE, "launcher", "clone,clone3,vfork,fork error=ENOMEM"),
        (case, NODE, "dsec-admit", "openat error=EMFILE"),
        (case, NODE, "dsec-admit", "read,getdents64 error=EIO:when=2+3"),
    ],
    "control": [
        (no_accept, CONTROL, "control", "accept4 error=EMFILE"),
        (no_accept, CONTROL, "control", "epoll_ctl error=ENOSPC"),
        (no_memory, CONTROL, "control"),
        (case, CONTROL, "control", "epoll_wait " + EINTR),
        (case, CONTROL, "dsec-place", "write error=ENOMEM:when=1"),
        (case, CONTROL, "worker", "recvmsg,sendmsg " + EINTR),
    ],
    "crowd": [
        (crowd, NODE, "worker", "node"),
        (crowd, CONTROL, "control", "control"),
    ],
    "kill": [
        (killed, NODE, "launcher"),
        (killed, NODE, "dsec-run"),
        (killed, NODE, "keeper", AUDIT),
        (killed, CONTROL, "dsec-place"),
        (drain_killed, NODE),
    ],
}


def main():
    c = Client(DIR, NODE)
    rec = c.ask(program="run", memory_limit_mb=64, name="standing")
    for at in NODE, CONTROL:
        after(at, requests())
    check(rec["ok"], "a sandbox stands", rec)
    del c
    before = settled()
    for group in sys.argv[6:]:
        for one in GROUPS[group]:
            one[0](*one[1:])
    now = settled()
    # Of one that was killed another has taken the place.
    here = {pid for pid, _ in now} & {pid for pid, _ in before}
    now, before = ({k: n for k, n in kinds.items() if k[0] in here}
                   for kinds in (now, before))
    check(here and now == before, "no descriptor is left",
          set(now.items()) ^ set(before.items()))
    c = Client(DIR, NODE)
    c.ask(program="pause", op="stop", sandbox="standing", grace_ms=0)
    sys.exit(failed > 0)


main()
