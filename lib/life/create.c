/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/proc.h"
#include "base/sig.h"
#include "box/net.h"
#include "box/reapply.h"
#include "box/spec.h"
#include "life/create_priv.h"
#include "life/teardown.h"
#include "sys/clone.h"
#include "sys/cpus.h"
#include "wire/record.h"

extern char **environ;

struct image_where create_where(const struct creator *c)
{
	return (struct image_where){c->tree->run, c->tree->lib,
				    c->tree->config};
}

void create_drop_image(struct creator *c)
{
	image_done(&c->image);
	json_decref(c->image_layers);
	c->image_layers = NULL;
	c->image_name[0] = '\0';
}

int creator_open(const struct tree *t, struct creator *ret, struct err *e)
{
	int r;

	memset(ret, 0, sizeof(*ret));
	ret->tree = t;
	ret->pool = POOL_INIT;
	r = tree_make(t, e);
	if (r == 0)
		r = cgroup_open(t->cgroup, &ret->cgroups, e);
	if (r == 0)
		r = pool_open(t->lib, &ret->pool, e);
	if (r < 0)
		creator_close(ret);
	return r;
}

void creator_close(struct creator *c)
{
	cgroup_close(c->cgroups);
	pool_close(&c->pool);
	create_drop_image(c);
	profile_done(&c->profile);
	memset(c, 0, sizeof(*c));
	c->pool = POOL_INIT;
}

/* The one used last, unless another is asked for or its names have moved. */
static int use_image(struct creator *c, const json_t *spec, struct err *e)
{
	const char *name = json_str(spec, "image");
	json_t *layers = json_object_get(spec, "layers");
	const struct image_where w = create_where(c);
	int r;

	if (!strcmp(c->image_name, name) &&
	    (c->image_layers ? json_equal(c->image_layers, layers)
			     : json_array_size(layers) == 0) &&
	    image_fresh(&c->image))
		return 0;
	create_drop_image(c);
	r = image_open(&w, name, layers, &c->image, e);
	if (r < 0)
		return r;
	snprintf(c->image_name, sizeof(c->image_name), "%s", name);
	if (json_array_size(layers) > 0)
		c->image_layers = json_incref(layers);
	return 0;
}

int creator_command(struct creator *c, json_t *spec, struct err *e)
{
	json_t *command = NULL;
	int r;

	if (json_object_get(spec, "command"))
		return 0;
	r = use_image(c, spec, e);
	if (r == 0)
		r = image_command(&c->image, &command, e);
	if (r < 0)
		return r;
	if (!command)
		return err_set(e, -EINVAL, "missing_field",
			       "'command' is missing, and the image '%s' names "
			       "none",
			       c->image_name);
	return json_object_set_new(spec, "command", command) < 0
		       ? err_sys(e, ENOMEM, "command")
		       : 0;
}

/*
 * The layers are claimed: what is not there yet, dsec-img brings, and nobody
 * takes away.  Its own words tell why it could not.
 */
#define MOUNT_MS   (10 * 60 * 1000)
#define ANSWER_MAX (64 * 1024)

static int last_line(int fd, json_t **ret_rec)
{
	auto_free char *text = NULL;
	char *line;
	size_t len;
	int r;

	if (lseek(fd, 0, SEEK_SET) < 0)
		return -errno;
	r = fd_read_all(fd, ANSWER_MAX, &text, &len, NULL);
	if (r < 0)
		return r;
	while (len > 0 && text[len - 1] == '\n')
		text[--len] = '\0';
	line = strrchr(text, '\n');
	line = line ? line + 1 : text;
	return json_parse(line, strlen(line), ret_rec, NULL);
}

static int late(struct err *e)
{
	return err_set(e, -ETIMEDOUT, "deadline",
		       "the layers were not mounted in time");
}

static int mount_layer(const struct digest *digest, unsigned timeout_ms,
		       struct err *e)
{
	char name[DIGEST_HEX + 8] = "sha256:", program[PATH_MAX];
	const char *const argv[] = {program, "mount", name, NULL};
	auto_json json_t *rec = NULL;
	auto_close int out = -1;
	int fds[] = {-1, -1, -1}, r, status;

