#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dsec-file by itself, on the host: every operation and the ways it must fail.
. "$(dirname "$0")/../tap.sh"
need_tools jq tar setpriv prlimit
tree_new
F=$BIN/../libexec/dsec/dsec-file
W=$T/w
mkdir "$W"
chmod 777 "$W"
cd "$W" || exit 1

# The helper with its result in $res, its output in $out.
h() {
	timeout 20 "$F" "$@" >"$T/.hout" 2>"$T/.herr"
	res=$(grep . "$T/.herr")
	out=$(tr -d '\0' <"$T/.hout")
}
code() { field "$res" '.error.code // "none"'; }

# --- arguments
h; is "$(code)" usage "no operation"
h read; is "$(code)" usage "read without a path"
h read path=/etc/passwd path=/etc/group; is "$(code)" usage "a path twice"
h read path=/etc/passwd depth=1; is "$(code)" usage "an argument not its own"
h read path=x limit=-1; is "$(code)" usage "a negative limit"
h read path=x limit=1x; is "$(code)" usage "a number with a tail"
h write path=x size=0 mode=888 </dev/null; is "$(code)" usage "no octal mode"
h read path=; is "$(code)" not_found "an empty path"
h read "path=$(head -c 5000 /dev/zero | tr '\0' a)"
is "$(code)" bad_path "a path that is too long"

# --- read
printf 0123456789 >f
h read path="$W/f"; is "$out" 0123456789 "read"
json_is "$res" '{"ok":true,"size":10,"bytes":10}' "its result"
h read path=f offset=3 limit=4; is "$out" 3456 "offset and limit"
h read path=f offset=99; is "$out" '' "from behind the end"
: >empty; h read path=empty; is "$(field "$res" .size)" 0 "an empty file"
mkfifo fifo
ln -s fifo tofifo
ln -s loop loop
for c in "fifo not_regular" "tofifo not_regular" "/dev/zero not_regular" \
	". is_directory" "none not_found" "f/x not_directory" "loop bad_path"; do
	h read path="${c% *}"; is "$(code)" "${c#* }" "read ${c% *}: ${c#* }"
done
mkdir private; chmod 700 private; echo secret >private/s
setpriv --reuid 65534 --clear-groups timeout 9 "$F" read \
	path="$W/private/s" 2>"$T/.e" >"$T/.o"
is "$(jq -r .error.code "$T/.e") $(cat "$T/.o")" "permission " \
	"as nobody: only what nobody may read"

# --- write
w() { # DATA ARG...
	printf %s "$1" >"$T/.data"
	shift
	h write "$@" <"$T/.data"
}
w hello path=new size=5; is "$(cat new) $(field "$res" .created)" "hello true" \
	"write a new file"
is "$(stat -c %a new)" 644 "its mode"
chmod 4751 new
w again path=new size=5; is "$(cat new)" again "replace it"
is "$(stat -c %a new)" 751 "keeps the mode, not the set-ID bit"
w again path=new size=5 mode=0600; is "$(stat -c %a new)" 600 "unless given"
w cut path=new size=9; is "$(code) $(cat new)" "io again" \
	"input that ends early changes nothing"
w longer path=new size=3; is "$(code) $(cat new)" "io again" "nor too much"
w '' path=zero size=0; is "$(code) $(stat -c %s zero)" "none 0" "an empty file"
w x path=p1/p2/f size=1; is "$(code)" not_found "without its directory"
w x path=p1/p2/f size=1 parents=1; is "$(cat p1/p2/f)" x "with parents"
ln -s p1/p2/f link
w y path=link size=1; is "$(cat p1/p2/f) $(readlink link)" "y p1/p2/f" \
	"through a link: what it points to is replaced"
ln -s p1/to dangling
w z path=dangling size=1; is "$(cat p1/to)" z "through a dangling link"
for c in "fifo not_regular" "/dev/null not_regular" "p1 is_directory" \
	"p1/ is_directory" "f/x not_directory" "loop bad_path" \
	"/proc/self/exe bad_path"; do
	w x path="${c% *}" size=1; is "$(code)" "${c#* }" "write ${c% *}: ${c#* }"
done
echo root >ro; chmod 644 ro
printf x | setpriv --reuid 65534 --clear-groups "$F" write path="$W/ro" size=1 \
	2>"$T/.e"
is "$(jq -r .error.code "$T/.e") $(cat ro)" "permission root" \
	"as nobody: not a file of root, though the directory is writable"
