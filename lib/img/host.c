/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/proc.h"
#include "img/host.h"

/* clang-format off */
/* What programs of /usr look for in /etc.  Nothing here is a secret, and
 * nothing tells who this machine is or whom it talks to. */
static const char *const etc_parts[] = {
	"alternatives", "bash.bashrc", "ca-certificates.conf",
	"debian_version", "environment.d", "ethertypes", "fonts", "gai.conf",
	"host.conf", "inputrc", "java-11-openjdk", "java-17-openjdk",
	"java-21-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	"locale.alias", "localtime", "login.defs", "lsb-release", "magic",
	"mime.types", "networks", "os-release", "perl", "profile", "protocols",
	"python3", "python3.10", "python3.11", "python3.12", "python3.13",
	"rpc", "services", "ssl/certs", "ssl/openssl.cnf", "terminfo",
	"timezone", "xattr.conf",
};

static const struct {
	const char *path;
	mode_t mode;
	uid_t uid;
} dirs[] = {
	{"usr", 0755, 0}, {"proc", 0555, 0}, {"dev", 0755, 0},
	{"sys", 0555, 0}, {"tmp", 01777, 0}, {"run", 0755, 0},
	{"run/lock", 01777, 0}, {"root", 0700, 0}, {"home", 0755, 0},
	{"home/user", 0755, 1000}, {"srv", 0755, 0}, {"opt", 0755, 0},
	{"mnt", 0755, 0}, {"media", 0755, 0}, {"etc", 0755, 0},
	{"etc/ssl", 0755, 0}, {"var", 0755, 0}, {"var/tmp", 01777, 0},
	{"var/log", 0755, 0}, {"var/lib", 0755, 0}, {"var/cache", 0755, 0},
	{"var/spool", 0755, 0}, {"var/mail", 0755, 0}, {"work", 0777, 0},
};

static const struct {
	const char *path, *text;
} files[] = {
	{"etc/passwd",
	 "root:x:0:0:root:/root:/bin/sh\n"
	 "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
	 "bin:x:2:2:bin:/bin:/usr/sbin/nologin\n"
	 "sys:x:3:3:sys:/dev:/usr/sbin/nologin\n"
	 "www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\n"
	 "user:x:1000:1000:user:/home/user:/bin/sh\n"
	 "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"},
	{"etc/group",
	 "root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\nadm:x:4:\ntty:x:5:\n"
	 "www-data:x:33:\nstaff:x:50:\nusers:x:100:\nuser:x:1000:\n"
	 "nogroup:x:65534:\n"},
	{"etc/nsswitch.conf",
	 "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n"
	 "networks: files\nprotocols: files\nservices: files\n"},
	{"etc/shells", "/bin/sh\n/bin/bash\n"},
}, names[] = {
	{"etc/hosts",
	 "127.0.0.1 localhost\n::1 localhost ip6-localhost\n"
	 "127.0.1.1 sandbox\n"},
	{"etc/hostname", "sandbox\n"},
	/* The same in every sandbox, so that what its policy lets it reach may
	 * change: where there is no network, asking fails at once. */
	{"etc/resolv.conf", "nameserver 198.18.0.1\n"},
};
/* clang-format on */

/* /bin and its like: links into /usr, as the host has them. */
static const char *const links[] = {"bin",   "sbin",  "lib",
				    "lib32", "lib64", "libx32"};

static int put_links(int root, struct err *e)
{
	char path[64], target[256];
	ssize_t n;

	for (size_t i = 0; i < array_len(links); i++) {
		snprintf(path, sizeof(path), "/%s", links[i]);
		n = readlink(path, target, sizeof(target) - 1);
		if (n < 0 && errno == ENOENT)
			continue;
		if (n < 0)
			return err_set(e, -EINVAL, "configuration",
				       "/%s is no link into /usr: the image "
				       "host needs a merged /usr",
				       links[i]);
		target[n] = '\0';
		if (symlinkat(target, root, links[i]) < 0)
			return err_sys(e, errno, "link %s", links[i]);
	}
	return 0;
}

static int put_file(int root, const char *path, const char *text, struct err *e)
{
	auto_close int fd = -1;

	fd = openat(root, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0)
		return err_sys(e, errno, "create %s", path);
	if (fchmod(fd, 0644) < 0)
		return err_sys(e, errno, "mode of %s", path);
	return fd_write_all(fd, text, strlen(text), e);
}

static int put_names(int root, struct err *e)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < array_len(names); i++)
		r = put_file(root, names[i].path, names[i].text, e);
	return r;
}

