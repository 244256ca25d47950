/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "box/inside.h"

void inside_plain(char *dst, size_t size, const char *text, size_t len)
{
	size_t n = 0;

	for (size_t i = 0; i < len && n + 1 < size; i++)
		dst[n++] = text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
	dst[n] = '\0';
}

int inside_survey(const struct inside_ask *ask, struct inside *ret,
		  struct err *e)
{
	(void)ask;
	(void)ret;
	return err_set(e, -ENOSYS, "unsupported", "survey");
}

void inside_done(struct inside *in)
{
	free(in->procs);
	json_decref(in->leaves);
	json_decref(in->stopped);
	json_decref(in->externals);
	json_decref(in->warnings);
	json_decref(in->watched);
	memset(in, 0, sizeof(*in));
}
