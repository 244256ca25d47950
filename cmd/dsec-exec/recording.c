/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "recording.h"

int recording_pump(const struct output_stream *rec, uint64_t total,
		   struct pump *p, uint64_t *ret_lost, struct err *e)
{
	struct output_parts parts;
	int r = output_parts(rec, 0, total, &parts, e);

	if (r < 0)
		return r;
	for (unsigned i = 0; i < parts.n; i++)
		pump_add(p, steal_fd(&parts.part[i].fd),
			 (off_t)parts.part[i].at, parts.part[i].len);
	*ret_lost = parts.lost;
	return 0;
}
