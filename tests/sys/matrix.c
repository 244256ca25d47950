/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that hold what a checkpoint has to carry over, each of which checks
 * all the time that it still has it:
 *
 *   matrix run DIR [PYTHON [MB]]   start them all and stay with them
 *   matrix tty DIR                 one more, on the terminal it is started with
 *   matrix check DIR [SECONDS]     have all gone on, and are they well?
 *
 * A process reports in DIR/r/NAME, in one line of fixed length: its name and
 * pid, how many rounds it has made, and "ok" or what was wrong, for ever.
 * check prints one line for each that does not go on or is unwell, else
 * nothing, and then "N processes".
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>

#include "matrix.h"
#include "matrix_memory.h"

/* --- threads and a lock -------------------------------------------------- */

#define THREADS 4

static struct {
	pthread_mutex_t lock;
	pthread_cond_t turn;
	unsigned long a, b, by[THREADS];
	pid_t tid[THREADS];
	int bad;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER,
	    .turn = PTHREAD_COND_INITIALIZER};

static _Thread_local unsigned long mine; /* TLS comes back, too */

static void *worker(void *arg)
{
	size_t i = (size_t)(uintptr_t)arg;

	shared.tid[i] = gettid();
	for (;;) {
		pthread_mutex_lock(&shared.lock);
		while (shared.a % THREADS != i)
			pthread_cond_wait(&shared.turn, &shared.lock);
		shared.bad |= shared.a != shared.b;
		shared.bad |= mine != shared.by[i];
		shared.bad |= gettid() != shared.tid[i];
		shared.a++;
		shared.b++;
		shared.by[i] = ++mine;
		pthread_cond_broadcast(&shared.turn);
		pthread_mutex_unlock(&shared.lock);
		usleep(2000);
	}
	return NULL;
}

static void threads(void)
{
	unsigned long was[THREADS] = {0};
	pthread_t t;

	for (size_t i = 0; i < THREADS; i++)
		WANT(pthread_create(&t, NULL, worker, (void *)(uintptr_t)i) ==
		     0);
	for (;;) {
		for (int i = 0; i < 100; i++) {
			usleep(20000);
			if (shared.by[THREADS - 1] != was[THREADS - 1])
				break;
		}
		pthread_mutex_lock(&shared.lock);
		for (int i = 0; i < THREADS; i++) {
			WANT(shared.by[i] != was[i] || i < THREADS - 1);
			was[i] = shared.by[i];
		}
		WANT(!shared.bad);
		pthread_mutex_unlock(&shared.lock);
		round_done();
	}
}

/* --- pipes --------------------------------------------------------------- */

#define QUEUED 4000

/* Bytes that nobody has read yet: QUEUED of them all the time. */
static void queued(void)
{
	unsigned char buf[QUEUED];
	unsigned long in = 0, out = 0;
	int p[2];

	WANT(pipe(p) == 0);
	fill(buf, QUEUED, in);
	WANT(write(p[1], buf, QUEUED) == QUEUED);
	for (in = QUEUED;; in += 100, out += 100) {
		int n = 0;

		WANT(get(p[0], buf, 100) == 100 && filled(buf, 100, out));
		fill(buf, 100, in);
		WANT(write(p[1], buf, 100) == 100);
		WANT(ioctl(p[0], FIONREAD, &n) == 0 && n == QUEUED);
		round_done();
	}
}

static int pipeline[2];

static void writer(void)
{
	unsigned char buf[512];

	close(pipeline[0]);
	for (unsigned long at = 0;; at += sizeof(buf)) {
		fill(buf, sizeof(buf), at);
		WANT(write(pipeline[1], buf, sizeof(buf)) == sizeof(buf));
		round_done();
	}
}

static void reader(void)
{
	unsigned char buf[512];

	close(pipeline[1]);
	for (unsigned long at = 0;; at += sizeof(buf)) {
		WANT(get(pipeline[0], buf, sizeof(buf)) == sizeof(buf));
		WANT(filled(buf, sizeof(buf), at));
		round_done();
	}
}

/* --- unix sockets -------------------------------------------------------- */

static void unix_address(struct sockaddr_un *a, socklen_t *len, const char *fmt,
			 ...)
{
	va_list ap;

	*a = (struct sockaddr_un){.sun_family = AF_UNIX};
	va_start(ap, fmt);
	vsnprintf(a->sun_path, sizeof(a->sun_path), fmt, ap);
	va_end(ap);
	*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
			   strlen(a->sun_path));
	if (a->sun_path[0] == '@')
		a->sun_path[0] = '\0';
}

