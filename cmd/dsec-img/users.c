/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "box/claim.h"
#include "life/uses.h"
#include "item.h"

int claims_hold(struct img_ctx *c, int *ret_fd, bool *ret_unseen, struct err *e)
{
	struct err why = {0};
	int r;

	*ret_unseen = false;
	r = claim_hold(&c->tree, ret_fd, &why);
	if (r == 0)
		return 1;
	/* No run tree: no sandbox.  Not ours to see: leases must do. */
	if (r == -ENOENT)
		return 0;
	if (r == -EACCES || r == -EPERM) {
		*ret_unseen = true;
		return 0;
	}
	if (e)
		*e = why;
	return r;
}

int claims_unseen(bool unseen, json_t *answer)
{
	return unseen ? json_object_set_new(answer, "sandboxes_seen",
					    json_false())
		      : 0;
}

static int add_layers(void *arg, const char *type, const char *id,
		      const char *name, const struct digest *layers, size_t n,
		      struct err *e)
{
	(void)type;
	(void)id;
	(void)name;
	return dset_add(arg, layers, n, e);
}

int claims_in_use(struct img_ctx *c, struct dset *set, struct err *e)
{
	return uses_layers(&c->tree, add_layers, set, e);
}
