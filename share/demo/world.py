# SPDX-License-Identifier: Apache-2.0
"""A cluster on one machine: controls and nodes, each in a network namespace of
its own, joined by a bridge in this process's.

Nothing of it touches the machine's own network, run tree or control groups:
the namespaces have no names and are gone with the processes in them, the rest
is below two temporary directories and in one control group.
"""
from __future__ import annotations

import ctypes
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from typing import Any, Dict, List, Optional

NET = "10.213.0"
CLONE_NEWNET = 0x40000000
CONTROL_PORT, NODE_PORT, METRICS_PORT = 7443, 7444, 9100
UID_FIRST, UID_RANGES = 28672 * 65536, 512

_libc = ctypes.CDLL(None, use_errno=True)


class WorldError(Exception):
    """What the cluster needs is not there; the message is for people."""


def _check(result: int, what: str) -> None:
    if result < 0:
        raise WorldError(f"{what}: {os.strerror(ctypes.get_errno())}")


def run(*argv: str, stdin: str = "") -> str:
    """A program that must succeed; its output."""
    done = subprocess.run(argv, input=stdin, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        raise WorldError(f"{' '.join(argv)}: "
                         f"{(done.stderr or done.stdout).strip()}")
    return done.stdout


def batch(*commands: str) -> None:
    """Lines of ip(8), in the network namespace that we are in."""
    run("ip", "-batch", "-", stdin="\n".join(commands) + "\n")


def wait_until(what: str, seconds: float, test: Any) -> Any:
    """The first true answer of ``test``; WorldError after ``seconds``."""
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        found = test()
        if found:
            return found
        if began > end:
            raise WorldError(f"{what}: not within {seconds:g} s")
        time.sleep(0.02)


class Member:
    """A control or a node: its place in the network and its daemon."""

    def __init__(self, world: "World", role: str, name: str,
                 host: str) -> None:
        self.world = world
        self.role = role
        self.name = name
        self.host = host
        port = CONTROL_PORT if role == "control" else NODE_PORT
        self.address = f"{host}:{port}"
        self.dir = os.path.join(world.base, name)
        self.log = os.path.join(world.base, f"{name}.log")
        self.process: Optional["subprocess.Popen[bytes]"] = None
        self.namespace = -1
        self.env = dict(os.environ, DSEC_RUN=os.path.join(world.run, name),
                        DSEC_LIB=os.path.join(self.dir, "lib"),
                        DSEC_CONFIG=os.path.join(self.dir, "config"),
                        DSEC_CGROUP=f"{world.cgroup}/{name}")

    # --- files ----------------------------------------------------------------

    def conf(self, **change: Any) -> None:
        """Keys of its serve.json; it takes them over within a second."""
        _change(os.path.join(self.dir, "serve.json"), change)

    def node_conf(self, **change: Any) -> None:
        """Keys of its node.json, which count from the next request on."""
        _change(os.path.join(self.dir, "config", "node.json"), change)

    def program(self, *argv: str, timeout: float = 60) -> List[Dict[str, Any]]:
        """The records of one of its node's programs, run beside the daemon."""
        done = subprocess.run(
            [self.world.bin(argv[0]), *argv[1:]], env=self.env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=timeout)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def report(self) -> Dict[str, Any]:
        """What its node says of itself now, without any daemon."""
        return self.program("dsec-admit", "--report")[0]

    def live(self) -> List[str]:
        """The sandboxes that are there, without any daemon."""
        return [r["sandbox"] for r in self.program("dsec-ps")
                if r.get("sandbox")]

    # --- network --------------------------------------------------------------

    def within(self, *argv: str) -> List[str]:
        """A command line that runs in its network namespace."""
        place = f"/proc/{os.getpid()}/fd/{self.namespace}"
        return ["nsenter", f"--net={place}", *argv]

    def link(self, up: bool) -> None:
        """Plug its cable, or pull it."""
        run("ip", "link", "set", f"to-{self.name}", "up" if up else "down")

    def metrics(self) -> str:
        """What it tells Prometheus, on its own loopback."""
        own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(self.namespace, CLONE_NEWNET), "setns")
            peer = socket.create_connection(("127.0.0.1", METRICS_PORT), 10)
        finally:
            _check(_libc.setns(own, CLONE_NEWNET), "setns")
            os.close(own)
        with peer:
            peer.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            return b"".join(iter(lambda: peer.recv(65536), b"")).decode()

    def counted(self, metric: str, **labels: str) -> float:
        """The sum of a metric over what has these labels."""
        total = 0.0
        for line in self.metrics().splitlines():
            found = re.fullmatch(rf"{metric}(?:\{{(.*)\}})? (\S+)", line)
            if found and all(f'{k}="{v}"' in (found[1] or "")
                             for k, v in labels.items()):
                total += float(found[2])
        return total

    # --- the daemon -----------------------------------------------------------

    def start(self) -> None:
        """Start its daemon, as an init system would; return when it serves."""
        read_fd, write_fd = os.pipe()
        os.set_inheritable(write_fd, True)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.within("setpriv", "--pdeathsig", "TERM",
                            self.world.bin("dsec-serve"), self.role, self.dir,
                            "--ready-fd", str(write_fd)),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=(write_fd,), env=self.env, start_new_session=True)
        os.close(write_fd)
        try:
            ready, _, _ = select.select([read_fd], [], [], 60)
            said = os.read(read_fd, 4096).decode() if ready else ""
        finally:
            os.close(read_fd)
        if not said.startswith("ready"):
            raise WorldError(f"{self.name} does not start: "
                             f"{said.strip() or self.last_words()}")

    def last_words(self) -> str:
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()[-400:].strip()

    def kill(self) -> None:
        """SIGKILL its daemon, and forget it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def part(self, role: str) -> int:
        """The process id of its node's ``keeper`` or ``worker``, the newest;
        0: it has none now."""
        found = [pid for pid in _children(self.process.pid)
                 if f"node-{role}" in _words(pid)] if self.process else []
        return found[-1] if found else 0

    def helper(self, *words: str) -> int:
        """The process id of a program that its daemon keeps running; 0: it
        does not run now."""
        parent = self.process.pid if self.process else 0
        if self.role == "node":
            parent = self.part("keeper")
        for pid in _children(parent) if parent else []:
            have = _words(pid)
            if have and os.path.basename(have[0]) == words[0] and all(
                    w in have for w in words[1:]):
                return pid
        return 0


def _change(path: str, change: Dict[str, Any]) -> None:
    said: Dict[str, Any] = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            said = json.load(f)
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(said.get(key), dict):
            said[key].update(value)
        else:
            said[key] = value
    with open(path + ".new", "w", encoding="utf-8") as f:
        json.dump(said, f)
    os.rename(path + ".new", path)


def _children(pid: int) -> List[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return [int(p) for p in f.read().split()]
    except OSError:
        return []


def _words(pid: int) -> List[str]:
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8",
                  errors="replace") as f:
            return f.read().split("\0")[:-1]
    except OSError:
        return []


class World:
    """``with World() as w``: the cluster, and nothing of it afterwards."""

    def __init__(self, nodes: int = 4, controls: int = 2,
                 bin_dir: Optional[str] = None,
                 limits: Optional[Dict[str, int]] = None) -> None:
        own = os.path.dirname(os.path.abspath(__file__))
        self._bin = (bin_dir or os.environ.get("BIN")
                     or os.path.join(own, "..", "..", "bin"))
        self.cgroup = os.path.join(os.environ.get("DSEC_CGROUP", ""),
                                   f"dsec-cluster-{os.getpid()}")
        self.limits = limits or {}
        self.base = self.run = ""
        self.members: List[Member] = []
        self.count = (controls, nodes)

    def bin(self, name: str) -> str:
        path = os.path.join(self._bin, name)
        return os.path.abspath(path) if os.path.exists(path) else name

    @property
    def controls(self) -> List[Member]:
        return [m for m in self.members if m.role == "control"]

    @property
    def nodes(self) -> List[Member]:
        return [m for m in self.members if m.role == "node"]

    @property
    def client(self) -> str:
        """A client's configuration, with all controls as addresses."""
        return os.path.join(self.base, "ca", "client.json")

    # --- making it ------------------------------------------------------------

    def __enter__(self) -> "World":
        if os.geteuid() != 0:
            raise WorldError("nodes need root")
        for tool in ("ip", "nsenter", "setpriv"):
            if not shutil.which(tool):
                raise WorldError(f"'{tool}' is missing")
        try:
            self._make()
        except BaseException:
            self.tidy()
            raise
        return self

    def _make(self) -> None:
        self.base = tempfile.mkdtemp(prefix="dsec-cluster.")
        os.chmod(self.base, 0o755)
        # Run trees belong on a tmpfs.
        places = (os.environ.get("DSEC_RUN", ""), "/dev/shm", self.base)
        self.run = tempfile.mkdtemp(
            prefix="cluster.", dir=next(d for d in places if os.path.isdir(d)))
        controls, nodes = self.count
        self.members = [
            Member(self, "control", f"c{i + 1}", f"{NET}.{11 + i}")
            for i in range(controls)] + [
            Member(self, "node", f"n{i + 1}", f"{NET}.{21 + i}")
            for i in range(nodes)]
        self._certificates()
        self._network()
        for number, m in enumerate(self.members):
            self._configure(m, number)
            m.start()

    def _certificates(self) -> None:
        ca = os.path.join(self.base, "ca")
        serve = self.bin("dsec-serve")
        run(serve, "init", ca, "--name", "authority")
        for m in self.members:
            os.mkdir(m.dir)
            run(serve, "issue", ca, f"--{m.role}", m.name, "--host", m.host,
                "--out", os.path.join(m.dir, m.role))
            for name in ("ca.pem", "crl.pem"):
                shutil.copy(os.path.join(ca, name), m.dir)
        _change(self.client,
                {"addresses": [m.address for m in self.controls]})

    def _network(self) -> None:
        outside = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        _check(_libc.unshare(CLONE_NEWNET), "make a network namespace")
        os.close(outside)  # the bridge is here, and so is this process
        bridge = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        batch("link set lo up", "link add bridge type bridge",
              f"address add {NET}.1/24 dev bridge", "link set bridge up")
        for m in self.members:
            _check(_libc.unshare(CLONE_NEWNET), "make a network namespace")
            m.namespace = os.open("/proc/self/ns/net",
                                  os.O_RDONLY | os.O_CLOEXEC)
            batch("link set lo up")
            _check(_libc.setns(bridge, CLONE_NEWNET), "setns")
            place = f"/proc/{os.getpid()}/fd/{m.namespace}"
            batch(f"link add to-{m.name} type veth peer name eth0 "
                  f"netns {place}", f"link set to-{m.name} master bridge up")
            _check(_libc.setns(m.namespace, CLONE_NEWNET), "setns")
            batch(f"address add {m.host}/24 dev eth0", "link set eth0 up")
            _check(_libc.setns(bridge, CLONE_NEWNET), "setns")
        os.close(bridge)

    def _configure(self, m: Member, number: int) -> None:
        role: Dict[str, Any] = {"listen": [m.address],
                                "metrics": f"127.0.0.1:{METRICS_PORT}"}
        if m.role == "control":
            role["nodes"] = [{"name": n.name, "address": n.address}
                             for n in self.nodes]
            role["peers"] = [{"name": c.name, "address": c.address}
                             for c in self.controls if c is not m]
        m.conf(v=1, name=m.name, **{m.role: role}, clients=[
            {"uri": "dsec://client/admin", "project": "root",
             "operations": ["all"]}])
        if self.limits and m.role == "control":
            m.conf(limits=self.limits)
        if m.role == "node":
            for name in ("DSEC_RUN", "DSEC_LIB", "DSEC_CONFIG"):
                os.makedirs(m.env[name], mode=0o700)
            # Several nodes on one machine: uids of their own.
            m.node_conf(uid_first=UID_FIRST + number * UID_RANGES * 65536,
                        uid_ranges=UID_RANGES, cpu_overcommit=500)

    # --- and taking it away ---------------------------------------------------

    def __exit__(self, *exc: Any) -> None:
        self.tidy()

    def tidy(self) -> None:
        """Everything; a second signal does not stop it half way."""
        held = {s: signal.signal(s, signal.SIG_IGN) for s in
                (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            self._tidy()
        finally:
            for s, handler in held.items():
                signal.signal(s, handler)

    def _tidy(self) -> None:
        for m in self.members:
            m.kill()
        for m in self.nodes:
            if os.path.isdir(m.env["DSEC_RUN"]):
                try:
                    m.program("dsec-pause", "--stop", "--grace", "0",
                              "--project", "root", timeout=120)
                except (subprocess.TimeoutExpired, ValueError):
                    pass
        for pid in self._processes():
            _signal(pid, signal.SIGKILL)
        wait_until("processes end", 20, lambda: not self._processes())
        for m in self.members:
            if m.namespace >= 0:
                os.close(m.namespace)
        wait_until("control groups go", 20, self._groups_gone)
        for place in sorted(self._mounts(), reverse=True):
            subprocess.run(["umount", place], check=False)
        for directory in (self.run, self.base):
            if directory:
                run("rm", "-rf", "--one-file-system", directory)
        self.members, self.run, self.base = [], "", ""

    def _processes(self) -> List[int]:
        """What is in its control groups, and programs that have its trees."""
        found = set()
        for group in self._groups():
            try:
                with open(f"{group}/cgroup.procs", encoding="ascii") as f:
                    found.update(int(p) for p in f.read().split())
            except OSError:
                pass
        for name in os.listdir("/proc") if self.run else []:
            if not name.isdigit() or int(name) == os.getpid():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as f:
                    if f"DSEC_RUN={self.run}/".encode() in f.read():
                        found.add(int(name))
            except OSError:
                pass
        return sorted(found)

    def _groups(self) -> List[str]:
        found = []
        for top in ("/sys/fs/cgroup", *(
                e.path for e in os.scandir("/sys/fs/cgroup") if e.is_dir())):
            for m in self.nodes:
                for at, _, _ in os.walk(os.path.join(top, self.cgroup,
                                                     m.name)):
                    found.append(at)
            own = os.path.join(top, self.cgroup)
            if os.path.isdir(own):
                found.append(own)
        return sorted(found, key=len, reverse=True)

    def _groups_gone(self) -> bool:
        for group in self._groups():
            try:
                os.rmdir(group)
            except OSError:
                pass
        return not self._groups()

    def _mounts(self) -> List[str]:
        with open("/proc/self/mountinfo", encoding="utf-8") as f:
            places = [line.split()[4] for line in f]
        return [p for p in places if any(
            d and p.startswith(d + "/") for d in (self.run, self.base))]


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def stop_by_signal() -> None:
    """Signals end the program with all that it has to take away, also where
    they were ignored when it was started (a shell's "&")."""
    def end(number: int, _frame: Any) -> None:
        raise KeyboardInterrupt(number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
