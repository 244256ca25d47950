/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child that becomes the checkpoint engine: in the sandbox's control group,
 * with a mount namespace that holds what the engine is to build from.
 *
 * The engine opens what it is given as the sandbox's root, not as the host's,
 * so that every directory on the way must let everybody pass: all of it stands
 * on a small tmpfs on one of the host's top directories, seen by nobody else.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/proc.h"
#include "ckpt/ckpt_image.h"
#include "ckpt/engine.h"
#include "box/node.h"
#include "ckpt/restore_priv.h"
#include "sys/mount.h"

#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

static int sys(long r)
{
	return r < 0 ? -errno : (int)r;
}

static bool is_below(const char *path, const char *top)
{
	size_t n = strlen(top);

	return !strncmp(path, top, n) && (path[n] == '/' || !path[n]);
}

/* By its name, or by where the name leads. */
static bool holds(const char *top, const char *path)
{
	char real[PATH_MAX];

	return is_below(path, top) ||
	       (realpath(path, real) && is_below(real, top));
}

static bool is_needed(const struct restore_stage *g, const char *top)
{
	const struct restore *rs = g->rs;
	const char *const paths[] = {rs->tree->run,    rs->tree->lib,
				     rs->tree->config, g->hook,
				     rs->engine->path, rs->engine->shim};

	for (size_t i = 0; i < array_len(paths); i++)
		if (holds(top, paths[i]))
			return true;
	for (size_t i = 0; i < rs->image->nlayers; i++)
		if (holds(top, rs->image->layers[i].path))
			return true;
	for (size_t i = 0; i < rs->ck->nmounts; i++)
		if (rs->ck->mounts[i].source &&
		    holds(top, rs->ck->mounts[i].source))
			return true;
	return false;
}

/* A directory of the host that is there, lets everybody pass, and holds nothing
 * that is needed. */
static int choose_top(struct restore_stage *g, struct err *e)
{
	static const char *const tops[] = {"/mnt", "/media", "/srv", "/opt"};
	struct stat st;

	for (size_t i = 0; i < array_len(tops); i++)
		if (lstat(tops[i], &st) == 0 && S_ISDIR(st.st_mode) &&
		    !is_needed(g, tops[i])) {
			g->top = tops[i];
			return 0;
		}
	return err_set(e, -ENOENT, "configuration",
		       "to restore, one of /mnt, /media, /srv and /opt must be "
		       "a directory that holds nothing of ours");
}

int restore_stage_lay_out(struct restore_stage *g, struct err *e)
{
	const struct restore *rs = g->rs;
	char init[PATH_MAX];
	int r;

	g->parent = getpid();
	r = proc_libexec("dsec-ckpt", g->hook, sizeof(g->hook), e);
	if (r == 0)
		r = stage_lay_out(&g->st, e);
	if (r == 0)
		r = choose_top(g, e);
	if (r == 0)
		r = tree_path(init, e, "%s/%s", rs->dir, CKPT_INIT);
	if (r == 0)
		r = node_dev_with(rs->tree, init, g->dev, e);
	if (r == 0)
		r = engine_run_dir(rs->tree, g->run_dir, e);
	if (r == 0)
		r = tree_path(g->st.root, e, "%s/root", g->top);
	return r;
}

static bool step(struct restore_stage *g, const char *what, int r)
{
	if (r >= 0)
		return true;
	err_sys(&g->shared->e, -r, "%s", what);
	return false;
}

static int make_dir(const char *top, const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/%s", top, name);
	return mkdir(path, 0755) < 0 ? -errno : 0;
}

static bool own_place(struct restore_stage *g)
{
	static const char *const dirs[] = {"root", "dev",    "pts",	"work",
					   "img",  "img.up", "img.work"};

	umask(022);
	if (!step(g, "make namespaces",
		  sys(unshare(CLONE_NEWNS | CLONE_NEWCGROUP))) ||
	    !step(g, "private mounts",
		  mount_fs(NULL, "/", MS_REC | MS_PRIVATE, NULL)) ||
	    !step(g, "mount a tmpfs",
		  mount_fs("tmpfs", g->top, MS_NOSUID, "mode=755,size=64m")))
		return false;
	for (size_t i = 0; i < array_len(dirs); i++)
		if (!step(g, "make a directory", make_dir(g->top, dirs[i])))
			return false;
	return true;
}

