/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tap.h"
#include "net/broker_conf.h"

static const char secret[] = "sk-test/0123+abcd=XYZ\"q";

/* Ways to write a secret down (field report 91). */
static void test_scan(void)
{
	/* As other tools write the secret. */
	static const struct {
		const char *text, *what;
	} found[] = {
		{"x=sk-test/0123+abcd=XYZ\"q!", "as it is"},
		{"c2stdGVzdC8wMTIzK2FiY2Q9WFlaInE=", "base64"},
		{"dXNlcjpzay10ZXN0LzAxMjMrYWJjZD1YWVoicQ==",
		 "base64 of user:secret"},
		{"YTpzay10ZXN0LzAxMjMrYWJjZD1YWVoicTpi",
		 "base64 of a:secret:b"},
		{"736b2d746573742f303132332b616263643d58595a2271", "hex"},
		{"736B2D746573742F303132332B616263643D58595A2271", "HEX"},
		{"sk-test%2f0123%2babcd%3dXYZ%22q", "percent"},
		{"sk-test%2F0123%2Babcd%3DXYZ%22q", "PERCENT"},
		{"sk-test/0123+abcd=XYZ\\\"q", "JSON"},
		{"sk-test\\/0123+abcd=XYZ\\\"q", "JSON with slashes"},
		{"sk-tsk-tesk-test/0123+abcd=XYZ\"q", "after false starts"},
	};
	static const char *const clean[] = {
		"sk-test/0123+abcd=XYZ\"", "sk-test/0123+abcd=XYZ\"Q", "", "s",
		"k-test/0123+abcd=XYZ\"q",
	};
	struct scan *s = calloc(1, sizeof(*s));
	struct scan_state st;
	struct vault v;
	struct err e;
	bool all;

	if (vault_init(&v, 1 << 20, &e) < 0) {
		skip("secrets", e.msg);
		free(s);
		return;
	}
	is_int(scan_add(s, secret, strlen(secret), &v, &e), 0, "a secret");
	is_int(scan_add(s, "short", 5, &v, &e), -EINVAL, "one too short");
	for (size_t i = 0; i < array_len(found); i++) {
		memset(&st, 0, sizeof(st));
		is_int(scan_feed(s, &st, found[i].text, strlen(found[i].text)),
		       -1, found[i].what);
		memset(&st, 0, sizeof(st));
		all = false;
		for (const char *p = found[i].text; *p; p++)
			all |= scan_feed(s, &st, p, 1) < 0;
		ok(all, "byte by byte");
	}
	for (size_t i = 0; i < array_len(clean); i++) {
		memset(&st, 0, sizeof(st));
		ok(scan_feed(s, &st, clean[i], strlen(clean[i])) >= 0,
		   "clean: %s", clean[i]);
	}
	memset(&st, 0, sizeof(st));
	is_int(scan_feed(s, &st, "data: sk-tes", 12), 6, "a beginning is held");
	is_int(scan_feed(s, &st, "x\n\n", 3), 0, "and let go");
	is_int(scan_feed(s, &st, "data: sk-", 9), 0, "a short one is not");
	vault_done(&v);
	free(s);
}

/* --- configuration ------------------------------------------------------- */

static char dir[] = "/tmp/broker-XXXXXX";
static char conf_path[64], key_path[64];

static void write_to(const char *path, const char *text, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);

	if (fd < 0 || fchmod(fd, mode) < 0 ||
	    fd_write_all(fd, text, strlen(text), NULL) < 0)
		abort();
	fd_close(fd);
}

/* An endpoint "a" with ${fields}. */
static int load(const char *fields, struct broker_conf *c, struct err *e)
{
	char text[2048];

	snprintf(text, sizeof(text), "{\"endpoints\":{\"a\":{%s}}}", fields);
	write_to(conf_path, text, 0644);
	return broker_conf_load(conf_path, c, e);
}

#define UP    "\"upstream\":\"https://api.example.com\""
#define PATHS ",\"paths\":[\"/v1/\",\"/one\"]"

static bool allows(const struct broker_conf *c, const char *method,
		   const char *path)
{
	return broker_allows(&c->endpoints[0],
			     (struct http_str){method, strlen(method)},
			     (struct http_str){path, strlen(path)});
}

static void test_allows(const struct broker_conf *c)
{
	static const char *const good[] = {
		"/v1/",	     "/v1/messages", "/v1/a?x=/../y",
		"/v1/a%20b", "/one",	     "/one?x",
	};
	static const char *const bad[] = {
		"/",	     "/v1",	     "/v2/a",	    "/one/",
		"/onex",     "/v1/../v2",    "/v1/..",	    "/v1/./a",
		"/v1//a",    "/v1/%2e%2e/a", "/v1/%2E./a",  "/v1/a%2fb",
		"/v1/a%5cb", "/v1/%252e",    "/v1/a;b=c/d", "/v1/%2",
		"//v1/a",    "/v1/.hidden",  "v1/a",	    "",
		"/v1/a%00",
	};

	for (size_t i = 0; i < array_len(good); i++)
		ok(allows(c, "GET", good[i]), "allowed: %s", good[i]);
	for (size_t i = 0; i < array_len(bad); i++)
		ok(!allows(c, "GET", bad[i]), "not allowed: %s", bad[i]);
	ok(!allows(c, "DELETE", "/v1/"), "another method");
	ok(!allows(c, "get", "/v1/"), "methods have their case");
}

