/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/cleanup.h"
#include "net/helper.h"
#include "ps.h"

/* All of them in one request, however many are listed: what they count runs on
 * meanwhile in any case. */
void ps_net_open(struct app *app)
{
	auto_helper struct helper *h = NULL;
	auto_json json_t *rec = NULL;

	if (helper_open(app->tree.run, 0, &h, NULL) == 0 &&
	    helper_stats(h, NULL, &rec, NULL) == 0)
		app->net = json_incref(json_object_get(rec, "sandboxes"));
}

/* dsec-net --show has all of it. */
static void shorten(json_t *rec)
{
	static const char *const long_ones[] = {"policy", "policies", "phases"};
	json_t *hash = json_object_get(json_object_get(rec, "policy"), "hash");

	if (hash)
		json_object_set(rec, "network_hash", hash);
	for (size_t i = 0; i < array_len(long_ones); i++)
		json_object_del(rec, long_ones[i]);
}

void ps_net(const struct app *app, json_t *rec)
{
	json_t *stats = json_object_get(app->net, json_str(rec, "sandbox"));

	shorten(rec);
	if (stats)
		json_object_set(rec, "network_stats", stats);
}
