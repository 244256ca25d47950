/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include "place_cmd.h"
int sim_run(const struct sim_conf *c, json_t **ret_rec, struct err *e)
{
	(void)c;
	(void)ret_rec;
	return err_set(e, -EOPNOTSUPP, "unsupported", "not yet");
}
