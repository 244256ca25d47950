/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "../tap.h"
#include "box/publish.h"

static const struct {
	const char *word, *address;
	int port, inner; /* inner 0: refused */
} cases[] = {
	{"8080", "127.0.0.1", 0, 8080},
	{"9000:80", "127.0.0.1", 9000, 80},
	{"0:80", "127.0.0.1", 0, 80},
	{"0.0.0.0:9000:80", "0.0.0.0", 9000, 80},
	{"[::1]:9000:80", "::1", 9000, 80},
	{"[::]:0:65535", "::", 0, 65535},
	{"", "", 0, 0},
	{":", "", 0, 0},
	{":80", "", 0, 0},
	{"0", "", 0, 0},
	{"65536", "", 0, 0},
	{"080000", "", 0, 0},
	{"-1", "", 0, 0},
	{"80x", "", 0, 0},
	{" 80", "", 0, 0},
	{"9000:", "", 0, 0},
	{"9000:0", "", 0, 0},
	{"70000:80", "", 0, 0},
	{"::1:9000:80", "", 0, 0},
	{"[127.0.0.1]:9000:80", "", 0, 0},
	{"[]:9000:80", "", 0, 0},
	{":9000:80", "", 0, 0},
	{"localhost:9000:80", "", 0, 0},
	{"127.1:9000:80", "", 0, 0},
	{"80/tcp", "", 0, 0},
};

static void parse(void)
{
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct publish p = {.inner = 0};
		struct err e = {0};
		int r = publish_parse(cases[i].word, &p, &e);

		if (!cases[i].inner)
			ok(r == -EBADMSG && !strcmp(e.code, "bad_value"),
			   "'%s' is refused", cases[i].word);
		else
			ok(r == 0 && !strcmp(p.address, cases[i].address) &&
				   p.port == cases[i].port &&
				   p.inner == cases[i].inner,
			   "'%s'", cases[i].word);
	}
}

static void listening(void)
{
	struct publish p, again, back;
	struct err e = {0};
	json_t *j;
	int fd, fd2;

	ok(publish_parse("8080", &p, &e) == 0, "a port");
	fd = publish_listen(&p, &e);
	ok(fd >= 0 && p.port > 0, "it listens, on a port that is told");
	again = p;
	fd2 = publish_listen(&again, &e);
	ok(fd2 == -EADDRINUSE && !strcmp(e.code, "busy"),
	   "a port in use is busy");
	j = publish_json(&p);
	ok(publish_of(j, &back) == 0 && back.port == p.port &&
		   back.inner == 8080 && !strcmp(back.address, p.address),
	   "written down and read again");
	json_decref(j);
	close(fd);
	snprintf(p.address, sizeof(p.address), "203.0.113.77");
	fd = publish_listen(&p, &e);
	ok(fd == -EADDRNOTAVAIL && !strcmp(e.code, "bad_value"),
	   "an address of somebody else's");
}

int main(void)
{
	parse();
	listening();
	return tap_done();
}
