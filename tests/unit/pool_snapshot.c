/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of layers: whatever the way, nothing is different in the copy. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/proc.h"
#include "base/walk.h"
#include "sys/pool.h"

#define FROM  "abcdefghijklmnopqrst"
#define TO    "abcdefghijklmnopqrsu"
#define WORK  "/work"
#define MIB   (1024 * 1024)
#define DEPTH 90
#define FAR   "a-directory-with-a-name-long-enough-to-be-far-away-soon"

static bool good(int r, const struct err *e, const char *what)
{
	if (r < 0)
		printf("# %s: %s (%s)\n", what, e->msg, e->code);
	return ok(r >= 0, "%s", what);
}

/* A path into path[PATH_MAX]. */
__attribute__((format(printf, 2, 3))) static void name(char *path,
						       const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(path, PATH_MAX, fmt, ap);
	va_end(ap);
}

static int open_home(const char *lib, const char *where, const char *id)
{
	char path[PATH_MAX];

	name(path, "%s/%s", lib, where);
	mkdir(path, 0700);
	name(path, "%s/%s/%s", lib, where, id);
	mkdir(path, 0700);
	return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* --- a layer with all that one can have ---------------------------------- */

static int failures;

static void want(int r)
{
	if (r < 0) {
		printf("# errno %d\n", errno);
		failures++;
	}
}

static void put(int dir, const char *name, const void *data, size_t len,
		off_t at)
{
	auto_close int fd = openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC,
				   0640);

	want(fd);
	if (pwrite(fd, data, len, at) != (ssize_t)len)
		want(-1);
}

static void put_far(int dir)
{
	int fd = openat(dir, ".", O_RDONLY | O_CLOEXEC), next;

	put(dir, "near", "one file", 8, 0);
	for (int i = 0; i < DEPTH; i++) {
		want(mkdirat(fd, FAR, 0755));
		next = openat(fd, FAR, O_RDONLY | O_CLOEXEC);
		want(next);
		fd_close(fd);
		fd = next;
	}
	want(linkat(dir, "near", fd, "far", 0));
	put(fd, "aaa", "far first", 9, 0);
	want(linkat(fd, "aaa", dir, "zzz", 0));
	fd_close(fd);
}

static void put_xattrs(const char *upper)
{
	static const unsigned char cap[20] = {1, 0, 0, 2, 0, 4};
	/* user::rw-, user:1234:r--, group::r--, mask::r--, other::--- */
	static const unsigned char acl[44] = {2,    0,	 0,   0,   1,  0, 6, 0,
					      255,  255, 255, 255, 2,  0, 4, 0,
					      0xd2, 4,	 0,   0,   4,  0, 4, 0,
					      255,  255, 255, 255, 16, 0, 4, 0,
					      255,  255, 255, 255, 32, 0, 0, 0,
					      255,  255, 255, 255};
	char path[PATH_MAX], big[3000];

	memset(big, 'x', sizeof(big));
	name(path, "%s/dir", upper);
	want(setxattr(path, "trusted.overlay.opaque", "y", 1, 0));
	name(path, "%s/tool", upper);
	want(chown(path, 1000, 1001));
	want(setxattr(path, "security.capability", cap, sizeof(cap), 0));
	want(setxattr(path, "user.big", big, sizeof(big), 0));
	want(setxattr(path, "trusted.overlay.origin", "\0\1\2", 3, 0));
	name(path, "%s/acl", upper);
	want(setxattr(path, "system.posix_acl_access", acl, sizeof(acl), 0));
	name(path, "%s/link", upper);
	want(lsetxattr(path, "trusted.overlay.origin", "l", 1, 0));
}

static void put_nodes(int dir, const char *upper)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	auto_close int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	want(mknodat(dir, "gone", S_IFCHR, makedev(0, 0)));
	want(linkat(dir, "gone", dir, "gone too", 0));
	want(mknodat(dir, "fifo", S_IFIFO | 0601, 0));
	want(mknodat(dir, "disk", S_IFBLK | 0660, makedev(7, 200)));
	want(symlinkat("../../etc/passwd", dir, "link"));
	want(symlinkat("nowhere\n", dir, "new\nline"));
	snprintf(sun.sun_path, sizeof(sun.sun_path), "%.90s/sock", upper);
	want(bind(s, (void *)&sun, sizeof(sun)));
}

