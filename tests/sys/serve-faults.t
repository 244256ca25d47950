#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The cluster of serve-cluster.t with a node that is gone, answers that are lost
# and reports that are late (serve_faults.py).  FAULTS_BIG: more, and later.
CLUSTER_CREATES=0 CHAOS_TESTS=serve_faults
export CLUSTER_CREATES CHAOS_TESTS
exec "$(dirname "$0")/serve-cluster.t"
