/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "left.h"

#define CHUNK	 (1 << 20)
#define LEFT_MAX 64 /* more than that, and the oldest is let go */

static void drop(struct left *l)
{
	struct cgroup_root *cgroups;
	struct box *b = l->box;
	struct left **p;

	for (p = &b->left; *p != l; p = &(*p)->next)
		;
	*p = l->next;
	b->nleft--;
	loop_del(b->loop, &l->src);
	fd_close(l->fd);
	if (box_cgroups(b, &cgroups, NULL) == 0)
		cgroup_leaf_remove(cgroups, b->id, l->leaf, NULL);
	free(l);
}

static void on_left(struct loop *loop, struct loop_source *s, uint32_t events)
{
	struct left *l = s->arg;
	ssize_t n = -1;

	(void)loop;
	if (box_null(l->box, NULL) == 0)
		n = splice(l->fd, NULL, l->box->null_fd, NULL, CHUNK,
			   SPLICE_F_NONBLOCK);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) ||
	    (n < 0 && (events & EPOLLHUP)))
		drop(l);
}

void left_add(struct box *b, int *fd, const char *leaf)
{
	struct left *l = calloc(1, sizeof(*l)), *oldest;

	if (!l ||
	    loop_add(b->loop, &l->src, *fd, EPOLLIN, on_left, l, NULL) < 0) {
		free(l);
		fd_close(steal_fd(fd));
		return;
	}
	l->box = b;
	l->fd = steal_fd(fd);
	snprintf(l->leaf, sizeof(l->leaf), "%s", leaf);
	l->next = b->left;
	b->left = l;
	if (++b->nleft <= LEFT_MAX)
		return;
	for (oldest = b->left; oldest->next; oldest = oldest->next)
		;
	drop(oldest);
}

void left_drop_all(struct box *b)
{
	while (b->left)
		drop(b->left);
}
