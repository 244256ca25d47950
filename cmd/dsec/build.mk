# SPDX-License-Identifier: Apache-2.0
# It only becomes another program: the cheaper the better.
dsec_STATIC := 1