static void put_all(const char *lib)
{
	const struct timespec old[] = {{1, 2}, {-3, 999999999}};
	char upper[PATH_MAX];
	auto_close int dir = -1;

	name(upper, "%s/sb/" FROM "/upper", lib);
	dir = open(upper, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	want(dir);
	put(dir, "empty", "", 0, 0);
	put(dir, "small", "small", 5, 0);
	put(dir, "sparse", "end", 3, 1024 * (off_t)MIB);
	put(dir, "sparse", "middle", 6, 7 * MIB + 1);
	want(truncate(upper, 0) < 0 ? 0 : -1);
	put(dir, "tool", "#!", 2, 0);
	put(dir, "acl", "a", 1, 0);
	want(mkdirat(dir, "dir", 01777));
	want(mkdirat(dir, "dir/in", 0700));
	put(dir, "dir/in/it", "deep", 4, 0);
	put_nodes(dir, upper);
	put_xattrs(upper);
	put_far(dir);
	want(fchmodat(dir, "tool", 06755, 0));
	want(fchownat(dir, "link", 1879048192, 7, AT_SYMLINK_NOFOLLOW));
	want(fchownat(dir, "dir", 65534, 65534, 0));
	want(fchmodat(dir, "dir", 01775, 0));
	want(utimensat(dir, "small", old, 0));
	want(utimensat(dir, "link", old, AT_SYMLINK_NOFOLLOW));
	want(utimensat(dir, "dir", old, 0));
	name(upper, "%s/sb/" FROM "/out/e0", lib);
	fd_close(open(upper, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	name(upper, "%s/sb/" FROM WORK WORK, lib);
	want(mkdir(upper, 0));
	name(upper, "%s/sb/" FROM WORK WORK "/incompat", lib);
	want(mkdir(upper, 0));
	is_int(failures, 0, "a layer with everything");
}

/* --- comparison ---------------------------------------------------------- */

static void name_of(char *path, const struct walk_item *it)
{
	snprintf(path, PATH_MAX, "/proc/self/fd/%d/%s", it->dirfd, it->name);
}

static bool same_xattrs(const struct walk_item *a, const struct walk_item *b)
{
	static char la[65536], lb[65536], va[65536], vb[65536];
	char pa[PATH_MAX], pb[PATH_MAX];
	ssize_t na, nb, n;
	int found = 0;

	name_of(pa, a);
	name_of(pb, b);
	na = llistxattr(pa, la, sizeof(la));
	nb = llistxattr(pb, lb, sizeof(lb));
	if (na != nb)
		return false;
	for (char *x = la; x < la + na; x += strlen(x) + 1, found++) {
		n = lgetxattr(pa, x, va, sizeof(va));
		if (n < 0 || lgetxattr(pb, x, vb, sizeof(vb)) != n ||
		    memcmp(va, vb, (size_t)n))
			return false;
	}
	return true;
}

static bool same_data(const struct walk_item *a, const struct walk_item *b)
{
	auto_close int fa = -1, fb = -1;
	static char da[65536], db[65536];
	off_t at = 0;
	ssize_t n;

	if (S_ISLNK(a->st.st_mode)) {
		n = readlinkat(a->dirfd, a->name, da, sizeof(da));
		return readlinkat(b->dirfd, b->name, db, sizeof(db)) == n &&
		       !memcmp(da, db, (size_t)n);
	}
	if (!S_ISREG(a->st.st_mode))
		return true;
	fa = openat(a->dirfd, a->name, O_RDONLY | O_CLOEXEC);
	fb = openat(b->dirfd, b->name, O_RDONLY | O_CLOEXEC);
	while ((at = lseek(fa, at, SEEK_DATA)) >= 0) {
		n = pread(fa, da, sizeof(da), at);
		if (n <= 0 || pread(fb, db, sizeof(db), at) != n ||
		    memcmp(da, db, (size_t)n))
			return false;
		at += n;
	}
	return true;
}

static const char *differs(const struct walk_item *a, const struct walk_item *b)
{
	const struct stat *s = &a->st, *t = &b->st;

	if (strcmp(a->path, b->path) || a->post != b->post)
		return "names";
	if (s->st_mode != t->st_mode || s->st_uid != t->st_uid ||
	    s->st_gid != t->st_gid || s->st_rdev != t->st_rdev ||
	    s->st_nlink != t->st_nlink ||
	    (!S_ISDIR(s->st_mode) && s->st_size != t->st_size))
		return "attributes";
	if (s->st_mtim.tv_sec != t->st_mtim.tv_sec ||
	    s->st_mtim.tv_nsec != t->st_mtim.tv_nsec)
		return "times";
	if (t->st_blocks > s->st_blocks + 64)
		return "holes";
	if (!same_xattrs(a, b))
		return "extended attributes";
	return same_data(a, b) ? NULL : "content";
}

/* How many entries are the same; -1: one is not. */
static int same_tree(const char *lib, const char *part)
{
	auto_walk struct walk *wa = NULL, *wb = NULL;
	struct walk_item a, b;
	char pa[PATH_MAX], pb[PATH_MAX];
	const char *why;
	int n = 0, ra, rb;

	name(pa, "%s/sb/" FROM "/%s/.", lib, part);
	name(pb, "%s/snap/" TO "/%s/.", lib, part);
	if (walk_open(AT_FDCWD, pa, WALK_POST, &wa, NULL) < 0 ||
	    walk_open(AT_FDCWD, pb, WALK_POST, &wb, NULL) < 0)
		return -1;
	for (;; n++) {
		ra = walk_next(wa, &a, NULL);
		rb = walk_next(wb, &b, NULL);
		if (ra != rb || ra < 0)
			return -1;
		if (ra == 0)
			return n;
		why = differs(&a, &b);
		if (why) {
			printf("# '%s': %s\n", a.path, why);
			return -1;
		}
	}
}

static bool there(const char *lib, const char *what)
{
	char path[PATH_MAX];
	struct stat st;

	name(path, "%s/%s", lib, what);
	return lstat(path, &st) == 0;
}

/* --- ways ---------------------------------------------------------------- */

static void check_refused(const struct pool *p, struct pool_snapshot *w,
			  const char *lib)
{
	enum pool_copy how;
	struct err e = {0};
	int ends[2];

	is_int(pool_snapshot(p, w, &how, &e), -EEXIST, "not over another");
	ok(there(lib, "snap/" TO "/upper/small"), "which is left alone");
	good(pool_remove_at(p, w->home, w->id, &e), &e, "removed");
	ok(!there(lib, "snap/" TO "/upper") && !there(lib, "pool/" TO),
	   "nothing is left of it");
	want(pipe2(ends, O_CLOEXEC));
	w->stop = ends[0];
	if (p->kind == POOL_DIRECTORY) {
		fd_close(ends[1]);
		is_int(pool_snapshot(p, w, &how, &e), -ECANCELED, "stopped");
		ok(!there(lib, "snap/" TO "/upper"), "nothing is left of it");
	} else {
		fd_close(ends[1]);
	}
	fd_close(ends[0]);
	w->stop = -1;
	want(mkdirat(w->home, "out", 0700));
	is_int(pool_snapshot(p, w, &how, &e), -EEXIST, "a name is taken");
	want(unlinkat(w->home, "out", AT_REMOVEDIR));
}

/* ${plain}: as if the library had no pool when the layer was made. */
static void check_way(const char *lib, enum pool_copy expected, bool plain)
{
	auto_pool struct pool p = POOL_INIT;
	auto_close int from = -1, home = -1;
	struct pool_snapshot w = {.id = TO, .stop = -1};
	enum pool_copy how;
	struct err e = {0};
	char path[PATH_MAX];
	int n;

	good(pool_open(lib, &p, &e), &e, "open");
	if (plain) {
		if (p.base >= 0)
			fd_close(p.base);
		p.base = -1;
		p.kind = POOL_DIRECTORY;
	}
	good(pool_make(&p, FROM, 0, &e), &e, "a layer");
	put_all(lib);
	w.from = from = open_home(lib, "sb", FROM);
	w.home = home = open_home(lib, "snap", TO);
	good(pool_flush(from, &e), &e, "flushed");
	if (good(pool_snapshot(&p, &w, &how, &e), &e, "a copy"))
		is_str(pool_copy_name(how), pool_copy_name(expected), "as");
	n = same_tree(lib, "upper");
	ok(n > DEPTH, "%d entries are the same", n);
	is_int(same_tree(lib, "out"), 3, "out is the same");
	ok(there(lib, "snap/" TO WORK "/.") &&
		   !there(lib, "snap/" TO WORK WORK),
	   "work is empty");
	ok(there(lib, "sb/" FROM WORK WORK "/incompat"), "the source's is not");
	good(pool_sync(home, &e), &e, "durable");
	check_refused(&p, &w, lib);
	name(path, "%s/sb/" FROM WORK WORK, lib);
	good(pool_work_new(from, &e), &e, "another work directory");
	ok(!there(lib, "sb/" FROM WORK WORK), "is empty");
	good(pool_remove(&p, FROM, &e), &e, "the layer goes");
}

/* --- on btrfs ------------------------------------------------------------ */

/* A layer that is mounted volatile, with a process that writes to it. */
static pid_t start_writer(const char *lib, const char *at)
{
	char options[PATH_MAX * 2], path[PATH_MAX];
	pid_t pid = fork();

	if (pid != 0)
		return pid;
	if (unshare(CLONE_NEWNS) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		_exit(1);
	snprintf(options, sizeof(options),
		 "lowerdir=%s/lower,upperdir=%s/sb/" FROM
		 "/upper,workdir=%s/sb/" FROM WORK ",volatile",
		 lib, lib, lib);
	if (mount("overlay", at, "overlay", 0, options) < 0) {
		perror("# overlay");
		_exit(2);
	}
	for (uint64_t i = 0;; i++) {
		auto_close int fd = -1;

		name(path, "%s/count", at);
		fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0 || pwrite(fd, &i, sizeof(i), 0) != sizeof(i))
			_exit(3);
		poll(NULL, 0, 1);
	}
}

static uint64_t count_in(const char *lib, const char *where)
{
	char path[PATH_MAX];
	auto_close int fd = -1;
	uint64_t n = 0;

	name(path, "%s/%s/upper/count", lib, where);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || pread(fd, &n, sizeof(n), 0) != sizeof(n))
		return 0;
	return n;
}

static void wait_past(const char *lib, uint64_t n)
{
	for (int i = 0; i < 500 && count_in(lib, "sb/" FROM) <= n; i++)
		poll(NULL, 0, 10);
}

static void check_live(const char *lib, const struct pool *p,
		       const struct pool_snapshot *w)
{
	char path[PATH_MAX], at[PATH_MAX];
	enum pool_copy how;
	struct err e = {0};
	uint64_t n;
	pid_t pid;

	name(path, "%s/lower", lib);
	mkdir(path, 0755);
	name(at, "%s/at", lib);
	mkdir(at, 0755);
	pid = start_writer(lib, at);
	wait_past(lib, 0);
	ok(there(lib, "sb/" FROM WORK WORK "/incompat/volatile"),
	   "mounted volatile");
	kill(pid, SIGSTOP);
	waitpid(pid, NULL, WUNTRACED);
	n = count_in(lib, "sb/" FROM);
	good(pool_snapshot(p, w, &how, &e), &e, "a copy of what is mounted");
	kill(pid, SIGCONT);
	ok(n > 0 && count_in(lib, "snap/" TO) == n, "as it was then");
	wait_past(lib, n + 3);
	ok(count_in(lib, "sb/" FROM) > n + 3, "the source goes on");
	is_int((long long)count_in(lib, "snap/" TO), (long long)n,
	       "the copy does not");
	is_int(waitpid(pid, NULL, WNOHANG), 0, "its process lives");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	good(pool_remove_at(p, w->home, TO, &e), &e, "the copy goes");
}

static int fill(const char *lib, const char *where, int mib)
{
	static char block[MIB];
	char path[PATH_MAX];
	auto_close int fd = -1;

	memset(block, 'b', sizeof(block));
	name(path, "%s/%s/upper/fill", lib, where);
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0)
		return errno;
	for (int i = 0; i < mib; i++) {
		ssize_t n = write(fd, block, sizeof(block));

		if (n != (ssize_t)sizeof(block))
			return n < 0 ? errno : EDQUOT;
	}
	return fsync(fd) < 0 ? errno : 0;
}

/* No bytes are copied, and the copy has a limit of its own. */
static void check_cost(const char *lib, const struct pool *p,
		       struct pool_snapshot *w)
{
	enum pool_copy how;
	struct err e = {0};
	uint64_t used = 0, t0;

	is_int(fill(lib, "sb/" FROM, 64), 0, "64 MiB");
	w->limit_bytes = 96 * MIB;
	t0 = clock_ms();
	good(pool_snapshot(p, w, &how, &e), &e, "a copy with a limit");
	printf("# %d ms\n", (int)(clock_ms() - t0));
	is_int(fill(lib, "snap/" TO, 16), 0, "there is room for some");
	is_int(fill(lib, "snap/" TO, 96), EDQUOT, "not for more");
	good(pool_usage(p, TO, &used, &e), &e, "its usage");
	ok(used > 16 * MIB && used <= 96 * MIB, "is its own: %llu MiB (%s)",
	   (unsigned long long)used / MIB, pool_quota_name(pool_quota(p)));
	is_int(fill(lib, "sb/" FROM, 8), 0, "the source has room still");
	good(pool_remove_at(p, w->home, TO, &e), &e, "the copy goes");
	w->limit_bytes = 0;
}

static void check_btrfs(const char *lib, bool simple)
{
	auto_pool struct pool p = POOL_INIT;
	auto_close int from = -1, home = -1;
	struct pool_snapshot w = {.id = TO, .stop = -1};
	struct err e = {0};

	good(pool_open(lib, &p, &e), &e, "open");
	if (simple)
		good(pool_quota_enable(&p, &e), &e, "quota");
	good(pool_make(&p, FROM, 0, &e), &e, "a layer");
	w.from = from = open_home(lib, "sb", FROM);
	w.home = home = open_home(lib, "snap", TO);
	check_live(lib, &p, &w);
	check_cost(lib, &p, &w);
	good(pool_remove(&p, FROM, &e), &e, "the layer goes");
}

static int tool(const char *const *argv)
{
	return proc_run(argv, -1, -1, 30000, NULL);
}

/* NULL, or why there is no file system of ${type} to test with. */
static const char *mount_new(const char *type, const char *dir, const char *at)
{
	static int number; /* the device of the last may be busy yet */
	char mkfs[16];
	char image[PATH_MAX];
	auto_close int fd = -1;

	if (geteuid() != 0)
		return "needs root";
	name(image, "%s/image.%d", dir, number++);
	fd = open(image, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, 500 * MIB) < 0)
		return "no room for a file system";
	mkdir(at, 0700);
	snprintf(mkfs, sizeof(mkfs), "mkfs.%s", type);
	if (tool((const char *[]){mkfs, "-q", "-f", image, NULL}) != 0)
		return "no tool to make it";
	if (tool((const char *[]){"mount", "-o", "loop", image, at, NULL}) != 0)
		return "cannot be mounted from a loop device";
	return NULL;
}

