/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/proc.h"
#include "sys/engine.h"

#define VERSION_TIMEOUT_MS 10000
#define VERSION_TEXT_MAX   4096

#if defined(__x86_64__)
#define MULTIARCH "x86_64-linux-gnu"
#define LOADER	  "usr/lib64/ld-linux-x86-64.so.2"
#elif defined(__aarch64__)
#define MULTIARCH "aarch64-linux-gnu"
#define LOADER	  "usr/lib/ld-linux-aarch64.so.1"
#else
#error "what the loader of this architecture is called"
#endif

/* A tree of its own is what has the program in usr/sbin and a loader. */
static int find_loader(struct engine *en, struct err *e)
{
	static const char in_tree[] = "/usr/sbin/criu";
	size_t len = strlen(en->path), cut = sizeof(in_tree) - 1;
	int n, m;

	if (len <= cut || strcmp(en->path + len - cut, in_tree))
		return 0;
	n = snprintf(en->loader, sizeof(en->loader), "%.*s/%s",
		     (int)(len - cut), en->path, LOADER);
	m = snprintf(en->libs, sizeof(en->libs), "%.*s/usr/lib/%s",
		     (int)(len - cut), en->path, MULTIARCH);
	if (n >= (int)sizeof(en->loader) || m >= (int)sizeof(en->libs))
		return err_sys(e, ENAMETOOLONG, "loader of %s", en->path);
	if (access(en->loader, X_OK) < 0)
		en->loader[0] = en->libs[0] = '\0';
	return 0;
}

int engine_open(const char *path, struct engine *ret, struct err *e)
{
	struct engine en = {.ops = &engine_criu};
	char shim[PATH_MAX];
	int r;

	if (path[0] != '/' || strlen(path) >= sizeof(en.path))
		return err_set(e, -EINVAL, "configuration",
			       "the checkpoint engine '%s' is no absolute path",
			       path);
	snprintf(en.path, sizeof(en.path), "%s", path);
	if (access(path, X_OK) < 0)
		return err_set(e, -ENOENT, "unsupported",
			       "no checkpoint engine at %s: %s", path,
			       strerror(errno));
	r = find_loader(&en, e);
	if (r < 0)
		return r;
	r = proc_libexec("engine-shim.so", en.shim, sizeof(en.shim), e);
	if (r < 0)
		return r;
	/* By one name, whoever asks: the record of a try names it. */
	if (!realpath(en.shim, shim) || access(shim, R_OK) < 0)
		shim[0] = '\0';
	snprintf(en.shim, sizeof(en.shim), "%s", shim);
	*ret = en;
	return 0;
}

/* What it prints, at most ${size} - 1 bytes: it may print for ever. */
static int read_answer(int fd, char *text, size_t size)
{
	size_t len = 0;
	ssize_t n;

	while (len < size - 1) {
		n = pread(fd, text + len, size - 1 - len, (off_t)len);
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		len += (size_t)n;
	}
	text[len] = '\0';
	return 0;
}

int engine_ask_version(struct engine *en, struct err *e)
{
	const char *const args[] = {"--version", NULL};
	char text[VERSION_TEXT_MAX], version[ENGINE_VERSION_MAX] = "";
	struct engine_run run = {.args = args};
	auto_close int out = -1;
	int r;

	/* Not a pipe: a helper that outlives the engine would hold us.  It
	 * cannot grow: an engine may print for ever. */
	out = memfd_create("version", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (out < 0 || ftruncate(out, sizeof(text)) < 0 ||
	    fcntl(out, F_ADD_SEALS, F_SEAL_GROW) < 0)
		return err_sys(e, errno, "memory for the engine's answer");
	run.out = out;
	r = engine_run(en, &run, VERSION_TIMEOUT_MS, -1, NULL, e);
	if (r < 0)
		return err_wrap(e, r, "%s --version", en->path);
	r = read_answer(out, text, sizeof(text));
	if (r < 0)
		return err_sys(e, -r, "read the engine's answer");
	r = en->ops->parse_version(text, version, sizeof(version));
	if (r == -ENOTSUP)
		return err_set(e, r, "unsupported",
			       "%s is CRIU %s; 4.2 or later is needed (make "
			       "deps installs it)",
			       en->path, version);
	if (r < 0)
		return err_set(e, r, "unsupported",
			       "%s --version does not say its version",
			       en->path);
	snprintf(en->version, sizeof(en->version), "%s", version);
	return 0;
}
