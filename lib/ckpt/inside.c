/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ckpt/inside_priv.h"

static const char *const namespaces[INSIDE_NS] = {
	"user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time",
};

/* Where children would go; they differ only for whoever asked for that. */
static const char *const for_children[] = {
	"pid_for_children",
	"time_for_children",
};

void inside_plain(char *dst, size_t size, const char *text, size_t len)
{
	size_t n = 0;

	for (size_t i = 0; i < len && n + 1 < size; i++)
		dst[n++] = text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
	dst[n] = '\0';
}

int inside_refuse(const struct survey *s, struct err *e, const char *fmt, ...)
{
	char why[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	if (!s->at)
		return err_set(e, -EBUSY, "not_checkpointable", "%s", why);
	return err_set(e, -EBUSY, "not_checkpointable", "process %d ('%s') %s",
		       (int)s->at->inner, s->at->comm, why);
}

int inside_warn(const struct survey *s, struct err *e, const char *fmt, ...)
{
	char what[256], text[320];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	snprintf(text, sizeof(text), "process %d ('%s'): %s", (int)s->at->inner,
		 s->at->comm, what);
	/* Enough is enough: a record has its limit too. */
	if (json_array_size(s->in->warnings) >= 32)
		return 0;
	return json_array_append_new(s->in->warnings, json_string(text)) < 0
		       ? err_sys(e, ENOMEM, "survey")
		       : 0;
}

bool inside_seen(struct survey *s, const char *key)
{
	if (json_object_get(s->seen, key))
		return true;
	(void)json_object_set_new(s->seen, key, json_true());
	return false;
}

static const char *field(const char *text, const char *key)
{
	const char *at = strstr(text, key);

	return at ? at + strlen(key) : NULL;
}

static void take_comm(struct inside_proc *p, const char *text)
{
	size_t len = strcspn(text, "\n");

	/* The kernel escapes what is not plain as \ooo; that is plain. */
	inside_plain(p->comm, sizeof(p->comm), text, len);
}

/*
 * Its number inside: /proc shows one per pid namespace from ours down.  Two are
 * a process of the sandbox's own; pid 1's parent namespace may be no other than
 * ours, which its own line tells.
 */
static int take_numbers(struct survey *s, struct inside_proc *p,
			const char *line, struct err *e)
{
	long numbers[4] = {0};
	int n = 0;
	char *end;

	for (; n < 4; n++) {
		numbers[n] = strtol(line, &end, 10);
		if (end == line)
			break;
		line = end;
	}
	p->inner = (pid_t)(n > 1 ? numbers[1] : 0);
	if (n < 2)
		return inside_refuse(s, e,
				     "was brought in from outside: it is not "
				     "in the sandbox's pid namespace");
	if (n > 2)
		return inside_refuse(s, e, "is in a pid namespace of its own");
	return 0;
}

static int take_status(struct survey *s, struct inside_proc *p, pid_t *ret_ppid,
		       struct err *e)
{
	const char *name, *state, *ppid, *tracer, *nspid, *threads;
	auto_free char *text = NULL;
	int r;

	r = fd_read_file(s->at_dir, "status", 65536, &text, NULL, e);
	if (r < 0)
		return r;
	name = field(text, "Name:\t");
	state = field(text, "\nState:\t");
	ppid = field(text, "\nPPid:\t");
	tracer = field(text, "\nTracerPid:\t");
	nspid = field(text, "\nNSpid:");
	threads = field(text, "\nThreads:\t");
	if (!name || !state || !ppid || !tracer || !nspid)
		return err_set(e, -EBADMSG, "internal",
			       "/proc/%d/status says too little", (int)p->pid);
	take_comm(p, name);
	p->stopped = *state == 'T';
	p->zombie = *state == 'Z' || *state == 'X';
	p->threads = threads ? (unsigned)strtoul(threads, NULL, 10) : 1;
	*ret_ppid = (pid_t)strtol(ppid, NULL, 10);
	r = take_numbers(s, p, nspid, e);
	if (r == 0 && (*state == 't' || strtol(tracer, NULL, 10) != 0))
		r = inside_refuse(s, e, "is traced by a debugger");
	return r;
}

static int read_ns(int dir, const char *name, char *link, size_t size)
{
	char path[40];
	ssize_t n;

	snprintf(path, sizeof(path), "ns/%s", name);
	n = readlinkat(dir, path, link, size - 1);
	if (n < 0)
		return -errno;
	link[n] = '\0';
	return 0;
}

static int check_ns(const struct survey *s, const char *name, const char *want,
		    struct err *e)
{
	char link[40];
	int r;

	r = read_ns(s->at_dir, name, link, sizeof(link));
	/* An old kernel may lack one, for all of them. */
	if (r == -ENOENT && !*want)
		return 0;
	if (r < 0)
		return err_sys(e, -r, "read the namespaces of process %d",
			       (int)s->at->pid);
	return strcmp(link, want) ? inside_refuse(s, e,
						  "has a %s namespace of its "
						  "own",
						  name)
				  : 0;
}

static int check_all_ns(struct survey *s, struct err *e)
{
	char link[40];
	int r;

	for (size_t i = 0; i < INSIDE_NS; i++) {
		r = check_ns(s, namespaces[i], s->ns[i], e);
		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < array_len(for_children); i++) {
		/* Not there before a first child: then it is the same. */
		if (read_ns(s->at_dir, for_children[i], link, sizeof(link)) < 0)
			continue;
		r = check_ns(s, for_children[i], s->ns[i == 0 ? 2 : 7], e);
		if (r < 0)
			return r;
	}
	return 0;
}

/* The engine reads and writes registers of 64 bits alone. */
static int check_exe(struct survey *s, struct err *e)
{
	unsigned char ident[5] = {0};
	auto_close int fd = -1;

	fd = openat(s->at_dir, "exe", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open the program of process %d",
			       (int)s->at->pid);
	if (pread(fd, ident, sizeof(ident), 0) == sizeof(ident) &&
	    !memcmp(ident, "\177ELF\1", 5))
		return inside_refuse(s, e, "is a 32-bit program");
	return 0;
}

/* Its directories must be the sandbox's own, as its files must, and have a name
 * that can be said. */
static int check_dirs(struct survey *s, struct err *e)
{
	static const char *const links[] = {"exe", "cwd", "root"};
	char link[PATH_MAX];
	struct statx stx;

	for (size_t i = 0; i < array_len(links); i++) {
		if (readlinkat(s->at_dir, links[i], link, sizeof(link)) < 0 &&
		    errno == ENAMETOOLONG)
			return inside_refuse(s, e,
					     "has its %s at a path that is too "
					     "long",
					     links[i]);
		if (statx(s->at_dir, links[i], 0, STATX_MNT_ID, &stx) < 0)
			return err_sys(e, errno, "look at %s of process %d",
				       links[i], (int)s->at->pid);
		/* What runs from memory alone is in no mount. */
		if (i == 0 && stx.stx_nlink == 0)
			continue;
		if (!inside_has_mount(s, stx.stx_mnt_id))
			return inside_refuse(s, e,
					     "has its %s outside of the "
					     "sandbox",
					     links[i]);
	}
	return 0;
}

static int open_proc(struct survey *s, const struct inside_proc *p,
		     struct err *e)
{
	char name[16];

	s->at = p;
	snprintf(name, sizeof(name), "%d", (int)p->pid);
	s->at_dir = openat(s->proc, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return s->at_dir < 0
		       ? err_sys(e, errno, "look at process %d", (int)p->pid)
		       : 0;
}

static void close_proc(struct survey *s)
{
	if (s->at_pidfd >= 0)
		fd_close(steal_fd(&s->at_pidfd));
	if (s->at_dir >= 0)
		fd_close(steal_fd(&s->at_dir));
	s->at = NULL;
}

static bool is_ours(const struct survey *s, pid_t pid)
{
	for (size_t i = 0; i < s->in->n; i++)
		if (s->in->procs[i].pid == pid)
			return true;
	return false;
}

static int look(struct survey *s, struct inside_proc *p, struct err *e)
{
	pid_t ppid = 0;
	int r;

	r = take_status(s, p, &ppid, e);
	if (r < 0)
		return r;
	if (p->pid != s->ask->init && !is_ours(s, ppid))
		return inside_refuse(s, e,
				     "has a parent outside of the sandbox");
	if (p->zombie && p->threads > 1)
		return inside_refuse(s, e,
				     "has threads that run on after its first "
				     "one has ended");
	if (p->zombie)
		return 0;
	if (!s->ask->running) {
		r = inside_tasks(s, e);
		if (r < 0)
			return r;
	}
	r = check_all_ns(s, e);
	if (r == 0)
		r = check_exe(s, e);
	if (r == 0)
		r = check_dirs(s, e);
	if (r == 0)
		r = inside_fds(s, e);
	return r;
}

static int note(struct survey *s, const struct inside_proc *p, struct err *e)
{
	struct inside *in = s->in;
	char key[16];

	snprintf(key, sizeof(key), "%d", (int)p->inner);
	if (strcmp(p->leaf, "init") != 0 &&
	    json_object_set_new(in->leaves, key, json_string(p->leaf)) < 0)
		return err_sys(e, ENOMEM, "survey");
	if (p->stopped &&
	    json_array_append_new(in->stopped, json_integer(p->inner)) < 0)
		return err_sys(e, ENOMEM, "survey");
	return 0;
}

static int look_at_all(struct survey *s, struct err *e)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < s->in->n; i++) {
		r = open_proc(s, &s->in->procs[i], e);
		if (r == 0)
			r = look(s, &s->in->procs[i], e);
		if (r == 0)
			r = note(s, &s->in->procs[i], e);
		close_proc(s);
	}
	return r;
}

