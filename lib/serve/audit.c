/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "serve/audit_priv.h"
#include "wire/json.h"

/* So many bytes may wait to be durable. */
#define PENDING_MAX (4 * 1024 * 1024)

/* A place in the log: behind a line, the last up to there. */
struct mark {
	off_t len;
	uint64_t seq;
	char hash[HASH_SHA256_HEX + 1];
};

/* Who waits, in the order they came. */
struct waits {
	struct audit_wait *first, **last;
};

struct audit {
	int fd;
	char *path;
	uint64_t seq; /* of the last line, written or not */
	char hash[HASH_SHA256_HEX + 1];
	uint64_t torn;
	bool tell_torn;
	bool spoilt; /* there is more in the file than what is durable */

	struct mark good;   /* what is durable */
	struct mark wrote;  /* what is in the file */
	struct mark sync;   /* what is being synced */
	struct buf pending; /* lines behind what is in the file */
	struct waits to_write, to_sync;
	struct audit_wait *syncing;
	bool busy; /* the child syncs */

	struct loop *loop;
	struct loop_source source;
	struct loop_timer timer;
	int child; /* socket to the process that syncs, or -1 */
	pid_t pid;
};

/* --- the end of a log ------------------------------------------------------
 */

/* The last whole line before ${len}, and where it ends. */
static int read_last(struct audit *a, off_t len, off_t *ret_end, struct err *e)
{
	size_t room = 2 * (AUDIT_LINE_MAX + 1), n;
	auto_free char *buf = malloc(room + 1);
	off_t from = len > (off_t)room ? len - (off_t)room : 0;
	char *nl, *begin;
	const char *why;
	ssize_t got;

	if (!buf)
		return err_sys(e, ENOMEM, "audit log");
	got = pread(a->fd, buf, room, from);
	if (got < 0)
		return err_sys(e, errno, "read '%s'", a->path);
	n = (size_t)got;
	nl = memrchr(buf, '\n', n);
	if (!nl) {
		*ret_end = 0;
		/* Longer than any line, and no end of one. */
		return from == 0 ? 0
				 : err_set(e, -EBADMSG, "configuration",
					   "'%s' is no audit log", a->path);
	}
	*ret_end = from + (nl - buf) + 1;
	begin = memrchr(buf, '\n', (size_t)(nl - buf));
	begin = begin ? begin + 1 : buf;
	why = audit_line(begin, (size_t)(nl - begin), &a->seq, NULL, a->hash);
	if (why)
		return err_set(e, -EBADMSG, "configuration",
			       "the last line of '%s' is wrong: %s; see "
			       "dsec-serve audit verify, move it away",
			       a->path, why);
	return 0;
}

static struct mark mark_of(const struct audit *a, off_t len)
{
	struct mark m = {.len = len, .seq = a->seq};

	memcpy(m.hash, a->hash, sizeof(m.hash));
	return m;
}

static int lock(struct audit *a, struct err *e)
{
	if (flock(a->fd, LOCK_EX | LOCK_NB) == 0)
		return 0;
	if (errno != EWOULDBLOCK)
		return err_sys(e, errno, "lock '%s'", a->path);
	return err_set(e, -EBUSY, "busy", "another process writes '%s'",
		       a->path);
}

static int find_end(struct audit *a, struct err *e)
{
	off_t end = 0;
	struct stat st;
	int r;

	if (fstat(a->fd, &st) < 0)
		return err_sys(e, errno, "look at '%s'", a->path);
	if (!S_ISREG(st.st_mode))
		return err_set(e, -EINVAL, "configuration",
			       "'%s' is no regular file", a->path);
	memcpy(a->hash, AUDIT_GENESIS, sizeof(a->hash));
	r = st.st_size ? read_last(a, st.st_size, &end, e) : 0;
	if (r < 0)
		return r;
	a->torn = (uint64_t)(st.st_size - end);
	a->tell_torn = a->torn > 0;
	if (a->torn && ftruncate(a->fd, end) < 0)
		return err_sys(e, errno, "mend '%s'", a->path);
	a->good = a->wrote = mark_of(a, end);
	return 0;
}

