/* SPDX-License-Identifier: Apache-2.0 */
/* lib/base: what the rest leans on. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tap.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/loop.h"
#include "base/opt.h"
#include "base/proc.h"
#include "base/sig.h"

static char base[] = "/dev/shm/dsec-base.XXXXXX"; /* or in /tmp */
static int top;					  /* of it */

static bool good(int r, const struct err *e, const char *what)
{
	if (r < 0)
		printf("# %s: %s (%s)\n", what, e->msg, e->code);
	return ok(r >= 0, "%s", what);
}

static bool there(const char *path)
{
	struct stat st;

	return fstatat(top, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static void put(const char *path, const char *text)
{
	int fd = openat(top, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
			0600);

	if (fd < 0 || fd_write_all(fd, text, strlen(text), NULL) < 0)
		ok(false, "write %s", path);
	if (fd >= 0)
		fd_close(fd);
}

static bool holds(const char *path, const char *text)
{
	auto_free char *got = NULL;
	size_t len;

	return fd_read_file(top, path, 4096, &got, &len, NULL) == 0 &&
	       len == strlen(text) && !memcmp(got, text, len);
}

static int entries(const char *path)
{
	auto_dir DIR *d = NULL;
	int fd = openat(top, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), n = 0;

	d = fd < 0 ? NULL : fdopendir(fd);
	if (!d)
		return -1;
	while (readdir(d))
		n++;
	return n - 2;
}

/* --- err, buf ------------------------------------------------------------- */

static void test_err(void)
{
	struct err e = {0};
	char big[2 * ERR_MSG_MAX];

	is_int(err_sys(&e, ENOSPC, "write '%s'", "x"), -ENOSPC, "err_sys");
	is_str(e.code, "no_space", "its code");
	is_str(e.msg, "write 'x': No space left on device", "its message");
	ok(e.infra, "the node's fault");
	is_int(err_wrap(&e, -ENOSPC, "sandbox"), -ENOSPC, "err_wrap");
	is_str(e.msg, "sandbox: write 'x': No space left on device",
	       "the wider message");
	is_int(err_set(NULL, -EIO, "io", "x"), -EIO, "nobody asks");
	is_int(err_wrap(NULL, -EIO, "x"), -EIO, "nobody asks for more");
	memset(big, 'a', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	err_set(&e, -EIO, "io", "%s", big);
	err_wrap(&e, -EIO, "%s", big);
	is_int((long long)strlen(e.msg), ERR_MSG_MAX - 1, "long ones are cut");
}

static void test_buf(void)
{
	auto_buf struct buf b = {0};

	buf_drop(&b, 0);
	is_int(buf_add(&b, "", 0), 0, "add nothing");
	for (int i = 0; i < 1000; i++)
		if (buf_addf(&b, "%d,", i) < 0)
			ok(false, "add");
	is_int((long long)b.len, 3890, "a thousand numbers");
	ok(!strncmp(b.data, "0,1,2,", 6) && b.data[b.len] == '\0', "in order");
	buf_drop(&b, 3886);
	is_str(b.data, "999,", "the last is left");
	buf_drop(&b, 4);
	is_str(b.data, "", "then none");
	is_int(buf_reserve(&b, SIZE_MAX), -ENOMEM, "too much");
	is_int(buf_reserve(&b, SIZE_MAX / 2), -ENOMEM, "half of that");
	is_str(b.data, "", "it is as it was");
}

/* --- fd ------------------------------------------------------------------- */

static void test_read(void)
{
	auto_free char *text = NULL;
	struct err e = {0};
	size_t len = 0;

	put("r", "12345");
	good(fd_read_file(top, "r", 5, &text, &len, &e), &e, "exactly so much");
	is_str(text, "12345", "all of it");
	is_int(fd_read_file(top, "r", 4, &text, &len, &e), -EFBIG, "too much");
	is_str(e.code, "too_large", "... by its code");
	is_int(fd_read_file(top, "none", 4, &text, &len, &e), -ENOENT, "none");
	is_str(text, "12345", "nothing is returned on failure");
	is_int(symlinkat("r", top, "l"), 0, "a link");
	is_int(fd_read_file(top, "l", 9, &text, &len, &e), -ELOOP,
	       "a link is not followed");
	unlinkat(top, "l", 0);
	unlinkat(top, "r", 0);
}

static int mode_of(const char *name)
{
	struct stat st;

	return fstatat(top, name, &st, AT_SYMLINK_NOFOLLOW) < 0
		       ? -errno
		       : (int)(st.st_mode & 07777);
}

static void test_replace(void)
{
	char longest[NAME_MAX + 1], tmp[32];
	mode_t umask_was = umask(077);
	struct err e = {0};

	good(fd_replace(top, "f", "old", 3, 0, &e), &e, "a new file");
	ok(holds("f", "old"), "it holds that");
	good(fd_replace(top, "f", "newer", 5, FD_REPLACE_SYNC, &e), &e,
	     "replaced, durably");
	ok(holds("f", "newer"), "it holds the new");
	good(fd_replace(top, "f", "", 0, 0, &e), &e, "by nothing");
	ok(holds("f", ""), "it is empty");
	mkdirat(top, "d", 0700);
	fd_replace(top, "m", "", 0, FD_REPLACE_PUBLIC, NULL);
	is_int(mode_of("m"), 0644, "for others to read, whatever the umask");
	fd_replace(top, "m", "", 0, 0, NULL);
	is_int(mode_of("m"), 0600, "or for us alone");
	unlinkat(top, "m", 0);
	/* Somebody knew the name it has before. */
	snprintf(tmp, sizeof(tmp), ".f.%d", (int)getpid());
	mkfifoat(top, tmp, 0600);
	alarm(20);
	good(fd_replace(top, "f", "x", 1, 0, &e), &e, "a pipe in the way");
	alarm(0);
	ok(holds("f", "x"), "is not written to");
	is_int(fd_replace(top, "d", "x", 1, 0, &e), -EISDIR, "not a directory");
	memset(longest, 'n', NAME_MAX);
	longest[NAME_MAX] = '\0';
	is_int(fd_replace(top, longest, "x", 1, 0, &e), -ENAMETOOLONG,
	       "too long a name");
	is_int(entries("."), 2, "nothing is left of the failures");
	umask(umask_was);
	unlinkat(top, "d", AT_REMOVEDIR);
	unlinkat(top, "f", 0);
}

/* A full disk: the old content stays, and nothing beside it. */
static void test_replace_full(void)
{
	struct rlimit was, small = {1024, 1024};
	struct err e = {0};
	char data[4096];

	good(fd_replace(top, "f", "old", 3, 0, &e), &e, "a file");
	memset(data, 'x', sizeof(data));
	getrlimit(RLIMIT_FSIZE, &was);
	small.rlim_max = was.rlim_max;
	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &small);
	is_int(fd_replace(top, "f", data, sizeof(data), 0, &e), -EFBIG,
	       "no room for all of it");
	setrlimit(RLIMIT_FSIZE, &was);
	ok(holds("f", "old"), "the old content is there");
	is_int(entries("."), 1, "and nothing else");
	unlinkat(top, "f", 0);
}

/* Readers see one whole content or the other. */
static void test_replace_race(void)
{
	static const char *const texts[] = {"aaaaaaaaaa", "bbbbb"};
	struct err e = {0};
	int odd = 0, status;
	pid_t pid;

	good(fd_replace(top, "f", texts[0], strlen(texts[0]), 0, &e), &e,
	     "a file");
	pid = fork();
	if (pid == 0) {
		for (int i = 0; i < 2000; i++)
			if (fd_replace(top, "f", texts[i % 2],
				       strlen(texts[i % 2]), 0, NULL) < 0)
				_exit(1);
		_exit(0);
	}
	for (int i = 0; i < 2000; i++) {
		auto_free char *got = NULL;

		if (fd_read_file(top, "f", 64, &got, NULL, &e) < 0 ||
		    (strcmp(got, texts[0]) && strcmp(got, texts[1])))
			odd++;
	}
	waitpid(pid, &status, 0);
	is_int(status, 0, "the writer went on");
	is_int(odd, 0, "no reader saw a part");
	unlinkat(top, "f", 0);
}

static void test_mkdir(void)
{
	char path[PATH_MAX];
	struct err e = {0};

	snprintf(path, sizeof(path), "%s/a/b//c", base);
	good(fd_mkdir_p(path, 0700, &e), &e, "with parents");
	good(fd_mkdir_p(path, 0700, &e), &e, "again");
	ok(there("a/b/c"), "it is there");
	put("a/f", "x");
	snprintf(path, sizeof(path), "%s/a/f", base);
	is_int(fd_mkdir_p(path, 0700, &e), -ENOTDIR, "where a file is");
	snprintf(path, sizeof(path), "%s/a/f/g/h", base);
	is_int(fd_mkdir_p(path, 0700, &e), -ENOTDIR, "below a file");
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	is_int(fd_mkdir_p(path, 0700, &e), -ENAMETOOLONG, "too long");
	good(fd_remove_tree(top, "a", &e), &e, "removed");
	ok(!there("a"), "it is gone");
	good(fd_remove_tree(top, "a", &e), &e, "removing nothing is fine");
}

static void test_remove(void)
{
	struct err e = {0};
	char path[64];

	mkdirat(top, "keep", 0700);
	put("keep/f", "x");
	mkdirat(top, "t", 0700);
	is_int(symlinkat("../keep", top, "t/out") |
		       symlinkat("/nowhere", top, "t/broken"),
	       0, "links");
	mkfifoat(top, "t/fifo", 0600);
	mkdirat(top, "t/.rm.0", 0700);
	mkdirat(top, "t/.rm.0/x", 0700);
	mkdirat(top, "t/closed", 0700);
	put("t/closed/f", "x");
	is_int(fchmodat(top, "t/closed", 0, 0), 0, "a closed directory");
	for (int i = 0; i < 300; i++) {
		snprintf(path, sizeof(path), "t/w%d", i);
		mkdirat(top, path, 0700);
		snprintf(path, sizeof(path), "t/w%d/x", i);
		mkdirat(top, path, 0700);
		snprintf(path, sizeof(path), "t/w%d/x/f", i);
		put(path, "x");
	}
	good(fd_remove_tree(top, "t", &e), &e, "a tree of all sorts");
	ok(!there("t"), "it is gone");
	ok(holds("keep/f", "x"), "what a link led to is not");
	is_int(symlinkat("keep", top, "l"), 0, "a link to it");
	good(fd_remove_tree(top, "l", &e), &e, "a link");
	ok(!there("l") && holds("keep/f", "x"), "the link alone is gone");
	good(fd_remove_tree(top, "keep", &e), &e, "the rest");
}

/* Deeper than paths and descriptors go, on a small stack. */
static void test_remove_deep(void)
{
	enum { DEEP = 4000 };
	struct rlimit was, few = {32, 32};
	struct err e = {0};
	uint64_t t0;
	int r;

	mkdirat(top, "deep", 0700);
	for (int i = 0, fd = openat(top, "deep", O_PATH | O_CLOEXEC), next;
	     fd >= 0 && i <= DEEP; i++, fd = next) {
		if (i < DEEP)
			mkdirat(fd, "dir", 0700);
		next = i < DEEP ? openat(fd, "dir", O_PATH | O_CLOEXEC) : -1;
		fd_close(fd);
	}
	getrlimit(RLIMIT_NOFILE, &was);
	few.rlim_max = was.rlim_max;
	setrlimit(RLIMIT_NOFILE, &few);
	t0 = clock_ms();
	r = fd_remove_tree(top, "deep", &e);
	setrlimit(RLIMIT_NOFILE, &was);
	good(r, &e, "a tree 4,000 deep");
	printf("# in %d ms\n", (int)(clock_ms() - t0));
	ok(!there("deep"), "it is gone");
}

/* In a mount namespace of its own, where ${at} becomes a mount; says whether
 * removing ${tree} left it alone. */
static int remove_mounted(const char *at, const char *tree)
{
	char path[PATH_MAX];
	struct err e = {0};
	int in;

	snprintf(path, sizeof(path), "%s/%s", base, at);
	if (unshare(CLONE_NEWNS) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("tmpfs", path, "tmpfs", 0, NULL) < 0)
		return 2;
	in = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	top = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (in < 0 || top < 0 || mkdirat(in, "inside", 0700) < 0)
		return 3;
	if (fd_remove_tree(top, tree, &e) != -EXDEV)
		return 4;
	printf("# %s\n", e.msg);
	fflush(stdout);
	return faccessat(in, "inside", F_OK, 0) == 0 ? 0 : 5;
}

static void without_mount(const char *at, const char *tree, const char *what)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0)
		_exit(remove_mounted(at, tree));
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
		skip(what, "no mounts for us");
	else
		is_int(status, 0, what);
}

