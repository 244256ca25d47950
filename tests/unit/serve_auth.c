/* SPDX-License-Identifier: Apache-2.0 */
/* Who may do what: bindings, what a request needs, and what it may name. */
#include <errno.h>
#include <stdlib.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "base/hash.h"
#include "serve/auth.h"

static json_t *parse(const char *text)
{
	json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);

	if (!v)
		abort();
	return v;
}

/* --- bindings ------------------------------------------------------------ */

static void bindings(void)
{
	static const struct {
		const char *text;
		bool good;
	} cases[] = {
		{"[]", true},
		{"{}", false},
		{"[1]", false},
		{"[{\"uri\":\"dsec://client/a\",\"project\":\"root\","
		 "\"operations\":[\"all\"]}]",
		 true},
		{"[{\"uri\":\"dsec://client/a\",\"project\":\"root/rl\","
		 "\"operations\":[\"run\",\"exec\"],\"comment\":\"x\"}]",
		 true},
		{"[{\"uri\":\"dsec://client/a\",\"project\":\"root\","
		 "\"operations\":[]}]",
		 false},
		{"[{\"uri\":\"dsec://client/a\",\"project\":\"root\","
		 "\"operations\":[\"fly\"]}]",
		 false},
		{"[{\"uri\":\"dsec://client/a\",\"project\":\"root\"}]", false},
		{"[{\"uri\":\"dsec://client/a\",\"operations\":[\"run\"]}]",
		 false},
		{"[{\"uri\":\"dsec://client/a\",\"project\":\"rooted\","
		 "\"operations\":[\"run\"]}]",
		 false},
		{"[{\"uri\":\"dsec://client/a\",\"project\":\"root/../x\","
		 "\"operations\":[\"run\"]}]",
		 false},
		{"[{\"uri\":\"dsec://client/a\",\"project\":\"root/\","
		 "\"operations\":[\"run\"]}]",
		 false},
		{"[{\"uri\":\"dsec://control/a\",\"project\":\"root\","
		 "\"operations\":[\"run\"]}]",
		 false},
		{"[{\"uri\":\"dsec://client/\",\"project\":\"root\","
		 "\"operations\":[\"run\"]}]",
		 false},
		{"[{\"token_sha256\":\"abc\",\"project\":\"root\","
		 "\"operations\":[\"run\"]}]",
		 false},
		{"[{\"uri\":\"dsec://client/a\",\"project\":\"root\","
		 "\"operations\":[\"run\"],\"admin\":true}]",
		 false},
		{"[{\"uri\":\"dsec://client/a\",\"project\":\"root\","
		 "\"operations\":[\"run\"]},{\"uri\":\"dsec://client/a\","
		 "\"project\":\"root/x\",\"operations\":[\"all\"]}]",
		 false},
	};

	for (size_t i = 0; i < array_len(cases); i++) {
		auto_json json_t *v = parse(cases[i].text);
		struct auth *a = NULL;
		struct err e = {0};
		int r = auth_new(v, &a, &e);

		ok((r == 0) == cases[i].good &&
			   (r == 0 || !strcmp(e.code, "configuration")),
		   "bindings %zu: %s", i, e.msg);
		auth_free(a);
	}
}

static void who(void)
{
	char digest[HASH_SHA256_HEX + 1], other[HASH_SHA256_HEX + 1];
	auto_json json_t *v = NULL;
	struct auth *a = NULL, *none = NULL;
	const struct auth_who *w;

	hash_sha256("a token of sixteen", 18, digest);
	hash_sha256("another of sixteen", 18, other);
	v = json_pack("[{ss ss s[ss]}, {ss ss s[s]}]", "uri", "dsec://client/a",
		      "project", "root/rl", "operations", "run", "exec",
		      "token_sha256", digest, "project", "root", "operations",
		      "all");
	if (!v || auth_new(v, &a, NULL) < 0 || auth_new(NULL, &none, NULL) < 0)
		abort();
	w = auth_by_uri(a, "dsec://client/a");
	ok(w && w->ops == (AUTH_RUN | AUTH_EXEC) &&
		   !strcmp(w->project, "root/rl"),
	   "by identity");
	ok(!auth_by_uri(a, "dsec://client/b"), "nobody else");
	ok(!auth_by_uri(a, "dsec://client/"), "nor a part of it");
	ok(!auth_by_uri(none, "dsec://client/a"), "no binding, no access");
	w = auth_by_digest(a, digest);
	ok(w && w->ops == AUTH_ALL, "by token");
	ok(!auth_by_digest(a, other), "not by another");
	ok(!auth_by_digest(a, ""), "nor by none");
	ok(w && auth_find(a, w->uri) == w, "found by what it is called");
	ok(!auth_by_uri(a, w ? w->uri : ""), "which is no identity");
	ok(auth_of(a, "dsec://client/b", digest) == w,
	   "a token speaks for a certificate without a binding");
	w = auth_by_uri(a, "dsec://client/a");
	ok(auth_of(a, "dsec://client/a", digest) == w,
	   "but not for one that has its own");
	ok(!auth_of(a, "dsec://control/a", digest), "nor for a control's");
	auth_free(a);
	auth_free(none);
}