/* The host's root again, after it acted for the sandbox's. */
static int act_as_root(void)
{
	setfsuid(0);
	setfsgid(0);
	return sys(prctl(PR_SET_SECUREBITS, 0));
}

static bool stage_layers(struct restore_stage *g)
{
	if (stage_root(&g->st) < 0)
		return step(g, g->st.what, g->st.r);
	return step(g, "act as root", act_as_root()) &&
	       step(g, "chdir", sys(chdir(g->top)));
}

/* Its ptmx belongs to the sandbox's root, as it does in one that the engine
 * mounts: whoever has a master open inside, the engine gives it its owner. */
static bool stage_devpts(struct restore_stage *g)
{
	uid_t root = (uid_t)json_int(g->rs->spec, "uid_base", 0);

	return step(g, "mount /dev/pts",
		    mount_fs("devpts", "pts", MS_NOSUID | MS_NOEXEC,
			     g->st.devpts)) &&
	       step(g, "owner of ptmx", sys(chown("pts/ptmx", root, root)));
}

/* A file lies in the directory that was asked for: its mount is its own. */
static bool stage_mount(struct restore_stage *g, const struct ckpt_mount *m)
{
	int r;

	if (!strcmp(m->key, CKPT_KEY_DEV))
		return step(g, "mount /dev", mount_bind(g->dev, "dev"));
	if (!strcmp(m->key, CKPT_KEY_PTS))
		return stage_devpts(g);
	r = m->file ? sys(mknod(m->key, S_IFREG | 0644, 0))
		    : sys(mkdir(m->key, 0755));
	return step(g, m->inside, r) &&
	       step(g, m->inside, stage_host_dir(&g->st, m->source, m->key));
}

/*
 * Images that say who the sandbox's ids are on the node are written anew for
 * another range, on top of those of the checkpoint, which others may use.
 */
