/* SPDX-License-Identifier: Apache-2.0 */
/* Trees packed and extracted again, and what GNU tar makes. */
#include "archive.h"
#include "box/pack.h"

/* --- deep, many, and there and back --------------------------------------- */

static void test_deep(void)
{
	auto_buf struct buf path = {0};
	struct in in = {0};
	struct extract_result n = {0};
	char head_text[32];
	int r;

	fresh();
	for (int i = 0; i < 1000; i++)
		if (buf_addf(&path, "dir%04d/", i) < 0)
			abort();
	if (buf_addf(&path, "f\n") < 0)
		abort();
	snprintf(head_text, sizeof(head_text), "%zu path=", path.len + 10);
	{
		auto_buf struct buf text = {0};

		if (buf_addf(&text, "%s%s", head_text, path.data) < 0)
			abort();
		pax(&in.b, text.data, text.len);
	}
	entry(&in.b, '0', "x", "", "F");
	end(&in.b);
	r = run_opts(&in, (struct extract){0}, &n);
	ok(r == 0 && n.refused == 0, "a path of 1000 directories");
	buf_done(&in.b);
}

static int to_buf(void *arg, const void *data, size_t len, struct err *e)
{
	(void)e;
	put(arg, data, len);
	return 0;
}

static void make_file(const char *path, const char *data)
{
	int fd = openat(dir_fd, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0640);

	if (fd < 0 || write(fd, data, strlen(data)) < 0)
		abort();
	close(fd);
}

static void make_tree(void)
{
	struct timespec t[2] = {{1, 2}, {-5, 250000000}};
	char longname[220], longlink[300];
	int fd;

	mkdirat(dir_fd, "src", 0751);
	mkdirat(dir_fd, "src/sub", 0700);
	make_file("src/a", "A");
	make_file("src/\xff\xfe odd\n", "odd");
	make_file("src/empty", "");
	memset(longname, 'n', sizeof(longname) - 1);
	memcpy(longname, "src/", 4);
	longname[sizeof(longname) - 1] = '\0';
	make_file(longname, "long");
	memset(longlink, 'l', sizeof(longlink) - 1);
	longlink[sizeof(longlink) - 1] = '\0';
	if (symlinkat(longlink, dir_fd, "src/longlink") ||
	    symlinkat("sub", dir_fd, "src/todir") ||
	    symlinkat("/absolute/dangling", dir_fd, "src/dangling") ||
	    linkat(dir_fd, "src/a", dir_fd, "src/sub/hard", 0))
		abort();
	fd = openat(dir_fd, "src/sparse", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || pwrite(fd, "begin", 5, 1 << 20) != 5 ||
	    pwrite(fd, "end", 3, (off_t)20 << 30) != 3 ||
	    ftruncate(fd, (off_t)100 << 30) < 0)
		abort();
	close(fd);
	utimensat(dir_fd, "src/a", t, 0);
	utimensat(dir_fd, "src/dangling", t, AT_SYMLINK_NOFOLLOW);
	utimensat(dir_fd, "src/sub", t, 0);
}

static void same(const char *name, const char *what)
{
	char a[300], b[300], la[512] = "", lb[512] = "";
	struct stat x = {0}, y = {0};

	snprintf(a, sizeof(a), "src/%s", name);
	snprintf(b, sizeof(b), "d/%s", name);
	fstatat(dir_fd, a, &x, AT_SYMLINK_NOFOLLOW);
	fstatat(dir_fd, b, &y, AT_SYMLINK_NOFOLLOW);
	(void)!readlinkat(dir_fd, a, la, sizeof(la) - 1);
	(void)!readlinkat(dir_fd, b, lb, sizeof(lb) - 1);
	ok(x.st_mode == y.st_mode && x.st_size == y.st_size &&
		   x.st_mtim.tv_sec == y.st_mtim.tv_sec &&
		   x.st_mtim.tv_nsec == y.st_mtim.tv_nsec &&
		   x.st_nlink == y.st_nlink && !strcmp(la, lb),
	   "there and back: %s", what);
}

