/* SPDX-License-Identifier: Apache-2.0 */
/* Good and hostile archives through the host's extractor. */
#include "archive.h"

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
	return finished();
}
