/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/net.h"
#include "box/spec.h"
#include "life/ctl.h"
#include "net.h"
#include "net/services.h"
#include "net/transit.h"
#include "net/uplink.h"
#include "work.h"

/* What needs no sandbox. */

static int open_services(const struct tree *t, struct netconf *conf,
			 struct services **ret, struct err *e)
{
	int r = netconf_load(t->config, conf, e);

	return r < 0 ? r : services_open(t->config, conf, ret, e);
}

/* --- compiling ----------------------------------------------------------- */

static int compiled(const json_t *rules, struct services *s, json_t *rec,
		    struct err *e)
{
	struct netpol_env env = services_env(s);
	auto_netpol struct netpol *p = NULL;
	const struct netpol *one;
	int r;

	r = netpol_compile(rules, &env, &p, e);
	if (r < 0)
		return r;
	one = p;
	r = json_object_set_new(rec, "network",
				json_string(netpol_strength_word(
					netpol_strength(&one, 1))));
	r |= json_object_set_new(rec, "hash", json_string(netpol_hash(p)));
	r |= json_object_set(rec, "compiled",
			     (json_t *)(uintptr_t)netpol_json(p));
	return r < 0 ? err_sys(e, ENOMEM, "record") : 0;
}

/* The network fields of a create request: what its launch would make of them.
 */
static int planned(const struct tree *t, json_t *req, json_t *rec,
		   struct err *e)
{
	static const char *const in[] = {"network_rules", "phases", "phase"};
	static const char *const out[] = {"network", "policy", "policies"};
	const char *key = json_unknown(req, in, array_len(in));
	auto_json json_t *spec = json_copy(req);
	int r;

	if (key)
		return err_set(e, -EBADMSG, "unknown_field",
			       "unknown field '%.64s'", key);
	r = spec ? spec_complete(spec, e) : err_sys(e, ENOMEM, "spec");
	if (r == 0)
		r = net_plan(t, spec, e);
	for (size_t i = 0; r == 0 && i < array_len(out); i++)
		if (json_object_get(spec, out[i]))
			json_object_set(rec, out[i],
					json_object_get(spec, out[i]));
	return r;
}

static int compile_one(const struct tree *t, struct services *s,
		       const char *text, size_t len, uint64_t line,
		       enum exit_status *status, struct err *e)
{
	auto_json json_t *rules = NULL, *rec = NULL, *req = NULL;
	struct err why = {0};
	int r;

	r = json_pack_or(&req, e, "{s:I}", "id", (json_int_t)line);
	if (r < 0)
		return r;
	rec = record_ok(req);
	r = json_parse(text, len, &rules, &why);
	if (r == 0)
		r = json_object_get(rules, "network_rules") ||
				    json_object_get(rules, "phases")
			    ? planned(t, rules, rec, &why)
			    : compiled(rules, s, rec, &why);
	if (r < 0) {
		*status = exit_join(*status, exit_of(&why));
		json_decref(rec);
		rec = record_error(req, &why);
	}
	return rec ? record_write(STDOUT_FILENO, rec, e)
		   : err_sys(e, ENOMEM, "record");
}

/* One document of many lines, or one in each line. */
static int compile_all(const struct tree *t, struct services *s, char *text,
		       size_t len, struct err *e)
{
	enum exit_status status = EXIT_OK;
	auto_json json_t *whole = NULL;
	char *end, *at = text;
	uint64_t line = 0;
	int r = 0;

	assert(text);
	if (json_parse(text, len, &whole, NULL) == 0) {
		r = compile_one(t, s, text, len, 1, &status, e);
		return r < 0 ? r : (int)status;
	}
	for (; r == 0 && at < text + len; at = end + 1) {
		end = strchrnul(at, '\n');
		line++;
		if (strspn(at, " \t\r") < (size_t)(end - at))
			r = compile_one(t, s, at, (size_t)(end - at), line,
					&status, e);
	}
	return r < 0 ? r : (int)status;
}

