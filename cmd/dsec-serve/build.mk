# SPDX-License-Identifier: Apache-2.0
# Dynamic: the one program that speaks TLS with other machines.
dsec-serve_LIBS := -lssl -lcrypto
