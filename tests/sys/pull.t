#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Images of registries, which skopeo copies.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools python3 jq zstd
tree_new
tools=$(cd "$(dirname "$0")" && pwd)/import
store=$DSEC_RUN/store

"$tools/images" "$T/images"
mkdir "$T/bin" "$T/none"

# --- what it is given, and what it says -----------------------------------------

cat >"$T/bin/skopeo" <<'END'
#!/bin/sh
printf '%s\n' "$@" >"$0.args"
env | cut -d= -f1 | sort >"$0.env"
for last; do :; done
dir=${last#oci:}
cp -r "${0%/bin/skopeo}/images/three" "${dir%:image}"
END
chmod +x "$T/bin/skopeo"
old_path=$PATH
PATH=$T/bin:$PATH
SECRET=x
export SECRET
run dsec-img pull python:3.12 --store "$store" --as root/py:3.12 \
	--platform linux/amd64 --authfile /a/b
is "$status" 0 "what skopeo copies is imported" || diag "$out$err"
json_is "$out" '["root/py:3.12",{"cached":0,"new":3}]' \
	"with its layers" '[.name, .layers]'
is "$(sed 's,/proc/[0-9]*/fd/[0-9]*/,/FD/,' "$T/bin/skopeo.args" | tr '\n' ' ')" \
	"--override-os linux --override-arch amd64 copy --quiet --authfile /a/b \
-- docker://docker.io/library/python:3.12 oci:/FD/oci:image " \
	"the reference is completed as docker does, flags are passed on"
unlike "$(cat "$T/bin/skopeo.env")" '^(SECRET|DSEC_.*)$' \
	"its environment is small"
like "$(cat "$T/bin/skopeo.env")" '^TMPDIR$' "and has a place for its files"
run dsec-img inspect root/py:3.12 --store "$store"
is "$(field "$out" '.source | .type + " " + .name')" \
	"registry docker.io/library/python:3.12" "where it is from is kept"
run dsec-img pull quay.io/a/b@sha256:"$(printf x | sha256sum | cut -d' ' -f1)" \
	--store "$store" --insecure
like "$(cat "$T/bin/skopeo.args")" '^docker://quay.io/a/b@sha256:' \
	"a digest is a reference, too"
like "$(cat "$T/bin/skopeo.args")" '^--src-tls-verify=false$' "--insecure"
for ref in '-x' 'a b' 'a;b' '../../x y' "$(printf '%0300d' 1)"; do
	run dsec-img pull --store "$store" --json -- "$ref"
	is "$(field "$out" .error.code)" bad_value \
		"no reference: '$(printf '%.10s' "$ref")'" || diag "$out$err"
done

cat >"$T/bin/skopeo" <<'END'
#!/bin/sh
echo 'time="x" level=warning msg="something"' >&2
echo 'time="x" level=fatal msg="reading \"docker://a\": unauthorized" x=y' >&2
exit 1
END
run dsec-img pull python:3.12 --store "$store" --as root/other:1
like "$(field "$out" '.error | .code + " " + .message')" \
	'^io .*docker.io/library/python:3.12: reading "docker://a": unauthorized$' \
	"what skopeo says last is told, as it says it" || diag "$err"
isnt "$(field "$out" .error.infra)" true "and is the caller's to repair"
cat >"$T/bin/skopeo" <<'END'
#!/bin/sh
echo 'level=fatal msg="Get \"https://r/v2/\": dial tcp: lookup r: no such host"' >&2
exit 1
END
run dsec-img pull python:3.12 --store "$store" --as root/other:1
is "$(field "$out" '.error | "\(.code) \(.infra)"')" "io true" \
	"a network that fails is not" || diag "$out"
cat >"$T/bin/skopeo" <<'END'
#!/bin/sh
exec sleep 1000
END
run timeout 20 dsec-img pull python:3.12 --store "$store" --deadline 0.3
is "$(field "$out" .error.code)" deadline "a deadline ends it"
is "$(ls -A "$store/tmp")" '' "and leaves nothing"
real=$(command -v dsec-img)
run env PATH="$T/none" "$real" pull python:3.12 --store "$store"
is "$(field "$out" .error.code)" configuration "without skopeo it says so"
like "$(field "$out" .error.message)" 'skopeo is not installed' "by its name"

# --- a registry --------------------------------------------------------------------

PATH=$old_path
if ! command -v skopeo >/dev/null || ! command -v docker-registry >/dev/null; then
	skip "a registry" "needs skopeo and docker-registry"
	done_testing
fi
port=$(python3 -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
cat >"$T/registry.yml" <<END
version: 0.1
log: {level: error}
storage: {filesystem: {rootdirectory: $T/registry}}
http: {addr: "127.0.0.1:$port"}
END
docker-registry serve "$T/registry.yml" >"$T/registry.log" 2>&1 &
registry=$!
# shellcheck disable=SC2317 # called by wait_for
ask() {
	python3 -c 'import sys, urllib.request
urllib.request.urlopen("http://127.0.0.1:%s/v2/" % sys.argv[1])' "$port" 2>/dev/null
}
wait_for 20 ask
ok "$?" "a registry answers" || diag "$(cat "$T/registry.log")"
run timeout 60 skopeo copy -q --dest-tls-verify=false "oci:$T/images/three" \
	"docker://127.0.0.1:$port/some/three:1"
is "$status" 0 "an image is pushed there" || diag "$err"
run timeout 60 dsec-img pull "127.0.0.1:$port/some/three:1" --insecure \
	--store "$store" --as root/three:1
is "$status" 0 "and pulled" || diag "$out$err"
json_is "$out" '{"cached":3,"new":0}' "its layers were there" .layers
run timeout 60 dsec-img pull "127.0.0.1:$port/some/three:2" --insecure \
	--store "$store" --as root/three:2
like "$(field "$out" '.error | .code + " " + .message')" '^io .*manifest' \
	"what is not there is skopeo's to say"
is "$(ls -A "$store/tmp")" '' "the store has nothing half made"
kill "$registry"
wait "$registry" 2>/dev/null
done_testing
