#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""new-bytes.py BASE MORE: the bytes of files of the tar MORE whose content no
file of the tar BASE has, each content once, in blocks of 4 KiB."""
import hashlib
import sys
import tarfile


def files(path):
    with tarfile.open(path, "r|") as tar:
        for entry in tar:
            if entry.isreg() and entry.size:
                data = tar.extractfile(entry).read()
                yield hashlib.sha256(data).digest(), entry.size


known = {digest for digest, _ in files(sys.argv[1])}
new = {digest: size for digest, size in files(sys.argv[2])
       if digest not in known}
print(sum((size + 4095) // 4096 * 4096 for size in new.values()))
