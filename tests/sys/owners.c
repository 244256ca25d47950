/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Things of user 1000 that a checkpoint must give back to user 1000, whatever
 * ids of the host that is:
 *
 *	owners DIR    make them, then at every line of DIR/ask (a FIFO) print to
 *		      DIR/said, a line each, whose they are
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GHOST, SHM_GHOST, SHM_FILE, MEMFD, LISTENER, PTY, PIPE, FDS };

static const char *const names[FDS] = {
	"unlinked file",
	"unlinked file of /dev/shm",
	"file of /dev/shm",
	"memfd",
	"socket",
	"terminal",
	"pipe",
};

static int fds[FDS], shm, sem, msg, pair[2];

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static int file(const char *path, int unlinked)
{
	int fd = open(path, O_RDWR | O_CREAT, 0640);

	if (fd < 0 || write(fd, "x", 1) != 1 || (unlinked && unlink(path) < 0))
		die(path);
	return fd;
}

static int listener(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX,
				.sun_path = "owners.sock"};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 5) < 0)
		die("socket");
	return fd;
}

static int terminal(void)
{
	int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY);
	const char *name;

	if (fd < 0 || grantpt(fd) < 0 || unlockpt(fd) < 0)
		die("terminal");
	name = ptsname(fd);
	return name ? open(name, O_RDWR | O_NOCTTY) : -1;
}

static void make(void)
{
	int p[2];

	fds[GHOST] = file("ghost", 1);
	fds[SHM_GHOST] = file("/dev/shm/ghost", 1);
	fds[SHM_FILE] = file("/dev/shm/owned", 0);
	fds[MEMFD] = memfd_create("owned", 0);
	fds[LISTENER] = listener();
	fds[PTY] = terminal();
	if (pipe(p) < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
		die("pipe");
	fds[PIPE] = p[0];
	shm = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
	sem = semget(IPC_PRIVATE, 2, IPC_CREAT | 0600);
	msg = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
	if (shm < 0 || sem < 0 || msg < 0)
		die("System V");
	for (int i = 0; i < FDS; i++)
		if (fds[i] < 0)
			die(names[i]);
}

static void say(FILE *f, const char *name, long uid, long gid)
{
	fprintf(f, "%s %ld %ld\n", name, uid, gid);
}

static void say_ipc(FILE *f, const char *name, int r,
		    const struct ipc_perm *perm)
{
	if (r < 0)
		fprintf(f, "%s %s\n", name, strerror(errno));
	else
		say(f, name, perm->uid, perm->cuid);
}

static void say_all(FILE *f)
{
	struct ucred cred = {0};
	struct shmid_ds m = {0};
	struct semid_ds s = {0};
	struct msqid_ds q = {0};
	socklen_t len = sizeof(cred);
	struct stat st;
	gid_t groups[8];
	int n;

	for (int i = 0; i < FDS; i++)
		if (fstat(fds[i], &st) == 0)
			say(f, names[i], st.st_uid, st.st_gid);
	if (stat("owners.sock", &st) == 0)
		say(f, "socket's file", st.st_uid, st.st_gid);
	if (stat("/dev/shm", &st) == 0)
		say(f, "/dev/shm", st.st_uid, st.st_gid);
	if (stat("/dev/pts", &st) == 0)
		say(f, "/dev/pts", st.st_uid, st.st_gid);
	if (getsockopt(pair[0], SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0)
		say(f, "peer", cred.uid, cred.gid);
	say_ipc(f, "shm", shmctl(shm, IPC_STAT, &m), &m.shm_perm);
	say_ipc(f, "sem", semctl(sem, 0, IPC_STAT, &s), &s.sem_perm);
	say_ipc(f, "msg", msgctl(msg, IPC_STAT, &q), &q.msg_perm);
	say(f, "process", getuid(), getegid());
	n = getgroups(8, groups);
	for (int i = 0; i < n; i++)
		fprintf(f, "group %d\n", (int)groups[i]);
}

static void answer(void)
{
	char line[64];
	FILE *ask, *said;

	ask = fopen("ask", "r");
	if (!ask)
		die("ask");
	/* Whoever asked last may not have closed it yet. */
	if (!fgets(line, sizeof(line), ask)) {
		fclose(ask);
		return;
	}
	fclose(ask);
	said = fopen("said.new", "w");
	if (!said)
		die("said");
	say_all(said);
	fclose(said);
	if (rename("said.new", "said") < 0)
		die("said");
}

int main(int argc, char **argv)
{
	const gid_t groups[] = {1000, 2000, 65000};

	if (argc != 2 || mkdir(argv[1], 0755) < 0 ||
	    chown(argv[1], 1000, 1000) < 0 || chdir(argv[1]) < 0)
		die("owners DIR");
	if (setgroups(3, groups) < 0 || setgid(1000) < 0 || setuid(1000) < 0)
		die("user 1000");
	if (mkfifo("ask", 0622) < 0)
		die("ask");
	make();
	for (;;)
		answer();
}
