/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/sig.h"

int sig_block(const int *signals, size_t n, struct err *e)
{
	sigset_t set;
	int fd;

	sigemptyset(&set);
	for (size_t i = 0; i < n; i++)
		sigaddset(&set, signals[i]);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return err_sys(e, errno, "block signals");
	signal(SIGPIPE, SIG_IGN);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return err_sys(e, errno, "signalfd");
	return fd;
}

bool sig_came(int fd, int wait_ms)
{
	return poll(&(struct pollfd){fd, POLLIN, 0}, 1, wait_ms) > 0;
}

/* The signals this process ignores, one bit each from the lowest; all of them
 * where the kernel does not say. */
static unsigned long long ignored(void)
{
	char text[2048];
	const char *at;
	ssize_t n;
	int fd;

	fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return ~0ULL;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return ~0ULL;
	text[n] = '\0';
	at = strstr(text, "\nSigIgn:");
	return at ? strtoull(at + strlen("\nSigIgn:"), NULL, 16) : ~0ULL;
}

/* Not signal(): libc refuses the two that it keeps for its threads, which
 * whoever started us may have left ignored, as posix_spawn() does. */
static void set_default(int signal)
{
	const unsigned long zero[4] = {0}; /* the kernel's struct sigaction */

	syscall(SYS_rt_sigaction, signal, zero, NULL, sizeof(zero[0]));
}

void sig_reset(void)
{
	/* exec resets handlers by itself; what stays is what is ignored: by us,
	 * or by whoever started us (nohup, a shell's background job). */
	unsigned long long mask = ignored();
	sigset_t none;

	for (int s = 1; s < NSIG; s++)
		if (mask >> (s - 1) & 1)
			set_default(s);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

bool sig_is_stop(int sig)
{
	return sig == SIGINT || sig == SIGTERM || sig == SIGHUP ||
	       sig == SIGQUIT;
}

#define ECHO_MS 100

bool sig_is_echo(uint64_t *at_ms)
{
	uint64_t now = clock_ms();

	if (*at_ms && now - *at_ms < ECHO_MS)
		return true;
	*at_ms = now;
	return false;
}

int sig_by_name(const char *name)
{
	char *end;
	long n;

	if (!strncmp(name, "SIG", 3))
		name += 3;
	for (int s = 1; s < NSIG; s++) {
		const char *abbrev = sigabbrev_np(s);

		if (abbrev && !strcmp(abbrev, name))
			return s;
	}
	if (*name < '1' || *name > '9')
		return -EINVAL;
	n = strtol(name, &end, 10);
	return *end || n >= NSIG ? -EINVAL : (int)n;
}

const char *sig_name(int sig)
{
	static char text[16];
	const char *abbrev = sigabbrev_np(sig);

	if (abbrev)
		snprintf(text, sizeof(text), "SIG%s", abbrev);
	else
		snprintf(text, sizeof(text), "SIG%d", sig);
	return text;
}
