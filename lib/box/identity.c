/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>

#include "base/cleanup.h"
#include "box/identity.h"

int identity_merge(const struct tree *t, bool *ret, struct err *e)
{
	auto_json json_t *node = NULL;
	auto_close int dir = -1;
	int r;

	*ret = false;
	dir = open(t->config, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0 && errno == ENOENT)
		return 0;
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", t->config);
	r = json_read_file(dir, "node.json", &node, e);
	if (r == -ENOENT)
		return 0;
	*ret = r == 0 && json_flag(node, "single_tenant");
	return r;
}

int identity_take(const struct identity *i, json_t **ret_rec, struct err *e)
{
	return json_pack_or(ret_rec, e, "{s:[], s:[], s:s, s:[]}", "reset",
			    "not_reset", "memory", i->merge ? "ksm" : "private",
			    "warnings");
}
