#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Memory of a frozen sandbox out of RAM and back, by the program that does it.
# shellcheck source=tests/tap.sh
. "$(dirname "$0")/../tap.sh"
need_root
need_tools jq
tree_new
ckpt=$(dirname "$BIN")/libexec/dsec/dsec-ckpt

run "$ckpt" reclaim
is "$status $(field "$out" .error.code)" "64 usage" "no sandbox named"
run "$ckpt" reclaim ../x
is "$status" 64 "a path is no sandbox"
run "$ckpt" reclaim --timeout-ms 0 aaaaaaaaaaaaaaaaaaaa
is "$status" 64 "no time at all"
run "$ckpt" reclaim aaaaaaaaaaaaaaaaaaaa
is "$(field "$out" .error.code)" not_found "one that is not there"
run "$ckpt" prefetch aaaaaaaaaaaaaaaaaaaa
is "$(field "$out" .error.code)" not_found "nor to be read back"
run "$ckpt" prefetch --help
is "$status" 0 "--help"

leak_start
s=$(dsec-run --memory 256M --detach -- sh -c \
	'dd if=/dev/zero of=/home/file bs=1M count=32; cat /home/file >/dev/null
	exec sleep 1000' | jq -r .sandbox)
# shellcheck disable=SC2317 # by wait_for
is_read() {
	[ "$(dsec-exec "$s" -- pgrep -x sleep)" ]
}
wait_for 20 is_read
run dsec-exec "$s" -- sync
run dsec-pause --level freeze "$s"
is "$(field "$out" .state)" paused "frozen"
run "$ckpt" reclaim --timeout-ms 30000 "$s"
is "$status $(field "$out" .ok)" "0 true" "its memory is pushed out"
diag "$out"
[ "$(field "$out" .freed_bytes)" -gt $((20 << 20)) ]
ok $? "the pages of its file went"
is "$(field "$out" '.before_bytes - .memory_bytes == .freed_bytes')" true \
	"the numbers fit"
is "$(field "$out" .cut)" false "in time"
if [ "$(field "$out" .swap)" = false ]; then
	like "$(field "$out" '.warnings[]')" 'no swap' "it says there is no swap"
else
	is "$(field "$out" '.warnings|length')" 0 "nothing to be warned of"
fi
run "$ckpt" prefetch "$s"
is "$status $(field "$out" '.prefetched_bytes >= 0')" "0 true" "read back"
run dsec-exec "$s" -- sh -c 'pgrep -x sleep >/dev/null && wc -c </home/file'
is "${out%% *}" 33554432 "it has all it had"
run dsec-pause --stop "$s"
is "$status" 0 "it stops"
leak_check "nothing is left"
done_testing
