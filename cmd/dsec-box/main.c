/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/opt.h"
#include "base/sig.h"
#include "box.h"
#include "box/claim.h"
#include "life/teardown.h"
#include "conn.h"
#include "exec.h"
#include "life.h"
#include "reexec.h"
#include "relay.h"
#include "wire/exit.h"

#define USAGE	 "usage: dsec-box SANDBOX"
#define FLUSH_MS 1000

enum { OPT_STATE, OPT_PUBLISH, OPT_HELP };

static const struct opt options[] = {
	[OPT_STATE] = {"state", NULL, 0, "FD",
		       "go on from what the program before wrote to FD"},
	[OPT_PUBLISH] = {"publish", NULL, 0, "N",
			 "sockets of published ports stand on 7 and so on"},
	[OPT_HELP] = {"help", NULL, 'h', NULL, "show this"},
};

static void on_report(struct loop *l, struct loop_source *s, uint32_t events)
{
	(void)l;
	(void)events;
	exec_reports(s->arg);
}

static void on_signal(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct signalfd_siginfo si;

	(void)l;
	(void)events;
	while (read(s->fd, &si, sizeof(si)) == (ssize_t)sizeof(si))
		if (si.ssi_signo == SIGHUP)
			reexec_soon(s->arg);
		else
			life_end(s->arg, "killed", 2000);
}

/* Those who wait for the last word get some time to take it. */
static void on_flushed(struct loop *l, struct loop_timer *t)
{
	struct box *b = t->arg;

	if (conn_pending(b) && clock_ms() < b->grace_end)
		loop_timer_set(l, t, clock_ms() + 10);
	else
		loop_stop(l, 0);
}

void box_end(struct box *b)
{
	b->grace_end = clock_ms() + FLUSH_MS;
	b->grace_timer.fn = on_flushed;
	b->grace_timer.arg = b;
	loop_timer_set(b->loop, &b->grace_timer, clock_ms());
}

/* What the node sees: out of the OOM killer's way, not to be looked into. */
static void settle_in(void)
{
	struct rlimit lim;

	(void)fd_write_str(AT_FDCWD, "/proc/self/oom_score_adj", "-900", NULL);
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	if (getrlimit(RLIMIT_NOFILE, &lim) == 0) {
		lim.rlim_cur = lim.rlim_max;
		setrlimit(RLIMIT_NOFILE, &lim);
	}
	umask(077);
	/* Small pieces, given back when they can be. */
	mallopt(M_TRIM_THRESHOLD, 64 * 1024);
	mallopt(M_MMAP_THRESHOLD, 64 * 1024);
	mallopt(M_TOP_PAD, 16 * 1024);
	mallopt(M_ARENA_MAX, 1);
}

/*
 * Children that enter the sandbox share our memory until they execute, and the
 * kernel lets nobody inside trace them only because they changed their uid.
 * The debugging value of this sysctl gives that up.
 */
static int check_dumpable(struct err *e)
{
	auto_free char *text = NULL;

	if (fd_read_file(AT_FDCWD, "/proc/sys/fs/suid_dumpable", 16, &text,
			 NULL, NULL) == 0 &&
	    text[0] == '1')
		return err_set(e, -EPERM, "configuration",
			       "fs.suid_dumpable is 1, so that the sandbox "
			       "could trace us: sysctl -w fs.suid_dumpable=0");
	return 0;
}

static int take_fds(struct box *b, struct err *e)
{
	int *fds[] = {&b->claim_fd, &b->listen_fd, &b->report_fd, &b->init_fd};

	for (int i = 0; i < 4; i++) {
		*fds[i] = BOX_FD_CLAIM + i;
		if (fcntl(*fds[i], F_SETFD, FD_CLOEXEC) < 0)
			return err_sys(e, errno, "descriptor %d", *fds[i]);
	}
	if (fcntl(b->listen_fd, F_SETFL, O_NONBLOCK) < 0 ||
	    fcntl(b->report_fd, F_SETFL, O_NONBLOCK) < 0)
		return err_sys(e, errno, "descriptors");
	return 0;
}

