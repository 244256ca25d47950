# SPDX-License-Identifier: Apache-2.0
"""What the tests of checkpoints share."""
import os
import subprocess
import time

from box import RUN, make

LIBEXEC = subprocess.run(
    ["sh", "-c", 'readlink -f "$(dirname "$(command -v dsec-run)")/../libexec/dsec"'],
    capture_output=True, text=True, check=True).stdout.strip()


def code(rec):
    return (rec or {}).get("error", {}).get("code")


def new(**spec):
    return make(image="root/base", memory_limit_mb=64, **spec)


def claim(sandbox):
    with open(f"{RUN}/sb/{sandbox}/claim.json", encoding="utf-8") as f:
        return f.read()


def groups(sandbox):
    return [d for d, _, _ in os.walk("/sys/fs/cgroup")
            if d.endswith("/" + sandbox)]


def take(fd, n):
    """Exactly so many bytes, or what there is after half a minute."""
    os.set_blocking(fd, False)
    data, end = b"", time.monotonic() + 10
    while len(data) < n and time.monotonic() < end:
        try:
            part = os.read(fd, n - len(data))
            if not part:
                break
            data += part
        except BlockingIOError:
            time.sleep(0.01)
    os.set_blocking(fd, True)
    return data


def counts(fd, n):
    """The next ${n} lines of a counter are as they should be."""
    lines, text = [], b""
    end = time.monotonic() + 40
    while len(lines) < n and time.monotonic() < end:
        text += take(fd, 1)
        if text.endswith(b"\n"):
            lines.append(int(text))
            text = b""
    return len(lines) == n and lines == list(range(lines[0], lines[0] + n))


COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"