static int open_file(const char *path, int extra, struct err *e)
{
	int fd = open(path,
		      O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW |
			      extra,
		      0600);

	return fd < 0 ? err_sys(e, errno, "open '%s'", path) : fd;
}

/* A new file is durable when its name is. */
static int sync_dir(const char *path, struct err *e)
{
	auto_close int fd = -1;
	const char *slash = strrchr(path, '/');
	char dir[PATH_MAX];

	snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - path + 1) : 1,
		 slash ? path : ".");
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) < 0)
		return err_sys(e, errno, "sync '%s'", dir);
	return 0;
}

/* --- writing ---------------------------------------------------------------
 */

static void put_wait(struct waits *list, struct audit_wait *w)
{
	w->next = NULL;
	*list->last = w;
	list->last = &w->next;
}

static struct audit_wait *take_waits(struct waits *list)
{
	struct audit_wait *first = list->first;

	list->first = NULL;
	list->last = &list->first;
	return first;
}

static void call_all(struct audit_wait *w, int r, const struct err *why)
{
	struct audit_wait *next;

	for (; w; w = next) {
		next = w->next;
		w->fn(w, r, why);
	}
}

/* Off with what is behind the lines of the file. */
static int cut(struct audit *a, struct err *e)
{
	int r;

	do
		r = ftruncate(a->fd, a->wrote.len);
	while (r < 0 && errno == EINTR);
	a->spoilt = r < 0;
	return r < 0 ? err_sys(e, errno, "mend '%s'", a->path) : 0;
}

/* Nothing behind ${to} was ever there. */
static void back(struct audit *a, const struct mark *to)
{
	a->wrote = *to;
	a->seq = to->seq;
	memcpy(a->hash, to->hash, sizeof(a->hash));
	a->pending.len = 0;
	/* If this fails too it is tried again before anything is written; the
	 * next opening takes it off as torn, or finds a line that is whole and
	 * whose call was refused. */
	(void)!cut(a, NULL);
}

/* In the file; who does not wait for more is told. */
static void written(struct audit *a)
{
	struct audit_wait *w = take_waits(&a->to_write), *next;
	struct waits told = {NULL, &told.first};

	for (; w; w = next) {
		next = w->next;
		put_wait(w->written ? &told : &a->to_sync, w);
	}
	call_all(told.first, 0, NULL);
}

/* What is pending goes to the file, all or nothing of it. */
static int write_pending(struct audit *a, struct err *e)
{
	const struct mark wrote = a->wrote;
	struct err why = {0};
	int r = 0;

	if (!a->pending.len)
		return 0;
	if (a->spoilt)
		r = cut(a, &why);
	if (r == 0)
		r = fd_write_all(a->fd, a->pending.data, a->pending.len, &why);
	if (r < 0) {
		r = err_wrap(&why, r, "'%s'", a->path);
		if (e)
			*e = why;
		back(a, &wrote);
		call_all(take_waits(&a->to_write), r, &why);
		return r;
	}
	a->wrote = mark_of(a, a->wrote.len + (off_t)a->pending.len);
	a->pending.len = 0;
	written(a);
	return 0;
}

static bool begin_sync(struct audit *a)
{
	if (a->busy || a->wrote.len == a->good.len)
		return false;
	a->sync = a->wrote;
	a->syncing = take_waits(&a->to_sync);
	return true;
}

