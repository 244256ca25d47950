/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The staging child: from the host's namespaces to pid 1 of a sandbox.
 *
 * All mounts are made while it is still host root, in a private mount
 * namespace.  Only then does it join the sandbox's user namespace and take the
 * rest of the namespaces, the mount namespace once more: so every mount is
 * locked, and no capability inside can undo a mask.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/securebits.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "box/init_report.h"
#include "box/node.h"
#include "box/stage.h"
#include "sys/clone.h"
#include "sys/mount.h"

/* clang-format off */
/* Files of /proc that tell about the host or can hurt it: read as empty. */
static const char *const hidden_files[] = {
	"proc/cmdline", "proc/config.gz", "proc/interrupts", "proc/kallsyms",
	"proc/kcore", "proc/key-users", "proc/keys", "proc/kmsg",
	"proc/kpagecgroup", "proc/kpagecount", "proc/kpageflags",
	"proc/latency_stats", "proc/modules", "proc/pagetypeinfo",
	"proc/sched_debug", "proc/slabinfo", "proc/timer_list",
	"proc/vmallocinfo",
};
static const char *const hidden_dirs[] = {
	"proc/acpi", "proc/asound", "proc/bus", "proc/driver", "proc/fs",
	"proc/irq", "proc/pressure", "proc/scsi",
};
static const char *const read_only[] = {
	"proc/sys", "proc/sysrq-trigger",
};
/* clang-format on */

static bool ok(struct stage *st, const char *what, int r)
{
	if (r >= 0)
		return true;
	st->what = what;
	st->r = r;
	return false;
}

static int sys(long r)
{
	return r < 0 ? -errno : (int)r;
}

/* A mount over itself, with the sandbox's ids. */
static struct mount_copy over_itself(const struct stage *st, const char *path)
{
	return (struct mount_copy){
		.source = path,
		.userns = st->userns,
		.target_fd = AT_FDCWD,
		.target = path,
	};
}

/* Copies of mounts that DSEC_LIB's would cover; -1: there is none. */
struct copies {
	int pool, layer[STAGE_LAYERS_MAX];
};

static int take_copies(struct stage *st, struct copies *c)
{
	const struct image *img = st->l->image;
	struct mount_copy m = over_itself(st, st->pool);

	if (st->pool[0]) {
		c->pool = mount_copy_take(&m);
		if (!ok(st, "map the ids of the pool", c->pool))
			return st->r;
	}
	for (size_t i = 0; i < img->nlayers; i++) {
		m = over_itself(st, img->layers[i].path);
		if (!img->layers[i].mounted)
			continue;
		c->layer[i] = mount_copy_take(&m);
		if (c->layer[i] == -ENOENT)
			c->layer[i] = -ESTALE;
		if (!ok(st, "map the ids of a layer", c->layer[i]) ||
		    !ok(st, "a layer was unmounted",
			mount_is_erofs(c->layer[i])))
			return st->r;
	}
	return 0;
}

static int put_copies(struct stage *st, const struct copies *c)
{
	const struct image *img = st->l->image;
	struct mount_copy m = over_itself(st, st->pool);

	if (c->pool >= 0 &&
	    !ok(st, "mount the pool", mount_copy_put(&m, c->pool)))
		return st->r;
	for (size_t i = 0; i < img->nlayers; i++) {
		m = over_itself(st, img->layers[i].path);
		if (c->layer[i] >= 0 &&
		    !ok(st, "mount a layer", mount_copy_put(&m, c->layer[i])))
			return st->r;
	}
	return 0;
}

/*
 * With MOUNT_ATTR_IDMAP the files of DSEC_LIB have the sandbox's ids, and those
 * of the pool and of layers, which are mounts of their own and may be below it:
 * their copies are taken before the other one covers them.
 */
static int map_lib(struct stage *st)
{
	const struct mount_copy lib = over_itself(st, st->l->tree->lib);
	struct copies c = {.pool = -1};
	int r;

	for (size_t i = 0; i < STAGE_LAYERS_MAX; i++)
		c.layer[i] = -1;
	r = take_copies(st, &c);
	if (r == 0 && !ok(st, STAGE_MAP_LIB, mount_idmapped(&lib)))
		r = st->r;
	if (r == 0)
		r = put_copies(st, &c);
	/* Descriptors are our parent's too. */
	if (c.pool >= 0)
		close(c.pool);
	for (size_t i = 0; i < STAGE_LAYERS_MAX; i++)
		if (c.layer[i] >= 0)
			close(c.layer[i]);
	return r;
}

/*
 * overlay acts for whoever mounted it.  On layers whose ids are mapped the
 * host's root is nobody, so the mounter's file system uid is that of the
 * sandbox's root; its capabilities stay.
 */
static int act_as_inner_root(const struct stage *st)
{
	uid_t base = st->l->uid_base;

	if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) < 0)
		return -errno;
	setfsgid(base);
	setfsuid(base);
	return 0;
}

