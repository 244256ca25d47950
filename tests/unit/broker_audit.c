/* SPDX-License-Identifier: Apache-2.0 */
/* The broker's audit: whole lines, fair among those that are refused. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tap.h"
#include "base/loop.h"
#include "net/broker_audit.h"

#define NAME "broker.jsonl"

static struct loop *loop;
static int dir = -1;
static unsigned failed, went_on;
static uint64_t told_lost;

static void on_state(const struct err *why, uint64_t lost)
{
	failed += !!why;
	went_on += !why;
	told_lost = lost;
}

static struct broker_audit *fresh(void)
{
	struct broker_audit *a = NULL;
	int fd;

	(void)unlinkat(dir, NAME, 0);
	fd = broker_audit_open(dir, NULL);
	if (fd < 0 || broker_audit_new(loop, fd, on_state, &a, NULL) < 0)
		abort();
	return a;
}

/* A line, if it may be written; what a server does with a refusal. */
static bool refuse(struct broker_audit *a, const char *sandbox)
{
	auto_json json_t *line = NULL;

	if (!broker_audit_may(a, sandbox))
		return false;
	if (json_pack_or(&line, NULL, "{s:s}", "sandbox", sandbox) < 0)
		abort();
	broker_audit_add(a, line);
	return true;
}

struct told {
	unsigned lines, bad, of; /* of: lines of the sandbox asked for */
	json_int_t n, lost;	 /* left out of it; lost of all */
};

static void look(struct told *t, const char *text, const char *sandbox)
{
	auto_json json_t *o = NULL;
	const char *who;

	t->lines++;
	if (json_parse(text, strlen(text), &o, NULL) < 0) {
		t->bad++;
		return;
	}
	t->lost += json_integer_value(json_object_get(o, "lost"));
	who = json_string_value(json_object_get(o, "sandbox"));
	if (!who != !sandbox || (who && strcmp(who, sandbox) != 0))
		return;
	t->n += json_integer_value(json_object_get(o, "n"));
	t->of += !json_object_get(o, "n");
}

static struct told told(const char *sandbox)
{
	auto_free char *text = NULL;
	struct told t = {0};
	char *at, *line;
	size_t len;

	if (fd_read_file(dir, NAME, 1 << 24, &text, &len, NULL) < 0)
		abort();
	t.bad = len && text[len - 1] != '\n';
	at = text;
	while ((line = strsep(&at, "\n")))
		if (*line)
			look(&t, line, sandbox);
	return t;
}

static void test_fair(void)
{
	static const char *const loud[] = {"a", "b", "c", "d"};
	struct broker_audit *a = fresh();
	struct told t;

	for (int i = 0; i < 1000; i++)
		for (size_t k = 0; k < array_len(loud); k++)
			(void)refuse(a, loud[k]);
	ok(refuse(a, "quiet"), "the first of one is written, whoever floods");
	t = told("a");
	ok(t.lines <= BROKER_DENIED_ALL + array_len(loud) + 1,
	   "the rest is not");
	is_int(t.n, 0, "nor told before the end");
	broker_audit_tell(a);
	for (size_t k = 0; k < array_len(loud); k++) {
		t = told(loud[k]);
		is_int(t.of + t.n, 1000, "of each all are told");
	}
	is_int(told("quiet").n, 0, "of the quiet one there is no more to tell");
	ok(refuse(a, "a"), "another round");
	broker_audit_free(a);
}

static void test_alone(void)
{
	struct broker_audit *a = fresh();

	for (int i = 0; i < 1000; i++)
		(void)refuse(a, "a");
	is_int(told("a").of, BROKER_DENIED_SANDBOX,
	       "one alone has a part of the lines");
	broker_audit_free(a);
}

