/* SPDX-License-Identifier: Apache-2.0 */
#include "net/transit.h"

#include <errno.h>

char *transit_path(const char *run)
{
	(void)run;
	return NULL;
}

int transit_open(const char *run, struct err *e)
{
	(void)run;
	return err_set(e, -ENOSYS, "unsupported",
		       "transit_open: not there yet");
}

int transit_make(const char *run, uint32_t uid, uint32_t gid, struct err *e)
{
	(void)run;
	(void)uid;
	(void)gid;
	return err_set(e, -ENOSYS, "unsupported",
		       "transit_make: not there yet");
}

int transit_drop(const char *run, struct err *e)
{
	(void)run;
	return err_set(e, -ENOSYS, "unsupported",
		       "transit_drop: not there yet");
}

int transit_socks_make(int netns, struct transit_socks *ret, struct err *e)
{
	(void)netns;
	(void)ret;
	return err_set(e, -ENOSYS, "unsupported",
		       "transit_socks_make: not there yet");
}

void transit_socks_done(struct transit_socks *s)
{
	(void)s;
}

int transit_address(uint32_t pool, unsigned prefix, uint32_t slot,
		    uint32_t *ret, struct err *e)
{
	(void)pool;
	(void)prefix;
	(void)slot;
	(void)ret;
	return err_set(e, -ENOSYS, "unsupported",
		       "transit_address: not there yet");
}

void transit_name(uint32_t slot, char ret[16])
{
	(void)slot;
	(void)ret;
}

void transit_mac(uint32_t slot, uint8_t ret[6])
{
	(void)slot;
	(void)ret;
}

int transit_attach(int netns, int inside, const struct transit_link *link,
		   struct err *e)
{
	(void)netns;
	(void)inside;
	(void)link;
	return err_set(e, -ENOSYS, "unsupported",
		       "transit_attach: not there yet");
}

int transit_limit(int netns, int inside, uint32_t slot, unsigned mbit,
		  struct err *e)
{
	(void)netns;
	(void)inside;
	(void)slot;
	(void)mbit;
	return err_set(e, -ENOSYS, "unsupported",
		       "transit_limit: not there yet");
}

int transit_poke(int netns, int inside, struct err *e)
{
	(void)netns;
	(void)inside;
	return err_set(e, -ENOSYS, "unsupported",
		       "transit_poke: not there yet");
}

int transit_detach(int netns, uint32_t slot, struct err *e)
{
	(void)netns;
	(void)slot;
	return err_set(e, -ENOSYS, "unsupported",
		       "transit_detach: not there yet");
}

int transit_slots(int netns, uint32_t *ret, size_t max, struct err *e)
{
	(void)netns;
	(void)ret;
	(void)max;
	return err_set(e, -ENOSYS, "unsupported",
		       "transit_slots: not there yet");
}
