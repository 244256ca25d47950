# SPDX-License-Identifier: Apache-2.0
"""Commands: how they start and end, who as, steps and keys."""
import os
import time

from box import Box, is_, make, ok, read_all, until

SB = make(memory_limit_mb=64, env={"FROM": "spec", "BOTH": "spec"})
b = Box(SB)


def code(rec):
    return rec.get("error", {}).get("code")


def processes(pattern):
    """Processes of the sandbox whose command line matches."""
    return int(b.out(["sh", "-c", f"pgrep -fc -- '{pattern}' || :"]) or 0)


# Start and end.
r = b.run("echo out; echo err >&2; exit 3")
is_((r["outcome"], r["exit_code"], r["stdout"], r["stderr"]),
    ("exited", 3, b"out\n", b"err\n"), "status and both streams", r)
is_((r["stdout_bytes"], r["stderr_bytes"], r["truncated"], r["infra"]),
    (4, 4, False, False), "counted")
ok(r["cpu_ms"] >= 0 and r["max_rss_kb"] > 0 and
   r["ended_ms"] >= r["started_ms"], "times and memory", r)
is_(b.recording(r["exec"] + ".stdout"), b"out\n", "recorded as well")
r = b.run("kill -9 $$")
is_((r["outcome"], r["signal"]), ("signalled", "SIGKILL"), "a signal", r)
is_(b.run(["printf", "%s|", "a b", "it's", "", "$X"])["stdout"],
    b"a b|it's||$X|", "arguments arrive exactly")
is_(code(b.run(["nosuch"])), "command_not_found", "no such program")
is_(code(b.run(["/etc/passwd"])), "command_not_executable", "no program")
b.run("printf '#!/no/such\\n' >/tmp/lost; chmod 755 /tmp/lost")
is_(code(b.run(["/tmp/lost"])), "command_not_executable", "no interpreter")
is_(code(b.run(["lost"], env={"PATH": "/tmp"})), "command_not_executable",
    "no interpreter, found by PATH")
for cwd in ("/nope", "/etc/passwd"):
    is_(code(b.run(["true"], cwd=cwd)), "cwd", f"working directory {cwd}")
b.run("mkdir -m 700 /tmp/mine")
is_(code(b.run(["true"], cwd="/tmp/mine", user="1000")), "cwd",
    "a working directory that is another's")
is_(b.out(["pwd"], cwd="/usr/bin"), b"/usr/bin\n", "a working directory")
is_(b.out("echo $FROM $BOTH $OWN", env={"BOTH": "req", "OWN": "x"}),
    b"spec req x\n", "the environment in its layers")
is_(code(b.run(["echo", "a" * 200000])), "args_too_long", "an argument too long")
for n in range(60):
    r = b.run(["true"])
    if r.get("exit_code") != 0:
        break
is_((n, r.get("exit_code")), (59, 0), "quick ones, each with its status", r)
is_(processes("[s]leep"), 0, "and no process is left")

# Standard input.
is_(b.run(["cat"])["stdout_bytes"], 0, "nothing to read by default")
is_(b.out(["wc", "-c"], stdin="pipe", data=b"abc"), b"3\n", "a pipe to write")
r = b.start("read a; read b; echo $a-$b", stdin="pipe", attach=["stdout"])
fd = r["_fd"]
os.write(fd["stdin"], b"one\n")
other = Box(SB)
is_(other.call(op="input", exec=r["exec"], data="two\n")["ok"], True,
    "input from another client")
is_(read_all(fd["stdout"]), b"one-two\n", "both arrive in order")
os.close(fd["stdin"])
b.final(r["id"])
r = b.call(op="exec", command="cat; echo end", stdin="pipe", detach=True)
is_(b.call(op="input", exec=r["exec"], data="x" * 500000)["ok"], True,
    "more input than a pipe holds")
is_(b.call(op="input", exec=r["exec"], data_b64="eQ==", close=True)["ok"],
    True, "bytes, and the end")
r = b.call(op="wait", exec=r["exec"])
is_(r["stdout_bytes"], 500005, "all of it", r)
is_(code(b.call(op="input", exec=r["exec"], data="z")), "exec_unknown",
    "not after its end")

# Terminals.
r = b.run("tty; stty size; test -t 0 && echo yes", tty=True, rows=33, cols=99)
is_(r["stdout"], b"/dev/pts/0\r\n33 99\r\nyes\r\n", "a terminal", r)
r = b.start("trap 'stty size; exit' WINCH; echo go; while :; do sleep 0.05; "
            "done", tty=True, attach=["stdout"])