/* More sandboxes than are told apart: counted together, nothing grows. */
static void test_many(void)
{
	struct broker_audit *a = fresh();
	char name[16];
	struct told t;
	unsigned of = 0;

	for (int i = 0; i < 2 * BROKER_DENIED_PLACES; i++) {
		snprintf(name, sizeof(name), "s%d", i);
		of += refuse(a, name);
	}
	broker_audit_free(a);
	t = told(NULL);
	is_int(of + t.n, 2 * BROKER_DENIED_PLACES, "all are told at the end");
	ok(of <= BROKER_DENIED_PLACES + BROKER_DENIED_ALL,
	   "no more than there are places");
	is_int(t.bad, 0, "in whole lines");
}

static void test_moved(void)
{
	struct broker_audit *a = fresh(), *other = NULL;

	if (broker_audit_new(loop, broker_audit_open(dir, NULL), on_state,
			     &other, NULL) < 0)
		abort();
	(void)refuse(a, "x");
	if (renameat(dir, NAME, dir, NAME ".1") < 0)
		abort();
	(void)refuse(a, "before");
	broker_audit_file(a, broker_audit_open(dir, NULL));
	broker_audit_file(other, broker_audit_open(dir, NULL));
	(void)refuse(a, "after");
	(void)refuse(other, "after");
	is_int(told("after").of, 2, "two go on in a new file");
	is_int(told("before").of, 0, "what was before");
	if (renameat(dir, NAME ".1", dir, NAME) < 0)
		abort();
	is_int(told("before").of, 1, "is in the one that was moved");
	broker_audit_free(a);
	broker_audit_free(other);
}

/* A line for which there is no room but for a part of it. */
static void refuse_full(struct broker_audit *a, const char *sandbox)
{
	struct rlimit was, lim;

	if (getrlimit(RLIMIT_FSIZE, &was) < 0)
		abort();
	lim = (struct rlimit){30, was.rlim_max};
	if (setrlimit(RLIMIT_FSIZE, &lim) < 0)
		abort();
	(void)refuse(a, sandbox);
	if (setrlimit(RLIMIT_FSIZE, &was) < 0)
		abort();
}

static void test_full(void)
{
	struct broker_audit *a = fresh();
	struct told t;

	signal(SIGXFSZ, SIG_IGN);
	(void)refuse(a, "x");
	refuse_full(a, "y");
	refuse_full(a, "z");
	is_int(failed, 1, "that nothing can be written is told, once");
	t = told("x");
	is_int(t.lines, 1, "what is there");
	is_int(t.bad, 0, "are whole lines");
	(void)refuse(a, "w");
	is_int(went_on, 1, "that it goes on is told");
	is_int((long long)told_lost, 2, "with how many were lost");
	t = told("w");
	is_int(t.of, 1, "the next line is there");
	is_int(t.lost, 2, "and tells it too");
	is_int(t.bad, 0, "all lines are whole");
	refuse_full(a, "v");
	broker_audit_free(a);
	t = told("w");
	is_int(t.lines, 3, "what is lost at the end has a line");
	is_int(t.lost, 3, "of its own");
}

static void test_torn(void)
{
	struct broker_audit *a = fresh();
	int fd = openat(dir, NAME, O_WRONLY | O_APPEND | O_CLOEXEC);

	(void)!write(fd, "{\"at_ms\":1,", 11);
	fd_close(fd);
	broker_audit_file(a, broker_audit_open(dir, NULL));
	(void)refuse(a, "x");
	is_int(told("x").of, 1,
	       "half a line of before a crash spoils no other");
	broker_audit_free(a);
}

int main(void)
{
	char path[] = "/tmp/dsec-broker-audit-XXXXXX";

	if (!mkdtemp(path) || loop_new(&loop, NULL) < 0)
		abort();
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	test_fair();
	test_alone();
	test_many();
	test_moved();
	test_full();
	test_torn();
	loop_free(loop);
	fd_close(dir);
	fd_remove_tree(AT_FDCWD, path, NULL);
	return tap_done();
}