	digest_hex(digest, name + strlen(name));
	r = proc_program("dsec-img", program, sizeof(program), e);
	if (r < 0)
		return r;
	out = memfd_create("answer", MFD_CLOEXEC);
	if (out < 0)
		return err_sys(e, errno, "memory for an answer");
	fds[1] = out;
	status = proc_run_fds(argv, fds, timeout_ms, e);
	if (status == -ETIMEDOUT)
		return late(e);
	if (status <= 0)
		return status;
	r = last_line(out, &rec) < 0 ? 0 : record_to_err(rec, e);
	if (r < 0)
		return err_wrap(e, r, "layer '%s'", name);
	return err_set(e, -EIO, "io", "layer '%s': %s ended with status %d",
		       name, program, status);
}

int create_bring_layers(struct creator *c, const json_t *spec, struct err *e)
{
	int64_t ms = json_int(spec, "deadline_ms", MOUNT_MS);
	const struct image_where w = create_where(c);
	const struct digest *missing;
	uint64_t until, now;
	int r;

	until = clock_ms() + (uint64_t)(ms > MOUNT_MS ? MOUNT_MS : ms);
	/* Each is brought once; then all are looked at together. */
	for (size_t i = 0; i <= c->image.nlayers; i++) {
		r = image_missing(&c->image, &w, &missing, e);
		if (r < 0 || !missing)
			return r;
		now = clock_ms();
		if (now >= until)
			return late(e);
		r = mount_layer(missing, (unsigned)(until - now), e);
		if (r < 0)
			return r;
	}
	return err_set(e, -EIO, "io", "layers that were mounted are not there");
}

int create_use_profile(struct creator *c, const char *name, struct err *e)
{
	if (!strcmp(c->profile.name, name))
		return 0;
	profile_done(&c->profile);
	memset(&c->profile, 0, sizeof(c->profile));
	return profile_load(name, &c->profile, e);
}

int creator_ready(struct creator *c, const json_t *spec, struct err *e)
{
	const struct image_where w = create_where(c);
	int r;

	create_drop_image(c);
	r = image_again(&w, spec, &c->image, e);
	if (r < 0 && e && !strcmp(e->code, "image_unknown"))
		e->code = "incompatible";
	if (r == 0)
		r = create_use_profile(c, json_str(spec, "profile"), e);
	if (r == 0 && c->image.digests)
		r = create_bring_layers(c, spec, e);
	return r;
}

static uint64_t cpu_milli(const json_t *spec)
{
	const json_t *cores = json_object_get(spec, "cpu_cores_limit");

	return (uint64_t)llround(json_number_value(cores) * 1000);
}

static int complete_spec(const struct creator *c, const struct created *m,
			 json_t *all, struct err *e)
{
	bool can = c->image.checkpointable && c->profile.checkpointable;
	const char *why = c->image.checkpointable ? "the profile"
						  : c->image.why_not;
	static const char *const request[] = {"id",	     "in", "key",
					      "deadline_ms", "rm", "wait"};
	auto_json json_t *more = NULL;
	int r;

	for (size_t i = 0; i < array_len(request); i++)
		json_object_del(all, request[i]);
	r = json_pack_or(&more, e,
			 "{s:i, s:s, s:i, s:I, s:I, s:I, s:b, s:s, s:O, s:s, "
			 "s:s}",
			 "v", 1, "sandbox", m->id, "generation", 1,
			 "created_ms", (json_int_t)clock_wall_ms(), "slot",
			 (json_int_t)m->claim.slot, "uid_base",
			 (json_int_t)m->claim.uid_base, "checkpointable", can,
			 "checkpointable_why", can ? "" : why, "image_env",
			 c->image.env, "image_cwd", c->image.cwd, "image_user",
			 c->image.user);
	if (r == 0 && json_object_update(all, more) < 0)
		r = err_sys(e, ENOMEM, "spec");
	if (r == 0 && c->image.digests &&
	    json_object_set(all, "image_layers", c->image.digests) < 0)
		r = err_sys(e, ENOMEM, "spec");
	return r;
}

static int write_spec(struct creator *c, const json_t *spec, struct created *m,
		      struct err *e)
{
	auto_json json_t *all = json_deep_copy(spec);
	int r;

	if (!all)
		return err_sys(e, ENOMEM, "spec");
	r = complete_spec(c, m, all, e);
	return r < 0 ? r : spec_write(c->tree, m->id, all, e);
}

