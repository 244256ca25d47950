/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "box/journal.h"

static int add(struct journal *j, const char *name, int value)
{
	auto_json json_t *line = json_pack("{s:i}", "record", value);

	return journal_add(j, name, line, NULL);
}

/* The value of a name; -1: not there. */
static int find(struct journal *j, const char *name)
{
	auto_json json_t *line = NULL;

	if (journal_find(j, name, &line, NULL) != 1)
		return -1;
	return (int)json_int(line, "record", -2);
}

static void append(int dirfd, const char *text)
{
	auto_close int fd = openat(dirfd, "steps.jsonl",
				   O_WRONLY | O_APPEND | O_CLOEXEC);

	if (fd < 0 || fd_write_all(fd, text, strlen(text), NULL) < 0)
		abort();
}

static struct journal *reopen(int dirfd, struct journal *j)
{
	journal_free(j);
	if (journal_open(dirfd, "steps.jsonl", "step", &j, NULL) < 0)
		abort();
	return j;
}

static void check_torn(int dirfd, struct journal **j)
{
	append(dirfd, "\n\n{\"step\":\"damaged\n{\"step\":\"torn\",\"re");
	*j = reopen(dirfd, *j);
	is_int(find(*j, "7"), 70, "a torn last line hides no other");
	is_int(find(*j, "torn"), -1, "and is not there");
	is_int(add(*j, "8", 80), 0, "the next line is appended");
	*j = reopen(dirfd, *j);
	is_int(find(*j, "8"), 80, "and read back");
	is_int(find(*j, "199"), 199, "with those before");
}

/* A directory that is gone takes no file; as good as a full disk. */
static void check_no_file(void)
{
	char dir[] = "/tmp/dsec-journal-XXXXXX";
	struct journal *j = NULL;
	auto_close int dirfd = -1;

	if (!mkdtemp(dir))
		abort();
	dirfd = open(dir, O_DIRECTORY | O_CLOEXEC);
	if (rmdir(dir) < 0 || journal_open(dirfd, "k", "key", &j, NULL) < 0)
		abort();
	ok(add(j, "a", 1) < 0, "a file that cannot be written");
	is_int(find(j, "a"), 1, "what it should hold is known all the same");
	journal_free(j);
}

int main(void)
{
	char dir[] = "/tmp/dsec-journal-XXXXXX", name[16];
	struct journal *j = NULL;
	int dirfd;

	if (!mkdtemp(dir))
		abort();
	dirfd = open(dir, O_DIRECTORY | O_CLOEXEC);
	j = reopen(dirfd, NULL);
	ok(faccessat(dirfd, "steps.jsonl", F_OK, 0) < 0, "no line, no file");
	is_int(find(j, "7"), -1, "nothing in an empty one");
	is_int(add(j, "7", 70), 0, "add");
	is_int(add(j, "7", 71), 0, "add again");
	is_int(find(j, "7"), 70, "the first line of a name counts");
	for (int i = 100; i < 200; i++) {
		snprintf(name, sizeof(name), "%d", i);
		if (add(j, name, i) < 0)
			ok(false, "add %d", i);
	}
	is_int(find(j, "150"), 150, "one of many");
	j = reopen(dirfd, j);
	is_int(find(j, "7"), 70, "after a restart");
	is_int(find(j, "150"), 150, "one of many after a restart");
	is_int(find(j, "201"), -1, "and none that never was");
	check_torn(dirfd, &j);
	append(dirfd, "{\"step\":300,\"record\":5}\n");
	j = reopen(dirfd, j);
	is_int(find(j, "300"), 5, "an integer is a name as well");
	journal_free(j);
	check_no_file();
	fd_close(dirfd);
	fd_remove_tree(AT_FDCWD, dir, NULL);
	return tap_done();
}