static int add_leaf(const struct cgroup_root *root, const char *id,
		    const char *leaf, void *arg, struct err *e)
{
	struct survey *s = arg;
	struct inside *in = s->in;
	auto_free pid_t *pids = NULL;
	struct inside_proc *more;
	size_t n;
	int r;

	r = cgroup_pids(root, id, leaf, &pids, &n, e);
	if (r < 0)
		return r;
	more = realloc(in->procs, (in->n + n + 1) * sizeof(*more));
	if (!more)
		return err_sys(e, ENOMEM, "survey");
	in->procs = more;
	for (size_t i = 0; i < n; i++) {
		memset(&more[in->n], 0, sizeof(*more));
		more[in->n].pid = pids[i];
		snprintf(more[in->n].leaf, sizeof(more->leaf), "%s", leaf);
		in->n++;
	}
	return 0;
}

/* Pid 1 first: what is its own is what everybody may have. */
static int list(struct survey *s, struct err *e)
{
	struct inside *in = s->in;
	struct inside_proc first;
	int r;

	r = cgroup_each_leaf(s->ask->cgroups, s->ask->id, add_leaf, s, e);
	if (r < 0)
		return r;
	for (size_t i = 0; i < in->n; i++) {
		if (in->procs[i].pid != s->ask->init)
			continue;
		first = in->procs[0];
		in->procs[0] = in->procs[i];
		in->procs[i] = first;
		return 0;
	}
	return err_set(e, -ESRCH, "stopped", "pid 1 of the sandbox has ended");
}