/* --- requests ------------------------------------------------------------ */

static void needs(void)
{
	static const struct {
		const char *req;
		unsigned op;
		const char *code;
	} cases[] = {
		{"{\"program\":\"run\"}", AUTH_RUN, NULL},
		{"{\"program\":\"exec\"}", AUTH_EXEC, NULL},
		{"{\"program\":\"exec\",\"op\":\"read\"}", AUTH_FILE, NULL},
		{"{\"program\":\"file\",\"op\":\"put\"}", AUTH_FILE, NULL},
		{"{\"program\":\"file\"}", 0, "bad_value"},
		{"{\"program\":\"file\",\"op\":\"exec\"}", 0, "bad_value"},
		{"{\"program\":\"exec\",\"op\":\"connect\"}", AUTH_CONNECT,
		 NULL},
		{"{\"program\":\"exec\",\"op\":\"hold\"}", 0, "bad_value"},
		{"{\"program\":\"exec\",\"op\":\" exec \"}", 0, "bad_value"},
		{"{\"program\":\"pause\",\"op\":\"stop\"}", AUTH_PAUSE, NULL},
		{"{\"program\":\"img\",\"op\":\"ls\"}", AUTH_IMG, NULL},
		{"{\"program\":\"img\",\"op\":\"pull\"}", AUTH_IMG_WRITE, NULL},
		{"{\"program\":\"img\",\"op\":\"import\"}", 0, "bad_value"},
		{"{\"program\":\"img\",\"op\":\"export\"}", 0, "bad_value"},
		{"{\"program\":\"admit\"}", 0, "bad_value"},
		{"{\"program\":\"admit\",\"op\":\"report\"}", AUTH_REPORT,
		 NULL},
		{"{\"program\":\"drain\"}", AUTH_DRAIN, NULL},
		{"{\"program\":\"sh\"}", 0, "unsupported"},
		{"{\"program\":\"../run\"}", 0, "unsupported"},
		{"{}", 0, "missing_field"},
		{"{\"program\":7}", 0, "missing_field"},
	};

	for (size_t i = 0; i < array_len(cases); i++) {
		auto_json json_t *req = parse(cases[i].req);
		enum auth_op op = 0;
		struct err e = {0};
		int r = auth_needs(req, &op, &e);

		ok(cases[i].code ? r < 0 && !strcmp(e.code, cases[i].code)
				 : r == 0 && op == cases[i].op,
		   "%s needs %s", cases[i].req, auth_word(op));
	}
}

static void within(void)
{
	ok(auth_within("root/rl", "root/rl"), "itself");
	ok(auth_within("root/rl/a", "root/rl"), "below");
	ok(!auth_within("root/rla", "root/rl"), "a longer name is another");
	ok(!auth_within("root", "root/rl"), "above is outside");
	ok(!auth_within("", "root"), "nothing is outside");
}

/* Of a caller who may root/rl alone: what becomes of the project, or why not.
 */
