/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What cannot be checkpointed, or only with a warning.  Inside a sandbox:
 *
 *   oddity take SOCKET   wait for a descriptor on SOCKET, keep it, and nothing
 *                        else of whoever sent it
 *   oddity meet SOCKET   accept a connection and keep it
 *   oddity traced        a child that is traced
 *   oddity ticks         a periodic timer with a tick that nobody reads
 *   oddity events DIR    inotify on DIR, with events that nobody reads
 *   oddity unnamed FILE  inotify on FILE, which is removed but open
 *   oddity linked FILE   FILE open, that name removed, another one there
 *   oddity backlog       a connection to itself that was not accepted
 *   oddity connecting    one that is not answered, since others wait
 *   oddity headless      a thread that runs on, the first one has ended
 *   oddity spawning [S]  a child of vfork() that begins no program; it ends
 *                        after S seconds
 *   oddity deep DIR      a file open, far below DIR
 *   oddity watching FILE inotify on FILE
 *
 * Outside:
 *
 *   oddity give SOCKET KIND  make one and send it: io_uring, userfaultfd, perf,
 *                            bpf, seccomp, netns, fanotify, file, socket,
 *                            vsock
 *   oddity call SOCKET       connect and stay
 *
 * Each says "ready" on standard output when it is, "cannot" where this kernel
 * does not let it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int stay(int fd)
{
	if (fd < 0) {
		printf("cannot: %s\n", strerror(errno));
		fflush(stdout);
		return 1;
	}
	printf("ready\n");
	fflush(stdout);
	for (;;)
		pause();
}

static struct sockaddr_un name(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	return a;
}

static int hear(const char *path)
{
	struct sockaddr_un a = name(path);
	int s = socket(AF_UNIX, SOCK_STREAM, 0);

	unlink(path);
	if (s < 0 || bind(s, (struct sockaddr *)&a, sizeof(a)) < 0 ||
	    listen(s, 1) < 0)
		return -1;
	printf("hears\n");
	fflush(stdout);
	return accept(s, NULL, NULL);
}

static int reach(const char *path)
{
	struct sockaddr_un a = name(path);
	int s = socket(AF_UNIX, SOCK_STREAM, 0);

	if (s < 0 || connect(s, (struct sockaddr *)&a, sizeof(a)) < 0)
		return -1;
	return s;
}

static int take(const char *path)
{
	char byte, room[CMSG_SPACE(sizeof(int))];
	struct iovec v = {&byte, 1};
	struct msghdr m = {
		.msg_iov = &v,
		.msg_iovlen = 1,
		.msg_control = room,
		.msg_controllen = sizeof(room),
	};
	int s = hear(path), fd;

	if (s < 0 || recvmsg(s, &m, 0) != 1 || !CMSG_FIRSTHDR(&m))
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	close(s);
	return fd;
}

static int give(const char *path, int fd)
{
	char byte = 'x', room[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec v = {&byte, 1};
	struct msghdr m = {
		.msg_iov = &v,
		.msg_iovlen = 1,
		.msg_control = room,
		.msg_controllen = sizeof(room),
	};
	int s;

	if (fd < 0) {
		printf("cannot: %s\n", strerror(errno));
		return 1;
	}
	CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
	CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
	CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof(fd));
	s = reach(path);
	if (s < 0 || sendmsg(s, &m, 0) != 1)
		return 1;
	printf("ready\n");
	return 0;
}

static int uring(void)
{
	char params[256] = {0};

	return (int)syscall(SYS_io_uring_setup, 4, params);
}

static int perf(void)
{
	struct perf_event_attr a = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(a),
		.config = PERF_COUNT_SW_CPU_CLOCK,
	};

	return (int)syscall(SYS_perf_event_open, &a, 0, -1, -1, 0);
}

static int bpf(void)
{
	union bpf_attr a = {
		.map_type = BPF_MAP_TYPE_ARRAY,
		.key_size = 4,
		.value_size = 4,
		.max_entries = 1,
	};

	return (int)syscall(SYS_bpf, BPF_MAP_CREATE, &a, sizeof(a));
}

static int notifier(void)
{
	struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
	struct sock_fprog prog = {1, &allow};

	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
			    SECCOMP_FILTER_FLAG_NEW_LISTENER, &prog);
}

static int netns(void)
{
	return unshare(CLONE_NEWNET) < 0 ? -1
					 : open("/proc/self/ns/net", O_RDONLY);
}

static int fanotify(void)
{
	return fanotify_init(FAN_CLASS_NOTIF, O_RDONLY);
}

static const struct {
	const char *name;
	int (*make)(void);
} kinds[] = {
	{"io_uring", uring},   {"perf", perf},	 {"bpf", bpf},
	{"seccomp", notifier}, {"netns", netns}, {"fanotify", fanotify},
};