/* A host name of its own resolves like the usual one does. */
int create_hosts(const struct creator *c, const json_t *spec,
		 const struct created *m, struct err *e)
{
	const char *name = json_str(spec, "hostname");
	auto_close int dir = -1;
	char path[PATH_MAX], text[256];
	int n, r;

	if (!*name)
		return 0;
	r = tree_path(path, e, "%s/sb/%s/upper/etc", c->tree->lib, m->id);
	if (r < 0)
		return r;
	r = mkdir(path, 0755) < 0 ? -errno : 0;
	if (r < 0 && r != -EEXIST)
		return err_sys(e, -r, "make '%s'", path);
	/* One that is there was made inside, and leads where it likes. */
	dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0 && r == -EEXIST)
		return 0;
	if (dir < 0 || (r == 0 && fchmod(dir, 0755) < 0))
		return err_sys(e, errno, "open '%s'", path);
	n = snprintf(text, sizeof(text),
		     "127.0.0.1 localhost\n::1 localhost ip6-localhost\n"
		     "127.0.1.1 %s\n",
		     name);
	r = fd_replace(dir, "hosts", text, (size_t)n, 0, e);
	if (r == 0 && fchmodat(dir, "hosts", 0644, 0) < 0)
		r = err_sys(e, errno, "mode of hosts");
	if (r == 0)
		r = fd_replace(dir, "hostname", name, strlen(name), 0, e);
	if (r == 0 && fchmodat(dir, "hostname", 0644, 0) < 0)
		r = err_sys(e, errno, "mode of hostname");
	return r;
}

/* Its address follows from its place among the sandboxes. */
static int put_slot(json_t *spec, const struct created *m, struct err *e)
{
	if (net_strength(spec) == NETPOL_NONE)
		return 0;
	return json_object_set_new(spec, "slot", json_integer(m->claim.slot)) <
			       0
		       ? err_sys(e, ENOMEM, "spec")
		       : 0;
}

/* The node listens before anything runs; dsec-box serves it. */
static int listen_outside(json_t *spec, struct created *m, struct err *e)
{
	json_t *words = json_object_get(spec, "publish"), *v;
	auto_json json_t *list = json_array();
	struct publish p;
	size_t i;
	int fd, r;

	if (json_array_size(words) == 0)
		return 0;
	r = publish_check(words, e);
	if (r < 0)
		return r;
	json_array_foreach(words, i, v) {
		r = publish_parse(json_string_value(v), &p, e);
		if (r == 0 && net_has_port(spec, p.inner))
			r = err_set(e, -EINVAL, "bad_value",
				    "'publish': port %u inside is the node's, "
				    "for the names of the network rules",
				    p.inner);
		fd = r < 0 ? r : publish_listen(&p, e);
		if (fd < 0)
			return fd;
		m->publish[m->npublish++] = fd;
		if (json_array_append_new(list, publish_json(&p)) < 0)
			return err_sys(e, ENOMEM, "publish");
	}
	return json_object_set(spec, "published", list) < 0
		       ? err_sys(e, ENOMEM, "publish")
		       : 0;
}

static void close_outside(struct created *m)
{
	while (m->npublish > 0)
		fd_close(m->publish[--m->npublish]);
}

int create_id(struct creator *c, struct created *m, struct err *e)
{
	if (!*c->next_id)
		return tree_new_id(c->tree, m->id, e);
	memcpy(m->id, c->next_id, sizeof(m->id));
	c->next_id[0] = '\0';
	return 0;
}

/* Everything of a sandbox that is not a process. */
static int prepare(struct creator *c, json_t *spec, bool supervised,
		   struct created *m, struct err *e)
{
	struct claim_want want = {
		.id = m->id,
		.spec = spec,
		.kind = supervised ? "supervised" : "one-shot",
		.bury = teardown_bury,
		.bury_arg = c->cgroups,
	};
	struct cgroup_limits lim;
	uint64_t disk = (uint64_t)json_int(spec, "disk_limit_mb", 0) << 20;
	int r;

