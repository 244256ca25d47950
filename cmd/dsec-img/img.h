/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_IMG_H
#define DSEC_IMG_H

#include <limits.h>
#include <stdbool.h>

#include "box/tree.h"
#include "img/image.h"
#include "img/store.h"
#include "wire/exit.h"
#include "wire/record.h"

/*
 * Operations on images.  Each is a row of img_ops (fields.c) and a function
 * op_NAME() in op_NAME.c; main.c makes requests of lines and of the command
 * line, run.c works on one after the other.
 *
 * A new operation: its fields and its row in fields.c, op_NAME.c, its place in
 * dsec-img.1 and in PROTOCOL.md.
 */
struct img_ctx {
	struct tree tree;
	struct image_config config; /* images.json */

	/* Of this request: see img_store(). */
	struct store store;
	bool have_store;

	/* run.c's own. */
	const struct img_op *op;
	const json_t *req;
	bool events, table;
	uint64_t deadline_ms; /* clock_ms(); 0: none */
	uint64_t told_ms;     /* when progress was last told */
	size_t told_len;      /* of the progress line on the terminal */
	unsigned rows;	      /* printed for this request */
	enum exit_status status;
};

/*
 * op_NAME(c, req, answer, e): do it.  ${req} was held against the fields of the
 * operation, its words are there.  What it answers goes into ${answer}, to
 * which the id and "ok" are added; on failure ${answer} is dropped, and ${e} is
 * the answer.
 */
typedef int img_op_fn(struct img_ctx *c, const json_t *req, json_t *answer,
		      struct err *e);

/* For people, on a terminal: an event record, or the answer (it has "ok");
 * ${nth} counts from 0 what was printed for this request. */
typedef void img_print_fn(const json_t *rec, unsigned nth);

enum img_more {
	MORE_NONE, /* further plain words are a usage error */
	MORE_EACH, /* each is a request of its own, for words[0] */
	MORE_LIST, /* words[0] is a list and takes all */
};

#define IMG_WORDS_MAX 3

struct img_op {
	const char *name;
	const char *usage; /* what follows the name, for -h */
	const char *help;  /* one line */
	img_op_fn *run;
	const char *words[IMG_WORDS_MAX]; /* fields of plain words, in order */
	unsigned need;			  /* so many of them must be there */
	enum img_more more;
	const struct field *fields;
	size_t nfields;
	img_print_fn *print; /* NULL: records on a terminal too */
	const char *forms;   /* what a word may be, for -h, or NULL */
};

extern const struct img_op img_ops[];
extern const size_t img_ops_len;

/* img_op_find(name): NULL if there is none. */
const struct img_op *img_op_find(const char *name);

/* The fields that all operations have (op, store) and the flags of the program,
 * before an operation's own. */
enum {
	COMMON_STORE,
	COMMON_DEADLINE,
	COMMON_EVENTS,
	COMMON_JSON,
	COMMON_TABLE,
	COMMON_HELP,
	COMMON_VERSION,
	COMMON_OP,
	COMMON_LEN
};
extern const struct field img_common[COMMON_LEN];

/*
 * img_table(op, ret, ret_n, e): img_common and then what ${op} has, one table,
 * the caller's to free.  NULL: img_common alone.
 */
int img_table(const struct img_op *op, struct field **ret, size_t *ret_n,
	      struct err *e);

/* --- for operations ---------------------------------------------------- */

/*
 * img_store(c, create, ret, e):
 * The store that the request's "store", images.json or the default names, open
 * until the request ends; with ${create} it is made if need be (but for the
 * default in a directory that is there, else "not_found"), else "image_unknown"
 * where there is none.
 */
int img_store(struct img_ctx *c, bool create, const struct store **ret,
	      struct err *e);

/* img_store_path(c, path, e): where it is, into path[PATH_MAX]. */
int img_store_path(const struct img_ctx *c, char *path, struct err *e);

/*
 * img_progress(c, done, total, what, e):
 * Tell how far it is: ${done} of ${total} (0: not known) bytes or things, doing
 * ${what} ("read layer 2").  Cheap: call it often.  0, or -errno when the
 * request should end now: its deadline passed, or a signal asks us to.
 */
int img_progress(struct img_ctx *c, uint64_t done, uint64_t total,
		 const char *what, struct err *e);

/*
 * img_event(c, event, rec, e):
 * A record before the final one: ${rec} (taken over, NULL: out of memory) gets
 * the request's id and "event".  For answers that may be longer than a line.
 */
int img_event(struct img_ctx *c, const char *event, json_t *rec, struct err *e);

/*
 * img_resolve(c, s, text, ret_name, ret_digest, e): a name of a request or a
 * digest to the manifest it leads to.  ret_name may be NULL.
 */
int img_resolve(struct img_ctx *c, const struct store *s, const char *text,
		struct img_name *ret_name, struct digest *ret_digest,
		struct err *e);

/* json_digest(d): "sha256:<hex>", as it is given back to us; NULL: no memory.
 */
json_t *json_digest(const struct digest *d);

/* --- main.c, run.c ----------------------------------------------------- */

/* img_run(c, req, e): do what ${req} asks and write its final record.  -errno
 * when no record could be written. */
int img_run(struct img_ctx *c, json_t *req, struct err *e);

/* img_write(c, rec, e): a record; it is taken over, NULL: out of memory.
 * img_refuse(c, req, why, e): the final record of one that failed. */
int img_write(struct img_ctx *c, json_t *rec, struct err *e);
int img_refuse(struct img_ctx *c, const json_t *req, const struct err *why,
	       struct err *e);

/* img_signals(): INT, TERM and HUP end the request with img_progress(); the
 * second time they end us.  img_interrupted(): one has come. */
void img_signals(void);
int img_interrupted(void);

img_op_fn op_import, op_pull, op_mount, op_unmount, op_pack, op_export, op_lint,
	op_diff, op_ls, op_inspect, op_tag, op_rm, op_du, op_env, op_verify,
	op_prune;
img_print_fn print_ls, print_du, print_env, print_diff, print_lint,
	print_inspect, print_rm, print_prune, print_verify, print_import,
	print_pack, print_export, print_mount, print_tag;

#endif
