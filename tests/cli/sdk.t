#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python SDK without sandboxes: its parts, and the wire against a server
# that loses replies (field report 100), sends too much and breaks off; eight kinds
# of failure are eight types (field report 107), and output in small pieces costs
# what it should (field report 5).
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_tools python3
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
	plan_skip_all "needs Python 3.9"
# The oldest that is enough, where it is installed.
python=python3
python3.9 -c 'import ssl' 2>/dev/null && python=python3.9
PYTHONDONTWRITEBYTECODE=1 exec timeout 120 "$python" \
	share/python/tests/tap.py test_parts test_remote