static int prepare(struct survey *s, struct err *e)
{
	struct inside *in = s->in;
	int r;

	in->leaves = json_object();
	in->stopped = json_array();
	in->externals = json_object();
	in->warnings = json_array();
	in->watches = json_object();
	s->seen = json_object();
	s->ours = json_object();
	s->unix_sks = json_object();
	s->slaves = json_object();
	s->masters = json_object();
	if (!in->leaves || !in->stopped || !in->externals || !in->warnings ||
	    !in->watches || !s->seen || !s->ours || !s->unix_sks ||
	    !s->slaves || !s->masters)
		return err_sys(e, ENOMEM, "survey");
	s->proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->proc < 0)
		return err_sys(e, errno, "open /proc");
	r = list(s, e);
	if (r == 0)
		r = open_proc(s, &in->procs[0], e);
	for (size_t i = 0; r == 0 && i < INSIDE_NS; i++)
		if (read_ns(s->at_dir, namespaces[i], s->ns[i],
			    sizeof(s->ns[i])) < 0)
			s->ns[i][0] = '\0';
	if (r == 0) {
		s->at = NULL; /* mounts are the sandbox's, not pid 1's */
		r = inside_mounts(s, e);
	}
	close_proc(s);
	return r;
}

int inside_open(struct survey *s, const char *path, int flags)
{
	char root[40];

	if (s->root < 0) {
		snprintf(root, sizeof(root), "/proc/%d/root",
			 (int)s->ask->init);
		s->root = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (s->root < 0)
			return -errno;
	}
	return fd_openat2(s->root, path, (unsigned)flags,
			  RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
}

static void done(struct survey *s)
{
	close_proc(s);
	if (s->proc >= 0)
		fd_close(s->proc);
	if (s->root >= 0)
		fd_close(s->root);
	free(s->mounts);
	json_decref(s->seen);
	json_decref(s->ours);
	json_decref(s->unix_sks);
	json_decref(s->slaves);
	json_decref(s->masters);
}

int inside_survey(const struct inside_ask *ask, struct inside *ret,
		  struct err *e)
{
	struct inside in = {0};
	struct survey s = {
		.ask = ask,
		.in = &in,
		.proc = -1,
		.root = -1,
		.at_dir = -1,
		.at_pidfd = -1,
	};
	int r;

	r = prepare(&s, e);
	if (r == 0)
		r = look_at_all(&s, e);
	if (r == 0)
		r = inside_unix_peers(&s, e);
	if (r == 0)
		r = inside_streams(&s, e);
	if (r == 0)
		r = inside_find_watches(&s, e);
	done(&s);
	if (r < 0) {
		inside_done(&in);
		return r;
	}
	*ret = in;
	return 0;
}

void inside_done(struct inside *in)
{
	while (in->npipes > 0)
		fd_close(in->pipes[--in->npipes]);
	free(in->pipes);
	free(in->procs);
	json_decref(in->leaves);
	json_decref(in->stopped);
	json_decref(in->externals);
	json_decref(in->warnings);
	json_decref(in->watches);
	memset(in, 0, sizeof(*in));
}
