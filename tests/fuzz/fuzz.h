/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* What every target defines; see README.md. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
