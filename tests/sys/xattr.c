/* SPDX-License-Identifier: Apache-2.0 */
/* xattr PATH NAME: the attribute in hex, or the error's number. */
#include <errno.h>
#include <stdio.h>
#include <sys/xattr.h>

int main(int argc, char **argv)
{
	unsigned char value[4096];
	ssize_t n;

	if (argc != 3)
		return 64;
	n = lgetxattr(argv[1], argv[2], value, sizeof(value));
	if (n < 0) {
		printf("error %d\n", errno);
		return 1;
	}
	for (ssize_t i = 0; i < n; i++)
		printf("%02x", value[i]);
	printf("\n");
	return 0;
}
