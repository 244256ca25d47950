/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/sig.h"
#include "serve/lookup.h"

#define ADDRESS_MAX 271

struct lookup {
	struct loop *loop;
	lookup_fn *fn;
	void *arg;
	pid_t pid;
	struct loop_source src; /* of what the child says */
	struct loop_timer deadline;
	char address[ADDRESS_MAX];
};

/* What the child writes, at once. */
struct answer {
	int error; /* of getaddrinfo() */
	struct lookup_addr found;
};

static int resolve(const char *address, int flags, struct lookup_addr *ret)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
				       .ai_flags = AI_NUMERICSERV | flags};
	const char *colon = strrchr(address, ':');
	struct addrinfo *ai = NULL;
	char host[ADDRESS_MAX];
	size_t n = colon ? (size_t)(colon - address) : 0;
	bool v6 = n > 2 && address[0] == '[' && address[n - 1] == ']';
	int r;

	if (n == 0 || n >= sizeof(host))
		return EAI_NONAME;
	snprintf(host, sizeof(host), "%.*s", (int)(v6 ? n - 2 : n),
		 address + v6);
	r = getaddrinfo(host, colon + 1, &hints, &ai);
	if (r != 0)
		return r;
	*ret = (struct lookup_addr){.len = ai->ai_addrlen};
	memcpy(&ret->addr, ai->ai_addr, ai->ai_addrlen);
	freeaddrinfo(ai);
	return 0;
}

int lookup_numeric(const char *address, struct lookup_addr *ret)
{
	return resolve(address, AI_NUMERICHOST, ret) == 0 ? 0 : -ENOENT;
}

static _Noreturn void child(const char *address, int out)
{
	struct answer a = {0};

	/* Nothing of the daemon stays open here, nor lives on after it. */
	if (out != 3 && dup3(out, 3, 0) < 0)
		_exit(1);
	syscall(SYS_close_range, 4, ~0U, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "dsec-lookup");
	sig_reset();
	a.error = resolve(address, 0, &a.found);
	_exit(write(3, &a, sizeof(a)) == sizeof(a) ? 0 : 1);
}

void lookup_free(struct lookup *k)
{
	if (!k)
		return;
	loop_timer_set(k->loop, &k->deadline, 0);
	loop_del(k->loop, &k->src);
	fd_close(k->src.fd);
	kill(k->pid, SIGKILL);
	while (waitpid(k->pid, NULL, 0) < 0 && errno == EINTR)
		;
	free(k);
}

static void finish(struct lookup *k, const struct lookup_addr *found,
		   const struct err *why)
{
	lookup_fn *fn = k->fn;
	void *arg = k->arg;

	lookup_free(k);
	fn(arg, found, why);
}

static void on_answer(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct lookup *k = s->arg;
	struct answer a = {.error = EAI_SYSTEM};
	struct err e = {0};
	ssize_t n;

	(void)l;
	(void)events;
	do
		n = read(s->fd, &a, sizeof(a));
	while (n < 0 && errno == EINTR);
	if (n != sizeof(a))
		a.error = EAI_FAIL;
	if (a.error)
		err_set(&e, -ENOENT, "configuration",
			"'%s' cannot be resolved: %s", k->address,
			gai_strerror(a.error));
	finish(k, a.error ? NULL : &a.found, &e);
}

static void on_deadline(struct loop *l, struct loop_timer *t)
{
	struct lookup *k = t->arg;
	struct err e = {0};

	(void)l;
	err_set(&e, -ETIMEDOUT, "timeout", "'%s' was not resolved within %d s",
		k->address, LOOKUP_MS / 1000);
	finish(k, NULL, &e);
}

static int start(struct lookup *k, struct err *e)
{
	int out[2], r;

	if (pipe2(out, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	k->pid = fork();
	if (k->pid == 0)
		child(k->address, out[1]);
	r = k->pid < 0 ? err_sys(e, errno, "fork") : 0;
	fd_close(out[1]);
	if (r == 0)
		r = loop_add(k->loop, &k->src, out[0], EPOLLIN, on_answer, k,
			     e);
	if (r == 0)
		return 0;
	fd_close(out[0]);
	if (k->pid > 0) {
		kill(k->pid, SIGKILL);
		(void)waitpid(k->pid, NULL, 0);
	}
	return r;
}

int lookup_new(struct loop *l, const char *address, lookup_fn *fn, void *arg,
	       struct lookup **ret, struct err *e)
{
	struct lookup *k = calloc(1, sizeof(*k));
	int r;

	if (!k)
		return err_sys(e, ENOMEM, "look '%s' up", address);
	k->loop = l;
	k->fn = fn;
	k->arg = arg;
	snprintf(k->address, sizeof(k->address), "%s", address);
	r = start(k, e);
	if (r < 0) {
		free(k);
		return r;
	}
	k->deadline = (struct loop_timer){.fn = on_deadline, .arg = k};
	loop_timer_set(l, &k->deadline, clock_ms() + LOOKUP_MS);
	*ret = k;
	return 0;
}
