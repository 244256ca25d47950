/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a target over files, without libFuzzer: the corpus, or one finding. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "fuzz.h"

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		auto_free char *text = NULL;
		struct err e = {0};
		size_t len = 0;

		if (fd_read_file(AT_FDCWD, argv[i], 64 << 20, &text, &len, &e) <
		    0) {
			fprintf(stderr, "%s\n", e.msg);
			return 1;
		}
		LLVMFuzzerTestOneInput((const uint8_t *)text, len);
	}
	return 0;
}
