/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "life/ctl.h"
#include "../tap.h"

/*
 * A supervisor that is not one: a child answers the first line of one
 * connection with what the case says, as hostile as it likes.
 */
static char root[] = "/tmp/dsec-ctl-XXXXXX";
static struct tree tree;
static const char id[] = "abcdefghijklmnopqrst";

struct reply {
	const char *text; /* NULL: the end */
	size_t nfds;	  /* descriptors on its first byte */
};

static int make_path(char *buf, const char *fmt, const char *a)
{
	return tree_path(buf, NULL, fmt, root, a);
}

static void set_up(void)
{
	static char run[64], lib[64];
	char path[PATH_MAX];

	if (!mkdtemp(root))
		abort();
	snprintf(run, sizeof(run), "%s/run", root);
	snprintf(lib, sizeof(lib), "%s/lib", root);
	tree = (struct tree){run, lib, "dsec-test", "/etc/dsec"};
	if (tree_make(&tree, NULL) < 0 ||
	    make_path(path, "%s/run/sb/%s", id) < 0 || mkdir(path, 0700) < 0)
		abort();
}

static int sock_path(char *buf)
{
	return make_path(buf, "%s/run/sb/%s/ctl.sock", id);
}

static void serve(int listener, const struct reply *replies)
{
	char line[4096];
	int fds[8], sock, null = open("/dev/null", O_RDONLY);
	struct pollfd p = {.fd = listener, .events = POLLIN};

	for (size_t i = 0; i < 8; i++)
		fds[i] = null;
	poll(&p, 1, 5000);
	sock = accept(listener, NULL, NULL);
	if (read(sock, line, sizeof(line)) <= 0)
		_exit(1);
	for (; replies->text; replies++)
		if (fd_send(sock, replies->text, strlen(replies->text), fds,
			    replies->nfds, 0) < 0)
			_exit(1);
	_exit(0);
}

static pid_t start(const struct reply *replies)
{
	char path[PATH_MAX];
	int listener;
	pid_t pid;

	sock_path(path);
	unlink(path);
	listener = fd_unix_listen(path, NULL);
	if (listener < 0)
		abort();
	pid = fork();
	if (pid == 0)
		serve(listener, replies);
	fd_close(listener);
	return pid;
}

/* Send a request and read until the final record; the code of the failure. */
static const char *talk(unsigned flags, size_t *ret_fds, struct err *e)
{
	auto_json json_t *req = json_pack("{s:s}", "op", "exec");
	struct ctl *c = NULL;
	int r;

	*ret_fds = 0;
	memset(e, 0, sizeof(*e));
	r = ctl_open(&tree, id, flags, &c, e);
	if (r == 0)
		r = ctl_send(c, req, NULL, 0, e);
	while (r == 0) {
		auto_ctl_record struct ctl_record rec = {0};

		r = ctl_wait(c, clock_ms() + 5000, &rec, e);
		if (r < 0)
			break;
		for (size_t i = 0; i < rec.nfds; i++)
			*ret_fds += rec.fds[i] >= 0;
		if (rec.final)
			break;
	}
	ctl_free(c);
	return r < 0 ? e->code : "ok";
}

static void test_replies(void)
{
	static const struct {
		const char *what, *want;
		size_t fds;
		struct reply replies[4];
	} cases[] = {
		{"event with descriptors, then the record",
		 "ok",
		 2,
		 {{"{\"event\":\"started\",\"fds\":[\"stdout\",\"stderr\"]}\n",
		   2},
		  {"{\"ok\":true}\n", 0}}},
		{"a record in three pieces",
		 "ok",
		 0,
		 {{"{\"o", 0}, {"k\":tr", 0}, {"ue}\n", 0}}},
		{"two records in one write",
		 "ok",
		 0,
		 {{"{\"event\":\"x\"}\n{\"ok\":true}\n", 0}}},
		{"a record that ends in the middle",
		 "supervisor_lost",
		 0,
		 {{"{\"ok\":tru", 0}}},
		{"nothing at all", "supervisor_lost", 0, {{NULL, 0}}},
		{"events but no record",
		 "supervisor_lost",
		 0,
		 {{"{\"event\":\"started\"}\n", 0}}},
		{"not JSON", "bad_record", 0, {{"hello\n", 0}}},
		{"an array", "bad_record", 0, {{"[1]\n", 0}}},
		{"more names than descriptors",
		 "internal",
		 0,
		 {{"{\"event\":\"started\",\"fds\":[\"a\",\"b\"]}\n", 1}}},
		{"fds that is no list",
		 "internal",
		 0,
		 {{"{\"event\":\"started\",\"fds\":7}\n", 1}}},
		{"descriptors that nobody names",
		 "ok",
		 0,
		 {{"{\"ok\":true}\n", 3}}},
	};
	struct err e;
	size_t fds;

	for (size_t i = 0; i < array_len(cases); i++)
		for (unsigned flags = 0; flags <= CTL_NONBLOCK; flags++) {
			pid_t pid = start(cases[i].replies);

			is_str(talk(flags, &fds, &e), cases[i].want,
			       cases[i].what);
			is_int((long long)fds, (long long)cases[i].fds,
			       "descriptors");
			waitpid(pid, NULL, 0);
		}
}

