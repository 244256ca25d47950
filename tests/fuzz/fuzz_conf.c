/* SPDX-License-Identifier: Apache-2.0 */
/* serve.json: what is taken can be served by. */
#include <assert.h>
#include <string.h>

#include "fuzz.h"
#include "serve/auth.h"
#include "serve/conf.h"

static void check_role(const struct serveconf_role *r)
{
	if (!r->nlisten)
		return; /* it is not to run here */
	assert(r->nlisten <= SERVECONF_LISTEN_MAX && *r->cert && *r->key);
	for (size_t i = 0; i < r->nlisten; i++)
		assert(strchr(r->listen[i], ':'));
	assert(!r->metrics || !strncmp(r->metrics, "127.", 4) ||
	       !strncmp(r->metrics, "[::1]:", 6));
}

static void check_peers(const struct serveconf_peers *p)
{
	for (size_t i = 0; i < p->n; i++) {
		assert(tls_name_ok(p->list[i].name));
		assert(strchr(p->list[i].address, ':'));
		assert(!i || strcmp(p->list[i - 1].name, p->list[i].name) < 0);
	}
}

/* Nobody has more than a subtree and operations that there are. */
static void check_clients(const json_t *clients)
{
	struct auth *a = NULL;
	const json_t *one;
	size_t i;

	assert(auth_new(clients, &a, NULL) == 0);
	json_array_foreach(clients, i, one) {
		const struct auth_who *w = auth_by_uri(a, json_str(one, "uri"));

		if (!w)
			w = auth_by_digest(a, json_str(one, "token_sha256"));
		assert(w && auth_project_ok(w->project));
		assert(w->ops && !(w->ops & ~(unsigned)AUTH_ALL));
	}
	auth_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct serveconf c = {0};

	if (serveconf_parse((const char *)data, size, &c, NULL) < 0) {
		assert(!c.obj);
		return 0;
	}
	assert(tls_name_ok(c.name) && *c.ca && *c.crl);
	check_role(&c.node);
	check_role(&c.control);
	check_peers(&c.nodes);
	check_peers(&c.peers);
	check_clients(c.clients);
	serveconf_done(&c);
	return 0;
}
