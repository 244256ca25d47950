/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench [OPTION...] < CONTENDERS: time commands beside each other.
 *
 * A line of input is a contender: NAME FLAGS [VAR=VALUE...] COMMAND...
 * Every round runs each of them once, so that whatever else the machine does
 * meets all alike.  FLAGS is "-" or letters:
 *   p  in the mount namespace given by --peers
 *   o  an overlay root is mounted before and unmounted after, inside the time
 *   s  the filter of --seccomp is its descriptor 9
 *   n  --count launches with --jobs of them in flight, instead of one
 *   b  --count lines of --line are its standard input, instead of /dev/null
 *   r  its standard output is read through a pipe and counted
 * In COMMAND %b is the bundle directory (with rootfs/ in it) and %n a new name.
 *
 * Output: a JSON line per contender with medians.
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <getopt.h>
#include <limits.h>
#include <sched.h>
#include <seccomp.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CONTENDERS_MAX 16
#define WORDS_MAX      64
#define JOBS_MAX       16
#define ROUNDS_MAX     1000

enum { SECCOMP_FD = 9 };

struct sample {
	double wall, cpu, faults;
};

struct contender {
	char *name, *flags;
	char *words[WORDS_MAX + 1]; /* VAR=VALUE..., then the command */
	size_t nenv;
	struct sample samples[ROUNDS_MAX];
	size_t n, fails;
	unsigned long long bytes; /* read in the last round ('r') */
};

static const char *arg_work, *arg_line, *arg_seccomp;
static int arg_peers = -1, arg_home = -1, arg_filter = -1;
static size_t arg_rounds = 30, arg_count = 64, arg_jobs = 8;

static struct contender contenders[CONTENDERS_MAX];
static size_t ncontenders;
static unsigned long names;

static int open_or_die(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		err(1, "%s", path);
	return fd;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool has(const struct contender *c, char flag)
{
	return strchr(c->flags, flag) != NULL;
}

/* --- the overlay root of peers that cannot make one ---------------------- */

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void slot_path(char *buf, size_t slot, const char *what)
{
	snprintf(buf, PATH_MAX, "%s/slot%zu/%s", arg_work, slot, what);
}

static void root_mount(size_t slot)
{
	char upper[PATH_MAX], work[PATH_MAX], root[PATH_MAX];
	char options[4 * PATH_MAX];

	slot_path(upper, slot, "upper");
	slot_path(work, slot, "work");
	slot_path(root, slot, "rootfs");
	if (mkdir(upper, 0755) < 0 || mkdir(work, 0755) < 0)
		err(1, "%s", upper);
	snprintf(options, sizeof(options),
		 "lowerdir=%s/lower,upperdir=%s,workdir=%s", arg_work, upper,
		 work);
	if (mount("overlay", root, "overlay", 0, options) < 0)
		err(1, "mount overlay on %s", root);
}

static void root_unmount(size_t slot)
{
	static const char *const what[] = {"upper", "work"};
	char path[PATH_MAX];

	slot_path(path, slot, "rootfs");
	if (umount2(path, 0) < 0 && umount2(path, MNT_DETACH) < 0)
		warn("unmount %s", path);
	for (size_t i = 0; i < 2; i++) {
		slot_path(path, slot, what[i]);
		nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
	}
}

/* --- starting one -------------------------------------------------------- */

/* The word with %b and %n filled in, in one of a few static buffers. */
static char *fill(char *word, size_t slot)
{
	static char bufs[WORDS_MAX][PATH_MAX];
	static size_t next;
	char *out = bufs[next++ % WORDS_MAX];
	char *at = strchr(word, '%');

	if (!at)
		return word;
	if (at[1] == 'b')
		snprintf(out, PATH_MAX, "%.*s%s/slot%zu%s", (int)(at - word),
			 word, arg_work, slot, at + 2);
	else if (at[1] == 'n')
		snprintf(out, PATH_MAX, "%.*sdsec-bench-%d-%lu%s",
			 (int)(at - word), word, (int)getpid(), ++names,
			 at + 2);
	else
		return word;
	return out;
}

extern char **environ;

static char **environment(const struct contender *c)
{
	static char *env[1024];
	size_t n = 0;

	for (size_t i = 0; i < c->nenv; i++)
		env[n++] = c->words[i];
	for (char **e = environ; *e && n < 1023; e++)
		env[n++] = *e;
	env[n] = NULL;
	return env;
}

/* Opened anew, so that each reads it from its beginning. */
static int filter_open(void)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", arg_filter);
	return open_or_die(path);
}

