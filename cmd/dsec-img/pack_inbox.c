/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "img/export_filter.h"
#include "pack.h"

/*
 * A runner may not write the store.  It packs on its own disk and leaves an
 * archive in its inbox, which a builder reads as it would a stranger's.
 */

/* --- a place on this node ------------------------------------------------ */

/* What somebody killed has left: its lock is free. */
static void sweep(int top)
{
	auto_dir DIR *d = NULL;
	const struct dirent *de;
	int fd = openat(top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	d = fd < 0 ? NULL : fdopendir(fd);
	if (!d && fd >= 0)
		fd_close(fd);
	while (d && (de = readdir(d))) {
		auto_close int one = -1;

		if (de->d_name[0] == '.')
			continue;
		one = openat(top, de->d_name,
			     O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (one >= 0 && flock(one, LOCK_EX | LOCK_NB) == 0)
			fd_remove_tree(top, de->d_name, NULL);
	}
}

static int make_locked(int top, const char *name, int *ret_fd, struct err *e)
{
	auto_close int fd = -1;

	if (mkdirat(top, name, 0700) < 0)
		return err_sys(e, errno, "make '%s' to pack into", name);
	fd = openat(top, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
		return err_sys(e, errno, "open '%s' to pack into", name);
	*ret_fd = steal_fd(&fd);
	return 0;
}

static int scratch(const struct pack *p, char *name, int *ret_top, int *ret_fd,
		   struct err *e)
{
	auto_close int top = -1;
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/img/pack", p->c->tree.lib);
	if (r == 0)
		r = fd_mkdir_p(path, 0700, e);
	if (r < 0)
		return r;
	top = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (top < 0)
		return err_sys(e, errno, "open '%s'", path);
	snprintf(name, 64, "%s.%d", p->id, (int)getpid());
	/* Until it has its lock, another's sweep would take it for a dead
	 * one's. */
	if (flock(top, LOCK_EX) < 0)
		return err_sys(e, errno, "lock '%s'", path);
	sweep(top);
	r = make_locked(top, name, ret_fd, e);
	flock(top, LOCK_UN);
	if (r == 0)
		*ret_top = steal_fd(&top);
	return r;
}

/* --- the archive --------------------------------------------------------- */

static int open_local(void *arg, const struct digest *root, struct err *e)
{
	const int *dirfd = arg;
	int fd;

	(void)root;
	fd = openat(*dirfd, "data", O_RDONLY | O_CLOEXEC);
	return fd < 0 ? err_sys(e, errno, "open packed data") : fd;
}

struct archived {
	struct digest digest;
	uint64_t bytes;
};

static int write_tar(struct pack *p, int local, int fd, struct archived *ret,
		     struct err *e)
{
	struct tar_writer w = {.sink = export_filter_write};
	struct export_tar x = {.tree = p->tree, .form = EXPORT_OCI};
	struct export_filter *f = NULL;
	struct digest plain;
	int r;

	x.reader = blob_reader_new(p->tree, open_local, &local);
	if (!x.reader)
		return err_sys(e, ENOMEM, "pack");
	r = export_filter_open(fd, EXPORT_PLAIN, &f, e);
	w.arg = f;
	if (r == 0)
		r = export_tar(&x, &w, e);
	if (r == 0)
		r = export_filter_end(f, &plain, &ret->digest, &ret->bytes, e);
	if (r == 0 && fsync(fd) < 0)
		r = err_sys(e, errno, "sync the archive");
	tar_writer_done(&w);
	export_filter_free(f);
	blob_reader_free(x.reader);
	return r;
}

static int put_tar(struct pack *p, int local, int inbox, const char *name,
		   struct archived *ret, struct err *e)
{
	char tmp[300], last[300];
	auto_close int fd = -1;
	int r;

	snprintf(tmp, sizeof(tmp), ".%s.%d", name, (int)getpid());
	snprintf(last, sizeof(last), "%s.tar", name);
	unlinkat(inbox, tmp, 0);
	fd = openat(inbox, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0)
		return err_sys(e, errno, "make '%s' in the inbox", tmp);
	r = write_tar(p, local, fd, ret, e);
	/* The builder is another user, whatever our umask. */
	if (r == 0 && fchmod(fd, 0644) < 0)
		r = err_sys(e, errno, "let others read '%s'", tmp);
	if (r == 0 && renameat(inbox, tmp, inbox, last) < 0)
		r = err_sys(e, errno, "name '%s' in the inbox", last);
	if (r < 0)
		unlinkat(inbox, tmp, 0);
	return r;
}

static int put_json(struct pack *p, int inbox, const char *name,
		    const struct archived *a, struct err *e)
{
	char hex[DIGEST_HEX + 1], file[300], as[IMG_NAME_MAX + 1];
	auto_json json_t *rec = NULL;
	json_t *parents = json_array();
	int r;

	for (size_t i = 0; i < p->layer.nparents; i++)
		json_array_append_new(parents,
				      json_string(
					      digest_hex(&p->layer.parents[i],
							 hex)));
	r = json_pack_or(&rec, e,
			 "{s:i, s:s, s:{s:s, s:I}, s:O, s:{s:s, s:s}, s:o}",
			 "v", 1, "kind", layer_kind_name(p->layer.kind), "tar",
			 "digest", digest_hex(&a->digest, hex), "size",
			 (json_int_t)a->bytes, "config", p->layer.config,
			 "source", "type", "sandbox", "name", p->id, "parents",
			 parents);
	if (r < 0)
		return r;
	if (p->named)
		json_object_set_new(rec, "as",
				    json_string(img_name_str(&p->name, as)));
	snprintf(file, sizeof(file), "%s.json", name);
	return json_write_file(inbox, file, rec,
			       FD_REPLACE_SYNC | FD_REPLACE_PUBLIC, e);
}

/* "root/rl/py:3" is "root.rl.py.3"; without a name it is the sandbox.  It is
 * one segment, as of a name: no two dots in a row. */
static void name_of(const struct pack *p, char *name)
{
	char as[IMG_NAME_MAX + 1];

	snprintf(name, 129, "%.128s",
		 p->named ? img_name_str(&p->name, as) : p->id);
	for (char *c = name; *c; c++)
		if (*c == '/' || *c == ':')
			*c = c > name && c[-1] == '.' ? '-' : '.';
}

/* Whether a directory of ${uid} is our own, if the file system calls us so: as
 * root of another machine we may be anybody. */
static bool is_us(int dir, uid_t uid)
{
	auto_close int fd = -1;
	struct stat st;
	char name[32];

	snprintf(name, sizeof(name), ".who.%d", (int)getpid());
	unlinkat(dir, name, 0);
	fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return false;
	unlinkat(dir, name, 0);
	return fstat(fd, &st) == 0 && st.st_uid == uid;
}

/* Anybody may make a directory of our name in the inbox, and could change in it
 * whatever we write. */
static int check_owner(const struct pack *p, int fd, const char *node,
		       struct err *e)
{
	struct stat st, store;

	if (fstat(fd, &st) < 0)
		return err_sys(e, errno, "stat 'inbox/%s'", node);
	if (st.st_uid == geteuid())
		return 0;
	if (fstatat(p->store->fd, "store.json", &store, AT_SYMLINK_NOFOLLOW) ==
		    0 &&
	    st.st_uid == store.st_uid)
		return 0;
	if (is_us(fd, st.st_uid))
		return 0;
	return err_set(e, -EPERM, "permission",
		       "'inbox/%s' belongs to a stranger, uid %u", node,
		       st.st_uid);
}

/* Others write the inbox too: through no link, which could lead to any place of
 * this node. */
static int open_inbox(const struct pack *p, char *node, struct err *e)
{
	const int how = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	auto_close int top = -1, fd = -1;
	int r;

	r = tree_node(&p->c->tree, node, e);
	if (r < 0)
		return r;
	if (mkdirat(p->store->fd, "inbox", 0755) < 0 && errno != EEXIST)
		return err_sys(e, errno,
			       "the store is not ours to write: make its "
			       "inbox");
	top = openat(p->store->fd, "inbox", how);
	if (top < 0)
		return err_sys(e, errno, "open the inbox of the store");
	if (mkdirat(top, node, 0755) < 0 && errno != EEXIST)
		return err_sys(e, errno,
			       "the store is not ours to write: make "
			       "'inbox/%s'",
			       node);
	fd = openat(top, node, how);
	if (fd < 0)
		return err_sys(e, errno, "open 'inbox/%s'", node);
	r = check_owner(p, fd, node, e);
	if (r < 0)
		return r;
	(void)fchmod(fd, 0755); /* ours to change, if we made it */
	return steal_fd(&fd);
}

static int put_all(struct pack *p, int local, json_t *answer, struct err *e)
{
	char name[129], node[TREE_NODE_LEN + 1], file[300];
	struct archived a = {0};
	auto_close int inbox = -1;
	int r;

	name_of(p, name);
	inbox = open_inbox(p, node, e);
	if (inbox < 0)
		return inbox;
	/* An older one of that name is no description of this archive. */
	snprintf(file, sizeof(file), "%s.json", name);
	unlinkat(inbox, file, 0);
	r = put_tar(p, local, inbox, name, &a, e);
	if (r == 0)
		r = put_json(p, inbox, name, &a, e);
	if (r < 0)
		return r;
	json_object_set_new(answer, "inbox",
			    json_sprintf("inbox:%s/%s", node, name));
	return 0;
}

int pack_to_inbox(struct pack *p, pack_fn *fn, json_t *answer, struct err *e)
{
	auto_close int top = -1, local = -1;
	char name[64];
	int r;

	r = scratch(p, name, &top, &local, e);
	if (r < 0)
		return r;
	r = fn(p, local, NULL, e);
	if (r == 0)
		r = put_all(p, local, answer, e);
	blob_free(steal_ptr(p->blob));
	fd_remove_tree(top, name, NULL);
	return r;
}
