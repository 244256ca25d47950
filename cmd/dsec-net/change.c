/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/net.h"
#include "box/spec.h"
#include "net/transit.h"
#include "sys/netns.h"
#include "work.h"

/*
 * Another policy for a sandbox.  spec.json comes first: what the helper has in
 * force is never less than what is stored, for long; whoever dies in between
 * leaves a policy that is put in force when the helper or the sandbox starts
 * again.  A refusal puts the old one back.
 */

/* --- what it will be ----------------------------------------------------- */

static int set_phase(json_t *spec, const char *phase, struct err *e)
{
	const json_t *policies = json_object_get(spec, "policies");
	json_t *entry = json_object_get(policies, phase);
	char have[200] = "";
	const char *name;
	size_t len = 0;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)policies, name, v)
		if (len < sizeof(have))
			len += (size_t)snprintf(have + len, sizeof(have) - len,
						"%s%s", len ? ", " : "", name);
	if (!entry)
		return err_set(e, -EINVAL, "bad_value",
			       "'phase': '%.64s' is none of the sandbox's "
			       "phases (%s)",
			       phase, *have ? have : "it was given none");
	if (json_object_set(spec, "policy", entry) < 0 ||
	    json_object_set_new(spec, "phase", json_string(phase)) < 0)
		return err_sys(e, ENOMEM, "policy");
	return 0;
}

/* ${rules} become the sandbox's own, and hold. */
static int set_rules(struct work *w, json_t *spec, json_t *rules,
		     const char *what, struct err *e)
{
	auto_netpol struct netpol *p = NULL;
	struct netpol_env env;
	int r;

	r = work_conf(w, e);
	if (r < 0)
		return r;
	env = services_env(w->services);
	r = netpol_compile(rules, &env, &p, e);
	if (r < 0)
		return err_wrap(e, r, "'%s'", what);
	json_object_del(spec, "phase");
	if (json_object_set(spec, "network_rules", rules) < 0 ||
	    json_object_set_new(spec, "policy", net_entry(p)) < 0)
		return err_sys(e, ENOMEM, "policy");
	return 0;
}

static int next_spec(struct work *w, json_t *spec, const json_t *req,
		     struct err *e)
{
	json_t *replace = json_object_get(req, "replace");
	json_t *merge = json_object_get(req, "merge");
	auto_json json_t *rules = NULL;
	int r;

	if (json_object_get(req, "phase"))
		return set_phase(spec, json_str(req, "phase"), e);
	if (replace)
		return set_rules(w, spec, replace, "replace", e);
	if (!merge) {
		rules = json_object();
		return set_rules(w, spec, rules, "deny_all", e);
	}
	r = netpol_merge(rules_of(spec), merge, &rules, e);
	return r < 0 ? err_wrap(e, r, "'merge'")
		     : set_rules(w, spec, rules, "merge", e);
}

/* --- may it be ----------------------------------------------------------- */

struct loaded {
	struct netpol **v;
	size_t n;
};

static void loaded_done(struct loaded *l)
{
	for (size_t i = 0; i < l->n; i++)
		netpol_free(l->v[i]);
	free(l->v);
}

static int load_one(struct loaded *l, const json_t *entry, struct err *e)
{
	int r = netpol_load(json_object_get(entry, "compiled"), &l->v[l->n], e);

	if (r == 0)
		l->n++;
	return r;
}

/* The policy of ${spec}, first, and those it can switch to. */
static int load_all(struct loaded *l, const json_t *spec, struct err *e)
{
	const json_t *policies = json_object_get(spec, "policies");
	const char *name;
	json_t *entry;
	int r;

	l->v = calloc(json_object_size(policies) + 1, sizeof(struct netpol *));
	if (!l->v)
		return err_sys(e, ENOMEM, "policies");
	r = load_one(l, json_object_get(spec, "policy"), e);
	json_object_foreach((json_t *)(uintptr_t)policies, name, entry)
		if (r == 0)
			r = load_one(l, entry, e);
	return r;
}

/* A sandbox has the strength it was launched with, for life. */
static int check_strength(const json_t *spec, struct err *e)
{
	enum netpol_strength have = net_strength(spec), need;
	struct loaded l = {.v = NULL};
	int r = load_all(&l, spec, e);

	need = r == 0 ? netpol_strength((const struct netpol *const *)l.v, l.n)
		      : NETPOL_NONE;
	loaded_done(&l);
	if (r < 0)
		return r;
	if (need <= have)
		return 0;
	return err_set(e, -EOPNOTSUPP, "unsupported",
		       "the policy needs strength '%s' and the sandbox was "
		       "launched with '%s': declare it there, among the phases",
		       netpol_strength_word(need), netpol_strength_word(have));
}

/* --- putting it in force ------------------------------------------------- */

/* Does the helper listen wherever the policy of ${spec} wants it? */
static int has_listeners(struct work *w, const char *id, const json_t *spec,
			 struct err *e)
{
	uint16_t have[HELPER_PORTS_MAX], want[NETPOL_LISTEN_MAX];
	auto_netpol struct netpol *p = NULL;
	const struct netpol *one;
	size_t n = 0, at = 0;
	int r;

	r = helper_ports(w->helper, id, have, &n, e);
	if (r == 0)
		r = netpol_load(json_object_get(json_object_get(spec, "policy"),
						"compiled"),
				&p, e);
	if (r < 0)
		return r;
	one = p;
	r = netpol_listen(&one, 1, want);
	for (int i = 0; i < r; i++) {
		while (at < n && have[at] < want[i])
			at++;
		if (at == n || have[at] != want[i])
			return 0;
	}
	return 1;
}