static pid_t start(struct contender *c, size_t slot, int in, int out)
{
	posix_spawn_file_actions_t fa;
	char *argv[WORDS_MAX + 1];
	size_t n = 0;
	pid_t pid;
	int r, filter = -1;

	for (char **w = c->words + c->nenv; *w; w++)
		argv[n++] = fill(*w, slot);
	argv[n] = NULL;
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, in, 0);
	posix_spawn_file_actions_adddup2(&fa, out, 1);
	if (has(c, 's')) {
		filter = filter_open();
		posix_spawn_file_actions_adddup2(&fa, filter, SECCOMP_FD);
	}
	r = posix_spawnp(&pid, argv[0], &fa, NULL, argv, environment(c));
	posix_spawn_file_actions_destroy(&fa);
	if (filter >= 0)
		close(filter);
	if (r != 0)
		errx(1, "%s: %s", argv[0], strerror(r));
	return pid;
}

/* --- counting ------------------------------------------------------------ */

static void add(struct sample *s, const struct rusage *ru)
{
	s->cpu += (double)(ru->ru_utime.tv_sec + ru->ru_stime.tv_sec) +
		  (double)(ru->ru_utime.tv_usec + ru->ru_stime.tv_usec) / 1e6;
	s->faults += (double)ru->ru_minflt;
}

/* Any child; orphans of theirs come to us as well and count. */
static pid_t reap(struct contender *c, struct sample *s, const pid_t *pids,
		  size_t n)
{
	struct rusage ru;
	int status;
	pid_t pid;

	do
		pid = wait4(-1, &status, 0, &ru);
	while (pid < 0 && errno == EINTR);
	if (pid < 0)
		return -1;
	add(s, &ru);
	for (size_t i = 0; i < n; i++)
		if (pids[i] == pid && status != 0)
			c->fails++;
	return pid;
}

static void drain(struct contender *c, struct sample *s)
{
	while (reap(c, s, NULL, 0) > 0)
		;
}

static void read_all(struct contender *c, int fd)
{
	static char buf[1 << 20];
	ssize_t n;

	c->bytes = 0;
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		c->bytes += (unsigned long long)n;
	close(fd);
}

/* A file of --count times --line. */
static int batch_file(void)
{
	int fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	if (fd < 0)
		err(1, "batch file");
	for (size_t i = 0; i < arg_count; i++)
		dprintf(fd, "%s\n", arg_line);
	lseek(fd, 0, SEEK_SET);
	return fd;
}

static void one(struct contender *c, struct sample *s, int null)
{
	int out[2] = {-1, -1};
	int in = has(c, 'b') ? batch_file() : null;
	double t0 = now();
	pid_t pid;

	if (has(c, 'r') && (pipe2(out, O_CLOEXEC) < 0 ||
			    fcntl(out[1], F_SETPIPE_SZ, 1 << 20) < 0))
		err(1, "pipe");
	if (has(c, 'o'))
		root_mount(0);
	pid = start(c, 0, in, has(c, 'r') ? out[1] : null);
	if (has(c, 'r')) {
		close(out[1]);
		read_all(c, out[0]);
	}
	while (reap(c, s, &pid, 1) != pid)
		;
	if (has(c, 'o'))
		root_unmount(0);
	s->wall = now() - t0;
	drain(c, s);
	if (in != null)
		close(in);
}

static void many(struct contender *c, struct sample *s, int null)
{
	pid_t pids[JOBS_MAX] = {0};
	size_t started = 0, ended = 0, slot;
	double t0 = now();
	pid_t pid;

	while (ended < arg_count) {
		for (slot = 0; slot < arg_jobs; slot++) {
			if (pids[slot] || started == arg_count)
				continue;
			if (has(c, 'o'))
				root_mount(slot);
			pids[slot] = start(c, slot, null, null);
			started++;
		}
		pid = reap(c, s, pids, arg_jobs);
		for (slot = 0; slot < arg_jobs; slot++) {
			if (pids[slot] != pid)
				continue;
			pids[slot] = 0;
			ended++;
			if (has(c, 'o'))
				root_unmount(slot);
		}
	}
	s->wall = now() - t0;
	drain(c, s);
}

static void go(struct contender *c, int null)
{
	struct sample s = {0};

	if (has(c, 'p') && setns(arg_peers, CLONE_NEWNS) < 0)
		err(1, "the peers' mount namespace");
	if (has(c, 'n'))
		many(c, &s, null);
	else
		one(c, &s, null);
	if (has(c, 'p') && setns(arg_home, CLONE_NEWNS) < 0)
		err(1, "our own mount namespace");
	c->samples[c->n++] = s;
}