mkfifo "$T/.in"
"$F" write path=new size=99 <"$T/.in" 2>/dev/null &
exec 7>"$T/.in"
printf half >&7
wait_for 5 sh -c 'ls -A | grep -q "^.dsec-"' || diag "no temporary file"
kill -KILL $!
wait
exec 7>&-
is "$(cat new)" again "killed half way: the old content"
rm -f .dsec-*
is "$(find . -name '.dsec-*')" "" "nothing else is left by any of these"

if mkdir "$T/small" && mount -t tmpfs -o size=64k,nr_inodes=20 tmpfs \
	"$T/small" 2>/dev/null; then
	head -c 200000 /dev/zero >"$T/.big"
	h write path="$T/small/f" size=200000 <"$T/.big"
	is "$(code) $(find "$T/small" -mindepth 1)" "no_space " \
		"a full disk: no_space, and nothing left"
	seq -f "$T/small/%g" 30 | xargs touch 2>/dev/null
	h mkdir path="$T/small/dir"
	is "$(code)" no_space "no inodes left"
	mount -o remount,ro "$T/small"
	w x path="$T/small/1" size=1; is "$(code)" read_only "read-only: write"
	h mkdir path="$T/small/dir"; is "$(code)" read_only "mkdir"
	h remove path="$T/small/1"; is "$(code)" read_only "remove"
	umount "$T/small"
else
	skip "a full and a read-only disk" "cannot mount"
fi

# --- list and stat
mkdir -p l/b/c l/a
: >"l/b/$(printf '\377')"
ln -s b l/to-b
h list path=l
is "$(printf %s "$out" | jq -r .name | tr '\n' ' ')" "a b to-b " "list, sorted"
h list path=l depth=9
is "$(printf %s "$out" | jq -r '.name // .name_b64' | tr '\n' ' ')" \
	"a b b/c Yi// to-b " "to a depth; names that are not UTF-8" ||
	diag "$out"
h list path=l limit=2
json_is "$res" '{"ok":true,"count":2,"truncated":true}' "to a limit"
h list path=l/to-b
is "$(printf %s "$out" | grep -c name)" 2 "a directory named by a link"
h list path=f; is "$(code)" not_directory "list a file"
h list path=none; is "$(code)" not_found "list nothing"
h stat path=l/to-b
json_is "$res" '["symlink","b"]' "stat a link" '[.type, .target]'
h stat path=l/to-b follow=1; is "$(field "$res" .type)" directory "follow it"
h stat path=none; is "$(code)" not_found "stat nothing"
h stat path=new
json_is "$res" '{"ok":true,"name":"new","type":"file","size":5,"mode":"0600","uid":0,"gid":0}' \
	"stat a file" 'del(.mtime_ms)'
h read path_b64="$(printf 'l/b/\377' | base64)"
is "$(code)" none "a path in base64"

# --- mkdir
h mkdir path=m/n; is "$(code)" not_found "mkdir without parents"
h mkdir path=m/n parents=1 mode=1733; is "$(stat -c %a m/n)" 1733 "with"
h mkdir path=m/n parents=1; is "$(field "$res" .created)" false "again"
h mkdir path=m/n; is "$(code)" exists "again, without parents"
h mkdir path=f parents=1; is "$(code)" exists "over a file"
for i in $(seq 64); do
	"$F" mkdir path=par/a/b/c parents=1 2>"$T/.par.$i" &
done
wait
is "$(cat "$T"/.par.* | jq -c .ok | sort | uniq -c | tr -s ' ')" " 64 true" \
	"64 at once make one tree"
for i in $(seq 64); do
	printf x | "$F" write path="par2/x/y/$i" size=1 parents=1 2>"$T/.par.$i" &
done
wait
is "$(cat "$T"/.par.* | jq -c .ok | sort | uniq -c | tr -s ' ') $(
	find par2/x/y -type f | wc -l)" " 64 true 64" "64 writes into a new tree"

# --- move
h move path=f to=f2; is "$(cat f2)" 0123456789 "move"
h move path=none to=f3; is "$(code)" not_found "nothing to move"
h move path=f2 to=none/f; is "$(code)" not_found "to nowhere"
h move path=l to=p1; is "$(code)" not_empty "onto a directory that is not empty"
S=$(mktemp -d /dev/shm/dsec-move.XXXXXX)
if [ "$(stat -c %d "$S")" != "$(stat -c %d "$W")" ]; then
	cp -a l "$T/l-before"
	mkfifo l/fifo "$T/l-before/fifo"
	chown 12:34 l/b "$T/l-before/b"
	h move path=l to="$S/l"
	is "$(code) $(ls -A "$S")" "none l" "a tree to another file system"
	is "$(cd "$T/l-before" && find . -printf '%p %y %m %U %G %l\n' | sort)" \
		"$(cd "$S/l" && find . -printf '%p %y %m %U %G %l\n' | sort)" \
		"is the same there"
	[ ! -e l ]; ok $? "and gone here"
