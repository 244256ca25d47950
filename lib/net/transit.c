/* SPDX-License-Identifier: Apache-2.0 */
#include "net/transit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "net/transit_priv.h"
#include "sys/netns.h"

static char *path_of(const char *run, const char *name)
{
	char *path;

	return asprintf(&path, "%s/net%s", run, name) < 0 ? NULL : path;
}

char *transit_path(const char *run)
{
	return path_of(run, "/transit");
}

int transit_open(const char *run, struct err *e)
{
	auto_free char *path = transit_path(run);

	if (!path)
		return err_sys(e, ENOMEM, "transit");
	return netns_at(path, e);
}

/* One maker at a time; the lock is the descriptor. */
static int lock(const char *run, struct err *e)
{
	auto_free char *dir = path_of(run, "");
	auto_free char *path = path_of(run, "/transit.lock");
	auto_close int fd = -1;
	int r;

	if (!dir || !path)
		return err_sys(e, ENOMEM, "transit");
	r = fd_mkdir_p(dir, 0755, e);
	if (r < 0)
		return r;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_sys(e, errno, "open %s", path);
	while (flock(fd, LOCK_EX) < 0)
		if (errno != EINTR)
			return err_sys(e, errno, "lock %s", path);
	return steal_fd(&fd);
}

static int check_owner(int netns, uint32_t uid, struct err *e)
{
	auto_close int user = ioctl(netns, NS_GET_USERNS);
	uid_t owner;

	if (user < 0 || ioctl(user, NS_GET_OWNER_UID, &owner) < 0)
		return err_sys(e, errno, "owner of the transit namespace");
	if (owner != uid)
		return err_set(e, -EPERM, "configuration",
			       "the transit namespace belongs to uid %u, not "
			       "to %u: dsec-doctor --fix takes it away once "
			       "no sandbox uses it",
			       owner, uid);
	return 0;
}

/*
 * In the child, by system calls of this thread alone: libc would change every
 * thread's ids.  The owner of a user namespace is the effective uid of its
 * maker.
 */
static void become_maker(const int *pipes, uint32_t uid, uint32_t gid)
{
	char c = 0;

	if (syscall(SYS_setresgid, -1, gid, -1) < 0 ||
	    syscall(SYS_setresuid, -1, uid, -1) < 0 ||
	    unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
		_exit(errno & 0x7f);
	if (write(pipes[1], &c, 1) != 1)
		_exit(EPIPE);
	/* Until the parent has it, or has died. */
	if (read(pipes[2], &c, 1) < 0)
		_exit(EIO);
	_exit(0);
}

static int wait_maker(pid_t pid, struct err *e)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return err_sys(e, errno, "wait for a child");
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return err_sys(e, WIFEXITED(status) ? WEXITSTATUS(status) : EIO,
			       "make a user and a network namespace");
	return 0;
}

