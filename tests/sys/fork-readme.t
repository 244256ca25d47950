#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The examples of README's section on copies, as they stand there.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq busybox python3
tree_new
# shellcheck source=tests/sys/matrix.sh
. "$(dirname "$0")/matrix.sh"
why=$(checkpoint_why)
[ -z "$why" ] || plan_skip_all "$why"
matrix_image root/py:3.12 || plan_skip_all "no image to test with"

examples() { # SECTION
	awk -v s="## $1" '
		/^## / { on = $0 == s; next }
		on && /^    / { print substr($0, 5) }
	' README.md
}
examples Copies >"$T/examples"
mkdir "$T/at"
cd "$T/at" || exit 1
n=0
while read -r line; do
	n=$((n + 1))
	run timeout 300 sh -c "$line"
	is "$status" 0 "$line" || diag "$out $err"
	case $line in
	*"--cmd"*)
		is "$(jq -r .ok results.jsonl | sort | uniq -c | tr -s ' ')" \
			" 16 true" "in 16 copies"
		is "$(jq -r .stdout results.jsonl | grep -c '[p]ython3 -c')" 16 \
			"each with the process that was prepared"
		timeout 60 dsec-exec --cmd true <copies.jsonl >"$T/null"
		jq -r .sandbox copies.jsonl | xargs timeout 60 dsec-pause \
			--stop --grace 0 >"$T/null"
		;;
	*beside*) like "$out" 'beside what was running' "it runs" ;;
	*--list*) like "$out" 'root/flask-warm' "it is listed" ;;
	esac
done <"$T/examples"
ok $((n < 10)) "the section has examples ($n)"
done_testing
