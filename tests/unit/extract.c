/* SPDX-License-Identifier: Apache-2.0 */
/* Archives made by hand, good and hostile, through the host's extractor. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "../tap.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "box/extract.h"
#include "box/pack.h"

/* --- archives ------------------------------------------------------------- */

struct in {
	struct buf b;
	size_t pos, step; /* at most so many bytes at once; 0: all */
};

static ssize_t from_buf(void *arg, void *data, size_t cap, struct err *e)
{
	struct in *in = arg;
	size_t n = in->b.len - in->pos;

	(void)e;
	if (in->step && n > in->step)
		n = in->step;
	if (n > cap)
		n = cap;
	if (n)
		memcpy(data, in->b.data + in->pos, n);
	in->pos += n;
	return (ssize_t)n;
}

static void put(struct buf *b, const void *data, size_t len)
{
	if (buf_add(b, data, len) < 0)
		abort();
}

static void pad(struct buf *b)
{
	static const char zeros[512];

	put(b, zeros, -b->len & 511);
}

struct raw {
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8];
	char type, link[100], magic[8], rest[247];
};

static void seal(struct raw *h)
{
	unsigned sum = 0;

	memset(h->sum, ' ', 8);
	for (size_t i = 0; i < 512; i++)
		sum += ((const unsigned char *)h)[i];
	snprintf(h->sum, 8, "%06o", sum);
}

static struct raw head(char type, const char *name, const char *link,
		       unsigned long long size)
{
	struct raw h;

	memset(&h, 0, sizeof(h));
	memcpy(h.name, name, strnlen(name, 100));
	memcpy(h.link, link, strnlen(link, 100));
	strcpy(h.mode, type == '5' ? "0000755" : "0000644");
	strcpy(h.uid, "0000000");
	strcpy(h.gid, "0000000");
	snprintf(h.size, 12, "%011llo", size);
	strcpy(h.mtime, "00000001750");
	memcpy(h.magic,
	       "ustar\0"
	       "00",
	       8);
	h.type = type;
	return h;
}

static void entry(struct buf *b, char type, const char *name, const char *link,
		  const char *data)
{
	struct raw h = head(type, name, link, data ? strlen(data) : 0);

	seal(&h);
	put(b, &h, 512);
	if (data)
		put(b, data, strlen(data));
	pad(b);
}

static void pax(struct buf *b, const char *text, size_t len)
{
	struct raw h = head('x', "PaxHeader/x", "", len);

	seal(&h);
	put(b, &h, 512);
	put(b, text, len);
	pad(b);
}

#define PAX(b, text) pax(b, text, sizeof(text) - 1)

static void end(struct buf *b)
{
	static const char zeros[1024];

	put(b, zeros, sizeof(zeros));
}

/* --- extracting ----------------------------------------------------------- */

static struct buf told;

static void refused(void *arg, const char *path, const struct err *why)
{
	(void)arg;
	if (buf_addf(&told, "%s:%s\n", path, why->code) < 0)
		abort();
}

static int dir_fd = -1;
static char dir_name[] = "/tmp/dsec-extract.XXXXXX";

static void fresh(void)
{
	if (dir_fd >= 0) {
		close(dir_fd);
		fd_remove_tree(AT_FDCWD, dir_name, NULL);
	}
	strcpy(dir_name, "/tmp/dsec-extract.XXXXXX");
	if (!mkdtemp(dir_name))
		abort();
	dir_fd = open(dir_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir_fd < 0 || mkdirat(dir_fd, "d", 0755) < 0)
		abort();
	told.len = 0;
	if (told.data)
		told.data[0] = '\0';
}

static struct err last;

static int run_opts(struct in *in, struct extract x, struct extract_result *n)
{
	struct tar_reader rd;
	auto_close int fd = openat(dir_fd, "d", O_RDONLY | O_CLOEXEC);
	int r;

	memset(&last, 0, sizeof(last));
	x.dirfd = fd;
	x.refused = refused;
	if (tar_reader_init(&rd, from_buf, in, NULL) < 0)
		abort();
	r = extract_tree(&x, &rd, n, &last);
	tar_reader_done(&rd);
	return r;
}

