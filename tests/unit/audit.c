/* SPDX-License-Identifier: Apache-2.0 */
/* The audit log: chained, durable before it is told, mended and told. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tap.h"
#include "base/clock.h"
#include "serve/audit.h"
#include "wire/json.h"

static char dir[] = "/tmp/dsec-audit.XXXXXX";
static char path[64], moved[64];

static const struct audit_entry entry = {
	.who = "dsec://client/x",
	.request = "7",
	.program = "run",
	.sandbox = "ab2caaaabbbbccccdddd",
	.at_ms = 1000,
};

static struct audit *start(struct loop *l)
{
	struct audit *a = NULL;
	struct err e = {0};

	if (audit_open(path, l, &a, &e) < 0) {
		printf("# %s\n", e.msg);
		abort();
	}
	return a;
}

static void add(struct audit *a, unsigned n)
{
	while (n-- > 0)
		if (audit_add(a, &entry, NULL, NULL) < 0)
			abort();
	if (audit_sync(a, NULL) < 0)
		abort();
}

static struct audit_state verify(const char *file)
{
	struct audit_state s = {0};
	auto_close int fd = open(file, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || audit_verify(fd, &s, NULL) < 0)
		abort();
	return s;
}

static void put(const char *text, size_t len, int flags)
{
	auto_close int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags,
				 0600);

	if (fd < 0 || fd_write_all(fd, text, len, NULL) < 0)
		abort();
}

static char *get(size_t *ret_len)
{
	char *text = NULL;

	if (fd_read_file(AT_FDCWD, path, 1 << 24, &text, ret_len, NULL) < 0)
		abort();
	return text;
}

static void test_chain(void)
{
	struct audit_entry odd = entry;
	struct audit_state s;
	struct audit *a;
	struct stat st;

	unlink(path);
	a = start(NULL);
	add(a, 3);
	odd.who = "a\"b\\c\n\xff\x7f";
	odd.decision = AUDIT_DENY;
	odd.code = "permission";
	odd.task = "\xc3\xa9t\xc3\xa9";
	is_int(audit_add(a, &odd, NULL, NULL), 0, "any bytes");
	audit_close(a);
	s = verify(path);
	ok(s.lines == 4 && s.first == 1 && s.last == 4 && !s.bad_line,
	   "four lines, all of them right");
	a = start(NULL);
	add(a, 2);
	audit_close(a);
	s = verify(path);
	ok(s.lines == 6 && s.last == 6 && !s.bad_line, "and on, after a start");
	is_int(stat(path, &st) == 0 ? st.st_mode & 0777 : 0, 0600, "private");
}

/* A change of any byte is found, at its line or the next. */
static void test_changed(void)
{
	auto_free char *text = NULL;
	struct audit_state s;
	unsigned missed = 0;
	size_t len, line = 1;

	text = get(&len);
	for (size_t i = 0; i < len; i++) {
		char was = text[i];

		if (was == '\n') {
			line++;
			continue;
		}
		if (i % 7)
			continue;
		text[i] = was == 'x' ? 'y' : 'x';
		put(text, len, O_TRUNC);
		s = verify(path);
		missed += s.bad_line != line;
		text[i] = was;
	}
	is_int(missed, 0, "every changed byte is found at its line");
	put(text, len, O_TRUNC);
}

static void test_removed(void)
{
	auto_free char *text = NULL;
	struct audit_state s;
	char *one, *two;
	size_t len;

	text = get(&len);
	one = strchr(text, '\n') + 1;
	two = strchr(one, '\n') + 1;
	put(text, (size_t)(one - text), O_TRUNC);
	put(two, strlen(two), O_APPEND);
	s = verify(path);
	is_int((long long)s.bad_line, 2, "a line taken out");
	printf("# %s\n", s.why);
	put(one, strlen(one), O_TRUNC);
	s = verify(path);
	ok(!s.bad_line && s.first == 2, "a beginning taken off shows by seq");
	put(text, len, O_TRUNC);
	put(text, (size_t)(one - text), O_APPEND);
	s = verify(path);
	ok(s.bad_line == s.lines + 1, "a line put in again");
	put(text, len, O_TRUNC);
}