else
	skip "move to another file system" "there is one only"
fi
rm -rf "$S"

# --- remove
mkdir -p r/d victim; : >r/d/x; : >victim/v; ln -s ../victim r/link
h remove path=r; is "$(code)" not_empty "a directory, not recursive"
h remove path=r/link; is "$(ls victim)" v "a link: not what it points to"
ln -s ../victim r/link
h remove path=r recursive=1; is "$(code) $(find . -name r)" "none " "a tree"
is "$(ls victim)" v "not what its links point to"
h remove path=none; is "$(code)" not_found "nothing to remove"
h remove path=..; is "$(code)" is_directory "not '..'"
perl -e 'for (0 .. 600) { my $n = $_ ? "a_name_to_make_the_path_long" : "deep";
	mkdir $n and chdir $n or die }'
h list path=deep depth=900 limit=900
is "$(field "$res" .count)" 600 "list 600 directories deep"
"$F" tar-out path=deep name=deep 2>/dev/null |
	"$F" tar-in path="$W/deep2" parents=1 2>"$T/.e"
is "$(jq -c '[.ok,.entries]' "$T/.e")" '[true,601]' "pack and extract it"
h remove path=deep recursive=1; is "$(code)" none "remove it"
h remove path=deep2 recursive=1; is "$(code)" none "and its copy"
mkdir -p own/mine own/theirs/x own/z; : >own/mine/f; : >own/theirs/f
chown -R 65534:65534 own; chown -R 0:0 own/theirs
setpriv --reuid 65534 --regid 65534 --clear-groups "$F" remove path="$W/own" \
	recursive=1 2>"$T/.e"
is "$(jq -r .error.code "$T/.e") $(find own | sort | tr '\n' ' ')" \
	"permission own own/theirs own/theirs/f own/theirs/x " \
	"what may not be removed stays where it is"
mkdir -p mnt/m
if mount -t tmpfs -o size=64k tmpfs mnt/m 2>/dev/null; then
	: >mnt/m/keep
	h remove path=mnt recursive=1
	is "$(code) $(ls mnt/m)" "busy keep" "mounts are not entered"
	umount mnt/m
else
	skip "mounts are not entered" "cannot mount"
fi

# --- watch
mkdir wa
"$F" watch path=wa recursive=1 <"$T/.in" >"$T/.ev" 2>"$T/.e" &
exec 7>"$T/.in"
wait_for 5 grep -q watching "$T/.ev"
mkdir wa/d
wait_for 5 grep -q '"wa/d"\|"d"' "$T/.ev"
echo 1 >wa/d/f
wait_for 5 grep -q modified "$T/.ev"
mv wa/d wa/e
wait_for 5 grep -q moved "$T/.ev"
: >wa/e/g
wait_for 5 grep -q e/g "$T/.ev"
mv wa/e/g .
rm wa/e/f
wait_for 5 sh -c "grep -q 'removed.*e/f' '$T/.ev'"
exec 7>&-
wait
is "$(jq -r '[.event, .name // empty, .to // empty] | join(" ")' "$T/.ev" |
	tr '\n' ',')" \
	"watching,created d,created d/f,modified d/f,moved d e,created e/g,removed e/g,removed e/f," \
	"watch a tree, new and moved directories too" || diag "$(cat "$T/.ev")"
json_is "$(grep . "$T/.e")" '{"ok":true,"events":7}' "until stdin ends"
h watch path=wa timeout_ms=100 <>"$T/.in"
is "$(code) $out" 'none {"event":"watching"}' "or until its time is over"
h watch path=none timeout_ms=100; is "$(code)" not_found "watch nothing"
"$F" watch path=wa <"$T/.in" >"$T/.ev" 2>"$T/.e" &
p=$!
exec 7>"$T/.in"
wait_for 5 grep -q watching "$T/.ev"
max=$(cat /proc/sys/fs/inotify/max_queued_events)
if [ "$max" -le 20000 ]; then
	kill -STOP "$p"
	: >wa/1
	: >wa/2
	perl -e 'utime 1, 1, "wa/" . (1 + $_ % 2) for 1 .. $ARGV[0] + 500' "$max"
	kill -CONT "$p"
	wait_for 10 grep -q overflow "$T/.ev"
	ok $? "lost events are told"
else
	skip "lost events are told" "a queue of $max"
fi
exec 7>&-
wait