/* A connection over a listener, with bytes on the way in both directions. */
static void stream_on(const char *fmt, const char *arg, bool again)
{
	struct sockaddr_un a;
	unsigned char buf[300];
	socklen_t len;
	int l, c, s;

	unix_address(&a, &len, fmt, arg);
	unlink(a.sun_path);
	l = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	WANT(bind(l, (struct sockaddr *)&a, len) == 0 && listen(l, 8) == 0);
	c = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	WANT(connect(c, (struct sockaddr *)&a, len) == 0);
	s = accept(l, NULL, NULL);
	for (unsigned long at = 0;; at += 100) {
		if (at == 0) { /* what stays queued */
			fill(buf, 300, 0);
			WANT(write(c, buf, 300) == 300);
			WANT(write(s, buf, 300) == 300);
		}
		WANT(get(s, buf, 100) == 100 && filled(buf, 100, at));
		WANT(get(c, buf, 100) == 100 && filled(buf, 100, at));
		fill(buf, 100, at + 300);
		WANT(write(c, buf, 100) == 100);
		WANT(write(s, buf, 100) == 100);
		if (again) { /* the name leads to it still */
			int c2 = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
			int s2;

			WANT(connect(c2, (struct sockaddr *)&a, len) == 0);
			s2 = accept(l, NULL, NULL);
			WANT(write(c2, "x", 1) == 1 && get(s2, buf, 1) == 1);
			close(c2);
			close(s2);
		}
		round_done();
	}
}

static void stream(void)
{
	stream_on("%s/stream", dir, true);
}

static void abstract(void)
{
	stream_on("@%s/abstract", dir, true);
}

/* Datagrams keep their bounds: n bytes, then n + 1, ... */
static void dgram(void)
{
	unsigned char buf[64];
	int s[2];

	WANT(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, s) == 0);
	for (unsigned long i = 0; i < 3; i++) {
		fill(buf, 10 + i, i);
		WANT(write(s[0], buf, 10 + i) == (ssize_t)(10 + i));
	}
	for (unsigned long i = 0;; i++) {
		size_t len = 10 + i % 50, next = 10 + (i + 3) % 50;

		WANT(comes(s[1], PATIENT_MS));
		WANT(read(s[1], buf, sizeof(buf)) == (ssize_t)len);
		WANT(filled(buf, len, i));
		fill(buf, next, i + 3);
		WANT(write(s[0], buf, next) == (ssize_t)next);
		round_done();
	}
}

/* --- TCP within the sandbox ---------------------------------------------- */

static int tcp_listener;

static struct sockaddr_in tcp_address(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET};
	socklen_t len = sizeof(a);

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	getsockname(tcp_listener, (struct sockaddr *)&a, &len);
	return a;
}

static void tcp_listen(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET};

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	tcp_listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(tcp_listener, (struct sockaddr *)&a, sizeof(a)) < 0 ||
	    listen(tcp_listener, 8) < 0)
		tcp_listener = -1;
}

static void tcp_server(void)
{
	unsigned char buf[256];
	int s = accept(tcp_listener, NULL, NULL);

	WANT(s >= 0);
	for (unsigned long at = 0;; at += sizeof(buf)) {
		WANT(get(s, buf, sizeof(buf)) == sizeof(buf));
		WANT(filled(buf, sizeof(buf), at));
		WANT(write(s, buf, sizeof(buf)) == sizeof(buf));
		round_done();
	}
}

static void tcp_client(void)
{
	int c = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in a = tcp_address();
	unsigned char buf[256];

	WANT(connect(c, (struct sockaddr *)&a, sizeof(a)) == 0);
	for (unsigned long at = 0;; at += sizeof(buf)) {
		fill(buf, sizeof(buf), at);
		WANT(write(c, buf, sizeof(buf)) == sizeof(buf));
		WANT(get(c, buf, sizeof(buf)) == sizeof(buf));
		WANT(filled(buf, sizeof(buf), at));
		round_done();
	}
}

/* --- descriptors that tell of events ------------------------------------- */

