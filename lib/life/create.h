/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIFE_CREATE_H
#define LIFE_CREATE_H

#include "box/claim.h"
#include "box/launch.h"
#include "box/publish.h"
#include "ckpt/snap.h"

/*
 * The making of sandboxes by one process, one after another: what is the same
 * for all of them (cgroup trees, the pool, images and profiles) is opened once.
 */
struct creator {
	const struct tree *tree;
	struct cgroup_root *cgroups;
	struct pool pool;
	struct image image; /* the one used last, and what was asked for */
	char image_name[257];
	json_t *image_layers;	/* owned */
	struct profile profile; /* the one used last; name "" is none */
	/* What the next one that is made is to be called; "": as it likes. */
	char next_id[BOX_ID_LEN + 1];
};

int creator_open(const struct tree *t, struct creator *ret, struct err *e);
void creator_close(struct creator *c);

/*
 * creator_command(c, spec, e): a ${spec} without "command" gets that of its
 * image, entrypoint and cmd; "missing_field" where the image has none.
 */
int creator_command(struct creator *c, json_t *spec, struct err *e);

/*
 * creator_ready(c, spec, e): image and profile of ${spec}, that of a sandbox
 * which was made once, are those of ${c}, and the layers, which are claimed,
 * are mounted.  "incompatible" where the store has them no more.
 */
int creator_ready(struct creator *c, const json_t *spec, struct err *e);

/* A sandbox being made, or made. */
struct created {
	char id[BOX_ID_LEN + 1];
	struct claim claim;
	struct launched run;	  /* a one-shot's */
	int publish[PUBLISH_MAX]; /* listening on the node, for its supervisor
				   */
	unsigned npublish;
	bool network; /* it has one */
};

/*
 * create_one_shot(c, spec, command, ret, e):
 * Claim, layer, cgroup, launch, with ${command} (see struct launch) as pid 1's
 * first child.  The caller watches it and ends it with create_end().  On
 * failure nothing is left.
 */
int create_one_shot(struct creator *c, json_t *spec, struct become *command,
		    struct created *ret, struct err *e);

/* create_end(c, made, e): kill what runs of a one-shot and remove all of it. */
int create_end(struct creator *c, struct created *made, struct err *e);

/*
 * create_supervised(c, spec, ret, e):
 * The same with a supervisor, dsec-box, which is pid 1's parent and holds the
 * claim.  When this returns 0 its socket can be connected to.
 */
int create_supervised(struct creator *c, json_t *spec, struct created *ret,
		      struct err *e);

/*
 * create_from(c, spec, from, ret, e):
 * A sandbox made from a snapshot: claim, a copy of the snapshot's layer,
 * cgroup, spec.json, and then, with ${from}->memory, dsec-ckpt restore in the
 * supervisors' cgroup, which becomes its dsec-box; without, a launch as of
 * create_supervised().  ${spec} is complete: see inherit_spec().  When this
 * returns 0 its socket can be connected to, and it runs.
 */
struct create_from {
	const struct snap *snap; /* held by the caller meanwhile */
	const json_t *source;	 /* the spec.json that it was made of */
	/* The sandbox that the snapshot was just taken of: it is the copy's
	 * policy that this one has when the copy begins to run; NULL: the
	 * snapshot's. */
	const char *follow;
	bool memory; /* its processes too */
	int stop;    /* -1, or a descriptor that reads as "stop" */
};

struct create_copied {
	struct created made;
	enum pool_copy layer; /* how its layer was made */
	json_t *restored;     /* what the restore told, the caller's, or NULL */
};

int create_from(struct creator *c, const json_t *spec,
		const struct create_from *from, struct create_copied *ret,
		struct err *e);

#endif