static int put_own(int root, struct err *e)
{
	int r = 0;

	for (size_t i = 0; i < array_len(dirs); i++)
		if (mkdirat(root, dirs[i].path, 0700) < 0 ||
		    fchownat(root, dirs[i].path, dirs[i].uid, dirs[i].uid, 0) <
			    0 ||
		    fchmodat(root, dirs[i].path, dirs[i].mode, 0) < 0)
			return err_sys(e, errno, "make %s", dirs[i].path);
	for (size_t i = 0; r == 0 && i < array_len(files); i++)
		r = put_file(root, files[i].path, files[i].text, e);
	if (r == 0)
		r = put_names(root, e);
	if (r == 0)
		r = put_links(root, e);
	if (r == 0 && symlinkat("/proc/self/mounts", root, "etc/mtab") < 0)
		r = err_sys(e, errno, "link etc/mtab");
	return r;
}

static int copy_etc(const char *dir, struct err *e)
{
	char from[64], to[PATH_MAX];
	int r;

	for (size_t i = 0; i < array_len(etc_parts); i++) {
		const char *const argv[] = {"cp", "-a", "--", from, to, NULL};

		snprintf(from, sizeof(from), "/etc/%s", etc_parts[i]);
		if (faccessat(AT_FDCWD, from, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		if (snprintf(to, sizeof(to), "%s/etc/%s", dir, etc_parts[i]) >=
		    (int)sizeof(to))
			return err_sys(e, ENAMETOOLONG, "copy %s", from);
		r = proc_run(argv, -1, -1, 60000, e);
		if (r < 0)
			return r;
		if (r > 0)
			return err_set(e, -EIO, "io",
				       "cp of %s ended with status %d", from,
				       r);
	}
	return 0;
}

static int fill_host(int root, const char *dir, struct err *e)
{
	int r = put_own(root, e);

	return r < 0 ? r : copy_etc(dir, e);
}

static int fill_etc(int root, const char *dir, struct err *e)
{
	(void)dir;
	if (mkdirat(root, "etc", 0755) < 0 ||
	    fchmodat(root, "etc", 0755, 0) < 0)
		return err_sys(e, errno, "make etc");
	return put_names(root, e);
}

typedef int fill_fn(int root, const char *dir, struct err *e);

/* Make it as ${img}/.new; the lock on ${img} is held. */
static int build(const char *img, int imgfd, const char *final, fill_fn *fill,
		 struct err *e)
{
	auto_close int root = -1;
	char tmp[PATH_MAX];
	int r;

	if (snprintf(tmp, sizeof(tmp), "%s/.new", img) >= (int)sizeof(tmp))
		return err_sys(e, ENAMETOOLONG, "%s", img);
	/* Left by one that was killed: nobody uses it. */
	r = fd_remove_tree(imgfd, ".new", e);
	if (r < 0)
		return r;
	if (mkdir(tmp, 0755) < 0 || chmod(tmp, 0755) < 0)
		return err_sys(e, errno, "make '%s'", tmp);
	root = open(tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return err_sys(e, errno, "open '%s'", tmp);
	r = fill(root, tmp, e);
	if (r == 0 && syncfs(root) < 0)
		r = err_sys(e, errno, "sync '%s'", tmp);
	if (r == 0 && rename(tmp, final) < 0)
		r = err_sys(e, errno, "publish '%s'", final);
	if (r < 0)
		(void)fd_remove_tree(imgfd, ".new", NULL);
	return r;
}

static unsigned long long stamp(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return 0;
	return (unsigned long long)st.st_mtim.tv_sec * 1000000 +
	       (unsigned long long)st.st_mtim.tv_nsec / 1000;
}

/* ${path} (in ${lib}/img) unless it is there. */
static int make_once(const char *lib, const char *path, fill_fn *fill,
		     struct err *e)
{
	auto_close int img = -1;
	char dir[PATH_MAX];
	int r;

	if (access(path, F_OK) == 0)
		return 0;
	if (snprintf(dir, sizeof(dir), "%s/img", lib) >= (int)sizeof(dir))
		return err_sys(e, ENAMETOOLONG, "%s", lib);
	r = fd_mkdir_p(dir, 0755, e);
	if (r < 0)
		return r;
	img = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (img < 0)
		return err_sys(e, errno, "open '%s'", dir);
	if (flock(img, LOCK_EX) < 0)
		return err_sys(e, errno, "lock '%s'", dir);
	if (access(path, F_OK) == 0)
		return 0;
	return build(dir, img, path, fill, e);
}

int host_root(const char *lib, char *path, size_t size, struct err *e)
{
	if (snprintf(path, size, "%s/img/host-2-%llx-%llx", lib,
		     stamp("/etc/ld.so.cache"),
		     stamp("/etc/alternatives")) >= (int)size)
		return err_sys(e, ENAMETOOLONG, "%s", lib);
	return make_once(lib, path, fill_host, e);
}

int host_etc(const char *lib, char *path, size_t size, struct err *e)
{
	if (snprintf(path, size, "%s/img/etc-2", lib) >= (int)size)
		return err_sys(e, ENAMETOOLONG, "%s", lib);
	return make_once(lib, path, fill_etc, e);
}