static void epoll(void)
{
	int ep = epoll_create1(EPOLL_CLOEXEC), p[2];
	int ev = eventfd(7, EFD_CLOEXEC | EFD_NONBLOCK);
	struct epoll_event a = {.events = EPOLLIN,
				.data.u64 = 0x1111222233334444};
	struct epoll_event b = {.events = EPOLLIN | EPOLLET, .data.u64 = 5};
	uint64_t v;

	WANT(pipe2(p, O_CLOEXEC | O_NONBLOCK) == 0);
	WANT(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &a) == 0);
	WANT(epoll_ctl(ep, EPOLL_CTL_ADD, ev, &b) == 0);
	for (;;) {
		struct epoll_event got[4];
		bool pipe_told = false, event_told = false;
		int n;

		WANT(write(p[1], "x", 1) == 1);
		v = 1;
		WANT(write(ev, &v, sizeof(v)) == sizeof(v));
		do
			n = epoll_wait(ep, got, 4, PATIENT_MS);
		while (n < 0 && errno == EINTR);
		for (int i = 0; i < n; i++) {
			pipe_told |= got[i].data.u64 == a.data.u64;
			event_told |= got[i].data.u64 == b.data.u64;
		}
		WANT(n == 2 && pipe_told && event_told);
		WANT(read(p[0], &v, 1) == 1);
		/* 7 were there from the beginning, and are put back. */
		WANT(read(ev, &v, sizeof(v)) == sizeof(v) && v == 8);
		v = 7;
		WANT(write(ev, &v, sizeof(v)) == sizeof(v));
		round_done();
	}
}

static void timer(void)
{
	struct itimerspec in = {.it_value.tv_nsec = 30000000};
	int t = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	uint64_t ticks;

	for (;;) {
		WANT(timerfd_settime(t, 0, &in, NULL) == 0);
		WANT(comes(t, PATIENT_MS));
		WANT(read(t, &ticks, sizeof(ticks)) == sizeof(ticks) &&
		     ticks == 1);
		round_done();
	}
}

static void watch(void)
{
	char path[512], buf[4096];
	int ino = inotify_init1(IN_CLOEXEC), fd;

	snprintf(path, sizeof(path), "%s/watched", dir);
	mkdir(path, 0755);
	WANT(inotify_add_watch(ino, path, IN_CREATE) > 0);
	strcat(path, "/f");
	for (;;) {
		/* Events that were queued are lost: those of now must come. */
		fcntl(ino, F_SETFL, O_NONBLOCK);
		while (read(ino, buf, sizeof(buf)) > 0)
			;
		fcntl(ino, F_SETFL, 0);
		fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
		WANT(fd >= 0);
		close(fd);
		unlink(path);
		WANT(comes(ino, 2000));
		round_done();
	}
}

/* --- files --------------------------------------------------------------- */

static int unlinked_file(const char *name, size_t size)
{
	unsigned char *buf = malloc(size);
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	fill(buf, size, 0);
	WANT(fd >= 0 && write(fd, buf, size) == (ssize_t)size);
	unlink(path);
	free(buf);
	return fd;
}

static void check_file(int fd, size_t size, unsigned long round)
{
	unsigned char buf[4096];
	struct stat st;
	off_t at = (off_t)(round * 4096 % size);
	size_t len = size - (size_t)at < 4096 ? size - (size_t)at : 4096;

	WANT(fstat(fd, &st) == 0 && st.st_nlink == 0);
	WANT((size_t)st.st_size == size);
	WANT(pread(fd, buf, len, at) == (ssize_t)len);
	WANT(filled(buf, len, (unsigned long)at));
	WANT(pwrite(fd, buf, len, at) == (ssize_t)len);
}

#define SMALL 100
#define LARGE ((3 << 20) + 17)

static void unlinked(void)
{
	int small = unlinked_file("small", SMALL);
	int large = unlinked_file("large", LARGE);

	lseek(small, 33, SEEK_SET);
	for (unsigned long n = 0;; n++) {
		check_file(small, SMALL, n);
		check_file(large, LARGE, n);
		WANT(lseek(small, 0, SEEK_CUR) == 33);
		round_done();
	}
}

static int lock_files[2];

static void lock_paths(char out[2][512])
{
	snprintf(out[0], 512, "%s/flock", dir);
	snprintf(out[1], 512, "%s/fcntl", dir);
}

static void locker(void)
{
	struct flock all = {.l_type = F_WRLCK,
			    .l_whence = SEEK_SET,
			    .l_len = 10};
	char path[2][512];

	lock_paths(path);
	for (int i = 0; i < 2; i++)
		lock_files[i] = open(path[i], O_RDWR | O_CREAT | O_CLOEXEC,
				     0644);
	WANT(flock(lock_files[0], LOCK_EX) == 0);
	WANT(fcntl(lock_files[1], F_SETLK, &all) == 0);
	for (;;) {
		/* Still ours: asking again is granted. */
		WANT(flock(lock_files[0], LOCK_EX | LOCK_NB) == 0);
		WANT(fcntl(lock_files[1], F_SETLK, &all) == 0);
		round_done();
	}
}

