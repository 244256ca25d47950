/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIFE_CREATE_PRIV_H
#define LIFE_CREATE_PRIV_H

#include <stdbool.h>

#include "life/create.h"

/* The steps of a creation; see create.c. */

struct image_where create_where(const struct creator *c);
void create_drop_image(struct creator *c);
int create_use_profile(struct creator *c, const char *name, struct err *e);
int create_bring_layers(struct creator *c, const json_t *spec, struct err *e);

/* create_id(c, m, e): the id of what is being made: what ${c} was told to call
 * it, or a new one. */
int create_id(struct creator *c, struct created *m, struct err *e);

/* create_hosts(c, spec, m, e): /etc/hosts and /etc/hostname of the layer. */
int create_hosts(const struct creator *c, const json_t *spec,
		 const struct created *m, struct err *e);

/* create_box(c, spec, follow, m, e): launch, with dsec-box as pid 1's parent;
 * ${follow} as of struct launch. */
int create_box(struct creator *c, const json_t *spec, const char *follow,
	       struct created *m, struct err *e);

/* create_listen(c, id, e): the socket of the supervisor to be; an fd. */
int create_listen(const struct creator *c, const char *id, struct err *e);

/*
 * create_box_fds(from, n, e): for a child that becomes a supervisor: /dev/null
 * on 0 to 2, from[0] on 3 and so on, nothing else.
 */
int create_box_fds(const int *from, size_t n, struct err *e);

/* create_undo(c, m): what a failed creation left. */
void create_undo(const struct creator *c, struct created *m);

#endif