static void synced(struct audit *a, int errnum)
{
	struct audit_wait *w = steal_ptr(a->syncing), *later, *last;
	struct err why = {0};
	int r;

	if (!errnum) {
		a->good = a->sync;
		call_all(w, 0, NULL);
		return;
	}
	/* What came behind it follows on it. */
	r = err_sys(&why, errnum, "sync '%s'", a->path);
	back(a, &a->good);
	later = take_waits(&a->to_sync);
	last = take_waits(&a->to_write);
	call_all(w, r, &why);
	call_all(later, r, &why);
	call_all(last, r, &why);
}

/* --- the child that syncs --------------------------------------------------
 */

/* It gets the descriptor with each request, for the file may be another. */
static void serve_syncs(int sock)
{
	int fd, errnum;
	size_t n;
	char c;

	for (;;) {
		n = 1;
		if (fd_recv(sock, &c, 1, &fd, &n, NULL) <= 0 || n != 1)
			_exit(0);
		errnum = fdatasync(fd) < 0 ? errno : 0;
		fd_close(fd);
		if (write(sock, &errnum, sizeof(errnum)) != sizeof(errnum))
			_exit(0);
	}
}

static void child_gone(struct audit *a)
{
	if (a->child < 0)
		return;
	loop_del(a->loop, &a->source);
	fd_close(steal_fd(&a->child));
	while (waitpid(a->pid, NULL, 0) < 0 && errno == EINTR)
		;
	a->busy = false;
}

static void on_child(struct loop *l, struct loop_source *s, uint32_t events);

static int start_child(struct audit *a, struct err *e)
{
	int sv[2], r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
		return err_sys(e, errno, "audit log");
	a->pid = fork();
	if (a->pid == 0) {
		fd_close(sv[0]);
		if (sv[1] != 3 && dup3(sv[1], 3, 0) < 0)
			_exit(1);
		/* Nothing of the daemon stays open here. */
		close_range(4, ~0U, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_NAME, "dsec-audit");
		serve_syncs(3);
	}
	fd_close(sv[1]);
	if (a->pid < 0) {
		fd_close(sv[0]);
		return err_sys(e, errno, "audit log");
	}
	a->child = sv[0];
	r = loop_add(a->loop, &a->source, a->child, EPOLLIN, on_child, a, e);
	if (r < 0)
		child_gone(a);
	return r;
}

static void arm(struct audit *a)
{
	if (a->loop &&
	    (a->pending.len || (!a->busy && a->wrote.len != a->good.len)))
		loop_timer_set(a->loop, &a->timer, 1);
}

static void on_child(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct audit *a = s->arg;
	bool was_busy = a->busy;
	int errnum = EIO;
	ssize_t n;

	(void)l;
	(void)events;
	do
		n = read(a->child, &errnum, sizeof(errnum));
	while (n < 0 && errno == EINTR);
	if (n != sizeof(errnum)) {
		/* It was killed: what it was to sync is synced here. */
		child_gone(a);
		errnum = fdatasync(a->fd) < 0 ? errno : 0;
	}
	a->busy = false;
	if (was_busy)
		synced(a, errnum);
	arm(a);
}

/* Everything that came in this round of the loop, at once. */
static void on_timer(struct loop *l, struct loop_timer *t)
{
	struct audit *a = t->arg;

	(void)l;
	/* What cannot be written keeps nothing of before from the disk. */
	(void)!write_pending(a, NULL);
	if (!begin_sync(a))
		return;
	if (a->child < 0)
		(void)!start_child(a, NULL); /* it was killed */
	if (a->child >= 0 && fd_send(a->child, "s", 1, &a->fd, 1, 0) == 1) {
		a->busy = true;
		return;
	}
	synced(a, fdatasync(a->fd) < 0 ? errno : 0);
}

/* --- the log ---------------------------------------------------------------
 */

int audit_open(const char *path, struct loop *l, struct audit **ret,
	       struct err *e)
{
	struct audit *a = calloc(1, sizeof(*a));
	int r;

