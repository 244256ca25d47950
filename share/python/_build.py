# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel (PEP 517) with the standard library alone, so that
``pip install`` of this directory downloads nothing."""
import base64
import hashlib
import os
import re
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))


def _read(name):
    with open(os.path.join(HERE, name), "rb") as f:
        return f.read()


def _project(key):
    text = _read("pyproject.toml").decode()
    return re.search(rf'^{key} = "(.*)"$', text, re.M).group(1)


def _wheel(directory, files):
    version = _project("version")
    info = f"dsec-{version}.dist-info"
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: dsec\nVersion: {version}\n"
        f"Summary: {_project('description')}\n"
        f"Requires-Python: {_project('requires-python')}\n"
        "License: Apache-2.0\n").encode()
    files[f"{info}/WHEEL"] = (b"Wheel-Version: 1.0\nGenerator: dsec\n"
                              b"Root-Is-Purelib: true\nTag: py3-none-any\n")
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        record += f"{name},sha256={digest.decode().rstrip('=')},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    wheel = f"dsec-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, wheel), "w",
                         zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            z.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data)
    return wheel


def build_wheel(wheel_directory, config_settings=None,
                metadata_directory=None):
    return _wheel(wheel_directory, {
        f"dsec/{name}": _read(f"dsec/{name}")
        for name in sorted(os.listdir(os.path.join(HERE, "dsec")))
        if name.endswith((".py", "py.typed"))})


def build_editable(wheel_directory, config_settings=None,
                   metadata_directory=None):
    return _wheel(wheel_directory, {"dsec.pth": (HERE + "\n").encode()})
