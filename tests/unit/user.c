/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "box/user.h"

static const char passwd[] = "root:x:0:0:root:/root:/bin/sh\n"
			     "alice:x:1000:1000::/home/alice:/bin/sh\n"
			     "bad:x:4294967295:0::/:\n"
			     "worse:x:-1:0::/:\n"
			     "hex:x:0x0:0::/:\n"
			     "short:x:0\n"
			     ":x:0:0::/:\n"
			     "nohome:x:1002:1002::relative:/bin/sh\n"
			     "far:x:65536:1::/:\n";
static const char group[] = "root:x:0:\nstaff:x:50:alice\n"
			    "audio:x:29:bob,alice\nmalice:x:30:malice,ali\n"
			    "alice:x:1000:\nbroken:x:zz:alice\n"
			    "staff2:x:50:alice";

static const struct {
	const char *word, *dflt;
	int uid, gid; /* -1: refused */
	const char *home;
	unsigned ngroups;
} cases[] = {
	{"root", "", 0, 0, "/root", 0},
	{"0", "", 0, 0, "/root", 0},
	{"alice", "", 1000, 1000, "/home/alice", 2},
	{"1000", "", 1000, 1000, "/home/alice", 2},
	{"1000:50", "", 1000, 50, "/home/alice", 0},
	{"alice:staff", "", 1000, 50, "/home/alice", 0},
	{":50", "alice", 1000, 50, "/home/alice", 0},
	{":50", ":7", 0, 50, "/root", 0},
	{":staff", "1000:9", 1000, 50, "/home/alice", 0},
	{"4242", "", 4242, 4242, "/", 0},
	{"nohome", "", 1002, 1002, "/", 0},
	{"", "", -1, 0, NULL, 0},
	{":", "", -1, 0, NULL, 0},
	{"alice:", "", -1, 0, NULL, 0},
	{"alice:50:1", "", -1, 0, NULL, 0},
	{"alice:nosuch", "", -1, 0, NULL, 0},
	{"alice:broken", "", -1, 0, NULL, 0},
	{"nosuch", "", -1, 0, NULL, 0},
	{"4294967295", "", -1, 0, NULL, 0},
	{"4294967296", "", -1, 0, NULL, 0},
	{"99999999999999999999", "", -1, 0, NULL, 0},
	{"65536", "", -1, 0, NULL, 0},
	{"-1", "", -1, 0, NULL, 0},
	{"+0", "", -1, 0, NULL, 0},
	{"00", "", -1, 0, NULL, 0},
	{"0x0", "", -1, 0, NULL, 0},
	{" 0", "", -1, 0, NULL, 0},
	{"bad", "", -1, 0, NULL, 0},
	{"worse", "", -1, 0, NULL, 0},
	{"hex", "", -1, 0, NULL, 0},
	{"short", "", -1, 0, NULL, 0},
	{"far", "", -1, 0, NULL, 0},
	{"1000:4294967295", "", -1, 0, NULL, 0},
};

static void check_cases(int root)
{
	for (size_t i = 0; i < array_len(cases); i++) {
		struct user u = {0};
		struct err e = {0};
		int r = user_resolve(root, cases[i].word, cases[i].dflt, &u,
				     &e);
		bool good;

		if (cases[i].uid < 0)
			good = r < 0 && !strcmp(e.code, "user_unknown");
		else
			good = r == 0 && u.uid == (uid_t)cases[i].uid &&
			       u.gid == (gid_t)cases[i].gid &&
			       !strcmp(u.home, cases[i].home) &&
			       u.ngroups == cases[i].ngroups;
		ok(good, "user '%s' (default '%s')", cases[i].word,
		   cases[i].dflt);
		user_done(&u);
	}
}

static void put(const char *path, const char *text)
{
	auto_close int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
				 0600);

	if (fd < 0 || fd_write_all(fd, text, strlen(text), NULL) < 0)
		abort();
}

/* Files that an attacker left in place of passwd. */
static void check_hostile(const char *dir, int root)
{
	char path[256], big[256];
	struct user u = {0};
	struct err e = {0};

	snprintf(path, sizeof(path), "%s/etc/passwd", dir);
	unlink(path);
	ok(user_resolve(root, "alice", "", &u, &e) < 0, "no passwd, a name");
	ok(user_resolve(root, "root", "", &u, &e) == 0 && u.uid == 0,
	   "no passwd, root");
	user_done(&u);
	ok(user_resolve(root, "1000", "", &u, &e) == 0 && u.gid == 1000,
	   "no passwd, a number");
	user_done(&u);
	if (mkfifo(path, 0666) < 0)
		abort();
	ok(user_resolve(root, "alice", "", &u, &e) < 0, "a FIFO is not read");
	unlink(path);
	if (symlink("/proc/self/root/etc/passwd", path) < 0)
		abort();
	ok(user_resolve(root, "alice", "", &u, &e) < 0,
	   "a link leads nowhere outside");
	unlink(path);
	snprintf(big, sizeof(big), "%s/big", dir);
	put(big, passwd);
	if (symlink("/big", path) < 0)
		abort();
	ok(user_resolve(root, "alice", "", &u, &e) == 0 && u.uid == 1000,
	   "a link resolves inside the root");
	user_done(&u);
	if (truncate(big, 2 << 20) < 0)
		abort();
	ok(user_resolve(root, "alice", "", &u, &e) < 0, "too large");
	unlink(big);
	unlink(path);
}

int main(void)
{
	char dir[] = "/tmp/dsec-user-XXXXXX", path[256];
	auto_close int root = -1;

	if (!mkdtemp(dir))
		abort();
	snprintf(path, sizeof(path), "%s/etc", dir);
	if (mkdir(path, 0700) < 0)
		abort();
	snprintf(path, sizeof(path), "%s/etc/passwd", dir);
	put(path, passwd);
	snprintf(path, sizeof(path), "%s/etc/group", dir);
	put(path, group);
	root = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	check_cases(root);
	check_hostile(dir, root);
	fd_close(steal_fd(&root));
	fd_remove_tree(AT_FDCWD, dir, NULL);
	return tap_done();
}
