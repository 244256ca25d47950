/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/recorder.h"
#include "recording.h"

int recording_dir(const struct tree *tree, const char *id, const char *exec,
		  struct err *e)
{
	size_t n = strspn(exec, "abcdefghijklmnopqrstuvwxyz0123456789-");
	char path[PATH_MAX];
	int r, fd;

	if (n == 0 || n > 64 || exec[n] != '\0')
		return err_set(e, -ENOENT, "exec_unknown", "no command '%.64s'",
			       exec);
	r = tree_path(path, e, "%s/sb/%s/out", tree->lib, id);
	if (r < 0)
		return r;
	/* On a pool it is a link of ours. */
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? err_sys(e, errno, "open '%s'", path) : fd;
}

struct range {
	uint64_t at, len;
	bool tail;
};

/* A part of a file; what the file does not have of it counts as lost. */
static int add(const struct recording *rec, const struct range *want,
	       struct pump *p, uint64_t *lost, struct err *e)
{
	auto_close int fd = -1;
	struct stat st = {0};
	char name[96];
	uint64_t has;

	if (want->len == 0)
		return 0;
	snprintf(name, sizeof(name), "%s.%s%s", rec->exec, rec->stream,
		 want->tail ? ".tail" : "");
	fd = openat(rec->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if ((fd < 0 && errno != ENOENT) || (fd >= 0 && fstat(fd, &st) < 0))
		return err_sys(e, errno, "open '%s'", name);
	has = (uint64_t)st.st_size > want->at ? (uint64_t)st.st_size - want->at
					      : 0;
	if (has > want->len)
		has = want->len;
	*lost += want->len - has;
	if (has > 0)
		pump_add(p, steal_fd(&fd), (off_t)want->at, has);
	return 0;
}

int recording_pump(const struct recording *rec, uint64_t total, struct pump *p,
		   uint64_t *ret_lost, struct err *e)
{
	const uint64_t head = RECORDER_HEAD, ring = RECORDER_TAIL;
	struct range parts[3] = {{0, total < head ? total : head, false}};
	uint64_t from, len, lost = 0;
	int r = 0;

	if (total > head) {
		from = total > head + ring ? total - ring : head;
		len = total - from;
		lost = from - head;
		parts[1] = (struct range){(from - head) % ring, len, true};
		if (len > ring - parts[1].at)
			parts[1].len = ring - parts[1].at;
		parts[2] = (struct range){0, len - parts[1].len, true};
	}
	for (size_t i = 0; i < array_len(parts) && r == 0; i++)
		r = add(rec, &parts[i], p, &lost, e);
	if (r == 0)
		*ret_lost = lost;
	return r;
}