static void test_torn(void)
{
	auto_free char *text = NULL;
	struct audit_state s;
	struct audit *a = NULL;
	struct err e = {0};
	size_t len;

	put("{\"seq\":7,\"at", 12, O_APPEND);
	s = verify(path);
	ok(!s.bad_line && s.torn == 12 && s.last == 6, "a torn end is told");
	a = start(NULL);
	is_int((long long)audit_torn(a), 12, "and taken off");
	add(a, 1);
	audit_close(a);
	s = verify(path);
	ok(!s.bad_line && !s.torn && s.last == 7, "the chain goes on");
	text = get(&len);
	ok(strstr(text, "\"torn_before\":12") != NULL, "which the log tells");

	put("{\"seq\":8}\n", 10, O_APPEND);
	is_int(audit_open(path, NULL, &a, &e), -EBADMSG,
	       "nothing is appended to a line that is wrong");
	is_str(e.code, "configuration", "... for the operator to see");
	put(text, len, O_TRUNC);
	put("no log", 6, O_TRUNC);
	a = start(NULL);
	add(a, 1);
	audit_close(a);
	s = verify(path);
	ok(s.lines == 1 && !s.bad_line, "a file of half a line");
}

static void test_busy(void)
{
	struct audit *a = start(NULL), *b = NULL;
	struct err e = {0};

	is_int(audit_open(path, NULL, &b, &e), -EBUSY, "one writer at a time");
	audit_close(a);
}

static void test_moved(void)
{
	struct audit_state s = {0};
	struct audit *a;
	struct err e = {0};

	unlink(path);
	a = start(NULL);
	add(a, 3);
	is_int(audit_reopen(a, &e), -EEXIST, "it was not moved");
	if (rename(path, moved) < 0)
		abort();
	is_int(audit_reopen(a, &e), 0, "it was");
	add(a, 2);
	audit_close(a);
	for (unsigned i = 0; i < 2; i++) {
		auto_close int fd = open(i ? path : moved, O_RDONLY);

		if (audit_verify(fd, &s, NULL) < 0)
			abort();
	}
	ok(s.lines == 6 && s.last == 6 && !s.bad_line, "one chain over both");
	a = start(NULL);
	add(a, 1);
	audit_close(a);
	s = verify(path);
	ok(s.first == 4 && s.last == 7 && !s.bad_line, "and after a start");
	unlink(moved);

	/* Nothing is written between the move and the next start. */
	a = start(NULL);
	if (rename(path, moved) < 0)
		abort();
	put("", 0, O_TRUNC); /* who moves it may make an empty one */
	is_int(audit_reopen(a, &e), 0, "an empty one is in its place");
	audit_close(a);
	a = start(NULL);
	add(a, 1);
	s = verify(path);
	ok(s.first == 8 && s.last == 9 && !s.bad_line,
	   "the chain goes on where nothing was written");
	if (rename(path, moved) < 0)
		abort();
	put("other\n", 6, O_TRUNC);
	is_int(audit_reopen(a, &e), -EBADMSG, "another's file is left alone");
	unlink(path);
	add(a, 1);
	is_int(audit_reopen(a, &e), 0, "until it is gone");
	audit_close(a);
	s = verify(path);
	ok(s.first == 11 && !s.bad_line, "and nothing was lost");
	unlink(moved);
}

/* --- on a loop -------------------------------------------------------------
 */

struct waiting {
	struct audit_wait w;
	struct loop *loop;
	unsigned *left, *failed;
	uint64_t lines; /* of the file when it was told */
};

static void told(struct audit_wait *w, int r, const struct err *why)
{
	struct waiting *me = w->arg;

	(void)why;
	me->lines = verify(path).lines;
	*me->failed += r < 0;
	if (--*me->left == 0)
		loop_stop(me->loop, 0);
}

static bool only_written; /* what those of many() wait for */

