/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/env.h"
#include "starter.h"

static int resolve_user(struct starter *s, const struct starter_want *want,
			const json_t *spec, struct err *e)
{
	const char *dflt = json_str(spec, "init_user");
	auto_close int root = -1;
	int r;

	if (!*dflt)
		dflt = json_str(spec, "image_user");
	if (!*dflt)
		dflt = "0";
	root = box_root(s->box, e);
	if (root < 0)
		return root;
	r = user_resolve(root, want->user ? want->user : dflt, dflt, &s->user,
			 e);
	if (r < 0)
		return r;
	s->host_uid = s->box->uid_base + s->user.uid;
	s->host_gid = s->box->uid_base + s->user.gid;
	return 0;
}

/* What passwd says need not be UTF-8; then it is not said. */
static const char *text_or_null(const char *s)
{
	auto_json json_t *j = s ? json_string(s) : NULL;

	return j ? s : NULL;
}

static int make_env(struct starter *s, const struct starter_want *want,
		    const json_t *spec, struct err *e)
{
	auto_json json_t *term = json_pack("{s:s}", "TERM", "xterm");
	const json_t *maps[4] = {NULL, NULL, NULL, want->env};

	if (!want->bare) {
		maps[0] = want->tty ? term : NULL;
		maps[1] = json_object_get(spec, "image_env");
		maps[2] = json_object_get(spec, "env");
	}
	return env_build(maps, array_len(maps), text_or_null(s->user.home),
			 text_or_null(s->user.name), &s->envp, e);
}

static int choose_cwd(struct starter *s, const struct starter_want *want,
		      const json_t *spec, struct err *e)
{
	const char *cwd = want->cwd ? want->cwd : "";

	if (!*cwd && !want->bare)
		cwd = json_str(spec, "cwd");
	s->cwd_default = !*cwd;
	if (!*cwd && !want->bare)
		cwd = json_str(spec, "image_cwd");
	if (!*cwd)
		cwd = "/";
	if (cwd[0] != '/')
		return err_set(e, -EBADMSG, "bad_value",
			       "'cwd' is not an absolute path");
	s->cwd = strdup(cwd);
	return s->cwd ? 0 : err_sys(e, ENOMEM, "working directory");
}

static int prepare(struct starter *s, const struct starter_want *want,
		   struct err *e)
{
	auto_json json_t *spec = NULL;
	struct box *b = s->box;
	struct cgroup_root *cgroups;
	int r;

	r = box_spec(b, &spec, e);
	if (r == 0)
		r = resolve_user(s, want, spec, e);
	if (r == 0)
		r = make_env(s, want, spec, e);
	if (r == 0)
		r = argv_build(want->argv, &s->argv, e);
	if (r == 0)
		r = choose_cwd(s, want, spec, e);
	if (r == 0)
		r = box_profile(b, e);
	if (r == 0)
		r = box_cgroups(b, &cgroups, e);
	if (r < 0)
		return r;
	s->en = (struct enter){
		.init_pidfd = b->init_fd,
		.id = b->id,
		.cgroups = cgroups,
		.profile = &b->profile,
		.argv = s->argv,
		.envp = (const char *const *)s->envp,
		.cwd = s->cwd,
		.cwd_default = s->cwd_default,
		.uid = s->user.uid,
		.gid = s->user.gid,
		.groups = s->user.groups,
		.ngroups = s->user.ngroups,
		.tty = want->tty,
		.fds = {-1, -1, -1},
		.exe_fd = -1,
		.extra_fd = -1,
		.extra_fd2 = -1,
	};
	/* pid 1 was given the CPUs of the sandbox. */
	if (sched_getaffinity(b->init_pid, sizeof(s->en.cpus), &s->en.cpus) < 0)
		return err_set(e, -ESRCH, "stopped", "the sandbox has ended");
	return 0;
}

int starter_init(struct starter *s, struct box *b,
		 const struct starter_want *want, struct err *e)
{
	int r;

	*s = (struct starter){.box = b};
	r = prepare(s, want, e);
	if (r < 0)
		starter_done(s);
	return r;
}

void starter_done(struct starter *s)
{
	user_done(&s->user);
	env_free(s->envp);
	free(s->argv);
	free(s->cwd);
	*s = (struct starter){0};
}

int starter_own(const struct starter *s, int fd, struct err *e)
{
	if (fchown(fd, s->host_uid, s->host_gid) < 0)
		return err_sys(e, errno, "give a pipe to the user");
	return 0;
}

int starter_enter(struct starter *s, const char *leaf, struct entered *ret,
		  struct err *e)
{
	struct box *b = s->box;
	int r;

	r = cgroup_leaf_make(s->en.cgroups, b->id, leaf, e);
	if (r < 0)
		return r;
	s->en.leaf = leaf;
	r = enter_start(&s->en, ret, e);
	/* Whoever failed in it may not be quite gone. */
	if (r < 0 && cgroup_leaf_remove(s->en.cgroups, b->id, leaf, NULL) < 0) {
		cgroup_kill(s->en.cgroups, b->id, leaf, 1000, NULL, NULL);
		cgroup_leaf_remove(s->en.cgroups, b->id, leaf, NULL);
	}
	return r;
}