int stage_root(struct stage *st)
{
	if (!ok(st, "take the sandbox's uid", act_as_inner_root(st)) ||
	    !ok(st, "private mounts",
		mount_fs(NULL, "/", MS_REC | MS_PRIVATE, NULL)) ||
	    map_lib(st) < 0 ||
	    !ok(st, "mount the root (overlay)",
		mount_fs("overlay", st->root, MS_NOSUID | MS_NODEV,
			 st->overlay)) ||
	    !ok(st, "enter the root", sys(chdir(st->root))))
		return st->r;
	return 0;
}

/* What images need not have and programs count on. */
static int complete_root(struct stage *st)
{
	int r;

	if (!st->l->image->digests)
		return 0;
	if (mkdir("tmp", 01777) == 0)
		chmod("tmp", 01777);
	mkdir("sys", 0555);
	if (!st->cwd[0])
		return 0;
	r = mount_make_dir(AT_FDCWD, st->cwd);
	st->cwd_made = r == 1;
	/* Something else may be there: who asks for it will be told. */
	return 0;
}

/* Mount on a directory of the image, which may be anything: through no link. */
static int on_target(const char *path, const char *source, const char *type,
		     unsigned long flags, const char *data)
{
	char name[32];
	int fd, r;

	fd = mount_target_made(AT_FDCWD, path);
	if (fd < 0)
		return fd;
	mount_on_fd(name, fd);
	r = type ? mount_fs(type, name, flags, data) : mount_bind(source, name);
	close(fd);
	return r;
}

static int hide(void)
{
	int r;

	for (size_t i = 0; i < array_len(hidden_files); i++) {
		r = mount_bind("dev/null", hidden_files[i]);
		if (r < 0 && r != -ENOENT)
			return r;
	}
	for (size_t i = 0; i < array_len(hidden_dirs); i++) {
		r = mount_bind(NODE_EMPTY, hidden_dirs[i]);
		if (r < 0 && r != -ENOENT)
			return r;
	}
	for (size_t i = 0; i < array_len(read_only); i++) {
		r = mount_bind_ro(read_only[i]);
		if (r < 0 && r != -ENOENT)
			return r;
	}
	return 0;
}