	if (!a)
		return err_sys(e, ENOMEM, "audit log");
	a->child = -1;
	a->to_write.last = &a->to_write.first;
	a->to_sync.last = &a->to_sync.first;
	a->path = strdup(path);
	a->fd = a->path ? open_file(path, 0, e)
			: err_sys(e, ENOMEM, "audit log");
	r = a->fd < 0 ? a->fd : lock(a, e);
	if (r == 0)
		r = find_end(a, e);
	if (r == 0)
		r = sync_dir(path, e);
	if (r == 0 && l) {
		a->loop = l;
		a->timer = (struct loop_timer){.fn = on_timer, .arg = a};
		r = start_child(a, e);
	}
	if (r < 0)
		audit_close(a);
	else
		*ret = a;
	return r;
}

void audit_close(struct audit *a)
{
	if (!a)
		return;
	if (a->fd >= 0) {
		(void)!audit_sync(a, NULL);
		if (a->loop)
			loop_timer_set(a->loop, &a->timer, 0);
		child_gone(a);
		fd_close(a->fd);
	}
	buf_done(&a->pending);
	free(a->path);
	free(a);
}

uint64_t audit_torn(const struct audit *a)
{
	return a->torn;
}

static bool is_utf8(const char *text, size_t len)
{
	auto_json json_t *j = json_stringn(text, len);

	return j != NULL;
}

/* A text of anybody's as JSON; where it is not UTF-8, with '?' in it. */
static int add_text(struct buf *b, const char *key, const char *text)
{
	size_t len = strnlen(text, AUDIT_TEXT_MAX);
	bool utf8 = is_utf8(text, len);
	int r;

	r = buf_addf(b, ",\"%s\":\"", key);
	for (size_t i = 0; r == 0 && i < len; i++) {
		unsigned char c = (unsigned char)text[i];

		if (c == '"' || c == '\\')
			r = buf_addf(b, "\\%c", c);
		else if (c < 0x20 || c == 0x7f)
			r = buf_addf(b, "\\u%04x", c);
		else
			r = buf_add(b, c > 0x7f && !utf8 ? "?" : &text[i], 1);
	}
	return r < 0 ? r : buf_add(b, "\"", 1);
}

static int add_body(struct audit *a, const struct audit_entry *n, struct buf *b)
{
	const struct {
		const char *key, *text;
	} texts[] = {
		{"who", n->who},
		{"request", n->request},
		{"req", n->req},
		{"program", n->program},
		{"op", n->op},
		{"sandbox", n->sandbox},
		{"project", n->project},
		{"task", n->task},
		{"key", n->key},
		{"decision", n->decision == AUDIT_ALLOW ? "allow" : "deny"},
		{"code", n->code},
	};
	int r;

	r = buf_addf(b,
		     "{\"seq\":%" PRIu64 ",\"at_ms\":%" PRIu64
		     ",\"prev\":\"%s\"",
		     a->seq + 1, n->at_ms, a->hash);
	for (size_t i = 0; r == 0 && i < array_len(texts); i++)
		if (texts[i].text)
			r = add_text(b, texts[i].key, texts[i].text);
	if (r == 0 && a->tell_torn)
		r = buf_addf(b, ",\"torn_before\":%" PRIu64, a->torn);
	return r;
}

int audit_add(struct audit *a, const struct audit_entry *entry,
	      struct audit_wait *w, struct err *e)
{
	auto_buf struct buf body = {0};
	char hex[HASH_SHA256_HEX + 1];
	size_t was = a->pending.len;

	if (was > PENDING_MAX) {
		err_set(e, -EAGAIN, "busy", "the audit log is behind");
		if (e) {
			e->infra = true;
			e->retry_after_ms = 1000;
		}
		return -EAGAIN;
	}
	if (add_body(a, entry, &body) < 0)
		return err_sys(e, ENOMEM, "audit log");
	if (body.len > AUDIT_LINE_MAX - 128)
		return err_set(e, -EMSGSIZE, "too_large",
			       "a line of the audit log");
	audit_hash(a->hash, body.data, body.len, hex);
	if (buf_add(&a->pending, body.data, body.len) < 0 ||
	    buf_addf(&a->pending, ",\"hash\":\"%s\"}\n", hex) < 0) {
		a->pending.len = was;
		return err_sys(e, ENOMEM, "audit log");
	}
	a->seq++;
	a->tell_torn = false;
	memcpy(a->hash, hex, sizeof(hex));
	if (w)
		put_wait(&a->to_write, w);
	arm(a);
	return 0;
}

