/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "sys/cgroup_priv.h"
#include "sys/reclaim.h"

#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

#define MODULES_MAX (16 * 1024 * 1024)
#define KSM	    "/sys/kernel/mm/ksm/"

/* "KEY:   123 kB" of /proc/meminfo and its like, in bytes; 0: not there. */
static uint64_t kb_of(const char *text, const char *key)
{
	size_t n = strlen(key);

	for (const char *p = text; p && *p; p = strchr(p, '\n')) {
		p += *p == '\n';
		if (!strncmp(p, key, n) && p[n] == ':')
			return strtoull(p + n + 1, NULL, 10) * 1024;
	}
	return 0;
}

static bool file_has(const char *path, const char *word)
{
	auto_free char *text = NULL;

	return fd_read_file(AT_FDCWD, path, MODULES_MAX, &text, NULL, NULL) ==
		       0 &&
	       strstr(text, word);
}

/* Loaded, or a module that can be. */
static bool has_zram(void)
{
	char path[256];
	struct utsname u;

	if (access("/sys/class/zram-control", F_OK) == 0 ||
	    access("/sys/block/zram0", F_OK) == 0)
		return true;
	if (uname(&u) < 0)
		return false;
	snprintf(path, sizeof(path), "/lib/modules/%s/modules.dep", u.release);
	if (file_has(path, "/zram.ko"))
		return true;
	snprintf(path, sizeof(path), "/lib/modules/%s/modules.builtin",
		 u.release);
	return file_has(path, "/zram.ko");
}

static uint64_t number_in(const char *path)
{
	char text[32];

	if (cgroup_read(AT_FDCWD, path, text, sizeof(text), NULL) < 0)
		return 0;
	return strtoull(text, NULL, 10);
}

int reclaim_node(struct reclaim_node *ret_node, struct err *e)
{
	struct reclaim_node n = {0};
	auto_free char *text = NULL;
	int r;

	r = fd_read_file(AT_FDCWD, "/proc/meminfo", 65536, &text, NULL, e);
	if (r < 0)
		return r;
	n.swap_total_bytes = kb_of(text, "SwapTotal");
	n.swap_free_bytes = kb_of(text, "SwapFree");
	n.zram_used = n.swap_total_bytes && file_has("/proc/swaps", "zram");
	n.zram_can = n.zram_used || has_zram();
	n.ksm_can = access(KSM "run", F_OK) == 0;
	n.ksm_runs = number_in(KSM "run") == 1;
	n.ksm_saved_bytes = number_in(KSM "pages_sharing") *
			    (uint64_t)sysconf(_SC_PAGESIZE);
	*ret_node = n;
	return 0;
}

int reclaim_pss(const struct cgroup_root *root, const char *id,
		struct reclaim_pss *ret_pss, struct err *e)
{
	struct reclaim_pss sum = {0};
	auto_free pid_t *pid = NULL;
	char path[64], text[4096];
	size_t n;
	int r;

	r = cgroup_pids(root, id, NULL, &pid, &n, e);
	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "/proc/%d/smaps_rollup",
			 (int)pid[i]);
		r = cgroup_read(AT_FDCWD, path, text, sizeof(text), e);
		if (r == -ENOENT || r == -ESRCH) /* it has ended */
			continue;
		if (r < 0)
			return r;
		sum.pss_bytes += kb_of(text, "Pss");
		sum.rss_bytes += kb_of(text, "Rss");
		sum.swap_bytes += kb_of(text, "Swap");
		sum.processes++;
	}
	*ret_pss = sum;
	return 0;
}
