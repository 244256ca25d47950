/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_ENGINE_H
#define SYS_ENGINE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"

/*
 * The checkpoint engine: a program (CRIU 4.2 or later) that writes the memory
 * and state of a tree of processes to files and makes them again.  Here is how
 * it is started, waited for and ended; ckpt/engine.h finds and tries it.
 *
 * It may hang, fork helpers and print what hostile processes are called: it
 * runs in a process group of its own under a time limit, dies with us, gets a
 * clean environment and only the descriptors it is given.
 *
 * Images are written with mode 0644, into a directory that has to be 0755 and
 * is kept from others by the one above it (0700): a process that is restored
 * opens them when it is in its user namespace already, partly before and partly
 * after it has become root there, so nothing stricter can be read by it.  The
 * directory itself is opened by the engine first, as root.
 */

#define ENGINE_VERSION_MAX 32

struct engine_ops;

struct engine {
	const struct engine_ops *ops; /* what it is */
	char path[PATH_MAX];	      /* the program */
	/* Where it brings its own C library: started through that one's loader,
	 * with these libraries.  Else "". */
	char loader[PATH_MAX], libs[PATH_MAX];
	char shim[PATH_MAX];		  /* preloaded, or "": see the shim */
	char version[ENGINE_VERSION_MAX]; /* "4.2.1"; "" not asked yet */
	unsigned
		timeout_ms; /* for a dump or restore; 0: whoever runs it says */
};

/*
 * engine_open(path, ret, e):
 * The engine at the absolute ${path}.  If it lies in a tree with a C library of
 * its own (TREE/usr/sbin/criu beside TREE/usr/lib64/ld-*), that one is used.
 * The shim is found in libexec.
 * -ENOENT, "unsupported": no such program.
 */
int engine_open(const char *path, struct engine *ret, struct err *e);

/*
 * engine_ask_version(en, e): run it to learn its version.  "unsupported" where
 * it is not what its name says, or too old.
 */
int engine_ask_version(struct engine *en, struct err *e);

/*
 * What of the host is inside, in words that a checkpoint keeps: at a dump that
 * it is to be left out, at a restore what takes its place.
 */
struct engine_given {
	enum engine_given_kind {
		ENGINE_MOUNT, /* of: its key; at: where it is inside, or its
				 new source on the host */
		ENGINE_TTY,   /* of: "tty[8803:1d]"; fd: the new one */
		ENGINE_PIPE, /* of: "pipe:[123]"; fd: a new end; restore only */
	} kind;
	const char *of, *at;
	int fd;
};

/* A dump of all processes of pid 1's tree, which go on afterwards.  Frozen
 * they are, by their cgroup, and stay so. */
struct engine_dump {
	pid_t init;
	const char *images, *work; /* directories; ${log} is a file of work */
	const char *log;
	const char *freezer; /* directory of the cgroup; NULL: not frozen */
	const char *hook;    /* a program to call at each step, or NULL */
	const struct engine_given *given;
	size_t ngiven;
};

/* Their return, below ${root}, as children of whoever starts the engine. */
struct engine_restore {
	const char *images, *work, *log;
	const char *root, *pid_file;
	const char *hook; /* as above */
	const struct engine_given *given;
	size_t ngiven;
	bool verbose;
};

/* Words for struct engine_run.  All zero is none. */
struct engine_args {
	const char **v;
	int *keep;
	size_t n, nkeep;
};
void engine_args_done(struct engine_args *a);

/*
 * An engine.  One that shares the memory of copies may come beside this one:
 * then a manifest's "engine" says by which a checkpoint was made.
 */
struct engine_ops {
	const char *name;
	int (*parse_version)(const char *text, char *version, size_t size);
	int (*dump)(const struct engine_dump *what, struct engine_args *ret);
	int (*restore)(const struct engine_restore *what,
		       struct engine_args *ret);
};
extern const struct engine_ops engine_criu;

/* A started engine. */
struct engine_proc {
	pid_t pid;
	int pidfd; /* close-on-exec */
};

struct engine_run {
	const char *const *args; /* "dump", "-t", ...; NULL at the end */
	const int *keep;	 /* descriptors it gets, under their numbers */
	size_t nkeep;
	const char *const *env; /* more NAME=VALUE, or NULL */
	int out;		/* its stdout and stderr; -1: /dev/null */
	/* A directory on tmpfs that the engine sees as /run, or NULL.  It keeps
	 * what it learnt of the kernel there, which saves 0.2 s a call.  Needed
	 * only where /run is no tmpfs; engine_spawn() looks. */
	const char *run_dir;
	/* It sees a /tmp of its own, so that nothing of it stays there when it
	 * is killed.  Of the node's it has the directories that the engine's
	 * files and words of ${args} that begin with "/tmp/" lie in. */
	bool own_tmp;
};

/*
 * engine_spawn(en, run, ret, e):
 * Start it as a child of ours, with "--no-default-config" and a clean
 * environment.  All our signals are unblocked and reset in it; when we die, it
 * dies.  It is a process group leader.
 */
int engine_spawn(const struct engine *en, const struct engine_run *run,
		 struct engine_proc *ret, struct err *e);

/*
 * engine_exec(en, run, e):
 * Become it: for a child that shares no memory and no descriptor table with
 * anybody.  ${parent}, its parent, may have died already.  Returns only on
 * failure.
 */
int engine_exec(const struct engine *en, const struct engine_run *run,
		pid_t parent, struct err *e);

/*
 * engine_wait(p, timeout_ms, e):
 * Wait for its end, and make its end if it takes longer (-ETIMEDOUT, code
 * "engine"), its helpers too.  Returns its exit status (0 to 255), or -errno
 * with the code "engine" (infra).  ${p} is done with in every case.
 */
int engine_wait(struct engine_proc *p, unsigned timeout_ms, struct err *e);

/* engine_kill(p): end it and its helpers at once, and reap it.  NULL-safe
 * for one that ended (pid 0). */
void engine_kill(struct engine_proc *p);

/*
 * engine_run(en, run, timeout_ms, dirfd, log, e):
 * Spawn and wait; 0 only where it exited with 0.  Else -errno, code "engine",
 * the message with the last words of the log ${log} in ${dirfd} (-1: none).
 */
int engine_run(const struct engine *en, const struct engine_run *run,
	       unsigned timeout_ms, int dirfd, const char *log, struct err *e);

/*
 * engine_last_words(dirfd, log, buf, size):
 * The last error lines of a log of the engine, in printable ASCII, or "".
 */
const char *engine_last_words(int dirfd, const char *log, char *buf,
			      size_t size);

/* engine_words_of(text, buf, size): the same of a text, which is cut up. */
const char *engine_words_of(char *text, char *buf, size_t size);

#endif