/* Until the child has answered what it was asked. */
static void wait_child(struct audit *a)
{
	while (a->busy)
		on_child(a->loop, &a->source, 0);
}

int audit_sync(struct audit *a, struct err *e)
{
	uint64_t seq = a->seq;
	int r;

	wait_child(a);
	r = write_pending(a, e);
	if (begin_sync(a))
		synced(a, fdatasync(a->fd) < 0 ? errno : 0);
	if (r == 0 && a->good.seq < seq)
		r = err_set(e, -EIO, "io", "'%s' cannot be written", a->path);
	return r;
}

/* Was it moved away, and nothing of anybody's put in its place?  (Who moves
 * logs may have made an empty one.) */
static int check_moved(const struct audit *a, struct err *e)
{
	struct stat ours, there;

	if (fstat(a->fd, &ours) < 0)
		return err_sys(e, errno, "look at '%s'", a->path);
	if (lstat(a->path, &there) < 0)
		return errno == ENOENT
			       ? 0
			       : err_sys(e, errno, "look at '%s'", a->path);
	if (ours.st_dev == there.st_dev && ours.st_ino == there.st_ino)
		return err_set(e, -EEXIST, "exists", "'%s' was not moved away",
			       a->path);
	return S_ISREG(there.st_mode) && there.st_size == 0
		       ? 0
		       : err_set(e, -EBADMSG, "configuration",
				 "'%s' is another file now", a->path);
}

/* The first line of a file: so that it is never one without the chain, which a
 * daemon that is started next would begin anew. */
static int carry_on(struct audit *a, struct err *e)
{
	const struct audit_entry entry = {.program = "audit",
					  .op = "continue",
					  .at_ms = clock_wall_ms()};
	int r = audit_add(a, &entry, NULL, e);

	return r < 0 ? r : audit_sync(a, e);
}

/* A new file in place of the one that is open, with its first line. */
static int put_new(struct audit *a, const char *path, struct err *e)
{
	int r = lock(a, e);

	if (r == 0)
		r = carry_on(a, e);
	if (r == 0 && rename(path, a->path) < 0)
		r = err_sys(e, errno, "name '%s'", a->path);
	else if (r == 0)
		r = sync_dir(path = a->path, e);
	/* It is written on where it was: nothing goes on from here. */
	if (r < 0)
		(void)unlink(path);
	return r;
}

int audit_reopen(struct audit *a, struct err *e)
{
	char path[PATH_MAX];
	struct audit was;
	int r;

	r = check_moved(a, e);
	if (r == 0)
		r = audit_sync(a, e);
	if (r < 0)
		return r;
	if (snprintf(path, sizeof(path), "%s.new", a->path) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "'%s'", a->path);
	was = *a;
	r = open_file(path, O_TRUNC, e);
	if (r < 0)
		return r;
	a->fd = r;
	a->good.len = a->wrote.len = 0;
	a->spoilt = false;
	r = put_new(a, path, e);
	if (r == 0) {
		fd_close(was.fd);
		return 0;
	}
	/* As if the line of the new one had never been. */
	fd_close(a->fd);
	a->fd = was.fd;
	a->spoilt = was.spoilt;
	a->tell_torn = was.tell_torn;
	a->seq = was.seq;
	memcpy(a->hash, was.hash, sizeof(a->hash));
	a->good = was.good;
	a->wrote = was.wrote;
	return r;
}
