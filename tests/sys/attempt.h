/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_ATTEMPT_H
#define TESTS_ATTEMPT_H

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * Attempts of a program that runs inside a sandbox.  Each is a line
 *
 *	GROUP NAME<tab>RESULT
 *
 * where RESULT is "ok" when it worked, the name of the errno, a signal, or a
 * word of the attempt's own.  Nothing is judged here: the test that runs it
 * knows what each profile must answer.
 */
#define LEN(a) (sizeof(a) / sizeof((a)[0]))

/* 0, -errno, or own("a word") */
typedef long attempt_fn(const char *arg);

static char attempt_word[256];

/* Each in a mount namespace of its own: for runs where mounting works. */
static bool attempt_alone;

static inline long result(long r)
{
	return r < 0 ? -errno : 0;
}

static inline long own(const char *what)
{
	snprintf(attempt_word, sizeof(attempt_word), "%s", what);
	return 1;
}

static inline void say(int group, const char *name, const char *got)
{
	printf("%d %s\t%s\n", group, name, got);
	fflush(stdout);
}

static inline void attempt_status(int status, char *buf, size_t size)
{
	if (WIFSIGNALED(status))
		snprintf(buf, size, "SIG%s", sigabbrev_np(WTERMSIG(status)));
	else
		snprintf(buf, size, "exit-%d", WEXITSTATUS(status));
}

/* In a child, which writes its word down a pipe; a killed one has none. */
static inline void attempt(int group, const char *name, attempt_fn *fn,
			   const char *arg)
{
	char got[sizeof(attempt_word)] = "";
	int p[2], status;
	ssize_t n;
	pid_t pid;
	long r;

	if (pipe2(p, O_CLOEXEC) < 0)
		exit(2);
	pid = fork();
	if (pid == 0) {
		close(p[0]);
		alarm(20);
		if (attempt_alone &&
		    (unshare(CLONE_NEWNS) < 0 ||
		     mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0))
			_exit(3);
		r = fn(arg);
		if (r == 0)
			own("ok");
		else if (r < 0)
			own(strerrorname_np((int)-r) ?: "E?");
		_exit(write(p[1], attempt_word, strlen(attempt_word)) < 0);
	}
	close(p[1]);
	n = read(p[0], got, sizeof(got) - 1);
	close(p[0]);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		status = 0x7f00;
	if (n <= 0)
		attempt_status(status, got, sizeof(got));
	say(group, name, got);
}

#endif
