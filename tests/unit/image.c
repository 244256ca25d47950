/* SPDX-License-Identifier: Apache-2.0 */
/* From names to what a sandbox's root is made of; trees unpacked; who claims
 * which layer. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "box/claim.h"
#include "img/image.h"
#include "img/mount.h"
#include "img/unpack.h"

static char top[] = "/tmp/dsec-image-XXXXXX";
static char lib[64], config[64], run[64], store_path[96];

__attribute__((noreturn)) static void die(const struct err *e)
{
	printf("# %s\n", e->msg);
	abort();
}

static void write_text(const char *dir, const char *name, const char *text)
{
	auto_close int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || fd_replace(fd, name, text, strlen(text), 0, NULL) < 0)
		abort();
}

/* --- images.json --------------------------------------------------------- */

static void check_config(void)
{
	static const char *const bad[] = {
		"[]",
		"{\"mount\":\"fuse\"}",
		"{\"mount\":1}",
		"{\"store\":\"relative\"}",
		"{\"store\":7}",
		"{\"prune_grace_s\":-1}",
		"{\"prune_grace_s\":1.5}",
		"{\"stores\":\"/x\"}",
		"{\"mount\":",
	};
	struct image_config c;
	struct err e = {0};

	is_int(image_config_load(config, lib, &c, &e), 0, "no images.json");
	is_str(c.store, store_path, "the store in the library");
	is_int(c.way, IMAGE_AUTO, "any way");
	is_int(c.prune_grace_s, 86400, "a day");
	write_text(config, "images.json",
		   "{\"store\":\"/s\",\"mount\":\"loop\",\"prune_grace_s\":5}");
	is_int(image_config_load(config, lib, &c, &e), 0, "images.json");
	is_str(c.store, "/s", "says the store");
	is_int(c.way, IMAGE_LOOP, "and the way");
	is_int(c.prune_grace_s, 5, "and the grace");
	for (size_t i = 0; i < array_len(bad); i++) {
		write_text(config, "images.json", bad[i]);
		e = (struct err){0};
		ok(image_config_load(config, lib, &c, &e) < 0 &&
			   !strcmp(e.code, "configuration"),
		   "refused: %s", bad[i]);
	}
	write_text(config, "images.json", "{}");
}

/* --- names --------------------------------------------------------------- */

static struct img_name name_of(const char *text)
{
	struct img_name n;

	if (img_name_parse(text, &n, NULL) < 0)
		abort();
	return n;
}

/* A layer of one empty file, called ${name}. */
static struct digest put_layer(const struct store *s, const char *name,
			       const char *file, json_t *conf)
{
	const struct fsnode attr = {.mode = S_IFREG | 0644};
	struct layer l = {.kind = LAYER_TOOLKIT,
			  .config = conf ? conf : json_object(),
			  .source = json_object()};
	auto_fstree struct fstree *t = fstree_new();
	struct img_name n = name_of(name);
	char tmp[STORE_TMP_NAME];
	struct fsnode *node;
	struct digest d;
	struct err e = {0};
	int fd = -1;

	if (fstree_put(t, file, &attr, &node, &e) < 0 ||
	    store_tmp(s, &fd, tmp, &e) < 0 ||
	    store_put_layer(s, fd, t, &l, &d, &e) < 0 ||
	    store_tag(s, &n, &d, &e) < 0)
		die(&e);
	store_tmp_done(s, &fd, tmp);
	layer_done(&l);
	return d;
}

static void put_env(const struct store *s, const char *name,
		    const struct digest *layers, size_t n)
{
	struct img_name parsed = name_of(name);
	struct env v = {.nlayers = n, .config = json_object()};
	char tmp[STORE_TMP_NAME];
	struct digest d;
	struct err e = {0};
	int fd = -1;

	memcpy(v.layers, layers, n * sizeof(*layers));
	if (store_tmp(s, &fd, tmp, &e) < 0 ||
	    store_put_env(s, fd, &v, &d, &e) < 0 ||
	    store_tag(s, &parsed, &d, &e) < 0)
		die(&e);
	store_tmp_done(s, &fd, tmp);
	env_done(&v);
}

static int open_image(const char *name, const char *layers, struct image *img,
		      struct err *e)
{
	const struct image_where w = {run, lib, config};
	auto_json json_t *list = layers ? json_loads(layers, 0, NULL) : NULL;

	*e = (struct err){0};
	return image_open(&w, name, list, img, e);
}

static bool is_layers(const struct image *img, const struct digest *d, size_t n)
{
	char hex[DIGEST_HEX + 1];

	if (img->nlayers != n + 1 || img->layers[n].stored ||
	    json_array_size(img->digests) != n)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!digest_eq(&img->layers[i].digest, &d[i]) ||
		    strcmp(json_string_value(json_array_get(img->digests, i)),
			   digest_hex(&d[i], hex)))
			return false;
	return true;
}

