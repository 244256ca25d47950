/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/sig.h"
#include "life/recover.h"
#include "life/recover_child.h"
#include "wire/record.h"

struct recovery {
	struct loop *loop;
	recovery_fn *fn;
	void *arg;
	struct loop_source src;
};

static int do_it(const struct tree *t, const char *id, struct err *e)
{
	struct cgroup_root *cgroups = NULL;
	int r = cgroup_open(t->cgroup, &cgroups, e);

	if (r == 0)
		r = recover(t, cgroups, id, e);
	cgroup_close(cgroups);
	return r;
}

/* Nothing of the daemon's but its stderr; what came of it is a record. */
static _Noreturn void child(const struct tree *t, const char *id, int out)
{
	auto_json json_t *rec = NULL;
	struct err e = {0};
	int r, null;

	out = fcntl(out, F_DUPFD_CLOEXEC, 3);
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (out < 0 || null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0)
		_exit(1);
	if (out != 3 && dup3(out, 3, O_CLOEXEC) < 0)
		_exit(1);
	(void)fcntl(3, F_SETFD, FD_CLOEXEC);
	syscall(SYS_close_range, 4, ~0U, 0);
	prctl(PR_SET_NAME, "dsec-recover");
	sig_reset();
	signal(SIGPIPE, SIG_IGN);
	setsid();
	/* Who began it does not wait for it: it is nobody's child. */
	if (fork() != 0)
		_exit(0);
	r = do_it(t, id, &e);
	rec = r < 0 ? record_error(NULL, &e) : record_ok(NULL);
	_exit(rec && record_write(3, rec, NULL) == 0 ? 0 : 1);
}

void recovery_free(struct recovery *r)
{
	if (!r)
		return;
	loop_del(r->loop, &r->src);
	fd_close(r->src.fd);
	free(r);
}

static void on_end(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct recovery *r = s->arg;
	recovery_fn *fn = r->fn;
	void *arg = r->arg;
	auto_json json_t *rec = NULL;
	struct err e = {0};
	char text[4096];
	ssize_t n;
	int rc;

	(void)l;
	(void)events;
	/* It is one write, and short. */
	do
		n = read(s->fd, text, sizeof(text));
	while (n < 0 && errno == EINTR);
	recovery_free(r);
	if (n > 1 && json_parse(text, (size_t)n - 1, &rec, NULL) == 0)
		rc = record_to_err(rec, &e);
	else
		rc = err_set(&e, -EPIPE, "helper_lost",
			     "what brings the sandbox back was ended");
	fn(arg, rc < 0 ? &e : NULL);
}

static int start(const struct tree *t, const char *id, int out, struct err *e)
{
	pid_t pid = fork();

	if (pid == 0)
		child(t, id, out);
	if (pid < 0)
		return err_sys(e, errno, "fork");
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	return 0;
}

int recovery_new(struct loop *l, const struct tree *t, const char *id,
		 recovery_fn *fn, void *arg, struct recovery **ret,
		 struct err *e)
{
	struct recovery *k;
	int out[2], r;

	r = recover_may_begin(t, id, e);
	if (r < 0)
		return r;
	k = calloc(1, sizeof(*k));
	if (!k || pipe2(out, O_CLOEXEC) < 0) {
		r = err_sys(e, k ? errno : ENOMEM, "recover sandbox %s", id);
		free(k);
		return r;
	}
	*k = (struct recovery){.loop = l, .fn = fn, .arg = arg};
	r = start(t, id, out[1], e);
	fd_close(out[1]);
	if (r == 0)
		r = loop_add(l, &k->src, out[0], EPOLLIN, on_end, k, e);
	if (r < 0) {
		fd_close(out[0]);
		free(k);
		return r;
	}
	*ret = k;
	return 0;
}