static const struct {
	const char *req, *project, *code;
} narrowed[] = {
	{"{\"program\":\"run\"}", "root/rl", NULL},
	{"{\"program\":\"run\",\"project\":\"root/rl/a\"}", "root/rl/a", NULL},
	{"{\"program\":\"run\",\"project\":\"root\"}", NULL, "permission"},
	{"{\"program\":\"run\",\"project\":\"root/rl/../x\"}", NULL,
	 "bad_value"},
	{"{\"program\":\"run\",\"project\":7}", NULL, "bad_value"},
	{"{\"program\":\"run\",\"project\":null}", "root/rl", NULL},
	{"{\"program\":\"run\",\"rm\":true}", NULL, "permission"},
	{"{\"program\":\"run\",\"image\":\"host\"}", "root/rl", NULL},
	{"{\"program\":\"run\",\"image\":\"root/py:3\"}", "root/rl", NULL},
	{"{\"program\":\"run\",\"image\":\"root/rl/x:1\"}", "root/rl", NULL},
	{"{\"program\":\"run\",\"image\":\"root/other/x:1\"}", NULL,
	 "permission"},
	{"{\"program\":\"run\",\"layers\":[\"root/py:3\","
	 "\"root/other/x:1\"]}",
	 NULL, "permission"},
	{"{\"program\":\"run\",\"snapshot\":\"root/other/s\"}", NULL,
	 "permission"},
	{"{\"program\":\"pause\",\"task\":\"t\"}", "root/rl", NULL},
	{"{\"program\":\"pause\"}", NULL, "missing_field"},
	{"{\"program\":\"pause\",\"project\":\"root/other\"}", NULL,
	 "permission"},
	{"{\"program\":\"pause\",\"sandbox\":\"a\"}", NULL, NULL},
	{"{\"program\":\"ps\"}", "root/rl", NULL},
	{"{\"program\":\"fork\",\"from\":\"root/other/s\"}", NULL,
	 "permission"},
	{"{\"program\":\"fork\",\"from\":\"s\"}", "root/rl", NULL},
	{"{\"program\":\"fork\",\"sandbox\":\"a\"}", NULL, NULL},
	{"{\"program\":\"exec\",\"op\":\"put\",\"sandbox\":\"a\","
	 "\"path\":\"/x\",\"source\":\"/etc/shadow\"}",
	 NULL, "permission"},
	{"{\"program\":\"file\",\"op\":\"get\",\"sandbox\":\"a\","
	 "\"path\":\"/x\",\"target\":\"/etc/cron.d/x\"}",
	 NULL, "permission"},
	{"{\"program\":\"img\",\"op\":\"ls\",\"store\":\"/x\"}", NULL,
	 "permission"},
	{"{\"program\":\"img\",\"op\":\"rm\",\"name\":\"root/py:3\"}", NULL,
	 "permission"},
	{"{\"program\":\"img\",\"op\":\"inspect\","
	 "\"name\":\"root/py:3\"}",
	 NULL, NULL},
	{"{\"program\":\"img\",\"op\":\"tag\",\"name\":\"root/py:3\","
	 "\"new\":\"root/py:4\"}",
	 NULL, "permission"},
	{"{\"program\":\"img\",\"op\":\"prune\"}", NULL, "permission"},
	{"{\"program\":\"img\",\"op\":\"ls\",\"match\":\"root/x\"}", NULL,
	 "permission"},
	/* No value is absent to one who looks and there to another. */
	{"{\"program\":\"ps\",\"sandbox\":null}", "root/rl", NULL},
	{"{\"program\":\"ps\",\"sandbox\":\"\"}", NULL, "bad_value"},
	{"{\"program\":\"ps\",\"sandbox\":5}", NULL, "bad_value"},
	{"{\"program\":\"ps\",\"sandbox\":[\"a\"]}", NULL, "bad_value"},
	{"{\"program\":\"pause\",\"sandbox\":null,\"task\":\"t\"}", "root/rl",
	 NULL},
	{"{\"program\":\"net\",\"sandbox\":\"\",\"task\":\"t\"}", NULL,
	 "bad_value"},
	{"{\"program\":\"fork\",\"sandbox\":null,\"op\":\"list\"}", "root/rl",
	 NULL},
	{"{\"program\":\"fork\",\"sandbox\":false,\"from\":\"s\","
	 "\"project\":\"root/x\"}",
	 NULL, "bad_value"},
	{"{\"program\":\"fork\",\"from\":[\"root/x/s\"]}", NULL, "bad_value"},
	{"{\"program\":\"pause\",\"task\":null}", NULL, "missing_field"},
	{"{\"program\":\"pause\",\"labels\":7}", NULL, "bad_value"},
	{"{\"program\":\"run\",\"image\":{\"a\":\"root/x/y\"}}", NULL,
	 "bad_value"},
	{"{\"program\":\"run\",\"layers\":[[\"root/x/y\"]]}", NULL,
	 "bad_value"},
	{"{\"program\":\"run\",\"project\":\"root/rl2\"}", NULL, "permission"},
	{"{\"program\":\"run\",\"key\":\"\"}", NULL, "bad_value"},
	{"{\"program\":\"img\",\"op\":\"ls\",\"digests\":true}", NULL,
	 "permission"},
	{"{\"program\":\"img\",\"op\":\"ls\",\"match\":\"root/rl*\"}", NULL,
	 "permission"},
	{"{\"program\":\"drain\"}", NULL, "permission"},
};

/* Whoever has it under way when bindings change. */
static void holds(void)
{
	static const struct {
		const char *req, *within;
		bool may;
	} cases[] = {
		{"{\"program\":\"exec\"}", "root/rl", true},
		{"{\"program\":\"exec\"}", "root/rl/a", true},
		{"{\"program\":\"exec\"}", "root", false},
		{"{\"program\":\"exec\"}", "root/rl2", false},
		{"{\"program\":\"pause\"}", "root/rl", false},
		{"{\"program\":\"ping\"}", "root/rl", true},
	};
	const struct auth_who who = {"dsec://client/a", "root/rl", AUTH_EXEC};

	for (size_t i = 0; i < array_len(cases); i++) {
		auto_json json_t *req = parse(cases[i].req);

		ok(auth_holds(&who, req, cases[i].within) == cases[i].may,
		   "%s in %s", cases[i].req, cases[i].within);
		ok(!auth_holds(NULL, req, cases[i].within), "... of nobody");
	}
}

static void narrow(void)
{

	for (size_t i = 0; i < array_len(narrowed); i++) {
		auto_json json_t *req = parse(narrowed[i].req);
		struct err e = {0};
		int r = auth_narrow(req, "root/rl", &e);

		if (narrowed[i].code)
			ok(r < 0 && !strcmp(e.code, narrowed[i].code), "%s: %s",
			   narrowed[i].req, narrowed[i].code);
		else
			ok(r == 0 && !strcmp(json_str(req, "project"),
					     narrowed[i].project
						     ? narrowed[i].project
						     : ""),
			   "%s (%s)", narrowed[i].req, e.msg);
	}
}

int main(void)
{
	bindings();
	who();
	needs();
	within();
	narrow();
	holds();
	return tap_done();
}
