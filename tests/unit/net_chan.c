/* SPDX-License-Identifier: Apache-2.0 */
/* Lines with descriptors: whole, in pieces, several at once, and wrong ones. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../tap.h"
#include "net/chan.h"

static int open_null(void)
{
	return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void test_many(void)
{
	auto_json json_t *line = NULL;
	struct chan a = {0}, b = {0};
	int s[2], fds[HELPER_FDS_MAX], r = 0;
	struct err e = {0};
	json_t *names;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) < 0)
		abort();
	a.fd = s[0];
	b.fd = s[1];
	line = json_pack("{s:s, s:[]}", "op", "x", "fds");
	names = json_object_get(line, "fds");
	for (int i = 0; i < HELPER_FDS_MAX; i++) {
		char name[8];

		snprintf(name, sizeof(name), "f%d", i);
		json_array_append_new(names, json_string(name));
		fds[i] = open_null();
	}
	/* Two at once, with a line without any between them. */
	is_int(chan_send(&a, line, fds, HELPER_FDS_MAX, &e), 0, "68 of them");
	if (write(s[0], "{\"op\":\"y\"}\n", 11) != 11)
		abort();
	is_int(chan_send(&a, line, fds, HELPER_FDS_MAX, &e), 0, "once more");
	for (int i = 0; i < HELPER_FDS_MAX; i++)
		fd_close(fds[i]);
	for (int n = 0; n < 3 && r >= 0;) {
		auto_chan_msg struct chan_msg m = {0};

		r = chan_next(&b, &m, &e);
		if (r == 0)
			r = chan_read(&b, &e);
		else if (r > 0)
			is_int((long long)m.nfds, n++ == 1 ? 0 : HELPER_FDS_MAX,
			       "each line has its own");
		if (m.nfds > 0) {
			int fd = chan_take(&m, "f67");

			ok(fd >= 0 && chan_take(&m, "f67") < 0, "taken once");
			fd_close(fd);
		}
	}
	ok(r > 0, "no error");
	chan_done(&a);
	chan_done(&b);
	fd_close(s[0]);
	fd_close(s[1]);
}

static int read_of(const char *text, bool with_fd)
{
	struct chan c = {0};
	struct err e = {0};
	int s[2], fd = open_null(), r = 1;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) < 0)
		abort();
	c.fd = s[1];
	if (fd_send(s[0], text, strlen(text), &fd, with_fd, 0) < 0)
		abort();
	fd_close(fd);
	fd_close(s[0]);
	while (r > 0) {
		auto_chan_msg struct chan_msg m = {0};

		r = chan_next(&c, &m, &e);
		if (r == 0)
			r = chan_read(&c, &e);
	}
	chan_done(&c);
	fd_close(s[1]);
	return r;
}

/* How many lines one read gave, and what it came to; ${stop}: the body ends it
 * at that line. */
static int lines_of(const char *text, bool end, int stop, int *ret_n)
{
	auto_chan_msg struct chan_msg m = {0};
	struct chan c = {0};
	struct err e = {0};
	int s[2], r;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) < 0 ||
	    fcntl(s[1], F_SETFL, O_NONBLOCK) < 0)
		abort();
	c.fd = s[1];
	if (write(s[0], text, strlen(text)) != (ssize_t)strlen(text))
		abort();
	if (end)
		fd_close(s[0]);
	*ret_n = 0;
	r = chan_read(&c, &e);
	while (chan_lines(&c, &m, &r, &e))
		if (++*ret_n == stop)
			r = -EIO;
	if (r == -EAGAIN && end) {
		r = chan_read(&c, &e);
		ok(!chan_lines(&c, &m, &r, &e), "no line at the end");
	}
	chan_done(&c);
	if (!end)
		fd_close(s[0]);
	fd_close(s[1]);
	return r;
}

static void test_lines(void)
{
	int n;

	is_int(lines_of("{}\n{}\n{}\n{", false, 0, &n), -EAGAIN,
	       "three lines and a piece: wait for more");
	is_int(n, 3, "each was given");
	is_int(lines_of("{}\n{}\n", true, 0, &n), 0, "two and the end");
	is_int(n, 2, "each was given");
	is_int(lines_of("{}\n{}\n{}\n", false, 2, &n), -EIO,
	       "what the body says ends it");
	is_int(n, 2, "there");
	is_int(lines_of("{}\n!\n{}\n", false, 0, &n), -EBADMSG,
	       "so does a bad one");
	is_int(n, 1, "after those before it");
	is_int(lines_of("", true, 0, &n), 0, "nothing but the end");
}

/* Three lines of two descriptors each, where there is room for three: how many
 * of each line came, one digit a line, and 9 where it says that some are lost.
 */
static int lossy(bool on)
{
	auto_json json_t *line = json_pack("{s:[s, s]}", "fds", "a", "b");
	struct rlimit lim, few;
	struct chan a = {0}, b = {.lossy = on};
	struct err e = {0};
	int s[2], fds[2], r = 1, got = 0;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) < 0 ||
	    getrlimit(RLIMIT_NOFILE, &lim) < 0)
		abort();
	a.fd = s[0];
	b.fd = s[1];
	fds[0] = open_null();
	fds[1] = open_null();
	for (int i = 0; i < 3; i++)
		if (chan_send(&a, line, fds, 2, &e) < 0)
			abort();
	fd_close(s[0]);
	few = (struct rlimit){(rlim_t)fds[1] + 3, lim.rlim_max};
	if (setrlimit(RLIMIT_NOFILE, &few) < 0)
		abort();
	while (r > 0) {
		auto_chan_msg struct chan_msg m = {0};

		r = chan_next(&b, &m, &e);
		if (r == 0)
			r = chan_read(&b, &e);
		else if (r > 0)
			got = got * 100 + (int)m.nfds * 10 + (m.lost ? 9 : 0);
		m.nfds = 0; /* they stay, so that there is no room */
	}
	(void)setrlimit(RLIMIT_NOFILE, &lim);
	chan_done(&b);
	for (int fd = s[0]; fd < (int)few.rlim_cur; fd++)
		(void)close(fd);
	return r < 0 ? r : got;
}

int main(void)
{
	test_many();
	is_int(lossy(true), 201909, "a line that lost some says so");
	is_int(lossy(false), -EMFILE, "or is an error");
	test_lines();
	is_int(read_of("{\"op\":\"a\"}\n", false), 0, "a line and the end");
	is_int(read_of("{\"op\":\"a\"", false), 0, "half a line and the end");
	is_int(read_of("garbage\n", false), -EBADMSG, "garbage");
	is_int(read_of("[1]\n", true), -EBADMSG, "no object");
	is_int(read_of("{\"fds\":[\"a\",\"b\"]}\n", true), -EBADMSG,
	       "more named than came");
	is_int(read_of("{\"op\":\"a\"}\n", true), 0, "one that nobody names");
	return tap_done();
}