static void test_round_trip(void)
{
	struct in in = {.step = 1000};
	struct tar_writer w = {.sink = to_buf, .arg = &in.b};
	struct pack p = {.path = "src", .name = "."};
	struct pack_result n = {0};
	struct stat st = {0};
	char buf[8] = "";
	bool xattr;
	int fd;

	fresh();
	make_tree();
	snprintf(buf, sizeof(buf), "v");
	fd = openat(dir_fd, "src/a", O_RDONLY | O_CLOEXEC);
	xattr = fsetxattr(fd, "user.k", "v\0w", 3, 0) == 0;
	close(fd);
	p.dirfd = dir_fd;
	is_int(pack_tree(&p, &w, &n, &last), 0, "a tree is packed");
	tar_writer_done(&w);
	ok(in.b.len < 64 * 1024, "100 GiB with a hole are %zu bytes", in.b.len);
	is_int(run(&in), 0, "and extracted");
	is_str(told.data ? told.data : "", "", "nothing is refused");
	same("a", "a file with nanoseconds before 1970");
	same("sub/hard", "a hard link");
	same("\xff\xfe odd\n", "a name that is not UTF-8");
	same("empty", "an empty file");
	same("longlink", "a link of 299 bytes");
	same("todir", "a link to a directory");
	same("dangling", "a dangling link");
	same("sub", "a directory");
	same("sparse", "a sparse file");
	fstatat(dir_fd, "d/sparse", &st, 0);
	ok(st.st_blocks * 512 < 1 << 20, "which is sparse still");
	fd = openat(dir_fd, "d/sparse", O_RDONLY | O_CLOEXEC);
	ok(pread(fd, buf, 3, (off_t)20 << 30) == 3 && !memcmp(buf, "end", 3),
	   "and has its data");
	close(fd);
	if (xattr) {
		fd = openat(dir_fd, "d/a", O_RDONLY | O_CLOEXEC);
		ok(fgetxattr(fd, "user.k", buf, sizeof(buf)) == 3 &&
			   !memcmp(buf, "v\0w", 3),
		   "an attribute");
		close(fd);
	} else {
		skip("an attribute", "no user attributes in /tmp");
	}
	buf_done(&in.b);
}

/* What GNU tar writes and reads is the measure. */
static void test_gnu_tar(void)
{
	static const char *const forms[] =
		{"--format=gnu",
		 "--format=ustar",
		 "--format=pax",
		 "--format=gnu --sparse",
		 "--format=pax --sparse",
		 "--format=pax --sparse --sparse-version=0.0",
		 "--format=pax --sparse --sparse-version=0.1"};
	char cmd[512];
	int bad = 0;

	for (size_t i = 0; i < array_len(forms); i++) {
		struct in in = {0};
		int fd;

		fresh();
		mkdirat(dir_fd, "src", 0755);
		make_file("src/f", "F");
		if (i != 1) {
			snprintf(cmd, sizeof(cmd),
				 "cd %s/src && for i in 1 2 3 4 5 6 7 8 9; do "
				 "echo $i | dd of=sp seek=$((i*10)) bs=64k "
				 "conv=notrunc status=none; done && mkdir -p "
				 "$(printf %%0120d/%%0130d/ 1 2) && ln -s "
				 "$(printf %%0180d 3) ln && ln f hard",
				 dir_name);
			if (system(cmd))
				abort();
		}
		snprintf(cmd, sizeof(cmd),
			 "cd %s && tar %s -C src -cf t.tar . 2>/dev/null",
			 dir_name, forms[i]);
		if (system(cmd))
			abort();
		fd = openat(dir_fd, "t.tar", O_RDONLY | O_CLOEXEC);
		{
			char *text = NULL;
			size_t len = 0;

			if (fd_read_all(fd, 1 << 24, &text, &len, NULL) < 0)
				abort();
			put(&in.b, text, len);
			free(text);
		}
		close(fd);
		unlinkat(dir_fd, "t.tar", 0);
		snprintf(cmd, sizeof(cmd),
			 "cd %s && diff -r --no-dereference src d >&2",
			 dir_name);
		if (run(&in) < 0 || (told.data && *told.data) || system(cmd)) {
			printf("# %s: %s %s\n", forms[i], last.msg,
			       told.data ? told.data : "");
			bad++;
		}
		buf_done(&in.b);
	}
	is_int(bad, 0, "archives of GNU tar, in seven forms");
}

int main(void)
{
	test_deep();
	test_round_trip();
	test_gnu_tar();
	return finished();
}