static int run(struct in *in)
{
	struct extract_result n = {0};

	return run_opts(in, (struct extract){0}, &n);
}

static bool has(const char *path, const char *content)
{
	auto_free char *text = NULL;
	char full[256];

	snprintf(full, sizeof(full), "%s/%s", dir_name, path);
	return fd_read_file(AT_FDCWD, full, 1 << 20, &text, NULL, NULL) == 0 &&
	       !strcmp(text, content);
}

static int count(const char *path)
{
	char full[256];
	DIR *d;
	int n = -2;

	snprintf(full, sizeof(full), "%s/%s", dir_name, path);
	d = opendir(full);
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

/* --- the table ------------------------------------------------------------ */

struct one {
	char type;
	const char *name, *link, *data;
};

static const struct {
	const char *what;
	struct one entries[4];
	const char *refused; /* all that is told */
	int in_dest;	     /* names right below the destination */
	const char *file, *content;
} table[] = {
	{"'..' in a name",
	 {{'0', "../x", "", "bad"}, {'0', "a", "", "A"}},
	 "../x:bad_path\n",
	 1,
	 "d/a",
	 "A"},
	{"'..' in the middle",
	 {{'0', "a/../../x", "", "bad"}},
	 "a/../../x:bad_path\n",
	 0,
	 NULL,
	 NULL},
	{"an absolute name is taken below",
	 {{'0', "/a/b", "", "A"}},
	 "",
	 1,
	 "d/a/b",
	 "A"},
	{"an absolute link is data",
	 {{'2', "l", "/etc/passwd", NULL}},
	 "",
	 1,
	 NULL,
	 NULL},
	{"a file through a link",
	 {{'2', "l", "..", NULL}, {'0', "l/x", "", "bad"}},
	 "l/x:not_directory\n",
	 1,
	 NULL,
	 NULL},
	{"a file through a link of a link",
	 {{'2', "a", "/tmp", NULL},
	  {'2', "b", "a", NULL},
	  {'0', "b/x", "", "bad"}},
	 "b/x:not_directory\n",
	 2,
	 NULL,
	 NULL},
	{"a directory over a link",
	 {{'2', "l", "..", NULL},
	  {'5', "l", "", NULL},
	  {'0', "l/x", "", "bad"}},
	 "l:not_directory\nl/x:not_directory\n",
	 1,
	 NULL,
	 NULL},
	{"a file over a link replaces it",
	 {{'2', "l", "../out", NULL}, {'0', "l", "", "A"}},
	 "",
	 1,
	 "d/l",
	 "A"},
	{"a hard link to outside",
	 {{'1', "h", "/etc/passwd", NULL}},
	 "h:not_found\n",
	 0,
	 NULL,
	 NULL},
	{"a hard link to '..'",
	 {{'1', "h", "../out", NULL}},
	 "h:bad_path\n",
	 0,
	 NULL,
	 NULL},
	{"a hard link through a link",
	 {{'2', "l", "..", NULL}, {'1', "h", "l/out", NULL}},
	 "h:not_directory\n",
	 1,
	 NULL,
	 NULL},
	{"a hard link to a link",
	 {{'2', "l", "../out", NULL}, {'1', "h", "l", NULL}},
	 "h:bad_path\n",
	 1,
	 NULL,
	 NULL},
	{"a hard link",
	 {{'0', "a", "", "A"}, {'1', "h", "a", NULL}},
	 "",
	 2,
	 "d/h",
	 "A"},
	{"a hard link to itself",
	 {{'1', "h", "h", NULL}},
	 "h:not_found\n",
	 0,
	 NULL,
	 NULL},
	{"a hard link to itself that is there",
	 {{'0', "h", "", "A"}, {'1', "h", "h", NULL}},
	 "",
	 1,
	 "d/h",
	 "A"},
	{"a hard link before its target",
	 {{'1', "h", "a", NULL}, {'0', "a", "", "A"}},
	 "h:not_found\n",
	 1,
	 "d/a",
	 "A"},
	{"devices and FIFOs",
	 {{'3', "c", "", NULL}, {'4', "b", "", NULL}, {'6', "p", "", NULL}},
	 "c:not_regular\nb:not_regular\np:not_regular\n",
	 0,
	 NULL,
	 NULL},
	{"a name that is an option to tar",
	 {{'0', "--checkpoint-action=exec=sh", "", "A"}},
	 "",
	 1,
	 "d/--checkpoint-action=exec=sh",
	 "A"},
	{"the entry '/'",
	 {{'5', "/", "", NULL}, {'0', "a", "", "A"}},
	 "",
	 1,
	 "d/a",
	 "A"},
	{"a file called '.'",
	 {{'0', ".", "", "A"}},
	 ".:is_directory\n",
	 0,
	 NULL,
	 NULL},
	{"an empty name", {{'0', "", "", "A"}}, ":bad_value\n", 0, NULL, NULL},
	{"the same name twice: the last one stays",
	 {{'0', "a", "", "A"}, {'0', "a", "", "B"}},
	 "",
	 1,
	 "d/a",
	 "B"},
	{"a file over a directory",
	 {{'5', "a", "", NULL}, {'0', "a", "", "B"}},
	 "a:is_directory\n",
	 1,
	 NULL,
	 NULL},
	{"below a file",
	 {{'0', "a", "", "A"}, {'0', "a/b", "", "B"}},
	 "a/b:not_directory\n",
	 1,
	 "d/a",
	 "A"},
	{"an unknown type",
	 {{'Z', "z", "", "data"}, {'0', "a", "", "A"}},
	 "z:unsupported\n",
	 1,
	 "d/a",
	 "A"},
	{"directories that have no entry",
	 {{'0', "a/b/c", "", "A"}},
	 "",
	 1,
	 "d/a/b/c",
	 "A"},
};

static void test_table(void)
{
	for (size_t i = 0; i < array_len(table); i++) {
		struct in in = {.step = i % 2 ? 7 : 0};
		bool good;
		int r;

		fresh();
		close(openat(dir_fd, "out", O_WRONLY | O_CREAT, 0600));
		for (size_t k = 0; k < 4 && table[i].entries[k].name; k++) {
			const struct one *o = &table[i].entries[k];

			entry(&in.b, o->type, o->name, o->link, o->data);
		}
		end(&in.b);
		r = run(&in);
		good = r == 0 &&
		       !strcmp(told.data ? told.data : "", table[i].refused) &&
		       count("d") == table[i].in_dest && count("") == 2 &&
		       has("out", "") &&
		       (!table[i].file || has(table[i].file, table[i].content));
		if (!good)
			printf("# r %d (%s), refused %s, %d in d, %d beside\n",
			       r, last.msg, told.data ? told.data : "",
			       count("d"), count(""));
		ok(good, "%s", table[i].what);
		buf_done(&in.b);
	}
}

/* --- cut and damaged ------------------------------------------------------ */

static void test_cut(void)
{
	struct in whole = {0};
	int bad = 0, halves = 0;

	entry(&whole.b, '0', "a", "", "some data");
	PAX(&whole.b, "20 path=longer/name\n");
	entry(&whole.b, '0', "x", "", "more");
	end(&whole.b);
	for (size_t n = 0; n <= whole.b.len; n += 64) {
		struct in in = {.b = whole.b};
		int r;

		in.b.len = n;
		fresh();
		r = run(&in);
		/* Whole at a header, or between the entries and their end. */
		if (r < 0 && (!last.code || !strstr(last.msg, "offset")))
			bad++;
		if (has("d/a", "") || (n > 1100 && !has("d/a", "some data")) ||
		    count("d") > 2)
			halves++;
	}
	is_int(bad, 0, "a cut archive says where");
	is_int(halves, 0, "a cut archive leaves no half file");
	buf_done(&whole.b);
}

static void test_no_end_blocks(void)
{
	struct in in = {0};

	fresh();
	entry(&in.b, '0', "a", "", "A");
	is_int(run(&in), 0, "no end blocks: taken as the end");
	ok(has("d/a", "A"), "with its file");
	buf_done(&in.b);
}

static void test_damaged(void)
{
	struct in in = {0};

	fresh();
	entry(&in.b, '0', "a", "", "A");
	entry(&in.b, '0', "b", "", "B");
	in.b.data[1024 + 10] ^= 1;
	ok(run(&in) == -EBADMSG && strstr(last.msg, "offset 1024"),
	   "a wrong checksum: %s", last.msg);
	ok(has("d/a", "A"), "what came before is there");
	buf_done(&in.b);
}

static void test_not_tar(void)
{
	struct in in = {0};

	fresh();
	put(&in.b, "\x1f\x8b\x08\0\0\0\0\0", 8);
	in.b.len = 0;
	for (int i = 0; i < 100; i++)
		put(&in.b, "\x1f\x8b\x08 gzip ", 9);
	ok(run(&in) == -EBADMSG && strstr(last.msg, "not a tar archive"),
	   "compressed: %s", last.msg);
	buf_done(&in.b);
}

static void test_huge(void)
{
	struct in in = {0};
	struct raw h = head('0', "big", "", 0);

	fresh();
	memset(h.size, 0, 12);
	h.size[0] = (char)0x80;
	h.size[6] = 2; /* 8 GiB and more in base 256 */
	seal(&h);
	put(&in.b, &h, 512);
	put(&in.b, "data", 4);
	ok(run(&in) == -EBADMSG, "a size in base 256, and no data: %s",
	   last.msg);
	is_int(count("d"), 0, "leaves nothing");
	memset(h.size, 0xff, 12);
	seal(&h);
	in.pos = in.b.len = 0;
	put(&in.b, &h, 512);
	ok(run(&in) == -EBADMSG, "a negative size: %s", last.msg);
	buf_done(&in.b);
}

static void test_pax_values(void)
{
	struct in in = {0};
	struct stat st = {0};

	fresh();
	PAX(&in.b, "14 mtime=-1.5\n8 path=\n");
	entry(&in.b, '0', "a", "", "A");
	PAX(&in.b, "23 mtime=10.000000001 \n");
	entry(&in.b, '0', "b", "", "B");
	end(&in.b);
	is_int(run(&in), 0, "pax: an empty value, a negative time");
	is_str(told.data ? told.data : "", "b:bad_value\n",
	       "a time with a space is refused");
	fstatat(dir_fd, "d/a", &st, 0);
	ok(st.st_mtim.tv_sec == -2 && st.st_mtim.tv_nsec == 500000000,
	   "a second and a half before 1970");
	buf_done(&in.b);
}

static void test_bad_pax(void)
{
	static const char *const texts[] = {
		"9 path=ab\n",
		"99 path=a\n",
		"x path=a\n",
		"10path=abc\n",
		"10 path-ab\n",
		"0 a=b\n",
		"5 =\n",
		"6 =a\n",
		"3 \n",
		" \n",
		"99999999999999999999 a=b\n",
	};
	int wrong = 0;

	for (size_t i = 0; i < array_len(texts); i++) {
		struct in in = {0};
		int r;

		fresh();
		pax(&in.b, texts[i], strlen(texts[i]));
		entry(&in.b, '0', "a", "", "A");
		end(&in.b);
		r = run(&in);
		if (r != -EBADMSG && !(i == 6 || i == 7)) {
			printf("# %s: %d\n", texts[i], r);
			wrong++;
		}
		buf_done(&in.b);
	}
	is_int(wrong, 0, "damaged pax records end it");
}

static void test_nul_name(void)
{
	struct in in = {0};

	fresh();
	PAX(&in.b, "12 path=a\0b\n");
	entry(&in.b, '0', "c", "", "A");
	end(&in.b);
	is_int(run(&in), 0, "a NUL in a name");
	is_int(count("d"), 0, "is refused");
	buf_done(&in.b);
}

static void test_long_name_without_entry(void)
{
	struct in in = {0};

	fresh();
	entry(&in.b, 'L', "././@LongLink", "", "some/long/name");
	end(&in.b);
	ok(run(&in) == -EBADMSG, "a long name without entry: %s", last.msg);
	buf_done(&in.b);
}

static void test_sparse_maps(void)
{
	static const struct {
		const char *map;
		bool good;
	} maps[] = {
		{"0,4,8192,4", true},
		{"0,4,2,4", false},
		{"8192,4,0,4", false},
		{"0,4", false},
		{"0,8,99999999,0", false},
		{"0,4,8192", false},
		{"0,4,18446744073709551615,4", false},
		{"0,4,9223372036854775807,4", false},
		{"0,8,9000,0", true},
	};
	int wrong = 0;

	for (size_t i = 0; i < array_len(maps); i++) {
		struct in in = {0};
		auto_buf struct buf text = {0};
		char map[100];
		struct stat st = {0};
		bool good;

		fresh();
		snprintf(map, sizeof(map), " GNU.sparse.map=%s\n", maps[i].map);
		if (buf_addf(&text, "24 GNU.sparse.size=9000\n%zu%s",
			     strlen(map) + 2, map) < 0)
			abort();
		pax(&in.b, text.data, text.len);
		entry(&in.b, '0', "a", "", "AAAABBBB");
		entry(&in.b, '0', "z", "", "Z");
		end(&in.b);
		good = run(&in) == 0 && fstatat(dir_fd, "d/a", &st, 0) == 0 &&
		       st.st_size == 9000;
		if (good != maps[i].good || !has("d/z", "Z")) {
			printf("# %s: %s\n", maps[i].map, last.msg);
			wrong++;
		}
		buf_done(&in.b);
	}
	is_int(wrong, 0, "sparse maps, right and wrong");
}

static void test_limits(void)
{
	struct extract_result n = {0};
	struct in in = {0};
	int r;

	fresh();
	entry(&in.b, '0', "a", "", "0123456789");
	entry(&in.b, '0', "b", "", "0123456789");
	end(&in.b);
	r = run_opts(&in, (struct extract){.max_bytes = 15}, &n);
	ok(r == -EFBIG && has("d/a", "0123456789") && count("d") == 1,
	   "more bytes than allowed: %s", last.msg);
	fresh();
	in.pos = 0;
	r = run_opts(&in, (struct extract){.max_entries = 1}, &n);
	ok(r == -EFBIG && n.entries == 1, "more entries than allowed: %s",
	   last.msg);
	buf_done(&in.b);
}

static void test_top(void)
{
	struct extract_result n = {0};
	struct in in = {0};
	int r;

	fresh();
	entry(&in.b, '5', "top", "", NULL);
	entry(&in.b, '0', "top/a", "", "A");
	entry(&in.b, '0', "topper", "", "B");
	entry(&in.b, '0', ".bashrc", "", "C");
	entry(&in.b, '1', "top/h", "out", NULL);
	end(&in.b);
	r = run_opts(&in, (struct extract){.top = "top"}, &n);
	ok(r == 0 && n.refused == 3 && count("d") == 1 && has("d/top/a", "A"),
	   "only what is below the name that was asked for");
	buf_done(&in.b);
}

static void test_modes(void)
{
	struct in in = {0};
	struct stat st = {0};
	struct raw h = head('0', "s", "", 0);

	fresh();
	strcpy(h.mode, "0006777");
	seal(&h);
	put(&in.b, &h, 512);
	h = head('5', "d", "", 0);
	strcpy(h.mode, "0000500");
	seal(&h);
	put(&in.b, &h, 512);
	entry(&in.b, '0', "d/f", "", "F");
	end(&in.b);
	is_int(run(&in), 0, "modes");
	fstatat(dir_fd, "d/s", &st, 0);
	is_int(st.st_mode & 07777, 0777, "no set-ID bits");
	is_int(st.st_uid, geteuid(), "the caller's");
	fstatat(dir_fd, "d/d", &st, 0);
	is_int(st.st_mode & 07777, 0500,
	       "a read-only directory gets its mode last");
	is_int(st.st_mtim.tv_sec, 01750, "and its time");
	ok(has("d/d/f", "F"), "with its file");
	buf_done(&in.b);
}

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
	test_table();
	test_cut();
	test_no_end_blocks();
	test_damaged();
	test_not_tar();
	test_huge();
	test_pax_values();
	test_bad_pax();
	test_nul_name();
	test_long_name_without_entry();
	test_sparse_maps();
	test_limits();
	test_top();
	test_modes();
	test_deep();
	test_round_trip();
	test_gnu_tar();
	close(dir_fd);
	fd_remove_tree(AT_FDCWD, dir_name, NULL);
	buf_done(&told);
	return tap_done();
}