/* Ports below 1024 for everybody, where no capability inside can allow it. */
static int open_low_ports(void)
{
	int fd, r = 0;

	fd = open("proc/sys/net/ipv4/ip_unprivileged_port_start",
		  O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (write(fd, "0", 1) != 1)
		r = -errno;
	close(fd);
	return r;
}

static int mount_kernel_fs(struct stage *st)
{
	if (!ok(st, "mount /proc",
		on_target("proc", NULL, "proc",
			  MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL)) ||
	    !ok(st, "mount /dev", on_target("dev", st->dev, NULL, 0, NULL)) ||
	    !ok(st, "mount /dev/pts",
		mount_fs("devpts", "dev/pts", MS_NOSUID | MS_NOEXEC,
			 st->devpts)) ||
	    !ok(st, "mount /dev/shm",
		mount_fs("tmpfs", "dev/shm", MS_NOSUID | MS_NODEV, st->shm)) ||
	    (st->l->profile->sealed &&
	     !ok(st, "open low ports", open_low_ports())) ||
	    !ok(st, "mask /proc", hide()))
		return st->r;
	return 0;
}

/* A directory of the host, read-only; with the sandbox's ids where its file
 * system can do that, else everything belongs to nobody. */
static int mount_host_dir(struct stage *st, const char *source,
			  const char *target)
{
	struct mount_copy m = {
		.source = source,
		.userns = st->userns,
		.attrs = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID |
			 MOUNT_ATTR_NODEV,
		.recursive = true,
		.target = "",
	};
	int r;

	m.target_fd = mount_target_made(AT_FDCWD, target);
	if (m.target_fd < 0)
		return m.target_fd;
	r = mount_idmapped(&m);
	if (r == -EINVAL || r == -EPERM) {
		m.userns = -1;
		r = mount_idmapped(&m);
	}
	close(m.target_fd);
	return r;
}

/* What was allowed by its name is mounted by that name, links excluded. */
int stage_host_dir(struct stage *st, const char *source, const char *target)
{
	char name[32];
	int fd, r;

	fd = mount_source(source);
	if (fd < 0)
		return fd;
	r = mount_host_dir(st, mount_on_fd(name, fd), target);
	close(fd);
	return r;
}

static int mount_host_dirs(struct stage *st)
{
	const char *const *b = st->l->image->binds;

	for (; *b; b++)
		if (!ok(st, *b, mount_host_dir(st, *b, *b + 1)))
			return st->r;
	for (unsigned i = 0; i < st->nmounts; i++)
		if (!ok(st, st->mounts[i].target,
			stage_host_dir(st, st->mounts[i].source,
				       st->mounts[i].target + 1)))
			return st->r;
	return 0;
}

static int raise_lo(void)
{
	struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	int fd, r;

	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	r = sys(ioctl(fd, SIOCSIFFLAGS, &ifr));
	close(fd);
	return r;
}

static int join_user(struct stage *st)
{
	if (!ok(st, "join the user namespace",
		sys(setns(st->userns, CLONE_NEWUSER))) ||
	    !ok(st, "become root inside",
		sys(syscall(SYS_setgroups, 0, NULL))) ||
	    !ok(st, "become root inside",
		sys(syscall(SYS_setresgid, 0, 0, 0))) ||
	    !ok(st, "become root inside", sys(syscall(SYS_setresuid, 0, 0, 0))))
		return st->r;
	return 0;
}

/* While we may: the network is ours to set up until pid 1 is confined. */
static bool set_up_net(struct stage *st)
{
	int r = st->net ? net_inside(st->net) : 0;

	return ok(st, r < 0 ? st->net->what : "", r);
}

static int take_namespaces(struct stage *st)
{
	int flags = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS |
		    CLONE_NEWCGROUP;
	bool sealed = st->l->profile->sealed;

	/* sealed took net, ipc and uts before: see stage_main(). */
	if (sealed)
		flags = CLONE_NEWCGROUP;
	else if (join_user(st) < 0)
		return st->r;
	if (!ok(st, "make namespaces", sys(unshare(flags))) ||
	    !ok(st, "bring lo up", raise_lo()) || !set_up_net(st) ||
	    !ok(st, "set the host name",
		sys(sethostname(st->hostname, strlen(st->hostname)))))
		return st->r;
	return sealed ? join_user(st) : 0;
}

static int command_main(void *arg)
{
	struct stage *st = arg;

	clone_wait(&st->go, 0);
	if (st->go == 1)
		become(st->l->command);
	return 1;
}

/* The command exists before pid 1's program does, so that nothing has to be
 * told to pid 1; it waits until pid 1 is dsec-init and cannot be read. */
static int start_command(struct stage *st)
{
	struct clone_child c = {
		.exit_signal = SIGCHLD,
		.into_cgroup = -1,
		.plain = true,
		.pidfd = &st->command_pidfd,
		.clear_tid = &st->command_tid,
		.stack = st->command_stack,
		.stack_size = st->command_stack_size,
	};
	pid_t pid;

	st->command_tid = 1;
	pid = clone_child(&c, command_main, st);
	if (pid < 0)
		return pid;
	st->command = pid;
	return 0;
}

/* From here on who launches us takes us along; who is dead does not any more.
 * Its end of the report pipe does not tell: the command has a copy. */
static int end_with_parent(const struct stage *st)
{
	struct pollfd p = {.fd = st->parent, .events = POLLIN};

	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || poll(&p, 1, 0) < 0)
		return -errno;
	return p.revents ? -ESRCH : 0;
}

/* Only the report pipe stays, and nobody's terminal. */
static int keep_report_only(struct stage *st)
{
	if (unshare(CLONE_FILES) < 0)
		return -errno;
	if (st->report_w != INIT_REPORT_FD &&
	    dup2(st->report_w, INIT_REPORT_FD) < 0)
		return -errno;
	if (st->report_w == INIT_REPORT_FD &&
	    fcntl(INIT_REPORT_FD, F_SETFD, 0) < 0)
		return -errno;
	if (syscall(SYS_close_range, 0, INIT_REPORT_FD - 1, 0) < 0 ||
	    syscall(SYS_close_range, INIT_REPORT_FD + 1, ~0U, 0) < 0 ||
	    setsid() < 0)
		return -errno;
	return 0;
}

static void exec_init(struct stage *st)
{
	static const char *const argv[] = {"dsec-init", NULL};
	static const char *const envp[] = {NULL};

	/* Confined here, the command need not be again: it inherits. */
	if (!ok(st, "confine pid 1", profile_apply_init(st->l->profile)) ||
	    (st->l->command && !ok(st, "start the command", start_command(st))))
		return;
	if (ok(st, "end with who launches it", end_with_parent(st)) &&
	    ok(st, "set up pid 1", keep_report_only(st))) {
		st->r = 0;
		execve(NODE_INIT, (char *const *)(uintptr_t)argv,
		       (char *const *)(uintptr_t)envp);
		ok(st, "execute pid 1", -errno);
	}
}

int stage_main(void *arg)
{
	struct stage *st = arg;
	int early = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;

	if (!ok(st, "join the cgroup", cgroup_leaf_join(&st->join)) ||
	    (st->l->profile->sealed &&
	     !ok(st, "make namespaces", sys(unshare(early)))) ||
	    stage_root(st) < 0 || complete_root(st) < 0 ||
	    mount_kernel_fs(st) < 0 || mount_host_dirs(st) < 0 ||
	    !ok(st, "pivot to the root", mount_pivot()) ||
	    take_namespaces(st) < 0)
		return 1;
	exec_init(st);
	return 1;
}
