/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What runs out: group 14 of the escape list.
 *
 *	hoard take        all there is of each, say how much, hold it
 *	hoard share       a little of each: "ok", or what was had of it
 */
#include <mqueue.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include "attempt.h"

static long take_disk(const char *dir, bool all)
{
	static char block[1 << 20];
	char path[128];
	long n = 0;
	int fd;

	snprintf(path, sizeof(path), "%s/hoard", dir);
	fd = open(path, O_WRONLY | O_CREAT, 0600);
	if (fd < 0)
		return -errno;
	memset(block, 1, sizeof(block));
	while (n < (all ? 100 : 1) &&
	       write(fd, block, sizeof(block)) == sizeof(block))
		n++;
	close(fd);
	if (!all)
		unlink(path);
	return n;
}

static long take_inodes(const char *dir, bool all)
{
	/* Those of the writable layer may be the node's: not all of them. */
	long n, most = strcmp(dir, "/tmp") ? 300000 : 2000;
	char path[128];
	int fd;

	for (n = 0; n < (all ? most : 10); n++) {
		snprintf(path, sizeof(path), "%s/i%ld", dir, n);
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
		if (fd < 0)
			break;
		close(fd);
	}
	if (!all)
		for (long i = 0; i < n; i++) {
			snprintf(path, sizeof(path), "%s/i%ld", dir, i);
			unlink(path);
		}
	return n;
}

/* The rest is held by descriptors and ids until we end. */
static long take_inotify(const char *dir, bool all)
{
	long n = 0;

	(void)dir;
	while (n < (all ? 100000 : 8) && inotify_init1(0) >= 0)
		n++;
	return n;
}

static long take_pipes(const char *dir, bool all)
{
	long n = 0;
	int p[2];

	(void)dir;
	while (n < (all ? 100000 : 8) && pipe(p) == 0) {
		if (fcntl(p[0], F_SETPIPE_SZ, 1 << 20) < 0 && !all)
			return -errno;
		n++;
	}
	return n;
}

static long take_ptys(const char *dir, bool all)
{
	long n = 0;

	(void)dir;
	while (n < (all ? 100000 : 4) && posix_openpt(O_RDWR | O_NOCTTY) >= 0)
		n++;
	return n;
}

static long take_shm(const char *dir, bool all)
{
	long n = 0;
	int id;

	(void)dir;
	while (n < (all ? 100000 : 8)) {
		id = shmget(IPC_PRIVATE, 4096, 0600);
		if (id < 0)
			break;
		if (!all)
			shmctl(id, IPC_RMID, NULL);
		n++;
	}
	return n;
}

static long take_mqueue(const char *dir, bool all)
{
	char name[32];
	long n = 0;
	mqd_t q;

	(void)dir;
	while (n < (all ? 10000 : 4)) {
		snprintf(name, sizeof(name), "/q%d-%ld", (int)getpid(), n);
		q = mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, NULL);
		if (q == (mqd_t)-1)
			break;
		if (!all)
			mq_unlink(name);
		n++;
	}
	return n;
}

static long take_keys(const char *dir, bool all)
{
	(void)dir, (void)all;
	return result(syscall(SYS_add_key, "user", "k", "v", 1, -3));
}

/* A child's.  Who takes all of it is killed: a test of its own. */
static long take_memory(const char *dir, bool all)
{
	size_t size = (size_t)64 << 20;
	int status = 0;
	pid_t pid = fork();
	char *p;

	(void)dir, (void)all;
	if (pid == 0) {
		p = mmap(NULL, size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		for (size_t i = 0; p != MAP_FAILED && i < size; i += 4096)
			p[i] = 1;
		_exit(p == MAP_FAILED);
	}
	waitpid(pid, &status, 0);
	return WIFSIGNALED(status) ? -ENOMEM : status == 0;
}

static const struct {
	const char *name;
	long (*take)(const char *dir, bool all);
	const char *dir;
	long share; /* what a neighbour must still get */
} goods[] = {
	{"space of /dev/shm", take_disk, "/dev/shm", 1},
	{"inodes of /dev/shm", take_inodes, "/dev/shm", 10},
	{"inodes of /tmp", take_inodes, "/tmp", 10},
	{"space of /tmp", take_disk, "/tmp", 1},
	{"shared memory", take_shm, NULL, 8},
	{"message queues", take_mqueue, NULL, 4},
	{"inotify", take_inotify, NULL, 8},
	{"terminals", take_ptys, NULL, 4},
	{"keys", take_keys, NULL, -EPERM},
	{"memory", take_memory, NULL, 1},
	{"pipes", take_pipes, NULL, 8}, /* last: takes the descriptors */
};

static void take(void)
{
	char text[64];
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) == 0) {
		lim.rlim_cur = lim.rlim_max;
		setrlimit(RLIMIT_NOFILE, &lim);
	}
	for (size_t i = 0; i < LEN(goods); i++) {
		snprintf(text, sizeof(text), "%ld",
			 goods[i].take(goods[i].dir, true));
		say(14, goods[i].name, text);
	}
	say(14, "hoard", "held");
	for (;;)
		pause();
}

static int share(void)
{
	char text[64];
	long n;

	for (size_t i = 0; i < LEN(goods); i++) {
		n = goods[i].take(goods[i].dir, false);
		snprintf(text, sizeof(text), "%ld of %ld %s", n, goods[i].share,
			 n < 0 ? strerrorname_np((int)-n) : "");
		say(14, goods[i].name, n == goods[i].share ? "ok" : text);
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "take"))
		take();
	return share();
}
