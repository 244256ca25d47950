/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "box/net.h"
#include "work.h"

/* --- where to ------------------------------------------------------------ */

static int bad(struct err *e, const char *text)
{
	return err_set(e, -EINVAL, "bad_value",
		       "'explain': '%.128s' is not NAME:PORT, ADDRESS:PORT or "
		       "[V6ADDRESS]:PORT, with /udp or not, or ADDRESS/icmp",
		       text);
}

static int parse_port(const char *text, uint16_t *ret)
{
	unsigned n = 0;
	size_t len = strspn(text, "0123456789");

	if (len < 1 || len > 5 || text[len] || text[0] == '0')
		return -EINVAL;
	for (size_t i = 0; i < len; i++)
		n = n * 10 + (unsigned)(text[i] - '0');
	if (n > 65535)
		return -EINVAL;
	*ret = (uint16_t)n;
	return 0;
}

/* "HOST:PORT", "[V6]:PORT"; ${text} is cut up. */
static int parse_host(char *text, struct attempt *to)
{
	char *colon = strrchr(text, ':'), *host = text;
	size_t len;

	if (to->proto != NETPOL_ICMP) {
		if (!colon || parse_port(colon + 1, &to->port) < 0)
			return -EINVAL;
		*colon = '\0';
	}
	len = strlen(host);
	if (len > 2 && host[0] == '[' && host[len - 1] == ']') {
		host[len - 1] = '\0';
		return netaddr_parse(host + 1, &to->addr);
	}
	if (to->proto != NETPOL_ICMP && strchr(host, ':'))
		return -EINVAL;
	if (netaddr_parse(host, &to->addr) == 0)
		return 0;
	return netname_canon(host, len, to->name);
}

static int parse(const char *text, struct attempt *to, struct err *e)
{
	char buf[NETNAME_MAX + 32], *slash;
	int proto = NETPOL_TCP;

	memset(to, 0, sizeof(*to));
	if (snprintf(buf, sizeof(buf), "%s", text) >= (int)sizeof(buf))
		return bad(e, text);
	slash = strchr(buf, '/');
	if (slash) {
		*slash = '\0';
		proto = netpol_proto_of(slash + 1);
		if (proto < 0)
			return bad(e, text);
	}
	to->proto = (enum netpol_proto)proto;
	return parse_host(buf, to) < 0 ? bad(e, text) : 0;
}

/* --- the verdict --------------------------------------------------------- */

/* No policy can allow it. */
static const char *always(struct netdeny *d, enum netpol_strength s,
			  const struct attempt *to)
{
	if (s == NETPOL_NONE)
		return "no rule of any phase allows anything: there is no way "
		       "out";
	if (to->name[0])
		return NULL;
	if (s == NETPOL_NAMES)
		return "the sandbox has no link: names alone can be reached";
	return netdeny_denies(d, &to->addr, to->proto, to->port);
}

static int put_verdict(const struct netpol *p, struct netdeny *d,
		       enum netpol_strength s, const struct attempt *to,
		       json_t *rec, struct err *e)
{
	const char *why_not = always(d, s, to);
	struct netpol_why why = {.word = ""};
	char text[1024];
	int r = 0;

	if (why_not) {
		snprintf(text, sizeof(text), "always denied: %s", why_not);
	} else {
		if (to->name[0])
			netpol_allows_name(p, to->name, to->proto, to->port,
					   &why);
		else
			netpol_allows_addr(p, &to->addr, to->proto, to->port,
					   &why);
		netpol_why_text(&why, text, sizeof(text));
	}
	r |= json_object_set_new(rec, "allowed", json_boolean(why.allowed));
	r |= json_object_set_new(rec, "by", json_string(text));
	if (why.rule)
		r |= json_object_set_new(rec, "rule",
					 netpol_rule_json(why.rule));
	if (!why.allowed)
		r |= json_object_set_new(rec, "why",
					 json_string(why_not ? "private"
							     : why.word));
	return r < 0 ? err_sys(e, ENOMEM, "record") : 0;
}

/* --- the attempt --------------------------------------------------------- */

/* An address by itself may be open because an allowed name led there. */
static bool may_be_learned(const json_t *spec, const struct netpol *p,
			   const struct attempt *to, const json_t *rec)
{
	return net_strength(spec) == NETPOL_ROUTED && !to->name[0] &&
	       netpol_has_domains(p) && !json_object_get(rec, "rule") &&
	       !strcmp(json_str(rec, "why"), "address");
}

static int put_attempt(struct work *w, const char *id, const struct attempt *to,
		       bool learned, json_t *rec, struct err *e)
{
	bool allowed = json_flag(rec, "allowed"), got;
	json_t *tried = NULL;
	const char *outcome;
	pid_t pid;
	int r;

	pid = work_pid(w, id, e);
	if (pid < 0)
		return pid;
	r = attempt(pid, to, &tried, e);
	if (r < 0)
		return r;
	outcome = json_str(tried, "outcome");
	got = !strcmp(outcome, "connected") || !strcmp(outcome, "answered");
	r = json_object_set_new(rec, "attempt", tried);
	/* That nobody answers a datagram or an echo request says nothing. */
	if (strcmp(outcome, "silent") && !(got && learned))
		r |= json_object_set_new(rec, "agrees",
					 json_boolean(got == allowed));
	if (got && learned)
		r |= json_object_set_new(
			rec, "note",
			json_string("a name that is allowed has led to this "
				    "address"));
	if (allowed && !got)
		r |= json_object_set_new(
			rec, "note",
			json_string("the rules allow it: nobody answers there, "
				    "or it resolves to what is always denied "
				    "(see --denied)"));
	return r < 0 ? err_sys(e, ENOMEM, "record") : 0;
}

int explain(struct work *w, const char *id, const json_t *req, json_t *rec,
	    struct err *e)
{
	auto_netdeny struct netdeny *d = NULL;
	auto_netpol struct netpol *p = NULL;
	auto_json json_t *spec = NULL;
	struct attempt to;
	int r;

	r = parse(json_str(req, "explain"), &to, e);
	if (r == 0)
		r = work_awake(w, id, e);
	if (r == 0)
		r = work_spec(w, id, &spec, e);
	if (r == 0)
		r = policy_of(spec, &p, e);
	if (r == 0)
		r = node_deny(w, &d, e);
	if (r < 0)
		return r;
	json_object_set_new(rec, "to", json_string(json_str(req, "explain")));
	if (json_object_get(spec, "phase"))
		json_object_set(rec, "phase", json_object_get(spec, "phase"));
	r = put_verdict(p, d, net_strength(spec), &to, rec, e);
	if (r == 0)
		r = put_attempt(w, id, &to, may_be_learned(spec, p, &to, rec),
				rec, e);
	return r;
}
