/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cost COMMAND...: run it and print what it took, its children included: a
 * JSON line with wall_ms, cpu_ms and rss_kb, the most that one process had.
 * Its standard output goes nowhere; our exit status is 1 unless its own is 0.
 */
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static double ms(const struct timeval *t)
{
	return (double)t->tv_sec * 1e3 + (double)t->tv_usec / 1e3;
}

static void child(char **argv)
{
	int null = open("/dev/null", O_RDWR);

	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0)
		err(127, "/dev/null");
	execvp(argv[0], argv);
	err(127, "%s", argv[0]);
}

int main(int argc, char **argv)
{
	struct rusage ru;
	double start;
	int status;
	pid_t pid;

	if (argc < 2)
		errx(64, "usage: cost COMMAND...");
	start = now_ms();
	pid = fork();
	if (pid < 0)
		err(71, "fork");
	if (pid == 0)
		child(argv + 1);
	if (wait4(pid, &status, 0, &ru) < 0)
		err(71, "wait");
	printf("{\"wall_ms\":%.3f,\"cpu_ms\":%.3f,\"rss_kb\":%ld}\n",
	       now_ms() - start, ms(&ru.ru_utime) + ms(&ru.ru_stime),
	       ru.ru_maxrss);
	return status != 0;
}
