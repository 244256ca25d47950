/* SPDX-License-Identifier: Apache-2.0 */
/* A ClientHello: in one piece and in pieces of the first byte's length it is
 * the same. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "fuzz.h"
#include "net/hello.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct hello whole = {0}, parts = {0};
	char canon[NETNAME_MAX + 1];
	size_t piece, n;
	int r, s = 0;

	if (size < 2)
		return 0;
	piece = data[0] ? data[0] : 1;
	data++;
	size--;
	r = hello_feed(&whole, data, size);
	for (size_t at = 0; s == 0 && at < size; at += n) {
		n = size - at < piece ? size - at : piece;
		s = hello_feed(&parts, data + at, n);
	}
	assert(r == s && (r == 0 || r == 1 || r == -EPROTO));
	assert(r != -EPROTO || whole.why);
	if (r != 1)
		return 0;
	assert(!strcmp(whole.name, parts.name) && whole.ech == parts.ech);
	assert(!netname_canon(whole.name, strlen(whole.name), canon) &&
	       !strcmp(canon, whole.name));
	return 0;
}