static void check_configuration(const struct image *img)
{
	auto_json json_t *cmd = NULL;

	is_str(json_str(img->env, "A"), "upper", "variables by name");
	is_str(json_str(img->env, "B"), "lower", "of all layers");
	is_str(img->cwd, "/upper", "the topmost working directory");
	is_str(img->user, "me", "the only user");
	is_int(image_command(img, &cmd, NULL), 0, "its command");
	is_int((long long)json_array_size(cmd), 2, "entrypoint and cmd");
	ok(img->checkpointable, "it can be checkpointed");
}

static void check_names(void)
{
	auto_store struct store s = STORE_INIT;
	const struct image_where w = {run, lib, config};
	const struct digest *missing;
	struct digest d[3], twice[2];
	struct image img;
	char dir[80];
	struct err e = {0};

	is_int(open_image("root/a:1", NULL, &img, &e), -ENOENT, "no store");
	is_str(e.code, "image_unknown", "and no image in it");
	snprintf(dir, sizeof(dir), "%s/img", lib);
	mkdir(dir, 0755);
	if (store_create(store_path, &s, &e) < 0)
		die(&e);
	d[0] = put_layer(&s, "root/a:1", "a",
			 json_pack("{s:{s:s, s:s}, s:s, s:s, s:[s], s:[s]}",
				   "env", "A", "lower", "B", "lower", "user",
				   "me", "workdir", "/lower", "entrypoint",
				   "/e", "cmd", "c"));
	d[1] = put_layer(&s, "root/b:1", "b",
			 json_pack("{s:{s:s}, s:s}", "env", "A", "upper",
				   "workdir", "/upper"));
	d[2] = put_layer(&s, "root/c:1", "c", NULL);
	put_env(&s, "root/env:1", d, 2);
	is_int(open_image("root/a:1", "[\"root/b:1\"]", &img, &e), 0,
	       "an image and a layer");
	ok(is_layers(&img, d, 2), "in their order, and ours on top");
	check_configuration(&img);
	is_int(image_missing(&img, &w, &missing, &e), 0, "where they are");
	ok(missing && digest_eq(missing, &d[0]), "nowhere yet");
	ok(image_fresh(&img), "the names are as they were");
	put_layer(&s, "root/b:1", "other", NULL);
	ok(!image_fresh(&img), "one was given to another layer");
	image_done(&img);
	is_int(open_image("root/env:1", "[\"root/c:1\"]", &img, &e), 0,
	       "an environment and a layer");
	ok(is_layers(&img, d, 3), "three layers");
	image_done(&img);
	is_int(open_image("root/env:1", "[\"root/a:1\"]", &img, &e), 0,
	       "a layer that is there already");
	twice[0] = d[1];
	twice[1] = d[0];
	ok(is_layers(&img, twice, 2), "counts where it comes last");
	image_done(&img);
	is_int(open_image("root/a:1", "[\"host\"]", &img, &e), -EINVAL,
	       "host as a layer");
	is_int(open_image("root/a:9", NULL, &img, &e), -ENOENT, "no version");
	is_int(open_image("..", NULL, &img, &e), -EINVAL, "no name");
}

/* --- unpacked ------------------------------------------------------------ */

static int no_blob(void *arg, const struct digest *root, struct err *e)
{
	(void)arg;
	(void)root;
	return err_set(e, -ENOENT, "image_damaged", "no blob");
}

static struct fsnode *add(struct fstree *t, const char *path, mode_t mode,
			  const char *link)
{
	struct fsnode attr = {
		.mode = mode,
		.uid = 1,
		.gid = 2,
		.mtime = {1000000000, 5},
		.rdev = S_ISCHR(mode) || S_ISBLK(mode) ? makedev(7, 300) : 0,
		.link = (char *)(uintptr_t)link,
		.size = link ? strlen(link) : 0,
	};
	struct fsnode *n = NULL;
	struct err e = {0};

	if (fstree_put(t, path, &attr, &n, &e) < 0)
		die(&e);
	return n;
}

static void is_made(int dir, const char *path, mode_t mode, uid_t uid)
{
	struct stat st = {0};

	fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW);
	ok(st.st_mode == mode && st.st_uid == uid &&
		   st.st_mtim.tv_sec == 1000000000 && st.st_mtim.tv_nsec == 5,
	   "'%s' as it should be: %o, uid %u", path, st.st_mode, st.st_uid);
}

/* Deeper than a path may be long. */
#define DEEP 120
static void add_deep(struct fstree *t)
{
	char path[DEEP * 64], *p = path;

	for (int i = 0; i < DEEP; i++)
		p += sprintf(p, "deep-%055d/", i);
	strcpy(p, "end");
	add(t, path, S_IFREG | 0600, NULL);
}

