/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sandbox for one command, without a supervisor: this process starts it,
 * waits, and removes it.  When this process dies the kernel kills pid 1, and
 * the next launch that looks for room buries the rest.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sig.h"
#include "box/env.h"
#include "box/init_report.h"
#include "run.h"
#include "wire/exit.h"
#include "wire/record.h"

#define CHUNK	   (64 * 1024)
#define INLINE_MAX (64 * 1024)

/* A stream between us and the command. */
struct flow {
	int ours, theirs; /* theirs: the end that the command gets */
	int user;	  /* raw: where it comes from or goes to; -1 record */
	struct buf kept;  /* record: the first INLINE_MAX bytes; of raw input:
			     what was read and not yet written */
	uint64_t bytes;
};

struct shot {
	struct creator *c;
	struct created made;
	struct flow flow[3];
	int sig;
	uint64_t started_ms, deadline_ms;
	bool raw, done;
	const char *why; /* an outcome we caused */
	struct init_report end;
	uint64_t oom_kills, peak;
};

static void close_fd(int *fd)
{
	if (*fd >= 0)
		fd_close(steal_fd(fd));
}

static void shot_done(struct shot *s)
{
	for (int i = 0; i < 3; i++) {
		close_fd(&s->flow[i].ours);
		close_fd(&s->flow[i].theirs);
		buf_done(&s->flow[i].kept);
	}
}

static int make_pipe(struct flow *f, bool to_command, struct err *e)
{
	int p[2];

	if (pipe2(p, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	f->ours = p[to_command];
	f->theirs = p[!to_command];
	return 0;
}

/*
 * A pipe or socket of our caller's goes to the command as it is.  A file or
 * terminal does not: its path would show inside, and it could be opened anew.
 */
static int give_through(struct flow *f, int fd, struct err *e)
{
	struct stat st;
	int r;

	if (fstat(fd, &st) < 0)
		return 0; /* closed: the sandbox's own /dev/null */
	if (S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3))
		return 0;
	if (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)) {
		f->theirs = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		return f->theirs < 0 ? err_sys(e, errno, "dup") : 0;
	}
	f->user = fd;
	r = make_pipe(f, fd == STDIN_FILENO, e);
	/* A command that does not read must not hold us up. */
	if (r == 0 && fd == STDIN_FILENO &&
	    fcntl(f->ours, F_SETFL, O_NONBLOCK) < 0)
		r = err_sys(e, errno, "pipe");
	return r;
}

/* A chunk from ${from} to ${to}: 1 more may come, 0 the end. */
static int pass(int from, int to)
{
	static char chunk[CHUNK];
	ssize_t n;

	n = read(from, chunk, sizeof(chunk));
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 1;
	if (n <= 0)
		return 0;
	return fd_write_all(to, chunk, (size_t)n, NULL) == 0;
}

/* Input: one read or one write, neither of which waits. */
static int feed(struct flow *f)
{
	static char chunk[CHUNK];
	ssize_t n;

	if (f->kept.len == 0) {
		n = read(f->user, chunk, sizeof(chunk));
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			return 1;
		if (n <= 0)
			return 0;
		if (buf_add(&f->kept, chunk, (size_t)n) < 0)
			return 0;
	}
	n = write(f->ours, f->kept.data, f->kept.len);
	if (n > 0)
		buf_drop(&f->kept, (size_t)n);
	return n >= 0 || errno == EINTR || errno == EAGAIN;
}

static int keep(struct flow *f)
{
	static char chunk[CHUNK];
	size_t room;
	ssize_t n;

	n = read(f->ours, chunk, sizeof(chunk));
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 1;
	if (n <= 0)
		return 0;
	f->bytes += (uint64_t)n;
	room = INLINE_MAX - f->kept.len;
	if (room > (size_t)n)
		room = (size_t)n;
	return buf_add(&f->kept, chunk, room) == 0;
}

static void kill_command(struct shot *s, const char *why)
{
	if (!s->why)
		s->why = why;
	syscall(SYS_pidfd_send_signal, s->made.run.command_pidfd, SIGKILL, NULL,
		0);
}

/* Raw: the command gets what we get.  Record: we were asked to cancel. */
static void take_signal(struct shot *s)
{
	struct signalfd_siginfo si;

	if (read(s->sig, &si, sizeof(si)) != sizeof(si))
		return;
	if (!s->raw) {
		kill_command(s, "killed");
		return;
	}
	syscall(SYS_pidfd_send_signal, s->made.run.command_pidfd,
		(int)si.ssi_signo, NULL, 0);
}

