#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The whole way in one pipe: 50 sandboxes at once from one JSONL file, in each a
# suite of Python's standard library, every result right, all stopped.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
PY=/usr/bin/python3
$PY -c 'import test.test_textwrap' 2>/dev/null ||
	plan_skip_all "needs the standard library's tests (libpython3-testsuite)"
tree_new
# All at once on a small machine as well: none uses its limit for long.
echo '{"cpu_overcommit": 64, "memory_overcommit": 16}' \
	>"$DSEC_CONFIG/node.json"
leak_start

# Quick ones, none of which needs a network or a display.
MODULES='bisect heapq json.test_decode json.test_dump textwrap string struct
base64 binascii colorsys copy fnmatch fractions functools getopt graphlib hmac
html htmlparser keyword linecache numeric_tower operator optparse ordered_dict
pprint quopri reprlib richcmp scope secrets shlex sort stat stringprep timeit
urlparse userdict enumerate float slice range generators genexps decorators
deque dataclasses contextlib'
# shellcheck disable=SC2086 # words
set -- $MODULES
is $# 48 "48 suites, and two that fail"

# How many tests each has, by its own loader.
$PY - "$@" >"$T/want" <<'PY'
import sys, unittest
for m in sys.argv[1:]:
    suite = unittest.defaultTestLoader.loadTestsFromName("test.test_" + m)
    print(m, suite.countTestCases())
PY
is "$(wc -l <"$T/want")" 48 "their tests are counted outside"

# Two that must be told apart from success: a failing test, and a death.
cat >"$T/bad.py" <<'PY'
import os, signal, unittest
class Bad(unittest.TestCase):
    def test_good(self):
        self.assertEqual(1, 1)
    def test_bad(self):
        if os.environ["SUITE"] == "death":
            os.kill(os.getpid(), signal.SIGSEGV)
        self.assertEqual(1, 2)
unittest.main(argv=["bad"])
PY

for m in "$@" failure death; do
	jq -nc --arg m "$m" --rawfile bad "$T/bad.py" '{id: $m,
		env: {SUITE: $m, BAD: $bad}, cpu_cores_limit: 0.5,
		memory_limit_mb: 256, task: "spine", labels: {suite: $m}}'
done >"$T/specs.jsonl"

# shellcheck disable=SC2016 # expanded inside
COMMAND='cd /tmp || exit 99
case $SUITE in
failure|death) exec /usr/bin/python3 -c "$BAD" ;;
*) exec /usr/bin/python3 -m unittest -q "test.test_$SUITE" ;;
esac'

dsec-run --jobs 8 <"$T/specs.jsonl" \
	2>"$T/run.err" | tee "$T/running.jsonl" |
	dsec-exec --jobs 8 --timeout 120 --cmd "$COMMAND" \
		>"$T/results.jsonl" 2>"$T/exec.err"
is $? 0 "every record of dsec-exec is ok"
diag "$(cat "$T/run.err" "$T/exec.err")"
is "$(jq -s 'map(select(.ok)) | length' "$T/running.jsonl")" 50 \
	"50 sandboxes were made"
is "$(jq -r .sandbox "$T/running.jsonl" | sort -u | wc -l)" 50 \
	"each with an id of its own"
is "$(dsec-ps --task spine | jq -s 'map(select(.state == "running")) | length')" \
	50 "and all of them run at once"

while read -r m n; do
	jq -r --arg m "$m" 'select(.id == $m) | [.outcome, .exit_code,
		(.stderr | capture("Ran (?<n>[0-9]+) tests?").n? // "none"),
		(.stderr | test("\nOK"))] | join(" ")' \
		"$T/results.jsonl" >"$T/got"
	is "$(cat "$T/got")" "exited 0 $n true" "test_$m: all $n tests, OK"
done <"$T/want"

result() { # ID FILTER
	jq -r --arg m "$1" "select(.id == \$m) | $2" "$T/results.jsonl"
}
is "$(result failure '"\(.outcome) \(.exit_code) \(.ok) \(.infra)"')" \
	"exited 1 true false" "a failing suite is a result, not our failure"
like "$(result failure .stderr)" '^FAILED \(failures=1\)' "with its report"
is "$(result death '"\(.outcome) \(.signal) \(.ok) \(.infra)"')" \
	"signalled SIGSEGV true false" "a death names its signal"

jq -r .sandbox "$T/running.jsonl" | xargs dsec-pause --stop --grace 0 \
	>"$T/stopped.jsonl"
is $? 0 "jq | xargs dsec-pause --stop"
is "$(jq -s 'map(select(.ok and .state == "stopped")) | length' \
	"$T/stopped.jsonl")" 50 "a record for each"
is "$(dsec-ps | jq -r 'select(.state != "stopped") | .sandbox')" "" \
	"nothing runs any more"
leak_check "nothing of them is left"

done_testing
