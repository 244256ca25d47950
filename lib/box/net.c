/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "box/net.h"
#include "box/spec.h"
#include "net/services.h"

enum netpol_strength net_strength(const json_t *spec)
{
	int s = netpol_strength_of(json_str(spec, "network"));

	return s < 0 ? NETPOL_NONE : (enum netpol_strength)s;
}

/* Policies being compiled; [0] is the one that is in force at first. */
struct plan {
	const char *phase[SPEC_PHASES_MAX + 1];
	struct netpol *p[SPEC_PHASES_MAX + 1];
	size_t n;
};

static void plan_done(struct plan *pl)
{
	for (size_t i = 0; i < pl->n; i++)
		netpol_free(pl->p[i]);
}

static int compile(struct plan *pl, const char *phase, const json_t *rules,
		   const struct netpol_env *env, struct err *e)
{
	int r;

	if (pl->n > SPEC_PHASES_MAX)
		return err_set(e, -EBADMSG, "bad_value", "'phases': %d at most",
			       SPEC_PHASES_MAX);
	r = netpol_compile(rules, env, &pl->p[pl->n], e);
	if (r < 0 && phase)
		return err_wrap(e, r, "'phases': '%.64s'", phase);
	if (r < 0)
		return err_wrap(e, r, "'network_rules'");
	pl->phase[pl->n++] = phase;
	return 0;
}

static int compile_all(struct plan *pl, const json_t *spec,
		       const struct netpol_env *env, struct err *e)
{
	const json_t *phases = json_object_get(spec, "phases");
	const char *key, *first = json_str(spec, "phase");
	json_t *v;
	int r;

	if (*first && !json_object_get(phases, first))
		return err_set(e, -EBADMSG, "bad_value",
			       "'phase': '%.64s' is none of 'phases'", first);
	r = *first ? compile(pl, first, json_object_get(phases, first), env, e)
		   : compile(pl, NULL, json_object_get(spec, "network_rules"),
			     env, e);
	json_object_foreach((json_t *)(uintptr_t)phases, key, v) {
		if (r < 0)
			break;
		r = compile(pl, key, v, env, e);
	}
	/* Nobody will switch to them, but what is said is right. */
	if (r == 0 && *first) {
		r = compile(pl, NULL, json_object_get(spec, "network_rules"),
			    env, e);
		if (r == 0)
			netpol_free(pl->p[--pl->n]);
	}
	return r;
}

json_t *net_entry(const struct netpol *p)
{
	return json_pack("{s:O, s:s}", "compiled", netpol_json(p), "hash",
			 netpol_hash(p));
}

static int put(const struct plan *pl, json_t *spec, struct err *e)
{
	enum netpol_strength s = netpol_strength((const struct netpol *const *)
							 pl->p,
						 pl->n);
	auto_json json_t *policies = json_object();
	int r = 0;

	for (size_t i = 1; i < pl->n; i++)
		r |= json_object_set_new(policies, pl->phase[i],
					 net_entry(pl->p[i]));
	r |= json_object_set_new(spec, "network",
				 json_string(netpol_strength_word(s)));
	r |= json_object_set_new(spec, "policy", net_entry(pl->p[0]));
	if (pl->n > 1)
		r |= json_object_set(spec, "policies", policies);
	return r < 0 ? err_sys(e, ENOMEM, "network policy") : 0;
}

static int plan(const struct tree *t, json_t *spec, struct err *e)
{
	auto_netconf struct netconf conf = {0};
	auto_services struct services *services = NULL;
	struct netpol_env env;
	struct plan pl = {.n = 0};
	int r;

	r = netconf_load(t->config, &conf, e);
	if (r == 0)
		r = services_open(t->config, &conf, &services, e);
	if (r < 0)
		return r;
	env = services_env(services);
	env.limits = &conf.limits;
	r = compile_all(&pl, spec, &env, e);
	if (r == 0)
		r = put(&pl, spec, e);
	plan_done(&pl);
	return r;
}

int net_plan(const struct tree *t, json_t *spec, struct err *e)
{
	if (json_object_get(spec, "network_rules") ||
	    json_object_get(spec, "phases"))
		return plan(t, spec, e);
	if (json_object_get(spec, "phase"))
		return err_set(e, -EBADMSG, "bad_value",
			       "'phase': there are no 'phases'");
	return json_object_set_new(spec, "network", json_string("none")) < 0
		       ? err_sys(e, ENOMEM, "network policy")
		       : 0;
}