os.close(r["_fd"]["tty"])
os.read(r["_fd"]["stdout"], 100)
is_(b.call(op="resize", exec=r["exec"], rows=10, cols=20)["ok"], True,
    "resize")
ok(b"10 20" in read_all(r["_fd"]["stdout"]), "the command sees it")
b.sock.close()
b = Box(SB)
r = b.start("read x; echo got:$x", tty=True, attach=["stdout"])
is_(b.call(op="input", exec=r["exec"], data="typed\n")["ok"], True, "typing")
os.close(r["_fd"]["tty"])
ok(b"got:typed" in read_all(r["_fd"]["stdout"]), "is read")
is_(code(b.call(op="resize", exec="e0", rows=1, cols=1)), "exec_unknown",
    "no terminal of one that ended")

# Who as.
is_(b.out("id -u; id -g; echo $HOME $USER"), b"0\n0\n/root root\n", "root")
is_(b.out("id -u; id -g; echo $HOME", user="1000:50"),
    b"1000\n50\n/home/user\n", "a user and a group")
is_(b.out("pwd", user="1000"), b"/\n",
    "a default directory that is not its own is left for /")
is_(b.out("echo x >/dev/stdout; cat /dev/stdin; echo y >/dev/stderr",
          user="1000"), b"x\n", "its streams are its own to open")
b.run("echo 'alice:x:1001:1001::/home/alice:/bin/sh' >>/etc/passwd; "
      "echo 'extra:x:77:bob,alice' >>/etc/group")
is_(b.out("id -G; echo $HOME", user="alice"), b"1001 77\n/home/alice\n",
    "groups and home by the sandbox's own files")
for user in ("nosuch", "4294967295", "-1", "0x0", "", "alice:nosuch", ":"):
    is_(code(b.run(["id"], user=user)), "user_unknown", f"user '{user}'")
b.run("rm /etc/passwd; mkfifo /etc/passwd")
is_(b.out("id -u; echo $HOME", user="1000"), b"1000\n/\n",
    "a passwd that is a FIFO is not waited for")
b.run("rm /etc/passwd")

# Timeouts and what is left behind.
t = time.monotonic()
r = b.run("sleep 300 & (setsid sleep 301 &); trap '' TERM; echo part; "
          "while :; do sleep 0.1; done", timeout_ms=300, grace_ms=200)
ok(time.monotonic() - t < 3, "a timeout takes its time and the grace")
is_((r.get("outcome"), r.get("stdout")), ("timeout", b"part\n"), "timeout", r)
is_(processes("[s]leep 30[01]"), 0, "none of it is left")
r = b.run("(setsid sleep 302 >/dev/null 2>&1 &); echo done")
is_((r["outcome"], r["left_killed"]), ("exited", 1),
    "what it leaves behind ends with it", r)
t = time.monotonic()
r = b.run("(setsid sleep 303 &); echo done", leave=True)
ok(time.monotonic() - t < 3 and r["stdout"] == b"done\n",
   "a daemon that holds the pipe holds up nobody", r)
is_(processes("[s]leep 303"), 1, "and stays if it shall")
r = b.run("(while :; do echo noise; sleep 0.01; done) & echo done", leave=True)
time.sleep(0.2)
is_(b.out("kill -0 $(pgrep -f '[e]cho noise') && echo yes"), b"yes\n",
    "one that goes on printing does not die of it")
r = b.call(op="exec", command=["sleep", "0.3"], detach=True, key="d1")
is_(b.call(op="exec", command=["sleep", "0.3"], detach=True, key="d1"),
    dict(r, id=b.last, repeated=True), "detached twice: the same at once")
is_(b.call(op="exec", command=["true"], timeout_ms=0)["error"]["code"],
    "bad_value", "timeout 0 is none")

# Signals.
r = b.call(op="exec", command="trap 'exit 9' USR1; while :; do sleep 0.02; done",
           detach=True)
time.sleep(0.2)
is_(b.call(op="signal", exec=r["exec"], signal="SIGUSR1")["ok"], True, "signal")
is_(b.call(op="wait", exec=r["exec"])["exit_code"], 9, "it is handled")
r = b.call(op="exec", command=["sleep", "100"], detach=True)
b.call(op="signal", exec=r["exec"], signal=9)
is_(b.call(op="wait", exec=r["exec"])["outcome"], "killed",
    "ended by our signal: killed")