static void check_deep(int dir)
{
	int fd = dup(dir), next;
	char name[64];

	for (int i = 0; fd >= 0 && i < DEEP; i++) {
		snprintf(name, sizeof(name), "deep-%055d", i);
		next = openat(fd, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
		close(fd);
		fd = next;
	}
	ok(fd >= 0 && faccessat(fd, "end", F_OK, 0) == 0, "a path of %d bytes",
	   DEEP * 61);
	if (fd >= 0)
		close(fd);
}

static void check_attributes(int dir)
{
	struct stat a, b, st = {0};
	char value[8], at[64];

	ok(fstatat(dir, "d/file", &a, 0) == 0 &&
		   fstatat(dir, "hard", &b, 0) == 0 && a.st_ino == b.st_ino &&
		   a.st_nlink == 2,
	   "a hard link");
	fstatat(dir, "dev", &st, 0);
	ok(st.st_rdev == makedev(7, 300), "a device");
	fstatat(dir, "gone", &st, 0);
	ok(S_ISCHR(st.st_mode) && st.st_rdev == 0, "a whiteout");
	snprintf(at, sizeof(at), "/proc/self/fd/%d/d", dir);
	ok(getxattr(at, FS_OPAQUE, value, sizeof(value)) == 1 &&
		   value[0] == 'y',
	   "an opaque directory");
	fstatat(dir, "hole", &st, 0);
	ok(st.st_size == 5 << 20 && st.st_blocks < 64, "a hole is a hole");
}

static void check_unpack(void)
{
	auto_fstree struct fstree *t = fstree_new();
	const struct fschunk hole = {.block = FS_HOLE};
	auto_close int dir = -1;
	char path[64];
	struct fsnode *n;
	struct err e = {0};

	if (geteuid() != 0) {
		skip("trees unpacked", "needs root");
		return;
	}
	n = add(t, "d", S_IFDIR | 01751, NULL);
	fsnode_set_xattr(t, n, FS_OPAQUE, "y", 1);
	n = add(t, "d/file", S_IFREG | 06711, NULL);
	fstree_link(t, "hard", n, &e);
	n = add(t, "hole", S_IFREG | 0644, NULL);
	n->size = 5 << 20;
	for (int i = 0; i < 5; i++)
		fsnode_add_chunk(t, n, &hole);
	add(t, "out", S_IFLNK | 0777, "/etc/../../tmp");
	add(t, "dev", S_IFBLK | 0640, NULL);
	n = add(t, "gone", S_IFCHR, NULL);
	n->rdev = 0;
	add(t, "pipe", S_IFIFO | 0622, NULL);
	add(t, "sock", S_IFSOCK | 0755, NULL);
	add_deep(t);
	snprintf(path, sizeof(path), "%s/unpacked", top);
	mkdir(path, 0700);
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (!is_int(unpack_tree(t, no_blob, NULL, dir, &e), 0, "unpacked"))
		printf("# %s\n", e.msg);
	is_made(dir, "d", S_IFDIR | 01751, 1);
	is_made(dir, "d/file", S_IFREG | 06711, 1);
	is_made(dir, "out", S_IFLNK | 0777, 1);
	is_made(dir, "dev", S_IFBLK | 0640, 1);
	is_made(dir, "pipe", S_IFIFO | 0622, 1);
	is_made(dir, "sock", S_IFSOCK | 0755, 1);
	check_attributes(dir);
	check_deep(dir);
}

/* --- claims -------------------------------------------------------------- */

static int count_claim(void *arg, const char *id, const json_t *claim,
		       const struct digest *layers, size_t n, struct err *e)
{
	(void)claim;
	(void)layers;
	(void)e;
	*(int *)arg += (int)n * (id[0] == 'a' ? 1 : 100);
	return 0;
}

static void put_claim(const char *id, const char *text)
{
	char dir[128];

	snprintf(dir, sizeof(dir), "%s/sb/%s", run, id);
	if (mkdir(dir, 0700) < 0)
		abort();
	if (text)
		write_text(dir, "claim.json", text);
}

#define HEX32 "0123456789abcdef0123456789abcdef"
static void check_claims(void)
{
	const struct tree t = {.run = run, .lib = lib, .config = config};
	struct err e = {0};
	int n = 0, hold = -1;

	if (tree_make(&t, &e) < 0)
		die(&e);
	put_claim("aaaaaaaaaaaaaaaaaaaa", "{\"layers\":[\"" HEX32 HEX32
					  "\",\"" HEX32 HEX32 "\",\"x\"]}");
	put_claim("bbbbbbbbbbbbbbbbbbbb", "{\"image\":\"host\"}");
	put_claim("cccccccccccccccccccc", NULL);
	is_int(claim_hold(&t, &hold, &e), 0, "the ledger is held");
	is_int(claim_layers(&t, count_claim, &n, &e), 0, "claims with layers");
	is_int(n, 2, "one, of two layers");
	close(hold);
	put_claim("dddddddddddddddddddd", "{");
	ok(claim_layers(&t, count_claim, &n, &e) < 0,
	   "one that does not read may use anything");
}

int main(void)
{
	if (!mkdtemp(top))
		return 1;
	snprintf(lib, sizeof(lib), "%s/lib", top);
	snprintf(config, sizeof(config), "%s/config", top);
	snprintf(run, sizeof(run), "%s/run", top);
	snprintf(store_path, sizeof(store_path), "%s/img/store", lib);
	mkdir(lib, 0700);
	mkdir(config, 0700);
	mkdir(run, 0700);
	check_config();
	check_names();
	check_unpack();
	check_claims();
	is_int(fd_remove_tree(AT_FDCWD, top, NULL), 0, "removed");
	return tap_done();
}