# --- tar
mkdir -p src/sub
(
	cd src || exit 1
	echo a >a; ln a hard; ln -s a rel; ln -s "$W/src/sub" abs
	ln -s /none dangling; ln -s sub todir; : >sub/empty
	echo x >--checkpoint-action=exec=sh
	truncate -s 64M sparse
	printf data | dd of=sparse seek=50 bs=1M conv=notrunc status=none
	chmod 750 sub; touch -d '1969-12-31 23:59:58.5Z' a
)
"$F" tar-out path=src name=. >"$T/t.tar" 2>"$T/.e"
json_is "$(cat "$T/.e")" true "tar-out" .ok
[ "$(stat -c %s "$T/t.tar")" -lt 100000 ]
ok $? "keeps a hole a hole"
is "$(tar --compare -f "$T/t.tar" -C src 2>&1)" "" "as tar would have made it"
h tar-in path=dst parents=1 <"$T/t.tar"
is "$(code)" none "tar-in"
is "$(tar --compare -f "$T/t.tar" -C dst 2>&1)" "" "as tar would extract it"
[ "$(du -k dst/sparse | cut -f1)" -lt 1024 ]
ok $? "a hole again"
tar -C src -cf "$T/t2.tar" --format=gnu .
mkdir dst2; h tar-in path=dst2 <"$T/t2.tar"
is "$(code) $(tar --compare -f "$T/t2.tar" -C dst2 2>&1)" "none " "from GNU tar"
head -c 700 "$T/t2.tar" >"$T/cut.tar"
h tar-in path=dst2 <"$T/cut.tar"; is "$(code)" bad_value "a cut archive"
h tar-in path=none </dev/null; is "$(code)" not_found "into nowhere"
h tar-out path=none; is "$(code)" not_found "of nothing"
: | "$F" tar-out path=/proc/self name=p 2>/dev/null >/dev/null
python3 - "$T/evil.tar" <<'PY' 2>/dev/null
import io, sys, tarfile
t = tarfile.open(sys.argv[1], 'w')
def f(name, type=tarfile.REGTYPE, link='', data=b''):
    i = tarfile.TarInfo(name); i.type = type; i.linkname = link
    i.size = len(data); t.addfile(i, io.BytesIO(data))
f('../x', data=b'bad'); f('good', data=b'good')
f('l', tarfile.SYMTYPE, '/tmp'); f('l/y', data=b'bad')
f('dev', tarfile.CHRTYPE)
t.close()
PY
if [ -s "$T/evil.tar" ]; then
	h tar-in path=dst3 parents=1 <"$T/evil.tar"
	json_is "$res" '["refused_entries",["../x","l/y","dev"],3]' \
		"what is refused is listed" \
		'[.error.code, [.refused[].path], .refused_count]'
	is "$(cat dst3/good)" good "and the rest extracted"
else
	skip "refused entries" "no python3"
	skip "and the rest" "no python3"
fi
mkdir private2; chmod 700 private2; mv private2 src/sub/
setpriv --reuid 65534 --clear-groups "$F" tar-out path="$W/src" name=s \
	2>"$T/.e" | tar tf - >"$T/.o"
is "$(jq -c '[.error.code,.refused_count]' "$T/.e")" '["refused_entries",1]' \
	"what cannot be read is told" || diag "$(cat "$T/.e")"
grep -q '^s/rel' "$T/.o"
ok $? "and the rest packed"

# --- 1,000 files and a big one in little memory
mkdir many && (cd many && seq -f %06g 1000 | xargs touch)
head -c 70000000 /dev/zero >many/big
prlimit --as=67108864 "$F" tar-out path=many name=. 2>"$T/.e" |
	prlimit --as=67108864 "$F" tar-in path=many2 parents=1 2>"$T/.e2"
json_is "$(cat "$T/.e" "$T/.e2" | jq -sc .)" '[[1002,70000000],[1002,70000000]]' \
	"1,000 files and 70 MB in 64 MiB of memory" 'map([.entries, .bytes])'
cmp many/big many2/big; ok $? "the same"
rm -rf many many2

# --- alone
mkdir -p jail/d
cp "$F" jail/f
run chroot jail /f write path=/d/x size=0 </dev/null
like "$err" '"ok":true' "needs no file of the system"
setpriv --reuid 65534 --clear-groups "$F" watch path="$W/wa" \
	<"$T/.in" >"$T/.ev" 2>/dev/null &
p=$!
exec 7>"$T/.in"
wait_for 5 grep -q watching "$T/.ev"
setpriv --reuid 65534 --clear-groups cat "/proc/$p/environ" >/dev/null 2>&1
isnt $? 0 "its own user cannot look into it"
exec 7>&-
wait
cd /
done_testing
