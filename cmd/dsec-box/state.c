/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "state.h"

#define NAME  "state.json"
#define SPARE ".state.json"
#define SIZE  512 /* of both files: blanks, then a newline, fill them */

/* The text in place of what is in the spare file. */
static int fill_spare(struct box *b, const json_t *rec)
{
	char text[SIZE];
	size_t len = json_dumpb(rec, text, SIZE - 1, JSON_COMPACT);

	if (len == 0 || len >= SIZE)
		return -EMSGSIZE;
	memset(text + len, ' ', SIZE - 1 - len);
	text[SIZE - 1] = '\n';
	if (b->state_fds[0] < 0)
		b->state_fds[0] = openat(b->run_fd, SPARE,
					 O_WRONLY | O_CREAT | O_CLOEXEC |
						 O_NOFOLLOW,
					 0600);
	if (b->state_fds[0] < 0)
		return -errno;
	return pwrite(b->state_fds[0], text, SIZE, 0) == SIZE ? 0 : -EIO;
}

/* The file that was read until now is written next. */
static int exchange(struct box *b)
{
	int was_spare = b->state_fds[0];

	if (renameat2(b->run_fd, SPARE, b->run_fd, NAME, RENAME_EXCHANGE) < 0)
		return -errno;
	b->state_fds[0] = b->state_fds[1];
	b->state_fds[1] = was_spare;
	return 0;
}

void state_close(struct box *b)
{
	for (int i = 0; i < 2; i++)
		if (b->state_fds[i] >= 0)
			fd_close(steal_fd(&b->state_fds[i]));
}

void state_write(struct box *b, const json_t *rec)
{
	if (fill_spare(b, rec) == 0 && exchange(b) == 0)
		return;
	/* It is the first one, or there is no room. */
	state_close(b);
	json_write_file(b->run_fd, NAME, rec, 0, NULL);
}