static int tell_helper(struct work *w, const char *id, const json_t *spec,
		       unsigned *ret_cut, struct err *e)
{
	const json_t *policy = json_object_get(spec, "policy");
	int r = work_helper(w, e);

	if (r == 0 && net_strength(spec) == NETPOL_NAMES) {
		r = has_listeners(w, id, spec, e);
		if (r == 0)
			r = -ENOENT; /* attach makes them */
		else if (r > 0)
			r = 0;
	}
	if (r == 0)
		r = helper_policy(w->helper, id,
				  json_object_get(policy, "compiled"),
				  json_str(policy, "hash"), ret_cut, e);
	return r;
}

static bool is_lost(const struct err *why)
{
	return why->code && !strcmp(why->code, "helper_lost");
}

static int put_in_force(struct work *w, const char *id, const json_t *spec,
			unsigned *ret_cut, struct err *e)
{
	struct err why = {0};
	pid_t pid;
	int r;

	*ret_cut = 0;
	if (net_strength(spec) == NETPOL_NONE)
		return 0;
	r = tell_helper(w, id, spec, ret_cut, &why);
	if (r >= 0)
		return 0;
	if (is_lost(&why))
		work_lost(w);
	/* It is not there, does not know the sandbox, or lacks sockets. */
	if (is_lost(&why) || r == -ENOENT) {
		pid = work_pid(w, id, e);
		return pid < 0 ? pid : net_attach(w->tree, id, pid, spec, e);
	}
	if (e)
		*e = why;
	return r;
}

static unsigned bandwidth(const json_t *spec)
{
	const json_t *policy = json_object_get(spec, "policy");
	const json_t *compiled = json_object_get(policy, "compiled");

	return (unsigned)json_int(json_object_get(compiled, "limits"),
				  "bandwidth_mbit", 0);
}

/*
 * Of a routed sandbox, what root alone can do: its link's speed, and
 * connections that only wait are made to say something, so that those which are
 * denied now end now.  The rules hold already.
 */
static int settle_link(struct work *w, const char *id, const json_t *was,
		       const json_t *spec, struct err *e)
{
	auto_close int transit = -1, inside = -1;
	uint32_t slot = (uint32_t)json_int(spec, "slot", 0);
	pid_t pid;
	int r = 0;

	if (net_strength(spec) != NETPOL_ROUTED)
		return 0;
	pid = work_pid(w, id, e);
	if (pid < 0)
		return pid;
	transit = transit_open(w->tree->run, e);
	if (transit < 0)
		return transit;
	inside = netns_of(pid, e);
	if (inside < 0)
		return inside;
	if (bandwidth(was) != bandwidth(spec))
		r = transit_limit(transit, inside, slot, bandwidth(spec), e);
	if (r == 0)
		r = transit_poke(transit, inside, e);
	return r < 0 ? r : 0;
}

static void put_back(struct work *w, const char *id, const json_t *spec,
		     struct err *e)
{
	struct err why = {0};
	int r = e->r;

	/* Whoever reads it next must find what is in force. */
	if (spec_write(w->tree, id, spec, &why) < 0)
		err_wrap(e, r,
			 "the old policy holds, but its file could not "
			 "be put back (%s)",
			 why.msg);
}

static int answer(json_t *rec, const json_t *was, const json_t *spec,
		  unsigned cut, struct err *e)
{
	const json_t *policy = json_object_get(spec, "policy");
	const char *hash = json_str(policy, "hash");
	const char *old = json_str(json_object_get(was, "policy"), "hash");
	int r = 0;

	if (json_object_get(spec, "phase"))
		r |= json_object_set(rec, "phase",
				     json_object_get(spec, "phase"));
	r |= json_object_set_new(rec, "hash", json_string(hash));
	r |= json_object_set_new(rec, "network",
				 json_string(netpol_strength_word(
					 net_strength(spec))));
	r |= json_object_set_new(rec, "changed",
				 json_boolean(strcmp(hash, old) != 0));
	r |= json_object_set_new(rec, "cut", json_integer(cut));
	return r < 0 ? err_sys(e, ENOMEM, "record") : 0;
}

int change(struct work *w, const char *id, const json_t *req, json_t *rec,
	   struct err *e)
{
	auto_json json_t *was = NULL, *spec = NULL;
	auto_close int lock = -1;
	unsigned cut = 0;
	int r;

	/* Before the lock: a resume takes it itself. */
	r = work_awake(w, id, e);
	if (r == 0)
		r = net_lock(w->tree, id, &lock, e);
	if (r == 0)
		r = work_spec(w, id, &was, e);
	if (r < 0)
		return r;
	spec = json_deep_copy(was);
	if (!spec)
		return err_sys(e, ENOMEM, "spec");
	r = next_spec(w, spec, req, e);
	if (r == 0)
		r = check_strength(spec, e);
	if (r == 0)
		r = spec_write(w->tree, id, spec, e);
	if (r < 0)
		return r;
	r = put_in_force(w, id, spec, &cut, e);
	if (r < 0) {
		put_back(w, id, was, e);
		return r;
	}
	r = settle_link(w, id, was, spec, e);
	if (r < 0)
		return err_wrap(e, r, "the policy is in force");
	return answer(rec, was, spec, cut, e);
}
