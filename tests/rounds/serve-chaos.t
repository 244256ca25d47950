#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/sys/serve-cluster.t with 500 creates, 4,000 calls while everything is
# killed over and over, and reports that are up to 30 s late.
: "${CLUSTER_CREATES:=500}" "${CHAOS_CALLS:=4000}" "${FAULTS_BIG:=1}"
: "${SDK_SECONDS:=1800}" "${CHAOS_TESTS:=serve_chaos serve_faults}"
export CHAOS_TESTS CLUSTER_CREATES CHAOS_CALLS FAULTS_BIG SDK_SECONDS
exec "$(dirname "$0")/../sys/serve-cluster.t"
