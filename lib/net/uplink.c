/* SPDX-License-Identifier: Apache-2.0 */
#include "net/uplink.h"

#include <errno.h>

void uplink_conf_init(struct uplink_conf *c)
{
	(void)c;
}

int uplink_up(int transit, const struct uplink_conf *c,
	      bool *ret_set_forwarding, struct err *e)
{
	(void)transit;
	(void)c;
	(void)ret_set_forwarding;
	return err_set(e, -ENOSYS, "unsupported", "uplink_up: not there yet");
}

int uplink_down(int transit, struct err *e)
{
	(void)transit;
	return err_set(e, -ENOSYS, "unsupported", "uplink_down: not there yet");
}

int uplink_show(int transit, const struct uplink_conf *c,
		struct uplink_state *ret, struct err *e)
{
	(void)transit;
	(void)c;
	(void)ret;
	return err_set(e, -ENOSYS, "unsupported", "uplink_show: not there yet");
}

int uplink_clash(const struct uplink_conf *c, struct err *e)
{
	(void)c;
	return err_set(e, -ENOSYS, "unsupported",
		       "uplink_clash: not there yet");
}

int uplink_has(int transit, struct err *e)
{
	(void)transit;
	return err_set(e, -ENOSYS, "unsupported", "uplink_has: not there yet");
}