static bool stage_images(struct restore_stage *g)
{
	uid_t base = (uid_t)json_int(g->rs->spec, "uid_base", 0);
	auto_close int dir = -1;
	char options[2 * PATH_MAX];
	int n;

	n = snprintf(options, sizeof(options),
		     "lowerdir=%s/%s,upperdir=%s/img.up,workdir=%s/img.work",
		     g->rs->dir, CKPT_IMAGES, g->top, g->top);
	if (n < 0 || (size_t)n >= sizeof(options))
		return step(g, "images", -ENAMETOOLONG);
	if (!step(g, "mount the images",
		  mount_fs("overlay", "img", MS_NOSUID | MS_NODEV, options)))
		return false;
	dir = open("img", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return step(g, "open the images", -errno);
	return ckpt_image_uid(dir, base, &g->shared->e) == 0;
}

/* Masters come in the order of their numbers; those between are let go. */
static bool stage_ttys(struct restore_stage *g)
{
	struct restore_shared *s = g->shared;
	unsigned want = 0, index;
	int spare[RESTORE_TTYS_MAX], nspare = 0, fd, zero = 0;

	while (want < g->fds->nttys && nspare < RESTORE_TTYS_MAX) {
		fd = open("pts/ptmx",
			  O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
		if (fd < 0 || ioctl(fd, TIOCGPTN, &index) < 0)
			return step(g, "make a terminal", -errno);
		size_t i = 0;

		while (i < g->fds->nttys && g->fds->ttys[i].ck->index != index)
			i++;
		if (i == g->fds->nttys) {
			spare[nspare++] = fd;
			continue;
		}
		s->master[i] = fd;
		if (ioctl(fd, TIOCSPTLCK, &zero) < 0)
			return step(g, "unlock a terminal", -errno);
		s->peer[i] = ioctl(fd, TIOCGPTPEER,
				   O_RDWR | O_NOCTTY | O_CLOEXEC);
		/* The engine gives it to whose it was, as root inside. */
		if (s->peer[i] < 0 || fchown(s->peer[i], g->st.l->uid_base,
					     g->st.l->uid_base + 5) < 0)
			return step(g, "open a terminal", -errno);
		want++;
	}
	while (nspare > 0)
		close(spare[--nspare]);
	return want == g->fds->nttys ||
	       step(g, "make a terminal of that number", -ENOSPC);
}

static bool stage_all(struct restore_stage *g)
{
	const struct ckpt *ck = g->rs->ck;

	if (!step(g, "join the cgroup", cgroup_leaf_join(&g->st.join)) ||
	    !own_place(g) || !stage_layers(g))
		return false;
	for (size_t i = 0; i < ck->nmounts; i++)
		if (!stage_mount(g, &ck->mounts[i]))
			return false;
	if (!stage_images(g) || !stage_ttys(g))
		return false;
	g->shared->work = open("work", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return step(g, "open a directory", g->shared->work);
}

/* As every process of a sandbox is, and its memory as the node wants it. */
static bool settle(struct restore_stage *g)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	/* Refused where ours is above 0, which is nothing to undo. */
	if (fd >= 0 && write(fd, "0", 1) < 0)
		errno = 0;
	if (fd >= 0)
		close(fd);
	if (g->merge && !step(g, "let KSM merge memory",
			      sys(prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0))))
		return false;
	return step(g, "descriptors", sys(unshare(CLONE_FILES)));
}

/* What takes the place of what was the host's. */
static size_t list_given(const struct restore_stage *g,
			 struct engine_given *given, char (*sources)[PATH_MAX])
{
	const struct restore_fds *f = g->fds;
	const struct ckpt *ck = g->rs->ck;
	size_t n = 0;

	for (size_t i = 0; i < ck->nmounts; i++) {
		snprintf(sources[i], sizeof(sources[i]), "%s/%s", g->top,
			 ck->mounts[i].key);
		given[n++] = (struct engine_given){
			.kind = ENGINE_MOUNT,
			.of = ck->mounts[i].key,
			.at = sources[i],
		};
	}
	for (size_t i = 0; i < f->npipes; i++)
		if (f->pipes[i].inside)
			given[n++] = (struct engine_given){
				.kind = ENGINE_PIPE,
				.of = f->pipes[i].of,
				.fd = f->pipes[i].end[1],
			};
	for (size_t i = 0; i < f->nttys; i++)
		given[n++] = (struct engine_given){
			.kind = ENGINE_TTY,
			.of = f->ttys[i].ck->of,
			.fd = g->shared->peer[i],
		};
	return n;
}

/* The child may allocate, its memory is its own. */
static bool make_args(struct engine_args *ret, const struct restore_stage *g)
{
	const struct restore_fds *f = g->fds;
	const struct ckpt *ck = g->rs->ck;
	char images[64], work[64], root[64], pid_file[64];
	char(*sources)[PATH_MAX] = calloc(ck->nmounts + 1, sizeof(*sources));
	struct engine_given *given = calloc(ck->nmounts + f->npipes + f->nttys +
						    1,
					    sizeof(*given));
	const struct engine_restore what = {
		.images = images,
		.work = work,
		.log = "restore.log",
		.root = root,
		.pid_file = pid_file,
		.hook = g->hook,
		.given = given,
		.ngiven = given && sources ? list_given(g, given, sources) : 0,
		.verbose = log_debugging("engine"),
	};

	snprintf(images, sizeof(images), "%s/img", g->top);
	snprintf(work, sizeof(work), "%s/work", g->top);
	snprintf(root, sizeof(root), "%s/root", g->top);
	snprintf(pid_file, sizeof(pid_file), "%s/work/pid", g->top);
	return given && sources && g->rs->engine->ops->restore(&what, ret) == 0;
}

void restore_stage_main(struct restore_stage *g)
{
	char owner[40];
	const char *env[] = {g->hook_env, owner, NULL};
	struct engine_args a = {0};
	struct engine_run run = {.env = env, .out = -1};

	snprintf(owner, sizeof(owner), "DSEC_ENGINE_OWNER=%u",
		 g->st.l->uid_base);
	if (!stage_all(g) || !settle(g))
		_exit(1);
	if (!make_args(&a, g)) {
		err_sys(&g->shared->e, ENOMEM, "arguments of the engine");
		_exit(1);
	}
	run.args = a.v;
	run.keep = a.keep;
	run.nkeep = a.nkeep;
	run.run_dir = g->run_dir;
	run.own_tmp = true;
	g->shared->staged = true;
	engine_exec(g->rs->engine, &run, g->parent, &g->shared->e);
	_exit(1);
}