	r = use_image(c, spec, e);
	if (r == 0)
		r = create_use_profile(c, json_str(spec, "profile"), e);
	if (r == 0)
		r = net_plan(c->tree, spec, e);
	m->network = net_strength(spec) != NETPOL_NONE;
	if (r == 0)
		r = create_id(c, m, e);
	want.layers = c->image.digests;
	if (r == 0)
		r = claim_take(c->tree, &want, &m->claim, e);
	if (r == 0 && want.layers)
		r = create_bring_layers(c, spec, e);
	if (r < 0)
		return r;
	r = pool_make(&c->pool, m->id, disk, e);
	lim = reapply_first(spec);
	if (r == 0)
		r = cgroup_make(c->cgroups, m->id, &lim, e);
	if (r == 0)
		r = create_hosts(c, spec, m, e);
	if (r == 0)
		r = put_slot(spec, m, e);
	if (r == 0 && supervised)
		r = listen_outside(spec, m, e);
	/* The network of a one-shot is put in place again from it too. */
	if (r == 0 && (supervised || m->network))
		r = write_spec(c, spec, m, e);
	return r;
}

static struct launch launch_of(const struct creator *c, const json_t *spec,
			       const struct created *m)
{
	return (struct launch){
		.tree = c->tree,
		.id = m->id,
		.spec = spec,
		.image = &c->image,
		.profile = &c->profile,
		.cgroups = c->cgroups,
		.pool = &c->pool,
		.uid_base = m->claim.uid_base,
	};
}

/*
 * The claim goes when all else is gone (${r}).  One that stays is left
 * unlocked, so that a sweep finds it and does the rest.
 */
static int let_go(const struct creator *c, struct created *m, int r,
		  struct err *e)
{
	if (r == 0)
		r = claim_release(c->tree, m->id, &m->claim.fd, e);
	if (m->claim.fd >= 0)
		fd_close(steal_fd(&m->claim.fd));
	return r;
}

/* Undo what a failed creation left; what failed first is what is told. */
void create_undo(const struct creator *c, struct created *m)
{
	close_outside(m);
	if (m->claim.fd < 0)
		return;
	(void)let_go(c, m, teardown(c->tree, c->cgroups, m->id, NULL, NULL),
		     NULL);
}

int create_one_shot(struct creator *c, json_t *spec, struct become *command,
		    struct created *ret, struct err *e)
{
	struct launch l;
	int r;

	*ret = (struct created){.claim.fd = -1};
	if (json_array_size(json_object_get(spec, "publish")) > 0)
		return err_set(e, -EOPNOTSUPP, "unsupported",
			       "'publish': a one-shot has no supervisor to "
			       "listen: leave --rm out");
	r = prepare(c, spec, false, ret, e);
	if (r < 0)
		goto err;
	if (!command->cwd || !*command->cwd) {
		command->cwd = c->image.cwd;
		command->cwd_default = true;
	}
	cpus_pick(ret->claim.slot, cpu_milli(spec), &command->cpus);
	l = launch_of(c, spec, ret);
	l.command = command;
	r = launch_start(&l, &ret->run, e);
	if (r == 0)
		return 0;
err:
	create_undo(c, ret);
	return r;
}

int create_end(struct creator *c, struct created *m, struct err *e)
{
	launch_end(&m->run);
	fd_close(m->run.pidfd);
	fd_close(m->run.report);
	if (m->run.command_pidfd >= 0)
		fd_close(m->run.command_pidfd);
	if (m->network)
		net_detach(c->tree, m->id);
	return let_go(c, m, teardown_layer(c->tree, c->cgroups, m->id, e), e);
}

/*
 * The supervisor's process: it shares our memory while we are suspended,
 * launches the sandbox, so that pid 1 is its child, and becomes dsec-box.
 */
#define BOX_STACK (128 * 1024)
static _Alignas(16) char box_stack[BOX_STACK];

struct starter {
	struct creator *c;
	const json_t *spec;
	const char *follow;
	struct created *m;
	struct err *e;
	struct cgroup_join join;
	char path[PATH_MAX]; /* of dsec-box */
	int r;
};

/* Descriptors as dsec-box expects them: see its main.c. */
#define BOX_FDS_MAX (8 + PUBLISH_MAX)

int create_box_fds(const int *from, size_t n, struct err *e)
{
	int to[BOX_FDS_MAX], null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		return err_sys(e, errno, "open /dev/null");
	for (size_t i = 0; i < n; i++) {
		to[i] = from[i] < 0 ? -1
				    : fcntl(from[i], F_DUPFD_CLOEXEC,
					    3 + BOX_FDS_MAX);
		if (to[i] < 0 && from[i] >= 0)
			return err_sys(e, errno, "supervisor's descriptors");
	}
	for (int i = 0; i < 3; i++)
		if (dup2(null, i) < 0)
			return err_sys(e, errno, "supervisor's descriptors");
	for (size_t i = 0; i < n; i++)
		if (to[i] < 0)
			(void)close(3 + (int)i); /* whatever it was */
		else if (dup2(to[i], 3 + (int)i) < 0)
			return err_sys(e, errno, "supervisor's descriptors");
	if (syscall(SYS_close_range, 3 + (unsigned)n, ~0U, 0) < 0)
		return err_sys(e, errno, "supervisor's descriptors");
	return 0;
}

