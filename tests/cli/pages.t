#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every program's -h and its page tell the same flags; -h comes from the table
# that parses, so the page tells what is there.
. "$(dirname "$0")/../tap.sh"
need_tools mandoc
tree_new

# The flags of -h, one a line: --cpu and -c.
help_flags() {
	sed -n '/^  /{
		s/^  \(-[A-Za-z0-9]\), \(--[a-z0-9-]*\).*/\1\n\2/p
		t
		s/^  *\(--*[A-Za-z0-9-]*\).*/\1/p
	}' "$1" | grep -- '-[A-Za-z]' | sort -u
}

# The flags that the page's lists describe: its items, not its prose.
page_flags() {
	sed -n "s/^\\.It Fl //p" "$1" |
		sed "s/ Ar [^ ]*//g; s/ , Fl / /g; s/ , / /g" |
		while read -r flags; do
			for word in $flags; do
				case $word in
				-h | h | -help) printf "%s\n" "-$word" ;;
				-*) printf "%s\n" "-$word" ;;
				?) printf "%s\n" "-$word" ;;
				esac
			done
		done | sort -u
}

for main in cmd/*/main.c; do
	prog=$(basename "$(dirname "$main")")
	page=cmd/$prog/$prog.1
	exe=$BIN/$prog
	if [ ! -x "$exe" ]; then
		exe=$(dirname "$BIN")/libexec/dsec/$prog
	fi
	[ -x "$exe" ] || { ok 1 "$prog is built"; continue; }
	[ -f "$page" ] || { ok 1 "$prog has a page"; continue; }
	if [ "$prog" = dsec-init ]; then
		skip "$prog: flags" "it takes none: pid 1 of a sandbox"
		continue
	fi
	run timeout 10 "$exe" -h
	is "$status" 0 "$prog -h ends well"
	printf '%s\n' "$out" >"$T/help"
	# Operations with flags of their own have a help of their own.
	ops=$(sed -n '/^operations/,$s/^    \([a-z]*\) .*/\1/p' "$T/help")
	for op in $ops; do
		run timeout 10 "$exe" "$op" -h
		is "$status" 0 "$prog $op -h ends well"
		printf '%s\n' "$out" >>"$T/help"
		grep -q "^\.It Cm $op\b" "$page"
		ok $? "$prog: the page has the operation $op"
	done
	like "$(head -n 1 "$T/help")" "^(usage: )?$prog" "$prog -h: usage first"
	help_flags "$T/help" | grep -vxF -e -h -e --help -e --version \
		>"$T/flags"
	page_flags "$page" | grep -vxF -e -h -e --help -e --version \
		>"$T/paged"
	is "$(comm -23 "$T/flags" "$T/paged" | tr '\n' ' ')" "" \
		"$prog: no flag is missing from its page"
	is "$(comm -13 "$T/flags" "$T/paged" | tr '\n' ' ')" "" \
		"$prog: its page tells no flag that is not there"
	if [ "$prog" = dsec-file ]; then
		skip "$prog: an unknown flag" "it speaks to a supervisor alone"
	else
		run timeout 10 "$exe" --no-such-flag
		is "$status" 64 "$prog: an unknown flag is a usage error"
	fi
	for section in INPUT OUTPUT 'EXIT STATUS' EXAMPLES 'SEE ALSO'; do
		grep -q "^\.Sh $section" "$page"
		ok $? "$prog: the page has $section"
	done
done

done_testing