int mode_compile(const struct tree *t, struct err *e)
{
	auto_netconf struct netconf conf = {.file = NULL};
	auto_services struct services *s = NULL;
	auto_free char *text = NULL;
	size_t len = 0;
	int r;

	r = open_services(t, &conf, &s, e);
	if (r == 0)
		r = fd_read_all(STDIN_FILENO, JSON_LINE_MAX, &text, &len, e);
	return r < 0 ? r : compile_all(t, s, text, len, e);
}

/* --- semantic names ------------------------------------------------------ */

static int show_service(struct services *s, const char *name, struct err *e)
{
	struct netpol_env env = services_env(s);
	const json_t *allow = NULL, *deny;
	auto_json json_t *about = NULL;
	json_t *rec;
	int r;

	r = services_about(s, name, &about, e);
	if (r == 0)
		r = env.find(env.arg, name, &allow, &deny, e);
	if (r < 0)
		return r;
	rec = json_pack("{s:s, s:O, s:b}", "service", name, "rules", allow,
			"ok", 1);
	if (!rec || json_object_update_missing(rec, about) < 0) {
		json_decref(rec);
		return err_sys(e, ENOMEM, "record");
	}
	json_object_del(rec, "name");
	r = record_write(STDOUT_FILENO, rec, e);
	json_decref(rec);
	return r;
}

int mode_services(const struct tree *t, struct err *e)
{
	auto_netconf struct netconf conf = {.file = NULL};
	auto_services struct services *s = NULL;
	auto_json json_t *names = NULL;
	json_t *name;
	size_t i;
	int r;

	r = open_services(t, &conf, &s, e);
	if (r == 0)
		r = services_names(s, &names, e);
	json_array_foreach(names, i, name)
		if (r == 0)
			r = show_service(s, json_string_value(name), e);
	return r;
}

/* --- the uplink ---------------------------------------------------------- */

static int uplink_record(int transit, const struct uplink_conf *c,
			 bool forwarding_set, struct err *e)
{
	struct uplink_state st = {.up = false};
	auto_json json_t *rec = NULL;
	int r = 0;

	if (transit >= 0)
		r = uplink_show(transit, c, &st, e);
	if (r == 0)
		r = json_pack_or(&rec, e, "{s:b, s:b, s:b, s:b, s:b}", "up",
				 st.up, "link", st.link, "table", st.table,
				 "forwarding", st.forwarding, "ok", 1);
	if (r < 0)
		return r;
	if (forwarding_set)
		json_object_set_new(
			rec, "note",
			json_string("the node forwards IPv4 from now on "
				    "(net.ipv4.ip_forward was 0)"));
	return record_write(STDOUT_FILENO, rec, e);
}

int mode_uplink(const struct tree *t, const char *what, struct err *e)
{
	auto_netconf struct netconf conf = {.file = NULL};
	bool up = !strcmp(what, "up"), forwarding_set = false;
	auto_close int transit = -1;
	struct uplink_conf c;
	int r;

	if (!up && strcmp(what, "down") && strcmp(what, "show"))
		return err_set(e, -EINVAL, "usage",
			       "--uplink %s: not up, down or show", what);
	if (geteuid() != 0)
		return err_set(e, -EPERM, "not_root", "--uplink needs root");
	r = netconf_load(t->config, &conf, e);
	if (r < 0)
		return r;
	uplink_conf_of(&conf, &c);
	if (up) {
		r = uplink_clash(&c, e);
		if (r == 0)
			r = tree_make(t, e);
		transit = r < 0 ? -1
				: transit_make(t->run, HELPER_UID, HELPER_UID,
					       e);
		if (r < 0 || transit < 0)
			return r < 0 ? r : transit;
		r = uplink_up(transit, &c, &forwarding_set, e);
	} else {
		transit = transit_open(t->run, NULL);
		if (!strcmp(what, "down"))
			r = uplink_down(transit < 0 ? -1 : transit, e);
		/* With no sandbox in it, it is of no use either. */
		if (r == 0 && !strcmp(what, "down") && transit >= 0 &&
		    transit_slots(transit, NULL, 0, NULL) == 0) {
			r = transit_drop(t->run, e);
			fd_close(steal_fd(&transit));
		}
	}
	return r < 0 ? r : uplink_record(transit, &c, forwarding_set, e);
}