int create_listen(const struct creator *c, const char *id, struct err *e)
{
	char sock[PATH_MAX];
	int r;

	r = tree_path(sock, e, "%s/sb/%s/ctl.sock", c->tree->run, id);
	return r < 0 ? r : fd_unix_listen(sock, e);
}

static int become_box(struct starter *s, const struct launched *run)
{
	const char *argv[] = {"dsec-box", s->m->id, NULL, NULL, NULL};
	int fds[4 + PUBLISH_MAX] = {s->m->claim.fd, -1, run->report,
				    run->pidfd};
	char count[16];
	int r;

	fds[1] = create_listen(s->c, s->m->id, s->e);
	if (fds[1] < 0)
		return fds[1];
	memcpy(fds + 4, s->m->publish, sizeof(s->m->publish));
	if (s->m->npublish > 0) {
		snprintf(count, sizeof(count), "%u", s->m->npublish);
		argv[2] = "--publish";
		argv[3] = count;
	}
	r = create_box_fds(fds, 4 + s->m->npublish, s->e);
	if (r < 0)
		return r;
	setsid();
	if (chdir("/") < 0)
		return err_sys(s->e, errno, "chdir /");
	sig_reset();
	s->r = 0; /* unless we come back */
	execve(s->path, (char *const *)(uintptr_t)argv, environ);
	return err_sys(s->e, errno, "execute '%s'", s->path);
}

static int starter_main(void *arg)
{
	struct starter *s = arg;
	struct launch l = launch_of(s->c, s->spec, s->m);
	struct launched run;

	l.follow = s->follow;
	s->r = cgroup_leaf_join(&s->join);
	if (s->r < 0) {
		err_sys(s->e, -s->r, "join the supervisors' cgroup");
		return 1;
	}
	s->r = launch_start(&l, &run, s->e);
	if (s->r < 0)
		return 1;
	s->r = -ECHILD; /* until it is another program */
	s->r = become_box(s, &run);
	launch_end(&run);
	return 1;
}

static int start_box(struct starter *s)
{
	struct clone_child child = {
		.flags = CLONE_VFORK,
		.exit_signal = SIGCHLD,
		.into_cgroup = -1,
		.stack = box_stack,
		.stack_size = sizeof(box_stack),
	};
	pid_t pid;
	int r;

	r = proc_libexec("dsec-box", s->path, sizeof(s->path), s->e);
	if (r == 0)
		r = cgroup_supervisor_prepare(s->c->cgroups, &s->join, s->e);
	if (r < 0)
		return r;
	child.into_cgroup = s->join.into;
	pid = clone_child(&child, starter_main, s);
	cgroup_join_done(&s->join);
	if (pid < 0)
		return err_sys(s->e, -pid, "start the supervisor");
	if (s->r < 0)
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
	return s->r;
}

int create_box(struct creator *c, const json_t *spec, const char *follow,
	       struct created *m, struct err *e)
{
	struct starter s = {.c = c,
			    .spec = spec,
			    .follow = follow,
			    .m = m,
			    .e = e};
	int r;

	/* What a child that was killed on the way leaves. */
	s.r = err_set(e, -ECHILD, "system",
		      "the supervisor was killed while the sandbox was made");
	r = start_box(&s);
	if (r == 0 && e)
		*e = (struct err){0};
	return r;
}

int create_supervised(struct creator *c, json_t *spec, struct created *ret,
		      struct err *e)
{
	int r;

	*ret = (struct created){.claim.fd = -1};
	r = prepare(c, spec, true, ret, e);
	if (r == 0)
		r = create_box(c, spec, NULL, ret, e);
	if (r < 0) {
		create_undo(c, ret);
		return r;
	}
	/* dsec-box holds the claim now, and serves the ports. */
	fd_close(steal_fd(&ret->claim.fd));
	close_outside(ret);
	return 0;
}