static int make_netns(uint32_t uid, uint32_t gid, struct err *e)
{
	auto_close int up_r = -1;
	auto_close int up_w = -1;
	auto_close int down_r = -1;
	auto_close int down_w = -1;
	int up[2], down[2], fd = -1, r;
	char c;
	pid_t pid;

	if (pipe2(up, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	up_r = up[0];
	up_w = up[1];
	if (pipe2(down, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	down_r = down[0];
	down_w = down[1];
	pid = fork();
	if (pid < 0)
		return err_sys(e, errno, "fork");
	if (!pid) {
		close(down_w);
		become_maker((int[]){up_r, up_w, down_r}, uid, gid);
	}
	fd_close(steal_fd(&up_w));
	if (read(up_r, &c, 1) == 1)
		fd = netns_of(pid, e);
	fd_close(steal_fd(&down_w));
	r = wait_maker(pid, fd < 0 ? e : NULL);
	if (fd < 0)
		return r < 0 ? r : fd;
	return fd;
}

#define TEXT_OF(n) #n
#define TEXT(n)	   TEXT_OF(n)

/*
 * Who sends what is checked by the rules (net/route.h), which count it too;
 * a check of the kernel's own before them would hide it.  No address on an
 * interface that has none of ours: its neighbour discovery would be noise.
 */
static int set_sysctls(int netns, struct err *e)
{
	static const char *const set[][2] = {
		{"ipv4/conf/all/rp_filter", "0"},
		{"ipv4/conf/default/rp_filter", "0"},
		{"ipv4/conf/all/accept_source_route", "0"},
		{"ipv4/conf/all/accept_redirects", "0"},
		{"ipv4/conf/default/accept_redirects", "0"},
		{"ipv4/conf/all/send_redirects", "0"},
		{"ipv4/conf/default/send_redirects", "0"},
		{"ipv4/conf/all/arp_ignore", "0"},
		{"ipv4/conf/all/proxy_arp", "0"},
		{"ipv4/conf/all/route_localnet", "0"},
		/* Destination unreachable, every time: who is refused is
		 * told, and none but they hear it. */
		{"ipv4/icmp_ratemask", "6160"},
		/* A question without an answer is not remembered for long. */
		{"netfilter/nf_conntrack_udp_timeout", TEXT(TRANSIT_UDP_S)},
		/* Nor a connection that has ended: the rules cannot count
		 * those. */
		{"netfilter/nf_conntrack_tcp_timeout_time_wait", "10"},
		{"ipv4/ip_forward", "1"},
		{"ipv6/conf/all/accept_ra", "0"},
		{"ipv6/conf/default/accept_ra", "0"},
		{"ipv6/conf/default/addr_gen_mode", "1"},
		{"ipv6/conf/all/forwarding", "1"},
	};
	int r;

	for (size_t i = 0; i < array_len(set); i++) {
		r = netns_sysctl(netns, set[i][0], set[i][1], e);
		if (r == -ENOENT && strncmp(set[i][0], "ipv4/", 5) != 0)
			continue; /* a kernel without */
		if (r < 0)
			return err_wrap(e, r, "transit");
	}
	return 0;
}

/*
 * Without an uplink the default route leads to lo, never to be reached: a
 * packet without a route would be dropped before the rules see and count it.
 */
static int set_up(int netns, struct err *e)
{
	struct rtnl_addr gateway = {.family = AF_INET, .prefix = 32};
	struct rtnl_route none = {.kind = RTNL_UNICAST,
				  .link = true,
				  .metric = TRANSIT_METRIC_NONE};
	auto_rtnl struct rtnl nl = {.fd = -1};
	int r, lo;

	r = set_sysctls(netns, e);
	if (r < 0)
		return r;
	r = rtnl_open(netns, &nl, e);
	if (r < 0)
		return r;
	lo = rtnl_index(&nl, "lo", e);
	if (lo < 0)
		return lo;
	r = rtnl_link_up(&nl, lo, e);
	if (r < 0)
		return r;
	gateway.index = none.index = lo;
	transit_bytes(TRANSIT_GATEWAY, gateway.addr);
	r = rtnl_addr_add(&nl, &gateway, e);
	if (r < 0)
		return r;
	none.family = AF_INET;
	r = rtnl_route_add(&nl, &none, e);
	if (r < 0)
		return r;
	none.family = AF_INET6;
	(void)rtnl_route_add(&nl, &none, NULL);
	return 0;
}

static int keep(const char *path, int netns, struct err *e)
{
	auto_close int fd = -1;
	char from[64];

	fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_sys(e, errno, "create %s", path);
	snprintf(from, sizeof(from), "/proc/self/fd/%d", netns);
	if (mount(from, path, NULL, MS_BIND, NULL) < 0)
		return err_sys(e, errno, "keep the transit namespace at %s",
			       path);
	return 0;
}

int transit_make(const char *run, uint32_t uid, uint32_t gid, struct err *e)
{
	auto_free char *path = transit_path(run);
	auto_close int held = lock(run, e);
	auto_close int netns = -1;
	int r;

	if (held < 0)
		return held;
	if (!path)
		return err_sys(e, ENOMEM, "transit");
	netns = netns_at(path, NULL);
	if (netns >= 0) {
		r = check_owner(netns, uid, e);
		return r < 0 ? r : steal_fd(&netns);
	}
	netns = make_netns(uid, gid, e);
	if (netns < 0)
		return netns;
	r = set_up(netns, e);
	if (r < 0)
		return r;
	r = keep(path, netns, e);
	return r < 0 ? r : steal_fd(&netns);
}

static int drop_links(int netns, struct err *e)
{
	auto_rtnl struct rtnl nl = {.fd = -1};
	int r;

	r = rtnl_open(netns, &nl, e);
	if (r < 0)
		return r;
	r = rtnl_group_del(&nl, TRANSIT_GROUP, e);
	if (r < 0)
		return r;
	r = rtnl_link_del(&nl, TRANSIT_UPLINK, e);
	return r == -ENODEV ? 0 : r;
}

int transit_drop(const char *run, struct err *e)
{
	auto_free char *path = transit_path(run);
	auto_free char *dir = path_of(run, "");
	auto_close int held = -1;
	auto_close int netns = -1;
	int r;

	if (!path || !dir)
		return err_sys(e, ENOMEM, "transit");
	if (access(dir, F_OK) < 0 && errno == ENOENT)
		return 0;
	held = lock(run, e);
	if (held < 0)
		return held;
	netns = netns_at(path, NULL);
	if (netns >= 0) {
		r = drop_links(netns, e);
		if (r < 0)
			return r;
		if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) < 0)
			return err_sys(e, errno, "unmount %s", path);
	}
	if (unlink(path) < 0 && errno != ENOENT)
		return err_sys(e, errno, "remove %s", path);
	return 0;
}