static void many(struct audit *a, struct loop *l, unsigned n, unsigned *failed)
{
	struct waiting *w = calloc(n, sizeof(*w));
	unsigned left = n, early = 0;

	*failed = 0;
	for (unsigned i = 0; i < n; i++) {
		w[i] = (struct waiting){.w = {.fn = told,
					      .arg = &w[i],
					      .written = only_written},
					.loop = l,
					.left = &left,
					.failed = failed};
		if (audit_add(a, &entry, &w[i].w, NULL) < 0)
			abort();
	}
	loop_run(l, NULL);
	for (unsigned i = 0; i < n; i++)
		early += w[i].lines < i + 1;
	ok(*failed || !early, "nobody was told before his line was there");
	free(w);
}

static void test_loop(void)
{
	struct loop *l = NULL;
	struct audit *a;
	struct rlimit was, little = {0};
	unsigned failed;

	unlink(path);
	if (loop_new(&l, NULL) < 0)
		abort();
	a = start(l);
	many(a, l, 100, &failed);
	is_int(failed, 0, "all durable");
	is_int((long long)verify(path).lines, 100, "... and there");

	/* No room: nobody is told yes, and the log is as it was. */
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &was);
	little = was;
	little.rlim_cur = 30000;
	setrlimit(RLIMIT_FSIZE, &little);
	many(a, l, 100, &failed);
	setrlimit(RLIMIT_FSIZE, &was);
	is_int(failed, 100, "a full disk fails all of a group");
	is_int((long long)verify(path).lines, 100, "and leaves none of it");
	is_int((long long)verify(path).torn, 0, "nor a part");
	many(a, l, 5, &failed);
	is_int(failed, 0, "then it goes on");
	only_written = true;
	setrlimit(RLIMIT_FSIZE, &little);
	many(a, l, 100, &failed);
	setrlimit(RLIMIT_FSIZE, &was);
	is_int(failed, 100, "who waits for less than the disk is failed too");
	many(a, l, 5, &failed);
	is_int(failed, 0, "and is told when it is in the file");
	only_written = false;
	audit_close(a);
	loop_free(l);
	ok(verify(path).lines == 110 && !verify(path).bad_line, "as a chain");
}

/* One that is behind another's sync, and one for which there is no room. */
struct behind {
	struct audit_wait first, second, third, in_file;
	struct audit *a;
	struct loop *l;
	struct rlimit was;
	int second_r, third_r;
};

static void on_in_file(struct audit_wait *w, int r, const struct err *why)
{
	struct behind *b = w->arg;

	(void)r;
	(void)why;
	loop_stop(b->l, 0);
}

static void on_first(struct audit_wait *w, int r, const struct err *why)
{
	struct behind *b = w->arg;
	struct rlimit little = b->was;

	(void)r;
	(void)why;
	little.rlim_cur = 1;
	setrlimit(RLIMIT_FSIZE, &little);
	if (audit_add(b->a, &entry, &b->third, NULL) < 0)
		abort();
}

static void on_second(struct audit_wait *w, int r, const struct err *why)
{
	struct behind *b = w->arg;

	(void)why;
	b->second_r = r;
	loop_stop(b->l, 0);
}

static void on_third(struct audit_wait *w, int r, const struct err *why)
{
	struct behind *b = w->arg;

	(void)why;
	b->third_r = r;
}

static void on_never(struct loop *l, struct loop_timer *t)
{
	(void)t;
	loop_stop(l, 0);
}

/* ${w} and one that is told when both are in the file. */
static void add_and_wait(struct behind *b, struct audit_wait *w)
{
	if (audit_add(b->a, &entry, w, NULL) < 0 ||
	    audit_add(b->a, &entry, &b->in_file, NULL) < 0)
		abort();
	loop_run(b->l, NULL);
}

static pid_t only_child(void)
{
	int pid = 0;
	FILE *f = fopen("/proc/thread-self/children", "re");

	if (!f || fscanf(f, "%d", &pid) != 1 || pid <= 1)
		abort();
	fclose(f);
	return pid;
}

