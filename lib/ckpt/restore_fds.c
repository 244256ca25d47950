/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "ckpt/restore_priv.h"
#include "sys/userns.h"

#define FD_NUMBER_MAX 65536
#define PENDING_MAX   (1 << 20)

static const json_t *table(const json_t *state)
{
	return json_object_get(state, "fds");
}

/* The number an entry is for; -1: none. */
static int number(const char *key)
{
	char *end;
	long n = strtol(key, &end, 10);

	return *key && !*end && n > 2 && n < FD_NUMBER_MAX ? (int)n : -1;
}

/* Above all that the table names. */
static int above(const json_t *state)
{
	const char *key;
	int top = RESTORE_FD_INIT, n;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)table(state), key, v) {
		n = number(key);
		if (n > top)
			top = n;
	}
	return top + 1;
}

/* A pipe that is there already: the supervisor's that goes on. */
static bool is_live(int n)
{
	struct stat st;

	return fstat(n, &st) == 0 && S_ISFIFO(st.st_mode);
}

/* A process or terminal of its life before is of no more use. */
static int hold(int null, int n, bool live, struct err *e)
{
	if (live && is_live(n))
		return 0;
	if (!live && n > RESTORE_FD_INIT && fcntl(n, F_GETFD) >= 0)
		return err_set(e, -EBUSY, "internal",
			       "descriptor %d of the state is open", n);
	if (dup3(null, n, O_CLOEXEC) < 0)
		return err_sys(e, errno, "descriptor %d of the state", n);
	return 0;
}

int restore_reserve(const json_t *state, bool live, int *const *keep,
		    size_t nkeep, struct err *e)
{
	auto_close int null = -1;
	const char *key;
	int base = above(state), n, r;
	json_t *v;

	for (size_t i = 0; i < nkeep; i++) {
		n = fcntl(*keep[i], F_DUPFD_CLOEXEC, base);
		if (n < 0)
			return err_sys(e, errno, "descriptors");
		fd_close(*keep[i]);
		*keep[i] = n;
	}
	n = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (n < 0)
		return err_sys(e, errno, "open /dev/null");
	null = fcntl(n, F_DUPFD_CLOEXEC, base);
	fd_close(n);
	if (null < 0)
		return err_sys(e, errno, "descriptors");
	r = hold(null, RESTORE_FD_REPORT, live, e);
	if (r == 0)
		r = hold(null, RESTORE_FD_INIT, live, e);
	json_object_foreach((json_t *)(uintptr_t)table(state), key, v) {
		n = number(key);
		if (r == 0 && n < 0)
			r = err_set(e, -EBADMSG, "internal",
				    "the state names descriptor '%.20s'", key);
		if (r == 0 && n != RESTORE_FD_REPORT && n != RESTORE_FD_INIT)
			r = hold(null, n, live, e);
	}
	return r;
}

/* As restore_reserve() left them: the pidfd of a pid 1 that ended would pass
 * for a sandbox that came back, whose checkpoint may go. */
static void hold_again(const json_t *state)
{
	auto_close int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	const char *key;
	json_t *v;
	int n;

	(void)hold(null, RESTORE_FD_INIT, true, NULL);
	json_object_foreach((json_t *)(uintptr_t)table(state), key, v) {
		n = number(key);
		if (n > RESTORE_FD_INIT)
			(void)hold(null, n, true, NULL);
	}
}

void restore_release(const struct restore *rs)
{
	const char *key;
	json_t *v;
	int n;

	if (rs->live) {
		hold_again(rs->state);
		return;
	}
	close(RESTORE_FD_REPORT);
	close(RESTORE_FD_INIT);
	json_object_foreach((json_t *)(uintptr_t)table(rs->state), key, v) {
		n = number(key);
		if (n > RESTORE_FD_INIT)
			close(n);
	}
}

static struct restore_pipe *find(struct restore_fds *f, const char *of)
{
	for (size_t i = 0; i < f->npipes; i++)
		if (!strcmp(f->pipes[i].of, of))
			return &f->pipes[i];
	return NULL;
}

/* Of ${ck}, or of nobody inside. */
static int make_pipe(const struct restore *rs, struct restore_fds *f,
		     const char *of, const struct ckpt_pipe *ck, struct err *e)
{
	uid_t base = (uid_t)json_int(rs->spec, "uid_base", 0);
	struct restore_pipe *p = &f->pipes[f->npipes];

	if (pipe2(p->end, O_CLOEXEC | O_NONBLOCK) < 0)
		return err_sys(e, errno, "pipe");
	p->of = of;
	f->npipes++;
	/* So that its user can open it anew, by /dev/stdout and the like. */
	if (ck && fchown(p->end[0], base + ck->uid, base + ck->gid) < 0)
		return err_sys(e, errno, "owner of a pipe");
	return 0;
}

