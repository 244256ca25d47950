/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/proc.h"
#include "exec.h"
#include "repeat.h"
#include "starter.h"
#include "wire/field.h"
#include "pause.h"

#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

/* File operations: our own helper, run inside as the user. */

/*
 * The helper as a file that nobody can change, nor read without being root out
 * here: that keeps the kernel from letting the sandbox trace what runs it.
 */
static int seal(struct box *b, struct err *e)
{
	auto_close int src = -1, mem = -1;
	char path[PATH_MAX], self[40];
	struct stat st;
	int r;

	if (b->helper_fd >= 0)
		return 0;
	r = proc_libexec("dsec-file", path, sizeof(path), e);
	if (r < 0)
		return r;
	src = open(path, O_RDONLY | O_CLOEXEC);
	if (src < 0 || fstat(src, &st) < 0)
		return err_sys(e, errno, "open '%s'", path);
	mem = memfd_create("dsec-file", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (mem < 0)
		return err_sys(e, errno, "memory for '%s'", path);
	for (off_t left = st.st_size; left > 0;) {
		ssize_t n = sendfile(mem, src, NULL, (size_t)left);

		if (n <= 0)
			return err_sys(e, n < 0 ? errno : EIO, "copy '%s'",
				       path);
		left -= n;
	}
	if (fchmod(mem, 0111) < 0 || fcntl(mem, F_ADD_SEALS, SEALS) < 0)
		return err_sys(e, errno, "seal '%s'", path);
	snprintf(self, sizeof(self), "/proc/self/fd/%d", mem);
	b->helper_fd = open(self, O_RDONLY | O_CLOEXEC);
	return b->helper_fd < 0 ? err_sys(e, errno, "open '%s'", path) : 0;
}

static json_t *helper_argv(const json_t *args)
{
	json_t *argv = json_pack("[s]", "dsec-file"), *v;
	size_t i;

	if (!argv)
		return NULL;
	json_array_foreach(args, i, v)
		json_array_append(argv, v);
	return argv;
}

/* Three pipes: ours[] go to the client, theirs[] to the helper. */
static int pipes(const struct starter *l, int ours[3], int theirs[3],
		 struct err *e)
{
	int p[2], r = 0;

	for (int i = 0; r == 0 && i < 3; i++) {
		if (pipe2(p, O_CLOEXEC) < 0)
			return err_sys(e, errno, "pipe");
		fcntl(p[0], F_SETPIPE_SZ, 1 << 20);
		ours[i] = p[i == 0 ? 1 : 0];
		theirs[i] = p[i == 0 ? 0 : 1];
		r = starter_own(l, theirs[i], e);
	}
	return r;
}

static void close_three(int fd[3])
{
	for (int i = 0; i < 3; i++)
		if (fd[i] >= 0)
			fd_close(steal_fd(&fd[i]));
}

static int enter(struct exec *x, struct starter *l, int theirs[3],
		 struct err *e)
{
	struct entered en = {.tty = -1};
	int r;

	for (int i = 0; i < 3; i++)
		l->en.fds[i] = theirs[i];
	l->en.exe_fd = x->box->helper_fd;
	exec_reports(x->box);
	r = starter_enter(l, x->name, &en, e);
	if (r < 0)
		return r;
	x->out[0].ended = x->out[1].ended = true;
	return exec_watch(x, &en, e);
}

static int start(struct exec *x, struct ask *a, const json_t *req,
		 struct err *e)
{
	int ours[3] = {-1, -1, -1}, theirs[3] = {-1, -1, -1}, r;
	auto_json json_t *argv = helper_argv(json_object_get(req, "args"));
	const json_t *user = json_object_get(req, "user");
	struct starter_want want = {
		.argv = argv,
		.user = user ? json_string_value(user) : NULL,
		.bare = true,
	};
	struct starter l;

	if (!argv)
		return err_sys(e, ENOMEM, "file operation");
	r = starter_init(&l, x->box, &want, e);
	if (r < 0)
		return r;
	r = pipes(&l, ours, theirs, e);
	if (r == 0)
		r = enter(x, &l, theirs, e);
	starter_done(&l);
	close_three(theirs);
	if (r < 0) {
		close_three(ours);
		return r;
	}
	memcpy(a->exec, x->name, sizeof(a->exec));
	a->starter = true;
	ask_wait(a, &x->waiters);
	exec_armed(x);
	ask_event(a,
		  json_pack("{s:s, s:s, s:[sss]}", "event", "started", "exec",
			    x->name, "fds", "stdin", "stdout", "stderr"),
		  ours, 3);
	return 1;
}

/* Its own, not its client's: what was done is known when he is gone. */
static int take_key(struct exec *x, const json_t *req, struct err *e)
{
	const char *key = json_str(req, "key");

	if (!*key)
		return 0;
	x->key = strdup(key);
	x->key_hash = repeat_hash(req);
	return x->key ? 0 : err_sys(e, ENOMEM, "key");
}

int exec_file(struct ask *a, json_t *req, struct err *e)
{
	struct box *b = a->box;
	struct exec *x;
	int r;

	r = pause_awake_for(a, req, "args", e);
	if (r == 0)
		r = seal(b, e);
	if (r != 0)
		return r;
	x = exec_new(b, EXEC_FILE, e);
	if (!x)
		return e->r;
	r = take_key(x, req, e);
	if (r == 0)
		r = start(x, a, req, e);
	if (r < 0)
		exec_undo(x);
	return r;
}