static void take_report(struct shot *s)
{
	struct init_report rep[64];
	ssize_t n = read(s->made.run.report, rep, sizeof(rep));

	if (n <= 0 || n % (ssize_t)sizeof(rep[0])) {
		/* Pid 1 is gone, and all with it. */
		s->end.pid = 0;
		s->done = true;
		return;
	}
	for (size_t i = 0; i < (size_t)n / sizeof(rep[0]); i++)
		if (rep[i].pid == s->made.run.command) {
			s->end = rep[i];
			s->done = true;
		}
}

static int poll_timeout(const struct shot *s)
{
	uint64_t now;

	if (!s->deadline_ms)
		return -1;
	now = clock_ms();
	if (now >= s->deadline_ms)
		return 0;
	return s->deadline_ms - now > 1000000 ? 1000000
					      : (int)(s->deadline_ms - now);
}

/* Move what is ready; a stream that ended is closed. */
static void move_flows(struct shot *s, const struct pollfd *p)
{
	struct flow *f = s->flow;

	if (p[0].revents && !feed(&f[0]))
		close_fd(&f[0].ours);
	for (int i = 1; i < 3; i++) {
		if (!p[i].revents)
			continue;
		if (!(f[i].user >= 0 ? pass(f[i].ours, f[i].user)
				     : keep(&f[i])))
			close_fd(&f[i].ours);
	}
}

/* What the input waits for: bytes, or room for them. */
static struct pollfd input(const struct flow *f)
{
	if (f->ours < 0)
		return (struct pollfd){-1, 0, 0};
	if (f->kept.len > 0)
		return (struct pollfd){f->ours, POLLOUT, 0};
	return (struct pollfd){f->user, POLLIN, 0};
}

static int watch(struct shot *s, struct err *e)
{
	struct flow *f = s->flow;

	while (!s->done) {
		struct pollfd p[5] = {
			input(&f[0]),
			{f[1].ours, POLLIN, 0},
			{f[2].ours, POLLIN, 0},
			{s->sig, POLLIN, 0},
			{s->made.run.report, POLLIN, 0},
		};
		int n = poll(p, 5, poll_timeout(s));

		if (n < 0 && errno != EINTR)
			return err_sys(e, errno, "wait for the command");
		if (n == 0 && poll_timeout(s) == 0) {
			s->deadline_ms = 0;
			kill_command(s, "ttl_absolute");
		}
		if (n <= 0)
			continue;
		move_flows(s, p);
		if (p[3].revents)
			take_signal(s);
		if (p[4].revents)
			take_report(s);
	}
	return 0;
}

/* What is left in the pipes once nobody can write any more. */
static void drain(struct shot *s)
{
	for (int i = 1; i < 3; i++) {
		struct flow *f = &s->flow[i];

		while (f->ours >= 0)
			if (!(f->user >= 0 ? pass(f->ours, f->user) : keep(f)))
				close_fd(&f->ours);
	}
}

static void count(struct shot *s)
{
	struct cgroup_stats st;

	if (WIFSIGNALED(s->end.status) || s->end.pid == 0) {
		if (cgroup_stats(s->c->cgroups, s->made.id, &st, NULL) == 0) {
			s->oom_kills = st.oom_kills;
			s->peak = st.memory_peak_bytes;
		}
	}
}

/* Start, wait, end: in ${s} how it went. */
static int shoot(struct shot *s, json_t *req, struct err *e)
{
	auto_free const char **argv = NULL;
	struct become b = {
		.cwd = json_str(req, "cwd"),
		.extra = {-1, -1},
		.tty_master = -1,
		.exe_fd = -1,
	};
	int64_t ttl = json_int(req, "ttl_absolute", 0);
	struct err late = {0};
	int r;

	r = creator_command(s->c, req, e);
	if (r == 0)
		r = argv_build(json_object_get(req, "command"), &argv, e);
	if (r < 0)
		return r;
	b.argv = argv;
	for (int i = 0; i < 3; i++)
		b.fds[i] = s->flow[i].theirs;
	s->started_ms = clock_wall_ms();
	if (ttl)
		s->deadline_ms = clock_ms() + (uint64_t)ttl * 1000;
	r = create_one_shot(s->c, req, &b, &s->made, e);
	for (int i = 0; i < 3; i++)
		close_fd(&s->flow[i].theirs);
	if (r < 0)
		return r;
	r = watch(s, e);
	count(s);
	launch_end(&s->made.run);
	if (r == 0)
		drain(s);
	/* The command's result stands even when tidying up fails. */
	if (create_end(s->c, &s->made, &late) < 0)
		log_err(&late);
	return r;
}