static int fill(const struct restore *rs, const struct ckpt_pipe *ck,
		const struct restore_pipe *p, struct err *e)
{
	auto_free char *data = NULL;
	auto_close int dir = -1;
	size_t len;
	ssize_t n;
	int r;

	if (ck->size > 0 && fcntl(p->end[1], F_SETPIPE_SZ, (int)ck->size) < 0 &&
	    errno != EPERM)
		return err_sys(e, errno, "size of a pipe");
	if (!ck->pending)
		return 0;
	dir = open(rs->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", rs->dir);
	r = fd_read_file(dir, ck->pending, PENDING_MAX, &data, &len, e);
	if (r < 0)
		return r;
	/* At once or not at all: nobody reads yet, so waiting is for ever. */
	n = write(p->end[1], data, len);
	return n == (ssize_t)len
		       ? 0
		       : err_sys(e, n < 0 ? errno : ENOBUFS, "fill a pipe");
}

/* Those that are there are used as they are, with what stands in them. */
static int take_live(const struct restore *rs, struct restore_fds *f,
		     struct err *e)
{
	const char *key, *of;
	json_t *v;
	int n;

	json_object_foreach((json_t *)(uintptr_t)table(rs->state), key, v) {
		struct restore_pipe *p = &f->pipes[f->npipes];

		n = number(key);
		of = json_str(v, "of");
		if (strncmp(of, "pipe:", 5) != 0 || find(f, of) || !is_live(n))
			continue;
		p->of = of;
		f->npipes++;
		for (int i = 0; i < 2; i++) {
			p->end[i] = fcntl(n, F_DUPFD_CLOEXEC, 3);
			if (p->end[i] < 0)
				return err_sys(e, errno, "descriptors");
		}
	}
	return 0;
}

static int make_inner_pipes(const struct restore *rs, struct restore_fds *f,
			    struct err *e)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < rs->ck->npipes; i++) {
		const struct ckpt_pipe *ck = &rs->ck->pipes[i];
		struct restore_pipe *p;

		p = find(f, ck->of);
		if (p) {
			p->inside = true;
			continue;
		}
		r = make_pipe(rs, f, ck->of, ck, e);
		if (r < 0)
			return r;
		f->pipes[f->npipes - 1].inside = true;
		r = fill(rs, ck, &f->pipes[f->npipes - 1], e);
	}
	return r;
}

int restore_fds_make(const struct restore *rs, struct restore_fds *f,
		     struct err *e)
{
	size_t max = rs->ck->npipes + json_object_size(table(rs->state)), i;
	const char *key, *of;
	json_t *v;
	int r;

	memset(f, 0, sizeof(*f));
	f->pipes = calloc(max + 1, sizeof(*f->pipes));
	if (!f->pipes)
		return err_sys(e, ENOMEM, "pipes");
	for (i = 0; i <= max; i++)
		f->pipes[i].end[0] = f->pipes[i].end[1] = -1;
	r = rs->live ? take_live(rs, f, e) : 0;
	if (r == 0)
		r = make_inner_pipes(rs, f, e);
	json_object_foreach((json_t *)(uintptr_t)table(rs->state), key, v) {
		of = json_str(v, "of");
		if (r == 0 && !strncmp(of, "pipe:", 5) && !find(f, of))
			r = make_pipe(rs, f, of, NULL, e);
	}
	if (r == 0 && rs->ck->nttys > RESTORE_TTYS_MAX)
		r = err_set(e, -E2BIG, "checkpoint_damaged",
			    "more than %d terminals", RESTORE_TTYS_MAX);
	for (i = 0; r == 0 && i < rs->ck->nttys; i++)
		f->ttys[f->nttys++] = (struct restore_tty){
			.ck = &rs->ck->ttys[i],
			.master = -1,
			.peer = -1,
		};
	return r;
}

