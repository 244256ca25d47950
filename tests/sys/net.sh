# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# A small world for network tests, in namespaces of their own: the test itself
# (and with it every program and the helper) runs in the namespace `node`, so
# that nothing here touches the machine's network.
#
#	sandbox -- [transit --] node 203.0.113.1 -- world 203.0.113.10
#	                                        \-- attacker 203.0.113.66
#
# The world has 198.51.100.10 and .11 (HTTP, HTTPS, echo on 7, 5432, 8443, on
# .10 also 22), .12 (nothing listens), the DNS server 198.51.100.53 with the
# zone of net_world.py, and 2001:db8:1::10.
#
#   net_enter           first line after tap.sh: the test again, in `node`
#   net_world           after tree_new: build it; DSEC_CONFIG/net.json names its
#                       DNS server; $W is its directory (world.log, dns.log,
#                       ca.pem, zone.json for names of the test's own, www/)
#   in_world CMD...     run there; in_attacker CMD... likewise
#   net_end             it is gone; $? stays as it was: trap 'net_end; tree_end $?'
#   wheel DIR NAME      a Python package NAME with its page, as an index has it,
#                       in DIR: "answer = 42"
#   world_saw FILTER    how many lines of world.log match the jq filter
#   dns_saw NAME        how many queries for NAME, or below it, came upstream

W='' NET_PIDS='' NET_WORLD='' NET_ATTACKER=''

net_enter() {
	need_root
	need_tools ip unshare nsenter openssl python3
	[ -n "${NET_ENTERED:-}" ] && return
	NET_ENTERED=1 exec unshare -n "$0"
}

# A namespace that lives as long as its process: sets $net_pid.
net_space() {
	unshare -n sh -c 'echo >"$1"; exec sleep 3600' sh "$W/$1.up" &
	net_pid=$!
	NET_PIDS="$NET_PIDS $net_pid"
	wait_for 10 test -e "$W/$1.up"
}

in_world() {
	nsenter -t "$NET_WORLD" -n "$@"
}

in_attacker() {
	nsenter -t "$NET_ATTACKER" -n "$@"
}

net_links() {
	ip link set lo up
	ip link add br0 type bridge
	ip link set br0 up
	ip addr add 203.0.113.1/24 dev br0
	ip -6 addr add 2001:db8::1/64 dev br0 nodad
	for net_to in "world $NET_WORLD 10" "attacker $NET_ATTACKER 66"; do
		# shellcheck disable=SC2086
		set -- $net_to
		ip link add "to-$1" type veth peer name eth0 netns "$2"
		ip link set "to-$1" master br0 up
		nsenter -t "$2" -n sh -c "ip link set lo up
			ip link set eth0 up
			ip addr add 203.0.113.$3/24 dev eth0
			ip -6 addr add 2001:db8::$3/64 dev eth0 nodad
			ip route add default via 203.0.113.1"
	done
	ip route add default via 203.0.113.10
	ip -6 route add default via 2001:db8::10
	for net_to in 10 11 12 53; do
		in_world ip addr add "198.51.100.$net_to/32" dev lo
	done
	in_world ip -6 addr add 2001:db8:1::10/128 dev lo
	in_world ip route replace default via 203.0.113.1
}

# Wildcards of a top-level name are nobody's to trust: each of them twice.
net_certificate() {
	net_names=DNS:test
	for net_to in allowed other shared both six pypi npm git ws db api; do
		net_names="$net_names,DNS:$net_to.test,DNS:*.$net_to.test"
	done
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
		-days 2 -subj "/CN=test" -keyout "$W/key.pem" \
		-addext "subjectAltName=$net_names" -out "$W/cert.pem" \
		2>/dev/null
	cp "$W/cert.pem" "$W/ca.pem"
}

net_world() {
	W=$T/world
	mkdir -p "$W/www"
	net_space world && NET_WORLD=$net_pid
	net_space attacker && NET_ATTACKER=$net_pid
	net_links
	net_certificate
	nsenter -t "$NET_WORLD" -n python3 "${NET_DIR:-$(dirname "$0")}/net_world.py" \
		"$W" 2>"$W/err" &
	NET_PIDS="$! $NET_PIDS"
	mkdir -p "$DSEC_CONFIG"
	echo '{"dns": ["198.51.100.53"]}' >"$DSEC_CONFIG/net.json"
	wait_for 20 test -e "$W/ready" || diag "$(cat "$W/err")"
}

net_end() {
	net_status=$?
	for net_pid in $NET_PIDS; do
		kill "$net_pid" 2>/dev/null
		wait "$net_pid" 2>/dev/null
	done
	NET_PIDS=''
	return $net_status
}

world_saw() {
	touch "$W/world.log"
	jq -c "select($1)" "$W/world.log" | wc -l
}

dns_saw() {
	touch "$W/dns.log"
	jq -r .name "$W/dns.log" | grep -cE "(^|\.)$1\$"
}

wheel() {
	mkdir -p "$1/$2"
	python3 - "$1/$2" "$2" <<-'END'
	import sys, zipfile
	where, name = sys.argv[1:]
	info = name + "-1.0.dist-info/"
	wheel = name + "-1.0-py3-none-any.whl"
	with zipfile.ZipFile(where + "/" + wheel, "w") as z:
	    z.writestr(name + ".py", "answer = 42\n")
	    z.writestr(info + "METADATA",
	               "Metadata-Version: 2.1\nName: %s\nVersion: 1.0\n" % name)
	    z.writestr(info + "WHEEL",
	               "Wheel-Version: 1.0\nGenerator: test\n"
	               "Root-Is-Purelib: true\nTag: py3-none-any\n")
	    z.writestr(info + "RECORD", "")
	with open(where + "/index.html", "w") as page:
	    page.write("<a href=\"%s\">%s</a>\n" % (wheel, wheel))
	END
}
