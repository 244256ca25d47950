/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ckpt/inside_priv.h"

#define AGAIN_MS 100

/* The state of a thread, 0 if it cannot be told. */
static char state_of(int tasks, const char *tid)
{
	auto_free char *text = NULL;
	char path[40];
	const char *at;

	snprintf(path, sizeof(path), "%.16s/stat", tid);
	if (fd_read_file(tasks, path, 4096, &text, NULL, NULL) < 0)
		return 0;
	/* After a name that may have parentheses of its own. */
	at = strrchr(text, ')');
	return at && at[1] == ' ' ? at[2] : 0;
}

/* Is it in a call that ends when the child begins a program, or ends? */
static bool waits_for_child(int tasks, const char *tid)
{
	auto_free char *text = NULL;
	unsigned long flags = 0;
	char path[40];
	long nr;

	snprintf(path, sizeof(path), "%.16s/syscall", tid);
	if (fd_read_file(tasks, path, 4096, &text, NULL, NULL) < 0 ||
	    sscanf(text, "%ld %lx", &nr, &flags) < 2)
		return false;
#ifdef SYS_vfork
	if (nr == SYS_vfork)
		return true;
#endif
	return nr == SYS_clone3 || (nr == SYS_clone && (flags & CLONE_VFORK));
}

/*
 * Who waits for the child of a vfork() is frozen where it is, and does not come
 * out of it for the engine either, which would try for long.
 */
int inside_tasks(struct survey *s, struct err *e)
{
	auto_dir DIR *d = NULL;
	struct dirent *de;
	int fd, r;

	fd = openat(s->at_dir, "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	d = fd < 0 ? NULL : fdopendir(fd);
	if (!d)
		return err_sys(e, errno, "look at the threads of process %d",
			       (int)s->at->pid);
	while ((de = readdir(d))) {
		if (!isdigit((unsigned char)de->d_name[0]) ||
		    state_of(fd, de->d_name) != 'D' ||
		    !waits_for_child(fd, de->d_name))
			continue;
		r = inside_refuse(s, e,
				  "waits for a child that has not begun its "
				  "program yet");
		if (e)
			e->retry_after_ms = AGAIN_MS;
		return r;
	}
	return 0;
}
