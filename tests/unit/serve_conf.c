/* SPDX-License-Identifier: Apache-2.0 */
#include "../tap.h"
#include "serve/conf.h"

static void test_good(void)
{
	static const char text[] =
		"{\"v\":1,\"name\":\"n1\","
		"\"node\":{\"listen\":[\"127.0.0.1:7443\",\"[::1]:7443\"],"
		"\"metrics\":\"127.0.0.1:9100\",\"user\":\"dsec-serve\"},"
		"\"control\":{\"listen\":[\"0.0.0.0:7440\"],"
		"\"cert\":\"c.pem\",\"nodes\":["
		"{\"name\":\"n2\",\"address\":\"node-2.example:7443\"},"
		"{\"name\":\"n1\",\"address\":\"10.0.0.1:7443\"}]},"
		"\"clients\":[{\"uri\":\"dsec://client/a\",\"project\":"
		"\"root/rl\",\"operations\":[\"run\"]}],"
		"\"limits\":{\"requests\":7,\"idle_ms\":1000}}";
	static const char lost[] = "{\"name\":\"n1\",\"limits\":{"
				   "\"lost_ms\":5000}}";
	struct serveconf c = {0};
	struct err e = {0};

	if (!ok(serveconf_parse(text, strlen(text), &c, &e) == 0,
		"a whole one is read"))
		printf("# %s\n", e.msg);
	is_int((long long)c.node.nlisten, 2, "its addresses");
	is_str(c.node.cert, "node.pem", "what is left out has its name");
	is_str(c.control.cert, "c.pem", "what is not, that");
	is_str(c.nodes.list[0].name, "n1", "nodes are sorted");
	is_str(c.user, "dsec-serve", "the user");
	is_int(c.server_limits.requests, 7, "a limit");
	is_int(c.conn_limits.idle_ms, 1000, "a time");
	is_int(c.lost_ms, 120000, "nodes are lost after two minutes");
	is_int((long long)json_array_size(c.clients), 1, "a binding");
	serveconf_done(&c);
	ok(serveconf_parse(lost, strlen(lost), &c, &e) == 0 &&
		   c.lost_ms == 5000,
	   "or as it says");
	serveconf_done(&c);
}

static void test_bad(void)
{
	static const struct {
		const char *text, *want;
	} t[] = {
		{"[]", "not a JSON object"},
		{"{}", "'name' is missing"},
		{"{\"name\":\"../x\"}", "'name' is not a name"},
		{"{\"name\":\"n\",\"v\":2}", "'v' is not 1"},
		{"{\"name\":\"n\",\"v\":\"2\"}", "'v' is not 1"},
		{"{\"name\":\"n\",\"nodes\":[]}", "unknown key 'nodes'"},
		{"{\"name\":\"n\",\"node\":{}}", "'node.listen' is not a list"},
		{"{\"name\":\"n\",\"node\":{\"listen\":[\"1.2.3.4\"]}}",
		 "'node.listen[0]' is not ADDRESS:PORT"},
		{"{\"name\":\"n\",\"node\":{\"listen\":[\"a:65536\"]}}",
		 "'node.listen[0]' is not ADDRESS:PORT"},
		{"{\"name\":\"n\",\"node\":{\"listen\":[\"a:1\"],"
		 "\"metrics\":\"0.0.0.0:9\"}}",
		 "not an address of the loopback"},
		{"{\"name\":\"n\",\"node\":{\"listen\":[\"a:1\"],"
		 "\"metrics\":\"127.example:9\"}}",
		 "not an address of the loopback"},
		{"{\"name\":\"n\",\"node\":{\"listen\":[\"a:1\"],\"x\":1}}",
		 "unknown key 'x' in 'node'"},
		{"{\"name\":\"n\",\"control\":{\"listen\":[\"a:1\"],"
		 "\"nodes\":[{\"name\":\"a\"}]}}",
		 "'control.nodes[0].address' is not HOST:PORT"},
		{"{\"name\":\"n\",\"control\":{\"listen\":[\"a:1\"],"
		 "\"peers\":[{\"name\":\"a\",\"address\":\"a:1\"},"
		 "{\"name\":\"a\",\"address\":\"b:1\"}]}}",
		 "has 'a' twice"},
		{"{\"name\":\"n\",\"limits\":{\"requests\":0}}",
		 "'limits.requests' is not 1 to"},
		{"{\"name\":\"n\",\"limits\":{\"lost_ms\":999}}",
		 "'limits.lost_ms' is not 1000 to"},
		{"{\"name\":\"n\",\"clients\":[{\"uri\":\"x\"}]}",
		 "clients[0]"},
		{"{\"name\":\"n\",\"name\":\"m\"}", "duplicate"},
	};

	for (size_t i = 0; i < array_len(t); i++) {
		struct serveconf c = {0};
		struct err e = {0};
		int r = serveconf_parse(t[i].text, strlen(t[i].text), &c, &e);

		if (!ok(r < 0 && strstr(e.msg, t[i].want) &&
				!strcmp(e.code, "configuration"),
			"%s", t[i].want))
			printf("# %d %s %s\n", r, e.code ? e.code : "", e.msg);
	}
}

int main(void)
{
	test_good();
	test_bad();
	return tap_done();
}