static int make(const char *kind)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!strcmp(kind, kinds[i].name))
			return kinds[i].make();
	if (!strcmp(kind, "userfaultfd"))
		return (int)syscall(SYS_userfaultfd, 0);
	if (!strcmp(kind, "file"))
		return open("/etc/passwd", O_RDONLY);
	if (!strcmp(kind, "socket"))
		return socket(AF_INET, SOCK_DGRAM, 0);
	if (!strcmp(kind, "vsock"))
		return socket(AF_VSOCK, SOCK_STREAM, 0);
	return -1;
}

static int traced(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		for (;;)
			pause();
	}
	return pid < 0 || waitpid(pid, NULL, WUNTRACED) != pid ? -1 : 0;
}

static int ticks(void)
{
	const struct itimerspec often = {{0, 1000000}, {0, 1000000}};
	int fd = timerfd_create(CLOCK_MONOTONIC, 0);

	if (fd < 0 || timerfd_settime(fd, 0, &often, NULL) < 0)
		return -1;
	usleep(20000);
	return fd;
}

static int events(const char *dir)
{
	int fd = inotify_init1(0);

	if (fd < 0 || inotify_add_watch(fd, dir, IN_CREATE) < 0)
		return -1;
	return openat(open(dir, O_PATH), "new", O_CREAT | O_WRONLY, 0600);
}

static int unnamed(const char *file)
{
	int fd = open(file, O_CREAT | O_RDWR, 0600), in = inotify_init1(0);

	if (fd < 0 || inotify_add_watch(in, file, IN_MODIFY) < 0)
		return -1;
	return unlink(file) < 0 ? -1 : fd;
}

static int linked(const char *file)
{
	int fd = open(file, O_CREAT | O_RDWR, 0600);
	char other[300];

	snprintf(other, sizeof(other), "%s.other", file);
	if (fd < 0 || link(file, other) < 0)
		return -1;
	return unlink(file) < 0 ? -1 : fd;
}

static int backlog(void)
{
	struct sockaddr_in a = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t len = sizeof(a);
	int s = socket(AF_INET, SOCK_STREAM, 0);
	int c = socket(AF_INET, SOCK_STREAM, 0);

	if (bind(s, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(s, 5) < 0 ||
	    getsockname(s, (struct sockaddr *)&a, &len) < 0)
		return -1;
	return connect(c, (struct sockaddr *)&a, sizeof(a));
}

static int connecting(void)
{
	struct sockaddr_in a = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t len = sizeof(a);
	int s = socket(AF_INET, SOCK_STREAM, 0), c = -1;

	if (bind(s, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(s, 1) < 0 ||
	    getsockname(s, (struct sockaddr *)&a, &len) < 0)
		return -1;
	for (int i = 0; i < 3; i++) {
		c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (connect(c, (struct sockaddr *)&a, sizeof(a)) < 0 &&
		    errno != EINPROGRESS)
			return -1;
	}
	return c;
}

static void *run_on(void *arg)
{
	/* By now the first one is gone, or about to be. */
	usleep(100000);
	stay(0);
	return arg;
}

static int headless(void)
{
	pthread_t t;

	if (pthread_create(&t, NULL, run_on, NULL))
		return -1;
	syscall(SYS_exit, 0);
	return -1;
}

static int spawning(const char *seconds)
{
	long pid = syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);

	if (pid == 0 && *seconds)
		alarm((unsigned)atoi(seconds));
	return pid < 0 ? -1 : 0;
}

static int deep(const char *dir)
{
	char name[201];

	memset(name, 'd', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	if (chdir(dir) < 0)
		return -1;
	for (int i = 0; i < 30; i++)
		if (mkdir(name, 0700) < 0 || chdir(name) < 0)
			return -1;
	return open("f", O_CREAT | O_RDWR, 0600);
}

static int watching(const char *file)
{
	int fd = inotify_init1(0);

	return inotify_add_watch(fd, file, IN_ALL_EVENTS) < 0 ? -1 : fd;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	const char *arg = argc > 2 ? argv[2] : "";

	if (!strcmp(what, "take"))
		return stay(take(arg));
	if (!strcmp(what, "meet"))
		return stay(hear(arg));
	if (!strcmp(what, "traced"))
		return stay(traced());
	if (!strcmp(what, "ticks"))
		return stay(ticks());
	if (!strcmp(what, "events"))
		return stay(events(arg));
	if (!strcmp(what, "unnamed"))
		return stay(unnamed(arg));
	if (!strcmp(what, "linked"))
		return stay(linked(arg));
	if (!strcmp(what, "backlog"))
		return stay(backlog());
	if (!strcmp(what, "connecting"))
		return stay(connecting());
	if (!strcmp(what, "headless"))
		return stay(headless());
	if (!strcmp(what, "spawning"))
		return stay(spawning(arg));
	if (!strcmp(what, "deep"))
		return stay(deep(arg));
	if (!strcmp(what, "watching"))
		return stay(watching(arg));
	if (!strcmp(what, "call"))
		return stay(reach(arg));
	if (!strcmp(what, "give") && argc > 3)
		return give(arg, make(argv[3]));
	fprintf(stderr, "oddity: what?\n");
	return 2;
}