static void test_full_behind(void)
{
	struct behind b = {.second_r = 1, .third_r = 1};
	struct loop_timer never = {.fn = on_never};
	pid_t child;

	unlink(path);
	getrlimit(RLIMIT_FSIZE, &b.was);
	b.first = (struct audit_wait){.fn = on_first, .arg = &b};
	b.second = (struct audit_wait){.fn = on_second, .arg = &b};
	b.third = (struct audit_wait){.fn = on_third, .arg = &b};
	b.in_file = (struct audit_wait){.fn = on_in_file,
					.arg = &b,
					.written = true};
	if (loop_new(&b.l, NULL) < 0)
		abort();
	b.a = start(b.l);
	child = only_child();
	kill(child, SIGSTOP); /* the sync lasts */
	add_and_wait(&b, &b.first);
	add_and_wait(&b, &b.second);
	loop_timer_set(b.l, &never, clock_ms() + 10000);
	kill(child, SIGCONT);
	loop_run(b.l, NULL);
	setrlimit(RLIMIT_FSIZE, &b.was);
	ok(b.third_r < 0, "for one there is no room");
	is_int(b.second_r, 0, "what was in the file before gets to the disk");
	loop_timer_set(b.l, &never, 0);
	audit_close(b.a);
	loop_free(b.l);
}

static bool append_only(bool on)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), flags = 0;
	bool done;

	done = fd >= 0 && ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0;
	flags = on ? flags | FS_APPEND_FL : flags & ~FS_APPEND_FL;
	done = done && ioctl(fd, FS_IOC_SETFLAGS, &flags) == 0;
	if (fd >= 0)
		close(fd);
	return done;
}

/* What could be written in part can not be taken back at once. */
static void test_spoilt(void)
{
	struct rlimit was, little;
	struct audit *a;
	struct err e = {0};
	struct stat st;

	unlink(path);
	a = start(NULL);
	if (audit_add(a, &entry, NULL, &e) < 0 || audit_sync(a, &e) < 0 ||
	    stat(path, &st) < 0)
		abort();
	if (!append_only(true)) {
		skip("a file that only grows", "none on this file system");
		audit_close(a);
		return;
	}
	getrlimit(RLIMIT_FSIZE, &was);
	little = was;
	little.rlim_cur = (rlim_t)st.st_size + 20; /* in the second line */
	setrlimit(RLIMIT_FSIZE, &little);
	ok(audit_add(a, &entry, NULL, &e) == 0 && audit_sync(a, &e) < 0,
	   "half a line is none");
	setrlimit(RLIMIT_FSIZE, &was);
	ok(audit_add(a, &entry, NULL, &e) == 0 && audit_sync(a, &e) < 0,
	   "nor does one come behind it");
	append_only(false);
	ok(audit_add(a, &entry, NULL, &e) == 0 && audit_sync(a, &e) == 0,
	   "until it could be taken off");
	audit_close(a);
	ok(verify(path).lines == 2 && !verify(path).bad_line,
	   "the chain holds");
}

static void test_behind(void)
{
	struct audit *a;
	struct err e = {0};
	unsigned n = 0;
	uint64_t t;

	unlink(path);
	a = start(NULL);
	t = clock_ms();
	while (n < 100000 && audit_add(a, &entry, NULL, &e) == 0)
		n++;
	ok(n > 5000 && n < 100000 && !strcmp(e.code, "busy"),
	   "what waits is bounded");
	is_int(audit_sync(a, NULL), 0, "synced");
	printf("# %u lines and a sync in %u ms\n", n,
	       (unsigned)(clock_ms() - t));
	audit_close(a);
	is_int((long long)verify(path).lines, n, "all of them are there");
}

int main(void)
{
	if (!mkdtemp(dir))
		abort();
	snprintf(path, sizeof(path), "%s/audit.jsonl", dir);
	snprintf(moved, sizeof(moved), "%s/audit.jsonl.1", dir);
	test_chain();
	test_changed();
	test_removed();
	test_torn();
	test_busy();
	test_moved();
	test_loop();
	test_full_behind();
	test_spoilt();
	test_behind();
	unlink(path);
	rmdir(dir);
	return tap_done();
}
