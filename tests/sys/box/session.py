# SPDX-License-Identifier: Apache-2.0
"""Sessions: a shell that lives on, whatever it is given."""
import time

from box import Box, is_, make, ok, read_all, until

SB = make(memory_limit_mb=128)
b = Box(SB)


def code(rec):
    return rec.get("error", {}).get("code")


def part(rec, *keys):
    return tuple(rec.get(k) for k in keys)


def check_shell(shell):
    session = b.call(op="session", shell=shell)["session"]

    def say(text, **req):
        return b.run(text, session=session, **req)

    def out(text):
        return say(text)["stdout"]

    is_(out("cd /tmp; X=5; f() { echo f:$1; }"), b"", f"{shell}: state")
    is_(out("pwd; echo $X; f 1"), b"/tmp\n5\nf:1\n", "is kept")
    is_(say("false")["exit_code"], 1, "a status")
    is_(out("echo $?"), b"1\n", "is seen by the next command")
    is_(say("(exit 41)")["exit_code"], 41, "another status")
    is_(out("echo $?"), b"41\n", "as well")
    is_(out(["echo", "a  b", "it's", "$X", "\\"]), b"a  b it's $X \\\n",
        "a list is its words")
    is_(say("echo out; echo err >&2")["stderr"], b"err\n", "both streams")

    say("cat <<'EOF' >/tmp/x\nhello $X\n'q\nEOF")
    is_(out("cat /tmp/x"), b"hello $X\n'q\n", "a here-document")
    is_(out("cat <<-X\n\tindented\n\tX"), b"indented\n", "an indented one")
    is_(out("cat <<X\nopen"), b"open\n", "one without its end")
    is_(out("echo back \\"), b"back\n", "a last backslash")
    for bad in ("echo 'open", 'echo "open', "echo $(echo", "echo ${X", "echo )",
                "if true; then", "f() {", "echo `"):
        r = say(bad)
        ok(r.get("exit_code", 0) != 0 and r["stderr"], f"a mistake: {bad}", r)
    for bad in ("export 1x=3", ". /nonexistent", "shift 99", "set -o bogus",
                "readonly R=1; R=2", "echo $((1/0))"):
        r = say(bad)
        ok(r.get("exit_code", 0) != 0, f"an error: {bad}", r)
    is_(out("echo alive # comment"), b"alive\n", "the session is usable")

    is_(part(say("cat; read a; echo end"), "stdout", "exit_code"),
        (b"end\n", 0), "nothing to read")
    is_(out("exec 3>&- </dev/zero; echo x"), b"x\n", "descriptors played with")
    is_(out("ls /proc/self/fd | wc -l"), b"4\n", "ours are not passed on")
    is_(out("sleep 100 >/dev/null 2>&1 & echo $! >/tmp/pid; echo on"),
        b"on\n", "a job")
    is_(out("kill $(cat /tmp/pid); wait; echo over"), b"over\n", "and its end")

    r = say("sleep 5", timeout_ms=200)
    is_(part(r, "outcome", "session_ended"), ("timeout", True),
        "a timeout ends the session", r)
    is_(code(say("echo x")), "session_unknown", "it is gone")


check_shell("bash")
check_shell("sh")

# Its own directory, environment and user.
s = b.call(op="session", cwd="/usr", env={"A": "b"}, user="1000")["session"]
is_(b.run("pwd; echo $A; id -u", session=s)["stdout"], b"/usr\nb\n1000\n",
    "a session's directory, environment and user")
is_(code(b.run("pwd", session=s, cwd="/")), "bad_value", "are not a command's")
r = b.run("exit 3", session=s)
is_(part(r, "outcome", "exit_code", "session_ended"), ("exited", 3, True),
    "exit ends it", r)

# One at a time, in order, with records like any.
s = b.call(op="session")["session"]
ids = [b.send(op="exec", command=f"sleep 0.1; echo {i}; N={i}", session=s,
              attach=["stdout"], step=100 + i) for i in range(3)]
fds, done = {}, []
while len(done) < 3:
    r = b.recv()
    if r.get("event") == "started":
        fds[r["id"]] = r["_fd"]["stdout"]
    else:
        done.append(r)
is_([r["id"] for r in done], ids, "commands of a session queue")
is_([read_all(fds[i]) for i in ids], [b"0\n", b"1\n", b"2\n"],
    "each with its output")
is_(part(done[0], "session", "step"), (s, 100), "records have the session")
is_(b.run("echo $N", session=s, step=102)["repeated"], True, "steps too")

# An interrupt is for what runs in it.
r = b.call(op="exec", command="sleep 99; echo $?", session=s, detach=True)
until(lambda: b.run("pgrep -x sleep")["exit_code"] == 0)
b.call(op="signal", exec=r["exec"], signal="INT")
r = b.call(op="wait", exec=r["exec"])
is_(part(r, "session_ended", "outcome"), (None, "exited"),
    "an interrupt spares the shell", r)
is_(b.run("echo on", session=s)["stdout"], b"on\n", "it goes on")

# Closing, with one running and one waiting.
run = b.send(op="exec", command="sleep 99", session=s)
wait = b.send(op="exec", command="echo never", session=s)
b.recv(), b.recv()
c = Box(SB)
is_(c.call(op="close-session", session=s)["ok"], True, "close")
got = {r["id"]: r for r in (b.recv(), b.recv())}
is_(got[run]["outcome"], "killed", "the running command is killed", got)
is_(code(got[wait]), "session_unknown", "the waiting one never began", got)
is_(code(c.call(op="close-session", session=s)), "session_unknown", "closed")

# Hostile ones.
s = b.call(op="session")["session"]
r = b.run("for fd in /proc/$$/fd/*; do echo '1 0' >$fd; done 2>/dev/null; "
          "exit 7", session=s, timeout_ms=5000)
ok("outcome" in r, "forged reports hurt the session alone", r)
is_(code(b.call(op="session", shell="/nonexistent")), "command_not_found",
    "no such shell")
is_(code(b.call(op="session", shell="true")), "bad_value", "no shell")
s = b.call(op="session")["session"]
t = time.monotonic()
b.run("(while :; do echo noise; done) & sleep 0.2", session=s)
time.sleep(0.5)
r = b.run("kill $!; wait; echo ended", session=s)
ok(r["stdout"].endswith(b"ended\n"), "a job that prints on is not held up",
   r["exit_code"])
is_(b.call(op="stop", grace_ms=0)["state"], "stopped", "stop")
