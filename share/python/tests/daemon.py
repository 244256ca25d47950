# SPDX-License-Identifier: Apache-2.0
"""Daemons of a test's own, and certificates: $SDK_SERVE is the directory that
dsec-serve init has made."""
import json
import os
import shutil
import subprocess
import tempfile

SERVE = os.environ.get("SDK_SERVE", "")


def tool(*args):
    subprocess.run(["dsec-serve", *args], check=True,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def client(name, where, project="root", operations=("all",)):
    """A certificate with its binding: the client.json to use it with."""
    tool("issue", SERVE, "--client", name)
    with open(f"{SERVE}/serve.json") as f:
        conf = json.load(f)
    conf["clients"].append({"uri": f"dsec://client/{name}",
                            "project": project,
                            "operations": list(operations)})
    with open(f"{SERVE}/.new", "w") as f:
        json.dump(conf, f)
    os.rename(f"{SERVE}/.new", f"{SERVE}/serve.json")
    with open(f"{SERVE}/{where}-client.json") as f:
        conf = json.load(f)
    conf.update(certificate=f"{name}.pem", key=f"{name}.key")
    path = f"{SERVE}/{name}.json"
    with open(path, "w") as f:
        json.dump(conf, f)
    return path


class Control:
    """A control beside the others, with limits of its own."""

    def __init__(self, **limits):
        self.dir = tempfile.mkdtemp(prefix="control-", dir=os.path.dirname(
            SERVE))
        for name in os.listdir(SERVE):
            if name.endswith((".pem", ".key")):
                shutil.copy(f"{SERVE}/{name}", self.dir)
        with open(f"{SERVE}/serve.json") as f:
            conf = json.load(f)
        conf["control"]["listen"] = ["127.0.0.1:0"]
        conf["limits"] = limits
        with open(f"{self.dir}/serve.json", "w") as f:
            json.dump(conf, f)
        ready, theirs = os.pipe()
        self.process = subprocess.Popen(
            ["dsec-serve", "control", self.dir, "--ready-fd", str(theirs)],
            pass_fds=[theirs], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs)
        with os.fdopen(ready) as f:
            word, self.address = f.readline().split()
        assert word == "ready"

    def close(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.dir)
