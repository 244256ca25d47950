/* SPDX-License-Identifier: Apache-2.0 */
/* A log that somebody may have written by hand. */
#include <assert.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "serve/audit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_close int fd = memfd_create("audit", MFD_CLOEXEC);
	struct audit_state s = {0};

	if (fd < 0 || write(fd, data, size) != (ssize_t)size ||
	    lseek(fd, 0, SEEK_SET) < 0 || audit_verify(fd, &s, NULL) < 0)
		return 0;
	assert(!s.bad_line || s.why);
	assert(!s.lines || (s.first && s.last == s.first + s.lines - 1));
	assert(s.bad_line || s.torn <= size);
	return 0;
}
