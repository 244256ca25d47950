/* SPDX-License-Identifier: Apache-2.0 */
/* writer MIB: so much to standard output, in writes of 128 KiB. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char block[128 << 10];

int main(int argc, char **argv)
{
	long left = argc > 1 ? strtol(argv[1], NULL, 10) << 20 : 0;
	ssize_t n;

	memset(block, 'x', sizeof(block));
	while (left > 0) {
		n = write(1, block,
			  left < (long)sizeof(block) ? (size_t)left
						     : sizeof(block));
		if (n < 0)
			return 1;
		left -= n;
	}
	return 0;
}