static void on_btrfs(const char *dir, const char *lib)
{
	const char *why;
	char at[PATH_MAX], sub[PATH_MAX];

	name(at, "%s/pool", lib);
	for (int i = 0; i < 2; i++) {
		why = mount_new("btrfs", dir, at);
		if (why) {
			skip("copies on btrfs", why);
			return;
		}
		if (i == 1)
			tool((const char *[]){"btrfs", "quota", "enable", at,
					      NULL});
		if (i == 0)
			check_way(lib, POOL_COPY_SNAPSHOT, false);
		check_btrfs(lib, i == 0);
		umount2(at, MNT_DETACH);
	}
	/* All of the library on it: plain directories that share data. */
	why = mount_new("btrfs", dir, at);
	name(sub, "%s/lib", at);
	if (why || mkdir(sub, 0700) < 0)
		skip("reflinks", why ? why : "no directory");
	else
		check_way(sub, POOL_COPY_REFLINK, true);
	umount2(at, MNT_DETACH);
}

static void on_xfs(const char *dir, const char *lib)
{
	char at[PATH_MAX];
	const char *why;

	name(at, "%s/pool", lib);
	why = mount_new("xfs", dir, at);
	if (why)
		skip("copies on xfs", why);
	else
		check_way(at, POOL_COPY_REFLINK, false);
	umount2(at, MNT_DETACH);
}

int main(void)
{
	char dir[] = "/tmp/dsec-snap.XXXXXX", lib[64];
	struct err e = {0};

	if (geteuid() != 0) {
		printf("1..0 # SKIP needs root\n");
		return 0;
	}
	if (!mkdtemp(dir))
		return 1;
	snprintf(lib, sizeof(lib), "%s/lib", dir);
	if (mkdir(lib, 0700) < 0)
		return 1;
	check_way(lib, POOL_COPY_COPIED, false);
	on_btrfs(dir, lib);
	on_xfs(dir, lib);
	is_int(chdir("/tmp"), 0, "at /tmp");
	good(fd_remove_tree(AT_FDCWD, strrchr(dir, '/') + 1, &e), &e,
	     "all is removed");
	return tap_done();
}