static void test_too_long(void)
{
	char *big = malloc(JSON_LINE_MAX + 64);
	struct reply replies[] = {{big, 0}, {NULL, 0}};
	struct err e;
	size_t fds;
	pid_t pid;

	memset(big, 'x', JSON_LINE_MAX + 32);
	strcpy(big + JSON_LINE_MAX + 32, "\n");
	pid = start(replies);
	is_str(talk(0, &fds, &e), "too_large", "a record over 1 MiB");
	waitpid(pid, NULL, 0);
	free(big);
}

static void test_names(void)
{
	auto_ctl_record struct ctl_record rec = {0};

	rec.rec = json_pack("{s:[s,s,i]}", "fds", "stdout", "stdout", 7);
	rec.nfds = 3;
	for (size_t i = 0; i < 3; i++)
		rec.fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	is_int(ctl_take_fd(&rec, "stdin"), -1, "a name that is not there");
	for (int i = 0; i < 2; i++) {
		auto_close int fd = ctl_take_fd(&rec, "stdout");

		ok(fd >= 0, "a name that is there %d", i);
	}
	is_int(ctl_take_fd(&rec, "stdout"), -1, "taken already");
}

static const char *try_open(const char *sandbox, struct err *e)
{
	struct ctl *c = NULL;
	int r;

	memset(e, 0, sizeof(*e));
	r = ctl_open(&tree, sandbox, 0, &c, e);
	ctl_free(c);
	return r < 0 ? e->code : "ok";
}

static void write_file(const char *fmt, const char *text)
{
	char path[PATH_MAX];
	int fd;

	make_path(path, fmt, id);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || fd_write_all(fd, text, strlen(text), NULL) < 0)
		abort();
	fd_close(fd);
}

static void test_absent(void)
{
	char path[PATH_MAX], claim[PATH_MAX];
	struct err e;
	int fd;

	sock_path(path);
	is_str(try_open(id, &e), "supervisor_lost", "nobody listens");
	ok(e.infra, "which is the node's fault");
	unlink(path);
	is_str(try_open(id, &e), "sandbox_unknown", "no socket, no claim");
	is_str(try_open("nosuch", &e), "sandbox_unknown", "no such name");
	is_str(try_open("../x", &e), "sandbox_unknown", "no name at all");
	is_str(try_open("", &e), "sandbox_unknown", "an empty name");

	write_file("%s/run/sb/%s/claim.json", "{\"kind\":\"one-shot\"}\n");
	is_str(try_open(id, &e), "supervisor_lost", "a claim nobody holds");
	make_path(claim, "%s/run/sb/%s/claim.json", id);
	fd = open(claim, O_RDWR | O_CLOEXEC);
	if (flock(fd, LOCK_EX) < 0)
		abort();
	is_str(try_open(id, &e), "one_shot", "a one-shot that lives");
	write_file("%s/run/sb/%s/claim.json", "{\"kind\":\"supervised\"}\n");
	is_str(try_open(id, &e), "busy", "one that is being made");
	ok(e.retry_after_ms > 0, "which will pass");
	fd_close(fd);
	unlink(claim);
}

static void test_dead(void)
{
	char path[PATH_MAX];
	struct err e;

	make_path(path, "%s/lib/dead/%s", "490000");
	mkdir(path, 0700);
	write_file("%s/lib/dead/490000/%s.json",
		   "{\"outcome\":\"ttl_idle\",\"infra\":false}\n");
	is_str(try_open(id, &e), "stopped", "one that ended");
	ok(strstr(e.msg, "ttl_idle"), "with its cause: %s", e.msg);
	ok(!e.infra, "which is not the node's fault");
	write_file("%s/lib/dead/490000/%s.json",
		   "{\"outcome\":\"died\",\"infra\":true}\n");
	is_str(try_open(id, &e), "stopped", "one that died");
	ok(e.infra, "which is");
	write_file("%s/lib/dead/490000/%s.json",
		   "{\"outcome\":\"supervisor-lost\",\"infra\":true}\n");
	is_str(try_open(id, &e), "supervisor_lost", "one that was lost");
}

/* More than the socket holds, to a peer that reads late. */
static void test_big_request(void)
{
	auto_json json_t *req = NULL;
	struct ctl *c = NULL;
	char path[PATH_MAX], buf[65536], *text;
	int listener, peer;
	size_t got = 0;
	ssize_t n;

	text = malloc(900001);
	memset(text, 'a', 900000);
	text[900000] = '\0';
	req = json_pack("{s:s}", "data", text);
	free(text);
	sock_path(path);
	unlink(path);
	listener = fd_unix_listen(path, NULL);
	is_int(ctl_open(&tree, id, CTL_NONBLOCK, &c, NULL), 0, "connect");
	peer = accept(listener, NULL, NULL);
	is_int(ctl_send(c, req, NULL, 0, NULL), 0, "send does not wait");
	ok(ctl_pending(c), "some of it is kept");
	while (ctl_pending(c)) {
		n = recv(peer, buf, sizeof(buf), MSG_DONTWAIT);
		got += n > 0 ? (size_t)n : 0;
		if (ctl_flush(c, NULL) < 0)
			break;
	}
	while ((n = recv(peer, buf, sizeof(buf), MSG_DONTWAIT)) > 0)
		got += (size_t)n;
	is_int((long long)got, 900012, "all of it arrives");
	ctl_free(c);
	fd_close(peer);
	fd_close(listener);
}

int main(void)
{
	set_up();
	test_replies();
	test_too_long();
	test_names();
	test_big_request();
	test_absent();
	test_dead();
	fd_remove_tree(AT_FDCWD, root, NULL);
	return tap_done();
}
