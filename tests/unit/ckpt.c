/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint's directory: made, read, and refused when it is not what it
 * was. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "ckpt/ckpt.h"
#include "ckpt/inside.h"

static char top[] = "/tmp/dsec-ckpt-XXXXXX";
static char path[64];

static void put(int dirfd, const char *name, const char *text)
{
	auto_close int fd = openat(dirfd, name,
				   O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
				   0600);

	if (fd < 0 || fd_write_all(fd, text, strlen(text), NULL) < 0)
		abort();
}

static json_t *manifest(void)
{
	json_t *m = json_pack(
		"{s:s, s:{s:s}, s:i, s:s, s:s, s:i, s:s, s:{s:s}, s:[i], s:{"
		"s:[{s:s, s:s}, {s:s, s:s, s:s}], s:[{s:s, s:i, s:b, s:s, s:i, s:i}],"
		"s:[{s:s, s:i}]}}",
		"sandbox", "abcdefghijklmnopqrst", "spec", "image", "root/x:1",
		"made_ms", 1, "engine", "criu", "engine_version", "4.2.1",
		"processes", 3, "layer", "kept", "leaves", "7", "e0", "stopped",
		9, "externals", "mounts", "key", "dev", "inside", "/dev", "key",
		"m1", "inside", "/data", "source", "/srv/data", "pipes", "of",
		"pipe:[12]", "size", 65536, "report", 1, "pending", "pipe-12",
		"uid", 1000, "gid", 65535, "ttys", "of", "tty[8803:1d]",
		"index", 3);

	if (!m || ckpt_facts(m, NULL) < 0)
		abort();
	return m;
}

static void make(json_t *m)
{
	auto_close int dir = -1;
	struct err e = {0};

	if (ckpt_begin(path, &dir, &e) < 0)
		abort();
	put(dir, "img/core-1.img", "core");
	put(dir, "img/pages-1.img", "pages");
	put(dir, "pipe-12", "bytes");
	if (ckpt_write(dir, m, true, &e) < 0 || ckpt_commit(path, true, &e) < 0)
		abort();
}