static void shot_init(struct shot *s, struct creator *c, int sig)
{
	memset(s, 0, sizeof(*s));
	s->c = c;
	s->sig = sig;
	for (int i = 0; i < 3; i++)
		s->flow[i] = (struct flow){.ours = -1,
					   .theirs = -1,
					   .user = -1};
}

int one_shot_raw(struct creator *c, json_t *req, struct err *e)
{
	static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
	struct shot s;
	int sig, r = 0;

	sig = sig_block(forwarded, array_len(forwarded), e);
	if (sig < 0)
		return sig;
	shot_init(&s, c, sig);
	s.raw = true;
	for (int i = 0; r == 0 && i < 3; i++)
		r = give_through(&s.flow[i], i, e);
	if (r == 0)
		r = shoot(&s, req, e);
	shot_done(&s);
	fd_close(sig);
	if (r < 0)
		return r;
	if (s.oom_kills)
		log_error("the memory limit of %lld MiB was reached",
			  (long long)json_int(req, "memory_limit_mb", 0));
	if (s.why)
		log_error("ended: %s", s.why);
	if (s.end.pid == 0)
		return 128 + SIGKILL;
	return WIFEXITED(s.end.status) ? WEXITSTATUS(s.end.status)
				       : 128 + WTERMSIG(s.end.status);
}

static const char *outcome(const struct shot *s)
{
	bool killed = s->end.pid == 0 || (WIFSIGNALED(s->end.status) &&
					  WTERMSIG(s->end.status) == SIGKILL);

	if (s->why)
		return s->why;
	if (killed && s->oom_kills)
		return "oom";
	if (s->end.pid == 0)
		return "died";
	return WIFEXITED(s->end.status) ? "exited" : "signalled";
}

static int put_end(const struct shot *s, const json_t *req, json_t *rec,
		   struct err *e)
{
	auto_json json_t *end = NULL;
	uint64_t now = clock_wall_ms();
	const char *how = outcome(s);
	int status = s->end.pid ? s->end.status : SIGKILL, r;

	r = json_pack_or(&end, e, "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:b}",
			 "sandbox", s->made.id, "outcome", how, "started_ms",
			 (json_int_t)s->started_ms, "ended_ms", (json_int_t)now,
			 "duration_ms", (json_int_t)(now - s->started_ms),
			 "cpu_ms",
			 (json_int_t)((s->end.utime_us + s->end.stime_us) /
				      1000),
			 "max_rss_kb", (json_int_t)s->end.maxrss_kb, "infra",
			 !strcmp(how, "died"));
	if (r < 0)
		return r;
	if (WIFEXITED(status))
		json_object_set_new(end, "exit_code",
				    json_integer(WEXITSTATUS(status)));
	else
		json_object_set_new(end, "signal",
				    json_string(sig_name(WTERMSIG(status))));
	if (s->oom_kills)
		json_object_set_new(
			end, "oom",
			json_pack("{s:I, s:I, s:I}", "limit_mb",
				  (json_int_t)json_int(req, "memory_limit_mb",
						       0),
				  "peak_mb", (json_int_t)(s->peak >> 20),
				  "kills", (json_int_t)s->oom_kills));
	return json_object_update(rec, end) < 0 ? err_sys(e, ENOMEM, "record")
						: 0;
}

static int put_output(const struct shot *s, json_t *rec, struct err *e)
{
	static const char *const names[] = {"", "stdout", "stderr"};
	static const char *const bytes[] = {"", "stdout_bytes", "stderr_bytes"};
	bool cut = false;

	for (int i = 1; i < 3; i++) {
		const struct flow *f = &s->flow[i];

		cut |= f->bytes > f->kept.len;
		if (json_set_bytes(rec, names[i],
				   f->kept.data ? f->kept.data : "",
				   f->kept.len) < 0 ||
		    json_object_set_new(rec, bytes[i],
					json_integer((json_int_t)f->bytes)) < 0)
			return err_sys(e, ENOMEM, "record");
	}
	json_object_set_new(rec, "truncated", json_boolean(cut));
	return 0;
}

int one_shot_record(struct creator *c, json_t *req, int sig, json_t **ret_rec,
		    struct err *e)
{
	auto_json json_t *rec = record_ok(req);
	struct shot s;
	int r = 0;

	if (!rec)
		return err_sys(e, ENOMEM, "record");
	shot_init(&s, c, sig);
	for (int i = 1; r == 0 && i < 3; i++)
		r = make_pipe(&s.flow[i], false, e);
	if (r == 0)
		r = shoot(&s, req, e);
	if (r == 0)
		r = put_end(&s, req, rec, e);
	if (r == 0)
		r = put_output(&s, rec, e);
	shot_done(&s);
	if (r == 0)
		*ret_rec = json_incref(rec);
	return r;
}