static void test_remove_mount(void)
{
	char path[PATH_MAX];
	struct err e = {0};

	snprintf(path, sizeof(path), "%s/m/a/b/mnt", base);
	fd_mkdir_p(path, 0700, &e);
	without_mount("m/a/b/mnt", "m", "a tree with a mount in it");
	mkdirat(top, "m2", 0700);
	without_mount("m2", "m2", "a tree that is a mount");
	good(fd_remove_tree(top, "m", &e), &e, "without the mount it goes");
	good(fd_remove_tree(top, "m2", &e), &e, "so does that");
}

/* Somebody renames something all the time, somewhere else. */
static pid_t start_renaming(void)
{
	pid_t pid = fork();

	while (pid == 0) {
		(void)!renameat(top, "one", top, "other");
		(void)!renameat(top, "other", top, "one");
	}
	return pid;
}

static void test_open(void)
{
	const struct open_how how = {.flags = O_PATH | O_CLOEXEC,
				     .resolve = RESOLVE_IN_ROOT};
	int root, fd, plain = 0, failed = 0;
	struct err e = {0};
	pid_t pid;

	mkdirat(top, "r", 0755);
	mkdirat(top, "r/d", 0755);
	mkdirat(top, "r/e", 0755);
	(void)!symlinkat("../e", top, "r/d/l");
	fd_close(openat(top, "one", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	root = openat(top, "r", O_PATH | O_CLOEXEC);
	pid = start_renaming();
	for (int i = 0; i < 20000; i++) {
		fd = (int)syscall(SYS_openat2, root, "d/l", &how, sizeof(how));
		if (fd < 0)
			plain++;
		else
			fd_close(fd);
		fd = fd_openat2(root, "d/l", O_PATH, RESOLVE_IN_ROOT);
		if (fd < 0)
			failed++;
		else
			fd_close(fd);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	printf("# of 20000 the kernel alone gave up on %d\n", plain);
	is_int(failed, 0, "what is renamed elsewhere fails no lookup");
	is_int(fd_openat2(root, "none", O_PATH, RESOLVE_IN_ROOT), -ENOENT,
	       "what is not there is not");
	is_int(fd_openat2(root, "d/../../..", O_PATH, RESOLVE_BENEATH), -EXDEV,
	       "nor what is outside");
	fd_close(root);
	(void)!unlinkat(top, "one", 0);
	(void)!unlinkat(top, "other", 0);
	good(fd_remove_tree(top, "r", &e), &e, "the tree goes");
}

static void test_pass(void)
{
	int s[2], fds[FD_PASS_MAX], got[FD_PASS_MAX];
	struct err e = {0};
	char text[8];
	size_t n;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) < 0) {
		ok(false, "a socket pair");
		return;
	}
	for (int i = 0; i < FD_PASS_MAX; i++)
		fds[i] = top;
	is_int(fd_send(s[0], "abc", 3, fds, FD_PASS_MAX, 0), 3, "send");
	n = 2;
	is_int(fd_recv(s[1], text, sizeof(text), got, &n, &e), 3, "receive");
	is_int((long long)n, 2, "no more descriptors than there is room for");
	ok(fcntl(got[0], F_GETFD) & FD_CLOEXEC, "close-on-exec");
	fd_close(got[0]);
	fd_close(got[1]);
	n = FD_PASS_MAX;
	is_int(fd_send(s[0], "d", 1, NULL, 0, 0), 1, "without");
	is_int(fd_recv(s[1], text, sizeof(text), got, &n, &e), 1, "a byte");
	is_int((long long)n, 0, "without descriptors");
	fcntl(s[1], F_SETFL, O_NONBLOCK);
	is_int(fd_recv(s[1], text, sizeof(text), got, &n, &e), -EAGAIN, "none");
	fd_close(s[0]);
	is_int(fd_recv(s[1], text, sizeof(text), got, &n, &e), 0, "the end");
	fd_close(s[1]);
}

static void test_unix(const char *name, const char *what)
{
	auto_close int listener = -1, client = -1, server = -1;
	char path[PATH_MAX];
	struct err e = {0};
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", base, name);
	is_int(fd_unix_connect(path, &e), -ENOENT, what);
	listener = fd_unix_listen(path, &e);
	good(listener, &e, "listen");
	ok(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600, "for us alone");
	client = fd_unix_connect(path, &e);
	good(client, &e, "connect");
	server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	ok(server >= 0, "accepted");
	is_int(fd_unix_listen(path, &e), -EADDRINUSE, "taken");
	unlink(path);
}

static void test_sockets(void)
{
	char deep[PATH_MAX], path[PATH_MAX];
	struct err e = {0};

	test_unix("s", "a socket");
	memset(deep, 'd', 200);
	deep[200] = '\0';
	mkdirat(top, deep, 0700);
	snprintf(path, sizeof(path), "%.200s/ctl.sock", deep);
	test_unix(path, "a socket of a long path");
	good(fd_remove_tree(top, deep, &e), &e, "removed");
}

/* --- opt ------------------------------------------------------------------ */

/* "0=x 1 w:y | rest" for what the parser says of ${line}. */
static void parse(const char *line, bool stop, char *out, size_t size)
{
	static const struct opt rows[] = {
		{"name", NULL, 'n', "NAME", "a name"},
		{"quiet", "silent", 'q', NULL, "less"},
		{NULL, NULL, 'x', NULL, NULL},
		{"long", NULL, 0, "L", "long"},
	};
	char copy[256], *argv[16] = {copy}, *save = NULL;
	struct opt_parser p = {.table = OPT_TABLE(rows),
			       .argv = argv,
			       .i = 1,
			       .argc = 1,
			       .stop_at_word = stop};
	size_t n = 0;
	const char *arg;
	struct err e = {0};
	int row, r;

	snprintf(copy, sizeof(copy), "%s", line);
	for (char *w = strtok_r(copy, " ", &save); w && p.argc < 15;
	     w = strtok_r(NULL, " ", &save))
		argv[p.argc++] = strcmp(w, "EMPTY") ? w : w + 5;
	out[0] = '\0';
	while ((r = opt_next(&p, &row, &arg, &e)) != OPT_END) {
		if (r == OPT_WORD) {
			n += (size_t)snprintf(out + n, size - n, "w:%s ", arg);
		} else if (r < 0) {
			snprintf(out + n, size - n, "%s", e.code);
			return;
		} else {
			n += (size_t)snprintf(out + n, size - n, "%d%s%s ", r,
					      arg ? "=" : "", arg ? arg : "");
		}
	}
	n += (size_t)snprintf(out + n, size - n, "|");
	for (; p.i < p.argc; p.i++)
		n += (size_t)snprintf(out + n, size - n, " %s", argv[p.i]);
}

static void test_opt(void)
{
	static const struct {
		const char *line, *want;
		bool stop;
	} cases[] = {
		{"", "|", false},
		{"--name a -n b --name=c -nd", "0=a 0=b 0=c 0=d |", false},
		{"-qqx -qn a", "1 1 2 1 0=a |", false},
		{"--silent --quiet", "1 1 |", false},
		{"--name=", "0= |", false},
		{"--name --quiet", "0=--quiet |", false},
		{"-n -q", "0=-q |", false},
		{"a -q b", "w:a 1 w:b |", false},
		{"a -q b", "| a -q b", true},
		{"-q a -q", "1 | a -q", true},
		{"-q -- -q a", "1 | -q a", false},
		{"- EMPTY", "w:- w: |", false},
		{"--", "|", false},
		{"--name", "usage", false},
		{"-n", "usage", false},
		{"-qn", "1 usage", false},
		{"--quiet=1", "usage", false},
		{"--qui", "usage", false},
		{"--quiets", "usage", false},
		{"--=x", "usage", false},
		{"-z", "usage", false},
		{"-q--", "1 usage", false},
		{"--x", "usage", false},
	};
	char out[512];

	for (size_t i = 0; i < array_len(cases); i++) {
		parse(cases[i].line, cases[i].stop, out, sizeof(out));
		is_str(out, cases[i].want, cases[i].line);
	}
}

/* --- proc, sig ------------------------------------------------------------ */

static void test_proc(void)
{
	static const struct {
		const char *script, *what;
		int want;
	} cases[] = {
		{"exit 0", "it ends well", 0},
		{"exit 77", "its status", 77},
		{"kill -9 $$", "by a signal", -ECHILD},
		{"exec sleep 60", "too slow", -ETIMEDOUT},
	};
	struct err e = {0};

	for (size_t i = 0; i < array_len(cases); i++) {
		const char *argv[] = {"sh", "-c", cases[i].script, NULL};

		is_int(proc_run(argv, -1, -1, 500, &e), cases[i].want,
		       cases[i].what);
	}
	is_int(proc_run((const char *[]){"dsec-no-such", NULL}, -1, -1, 500,
			&e),
	       -ENOENT, "no such program");
}

static void test_echo(void)
{
	uint64_t at = 0;

	ok(!sig_is_echo(&at), "a signal");
	at = clock_ms(); /* whatever this machine did meanwhile */
	ok(sig_is_echo(&at), "its second, at once, is none");
	at -= 1000;
	ok(!sig_is_echo(&at), "one a second later is");
}

static void test_sig(void)
{
	is_int(sig_by_name("TERM"), SIGTERM, "TERM");
	is_int(sig_by_name("SIGKILL"), SIGKILL, "SIGKILL");
	is_int(sig_by_name("15"), SIGTERM, "15");
	is_int(sig_by_name(""), -EINVAL, "nothing");
	is_int(sig_by_name("0"), -EINVAL, "0");
	is_int(sig_by_name("-9"), -EINVAL, "-9");
	is_int(sig_by_name("9x"), -EINVAL, "9x");
	is_int(sig_by_name("65"), -EINVAL, "65");
	is_int(sig_by_name("4294967305"), -EINVAL, "more than an int");
	is_int(sig_by_name("99999999999999999999"), -EINVAL, "a huge one");
	is_int(sig_by_name("term"), -EINVAL, "small letters");
	is_str(sig_name(SIGKILL), "SIGKILL", "the name of 9");
	is_str(sig_name(50), "SIG50", "the name of 50");
}

/* --- loop ----------------------------------------------------------------- */

struct two {
	struct loop_source a, b;
	struct loop_timer t[3];
	int n, order[4], norder;
};

static void drop_other(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct two *two = s->arg;

	(void)events;
	two->n++;
	loop_del(l, s == &two->a ? &two->b : &two->a);
	loop_del(l, s);
	loop_stop(l, 5);
}

static void on_timer(struct loop *l, struct loop_timer *t)
{
	struct two *two = t->arg;

	two->order[two->norder++] = (int)(t - two->t);
	if (t == &two->t[0] && two->norder == 2)
		loop_timer_set(l, t, clock_ms() + 1); /* once more */
	if (two->norder == 4)
		loop_stop(l, 0);
}

static void test_loop(void)
{
	struct two two = {.n = 0};
	struct loop *l = NULL;
	struct err e = {0};
	uint64_t now;
	int p[2];

	good(loop_new(&l, &e), &e, "a loop");
	if (pipe2(p, O_CLOEXEC) < 0 || write(p[1], "x", 1) != 1)
		ok(false, "a pipe");
	good(loop_add(l, &two.a, p[0], EPOLLIN, drop_other, &two, &e), &e,
	     "one source");
	good(loop_add(l, &two.b, p[1], EPOLLOUT, drop_other, &two, &e), &e,
	     "another");
	is_int(loop_run(l, &e), 5, "it ends with its value");
	is_int(two.n, 1, "what was removed is not called");
	now = clock_ms();
	for (int i = 0; i < 3; i++)
		two.t[i] = (struct loop_timer){.fn = on_timer, .arg = &two};
	loop_timer_set(l, &two.t[1], now + 500);
	loop_timer_set(l, &two.t[2], now + 5);
	loop_timer_set(l, &two.t[0], now + 20);
	loop_timer_set(l, &two.t[1], 0);
	loop_timer_set(l, &two.t[1], now + 30);
	is_int(loop_run(l, &e), 0, "timers");
	ok(two.order[0] == 2 && two.order[1] == 0 &&
		   two.order[2] + two.order[3] == 1,
	   "in their order, one twice");
	ok(clock_ms() - now >= 30, "none too early");
	loop_free(l);
	fd_close(p[0]);
	fd_close(p[1]);
}

int main(void)
{
	struct err e = {0};

	if (access("/dev/shm", W_OK) < 0)
		snprintf(base, sizeof(base), "/tmp/dsec-base.XXXXXX");
	if (!mkdtemp(base) ||
	    (top = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
		printf("1..0 # SKIP no directory\n");
		return 0;
	}
	test_err();
	test_buf();
	test_read();
	test_replace();
	test_replace_full();
	test_replace_race();
	test_mkdir();
	test_remove();
	test_remove_deep();
	test_remove_mount();
	test_open();
	test_pass();
	test_sockets();
	test_opt();
	test_proc();
	test_sig();
	test_echo();
	test_loop();
	is_int(entries("."), 0, "nothing is left");
	fd_close(top);
	good(fd_remove_tree(AT_FDCWD, base, &e), &e, "the directory itself");
	return tap_done();
}
