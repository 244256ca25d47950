/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "img/export_oci.h"
#include "opened.h"

#define LEFT_OUT_LISTED 100

/* A file that gets its name when it is complete. */
struct target {
	char dir[PATH_MAX], name[NAME_MAX + 1], tmp[NAME_MAX + 1];
	int dirfd, fd;
};

struct exporting {
	struct img_ctx *c;
	struct target to;
	enum export_compress compress;
	bool oci;
	json_t *left_out; /* paths */
	uint64_t nleft_out, bytes;
	size_t at, nlayers; /* of an image, layer by layer */
};

/* --- the file ------------------------------------------------------------ */

static int split(const char *path, struct target *to, struct err *e)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	size_t len = slash ? (size_t)(slash - path) : 0;

	if (!*name || strlen(name) > NAME_MAX - 16 || len >= PATH_MAX)
		return err_set(e, -EINVAL, "bad_value",
			       "'target' names no file: '%.200s'", path);
	memcpy(to->dir, path, len);
	to->dir[len] = '\0';
	if (len == 0)
		memcpy(to->dir, slash ? "/" : ".", 2);
	memcpy(to->name, name, strlen(name) + 1);
	snprintf(to->tmp, sizeof(to->tmp), ".%s.%d", name, (int)getpid());
	return 0;
}