static void test_conf(void)
{
	static const char *const bad[] = {
		&PATHS[1],
		UP,
		UP ",\"paths\":[]",
		UP ",\"paths\":[\"v1/\"]",
		UP ",\"paths\":[\"/a/../b\"]",
		UP PATHS ",\"extra\":1",
		UP PATHS ",\"methods\":[\"CONNECT\"]",
		UP PATHS ",\"headers\":{\"Host\":{\"value\":\"x\"}}",
		UP PATHS ",\"headers\":{\"content-length\":{\"value\":\"1\"}}",
		UP PATHS ",\"headers\":{\"a b\":{\"value\":\"x\"}}",
		UP PATHS ",\"headers\":{\"x\":{\"value\":\"a\\nb\"}}",
		UP PATHS ",\"headers\":{\"x\":{}}",
		UP PATHS ",\"headers\":{\"x\":{\"file\":\"/nowhere\"}}",
		"\"upstream\":\"http://api.example.com\"" PATHS,
		"\"upstream\":\"https://192.0.2.1\"" PATHS,
		"\"upstream\":\"https://a@b\"" PATHS,
		"\"upstream\":\"https://a.b:0\"" PATHS,
		"\"upstream\":\"https://a.b:443x\"" PATHS,
		"\"upstream\":\"https://a.b/x/\"" PATHS,
		"\"upstream\":\"https://a.b/x?y\"" PATHS,
	};
	char fields[512];
	struct broker_conf c;
	struct err e = {0};

	for (size_t i = 0; i < array_len(bad); i++)
		ok(load(bad[i], &c, &e) < 0 && e.code, "refused: %s", e.msg);
	snprintf(fields, sizeof(fields),
		 "\"upstream\":\"https://API.example.com:8443/x\"" PATHS
		 ",\"headers\":{\"Authorization\":{\"file\":\"%s\","
		 "\"prefix\":\"Bearer \"}}",
		 key_path);
	write_to(key_path, "0123456789\n", 0600);
	if (!ok(load(fields, &c, &e) == 0, "a good one %s", e.msg))
		return;
	is_str(c.endpoints[0].host, "api.example.com", "its host");
	is_int(c.endpoints[0].port, 8443, "its port");
	is_str(c.endpoints[0].base, "/x", "its path");
	is_str(c.endpoints[0].headers[0].value, "Bearer 0123456789",
	       "its secret, without the newline");
	ok(broker_replaces(&c.endpoints[0],
			   (struct http_str){"AUTHORIZATION", 13}),
	   "the header is ours");
	test_allows(&c);
	broker_conf_done(&c);
	write_to(key_path, "0123456789\n", 0640);
	ok(load(fields, &c, &e) < 0, "others may read it: %s", e.msg);
	write_to(key_path, "01234\n56789\n", 0600);
	ok(load(fields, &c, &e) < 0, "two lines: %s", e.msg);
	write_to(key_path, "0123", 0600);
	ok(load(fields, &c, &e) < 0, "too short: %s", e.msg);
}

/* --- handing over -------------------------------------------------------- */

static void test_hand(void)
{
	static const char *const eps[] = {"one", "two"};
	static const char *const odd[] = {"a\nb"};
	struct broker_conn c;
	int pair[2], fd, r;
	char text[8];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK,
		       0, pair) < 0)
		abort();
	is_int(broker_take(pair[1], &c, NULL), -EAGAIN, "nothing yet");
	fd = broker_hand(pair[0], "abcd", eps, 2, NULL);
	ok(fd >= 0, "a connection is handed over");
	is_int(broker_take(pair[1], &c, NULL), 1, "and taken");
	is_str(c.sandbox, "abcd", "its sandbox");
	ok(c.n == 2 && !strcmp(c.endpoints[1], "two"), "its endpoints");
	ok(write(fd, "hello", 5) == 5 && read(c.fd, text, 8) == 5,
	   "they are joined");
	fd_close(fd);
	fd_close(c.fd);
	is_int(broker_hand(pair[0], "abcd", odd, 1, NULL), -EINVAL, "no name");
	send(pair[0], "abcd\n", 5, 0);
	is_int(broker_take(pair[1], &c, NULL), -EBADMSG, "no descriptor");
	for (r = 0; r >= 0;) {
		r = broker_hand(pair[0], "abcd", eps, 2, NULL);
		if (r >= 0)
			fd_close(r);
	}
	is_int(r, -EAGAIN, "nobody takes them: not for ever");
	fd_close(pair[1]);
	is_int(broker_hand(pair[0], "abcd", eps, 2, NULL), -EPIPE, "gone");
	fd_close(pair[0]);
}

int main(void)
{
	if (!mkdtemp(dir))
		return 1;
	snprintf(conf_path, sizeof(conf_path), "%s/broker.json", dir);
	snprintf(key_path, sizeof(key_path), "%s/key", dir);
	test_scan();
	if (geteuid() == 0)
		test_conf();
	else
		skip("configuration", "its secrets belong to root");
	test_hand();
	unlink(conf_path);
	unlink(key_path);
	rmdir(dir);
	return tap_done();
}