/* Another process that must not get them. */
static void locked_out(void)
{
	char path[2][512];
	int fd[2];

	lock_paths(path);
	for (int i = 0; i < 2; i++)
		fd[i] = open(path[i], O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	/* The locker begins with it. */
	for (int i = 0; i < 500; i++) {
		struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

		fcntl(fd[1], F_GETLK, &l);
		if (l.l_type == F_WRLCK)
			break;
		usleep(10000);
	}
	for (;;) {
		struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

		WANT(flock(fd[0], LOCK_EX | LOCK_NB) < 0);
		WANT(fcntl(fd[1], F_GETLK, &l) == 0 && l.l_type == F_WRLCK &&
		     l.l_len == 10 && l.l_pid > 0);
		round_done();
	}
}

/* --- a terminal whose master is inside ----------------------------------- */

static int pty_master;
static char pty_name[64];

static void pty_open(void)
{
	struct termios raw;

	pty_master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (pty_master < 0 || grantpt(pty_master) < 0 ||
	    unlockpt(pty_master) < 0 ||
	    ptsname_r(pty_master, pty_name, sizeof(pty_name)) != 0)
		pty_master = -1;
	if (tcgetattr(pty_master, &raw) == 0) {
		cfmakeraw(&raw);
		tcsetattr(pty_master, TCSANOW, &raw);
	}
}

static void pty(void)
{
	char want[64], got[64];
	struct winsize w = {.ws_row = 33, .ws_col = 77}, now;

	WANT(pty_master >= 0);
	WANT(ioctl(pty_master, TIOCSWINSZ, &w) == 0);
	for (unsigned long n = 0;; n++) {
		int len = snprintf(want, sizeof(want), "line %lu\n", n);

		WANT(write(pty_master, want, (size_t)len) == len);
		/* The slave is raw, and says it back in capitals. */
		memset(got, 0, sizeof(got));
		WANT(get(pty_master, got, (size_t)len) == (size_t)len);
		WANT(!strncmp(got, "LINE ", 5) && !strcmp(got + 4, want + 4));
		WANT(ioctl(pty_master, TIOCGWINSZ, &now) == 0 &&
		     now.ws_row == 33 && now.ws_col == 77);
		round_done();
	}
}

static void pty_slave(void)
{
	char buf[64];
	ssize_t n;
	int fd;

	/* A session and a terminal of its own; a pgid that is its pid. */
	setsid();
	fd = open(pty_name, O_RDWR | O_CLOEXEC);
	WANT(fd >= 0);
	WANT(ioctl(fd, TIOCSCTTY, 0) == 0);
	for (;;) {
		WANT(comes(fd, PATIENT_MS));
		n = read(fd, buf, sizeof(buf));
		WANT(n > 0);
		for (ssize_t i = 0; i < n; i++)
			if (buf[i] >= 'a' && buf[i] <= 'z')
				buf[i] = (char)(buf[i] - 32);
		WANT(n <= 0 || write(fd, buf, (size_t)n) == n);
		WANT(getsid(0) == me.pid && tcgetsid(fd) == me.pid);
		round_done();
	}
}

/* --- children ------------------------------------------------------------ */

static char state_of(pid_t pid)
{
	char path[64], buf[512] = {0}, *p;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return '?';
	if (read(fd, buf, sizeof(buf) - 1) < 0)
		buf[0] = '\0';
	close(fd);
	p = strrchr(buf, ')');
	return p ? p[2] : '?';
}

static void children(void)
{
	pid_t stopped, zombie;
	siginfo_t si;

	stopped = fork();
	if (stopped == 0)
		for (;;)
			pause();
	zombie = fork();
	if (zombie == 0)
		_exit(42);
	WANT(kill(stopped, SIGSTOP) == 0);
	WANT(waitpid(stopped, NULL, WUNTRACED) == stopped);
	WANT(waitid(P_PID, (id_t)zombie, &si, WEXITED | WNOWAIT) == 0);
	for (;;) {
		/* Just thawed, it is about to stop again. */
		for (int i = 0; i < 200 && state_of(stopped) != 'T'; i++)
			usleep(10000);
		WANT(state_of(stopped) == 'T');
		WANT(state_of(zombie) == 'Z');
		WANT(waitid(P_PID, (id_t)zombie, &si,
			    WEXITED | WNOWAIT | WNOHANG) == 0 &&
		     si.si_status == 42);
		round_done();
	}
}

/* A signal that is blocked and waits; a handler that still runs. */
static volatile sig_atomic_t alarms;

static void on_alarm(int sig)
{
	(void)sig;
	alarms++;
}

static void signals(void)
{
	struct sigaction act = {.sa_handler = on_alarm};
	sigset_t set, is;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	kill(getpid(), SIGUSR1);
	sigaction(SIGALRM, &act, NULL);
	for (sig_atomic_t n = 0;; n++) {
		alarms = 0;
		WANT(ualarm(20000, 0) < 20000);
		for (int i = 0; i < 1000 && !alarms; i++)
			usleep(10000);
		WANT(alarms == 1);
		WANT(sigprocmask(SIG_BLOCK, NULL, &is) == 0 &&
		     sigismember(&is, SIGUSR1) == 1);
		WANT(sigpending(&is) == 0 && sigismember(&is, SIGUSR1) == 1);
		round_done();
	}
}

/* --- a terminal from outside --------------------------------------------- */

static void outer_tty(void)
{
	struct winsize w;

	for (;;) {
		WANT(isatty(0) && isatty(1));
		WANT(ioctl(0, TIOCGWINSZ, &w) == 0);
		WANT(tcgetsid(0) == getsid(0));
		if (me.n % 10 == 0)
			WANT(dprintf(1, "tty %lu\n", me.n) > 0);
		round_done();
	}
}

/* --- all of them --------------------------------------------------------- */

static const struct {
	const char *name;
	void (*fn)(void);
} roles[] = {
	{"threads", threads},
	{"queued", queued},
	{"writer", writer},
	{"reader", reader},
	{"stream", stream},
	{"abstract", abstract},
	{"dgram", dgram},
	{"tcp-server", tcp_server},
	{"tcp-client", tcp_client},
	{"epoll", epoll},
	{"timer", timer},
	{"watch", watch},
	{"unlinked", unlinked},
	{"locker", locker},
	{"locked-out", locked_out},
	{"pty", pty},
	{"pty-slave", pty_slave},
	{"children", children},
	{"signals", signals},
	{"memory", memory},
	{"memory-other", memory_other},
	{"cow", cow},
	{"cow-child", cow_child},
};

#define ROLES (sizeof(roles) / sizeof(roles[0]))

static void start_python(const char *python, const char *mb)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/r/python", dir);
	execl(python, python, "-I", "-S", "-c", python_text, path, mb,
	      (char *)NULL);
	dprintf(2, "matrix: cannot execute %s\n", python);
	_exit(4);
}

