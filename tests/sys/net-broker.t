#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The credential broker by itself, between a client and an upstream of the
# test's own in a network namespace: what passes, what does not, what is never
# seen.
. "$(dirname "$0")/../tap.sh"
need_root
need_tools ip unshare openssl python3
tree_new
case $BIN in /*) ;; *) BIN=$PWD/$BIN ;; esac

mkdir "$T/broker"
unshare -n python3 "$(dirname "$0")/net_broker.py" \
	"${DSEC_LIBEXEC:-$BIN/../libexec/dsec}/dsec-broker" "$T/broker"
