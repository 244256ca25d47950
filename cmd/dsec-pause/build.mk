# SPDX-License-Identifier: Apache-2.0
# Started before and after each step of a rollout: no time for a dynamic linker.
dsec-pause_STATIC := 1
