# SPDX-License-Identifier: Apache-2.0
# Started for each command: no time for a dynamic linker.
dsec-exec_STATIC := 1
