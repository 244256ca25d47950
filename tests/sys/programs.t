#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What people run works under the filter of every profile: compilers, runtimes
# with threads, debuggers, databases.  Those that are not here are not run.
# shellcheck disable=SC2016 # scripts for inside
. "$(dirname "$0")/../tap.sh"
need_root
need_tools timeout
tree_new
leak_start

up() { # PROFILE
	timeout -s KILL 60 dsec-run --detach --name "$1" --profile "$1" \
		--memory 2G </dev/null >"$T/up" 2>&1
	ok $? "$1: a sandbox" || diag "$(cat "$T/up")"
}

works() { # PROGRAM WANT SCRIPT: as a user in /tmp; the last line it prints
	command -v "$1" >/dev/null || {
		diag "$1 is not here"
		return
	}
	got=$(timeout -s KILL 90 dsec-exec "$profile" --user user --cwd /tmp \
		-- sh -c "export HOME=/tmp; $3" </dev/null 2>"$T/err")
	is "$(printf '%s\n' "$got" | tail -n 1)" "$2" "$profile: $1" ||
		diag "$got" "$(cat "$T/err")"
}

postgres=$(find /usr/lib/postgresql -name initdb 2>/dev/null | head -n 1)
for profile in default nested; do
	up $profile
	works python3 '[1, 4, 9] 7' 'cat >p.py <<"PY"
import asyncio, multiprocessing, subprocess, threading
def f(x):
    return x * x
if __name__ == "__main__":
    with multiprocessing.Pool(3) as p:
        squares = p.map(f, [1, 2, 3])
    t = threading.Thread(target=lambda: None); t.start(); t.join()
    asyncio.run(asyncio.sleep(0.01))
    print(squares, subprocess.run(["sh", "-c", "exit 7"]).returncode)
PY
python3 p.py'
	works gcc 42 'printf "%s\n" "#include <stdio.h>" "int main(void){" \
		"int x=41;" "x++;" "printf(\"%d\\n\",x);return 0;}" >g.c &&
		gcc -g -O0 -pthread g.c -o g && ./g'
	works gdb '$1 = 42' 'gdb -q -batch -ex "break 5" -ex run \
		-ex "print x" ./g 2>&1 | grep "^.1 ="'
	works strace '+++ exited with 0 +++' 'strace -f sh -c "(:); :" 2>&1'
	works git 1 'rm -rf r; git init -q r && cd r && echo x >f && git add f &&
		git -c user.name=a -c user.email=a@b commit -qm x &&
		git rev-list --count HEAD'
	works node 'worker 3' 'cat >n.js <<"JS"
const w = require("worker_threads");
if (w.isMainThread) {
	require("child_process").execSync("true");
	new w.Worker(__filename).on("message", m => console.log("worker", m));
} else {
	w.parentPort.postMessage(3);
}
JS
node n.js'
	[ $profile = nested ] || works java thread 'printf "%s\n" "public class H { public static void" \
		"main(String[] a) throws Exception { Thread t = new Thread(" \
		"() -> System.out.println(\"thread\")); t.start(); t.join(); }}" \
		>H.java && java H.java'
	[ -z "$postgres" ] || works psql 42 'p=$(ls -d /usr/lib/postgresql/*/bin | head -n 1) &&
		$p/initdb -D pg >/dev/null 2>&1 &&
		$p/pg_ctl -D pg -o "-k /tmp -c listen_addresses=" -w start \
			>/dev/null && psql -h /tmp postgres -Atc "select 6*7"
		$p/pg_ctl -D pg stop -m fast >/dev/null'
	works perl 3 'perl -e "system(\"true\"); print 1 + 2"'
	timeout -s KILL 60 dsec-pause --stop --grace 0 $profile </dev/null \
		>"$T/stop" 2>&1
	ok $? "$profile: stopped" || diag "$(cat "$T/stop")"
done

# Sandboxes in sandboxes, without a /proc of their own.
profile=nested
up nested
works unshare mounted 'unshare -Urm sh -c "mount -t tmpfs x /mnt && echo mounted"'
works bwrap inside 'bwrap --unshare-all --ro-bind / / --dev /dev echo inside'
timeout -s KILL 60 dsec-pause --stop --grace 0 nested </dev/null >"$T/stop" 2>&1
ok $? "and stopped" || diag "$(cat "$T/stop")"

leak_check "nothing is left"
done_testing