/* --- results ------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double quantile(const struct contender *c, size_t field, double q)
{
	static double v[ROUNDS_MAX];

	for (size_t i = 0; i < c->n; i++)
		v[i] = field == 0   ? c->samples[i].wall
		       : field == 1 ? c->samples[i].cpu
				    : c->samples[i].faults;
	qsort(v, c->n, sizeof(v[0]), by_value);
	return v[(size_t)((double)(c->n - 1) * q + 0.5)];
}

static void report(const struct contender *c)
{
	printf("{\"name\":\"%s\",\"rounds\":%zu,\"failed\":%zu,"
	       "\"p50_ms\":%.3f,\"p90_ms\":%.3f,\"min_ms\":%.3f,"
	       "\"cpu_ms\":%.3f,\"faults\":%.0f,\"bytes\":%llu}\n",
	       c->name, c->n, c->fails, quantile(c, 0, 0.5) * 1e3,
	       quantile(c, 0, 0.9) * 1e3, quantile(c, 0, 0) * 1e3,
	       quantile(c, 1, 0.5) * 1e3, quantile(c, 2, 0.5), c->bytes);
}

/* --- input --------------------------------------------------------------- */

static void take_line(char *line)
{
	struct contender *c = &contenders[ncontenders];
	size_t n = 0;
	char *word;

	if (ncontenders == CONTENDERS_MAX)
		errx(1, "too many contenders");
	c->name = strsep(&line, " ");
	c->flags = strsep(&line, " ");
	while ((word = strsep(&line, " "))) {
		if (!*word)
			continue;
		if (n == WORDS_MAX)
			errx(1, "%s: too many words", c->name);
		if (n == c->nenv && strchr(word, '=') && word[0] != '/')
			c->nenv++;
		c->words[n++] = word;
	}
	if (n == c->nenv)
		errx(1, "%s: no command", c->name);
	ncontenders++;
}

static void read_contenders(void)
{
	char *line = NULL;
	size_t cap = 0;
	ssize_t len;

	while ((len = getline(&line, &cap, stdin)) > 0) {
		if (line[len - 1] == '\n')
			line[len - 1] = '\0';
		if (line[0] && line[0] != '#')
			take_line(strdup(line));
	}
	free(line);
}

/* An allow list as large as the usual one: all calls known here but a few. */
static int make_filter(const char *names_file)
{
	FILE *f = fopen(names_file, "re");
	scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ERRNO(EPERM));
	int fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	char name[64];
	int nr;

	if (!f || !ctx || fd < 0)
		err(1, "seccomp: %s", names_file);
	while (fscanf(f, "%63s", name) == 1) {
		nr = seccomp_syscall_resolve_name(name);
		if (nr >= 0)
			seccomp_rule_add(ctx, SCMP_ACT_ALLOW, nr, 0);
	}
	if (seccomp_export_bpf(ctx, fd) < 0)
		errx(1, "seccomp: export");
	seccomp_release(ctx);
	fclose(f);
	return fd;
}

static size_t number(const char *text, size_t max)
{
	char *end;
	unsigned long v = strtoul(text, &end, 10);

	if (*end || v < 1 || v > max)
		errx(64, "'%s' is not a number from 1 to %zu", text, max);
	return v;
}

static void parse(int argc, char **argv)
{
	static const struct option options[] = {
		{"work", required_argument, NULL, 'w'},
		{"peers", required_argument, NULL, 'p'},
		{"seccomp", required_argument, NULL, 's'},
		{"rounds", required_argument, NULL, 'r'},
		{"count", required_argument, NULL, 'c'},
		{"jobs", required_argument, NULL, 'j'},
		{"line", required_argument, NULL, 'l'},
		{NULL, 0, NULL, 0},
	};
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		if (o == 'w')
			arg_work = optarg;
		else if (o == 'p')
			arg_peers = open_or_die(optarg);
		else if (o == 's')
			arg_seccomp = optarg;
		else if (o == 'r')
			arg_rounds = number(optarg, ROUNDS_MAX);
		else if (o == 'c')
			arg_count = number(optarg, 100000);
		else if (o == 'j')
			arg_jobs = number(optarg, JOBS_MAX);
		else if (o == 'l')
			arg_line = optarg;
		else
			exit(64);
	}
}

int main(int argc, char **argv)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	parse(argc, argv);
	read_contenders();
	arg_home = open_or_die("/proc/self/ns/mnt");
	if (arg_seccomp)
		arg_filter = make_filter(arg_seccomp);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	/* The first of many rounds only warms up. */
	for (size_t i = 0; i < arg_rounds + (arg_rounds >= 10); i++)
		for (size_t k = 0; k < ncontenders; k++) {
			if (i == 1 && arg_rounds >= 10)
				contenders[k].n = 0;
			go(&contenders[k], null);
		}
	for (size_t k = 0; k < ncontenders; k++)
		report(&contenders[k]);
	return 0;
}
