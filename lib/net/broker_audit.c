/* SPDX-License-Identifier: Apache-2.0 */
#include "net/broker_audit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "net/broker.h"

#define NAME	 "broker.jsonl"
#define ROUND_MS 1000

struct place {
	char sandbox[BROKER_SANDBOX];
	unsigned lines;	 /* of it in this round */
	uint64_t unsaid; /* ... and those that were left out */
};

struct broker_audit {
	struct loop *loop;
	int fd;
	broker_audit_state_fn *state;
	bool broken; /* the last line was not written */
	uint64_t lost;
	uint64_t began_ms; /* the round */
	struct loop_timer end;
	unsigned left, nplaces;
	/* By hash; behind them the one of all for whom there is none. */
	struct place places[BROKER_DENIED_PLACES + 1];
};

/* --- the file ------------------------------------------------------------ */

/* Workers that leave and the one that serves write to one file. */
static void lock(int fd, short type)
{
	struct flock all = {.l_type = type, .l_whence = SEEK_SET};

	while (fcntl(fd, F_SETLKW, &all) < 0 && errno == EINTR)
		;
}

/* All of it, or nothing; under the lock. */
static int append_locked(int fd, const char *text, size_t len)
{
	struct stat was;
	int r;

	if (fstat(fd, &was) < 0)
		return -errno;
	r = fd_write_all(fd, text, len, NULL);
	if (r < 0)
		(void)!ftruncate(fd, was.st_size);
	return r;
}

static int append(int fd, const char *text, size_t len)
{
	int r;

	lock(fd, F_WRLCK);
	r = append_locked(fd, text, len);
	lock(fd, F_UNLCK);
	return r;
}

static bool is_torn(int dir)
{
	auto_close int fd = openat(dir, NAME,
				   O_RDONLY | O_CLOEXEC | O_NOFOLLOW |
					   O_NONBLOCK);
	struct stat st;
	char last;

	return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	       st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) == 1 &&
	       last != '\n';
}

int broker_audit_open(int dir, struct err *e)
{
	int fd = openat(dir, NAME,
			O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
			0600);

	if (fd < 0)
		return err_sys(e, errno, "open 'audit/%s'", NAME);
	lock(fd, F_WRLCK);
	if (is_torn(dir))
		(void)append_locked(fd, "\n", 1);
	lock(fd, F_UNLCK);
	return fd;
}

static int put(struct broker_audit *a, json_t *line)
{
	auto_free char *text = NULL;
	size_t len;

	if (a->lost && json_object_set_new(line, "lost",
					   json_integer((json_int_t)a->lost)))
		return -ENOMEM;
	text = json_dumps(line, JSON_COMPACT);
	if (!text)
		return -ENOMEM;
	len = strlen(text);
	text[len++] = '\n'; /* in place of the NUL */
	return append(a->fd, text, len);
}

/* False: it is not there. */
static bool wrote(struct broker_audit *a, json_t *line)
{
	const int r = line ? put(a, line) : -ENOMEM;
	struct err e = {0};

	if (r == 0 && a->broken)
		a->state(NULL, a->lost);
	if (r == 0) {
		a->lost = 0;
	} else if (!a->broken) {
		(void)err_sys(&e, -r, "write 'audit/%s'", NAME);
		a->state(&e, 0);
	}
	a->broken = r < 0;
	return r == 0;
}

void broker_audit_add(struct broker_audit *a, json_t *line)
{
	if (!wrote(a, line))
		a->lost++;
}

/* Nothing may come any more that could tell it. */
static void tell_lost(struct broker_audit *a)
{
	auto_json json_t *line = NULL;

	if (a->lost &&
	    json_pack_or(&line, NULL, "{s:I,s:s}", "at_ms",
			 (json_int_t)clock_wall_ms(), "outcome", "lost") == 0)
		(void)wrote(a, line);
}

/* --- refusals ------------------------------------------------------------ */

static void tell_place(struct broker_audit *a, const struct place *p)
{
	auto_json json_t *line = NULL;

	if (json_pack_or(&line, NULL, "{s:I,s:s*,s:s,s:I}", "at_ms",
			 (json_int_t)clock_wall_ms(), "sandbox",
			 *p->sandbox ? p->sandbox : NULL, "outcome", "denied",
			 "n", (json_int_t)p->unsaid) < 0)
		line = NULL;
	broker_audit_add(a, line);
}

void broker_audit_tell(struct broker_audit *a)
{
	for (size_t i = 0; i < array_len(a->places); i++)
		if (a->places[i].unsaid)
			tell_place(a, &a->places[i]);
	memset(a->places, 0, sizeof(a->places));
	a->nplaces = 0;
	loop_timer_set(a->loop, &a->end, 0);
}

static void on_end(struct loop *l, struct loop_timer *t)
{
	struct broker_audit *a = t->arg;
	uint64_t end_ms = a->began_ms +
			  a->nplaces * (uint64_t)ROUND_MS / BROKER_DENIED_ALL;

	if (clock_ms() < end_ms)
		loop_timer_set(l, t, end_ms);
	else
		broker_audit_tell(a);
}

static void begin(struct broker_audit *a)
{
	a->began_ms = clock_ms();
	a->left = BROKER_DENIED_ALL;
	loop_timer_set(a->loop, &a->end, a->began_ms + ROUND_MS);
}

/* Who chooses ids so that their places are taken is counted with all others. */
static struct place *place_of(struct broker_audit *a, const char *sandbox)
{
	size_t at = hash_fnv(sandbox, strlen(sandbox));
	struct place *p;

	for (size_t i = 0; i < BROKER_DENIED_PLACES; i++) {
		p = &a->places[(at + i) % BROKER_DENIED_PLACES];
		if (!strcmp(p->sandbox, sandbox))
			return p;
		if (*p->sandbox)
			continue;
		snprintf(p->sandbox, sizeof(p->sandbox), "%s", sandbox);
		a->nplaces++;
		return p;
	}
	return &a->places[BROKER_DENIED_PLACES];
}

bool broker_audit_may(struct broker_audit *a, const char *sandbox)
{
	struct place *p;

	if (!a->end.at_ms)
		begin(a);
	p = place_of(a, sandbox);
	if (*p->sandbox && !p->lines) {
		p->lines++;
		return true;
	}
	if (!a->left || p->lines >= BROKER_DENIED_SANDBOX) {
		p->unsaid++;
		return false;
	}
	a->left--;
	p->lines++;
	return true;
}

/* --- begin and end ------------------------------------------------------- */

int broker_audit_new(struct loop *l, int fd, broker_audit_state_fn *state,
		     struct broker_audit **ret, struct err *e)
{
	struct broker_audit *a = calloc(1, sizeof(*a));

	if (!a)
		return err_sys(e, ENOMEM, "audit");
	a->loop = l;
	a->fd = fd;
	a->state = state;
	a->end = (struct loop_timer){.fn = on_end, .arg = a};
	*ret = a;
	return 0;
}

void broker_audit_file(struct broker_audit *a, int fd)
{
	fd_close(a->fd);
	a->fd = fd;
	tell_lost(a);
}

void broker_audit_free(struct broker_audit *a)
{
	if (!a)
		return;
	broker_audit_tell(a);
	tell_lost(a);
	fd_close(a->fd);
	free(a);
}