static int open_dirs(struct box *b, struct err *e)
{
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb/%s", b->tree.run, b->id);
	if (r < 0)
		return r;
	b->run_fd = open(path, O_DIRECTORY | O_CLOEXEC);
	if (b->run_fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	r = tree_path(path, e, "%s/sb/%s", b->tree.lib, b->id);
	if (r < 0)
		return r;
	b->lib_fd = open(path, O_DIRECTORY | O_CLOEXEC);
	if (b->lib_fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	if (mkdirat(b->lib_fd, "out", 0700) < 0 && errno != EEXIST)
		return err_sys(e, errno, "make '%s/out'", path);
	b->out_fd = openat(b->lib_fd, "out", O_DIRECTORY | O_CLOEXEC);
	return b->out_fd < 0 ? err_sys(e, errno, "open '%s/out'", path) : 0;
}

/* A copy of a sandbox has the records of its source's commands: its own come
 * after them. */
static uint64_t after_past(const struct box *b)
{
	auto_dir DIR *d = fdopendir(openat(b->out_fd, ".", O_CLOEXEC));
	const struct dirent *de;
	uint64_t next = 0, n;
	char *end;

	while (d && (de = readdir(d))) {
		if (de->d_name[0] != 'e' || de->d_name[1] < '0' ||
		    de->d_name[1] > '9')
			continue;
		n = strtoull(de->d_name + 1, &end, 10);
		if (*end == '.' && n < UINT32_MAX && n >= next)
			next = n + 1;
	}
	return next;
}

static int read_spec(struct box *b, struct err *e)
{
	auto_json json_t *spec = NULL;
	int r;

	r = box_spec(b, &spec, e);
	if (r < 0)
		return r;
	b->ttl = (struct box_ttl){
		.idle = (uint64_t)json_int(spec, "ttl_running_stop", 0) * 1000,
		.absolute = (uint64_t)json_int(spec, "ttl_absolute", 0) * 1000,
		.paused = (uint64_t)json_int(spec, "ttl_paused", 0) * 1000,
	};
	b->created_ms = (uint64_t)json_int(spec, "created_ms",
					   (int64_t)clock_wall_ms());
	b->generation = json_int(spec, "generation", 1);
	if (*json_str(spec, "made_from"))
		b->next_exec = after_past(b);
	b->uid_base = (uint32_t)json_int(spec, "uid_base", 0);
	if (b->uid_base == 0)
		return err_set(e, -EINVAL, "internal", "spec without uid_base");
	return 0;
}

/* The process a pidfd is of, in our pid namespace. */
static int find_init(struct box *b, const json_t *was, struct err *e)
{
	auto_free char *text = NULL;
	char path[40], *line;
	int r;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", b->init_fd);
	r = fd_read_file(AT_FDCWD, path, 4096, &text, NULL, e);
	if (r < 0)
		return r;
	line = strstr(text, "\nPid:");
	b->init_pid = line ? (pid_t)strtol(line + 5, NULL, 10) : 0;
	/* One that had a life before is told of its end by its loop. */
	if (b->init_pid <= 0 && !was)
		return err_set(e, -ESRCH, "stopped", "pid 1 has ended already");
	return 0;
}

static int begin(struct box *b, const char *id, int state, unsigned publish,
		 struct err *e)
{
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
	auto_json json_t *was = NULL;
	int r = 0;

	if (!tree_is_id(id))
		return err_set(e, -EINVAL, "usage", "'%s' is no sandbox", id);
	memcpy(b->id, id, sizeof(b->id));
	if (state >= 0)
		r = reexec_read(b, state, &was, e);
	if (r == 0)
		r = check_dumpable(e);
	if (r == 0)
		r = tree_init(&b->tree, e);
	if (r == 0)
		r = take_fds(b, e);
	if (r == 0)
		r = open_dirs(b, e);
	if (r == 0)
		r = read_spec(b, e);
	if (r == 0)
		r = find_init(b, was, e);
	if (r == 0)
		r = loop_new(&b->loop, e);
	if (r < 0)
		return r;
	b->signal_fd = sig_block(signals, array_len(signals), e);
	if (b->signal_fd < 0)
		return b->signal_fd;
	r = loop_add(b->loop, &b->signal_src, b->signal_fd, EPOLLIN, on_signal,
		     b, e);
	if (r == 0)
		r = loop_add(b->loop, &b->report_src, b->report_fd, EPOLLIN,
			     on_report, b, e);
	if (r == 0)
		r = conn_listen(b, e);
	if (r < 0)
		return r;
	if (was)
		return reexec_load(b, was, e);
	r = relay_begin(b, BOX_FD_PUBLISH, publish, e);
	if (r == 0)
		r = life_start(b, e);
	if (r == 0)
		exec_first(b);
	return r;
}

/* Nobody waits any more: take it apart, the claim last. */
static void bury(struct box *b)
{
	struct cgroup_root *cgroups;
	struct err e;

	conn_close_all(b);
	loop_del(b->loop, &b->listen_src);
	fd_close(steal_fd(&b->listen_fd));
	if (box_cgroups(b, &cgroups, &e) < 0 ||
	    teardown(&b->tree, cgroups, b->id, NULL, &e) < 0)
		return; /* the claim stays: a sweep does it again */
	if (b->death)
		(void)teardown_record(&b->tree, b->id, b->death, NULL);
	(void)claim_release(&b->tree, b->id, &b->claim_fd, NULL);
}

int main(int argc, char **argv)
{
	struct opt_parser p = {OPT_TABLE(options), argc, argv, 1, NULL, false};
	static struct box b = {
		.signal_fd = -1,
		.null_fd = -1,
		.freezer = {-1, -1, false},
		.state_fds = {-1, -1},
		.helper_fd = -1,
		.next_session = 1,
		.next_helper = 1,
	};
	const char *arg, *id = NULL;
	struct err e = {0};
	unsigned publish = 0;
	int row, state = -1, r;

	log_init("dsec-box");
	while ((r = opt_next(&p, &row, &arg, &e)) != OPT_END) {
		if (r == OPT_WORD && !id) {
			id = arg;
			continue;
		}
		if (r >= 0 && row == OPT_STATE) {
			state = (int)strtol(arg, NULL, 10);
			continue;
		}
		if (r >= 0 && row == OPT_PUBLISH) {
			publish = (unsigned)strtoul(arg, NULL, 10);
			continue;
		}
		if (r >= 0 && row == OPT_HELP) {
			opt_help(STDOUT_FILENO, USAGE, p.table);
			return EXIT_OK;
		}
		break;
	}
	if (r != OPT_END || !id) {
		log_error(USAGE);
		return EXIT_USAGE_ERROR;
	}
	settle_in();
	r = begin(&b, id, state, publish, &e);
	if (r == 0) {
		box_busy(&b);
		r = loop_run(b.loop, &e);
	}
	if (r == 0)
		bury(&b);
	else
		log_err(&e);
	return r < 0 ? exit_of(&e) : EXIT_OK;
}
