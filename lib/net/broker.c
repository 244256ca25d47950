/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/proc.h"
#include "base/sig.h"
#include "net/broker.h"

#define START_MS  20000
#define WORDS_MAX 400 /* of what one that did not start has said */
#define MSG_MAX	  (BROKER_SANDBOX + BROKER_ENDPOINTS_MAX * BROKER_ENDPOINT_NAME)

/* The message: words, each with its newline: the sandbox, the endpoints. */
static int add_word(char *msg, size_t *len, const char *word, size_t max)
{
	size_t n = strlen(word);

	if (n == 0 || n >= max || strchr(word, '\n'))
		return -EINVAL;
	for (size_t i = 0; i < n; i++)
		msg[(*len)++] = word[i];
	msg[(*len)++] = '\n';
	return 0;
}

int broker_hand(int sock, const char *sandbox, const char *const *endpoints,
		size_t n, struct err *e)
{
	auto_close int ours = -1, theirs = -1;
	char msg[MSG_MAX];
	size_t len = 0;
	ssize_t sent;
	int pair[2], r;

	if (n > BROKER_ENDPOINTS_MAX)
		return err_sys(e, EINVAL, "broker");
	r = add_word(msg, &len, sandbox, BROKER_SANDBOX);
	for (size_t i = 0; r == 0 && i < n; i++)
		r = add_word(msg, &len, endpoints[i], BROKER_ENDPOINT_NAME);
	if (r < 0)
		return err_sys(e, -r, "broker");
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
		       pair) < 0)
		return err_sys(e, errno, "broker");
	ours = pair[0];
	theirs = pair[1];
	sent = fd_send(sock, msg, len, &theirs, 1, MSG_DONTWAIT);
	if (sent == -ECONNRESET || sent == -ECONNREFUSED || sent == -ENOTCONN)
		sent = -EPIPE;
	if (sent < 0)
		return err_sys(e, (int)-sent, "broker");
	return steal_fd(&ours);
}

static int split(char *msg, struct broker_conn *ret)
{
	char *word = msg, *end;
	bool first = true;

	ret->n = 0;
	for (; (end = strchr(word, '\n')); word = end + 1) {
		size_t len = (size_t)(end - word);

		if (len == 0 || ret->n == BROKER_ENDPOINTS_MAX ||
		    len >= (first ? BROKER_SANDBOX : BROKER_ENDPOINT_NAME))
			return -EBADMSG;
		*end = '\0';
		memcpy(first ? ret->sandbox : ret->endpoints[ret->n++], word,
		       len + 1);
		first = false;
	}
	return first || *word ? -EBADMSG : 0;
}

int broker_take(int sock, struct broker_conn *ret, struct err *e)
{
	auto_close int fd = -1;
	char msg[MSG_MAX + 1];
	size_t nfds = 1;
	ssize_t n;

	n = fd_recv(sock, msg, MSG_MAX, &fd, &nfds, e);
	if (nfds == 0)
		fd = -1;
	if (n <= 0)
		return (int)n;
	msg[n] = '\0';
	if (fd < 0 || strlen(msg) != (size_t)n || split(msg, ret) < 0)
		return err_set(e, -EBADMSG, "bad_record",
			       "a malformed connection for the broker");
	ret->fd = steal_fd(&fd);
	return 1;
}

static void child(int sock, int ready, const char *program,
		  const struct broker_start *how)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	char sock_arg[16], ready_arg[16];

	if (dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(how->log, 2) < 0)
		_exit(127);

	/* Numbers that the program is told; the rest is close-on-exec. */
	snprintf(sock_arg, sizeof(sock_arg), "%d", dup(sock));
	snprintf(ready_arg, sizeof(ready_arg), "%d", dup(ready));
	sig_reset();
	execl(program, "dsec-broker", "--sock", sock_arg, "--ready", ready_arg,
	      "--config", how->config, "--lib", how->lib, (char *)NULL);
	_exit(127);
}

/* "ok", or why not. */
static int wait_ready(int ready, pid_t pid, struct err *e)
{
	struct pollfd p = {.fd = ready, .events = POLLIN};
	char text[WORDS_MAX + 1];
	ssize_t n = -1;

	if (poll(&p, 1, START_MS) > 0)
		n = read(ready, text, WORDS_MAX);
	if (n >= 2 && !memcmp(text, "ok", 2))
		return 0;
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return err_set(e, -EINVAL, "configuration", "credential broker: %s",
		       *text ? text : "it did not start");
}

int broker_start(const struct broker_start *how, int *ret_sock, pid_t *ret_pid,
		 struct err *e)
{
	auto_close int ours = -1, theirs = -1, rd = -1, wr = -1;
	char program[PATH_MAX], file[PATH_MAX];
	int pair[2], r;
	pid_t pid;

	*ret_sock = -1;
	*ret_pid = -1;
	r = snprintf(file, sizeof(file), "%s/broker.json", how->config);
	if (r >= (int)sizeof(file))
		return err_sys(e, ENAMETOOLONG, "'%s'", how->config);
	if (access(file, F_OK) < 0)
		return errno == ENOENT ? 0 : err_sys(e, errno, "'%s'", file);
	r = proc_libexec("dsec-broker", program, sizeof(program), e);
	if (r < 0)
		return r;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return err_sys(e, errno, "credential broker");
	ours = pair[0];
	theirs = pair[1];
	if (pipe2(pair, O_CLOEXEC) < 0)
		return err_sys(e, errno, "credential broker");
	rd = pair[0];
	wr = pair[1];
	pid = fork();
	if (pid < 0)
		return err_sys(e, errno, "credential broker");
	if (pid == 0)
		child(theirs, wr, program, how);
	fd_close(steal_fd(&wr));
	r = wait_ready(rd, pid, e);
	if (r < 0)
		return r;
	*ret_sock = steal_fd(&ours);
	*ret_pid = pid;
	return 0;
}
