#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python SDK on this machine: its own tests against real sandboxes, and its
# examples.  Failures of the platform are told from those of what ran, which is
# field report 107.  SDK_TESTS picks some: live.Streams, or examples.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools python3
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
	plan_skip_all "needs Python 3.9"
tree_new
echo '{"cpu_overcommit":500}' >"$DSEC_CONFIG/node.json"
sdk=$PWD/share/python
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$sdk
export PYTHONDONTWRITEBYTECODE PYTHONPATH

# What a program says as TAP, counted on in ours.
while_tap() { # FILE
	while IFS= read -r line; do
		case $line in
		"ok "* | "not ok "*)
			said=${line#* - }
			case $line in
			*"# SKIP "*) skip "${said%% # SKIP*}" "${line#*# SKIP }" ;;
			"ok "*) ok 0 "$said" ;;
			*) ok 1 "$said" ;;
			esac ;;
		"#"*) printf '%s\n' "$line" ;;
		esac
	done <"$1"
}

dsec-run --detach -- true >"$T/warm" </dev/null
dsec-pause --stop "$(jq -r .sandbox "$T/warm")" >"$T/null"
leak_start
tests=${SDK_TESTS-live examples}
if [ "$tests" != examples ]; then
	timeout 150 python3 "$sdk/tests/tap.py" "${tests% examples}" \
		>"$T/tap" 2>"$T/err"
	status=$?
	while_tap "$T/tap"
	is "$status" 0 "the tests end well" || diag "$(tail -n 40 "$T/err")"
	is "$(cat "$T/err")" "" "and say nothing else"
fi

example() { # NAME
	timeout 120 python3 "$sdk/examples/$1.py" >"$T/out" 2>"$T/err"
	is "$?" 0 "examples/$1.py" || diag "$(cat "$T/out" "$T/err")"
	out=$(cat "$T/out")
}
case $tests in *examples)
	example quickstart
	like "$out" '^42$' "quickstart: a command"
	like "$out" "^timeout after .* fault: False" "a timeout with its kind"
	like "$out" "copy 0.*copy 1" "copies that differ"
	like "$out" '^paused: 3$' "a task of three"
	example rl_loop
	like "$out" '^preempted: 3 ' "rl_loop: paused when its trainer was killed"
	like "$out" 'step 0: 500 .*replayed' "the next trainer replays"
	is "$(printf '%s\n' "$out" | grep '^result' | tr -d "{}',:" |
		awk '{ if ($3 != 137 * NR || $5 != $NF || $7 < 3) print }
			END { print NR }')" 3 \
		"right answers, and no step ran twice" || diag "$out"
	example tree_search
	like "$out" '^found 19: ' "tree_search: it gets there"
	example bulk_eval
	like "$out" '^summary: fail fail fail fail oom pass timeout$' \
		"bulk_eval: each judged in its own way" || diag "$out"
	is "$(dsec-ps </dev/null)" "" "no example leaves a sandbox"
	;;
esac

leak_check
done_testing
