/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../tap.h"
#include "net/fakename.h"

static char path[] = "/tmp/fakename-XXXXXX";

static int open_file(void)
{
	return open(path, O_RDWR | O_APPEND | O_CLOEXEC);
}

static struct fakename *load(void)
{
	struct fakename *f = NULL;

	if (fakename_new(open_file(), &f, NULL) < 0)
		abort();
	return f;
}

static uint32_t get(struct fakename *f, const char *name)
{
	struct in_addr in = {0};

	return fakename_get(f, name, false, &in) < 0 ? 0 : ntohl(in.s_addr);
}

static void test_keep(void)
{
	struct fakename *f = load();
	uint32_t a = get(f, "a.example"), b = get(f, "b.example");
	struct in_addr in = {htonl(a)};

	ok(a >= FAKENAME_NET + 256 && a < FAKENAME_NET + (1 << FAKENAME_BITS),
	   "an address of the network");
	ok(a != b, "another for another name");
	is_int(get(f, "a.example"), a, "the same for the same");
	is_str(fakename_name(f, in), "a.example", "and back");
	in.s_addr = htonl(FAKENAME_NET + 1);
	ok(!fakename_name(f, in), "ours is nobody's name");
	fakename_free(f);
	f = load();
	is_int((long long)fakename_count(f), 2, "two names after a restart");
	is_int(get(f, "b.example"), b, "with the same address");
	fakename_free(f);
}

static void test_damaged(void)
{
	static const char bad[] =
		"\nx\n198.18.9.9\n198.18.9.9 a b\n198.18.0.1 ours.example\n"
		"10.0.0.1 other.example\n198.18.9.9 bad!name\n"
		"198.18.9.9 a.example\n198.20.0.0 out.example\n"
		"198.18.9.9 good.example\n198.18.9.9 second.example\n"
		"198.18.9.10 tor";
	int fd = open_file();
	struct fakename *f;
	uint32_t t;

	fd_write_all(fd, bad, sizeof(bad) - 1, NULL);
	fd_close(fd);
	f = load();
	is_int((long long)fakename_count(f), 3, "one good line among bad ones");
	is_int(get(f, "good.example"), 0xc6120909, "is taken");
	t = get(f, "torn.example");
	fakename_free(f);
	f = load();
	is_int((long long)fakename_count(f), 4, "after a torn one it goes on");
	is_int(get(f, "torn.example"), t, "in a line of its own");
	fakename_free(f);
}

static void test_budget(void)
{
	struct fakename *f = load();
	struct in_addr in;
	char name[300];
	int n = 0, r = 0;

	while (r == 0 && n < 3000) {
		snprintf(name, sizeof(name), "n%d.example", n++);
		r = fakename_get(f, name, true, &in);
	}
	is_int(r, -ENOSPC, "the budget has an end");
	is_int(n - 1, FAKENAME_BUDGET, "after so many names");
	is_int(fakename_get(f, "n1.example", true, &in), 0,
	       "those it knows go on");
	fakename_free(f);
	f = load();
	is_int(fakename_cost(f), FAKENAME_BUDGET, "a restart gives nothing");
	is_int(fakename_get(f, "more.example", true, &in), -ENOSPC, "back");
	for (n = 0, r = 0; r == 0 && n < 5000; n++) {
		snprintf(name, sizeof(name), "exact%d.example", n);
		r = fakename_get(f, name, false, &in);
		if (r == 0 && (!fakename_name(f, in) ||
			       strcmp(fakename_name(f, in), name) != 0))
			ok(false, "%s", name);
	}
	is_int(r, -ENOSPC, "names in full have an end");
	is_int((long long)fakename_count(f), FAKENAME_MAX, "too");
	fakename_free(f);
	f = load();
	is_int((long long)fakename_count(f), FAKENAME_MAX, "all are kept");
	fakename_free(f);

	if (fakename_new(-1, &f, NULL) < 0)
		abort();
	memset(name, 'x', 33);
	strcpy(name + 33, ".example");
	is_int(fakename_get(f, name, true, &in), 0, "a long label");
	is_int(fakename_cost(f), FAKENAME_LONG_COST, "costs more");
	fakename_free(f);
}

/* A file that takes no more: nothing changes, and later it goes on. */
static void test_full(void)
{
	struct rlimit old, lim;
	struct fakename *f;
	struct in_addr in;
	uint32_t a;

	if (truncate(path, 0) < 0)
		abort();
	f = load();
	a = get(f, "a.example");
	getrlimit(RLIMIT_FSIZE, &old);
	lim = old;
	lim.rlim_cur = 30;
	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &lim);
	is_int(fakename_get(f, "b.example", true, &in), -EIO, "a full disk");
	is_int(fakename_cost(f), 0, "costs nothing");
	is_int((long long)fakename_count(f), 1, "nothing is remembered");
	setrlimit(RLIMIT_FSIZE, &old);
	is_int(fakename_get(f, "b.example", true, &in), 0, "then it goes on");
	fakename_free(f);
	f = load();
	is_int(get(f, "a.example"), a, "the first is there");
	is_int(get(f, "b.example"), ntohl(in.s_addr), "the second too");
	fakename_free(f);
}

int main(void)
{
	fd_close(mkstemp(path));
	test_keep();
	test_damaged();
	test_budget();
	test_full();
	unlink(path);
	return tap_done();
}