static int target_open(struct target *to, struct err *e)
{
	to->dirfd = open(to->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (to->dirfd < 0)
		return err_sys(e, errno, "open '%.200s'", to->dir);
	unlinkat(to->dirfd, to->tmp, 0);
	to->fd = openat(to->dirfd, to->tmp,
			O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (to->fd < 0)
		return err_sys(e, errno, "make '%.200s/%.200s'", to->dir,
			       to->tmp);
	return 0;
}

static int target_publish(struct target *to, struct err *e)
{
	if (fsync(to->fd) < 0)
		return err_sys(e, errno, "write '%.200s'", to->name);
	if (renameat(to->dirfd, to->tmp, to->dirfd, to->name) < 0)
		return err_sys(e, errno, "name '%.200s'", to->name);
	fd_close(steal_fd(&to->fd));
	return 0;
}

/* Unpublished, nothing of it stays. */
static void target_done(struct target *to)
{
	if (to->fd >= 0) {
		fd_close(steal_fd(&to->fd));
		unlinkat(to->dirfd, to->tmp, 0);
	}
	if (to->dirfd >= 0)
		fd_close(steal_fd(&to->dirfd));
}

/* --- what goes into it --------------------------------------------------- */

static void on_left_out(void *arg, const char *path)
{
	struct exporting *x = arg;

	if (x->nleft_out++ >= LEFT_OUT_LISTED)
		return;
	/* A name that is not UTF-8 is counted alone. */
	json_array_append_new(x->left_out, json_string(path));
}

static int on_step(void *arg, struct err *e)
{
	struct exporting *x = arg;

	return img_progress(x->c, x->at, x->nlayers, "export layers", e);
}

static int layer(struct exporting *x, const struct opened *o, size_t i,
		 struct export_oci *out, struct err *e)
{
	auto_fstree struct fstree *t = NULL;
	auto_reader struct blob_reader *reader = NULL;
	struct export_tar tar = {.form = EXPORT_OCI,
				 .sparse_from = EXPORT_SPARSE_FROM,
				 .left_out = on_left_out,
				 .step = on_step,
				 .arg = x};
	int r;

	x->at = i;
	x->nlayers = o->n;
	r = on_step(x, e);
	if (r == 0)
		r = opened_tree(o, i, &t, e);
	if (r == 0)
		r = opened_reader(o, t, &reader, e);
	tar.tree = t;
	tar.reader = reader;
	return r < 0 ? r : export_oci_layer(out, &tar, e);
}

static int to_oci(struct exporting *x, const struct opened *o, json_t *answer,
		  struct err *e)
{
	char name[IMG_NAME_MAX + 1];
	struct export_oci *out = NULL;
	struct digest manifest;
	int r;

	r = export_oci_open(x->to.fd, x->to.dirfd, x->compress, &out, e);
	for (size_t i = 0; i < o->n && r == 0; i++)
		r = layer(x, o, i, out, e);
	if (r == 0)
		r = export_oci_end(out, o->config,
				   o->name.by_digest
					   ? NULL
					   : img_name_str(&o->name, name),
				   &manifest, e);
	export_oci_free(out);
	if (r < 0)
		return r;
	json_object_set_new(answer, "layers", json_integer((json_int_t)o->n));
	json_object_set_new(answer, "manifest", json_digest(&manifest));
	return 0;
}

static int on_tar(void *arg, const void *data, size_t len, struct err *e)
{
	struct exporting *x = arg;
	int r;

	x->bytes += len;
	r = img_progress(x->c, x->bytes, 0, "export", e);
	return r < 0 ? r : fd_write_all(x->to.fd, data, len, e);
}

static int to_tar(struct exporting *x, const struct opened *o, struct err *e)
{
	auto_fstree struct fstree *t = NULL;
	auto_reader struct blob_reader *reader = NULL;
	struct tar_writer w = {.sink = on_tar, .arg = x};
	struct export_tar tar = {.form = EXPORT_ROOT,
				 .left_out = on_left_out,
				 .arg = x};
	int r;

	if (x->compress != EXPORT_PLAIN)
		return err_set(e, -EOPNOTSUPP, "unsupported",
			       "'compress' is for oci-archive: a tar can go "
			       "through any compressor afterwards");
	r = opened_merged(o, true, &t, e);
	if (r == 0)
		r = opened_reader(o, t, &reader, e);
	tar.tree = t;
	tar.reader = reader;
	if (r == 0)
		r = export_tar(&tar, &w, e);
	tar_writer_done(&w);
	return r;
}

/* --- the request --------------------------------------------------------- */

static int target_of(struct exporting *x, const json_t *req, struct err *e)
{
	static const char *const forms[] = {"tar:", "oci-archive:",
					    "docker-archive:"};
	const char *target = json_str(req, "target");
	const char *compress = json_str(req, "compress");
	int r = 0;

	if (*compress)
		r = export_compress_parse(compress, &x->compress, e);
	if (r < 0)
		return r;
	for (size_t i = 0; i < array_len(forms); i++) {
		size_t len = strlen(forms[i]);

		if (strncmp(target, forms[i], len) != 0)
			continue;
		x->oci = i > 0;
		return split(target + len, &x->to, e);
	}
	return err_set(e, -EINVAL, "bad_value",
		       "'target' is oci-archive:FILE or tar:FILE, not '%.64s'",
		       target);
}

static int export_to(struct exporting *x, const json_t *req, json_t *answer,
		     struct err *e)
{
	auto_opened struct opened o = {0};
	struct stat st;
	int r;

	r = target_of(x, req, e);
	if (r == 0)
		r = opened_init(x->c, json_str(req, "name"), &o, e);
	if (r == 0)
		r = target_open(&x->to, e);
	if (r == 0)
		r = x->oci ? to_oci(x, &o, answer, e) : to_tar(x, &o, e);
	if (r == 0 && fstat(x->to.fd, &st) < 0)
		r = err_sys(e, errno, "stat");
	if (r == 0)
		r = target_publish(&x->to, e);
	if (r < 0)
		return r;
	json_object_set_new(answer, "bytes",
			    json_integer((json_int_t)st.st_size));
	return 0;
}

int op_export(struct img_ctx *c, const json_t *req, json_t *answer,
	      struct err *e)
{
	struct exporting x = {.c = c,
			      .to = {.dirfd = -1, .fd = -1},
			      .left_out = json_array()};
	int r;

	r = x.left_out ? export_to(&x, req, answer, e)
		       : err_sys(e, ENOMEM, "export");
	target_done(&x.to);
	if (r == 0 && x.nleft_out > 0) {
		json_object_set(answer, "left_out", x.left_out);
		json_object_set_new(answer, "left_out_count",
				    json_integer((json_int_t)x.nleft_out));
	}
	json_decref(x.left_out);
	return r;
}