/* Where the reports are; who comes first makes it. */
static int make_dirs(void)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/r", dir);
	mkdir(dir, 0755);
	return mkdir(path, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

static int run(const char *python, const char *mb)
{
	pid_t pid;
	int status;

	if (make_dirs() < 0)
		return 2;
	signal(SIGPIPE, SIG_IGN);
	tcp_listen();
	pty_open();
	memory_open();
	cow_memory = mmap(NULL, COW_SIZE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fill(cow_memory, COW_SIZE, 0);
	if (pipe(pipeline) < 0)
		return 2;
	for (size_t i = 0; i < ROLES; i++) {
		pid = fork();
		if (pid < 0)
			return 2;
		if (pid == 0) {
			start(roles[i].name);
			roles[i].fn();
		}
	}
	if (*python && fork() == 0)
		start_python(python, mb);
	close(pipeline[0]);
	close(pipeline[1]);
	start("parent");
	for (;;) {
		pid = waitpid(-1, &status, WNOHANG);
		WANT(pid == 0); /* nobody ends */
		round_done();
	}
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 64;
	dir = argv[2];
	if (!strcmp(argv[1], "run"))
		return run(argc > 3 ? argv[3] : "", argc > 4 ? argv[4] : "100");
	if (!strcmp(argv[1], "check"))
		return check(argc > 3 ? atoi(argv[3]) : 20);
	if (!strcmp(argv[1], "tty")) {
		if (make_dirs() < 0)
			return 2;
		/* Who started it goes away, and pid 1 becomes its parent. */
		while (getppid() != 1)
			usleep(10000);
		start("tty");
		outer_tty();
	}
	return 64;
}
