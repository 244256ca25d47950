/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "item.h"

int op_tag(struct img_ctx *c, const json_t *req, json_t *answer, struct err *e)
{
	char text[IMG_NAME_MAX + 1];
	const struct store *s;
	struct img_name name;
	struct digest d;
	int r;

	r = img_name_parse(json_str(req, "new"), &name, e);
	if (r < 0)
		return err_wrap(e, r, "'new'");
	if (name.by_digest)
		return err_set(e, -EINVAL, "bad_value",
			       "'new' is a digest: a tag is a name");
	r = img_store(c, false, &s, e);
	if (r == 0)
		r = img_resolve(c, s, json_str(req, "name"), NULL, &d, e);
	if (r == 0)
		r = store_tag(s, &name, &d, e);
	if (r < 0)
		return r;
	if (json_object_set_new(answer, "name",
				json_string(img_name_str(&name, text))) < 0 ||
	    json_object_set_new(answer, "digest", json_digest(&d)) < 0)
		return err_sys(e, ENOMEM, "answer");
	return 0;
}
