#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The front becomes the program that is asked for, and nothing else.
. "$(dirname "$0")/../tap.sh"
tree_new

run dsec --version
like "$out" '^dsec [0-9]' "--version"
run dsec
is "$status" 0 "alone it helps"
for p in run exec; do
	like "$out" "^  $p +[a-z]" "and lists $p"
done
unlike "$out" '^  box' "but no internal program"
first=$out
run dsec --help
is "$out" "$first" "--help is the same"
run dsec exec --version
like "$out" '^dsec-exec [0-9]' "dsec exec is dsec-exec"
run dsec exec --no-such-flag
is "$status" 64 "with its exit status"
run dsec exce
is "$status" 64 "an unknown program"
like "$err" "is it 'exec'" "and the nearest name"
run dsec zzzzzz
is "$status" 64 "a name that is near none"
unlike "$err" 'is it' "has no suggestion"
run dsec call
like "$err" 'dsec-call is not installed here' "one that is known and not here"
run dsec cal
unlike "$err" "'call'" "is not suggested either"
for word in logs images stop rm kill inspect pull; do
	run dsec $word
	like "$status $err" "^64 .*: dsec (exec|img|pause|ps) .* does that" \
		"docker's '$word' has another name here"
done
run dsec ps --tble
like "$status $err" '^64 .*unknown option --tble: is it --table\?' \
	"an option that is near one"
run dsec ps --zzzzzzzzz
unlike "$err" 'is it' "or near none"
out=$(echo '{"comand":"true"}' | dsec place)
is "$(printf '%s' "$out" | grep -o "unknown field.*'?")" \
	"unknown field 'comand': is it 'command'?" "so is a field"
# Who has seen enough is not an error to tell people of; a full disk is.
mkfifo "$T/pipe"
# shellcheck disable=SC2094 # the reader that goes
exec 4<>"$T/pipe" 5>"$T/pipe" 4>&-
for p in 'net --services' 'place --simulate --requests 10'; do
	# shellcheck disable=SC2086 # words
	dsec $p >&5 2>"$T/err"
	is "$? $(cat "$T/err")" "74 " "$p | head"
	# shellcheck disable=SC2086 # words
	dsec $p >/dev/full 2>"$T/err"
	like "$? $(cat "$T/err")" '74 .*No space left' "$p on a full disk"
done
exec 5>&-
for name in '' ../exec "$(printf '%05000d' 7)" --nope; do
	run dsec "$name"
	is "$status" 64 "no program: '$(printf %.20s "$name")'"
done
# On a terminal nobody types requests: each says at once what it can be given.
for p in exec admit place pause fork net 'ps --wait'; do
	if [ "$(id -u)" -ne 0 ] || ! command -v script >/dev/null; then
		skip "$p on a terminal" "needs root and script"
		continue
	fi
	out=$(timeout 30 script -qec "dsec $p" "$T/typescript" </dev/null 2>&1)
	is "$?" 64 "$p on a terminal without words"
	like "$out" 'nothing is asked for: give .*, or requests on standard input' \
		"... is told what is missing"
done
# Its own directory goes before PATH; PATH is looked at for the rest.
mkdir "$T/bin" "$T/path"
cp "$BIN/dsec" "$T/bin/"
for p in bin/dsec-exec path/dsec-exec path/dsec-fork; do
	printf '#!/bin/sh\necho "%s $*"\n' "$p" >"$T/$p"
	chmod +x "$T/$p"
done
is "$(PATH="$T/path:$PATH" "$T/bin/dsec" exec 'a b' c)" "bin/dsec-exec a b c" \
	"the program beside it"
is "$(PATH="$T/path:$PATH" "$T/bin/dsec" fork x)" "path/dsec-fork x" \
	"one of PATH"
done_testing