void restore_fds_done(struct restore_fds *f)
{
	for (size_t i = 0; i < f->npipes; i++)
		for (int k = 0; k < 2; k++)
			if (f->pipes[i].end[k] >= 0)
				fd_close(f->pipes[i].end[k]);
	for (size_t i = 0; i < f->nttys; i++) {
		if (f->ttys[i].master >= 0)
			fd_close(f->ttys[i].master);
		if (f->ttys[i].peer >= 0)
			fd_close(f->ttys[i].peer);
	}
	free(f->pipes);
	memset(f, 0, sizeof(*f));
}

static int put(int fd, int n, struct err *e)
{
	if (dup3(fd, n, O_CLOEXEC) < 0)
		return err_sys(e, errno, "descriptor %d", n);
	return 0;
}

static int put_ref(int fd, int n, struct err *e)
{
	auto_close int ref = -1;
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ref = open(path, O_PATH | O_CLOEXEC);
	if (ref < 0)
		return err_sys(e, errno, "open a pipe");
	return put(ref, n, e);
}

static int put_pidfd(pid_t inner, int n, const struct restore_pid *pids,
		     size_t npids, struct err *e)
{
	auto_close int fd = -1;
	size_t i;

	for (i = 0; i < npids && pids[i].inner != inner; i++)
		;
	if (i == npids)
		return err_set(e, -ESRCH, "checkpoint_damaged",
			       "process %d is not in the checkpoint",
			       (int)inner);
	fd = (int)syscall(SYS_pidfd_open, pids[i].pid, 0);
	if (fd < 0)
		return err_sys(e, errno, "watch process %d", (int)inner);
	return put(fd, n, e);
}

static int put_tty(const struct restore_fds *f, const char *of, int n,
		   struct err *e)
{
	for (size_t i = 0; i < f->nttys; i++)
		if (!strcmp(f->ttys[i].ck->of, of))
			return put(f->ttys[i].master, n, e);
	return err_set(e, -ENOENT, "checkpoint_damaged",
		       "the terminal '%.40s' is not in it", of);
}

static int place(struct restore_fds *f, bool live, const char *key,
		 const json_t *v, const struct restore_pid *pids, size_t npids,
		 struct err *e)
{
	const char *kind = json_str(v, "kind"), *of = json_str(v, "of");
	const struct restore_pipe *p = find(f, of);
	int n = number(key);

	if (!strcmp(kind, "pidfd"))
		return put_pidfd((pid_t)json_int(v, "inner", 0), n, pids, npids,
				 e);
	if (!strcmp(kind, "tty"))
		return put_tty(f, of, n, e);
	if (live && is_live(n))
		return 0;
	if (p && !strcmp(kind, "pipe-read"))
		return put(p->end[0], n, e);
	if (p && !strcmp(kind, "pipe-write"))
		return put(p->end[1], n, e);
	if (p && !strcmp(kind, "pipe-ref"))
		return put_ref(p->end[1], n, e);
	return err_set(e, -EBADMSG, "internal",
		       "descriptor %d of the state is a '%.20s'", n, kind);
}

int restore_fds_report(const struct restore *rs, const struct restore_fds *f)
{
	for (size_t i = 0; i < rs->ck->npipes; i++)
		for (size_t k = 0; k < f->npipes; k++)
			if (rs->ck->pipes[i].report &&
			    !strcmp(f->pipes[k].of, rs->ck->pipes[i].of))
				return f->pipes[k].end[1];
	return -1;
}

/* Those that dsec-box takes for granted. */
static int place_own(const struct restore *rs, struct restore_fds *f,
		     const struct restore_pid *pids, size_t npids,
		     struct err *e)
{
	for (size_t i = 0; i < rs->ck->npipes; i++)
		if (rs->ck->pipes[i].report) {
			int r = put(find(f, rs->ck->pipes[i].of)->end[0],
				    RESTORE_FD_REPORT, e);

			return r < 0 ? r
				     : put_pidfd(1, RESTORE_FD_INIT, pids,
						 npids, e);
		}
	return err_set(e, -ENOENT, "checkpoint_damaged",
		       "its manifest names no pipe of pid 1");
}

int restore_fds_place(const struct restore *rs, struct restore_fds *f,
		      const struct restore_pid *pids, size_t npids,
		      struct err *e)
{
	const char *key;
	json_t *v;
	int r;

	r = place_own(rs, f, pids, npids, e);
	json_object_foreach((json_t *)(uintptr_t)table(rs->state), key, v) {
		int n = number(key);

		if (r == 0 && n != RESTORE_FD_REPORT && n != RESTORE_FD_INIT)
			r = place(f, rs->live, key, v, pids, npids, e);
	}
	return r;
}