is_(code(b.call(op="signal", exec="e999999", signal="TERM")), "exec_unknown",
    "no such command")
is_(code(b.call(op="wait", exec="../../spec")), "exec_unknown",
    "a name that is a path")
r = b.send(op="exec", command=["sleep", "100"], attach=["stdout"])
b.recv()
is_(b.call(cancel=r)["ok"], True, "cancel")
is_(b.final(r)["outcome"], "killed", "ends the command")
r = b.run(["sleep", "100"], deadline_ms=200)
is_(code(r), "deadline", "a deadline", r)

# Out of memory.
r = b.run(["python3", "-c", "x = bytearray(200 << 20)"])
is_((r["outcome"], r["oom"]["limit_mb"], r["oom"]["kills"]), ("oom", 64, 1),
    "out of memory has its own word", r)
r = b.run("(tail /dev/zero); echo $?")
is_((r["outcome"], r["stdout"], r["oom"]["kills"]), ("exited", b"137\n", 1),
    "a victim in a command that goes on is noted", r)
is_(b.out(["echo", "alive"]), b"alive\n", "the sandbox lives on")

# Steps and keys.
r = b.run("echo x >>/tmp/steps", step=1)
first = r["exec"]
r = b.run("echo x >>/tmp/steps", step=1)
is_((r["exec"], r["repeated"]), (first, True), "a step is not run twice", r)
r = b.send(op="exec", command="sleep 0.3; echo x >>/tmp/steps", step=2)
b.recv()
r2 = Box(SB).call(op="exec", command=["true"], step=2)
is_((r2["exec"], r2["repeated"]), (b.final(r)["exec"], True),
    "the running one is waited for")
is_(b.out(["wc", "-l", "/tmp/steps"]), b"2 /tmp/steps\n", "two steps ran")
r = b.run("echo k", key="k1")
is_(b.run("echo k", key="k1")["repeated"], True, "a key likewise")
is_(code(b.run("echo other", key="k1")), "key_conflict", "another request")
r = b.call(op="session", key="k2")
is_(b.call(op="session", key="k2")["session"], r["session"],
    "a key of something else")

# Requests that are wrong.
for req, want in (({"op": "nosuch"}, "bad_value"),
                  ({"op": "exec"}, "missing_field"),
                  ({"op": "exec", "command": ["x"], "nosuch": 1},
                   "unknown_field"),
                  ({"op": "exec", "command": 7}, "bad_value"),
                  ({"op": "exec", "command": ["true"], "attach": ["tty"]},
                   "bad_value"),
                  ({"op": "exec", "command": ["true"], "stdin": "file"},
                   "bad_value"),
                  ({"op": "exec", "command": ["true"], "cwd": "rel"},
                   "bad_value")):
    is_(code(b.call(**req)), want, f"refused: {req}")
b.sock.sendall(b"not json\n")
is_(code(b.recv()), "bad_record", "a line that is no record")
b.sock.sendall(b"[" * 100000 + b"\n")
is_(code(b.recv()), "bad_record", "a deep one")
b.sock.sendall(b"x" * (1 << 20) + b"xx\n")
is_(code(b.recv()), "too_large", "a long one")
is_(b.out(["echo", "still"]), b"still\n", "and the connection is good")

# All of them, and many at once.
names = [r["exec"] for r in b.call(op="list-execs")["execs"]]
ok(first in names and len(names) > 50, "the list of commands", len(names))
many = [Box(SB) for _ in range(40)]
for i, m in enumerate(many):
    m.send(op="exec", command=["sh", "-c", f"echo {i}; exit {i}"],
           attach=["stdout"])
good = 0
for i, m in enumerate(many):
    r = m.recv()
    good += read_all(r["_fd"]["stdout"]) == b"%d\n" % i
    good += m.final(1)["exit_code"] == i
is_(good, 80, "many at once, each with its own")
for m in many:
    m.sock.close()
s = b.state()
ok(until(lambda: b.call(op="inspect")["execs"] == 0), "nothing runs any more")
n = len(os.listdir(f"/proc/{s['supervisor_pid']}/fd"))
ok(n < 40, "and nothing is left open", n)
is_(b.call(op="stop", grace_ms=0)["state"], "stopped", "stop")