static int open_dir(void)
{
	return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void check_read(void)
{
	auto_json json_t *m = manifest();
	auto_ckpt struct ckpt c = {0};
	auto_close int dir = -1;
	struct err e = {0};
	struct stat st;

	make(m);
	dir = open_dir();
	is_int(ckpt_read(dir, &c, &e), 0, "what was written is read");
	is_str(c.sandbox, "abcdefghijklmnopqrst", "of its sandbox");
	ok(c.processes && c.nprocesses == 3 && c.bytes == 14, "with numbers");
	ok(c.nmounts == 2 && !c.mounts[0].source &&
		   !strcmp(c.mounts[1].source, "/srv/data"),
	   "with mounts");
	ok(c.npipes == 1 && c.pipes[0].report &&
		   !strcmp(c.pipes[0].pending, "pipe-12") &&
		   c.pipes[0].uid == 1000 && c.pipes[0].gid == 65535,
	   "with pipes");
	ok(c.nttys == 1 && c.ttys[0].index == 3, "with terminals");
	is_int(ckpt_verify(dir, &c, &e), 0, "its files are as listed");
	is_int(ckpt_fits(&c, "4.2.1", &e), 0, "it fits this node");
	is_int(ckpt_fits(&c, "4.3", &e), 0, "and a newer engine");
	ok(ckpt_fits(&c, "4.2", &e) < 0 && !strcmp(e.code, "incompatible"),
	   "but no older one");
	ok(stat(path, &st) == 0 && (st.st_mode & 0777) == 0700, "it is secret");
}

/* It works, or it is refused with what differs (field report 70). */
static void misfit(const char *key, const char *value, const char *word)
{
	auto_json json_t *m = manifest();
	auto_ckpt struct ckpt c = {0};
	auto_close int dir = -1;
	struct err e = {0};

	json_object_set_new(m, key, json_string(value));
	make(m);
	dir = open_dir();
	ok(ckpt_read(dir, &c, &e) == 0 && ckpt_fits(&c, "4.2.1", &e) < 0 &&
		   !strcmp(e.code, "incompatible") && strstr(e.msg, word),
	   "another %s: %s", key, e.msg);
}

static void damaged(const char *name, const char *text, const char *what)
{
	auto_json json_t *m = manifest();
	auto_ckpt struct ckpt c = {0};
	auto_close int dir = -1;
	struct err e = {0};
	int r;

	make(m);
	dir = open_dir();
	if (text)
		put(dir, name, text);
	else
		unlinkat(dir, name, 0);
	r = ckpt_read(dir, &c, &e);
	if (r == 0)
		r = ckpt_verify(dir, &c, &e);
	ok(r < 0 && e.code && !strcmp(e.code, "checkpoint_damaged"), "%s: %s",
	   what, e.msg);
}

/* Sealed, and nonsense all the same. */
static void nonsense(const char *key, json_t *value)
{
	auto_json json_t *m = manifest();
	auto_ckpt struct ckpt c = {0};
	auto_close int dir = -1;
	struct err e = {0};

	json_object_set_new(m, key, value);
	make(m);
	dir = open_dir();
	ok(ckpt_read(dir, &c, &e) < 0 && !strcmp(e.code, "checkpoint_damaged"),
	   "%s that cannot be: %s", key, e.msg);
}

static void check_nonsense(void)
{
	nonsense("sandbox", json_string("../x"));
	nonsense("spec", json_integer(1));
	nonsense("leaves", json_pack("{s:s}", "7", "../e0"));
	nonsense("leaves", json_pack("{s:s}", "-1", "e0"));
	nonsense("externals", json_integer(1));
	nonsense("externals",
		 json_pack("{s:[{s:s, s:s, s:s}]}", "mounts", "key", "m]",
			   "inside", "/x", "source", "/y"));
	nonsense("externals", json_pack("{s:[{s:s, s:s}]}", "mounts", "key",
					"m0", "inside", "/x"));
	nonsense("externals", json_pack("{s:[{s:s, s:s}]}", "pipes", "of",
					"pipe:[1]", "pending", "../../x"));
	nonsense("externals",
		 json_pack("{s:[{s:s}]}", "pipes", "of", "socket:[1]"));
	nonsense("externals", json_pack("{s:[{s:s, s:i}]}", "pipes", "of",
					"pipe:[1]", "uid", 65536));
	nonsense("externals", json_pack("{s:[{s:s, s:i}]}", "pipes", "of",
					"pipe:[1]", "gid", -1));
	nonsense("externals", json_pack("{s:[{s:s, s:s}]}", "pipes", "of",
					"pipe:[1]", "uid", "0"));
	nonsense("externals", json_pack("{s:[{s:s, s:i}]}", "ttys", "of",
					"tty[1:2]", "index", 99999));
}

static void check_life(void)
{
	auto_json json_t *m = manifest();
	auto_close int dir = -1, old = -1;
	char new[80];

	make(m);
	old = open_dir();
	put(old, "mark", "old");
	if (ckpt_begin(path, &dir, NULL) < 0)
		abort();
	is_int(faccessat(old, "manifest.json", F_OK, 0), 0,
	       "while one is made, that which is there stays");
	ckpt_discard(path);
	snprintf(new, sizeof(new), "%s.new", path);
	is_int(access(new, F_OK), -1, "what is given up is gone");
	make(m);
	is_int(faccessat(AT_FDCWD, path, F_OK, 0), 0,
	       "another takes its place");
	is_int(access(new, F_OK), -1, "and nothing of the first stays");
	is_int(ckpt_remove(path, NULL), 0, "it is removed");
	is_int(access(path, F_OK), -1, "all of it");
	is_int(ckpt_remove(path, NULL), 0, "twice is fine");
	ok(ckpt_begin("/", &dir, NULL) < 0 && ckpt_begin("x", &dir, NULL) < 0,
	   "odd paths are refused");
}

static void check_plain(void)
{
	char buf[8];

	inside_plain(buf, sizeof(buf), "a\033]\n\377z", 6);
	is_str(buf, "a?]??z", "what strangers call things is made plain");
	inside_plain(buf, sizeof(buf), "0123456789", 10);
	is_str(buf, "0123456", "and short");
}

int main(void)
{
	if (!mkdtemp(top))
		return 1;
	snprintf(path, sizeof(path), "%s/ckpt", top);
	check_read();
	misfit("arch", "vax", "architecture");
	misfit("kernel", "999.1.2", "kernel");
	misfit("engine_version", "5.0", "engine");
	misfit("cpu", " sse2 avx9 ", "avx9");
	damaged("img/core-1.img", "cora", "an edited image");
	damaged("img/core-1.img", "cor", "a short image");
	damaged("img/core-1.img", NULL, "an image that is gone");
	damaged("img/pages-1.img", "page", "short pages");
	damaged("files", "4 x img/core-1.img\n", "another list");
	damaged("files", NULL, "no list");
	damaged("manifest.json", NULL, "no manifest");
	damaged("manifest.json", "{\"v\":1", "a torn manifest");
	damaged("manifest.json", "{\"v\":2}", "a version of later");
	damaged("manifest.json", "{\"v\":1,\"sum\":\"\"}", "no seal");
	check_nonsense();
	check_life();
	check_plain();
	fd_remove_tree(AT_FDCWD, top, NULL);
	return tap_done();
}
