#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/field-reports.md is true: every test it names is there and names the
# number; every number that a test names is in it with that test; none is
# without a test and without a feature to wait for.
. "$(dirname "$0")/../tap.sh"
page=tests/field-reports.md

rows=$(awk -F'|' '/^\| [0-9]+ \|/ { gsub(/[ `]+/, " ", $4)
	gsub(/^ +| +$/, "", $5); n = $2 + 0; print n "|" $4 "|" $5 }' "$page")
[ "$(printf '%s\n' "$rows" | wc -l)" -ge 42 ]
ok $? "42 reports at least"

while IFS='|' read -r n files waits; do
	if [ -z "$(printf %s "$files" | tr -d ' ')" ]; then
		isnt "$waits" "" "$n: no test, waits for: $waits"
		continue
	fi
	for f in $files; do
		grep -qiE "field report $n([^0-9]|\$)" "$f" 2>/dev/null
		ok $? "$n: $f tries it"
	done
done <<EOT
$rows
EOT

grep -roiE 'field report [0-9]+' tests/unit tests/cli tests/sys tests/big |
	sed -E 's/:field report /|/I' | grep -v '^tests/cli/field-reports.t' |
	sort -u >"${TMPDIR:-/tmp}/dsec-reports.$$"
while IFS='|' read -r f n; do
	printf '%s\n' "$rows" | grep "^$n|" | grep -qF " $f "
	ok $? "$f: report $n is on the page with it"
done <"${TMPDIR:-/tmp}/dsec-reports.$$"
rm -f "${TMPDIR:-/tmp}/dsec-reports.$$"

done_testing
